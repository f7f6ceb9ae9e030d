"""The problem of teaching: a learner, the examples to teach from and the point to reach, checked and encoded once."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from last_jax import checks
from last_jax.base import Array, Params, Pool
from last_jax.learners import Learner, check_learns_from
from last_jax.optimizers import as_float

_FIELDS = ("learner", "pool", "truth", "target", "test", "test_truth", "tolerance")


@functools.partial(jax.jit, inline=True)  # One dispatch in place of several.
def _encode(learner: Learner, pool: Pool) -> Array:
  return learner.encode(pool.x, pool.y)


@jax.tree_util.register_pytree_with_keys_class
class Problem:
  """One pytree with everything that teaching needs besides a teacher and a student.

  Attributes:
    learner: the learner that is taught.
    pool: n examples to teach from.
    truth: `[n, K]` the pool's ground truth as label vectors; `[n, T, K]` for learners with outputs for each token.
    target: w*, or None.
    test: examples to measure the accuracy on, or None.
    test_truth: the like for the test pool, or None.
    tolerance: `[]` the distance at which the target counts as reached (`State.hitting_time`), or None.
  """

  learner: Learner
  pool: Pool
  truth: Array
  target: Params | None
  test: Pool | None
  test_truth: Array | None
  tolerance: Array | float | None

  def __init__(
    self,
    learner: Learner,
    pool: Pool,
    *,
    target: Params | None = None,
    test: Pool | None = None,
    tolerance: Any = None,
  ):
    check_learns_from(learner, pool, "pool")
    checks.check_two_classes(learner, pool.x, pool.y, "pool")
    if test is not None:
      check_learns_from(learner, test, "test")
      if None not in (pool.classes, test.classes) and test.classes != pool.classes:
        raise ValueError(
          f"test must have the classes of the pool, in their order, {pool.classes}, but it has {test.classes}: make it "
          "with Pool(x, y, classes=pool.classes)"
        )
    if target is not None:
      checks.check_params(learner, target, "target")
      # NumPy arrays would be copied to the device in every call.
      target = jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else jnp.asarray(leaf), target)
    if tolerance is not None:
      tolerance = checks.check_positive("tolerance", tolerance)
      numbers = jnp.finfo(jax.dtypes.canonicalize_dtype(float))  # Squares are compared.
      checks.check_between("tolerance", tolerance, float(numbers.tiny) ** 0.5, float(numbers.max) ** 0.5)
      if target is None:
        raise ValueError("tolerance is a distance to the target, so it needs target=")
      tolerance = as_float(tolerance)
    self.learner, self.pool, self.target, self.test, self.tolerance = learner, pool, target, test, tolerance
    self.truth = _encode(learner, pool)
    self.test_truth = None if test is None else _encode(learner, test)

  def __repr__(self) -> str:
    known = [name for name in ("target", "test", "tolerance") if getattr(self, name) is not None]
    return f"Problem({self.pool!r}, K={self.truth.shape[-1]}{''.join(', ' + name for name in known)})"

  def without_target(self) -> "Problem":
    """Return the same problem for a black box: nothing in it depends on w*."""
    return self.tree_unflatten(None, (self.learner, self.pool, self.truth, None, self.test, self.test_truth, None))

  def tree_flatten_with_keys(self) -> Any:
    """Return the leaves, for JAX."""
    return tuple((jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in _FIELDS), None

  @classmethod
  def tree_unflatten(cls, _: None, parts: Any) -> "Problem":
    """Rebuild a problem around leaves, for JAX."""
    # Not through __init__: JAX rebuilds problems around tracers and placeholders, which cannot be checked.
    problem = object.__new__(cls)
    for name, part in zip(_FIELDS, parts, strict=True):
      setattr(problem, name, part)
    return problem
