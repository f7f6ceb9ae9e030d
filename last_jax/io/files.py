"""Single files: regular ones only, bounds on what they may unpack to, and writing whole or not at all."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import stat
import uuid
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO

FilePath = str | os.PathLike[str]

LEAST_UNPACKED = 2**30  # Bytes that any file may unpack to: 1 GiB.
MOST_RATIO = 100  # Of larger files, times their size. Arrays of numbers rarely exceed 10, images of digits 5.
MOST_JSON = 2**24  # Bytes of JSON: parsed, it takes up to 30 times as many.

_TEMPORARY = re.compile(r"\.(.+\.)?[0-9a-f]{32}\.tmp", re.DOTALL)
_SURROGATES = re.compile("[\ud800-\udfff]")
_KINDS = {stat.S_IFIFO: "a FIFO", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}


def temporary_name(name: str) -> str:
  """Return the name of a file or folder aside, which `remove_temporaries` recognises: hidden, and never used before."""
  return f".{name}.{uuid.uuid4().hex}.tmp"


@contextlib.contextmanager
def replaced(path: FilePath) -> Iterator[pathlib.Path]:
  """Yield the path of a new file, which replaces `path` when the block ends without an error.

  An OSError of the system names `path`, also where only a write failed. A device or a FIFO is refused: it would be
  replaced by a file.
  """
  target = pathlib.Path(path)
  if target.exists() and not target.is_dir():
    _check_regular(target, target.stat().st_mode)
  # In the same folder, since replacing is atomic only within one file system; not by tempfile, whose files only their
  # owner can read.
  temporary = target.with_name(temporary_name(target.name))
  try:
    with naming_file(target):
      yield temporary
      with open(temporary, "rb") as stream:
        os.fsync(stream.fileno())
      os.replace(temporary, target)
  finally:
    with contextlib.suppress(OSError):
      temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def replaced_together(folder: FilePath, mark: str, others: Collection[str] = ()) -> Iterator[pathlib.Path]:
  """Yield an empty folder; when the block ends without an error, its files replace those in `folder`.

  Where the file `mark` is, all files beside it were written together: it is removed first, and moved last.

  Args:
    folder: where to.
    mark: name of a file that the block writes.
    others: names of files that do not belong to the new ones, and are removed unless the block writes them.
  """
  folder = pathlib.Path(folder)
  aside = folder / temporary_name("together")
  aside.mkdir()
  try:
    yield aside
    new = {path.name for path in aside.iterdir()}
    for name in (mark, *(name for name in others if name not in new)):
      (folder / name).unlink(missing_ok=True)
    for name in sorted(new, key=lambda name: name == mark):
      os.replace(aside / name, folder / name)
  finally:
    shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def naming_file(path: FilePath) -> Iterator[None]:
  """Have OSErrors of the system that are raised inside name this file: a write to a full disk names none."""
  try:
    yield
  except OSError as error:
    if error.errno is None or error.strerror is None:
      raise
    raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def remove_temporaries(folder: FilePath) -> None:
  """Remove what killed processes left in this folder on the way to a file. Nobody else may be writing into it."""
  with contextlib.suppress(OSError):
    for path in list(pathlib.Path(folder).iterdir()):
      if _TEMPORARY.fullmatch(path.name):
        if path.is_dir() and not path.is_symlink():
          shutil.rmtree(path, ignore_errors=True)
        else:
          path.unlink(missing_ok=True)


@contextlib.contextmanager
def opened(path: FilePath) -> Iterator[BinaryIO]:
  """Open a file for reading; raise unless it is a regular one: a FIFO would block, a device may never end."""
  with open(path, "rb", opener=_open_at_once) as stream:
    _check_regular(path, os.fstat(stream.fileno()).st_mode)
    yield stream


def _check_regular(path: FilePath, mode: int) -> None:
  kind = stat.S_IFMT(mode)
  if kind != stat.S_IFREG:
    raise ValueError(f"{path} must be a regular file, but it is {_KINDS.get(kind, 'none')}")


def _open_at_once(path: str, flags: int) -> int:
  """Open without waiting for the other end of a FIFO."""
  return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def unpacked_limit(stream: BinaryIO) -> int:
  """Return the number of bytes that an open file may unpack to."""
  return max(LEAST_UNPACKED, MOST_RATIO * os.fstat(stream.fileno()).st_size)


def read_json(path: FilePath) -> Any:
  """Read a JSON file; raise a ValueError that names it where it is damaged, too large or too deeply nested."""
  with opened(path) as stream:
    content = stream.read(MOST_JSON + 1)
  try:
    return parse_json(content)
  except ValueError as error:
    raise ValueError(f"{path} has {error}") from error


def parse_json(content: bytes | str) -> Any:
  """Parse JSON from outside. A ValueError says what it has that it should not have."""
  if len(content) > MOST_JSON:
    raise ValueError(f"more than {MOST_JSON} bytes of JSON")
  try:
    return json.loads(content)
  except RecursionError:
    raise ValueError("too deep a nesting") from None
  except ValueError as error:
    raise ValueError(f"no JSON: {error}") from error


def escape_surrogates(text: str) -> str:
  """Return JSON that UTF-8 can hold: what stands for bytes of a name that is not UTF-8 is escaped.

  Read back, it is the same name.
  """
  return _SURROGATES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
