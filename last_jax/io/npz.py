"""Arrays in npz archives, without pickle; files are written whole or not at all."""

import contextlib
import io
import os
import pathlib
import struct
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

_END_RECORD = struct.Struct("<4s6xH10x")  # The end of a zip file, before its comment: signature and number of members.


def save_npz(path: str | os.PathLike[str], /, **arrays: Any) -> None:
  """Write arrays to a compressed npz file, whole or not at all.

  The same arrays in the same order give the same bytes.

  Args:
    path: file to write or to replace. Its folder must exist; no suffix is added.
    **arrays: arrays by name. Names need not be identifiers: `**{"target/weights": weights}`.
  """
  concrete = {name: np.asarray(value) for name, value in arrays.items()}
  for name, array in concrete.items():
    # npz would store JAX's extended types (bfloat16, float8; isbuiltin 2) as bytes without their meaning.
    if array.dtype.hasobject or array.dtype.kind == "V" or array.dtype.isbuiltin == 2:
      raise TypeError(
        f"{path}: array {name!r} has dtype {array.dtype}, which npz cannot hold: cast it to a plain dtype"
      )
  with replaced(path) as temporary, open(temporary, "xb") as stream:
    write_archive(stream, concrete, level=9)


@contextlib.contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
  """Yield the path of a new file, which replaces `path` when the block ends without an error."""
  target = pathlib.Path(path)
  # In the same folder, since replacing is atomic only within one file system; not by tempfile, whose files only their
  # owner can read.
  temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
  try:
    yield temporary
    with open(temporary, "rb") as stream:
      os.fsync(stream.fileno())
    os.replace(temporary, target)
  finally:
    temporary.unlink(missing_ok=True)


def read_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
  """Read all arrays of an npz file, by name; raise a ValueError that names the file if it is damaged."""
  with open(path, "rb") as stream:
    try:
      archive = zipfile.ZipFile(stream)
      _check_entries(stream, archive)
    except Exception as error:  # A damaged directory of the archive can raise nearly anything.
      raise ValueError(f"{path} is not an npz file, or is truncated or damaged: {error}") from error
    arrays: dict[str, np.ndarray] = {}
    for member in archive.infolist():
      name = member.filename.removesuffix(".npy")
      if name in arrays:
        raise ValueError(f"{path} is damaged: it holds the array {name!r} twice")
      try:
        arrays[name] = _read_member(archive, member)
      except Exception as error:  # So can a damaged member: zlib, struct, memory and syntax errors.
        raise ValueError(f"{path}: array {name!r} cannot be read: {error or type(error).__name__}") from error
  return arrays


def _check_entries(stream: BinaryIO, archive: zipfile.ZipFile) -> None:
  """Raise unless the archive lists as many members as its end record counts.

  zipfile does not compare the two: if a length in the list is damaged, it silently skips the members that follow, and
  a dataset would be loaded without its test pool or its target.
  """
  stream.seek(-_END_RECORD.size - len(archive.comment), os.SEEK_END)
  signature, count = _END_RECORD.unpack(stream.read(_END_RECORD.size))
  if signature != b"PK\5\6":
    raise ValueError("there are bytes after the end of the archive")
  if count != min(len(archive.infolist()), 0xFFFF):  # Larger numbers are written as the largest 16-bit one.
    raise ValueError(f"it counts {count} arrays, but lists {len(archive.infolist())}")


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
  if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
    raise ValueError(f"npz files are stored or deflated, but its compression type is {member.compress_type}")
  # Read whole before it is parsed: the checksum is compared at the end.
  content = io.BytesIO(archive.read(member))
  array = np.lib.format.read_array(content, allow_pickle=False)
  if content.read(1):
    raise ValueError("there are bytes after the end of the array")
  return array.astype(array.dtype.newbyteorder("="), copy=False)  # JAX takes native byte order only.


def write_archive(stream: BinaryIO, arrays: Mapping[str, np.ndarray], level: int) -> None:
  """Write arrays as an npz archive, deflated at this level."""
  # Not np.savez: some names (`file`, `allow_pickle`) are its own arguments. Members are dated 1980, not today.
  with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=level) as archive:
    for name, array in arrays.items():
      with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, array, allow_pickle=False)
