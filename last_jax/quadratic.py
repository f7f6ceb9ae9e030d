"""Exact minimisers of a convex quadratic over sets of labels: no inner learning rate, no general solver.

    minimise over y in the set:   ⟨d, matrix d⟩ + 2 ⟨linear, d⟩,    d = y - at,   y = m labels of length K

Of several minimisers the one nearest to `at` is taken (to rounding), so a label without effect does not change. No
solver returns labels that are worse than `at` projected into the set, nor labels that are not finite. Every solver is
differentiable: a solution found by iteration has the derivative of the condition that it meets. Each returns a
`Certificate` beside the labels, whose residual `residual` defines; nothing is computed for it where it is not used.
"""

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from last_jax.base import Array, Certificate

# Projects labels [m, K] onto the set, each on its own.
BatchProjection = Callable[[Array], Array]

MOST_NUMBERS = 4096  # Of a label problem whose matrix is formed: 64 MiB in float32.
_MAX_SWEEPS = 20  # Of coordinate descent over one-hot batches.
_POWER_STEPS = 10  # For the largest curvature.
LONGEST_STEP = 1e6  # Of a gradient step before a projection, relative to the labels: see `residual`.


class Squares(NamedTuple):
  """G as a sum of squares: G(at + d) = scale^2 ||error + columns d||^2, with d the m K numbers of the labels.

  What its matrix, columnsᵀ columns, has lost to rounding is still here: see `free.py`.
  """

  error: Array  # [q]
  columns: Array  # [q, m K]


class Quadratic(NamedTuple):
  """G around the labels `at`: G(y) - G(at) = scale^2 (⟨d, matrix d⟩ + 2 ⟨linear, d⟩), with d = y - at.

  The scale has no influence on the minimiser. It keeps the squares of very small and very large steps representable.
  """

  at: Array  # [m, K]
  # [m, K, m, K], symmetric, positive semidefinite; or, where that is too large, its product with a direction [m, K].
  matrix: Any
  linear: Array  # [m, K]
  scale: Array | float = 1.0  # []
  squares: Squares | None = None  # Only where labels are free.

  def change(self, labels: Array) -> Array:
    """Return G(labels) - G(at), `[m, K] -> []`."""
    return self.scale * self.scale * self.scaled_change(labels)

  def scaled_change(self, labels: Array) -> Array:
    """Return (G(labels) - G(at)) / scale^2, `[m, K] -> []`."""
    d = labels - self.at
    return jnp.sum(d * (self.product(d) + 2 * self.linear))

  def gradient(self, labels: Array) -> Array:
    """Return half the gradient of `scaled_change`, `[m, K] -> [m, K]`."""
    return self.product(labels - self.at) + self.linear

  def product(self, direction: Array) -> Array:
    """Return `matrix` times a direction, `[m, K] -> [m, K]`."""
    if callable(self.matrix):
      return self.matrix(direction)
    size = self.at.size
    return (self.matrix.reshape(size, size) @ direction.reshape(size)).reshape(self.at.shape)


def safe_divide(numerator: Array, denominator: Array) -> Array:
  """Return the quotient, and zero (with derivative zero) where the denominator is zero: x = 0 changes no label."""
  zero = denominator == 0
  return jnp.where(zero, 0.0, numerator / jnp.where(zero, 1.0, denominator))


def power_of_two(values: Array) -> Array:
  """Return the power of two that is next below the largest magnitude in `values [...]`, or 1 if all are zero: `[]`.

  Dividing by it rounds nothing, and the squares of the quotients neither overflow nor vanish.
  """
  largest = jnp.max(jnp.abs(jax.lax.stop_gradient(values)))
  usable = (largest > 0) & jnp.isfinite(largest)
  mantissa, _ = jnp.frexp(jnp.where(usable, largest, 1.0))  # In [1/2, 1).
  return jnp.where(usable, 0.5 * largest / mantissa, 1.0)


def triangular(columns: Array) -> tuple[Array, Array]:
  """Return an orthonormal basis `[q, r]` of columns `[q, n]`, and the columns in it, `[r, n]`.

  Each column keeps digits of its own, however small it is beside others.
  """
  lengths = jax.vmap(power_of_two, 1)(columns)
  basis, factors = jnp.linalg.qr(columns / lengths[None])
  return basis, factors * lengths[None]


def _norm(values: Array) -> Array:
  """Return the Euclidean norm of all entries, without overflow or underflow of their squares: `[]`."""
  size = power_of_two(values)
  return size * jnp.linalg.norm((values / size).reshape(-1))


def residual(quadratic: Quadratic, project: BatchProjection, labels: Array) -> Array:
  """Return the relative optimality residual of `labels [m, K]`, the natural map of the problem: `[]`.

      ‖y - P(y - ∇G(y) / L)‖ / (1 + ‖y‖),     L = max(‖∇²G‖, 1e-6 ‖∇G(y)‖ / (1 + ‖y‖))

  It is zero at minimisers and nowhere else, and does not depend on the scale of G. ‖∇²G‖ is the Frobenius norm, a bound
  of the largest eigenvalue or, where there is no matrix, an estimate of that eigenvalue; the second bound keeps
  y - ∇G / L within a million times the size of the labels.
  """
  quadratic, labels = fixed(quadratic), jax.lax.stop_gradient(labels)
  step = safe_divide(quadratic.gradient(labels), _bound(quadratic, labels))
  return _norm(labels - project(labels - step)) / (1 + _norm(labels))


def _bound(quadratic: Quadratic, labels: Array) -> Array:
  """Return L of `residual`, for half the quadratic without its scale: `[]`."""
  size = largest_curvature(quadratic) if callable(quadratic.matrix) else _norm(quadratic.matrix)
  return jnp.maximum(size, steepness(quadratic, labels))


def fixed(quadratic: Quadratic) -> Quadratic:
  """Return the quadratic without derivatives."""
  if not callable(quadratic.matrix):
    return jax.lax.stop_gradient(quadratic)
  at, linear, scale = jax.lax.stop_gradient((quadratic.at, quadratic.linear, quadratic.scale))
  return Quadratic(at, lambda direction: jax.lax.stop_gradient(quadratic.matrix(direction)), linear, scale)


def steepness(quadratic: Quadratic, labels: Array) -> Array:
  """Return the least curvature with which a gradient step from `labels` is no longer than `LONGEST_STEP`: `[]`."""
  return _norm(quadratic.gradient(labels)) / (LONGEST_STEP * (1 + _norm(labels)))


def largest_curvature(quadratic: Quadratic) -> Array:
  """Return an estimate, hardly ever too low, of the largest eigenvalue of the matrix, by power iteration: `[]`."""
  quadratic = fixed(quadratic)
  shape, dtype = quadratic.at.shape, quadratic.at.dtype
  # The trace is no less than the largest eigenvalue, and is read off the diagonal.
  bound = jnp.ones((), dtype) if callable(quadratic.matrix) else jnp.sum(jnp.einsum("ikik->ik", quadratic.matrix))
  direction = 1 + jnp.cos(jnp.arange(quadratic.at.size, dtype=dtype)).reshape(shape)  # No eigenvector of note.

  def multiply(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
    image = safe_divide(quadratic.product(state[0]), bound)
    size = jnp.linalg.norm(image)
    return safe_divide(image, size), size

  direction = direction / jnp.linalg.norm(direction)
  _, share = jax.lax.fori_loop(0, _POWER_STEPS, multiply, (direction, jnp.ones((), dtype)))
  return 1.1 * share if callable(quadratic.matrix) else bound * jnp.clip(1.1 * share, 0.0, 1.0)


def solved_directly(labels: Array, road: str, *, exact: bool = True) -> Certificate:
  """Return the certificate of labels that were found without iteration, up to rounding."""
  return Certificate(residual=jnp.zeros((), labels.dtype), iterations=jnp.zeros((), int), exact=exact, road=road)


# --- Solvers.


def check(quadratic: Quadratic) -> None:
  """Raise unless the shapes agree."""
  chex.assert_rank(quadratic.at, 2)
  chex.assert_equal_shape([quadratic.at, quadratic.linear])
  if not callable(quadratic.matrix):
    chex.assert_shape(quadratic.matrix, quadratic.at.shape * 2)


def minimise_discrete(quadratic: Quadratic, class_labels: Array, max_combinations: int) -> tuple[Array, Certificate]:
  """Return the best labelling of a batch with class labels `[C, K]` only: `[m, K]`.

  Enumerates all C^m labellings up to `max_combinations`; beyond, coordinate descent from the labelling nearest `at`.
  """
  check(quadratic)
  chex.assert_shape(class_labels, (None, quadratic.at.shape[1]))
  batch, classes = quadratic.at.shape[0], class_labels.shape[0]
  offsets = class_labels[None] - quadratic.at[:, None]  # [m, C, K], each class's label as a step d.
  linear = 2 * jnp.einsum("ik,ick->ic", quadratic.linear, offsets)
  pairs = jnp.einsum("ick,ikjl,jel->icje", offsets, quadratic.matrix, offsets)  # [m, C, m, C]
  nearest = jnp.argmin(jnp.sum(offsets**2, -1), 1)
  if classes**batch <= max_combinations:
    labels = class_labels[_enumerate(linear, pairs, nearest)]
    return labels, solved_directly(labels, "enumeration")
  chosen, sweeps = _descend(linear, pairs, nearest)
  left = jnp.zeros((), class_labels.dtype)
  return class_labels[chosen], Certificate(residual=left, iterations=sweeps, exact=False, road="coordinate descent")


def _enumerate(linear: Array, pairs: Array, nearest: Array) -> Array:
  batch, classes = linear.shape
  combinations = np.array(list(itertools.product(range(classes), repeat=batch)))  # [C^m, m]
  rows = np.arange(batch)
  values = jnp.sum(linear[rows, combinations], 1)
  left, right = combinations[:, :, None], combinations[:, None, :]
  values = values + jnp.sum(pairs[rows[:, None], left, rows[None], right], (1, 2))
  values = jnp.where(jnp.isnan(values), jnp.inf, values)
  # Among equals the labelling with most labels at the ground truth, so that x = 0 changes no label.
  unchanged = jnp.sum(combinations == nearest[None], 1)
  return jnp.asarray(combinations)[jnp.argmax(jnp.where(values <= jnp.min(values), unchanged, -1))]


def _descend(linear: Array, pairs: Array, nearest: Array) -> tuple[Array, Array]:
  batch, classes = linear.shape
  rows = jnp.arange(batch)

  def relabel(i: Array, chosen: Array) -> Array:
    others = jnp.sum(jnp.where((rows == i)[:, None], 0.0, pairs[i, :, rows, chosen]), 0)  # [C]
    own = pairs[i, jnp.arange(classes), i, jnp.arange(classes)]
    values = linear[i] + own + 2 * others
    best = jnp.argmin(values)
    return chosen.at[i].set(jnp.where(values[best] < values[chosen[i]], best, chosen[i]))

  def sweep(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    chosen, _, sweeps = state
    new = jax.lax.fori_loop(0, batch, relabel, chosen)
    return new, jnp.any(new != chosen), sweeps + 1

  state = (nearest, jnp.array(True), jnp.zeros((), int))
  chosen, _, sweeps = jax.lax.while_loop(lambda s: s[1] & (s[2] < _MAX_SWEEPS), sweep, state)
  return chosen, sweeps
