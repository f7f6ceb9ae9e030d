"""Datasets in npz files."""

import os
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from last_jax.base import Dataset, Pool
from last_jax.io import read_arrays

_ALLOWED = "x, y, x_test, y_test, target, target/<leaf path>, init, init/<leaf path>, classes"
_POOL_KEYS = ("x", "y", "x_test", "y_test", "classes")
_PARAMS_KEYS = ("target", "init")

# Parameters in a file: flat `[p]`, or one array per leaf path.
FileParams = np.ndarray | Mapping[str, np.ndarray]


def load_npz(path: str | os.PathLike[str]) -> Dataset:
  """Read a dataset from an npz file.

  The file holds `x [n, ...]` and `y` (`[n]` class ids, names of classes or real targets, or `[n, K]` label vectors),
  and may hold `x_test` and `y_test`, `classes` (names by id), a `target` and an `init` (initial parameters). Each of
  the last two is either one flat array `[p]`, or one array per leaf of the learner's parameters, named by its path
  `target/weights`, `target/layer_0/bias`: `jax.tree_util.keystr(path, simple=True, separator="/")`.

  Args:
    path: the file.

  Returns:
    The dataset; its target and init are a flat array, or a dict from leaf path to array, or None.

  Raises:
    FileNotFoundError: there is no such file.
    TypeError: an array does not hold real numbers.
    ValueError: anything else is wrong; the message names the file and the fault.
  """
  arrays = read_arrays(path)
  _check_keys(path, arrays)
  train = _pool(path, arrays, "x", "y", _classes(path, arrays))
  test = _pool(path, arrays, "x_test", "y_test", train.classes) if "x_test" in arrays else None
  if test is not None:
    _check_alike(path, arrays)
  return Dataset(train, test, _params(path, arrays, "target"), _params(path, arrays, "init"))


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


def _classes(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> list[str] | None:
  if "classes" not in arrays:
    return None
  names = arrays["classes"]
  if names.dtype.kind != "U" or names.ndim != 1:
    raise TypeError(
      f"{path}: classes must be names of classes, [C] strings, but they are {names.dtype}{list(names.shape)}"
    )
  return names.tolist()


def _pool(
  path: str | os.PathLike[str],
  arrays: Mapping[str, np.ndarray],
  x_key: str,
  y_key: str,
  classes: Sequence[str] | None,
) -> Pool:
  """Make a pool; errors name the file and the keys."""
  for key in (x_key, y_key):
    _check_range(path, key, arrays[key])
  try:
    return Pool(arrays[x_key], arrays[y_key], classes=classes)
  except TypeError as error:
    raise TypeError(f"{path}: {x_key} and {y_key}: {error}") from error
  except ValueError as error:
    raise ValueError(f"{path}: {x_key} and {y_key}: {error}") from error


def _check_alike(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
  """Raise unless test and training arrays have the same example shapes and kind of labels."""
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
  """Raise for numbers out of range of the dtype that JAX would store them in: 32 bits, unless x64 is enabled."""
  if array.dtype.kind not in "iuf":
    return  # `Pool` refuses it.
  if array.dtype.itemsize > 8:
    raise TypeError(f"{path}: {key} has dtype {array.dtype}, which JAX does not have: cast it to float64")
  integers = array.dtype.kind in "iu"
  if integers and key in ("x", "x_test"):
    return  # `Pool` turns integer inputs into floats, whose range is larger.
  held = jax.dtypes.canonicalize_dtype(array.dtype)
  limits = np.iinfo(held) if integers else np.finfo(held)
  finite = array[np.isfinite(array)]
  if finite.size and not limits.min <= finite.min() <= finite.max() <= limits.max:
    raise ValueError(f"{path}: {key} has numbers too large for {held}, from {finite.min()} to {finite.max()}")


def _params(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], name: str) -> FileParams | None:
  """Return the parameters of this name: flat, by leaf, or None if the file has none."""
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
