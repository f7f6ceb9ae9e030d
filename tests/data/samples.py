"""Files that the tests of several readers share, written from the definitions of their formats."""

import gzip
import os
import pathlib
import struct

import numpy as np

MNIST_FILES = (
  "train-images-idx3-ubyte",
  "train-labels-idx1-ubyte",
  "t10k-images-idx3-ubyte",
  "t10k-labels-idx1-ubyte",
)

# By NumPy's name of a type, its byte in an IDX file.
CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}


def idx_bytes(array):
  """An IDX file, written from the format's definition."""
  code = CODES[array.dtype.newbyteorder("=").str[1:]]
  header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
  return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def mnist_arrays(train=20, test=10, seed=0):
  """Four arrays in the layout of MNIST: sparse random images, digits 0 to 9 in turn."""
  generator = np.random.default_rng(seed)
  arrays = []
  for size in (train, test):
    images = np.zeros((size, 28, 28), np.uint8)
    images[:, 8:20:3, 8:20:3] = generator.integers(0, 256, (size, 4, 4), np.uint8)
    arrays += [images, (np.arange(size) % 10).astype(np.uint8)]
  return dict(zip(MNIST_FILES, arrays, strict=True))


def write_mnist(folder, arrays, compress=False):
  """The arrays as IDX files in a folder."""
  folder.mkdir(exist_ok=True)
  for name, array in arrays.items():
    content = idx_bytes(array)
    if compress:
      (folder / f"{name}.gz").write_bytes(gzip.compress(content))
    else:
      (folder / name).write_bytes(content)
  return folder


def full_mnist():
  """The folder with the four original files of MNIST, or None where they are not available."""
  named = os.environ.get("LAST_JAX_MNIST")
  folder = pathlib.Path(named) if named else pathlib.Path(__file__).resolve().parents[3] / "shared" / "data" / "mnist"
  complete = all((folder / name).is_file() or (folder / f"{name}.gz").is_file() for name in MNIST_FILES)
  return folder if complete else None


def read_or_refuse(read, path, errors=ValueError):
  """The contents of a damaged file, or None after an error that names the file: either is right."""
  try:
    return read(path)
  except errors as error:
    message = str(error)
  assert str(path) in message
  return None
