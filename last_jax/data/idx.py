"""Reader of IDX files, the format of MNIST.

An IDX file is: two zero bytes, one byte for the type of the numbers, one for the number of dimensions, the dimensions
as big-endian 32-bit integers, and the numbers themselves in C order, big-endian.
"""

import gzip
import math
import os
import zlib

import numpy as np

from last_jax.io.files import opened, unpacked_limit

_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
_GZIP_MAGIC = b"\x1f\x8b"
_MAX_DIMENSIONS = 32  # NumPy 1 has no more.


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
  """Read an IDX file, compressed by gzip or not (recognised by its first bytes, not by its name).

  Args:
    path: the file.

  Returns:
    The array, in the machine's byte order.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is not IDX, or is damaged, truncated or too long.
  """
  content = _read_bytes(path)
  dtype, shape = _parse_header(path, content)
  offset = 4 + 4 * len(shape)
  expected, found = math.prod(shape) * dtype.itemsize, len(content) - offset
  if found != expected:
    fault = "is truncated" if found < expected else "has trailing bytes"
    raise ValueError(
      f"{path} {fault}: {list(shape)} numbers of {dtype.itemsize} bytes take {expected} bytes, but it holds {found}"
    )
  # astype copies: the result is writable and holds no reference to the file's bytes.
  return np.frombuffer(content, dtype, offset=offset).reshape(shape).astype(dtype.newbyteorder("="))


def _read_bytes(path: str | os.PathLike[str]) -> bytes:
  """Return the content of the file, decompressed."""
  with opened(path) as stream:
    compressed = stream.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    stream.seek(0)
    if not compressed:
      return stream.read()
    limit = unpacked_limit(stream)
    try:
      with gzip.GzipFile(fileobj=stream) as unpacked:
        content = unpacked.read(limit + 1)
    except (EOFError, OSError, zlib.error) as error:
      raise ValueError(f"{path} is truncated or damaged gzip: {error}") from error
  if len(content) > limit:
    raise ValueError(f"{path} unpacks to more than {limit} bytes, the most that are allowed for its size")
  return content


def _parse_header(path: str | os.PathLike[str], content: bytes) -> tuple[np.dtype, tuple[int, ...]]:
  """Return the dtype and the shape."""
  if len(content) < 4:
    raise ValueError(f"{path} is truncated: an IDX header takes at least 4 bytes, but it holds {len(content)}")
  if content[:2] != b"\0\0":
    raise ValueError(f"{path} is not an IDX file: it must begin with two zero bytes, but begins with {content[:2]!r}")
  code, num_dimensions = content[2], content[3]
  if code not in _DTYPES:
    known = ", ".join(f"0x{known:02X}" for known in _DTYPES)
    raise ValueError(f"{path} is not an IDX file: its dtype byte must be one of {known}, but is 0x{code:02X}")
  if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
    raise ValueError(f"{path} must have 1 to {_MAX_DIMENSIONS} dimensions, but its header says {num_dimensions}")
  dimensions = content[4 : 4 + 4 * num_dimensions]
  if len(dimensions) < 4 * num_dimensions:
    raise ValueError(f"{path} is truncated: it ends within the sizes of its {num_dimensions} dimensions")
  return np.dtype(_DTYPES[code]), tuple(int(size) for size in np.frombuffer(dimensions, ">u4"))
