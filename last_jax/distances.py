"""Distances between parameters."""

from typing import Any

import jax
import jax.numpy as jnp

from last_jax.base import Array, Params
from last_jax.models import wide


def squared_distance(params: Params, target: Params, layer_weights: Any = None) -> Array:
  """Return ||w - w*||^2 `[]`, each leaf weighted by `layer_weights`, a prefix of the parameters' tree (None: 1)."""
  params, target = wide(params), wide(target)
  # Flat before the difference: on a CPU, XLA sums the squares of [d, 1] arrays several times as slowly as of [d].
  squares = jax.tree.map(lambda w, goal: jnp.sum((jnp.ravel(w) - jnp.ravel(goal)) ** 2), params, target)
  return jax.tree.reduce(jnp.add, weigh(squares, layer_weights))


def distance(params: Params, target: Params, layer_weights: Any = None) -> Array:
  """Return ||w - w*|| `[]`, whose derivative at the target is zero.

  Infinite above the root of the largest number, 1.8e19 in float32, where its square overflows. To scale differences
  down before they are squared takes a second sum over the parameters, which made recorded steps of small linear
  students slower by a third; students that far away have diverged, and are reported as such (`Records.diverged`).
  """
  square = squared_distance(params, target, layer_weights)
  zero = square == 0
  return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, square)))


def weigh(tree: Any, layer_weights: Any) -> Any:
  """Return each leaf times its weight; `layer_weights` is a prefix of the tree, None: all as they are."""
  if layer_weights is None:
    return tree
  return jax.tree.map(lambda weight, layer: jax.tree.map(lambda leaf: weight * leaf, layer), layer_weights, tree)


def difference(params: Params, target: Params) -> Params:
  """Return w - w*, in float32 or wider."""
  return jax.tree.map(jnp.subtract, wide(params), wide(target))
