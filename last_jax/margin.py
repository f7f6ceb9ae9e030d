"""The margin form of the logistic loss, log(1 + exp(-y z)) with a real label y: the u(y) that labels can reach.

Here the gradient in the output, u(y) = -y sigmoid(-y z), is not affine in y, and not even monotone: for z > 0 it falls
from +infinity to its minimum at y = T/z and then rises towards 0 (for z < 0 mirror both y and u). But it is continuous,
so the labels of an interval reach an interval of u, and greedy synthesis, quadratic in u, is still solved exactly:
find the best u in that interval, then a label that gives it.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from last_jax.base import Array

# The positive root of 1 + exp(t) = t exp(t), where u turns: 1 + W(1/e), with W Lambert's function.
TURN = 1.2784645427610738


class ScalarMap(NamedTuple):
  """The correspondence between a scalar label and the output gradient u that it causes."""

  reachable: Callable[[Array, Array, Array], tuple[Array, Array]]  # (z, low, high) -> interval of u.
  label_of: Callable[[Array, Array, Array, Array, Array], Array]  # (u, z, low, high, truth) -> label nearest the truth.


def output_gradient(label: Array, output: Array) -> Array:
  """Return u(y) = -y sigmoid(-y z), elementwise; at infinite labels, its limit."""
  product = label * output
  # y * sigmoid(-y z) is 0 * inf at y = +-inf on the side where the sigmoid wins.
  vanishes = jnp.isinf(label) & (product > 0)
  finite = jnp.where(vanishes, 0.0, label)
  return jnp.where(vanishes, 0.0, -finite * jax.nn.sigmoid(-jnp.where(vanishes, 0.0, product)))


def reachable(output: Array, low: Array, high: Array) -> tuple[Array, Array]:
  """Return the interval of u that labels in [low, high] reach (bounds may be infinite), elementwise."""
  ends = output_gradient(low, output), output_gradient(high, output)
  turn = TURN / jnp.where(output == 0, jnp.finfo(output.dtype).tiny, output)
  inside = (low < turn) & (turn < high) & jnp.isfinite(turn)
  extreme = jnp.where(inside, output_gradient(jnp.where(inside, turn, 0.0), output), ends[0])
  return jnp.minimum(jnp.minimum(*ends), extreme), jnp.maximum(jnp.maximum(*ends), extreme)


def label_of(gradient: Array, output: Array, low: Array, high: Array, truth: Array) -> Array:
  """Return the label in [low, high] nearest `truth` with u(y) = `gradient`, elementwise.

  `gradient` must be reachable, up to rounding: just outside, the label that comes closest is returned.
  """
  # Mirror the case z < 0 onto z > 0.
  sign = jnp.where(output < 0, -1.0, 1.0).astype(output.dtype)
  z, u = jnp.abs(output), sign * gradient
  low, high = jnp.minimum(sign * low, sign * high), jnp.maximum(sign * low, sign * high)
  tiny = jnp.finfo(z.dtype).tiny
  turn = jnp.minimum(TURN / jnp.maximum(z, tiny), jnp.finfo(z.dtype).max)

  # Falling branch: brackets from -y/2 <= u(y) for y <= 0, and u(y) <= -y / (1 + exp(TURN)) for 0 <= y <= turn.
  falling_low = jnp.maximum(low, -2.0 * jnp.maximum(u, 0.0))
  falling_high = jnp.minimum(jnp.minimum(high, turn), (1.0 + jnp.exp(TURN)) * jnp.maximum(-u, 0.0))
  falling = _root(u, z, falling_low, jnp.maximum(falling_low, falling_high), rising=False)
  # Rising branch (only u < 0): t / (1 + exp(t)) < q beyond t = -2 log q, where t = y z and q = -u z.
  share = jnp.maximum(-u * z, tiny)
  rising_low = jnp.maximum(low, turn)
  rising_high = jnp.minimum(high, jnp.maximum(turn, -2.0 * jnp.log(share) / jnp.maximum(z, tiny)))
  rising = _root(u, z, rising_low, jnp.maximum(rising_low, rising_high), rising=True)

  def miss(label: Array) -> Array:
    return jnp.abs(output_gradient(label, z) - u)

  # Where both branches give u, the nearer to the truth; where the interval cuts one off, the other.
  slack = 64 * jnp.finfo(z.dtype).eps * (jnp.abs(u) + tiny)
  reaches = (rising_low <= high) & (miss(rising) <= miss(falling) + slack)
  nearer = jnp.abs(rising - sign * truth) < jnp.abs(falling - sign * truth)
  better = miss(rising) + slack < miss(falling)
  return sign * jnp.where(reaches & (nearer | better), rising, falling)


def _root(u: Array, z: Array, low: Array, high: Array, *, rising: bool) -> Array:
  """Return the label in [low, high], where u(y) is monotone, at which it equals `u`: bisection and a Newton step."""
  steps = 2 * jnp.finfo(z.dtype).nmant

  def halve(_: Array, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
    low, high = bracket
    middle = 0.5 * low + 0.5 * high
    above = output_gradient(middle, z) > u
    go_left = above if rising else ~above
    return jnp.where(go_left, low, middle), jnp.where(go_left, middle, high)

  bracket = jax.lax.stop_gradient((low, high))
  left, right = jax.lax.fori_loop(0, steps, halve, bracket)
  label = 0.5 * left + 0.5 * right
  # The Newton step costs little accuracy and makes the root differentiable in u and z (implicit function theorem).
  slope = jax.lax.stop_gradient(_slope(label, z))
  safe = jnp.abs(slope) > jnp.sqrt(jnp.finfo(z.dtype).eps)
  step = (output_gradient(label, z) - u) / jnp.where(safe, slope, 1.0)
  return jnp.clip(label - jnp.where(safe, step, 0.0), low, jnp.maximum(low, high))


def _slope(label: Array, z: Array) -> Array:
  weight = jax.nn.sigmoid(-label * z)
  return -weight + label * z * weight * (1.0 - weight)


MARGIN_MAP = ScalarMap(reachable, label_of)
