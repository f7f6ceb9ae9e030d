"""Projections onto the probability simplex, and onto its intersections with balls around one of its points.

The last operation of each leaves labels in the set, also where far labels have no digits left for it.
"""

from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp

from last_jax.base import Array

_EXACT = 8  # Up to this length the entries sum to one to float32's rounding without further ado.
_PAIRS = 32  # Up to this length all pairs of entries are compared, in one pass.


def project(label: Array) -> Array:
  """Return the nearest label of the probability simplex, `[K] -> [K]`: a threshold is subtracted from all entries.

  As `optax.projections.projection_simplex`, without its sort, which on a CPU takes five to ten times as long.
  """
  below = label - jnp.max(label)  # Entries of any size: the threshold is at most 1 below the largest.
  support = _support(jax.lax.stop_gradient(below))
  threshold = (jnp.sum(jnp.where(support, below, 0.0)) - 1) / jnp.sum(support)
  nearest = jnp.maximum(below - threshold, 0.0)
  if label.shape[0] <= _EXACT:
    return nearest
  # The rounding of the threshold, as often as there are entries, is more than that of their sum.
  excess = (jnp.sum(nearest) - 1) / jnp.sum(support)
  return jnp.maximum(nearest - jax.lax.stop_gradient(jnp.where(support, excess, 0.0)), 0.0)


def _support(below: Array) -> Array:
  """Return which entries of the projection are positive, `[K]`."""
  if below.shape[0] <= _PAIRS:
    # Those that could be lowered to zero while the ones above them still sum to less than one.
    return jnp.sum(jnp.maximum(below[None, :] - below[:, None], 0.0), 1) < 1

  # Newton's method for the threshold where the entries above it sum to one: from below it rises monotonically, and
  # ends when the support does not change.
  def rise(state: tuple[Array, Array]) -> tuple[Array, Array]:
    support, _ = state
    threshold = (jnp.sum(jnp.where(support, below, 0.0)) - 1) / jnp.sum(support)
    smaller = support & (below > threshold)
    return smaller, jnp.any(smaller != support)

  return jax.lax.while_loop(lambda state: state[1], rise, (below > -1, jnp.array(True)))[0]


def in_l2_ball(label: Array, center: Array, radius: Any) -> Array:
  """Find where P(c + s (v - c)), with P onto the simplex, leaves the ball: it moves away from c as s grows."""
  # Lengths along the way, not shares of it, and their logarithms: v may be far away.
  length = jnp.maximum(jax.lax.stop_gradient(jnp.max(jnp.abs(label - center))), jnp.finfo(label.dtype).tiny)
  way = (label - center) / length

  def point(power: Array) -> Array:
    return project(center + jnp.exp2(power) * way)

  def excess(power: Array) -> Array:
    return jnp.sum((point(power) - center) ** 2) - radius**2

  # Entries of the way are at most 1, so that below this length the ball is not left.
  least = jnp.log2(0.5 * radius / label.shape[0] ** 0.5)
  power = _root(excess, jnp.asarray(least, label.dtype), jnp.maximum(jnp.log2(length), least + 1))
  offset = point(power) - center
  reached = jax.lax.stop_gradient(jnp.sqrt(jnp.sum(offset**2)))
  # Rounding may have left the ball.
  return center + offset * jnp.where(reached > radius, radius / jnp.where(reached > radius, reached, 1.0), 1.0)


def in_linf_ball(label: Array, center: Array, radius: Any) -> Array:
  """Return clip(v - tau, low, high), for the ball is a box, with the tau that makes it sum to one."""
  low, high = jnp.maximum(center - radius, 0.0), center + radius

  def missing(tau: Array) -> Array:
    return 1.0 - jnp.sum(jnp.clip(label - tau, low, high))

  tau = _root(missing, jnp.min(label - high), jnp.max(label - low))
  nearest = jnp.clip(label - tau, low, high)
  # Far labels leave tau few digits. What is missing is taken from the room that entries have in the box.
  left = jax.lax.stop_gradient(1.0 - jnp.sum(nearest))
  room = jax.lax.stop_gradient(jnp.where(left > 0, high - nearest, nearest - low))
  total = jnp.sum(room)
  return nearest + room * jnp.where(total > 0, left / jnp.where(total > 0, total, 1.0), 0.0)


def in_l1_ball(label: Array, center: Array, radius: Any) -> Array:
  """Move radius / 2 from some classes to others, with one threshold for the gains and one for the losses."""
  offset = label - center
  half = radius / 2

  def gains(threshold: Array) -> Array:
    return jnp.maximum(offset - threshold, 0.0)

  def losses(threshold: Array) -> Array:
    return jnp.minimum(jnp.maximum(threshold - offset, 0.0), center)

  gain = _root(lambda t: half - jnp.sum(gains(t)), jnp.min(offset) - half, jnp.max(offset))
  loss = _root(lambda t: jnp.sum(losses(t)) - half, jnp.min(offset), jnp.max(offset) + 1.0)
  gained, lost = gains(gain), losses(loss)
  # Far labels leave the thresholds few digits: as much is gained as lost, and no more than the ball allows.
  sums = jax.lax.stop_gradient(jnp.stack([jnp.sum(gained), jnp.sum(lost)]))
  moved = jnp.minimum(jnp.min(sums), half)
  shares = jnp.where(sums > 0, moved / jnp.where(sums > 0, sums, 1.0), 0.0)
  return center + shares[0] * gained - shares[1] * lost


def _root(increasing: Callable[[Array], Array], low: Array, high: Array) -> Array:
  """Return where an increasing, piecewise smooth function crosses zero: bisection, then a Newton step.

  The Newton step ends on the exact root where the function is linear, and makes the root differentiable.
  """
  chex.assert_rank([low, high], 0)

  def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
    low, high = bracket
    middle = 0.5 * (low + high)
    below = increasing(middle) < 0
    return jnp.where(below, middle, low), jnp.where(below, high, middle)

  bracket = jax.lax.stop_gradient((low, high))
  low, high = jax.lax.fori_loop(0, jnp.finfo(low.dtype).nmant + 3, halve, bracket)
  # The slope at the middle: that of the secant through the final bracket has no correct digit.
  middle = jax.lax.stop_gradient(0.5 * (low + high))
  slope = jax.lax.stop_gradient(jax.grad(increasing)(middle))
  safe = slope > 0
  return middle - jnp.where(safe, increasing(middle) / jnp.where(safe, slope, 1.0), 0.0)
