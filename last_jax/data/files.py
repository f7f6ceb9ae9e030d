"""Reading and writing of npz files, with no pickle ever loaded or written; and files written whole or not at all."""

import contextlib
import io
import os
import pathlib
import struct
import uuid
import zipfile
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import jax
import numpy as np

from last_jax.types import Dataset, Pool

_ALLOWED = "x, y, x_test, y_test, target, target/<leaf path>, init, init/<leaf path>"
_POOL_KEYS = ("x", "y", "x_test", "y_test")
_PARAMS_KEYS = ("target", "init")
_END_RECORD = struct.Struct("<4s6xH10x")  # The end of a zip file, before its comment: signature and number of members.

# A target or a start: flat `[p]`, or one array per leaf path.
FileParams = np.ndarray | Mapping[str, np.ndarray]


def load_npz(path: str | os.PathLike[str]) -> Dataset:
  """Reads a dataset from an npz file.

  The file holds `x` `[n, ...]` and `y` (`[n]` class ids or real targets, or `[n, K]` label vectors), and may hold
  `x_test` and `y_test`, a `target` and an `init` (a start). Each of the last two is either one flat array `[p]` under
  its name, or one array per leaf of the learner's parameters, named by the leaf's path: `target/weights`,
  `target/layer_0/bias`. That is what `jax.tree_util.keystr(path, simple=True, separator="/")` gives.

  Args:
    path: The file.

  Returns:
    The dataset; its target and init are a flat array, or a dict from leaf path to array, or None.

  Raises:
    FileNotFoundError: There is no such file.
    TypeError: An array holds something else than real numbers.
    ValueError: Anything else that is wrong; the message names the file and what is wrong.
  """
  arrays = read_arrays(path)
  _check_keys(path, arrays)
  train = _pool(path, arrays, "x", "y")
  test = _pool(path, arrays, "x_test", "y_test") if "x_test" in arrays else None
  if test is not None:
    _check_alike(path, arrays)
  return Dataset(train, test, _params(path, arrays, "target"), _params(path, arrays, "init"))


def save_npz(path: str | os.PathLike[str], /, **arrays: Any) -> None:
  """Writes arrays into a compressed npz file, all or nothing: a reader never sees half a file.

  The same arrays in the same order give the same bytes.

  Args:
    path: The file to write, or to replace. Its folder must exist; no suffix is added to its name.
    **arrays: What to write, by name. Names need not be identifiers: `**{"target/weights": weights}`.
  """
  concrete = {name: np.asarray(value) for name, value in arrays.items()}
  for name, array in concrete.items():
    # Kind V has the extended types of JAX (bfloat16, float8): npz would keep their bytes and forget what they mean.
    if array.dtype.hasobject or array.dtype.kind == "V":
      raise TypeError(
        f"{path}: array {name!r} has dtype {array.dtype}, which npz cannot hold: cast it to a plain dtype"
      )
  with replaced(path) as temporary, open(temporary, "xb") as stream:
    _write_archive(stream, concrete)


@contextlib.contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
  """Gives the path of a new file, which takes the place of `path` once the block has ended without an error."""
  target = pathlib.Path(path)
  # In the same folder, since replacing is atomic only within one file system; and not opened by tempfile, which would
  # leave the result readable to its owner only.
  temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
  try:
    yield temporary
    with open(temporary, "rb") as stream:
      os.fsync(stream.fileno())
    os.replace(temporary, target)
  finally:
    temporary.unlink(missing_ok=True)


def read_arrays(path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
  """Every array of an npz file by name, or a ValueError that says what is wrong with the file."""
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
      except Exception as error:  # The same holds for a damaged member: zlib, struct, memory and syntax errors.
        raise ValueError(f"{path}: array {name!r} cannot be read: {error or type(error).__name__}") from error
  return arrays


def _check_entries(stream: BinaryIO, archive: zipfile.ZipFile) -> None:
  """Raises unless the archive lists as many members as its end record counts.

  zipfile does not compare the two: where a length in the list is damaged, it silently skips the members that follow,
  and a dataset would come back without its test pool or its target.
  """
  stream.seek(-_END_RECORD.size - len(archive.comment), os.SEEK_END)
  signature, count = _END_RECORD.unpack(stream.read(_END_RECORD.size))
  if signature != b"PK\5\6":
    raise ValueError("there are bytes after the end of the archive")
  if count != min(len(archive.infolist()), 0xFFFF):  # What does not fit in 16 bits is written as the highest number.
    raise ValueError(f"it counts {count} arrays, but lists {len(archive.infolist())}")


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
  if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
    raise ValueError(f"npz files are stored or deflated, but its compression type is {member.compress_type}")
  # All of it before any of it is parsed: only then has the checksum been compared.
  content = io.BytesIO(archive.read(member))
  array = np.lib.format.read_array(content, allow_pickle=False)
  if content.read(1):
    raise ValueError("there are bytes after the end of the array")
  return array.astype(array.dtype.newbyteorder("="), copy=False)  # JAX takes the machine's byte order only.


def _write_archive(stream: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
  # Not np.savez: some names (`file`, `allow_pickle`) are its own arguments. ZipInfo without a date has a fixed one.
  with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    for name, array in arrays.items():
      with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
        np.lib.format.write_array(member, array, allow_pickle=False)


def _check_keys(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
  leaf_prefixes = tuple(f"{name}/" for name in _PARAMS_KEYS)
  unknown = [
    key
    for key in arrays
    if key not in _POOL_KEYS + _PARAMS_KEYS and (key in leaf_prefixes or not key.startswith(leaf_prefixes))
  ]
  if unknown:
    raise ValueError(f"{path} holds the unknown keys {', '.join(map(repr, unknown))}; allowed are {_ALLOWED}")
  missing = [key for key in ("x", "y") if key not in arrays]
  if missing:
    raise ValueError(f"{path} lacks {' and '.join(missing)}; it holds {', '.join(map(repr, arrays)) or 'nothing'}")
  if ("x_test" in arrays) != ("y_test" in arrays):
    lacking = "y_test" if "x_test" in arrays else "x_test"
    raise ValueError(f"{path} must hold both x_test and y_test or neither, but lacks {lacking}")


def _pool(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], x_key: str, y_key: str) -> Pool:
  """A pool, with the file and the keys in the message of whatever is wrong with it."""
  for key in (x_key, y_key):
    _check_range(path, key, arrays[key])
  try:
    return Pool(arrays[x_key], arrays[y_key])
  except TypeError as error:
    raise TypeError(f"{path}: {x_key} and {y_key}: {error}") from error
  except ValueError as error:
    raise ValueError(f"{path}: {x_key} and {y_key}: {error}") from error


def _check_alike(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
  """Raises unless the test arrays have the example shapes and the kind of labels of the training arrays."""
  for key in ("x", "y"):
    train_shape, test_shape = arrays[key].shape[1:], arrays[f"{key}_test"].shape[1:]
    if train_shape != test_shape:
      raise ValueError(
        f"{path}: each row of {key}_test must have the shape of a row of {key}, {list(train_shape)}, "
        f"but has {list(test_shape)}"
      )
  train_real, test_real = (np.issubdtype(arrays[key].dtype, np.floating) for key in ("y", "y_test"))
  if train_real != test_real:
    raise ValueError(
      f"{path}: y and y_test must both be class ids (integers) or both be real, "
      f"but y is {arrays['y'].dtype} and y_test is {arrays['y_test'].dtype}"
    )


def _check_range(path: str | os.PathLike[str], key: str, array: np.ndarray) -> None:
  """Raises for numbers that JAX would turn into others: it holds 32 bits of each, unless told to hold 64."""
  if array.dtype.kind not in "iuf":
    return  # What is not a number gets its own message.
  if array.dtype.itemsize > 8:
    raise TypeError(f"{path}: {key} has dtype {array.dtype}, which JAX does not have: cast it to float64")
  integers = array.dtype.kind in "iu"
  if integers and key in ("x", "x_test"):
    return  # A pool turns integer inputs into floats, which reach further.
  held = jax.dtypes.canonicalize_dtype(array.dtype)
  limits = np.iinfo(held) if integers else np.finfo(held)
  finite = array[np.isfinite(array)]
  if finite.size and not limits.min <= finite.min() <= finite.max() <= limits.max:
    raise ValueError(f"{path}: {key} has numbers too large for {held}, from {finite.min()} to {finite.max()}")


def _params(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], name: str) -> FileParams | None:
  """The target or the start: flat, by leaf, or None if the file has none."""
  leaves = {key.removeprefix(f"{name}/"): array for key, array in arrays.items() if key.startswith(f"{name}/")}
  for leaf, array in leaves.items():
    _check_numbers(path, f"{name}/{leaf}", array)
  if name not in arrays:
    return leaves or None
  if leaves:
    raise ValueError(f"{path} must hold either {name} or {name}/<leaf path>, but holds both")
  flat = arrays[name]
  _check_numbers(path, name, flat)
  if flat.ndim != 1:
    raise ValueError(
      f"{path}: {name} must be flat, [p], but has shape {list(flat.shape)}; "
      f"give parameters of other shapes leaf by leaf, under {name}/<leaf path>"
    )
  return flat


def _check_numbers(path: str | os.PathLike[str], key: str, array: np.ndarray) -> None:
  if array.dtype.kind not in "iuf":
    raise TypeError(f"{path}: {key} must hold real numbers, but its dtype is {array.dtype}")
  if array.size == 0:
    raise ValueError(f"{path}: {key} is empty: its shape is {list(array.shape)}")
  if not np.isfinite(array).all():
    raise ValueError(f"{path}: {key} must be finite, but has NaN or infinite entries")
  _check_range(path, key, array)
