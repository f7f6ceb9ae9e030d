"""What the tests of several readers share."""

import struct

# By NumPy's name of a type, its byte in an IDX file.
CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array):
  """An IDX file, written from the format's definition."""
  code = CODES[array.dtype.newbyteorder("=").str[1:]]
  header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
  return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def read_or_refuse(read, path, errors=ValueError):
  """What reading a damaged file gives, or None after an error that names the file: either is right."""
  try:
    return read(path)
  except errors as error:
    message = str(error)
  assert str(path) in message
  return None
