"""Exact minimisers of a convex quadratic over sets of labels: no inner learning rate, no general solver.

    minimise over y in the set:   ⟨d, matrix d⟩ + 2 ⟨linear, d⟩,    d = y - at,   y = m labels of length K

Of several minimisers the one nearest to `at` is taken (to rounding), so a label without effect does not change. No
solver returns labels that are worse than `at` projected into the set, nor labels that are not finite. Every solver is
differentiable: a solution found by iteration has the derivative of the condition that it meets. Each returns a
`Certificate` beside the labels, whose residual `residual` defines; nothing is computed for it where it is not used.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from last_jax.base import Array, Certificate

# Projects labels [m, K] onto the set, each on its own.
BatchProjection = Callable[[Array], Array]

_ROUNDS = 200  # Of the iteration for general sets. A handful is enough except for the hardest problems.
_STEPS_PER_ROUND = 15
_OVER_RELAXATION = 1.6
_NEWTON_STEPS = 3  # Tried after each round.
_MAX_SWEEPS = 20  # Of coordinate descent over one-hot batches.
_LONGEST_STEP = 1e6  # Of a gradient step before a projection, relative to the labels: see `residual`.


class Quadratic(NamedTuple):
  """G around the labels `at`: G(y) - G(at) = scale^2 (⟨d, matrix d⟩ + 2 ⟨linear, d⟩), with d = y - at.

  The scale has no influence on the minimiser. It keeps the squares of very small and very large steps representable.
  """

  at: Array  # [m, K]
  matrix: Array  # [m, K, m, K], symmetric, positive semidefinite.
  linear: Array  # [m, K]
  scale: Array | float = 1.0  # []

  def change(self, labels: Array) -> Array:
    """Return G(labels) - G(at), `[m, K] -> []`."""
    return self.scale * self.scale * self.scaled_change(labels)

  def scaled_change(self, labels: Array) -> Array:
    """Return (G(labels) - G(at)) / scale^2, `[m, K] -> []`."""
    d = labels - self.at
    return jnp.einsum("ik,ikjl,jl->", d, self.matrix, d) + 2 * jnp.sum(self.linear * d)

  def gradient(self, labels: Array) -> Array:
    """Return half the gradient of `scaled_change`, `[m, K] -> [m, K]`."""
    return jnp.einsum("ikjl,jl->ik", self.matrix, labels - self.at) + self.linear


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


def _norm(values: Array) -> Array:
  """Return the Euclidean norm of all entries, without overflow or underflow of their squares: `[]`."""
  size = power_of_two(values)
  return size * jnp.linalg.norm((values / size).reshape(-1))


def residual(quadratic: Quadratic, project: BatchProjection, labels: Array) -> Array:
  """Return the relative optimality residual of `labels [m, K]`, the natural map of the problem: `[]`.

      ‖y - P(y - ∇G(y) / L)‖ / (1 + ‖y‖),     L = max(‖∇²G‖, 1e-6 ‖∇G(y)‖ / (1 + ‖y‖))

  It is zero at minimisers and nowhere else, and does not depend on the scale of G. ‖∇²G‖ is the Frobenius norm, a bound
  of the largest eigenvalue; the second bound keeps y - ∇G / L within a million times the size of the labels.
  """
  quadratic, labels = jax.lax.stop_gradient((quadratic, labels))
  step = safe_divide(quadratic.gradient(labels), _bound(quadratic, labels))
  return _norm(labels - project(labels - step)) / (1 + _norm(labels))


def _bound(quadratic: Quadratic, labels: Array) -> Array:
  """Return L of `residual`, for half the quadratic without its scale: `[]`."""
  gradient = _norm(quadratic.gradient(labels))
  return jnp.maximum(_norm(quadratic.matrix), gradient / (_LONGEST_STEP * (1 + _norm(labels))))


def solved_directly(labels: Array, road: str, *, exact: bool = True) -> Certificate:
  """Return the certificate of labels that were found without iteration, up to rounding."""
  return Certificate(residual=jnp.zeros((), labels.dtype), iterations=jnp.zeros((), int), exact=exact, road=road)


# --- Solvers.


def minimise_free(quadratic: Quadratic) -> tuple[Array, Certificate]:
  """Return the minimiser over all labels that is nearest to `at`, `[m, K]`."""
  _check(quadratic)
  at, size = quadratic.at, quadratic.at.size
  matrix, linear = quadratic.matrix.reshape(size, size), quadratic.linear.reshape(size)
  if size == 1:
    labels = at - safe_divide(linear, matrix[0]).reshape(at.shape)
    return jnp.where(jnp.isfinite(labels), labels, at), solved_directly(at, "closed form")
  curvature, slope = power_of_two(matrix), power_of_two(linear)
  matrix, linear = matrix / curvature, linear / slope
  inverse = jax.lax.stop_gradient(_pseudo_inverse(matrix))
  step = jax.lax.stop_gradient(-inverse @ linear)
  source = jax.lax.stop_gradient(inverse @ step)  # step = matrix @ source: it has no part without effect on G.
  within = jax.lax.stop_gradient(matrix @ inverse)
  # Refines the step, and is what autodiff sees: how the answer moves, and how the directions without effect turn.
  step = step - inverse @ (matrix @ step + linear)
  step = step + matrix @ source - within @ (matrix @ source)
  labels = at + (step * (slope / curvature)).reshape(at.shape)
  better = (step @ (matrix @ step) + 2 * linear @ step <= 0) & jnp.all(jnp.isfinite(labels))
  labels = jnp.where(better, labels, at)
  left = residual(quadratic, lambda y: y, labels)
  return labels, Certificate(residual=left, iterations=jnp.zeros((), int), exact=True, road="linear solve")


def _check(quadratic: Quadratic) -> None:
  chex.assert_rank(quadratic.at, 2)
  chex.assert_equal_shape([quadratic.at, quadratic.linear])
  chex.assert_shape(quadratic.matrix, quadratic.at.shape * 2)


def _pseudo_inverse(matrix: Array) -> Array:
  values, vectors = jnp.linalg.eigh(matrix)
  cut = matrix.shape[0] * jnp.finfo(matrix.dtype).eps * jnp.max(jnp.abs(values))
  inverse = jnp.where(values > cut, 1.0 / jnp.where(values > cut, values, 1.0), 0.0)
  return (vectors * inverse[None]) @ vectors.T


def minimise(quadratic: Quadratic, project: BatchProjection) -> tuple[Array, Certificate]:
  """Return the minimiser over a convex set, given by its projection: `[m, K]`.

  One number to choose: the projection of the free minimiser. Otherwise ADMM (which needs one eigendecomposition and
  then only products and projections) comes near, and a semismooth Newton step on the optimality condition
  z = P(z - gradient) lands: once the active constraints are known it is exact, so a few rounds suffice.
  """
  _check(quadratic)
  start = project(quadratic.at)
  if quadratic.at.size == 1:
    step = safe_divide(quadratic.linear, quadratic.matrix.reshape(1, 1))
    far = float(jnp.finfo(step.dtype).max) ** 0.45  # Projections may square it.
    labels = project(quadratic.at - jnp.clip(step, -far, far))
    return jnp.where(jnp.isfinite(labels), labels, start), solved_directly(labels, "closed form")
  problem = _normalise(quadratic, start)

  def miss(labels: Array) -> Array:
    return labels - project(labels - problem.gradient(labels))

  def solve_linear(push: Callable[[Array], Array], goal: Array) -> Array:
    basis = jnp.eye(goal.size, dtype=goal.dtype).reshape(goal.size, *goal.shape)
    matrix = jax.vmap(push)(basis).reshape(goal.size, goal.size).T
    return jnp.linalg.solve(matrix, goal.ravel()).reshape(goal.shape)

  # The derivative of the answer follows from the condition that it meets: nothing is computed for it until it is asked.
  labels, rounds = jax.lax.custom_root(
    miss, start, lambda _, start: _iterate(problem, project, start), solve_linear, has_aux=True
  )
  # False, too, where a label is not a number.
  better = problem.scaled_change(labels) <= problem.scaled_change(start)
  labels = jnp.where(better, labels, start)
  left = residual(quadratic, project, labels)
  return labels, Certificate(residual=left, iterations=rounds.astype(int), exact=True, road="splitting and Newton")


def _normalise(quadratic: Quadratic, start: Array) -> Quadratic:
  """Return the problem divided by L of `residual`, with a trace of curvature everywhere.

  The trace makes the minimiser unique: the one nearest to `at`, where the quadratic itself does not decide.
  """
  at, matrix = quadratic.at, quadratic.matrix
  bound, largest = jax.lax.stop_gradient((_bound(quadratic, start), _norm(matrix)))
  trace = at.size * jnp.finfo(at.dtype).eps * jnp.eye(at.size, dtype=at.dtype).reshape(matrix.shape)
  matrix = safe_divide(matrix, bound) + safe_divide(largest, bound) * trace
  return Quadratic(at, matrix, safe_divide(quadratic.linear, bound))


def _newton(problem: Quadratic, project: BatchProjection, labels: Array) -> tuple[Array, Array]:
  """Return one semismooth Newton step on z = P(z - gradient), projected into the set, and the miss of `labels`."""
  (batch, width), size = labels.shape, labels.size
  moved = labels - problem.gradient(labels)
  # Labels are projected one by one, so K derivatives, each of all labels at once, give all K x K blocks.
  directions = jnp.broadcast_to(jnp.eye(width, dtype=labels.dtype)[:, None], (width, batch, width))
  projected, push = jax.linearize(project, moved)
  blocks = jax.vmap(push, out_axes=2)(directions)  # [m, K, K]
  slope = jnp.einsum("ikl,ij->ikjl", blocks, jnp.eye(batch, dtype=labels.dtype)).reshape(size, size)
  identity = jnp.eye(size, dtype=labels.dtype)
  system = identity - slope @ (identity - problem.matrix.reshape(size, size))
  step = jnp.linalg.solve(system, (labels - projected).reshape(size))
  step = jnp.where(jnp.all(jnp.isfinite(step)), step, 0.0)
  return project(labels - step.reshape(labels.shape)), jnp.linalg.norm(labels - projected)


class _Progress(NamedTuple):
  labels: Array  # [m, K], the splitting's copy that is inside the set.
  dual: Array  # [m, K]
  penalty: Array  # []
  trial: Array  # [m, K], what Newton steps start from and move.
  best: Array  # [m, K]
  best_miss: Array  # []
  rounds: Array  # []


def _iterate(problem: Quadratic, project: BatchProjection, start: Array) -> tuple[Array, Array]:
  """Return labels and the rounds `[]` taken: ADMM, Newton steps tried after each round, until rounding is reached."""
  shape, size, dtype = start.shape, start.size, start.dtype
  values, vectors = jnp.linalg.eigh(problem.matrix.reshape(size, size))
  offset = problem.linear.reshape(size)

  def admm_step(progress: _Progress, _):
    goal = (progress.labels - progress.dual - problem.at).reshape(size)
    coordinates = (vectors.T @ (progress.penalty * goal - offset)) / (values + progress.penalty)
    free = problem.at + (vectors @ coordinates).reshape(shape)
    mixed = _OVER_RELAXATION * free + (1 - _OVER_RELAXATION) * progress.labels
    labels = project(mixed + progress.dual)
    dual = progress.dual + mixed - labels
    primal_miss = jnp.linalg.norm(free - labels)
    dual_miss = progress.penalty * jnp.linalg.norm(labels - progress.labels)
    return progress._replace(labels=labels, dual=dual), (primal_miss, dual_miss)

  def newton_step(progress: _Progress, _):
    """Judge `trial` and move it."""
    moved, miss = _newton(problem, project, progress.trial)
    best = jnp.where(miss < progress.best_miss, progress.trial, progress.best)
    return progress._replace(trial=moved, best=best, best_miss=jnp.minimum(miss, progress.best_miss)), None

  def one_round(progress: _Progress) -> _Progress:
    progress, (primal, dual) = jax.lax.scan(admm_step, progress, length=_STEPS_PER_ROUND)
    progress = progress._replace(trial=progress.labels)
    progress, _ = jax.lax.scan(newton_step, progress, length=_NEWTON_STEPS + 1)
    # Balance the two residuals, as is usual for ADMM; the eigendecomposition serves every penalty.
    tiny = jnp.finfo(dtype).tiny
    primal_size = jnp.linalg.norm(progress.labels)
    dual_size = jnp.maximum(jnp.linalg.norm(offset), progress.penalty * jnp.linalg.norm(progress.dual))
    ratio = (primal[-1] * dual_size + tiny) / (dual[-1] * primal_size + tiny)
    ratio = jnp.clip(jnp.sqrt(ratio), 0.1, 10.0)
    penalty = jnp.clip(progress.penalty * ratio, 1e-8, 1e4)
    return progress._replace(
      dual=progress.dual * progress.penalty / penalty,
      penalty=penalty,
      rounds=progress.rounds + 1,
    )

  def unfinished(progress: _Progress) -> Array:
    tolerance = 8 * size * jnp.finfo(dtype).eps * (1 + jnp.linalg.norm(progress.best))
    return (progress.best_miss > tolerance) & (progress.rounds < _ROUNDS)

  penalty = jnp.full((), 0.05, dtype)
  dual = -problem.gradient(start) / penalty  # The dual if `start` were the answer.
  first = _Progress(start, dual, penalty, start, start, jnp.full((), jnp.inf, dtype), jnp.zeros((), int))
  last = jax.lax.while_loop(unfinished, one_round, first)
  return last.best, last.rounds.astype(dtype)  # `custom_root` differentiates all that it returns: no integers.


def minimise_discrete(quadratic: Quadratic, class_labels: Array, max_combinations: int) -> tuple[Array, Certificate]:
  """Return the best labelling of a batch with class labels `[C, K]` only: `[m, K]`.

  Enumerates all C^m labellings up to `max_combinations`; beyond, coordinate descent from the labelling nearest `at`.
  """
  _check(quadratic)
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

  def sweep(state):
    chosen, _, sweeps = state
    new = jax.lax.fori_loop(0, batch, relabel, chosen)
    return new, jnp.any(new != chosen), sweeps + 1

  state = (nearest, jnp.array(True), jnp.zeros((), int))
  chosen, _, sweeps = jax.lax.while_loop(lambda s: s[1] & (s[2] < _MAX_SWEEPS), sweep, state)
  return chosen, sweeps
