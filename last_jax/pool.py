"""The examples that are taught from, checked once."""

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import fields, frames


def is_concrete(*values: Any) -> bool:
  """Whether the entries of every value can be read: no tracer, no shard of another process."""

  def is_readable(value: Any) -> bool:
    if isinstance(value, jax.core.Tracer) or not isinstance(value, (np.ndarray, jax.Array)):
      return False
    return isinstance(value, np.ndarray) or value.is_fully_addressable

  return all(map(is_readable, values))


class _Names:
  """Names of classes as metadata of a pytree. All are equal: pools that differ in names share compiled programs."""

  def __init__(self, classes: tuple[str, ...] | None):
    self.classes = classes

  def __repr__(self) -> str:
    return "names"

  def __eq__(self, other: object) -> bool:
    return isinstance(other, _Names)

  def __hash__(self) -> int:
    return hash(_Names)


@jax.tree_util.register_pytree_with_keys_class
class Pool:
  """The examples that a teacher may show, checked once on construction.

  Attributes:
    x: `[n, ...]` inputs; integers become floats. Those of 16 bits stay so: labels and sums are in float32.
    y: `[n]` class ids (integers), `[n]` real targets (floats), or `[n, K]` label vectors (floats). For learners with
      outputs for each of T tokens, likewise `[n, T]` or `[n, T, K]`. Given as names of classes (strings), they become
      ids.
    classes: names of the classes, by id, for tables, pictures and files; None where they have none. Unless given, names
      in y are sorted. A test pool is made with those of the pool: `Pool(x, y, classes=pool.classes)`. What a compiled
      function returns has no names.
  """

  x: jax.Array
  y: jax.Array
  classes: tuple[str, ...] | None

  def __init__(self, x: Any, y: Any, *, classes: Sequence[str] | None = None):
    ids, self.classes = _encode(y, classes)
    inputs, labels = _as_numbers("x", x, as_float=True), _as_numbers("y", ids)
    _check_shapes(inputs, labels)
    _check_values(inputs, labels)
    if self.classes is not None:
      _check_classes(labels, self.classes)
    self.x, self.y = jnp.asarray(inputs), jnp.asarray(labels)

  @classmethod
  def from_frame(cls, frame: Any, *, label: Hashable, features: Sequence[Hashable] | None = None) -> "Pool":
    """Return the examples of a pandas data frame.

    Args:
      frame: one row for each example.
      label: the column of labels: numbers, or names of classes. The classes of a categorical column keep their order.
      features: the columns of inputs, all others unless given. They hold numbers, and none is missing.
    """
    x, y, classes = frames.read_frame(frame, label, features)
    return cls(x, y, classes=classes)

  @classmethod
  def from_bunch(cls, bunch: Any) -> "Pool":
    """Return the examples of a scikit-learn `Bunch`, as `sklearn.datasets.load_iris()`, with the names of classes."""
    x, y, classes = frames.read_bunch(bunch)
    return cls(x, y, classes=classes)

  @classmethod
  def from_torch(cls, dataset: Any) -> "Pool":
    """Return the examples of a torch `TensorDataset` of inputs and labels, or of any data set of pairs (x, y).

    Names of classes are its attribute `classes`, which the data sets of torchvision have.
    """
    x, y, classes = frames.read_dataset(dataset)
    return cls(x, y, classes=classes)

  def __len__(self) -> int:
    return self.x.shape[0]

  def __repr__(self) -> str:
    names = "" if self.classes is None else f", classes={shorten(self.classes)}"
    return f"Pool(x={self.x.dtype}{list(self.x.shape)}, y={self.y.dtype}{list(self.y.shape)}{names})"

  def tree_flatten_with_keys(self) -> Any:
    """Return the leaves, for JAX."""
    leaves = ((jax.tree_util.GetAttrKey("x"), self.x), (jax.tree_util.GetAttrKey("y"), self.y))
    return leaves, _Names(self.classes)

  @classmethod
  def tree_unflatten(cls, names: _Names | None, leaves: Any) -> "Pool":
    """Rebuild a pool around leaves, for JAX."""
    # Not through __init__: JAX rebuilds pools around tracers and placeholders, which cannot be checked.
    pool = object.__new__(cls)
    pool.x, pool.y = leaves
    # A compiled function serves pools with other names too, and must not return those of the first.
    is_traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
    pool.classes = None if is_traced or names is None else names.classes
    return pool


def shorten(names: Sequence[str]) -> str:
  """Return names in a line, some of them where there are many."""
  return ", ".join(names) if len(names) <= 4 else f"{names[0]}, {names[1]}, ... ({len(names)} in all)"


def _encode(y: Any, classes: Sequence[str] | None) -> tuple[Any, tuple[str, ...] | None]:
  """Return labels with names of classes replaced by ids, and the names by id, or None."""
  try:
    names = None if classes is None else tuple(classes)
  except TypeError:
    raise TypeError(f"classes must be a list of names, but it is a {type(classes).__name__}") from None
  are_names = names is None or (all(isinstance(name, str) for name in names) and len({*names}) == len(names))
  if not are_names or isinstance(classes, (str, Mapping)):
    raise ValueError(f"classes must be different names of classes, each once, but they are {names!r}")
  if isinstance(y, jax.Array):
    return y, names
  if is_masked(y) or not hasattr(y, "__len__"):
    return y, names  # For `as_numbers` to name.
  try:
    given = np.asarray(y)
  except (TypeError, ValueError):
    return y, names
  is_text = given.dtype.kind in "UT" or (
    given.dtype == object and given.size > 0 and all(isinstance(label, str) for label in given.flat)
  )
  if not is_text:
    return given, names
  found, ids = np.unique(given.astype(str), return_inverse=True)
  if names is None:
    return ids.astype(np.int32), tuple(map(str, found))
  unknown = [str(name) for name in found if name not in names]
  if unknown:
    raise ValueError(f"pool y holds {unknown[0]!r}, which is none of the classes {', '.join(names)}")
  return np.array([names.index(name) for name in found], np.int32)[ids], names


def _check_classes(y: Any, classes: tuple[str, ...]) -> None:
  if not jnp.issubdtype(y.dtype, jnp.integer) and y.dtype != bool:
    if y.ndim == 1 or (y.shape[-1] != len(classes) and (y.shape[-1], len(classes)) != (1, 2)):
      raise ValueError(
        f"classes must be names of class ids, or of the entries of label vectors, but there are {len(classes)} and "
        f"y is {y.dtype}{list(y.shape)}"
      )
  elif is_concrete(y):
    lowest, highest = int(np.asarray(y).min()), int(np.asarray(y).max())  # With NumPy: see `_check_values`.
    if not 0 <= lowest <= highest < len(classes):
      raise ValueError(
        f"classes holds {len(classes)} names, of the ids from 0 to {len(classes) - 1}, but y has ids from {lowest} to "
        f"{highest}"
      )


def is_masked(value: Any) -> bool:
  """Whether it is an array of NumPy with masked entries."""
  return isinstance(value, np.ma.MaskedArray) and bool(np.ma.getmaskarray(value).any())


def as_numbers(name: str, value: Any) -> Any:
  """Return an array of real numbers, of NumPy or JAX. Raise where it is none, or has masked entries."""
  if is_masked(value):
    count = np.count_nonzero(np.ma.getmaskarray(value))
    raise ValueError(f"{name} must have no masked entries, but {count} are masked: fill them in, or leave them out")
  try:
    given = value if isinstance(value, jax.Array) else np.asarray(value)
  except (TypeError, ValueError, OverflowError) as error:
    kind = type(value).__name__
    raise TypeError(f"{name} must be an array of numbers, but it is a {kind}: {error}") from None
  if not (jnp.issubdtype(given.dtype, jnp.number) or given.dtype == bool) or given.dtype.kind == "m":
    raise TypeError(f"{name} must hold numbers, but its dtype is {given.dtype}")
  if jnp.issubdtype(given.dtype, jnp.complexfloating):
    raise TypeError(f"{name} must hold real numbers, but its dtype is {given.dtype}")
  if jnp.issubdtype(given.dtype, jnp.floating) and given.dtype.itemsize < 2:
    raise TypeError(f"{name} must be of at least 16 bits, but its dtype is {given.dtype}: convert it to float32")
  return given.astype(np.float64) if given.dtype == np.longdouble else given


def _as_numbers(name: str, value: Any, as_float: bool = False) -> Any:
  """Convert to an array of real numbers in a dtype that JAX has, without changing any of them."""
  given = as_numbers(f"pool {name}", value)
  keep = jnp.issubdtype(given.dtype, jnp.floating) or not as_float
  wanted = jax.dtypes.canonicalize_dtype(given.dtype.newbyteorder("=") if keep else float)
  with np.errstate(over="ignore"):  # A number too large for the dtype becomes infinite, which is refused later.
    array = given.astype(wanted)
  if (
    isinstance(array, np.ndarray) and keep and jnp.issubdtype(wanted, jnp.integer) and not np.array_equal(array, given)
  ):
    raise ValueError(f"pool {name} holds integers that do not fit into {wanted}")
  return array


def _check_shapes(x: Any, y: Any) -> None:
  if x.ndim < 2:
    raise ValueError(f"pool x must have shape [n, features...], but its shape is {x.shape}")
  if y.ndim not in (1, 2, 3):
    raise ValueError(f"pool y must have shape [n], [n, K] or, for tokens, [n, T] or [n, T, K], but it is {y.shape}")
  if x.shape[0] != y.shape[0]:
    raise ValueError(f"pool x holds {x.shape[0]} examples but y holds {y.shape[0]} labels: the numbers must be equal")
  if 0 in x.shape or 0 in y.shape:
    raise ValueError(f"the pool is empty: x has shape {x.shape} and y has shape {y.shape}")


def _check_values(x: Any, y: Any) -> None:
  if not is_concrete(x, y):
    return
  for name, value in (("x", x), ("y", y)):
    bad = ~np.isfinite(np.asarray(value))  # With NumPy: inside somebody's jit a JAX operation would be traced.
    if bad.any():
      first = tuple(int(i) for i in np.argwhere(bad)[0])
      raise ValueError(f"pool {name} must be finite, but {bad.sum()} entries are NaN or infinite, the first at {first}")
  if not np.asarray(x).any():
    raise ValueError("pool x is zero everywhere: examples with x = 0 teach nothing")


@fields.documented
class Dataset(NamedTuple):
  """A data source: a pool to teach from and, optionally, a test pool, a target and a start.

  Attributes:
    train: the pool to teach from.
    test: examples to measure accuracy on, or None.
    target: w*, flat or one array per leaf of the parameters, or None.
    init: the student's start, likewise.
  """

  train: Pool
  test: Pool | None = None
  target: np.ndarray | Mapping[str, np.ndarray] | None = None
  init: np.ndarray | Mapping[str, np.ndarray] | None = None
