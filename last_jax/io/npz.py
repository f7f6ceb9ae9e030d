"""Arrays in npz archives, without pickle; files are written whole or not at all."""

import io
import math
import os
import struct
import sys
import zipfile
from collections.abc import Mapping
from typing import Any, BinaryIO

import numpy as np

from last_jax.io import files
from last_jax.io.files import opened, replaced

_END_RECORD = struct.Struct("<4s6xH10x")  # The end of a zip file, before its comment: signature and number of members.
_PIECE = 2**20  # Bytes that are unpacked at once.
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


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


def read_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
  """Read all arrays of an npz file, by name.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is damaged, no regular file, or unpacks to more than 1 GiB and a hundred times its size, as none of
      `save_npz` does; the message names the file.
  """
  with opened(path) as stream:
    try:
      archive = zipfile.ZipFile(stream)
      _check_entries(stream, archive)
      _check_sizes(archive, files.unpacked_limit(stream))
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


def _check_sizes(archive: zipfile.ZipFile, limit: int) -> None:
  """Raise unless all arrays together unpack to at most `limit` bytes, by the sizes that the archive declares."""
  size = sum(member.file_size for member in archive.infolist())
  if size > limit:
    raise ValueError(
      f"it unpacks to {size} bytes, of which at most {limit} are allowed for its size; "
      "arrays that are stored without compression, as by numpy.savez, may have any size"
    )


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
  if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
    raise ValueError(f"npz files are stored or deflated, but its compression type is {member.compress_type}")
  # Read whole before it is parsed: the checksum is compared at the end.
  content = _unpack(archive, member)
  version = np.lib.format.read_magic(content)
  if version not in _HEADERS:
    raise ValueError(f"its format has the version {version}, which plain arrays do not need")
  shape, _, dtype = _HEADERS[version](content)
  # Before any memory is taken for it.
  expected, found = math.prod(shape) * dtype.itemsize, member.file_size - content.tell()
  if dtype.hasobject:
    raise ValueError("Object arrays cannot be loaded: they are pickled")
  if dtype.itemsize and 0 <= expected < found:
    raise ValueError(f"there are bytes after the end of the array: {dtype}{list(shape)} takes {expected}, not {found}")
  if dtype.itemsize == 0 or expected != found:
    raise ValueError(f"{dtype}{list(shape)} takes {expected} bytes, but there are {found}")
  content.seek(0)
  array = np.lib.format.read_array(content, allow_pickle=False)
  array = array.astype(array.dtype.newbyteorder("="), copy=False)  # JAX takes native byte order only.
  # NumPy keeps any number in place of a letter, and breaks where it is asked for the text.
  if array.dtype.kind == "U" and np.ascontiguousarray(array).view(np.uint32).max(initial=0) > sys.maxunicode:
    raise ValueError("it holds what is no text")
  return array


def _unpack(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> io.BytesIO:
  """Return the content of a member. In pieces: asked for all, zipfile unpacks beyond the size that was declared."""
  content = io.BytesIO()
  with archive.open(member) as stream:
    while piece := stream.read(_PIECE):
      content.write(piece)
  if content.tell() != member.file_size:
    raise ValueError(f"it has {content.tell()} bytes, but the archive declares {member.file_size}")
  content.seek(0)
  return content


def write_archive(stream: BinaryIO, arrays: Mapping[str, np.ndarray], level: int) -> None:
  """Write arrays as an npz archive, deflated at this level; stored, where `read_arrays` would refuse the ratio."""
  _write(stream, arrays, zipfile.ZIP_DEFLATED, level)
  stream.flush()
  if sum(array.nbytes for array in arrays.values()) > files.unpacked_limit(stream) - _room(arrays):
    stream.seek(0)
    stream.truncate()
    _write(stream, arrays, zipfile.ZIP_STORED, None)


def _room(arrays: Mapping[str, np.ndarray]) -> int:
  """Return a bound of the bytes of all headers."""
  return 2**10 * len(arrays)


def _write(stream: BinaryIO, arrays: Mapping[str, np.ndarray], compression: int, level: int | None) -> None:
  # Not np.savez: some names (`file`, `allow_pickle`) are its own arguments. Members are dated 1980, not today.
  with zipfile.ZipFile(stream, "w", compression, compresslevel=level) as archive:
    for name, array in arrays.items():
      with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, array, allow_pickle=False)
