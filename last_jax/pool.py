"""The examples that are taught from, checked once."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


def is_concrete(*values: Any) -> bool:
  """Whether the entries of every value can be read: no tracer, no shard of another process."""

  def is_readable(value: Any) -> bool:
    if isinstance(value, jax.core.Tracer) or not isinstance(value, (np.ndarray, jax.Array)):
      return False
    return isinstance(value, np.ndarray) or value.is_fully_addressable

  return all(map(is_readable, values))


@jax.tree_util.register_pytree_with_keys_class
class Pool:
  """The examples that a teacher may show, checked once on construction.

  Attributes:
    x: `[n, ...]` inputs; integers become floats. Those of 16 bits stay so: labels and sums are in float32.
    y: `[n]` class ids (integers), `[n]` real targets (floats), or `[n, K]` label vectors (floats). For learners with
      outputs for each of T tokens, likewise `[n, T]` or `[n, T, K]`.
  """

  x: jax.Array
  y: jax.Array

  def __init__(self, x: Any, y: Any):
    inputs, labels = _as_numbers("x", x, as_float=True), _as_numbers("y", y)
    _check_shapes(inputs, labels)
    _check_values(inputs, labels)
    self.x, self.y = jnp.asarray(inputs), jnp.asarray(labels)

  def __len__(self) -> int:
    return self.x.shape[0]

  def __repr__(self) -> str:
    return f"Pool(x={self.x.dtype}{list(self.x.shape)}, y={self.y.dtype}{list(self.y.shape)})"

  def tree_flatten_with_keys(self) -> Any:
    """Return the leaves, for JAX."""
    return ((jax.tree_util.GetAttrKey("x"), self.x), (jax.tree_util.GetAttrKey("y"), self.y)), None

  @classmethod
  def tree_unflatten(cls, _: None, leaves: Any) -> "Pool":
    """Rebuild a pool around leaves, for JAX."""
    # Not through __init__: JAX rebuilds pools around tracers and placeholders, which cannot be checked.
    pool = object.__new__(cls)
    pool.x, pool.y = leaves
    return pool


def _as_numbers(name: str, value: Any, as_float: bool = False) -> Any:
  """Convert to an array of real numbers in a dtype that JAX has, without changing any of them."""
  given = value if isinstance(value, jax.Array) else np.asarray(value)
  if not (jnp.issubdtype(given.dtype, jnp.number) or given.dtype == bool):
    raise TypeError(f"pool {name} must hold numbers, but its dtype is {given.dtype}")
  if jnp.issubdtype(given.dtype, jnp.complexfloating):
    raise TypeError(f"pool {name} must hold real numbers, but its dtype is {given.dtype}")
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


class Dataset(NamedTuple):
  """A data source: a pool to teach from and, optionally, a test pool, a target and a start."""

  train: Pool
  test: Pool | None = None
  target: np.ndarray | Mapping[str, np.ndarray] | None = None  # Flat, or one array per leaf of the parameters.
  init: np.ndarray | Mapping[str, np.ndarray] | None = None
