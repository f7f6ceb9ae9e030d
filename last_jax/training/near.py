"""Random starts of students around some parameters."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from last_jax import checks
from last_jax.base import Array, Key, Params


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Near:
  """Gaussian around some parameters: a function of a key whose numbers are leaves."""

  center: Params
  scale: Array | float

  def __call__(self, key: Key) -> Params:
    """Return the parameters of one student."""
    leaves, structure = jax.tree.flatten(self.center)
    keys = jax.random.split(key, len(leaves))
    moved = [
      leaf + self.scale * jax.random.normal(k, leaf.shape, leaf.dtype) for leaf, k in zip(leaves, keys, strict=True)
    ]
    return jax.tree.unflatten(structure, moved)


def near(center: Params, scale: Any) -> Near:
  """Return an `init_fn` of students that start at `center + N(0, scale^2)`, as the paper's do around w*."""
  checks.check_tree("center", center)
  checks.check_finite("center", center)
  return Near(jax.tree.map(jnp.asarray, center), checks.check_not_negative("scale", scale))
