"""Where students start: a function of a key, whose numbers are data."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax

from last_jax import checks
from last_jax.learners import Learner
from last_jax.types import Array, Key, Params


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Near:
  """Gaussian around some parameters."""

  center: Params
  scale: Array | float

  def __call__(self, key: Key) -> Params:
    """Parameters of one student."""
    leaves, structure = jax.tree.flatten(self.center)
    keys = jax.random.split(key, len(leaves))
    moved = [
      leaf + self.scale * jax.random.normal(k, leaf.shape, leaf.dtype) for leaf, k in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, moved)


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class FromFunction:
  """Whatever a function makes of a key."""

  function: Callable[[Key], Params]

  def __call__(self, key: Key) -> Params:
    """Parameters of one student."""
    return self.function(key)


def near(center: Params, scale: Any) -> Near:
  """Students that start at `center + N(0, scale^2)`, as the paper's do around w*."""
  checks.check_finite("center", center)
  checks.check_not_negative("scale", scale)
  return Near(center, scale)


def as_starts(learner: Learner, starts: Any) -> Any:
  """What to call with a key: the learner's own random parameters unless given."""
  if starts is None:
    return FromFunction(learner.model.init)
  if not callable(starts):
    raise TypeError(f"starts must be a function of a key, as training.near(...), but it is a {type(starts).__name__}")
  starts = starts if isinstance(starts, Near) else FromFunction(starts)
  checks.check_params(learner, jax.eval_shape(starts, jax.random.key(0)), "starts(key)")
  return starts
