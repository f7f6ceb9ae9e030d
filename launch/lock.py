"""A folder is held by one run: a lock that the system releases when the process ends, however it ends."""

import contextlib
import errno
import os
import pathlib
import socket
import warnings
from collections.abc import Iterator

try:
  import fcntl
except ImportError:  # Windows.
  fcntl = None  # type: ignore[assignment]
try:
  import msvcrt
except ImportError:
  msvcrt = None  # type: ignore[assignment]

LOCK = ".lock"
_LOCKED_BYTE = 2**20  # On Windows, where nobody reads what is locked: beyond the words for people.
_WITHOUT_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL}  # Some file systems.


class Lock:
  """A folder that is held."""

  def __init__(self, folder: pathlib.Path, descriptor: int):
    """Refer to the open file of the lock."""
    self._folder, self._descriptor = folder, descriptor

  def check(self) -> None:
    """Raise a FileNotFoundError unless the folder is still the one that was locked: it may be removed or replaced."""
    if not _is_same(self._folder / LOCK, self._descriptor):
      raise FileNotFoundError(errno.ENOENT, "the folder of this run was removed while it ran", str(self._folder))


@contextlib.contextmanager
def hold(folder: str | os.PathLike[str]) -> Iterator[Lock]:
  """Hold a folder, which must exist, until the block ends; raise a ValueError if another run holds it.

  The file of the lock is removed at the end. One that a killed process left holds nothing.
  """
  folder = pathlib.Path(folder)
  path = folder / LOCK
  descriptor = _acquire(path)
  try:
    os.ftruncate(descriptor, 0)
    with contextlib.suppress(OSError):  # For people only: a full disk must not matter.
      os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(errors="replace"))
    yield Lock(folder, descriptor)
  finally:
    with contextlib.suppress(OSError):
      if _is_same(path, descriptor):  # Removed while it is held, so that nobody else's is removed.
        path.unlink()
    os.close(descriptor)


def _acquire(path: pathlib.Path) -> int:
  """Return the descriptor of the locked file."""
  while True:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    try:
      _lock(path, descriptor)
      if _is_same(path, descriptor):
        return descriptor
    except BaseException:
      os.close(descriptor)
      raise
    os.close(descriptor)  # Its holder removed it between the two calls: what is locked is no longer there.


def _lock(path: pathlib.Path, descriptor: int) -> None:
  try:
    _take(descriptor)
  except (BlockingIOError, PermissionError):
    os.lseek(descriptor, 0, os.SEEK_SET)
    holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
    raise ValueError(
      f"--out={path.parent} is in use by another run ({holder}): wait until it ends, or give another --out"
    ) from None
  except OSError as error:
    if error.errno not in _WITHOUT_LOCKS:
      raise


def _take(descriptor: int) -> None:
  """Lock an open file, or raise at once. The system releases the lock with the process."""
  if fcntl is not None:
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
  elif msvcrt is not None:
    os.lseek(descriptor, _LOCKED_BYTE, os.SEEK_SET)
    try:
      msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined, unused-ignore]
    finally:
      os.lseek(descriptor, 0, os.SEEK_SET)
  else:
    warnings.warn("this system locks no files: two runs in one folder are not noticed", RuntimeWarning, stacklevel=2)


def _is_same(path: pathlib.Path, descriptor: int) -> bool:
  """Return whether the path leads to the open file."""
  try:
    return os.path.samestat(os.stat(path), os.fstat(descriptor))
  except OSError:
    return False
