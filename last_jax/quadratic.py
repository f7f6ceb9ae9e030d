"""Exact minimisers of a convex quadratic over sets of labels: no inner learning rate, no general solver.

    minimise over y in the set:   ⟨d, matrix d⟩ + 2 ⟨linear, d⟩,    d = y - at,   y = m labels of length K

Of several minimisers the one nearest to `at` is taken (to rounding), so a label that has no effect stays as it is.
Every solver is differentiable: what was found by iteration has the derivative of the condition that it meets.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from last_jax.types import Array

# Projects labels [m, K] onto the set, each on its own.
BatchProjection = Callable[[Array], Array]

_ROUNDS = 200  # Of the iteration for general sets. A handful is enough but for the hardest problems.
_STEPS_PER_ROUND = 15
_OVER_RELAXATION = 1.6
_NEWTON_STEPS = 3  # Tried after each round.
_MAX_SWEEPS = 20  # Of coordinate descent over one-hot batches.


class Quadratic(NamedTuple):
  """How G changes around the labels `at`: G(y) - G(at) = ⟨d, matrix d⟩ + 2 ⟨linear, d⟩, with d = y - at."""

  at: Array  # [m, K]
  matrix: Array  # [m, K, m, K], symmetric, positive semidefinite.
  linear: Array  # [m, K]

  def change(self, labels: Array) -> Array:
    """G(labels) - G(at), `[m, K] -> []`."""
    d = labels - self.at
    return jnp.einsum("ik,ikjl,jl->", d, self.matrix, d) + 2 * jnp.sum(self.linear * d)


def safe_divide(numerator: Array, denominator: Array) -> Array:
  """Zero where the denominator is zero, also for the derivative: an example with x = 0 keeps its label."""
  zero = denominator == 0
  return jnp.where(zero, 0.0, numerator / jnp.where(zero, 1.0, denominator))


def minimise_free(quadratic: Quadratic) -> Array:
  """The minimiser over all labels that is nearest to `at`, `[m, K]`."""
  at, size = quadratic.at, quadratic.at.size
  matrix, linear = quadratic.matrix.reshape(size, size), quadratic.linear.reshape(size)
  if size == 1:
    return at - safe_divide(linear, matrix[0]).reshape(at.shape)
  inverse = jax.lax.stop_gradient(_pseudo_inverse(matrix))
  step = jax.lax.stop_gradient(-inverse @ linear)
  source = jax.lax.stop_gradient(inverse @ step)  # step = matrix @ source: it has no part without effect on G.
  within = jax.lax.stop_gradient(matrix @ inverse)
  # Refines the step, and is what autodiff sees: how the answer moves, and how the directions without effect turn.
  step = step - inverse @ (matrix @ step + linear)
  step = step + matrix @ source - within @ (matrix @ source)
  return at + step.reshape(at.shape)


def _pseudo_inverse(matrix: Array) -> Array:
  values, vectors = jnp.linalg.eigh(matrix)
  cut = matrix.shape[0] * jnp.finfo(matrix.dtype).eps * jnp.max(jnp.abs(values))
  inverse = jnp.where(values > cut, 1.0 / jnp.where(values > cut, values, 1.0), 0.0)
  return (vectors * inverse[None]) @ vectors.T


def minimise(quadratic: Quadratic, project: BatchProjection) -> Array:
  """The minimiser over a convex set, known by its projection: `[m, K]`.

  One number to choose: the projection of the free minimiser. Otherwise ADMM (which needs one eigendecomposition and
  then only products and projections) comes near, and a semismooth Newton step on the optimality condition
  z = P(z - gradient) lands: once the active constraints are known it is exact, so a few rounds suffice.
  """
  if quadratic.at.size == 1:
    return project(minimise_free(quadratic))
  problem = _normalise(quadratic)

  def miss(labels: Array) -> Array:
    return labels - project(labels - _gradient(problem, labels))

  def solve_linear(push: Callable[[Array], Array], goal: Array) -> Array:
    basis = jnp.eye(goal.size, dtype=goal.dtype).reshape(goal.size, *goal.shape)
    matrix = jax.vmap(push)(basis).reshape(goal.size, goal.size).T
    return jnp.linalg.solve(matrix, goal.ravel()).reshape(goal.shape)

  # The derivative of the answer follows from the condition that it meets: nothing is computed for it until it is asked.
  return jax.lax.custom_root(
    miss, project(quadratic.at), lambda _, start: _iterate(problem, project, start), solve_linear
  )


def _normalise(quadratic: Quadratic) -> Quadratic:
  """Scaled to a largest eigenvalue of one, with a trace of curvature everywhere.

  The trace makes the minimiser unique: the one nearest to `at`, where the quadratic itself does not decide.
  """
  at, size = quadratic.at, quadratic.at.size
  matrix = quadratic.matrix.reshape(size, size)
  largest = jax.lax.stop_gradient(jnp.linalg.norm(matrix))  # Frobenius: an upper bound, and smooth.
  trace = size * jnp.finfo(at.dtype).eps * jnp.eye(size, dtype=at.dtype)
  matrix = safe_divide(matrix, largest) + trace
  return Quadratic(at, matrix.reshape(quadratic.matrix.shape), safe_divide(quadratic.linear, largest))


def _gradient(problem: Quadratic, labels: Array) -> Array:
  return jnp.einsum("ikjl,jl->ik", problem.matrix, labels - problem.at) + problem.linear


def _newton(problem: Quadratic, project: BatchProjection, labels: Array) -> tuple[Array, Array]:
  """One semismooth Newton step on z = P(z - gradient), projected back onto the set; and how far `labels` missed it."""
  (batch, width), size = labels.shape, labels.size
  moved = labels - _gradient(problem, labels)
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


def _iterate(problem: Quadratic, project: BatchProjection, start: Array) -> Array:
  """ADMM in rounds, a Newton step tried after each, until the residual is down to rounding."""
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
    """Judges `trial` and moves it on."""
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
  dual = -_gradient(problem, start) / penalty  # What the dual would be if `start` were the answer.
  first = _Progress(start, dual, penalty, start, start, jnp.full((), jnp.inf, dtype), jnp.zeros((), int))
  return jax.lax.while_loop(unfinished, one_round, first).best


def minimise_discrete(quadratic: Quadratic, class_labels: Array, max_combinations: int) -> Array:
  """The best labelling of a batch with class labels `[C, K]` only: `[m, K]`.

  Enumerates all C^m labellings up to `max_combinations`; beyond, coordinate descent from the labelling nearest `at`.
  """
  batch, classes = quadratic.at.shape[0], class_labels.shape[0]
  offsets = class_labels[None] - quadratic.at[:, None]  # [m, C, K], each class's label as a step d.
  linear = 2 * jnp.einsum("ik,ick->ic", quadratic.linear, offsets)
  pairs = jnp.einsum("ick,ikjl,jel->icje", offsets, quadratic.matrix, offsets)  # [m, C, m, C]
  nearest = jnp.argmin(jnp.sum(offsets**2, -1), 1)
  if classes**batch <= max_combinations:
    chosen = _enumerate(linear, pairs, nearest)
  else:
    chosen = _descend(linear, pairs, nearest)
  return class_labels[chosen]


def _enumerate(linear: Array, pairs: Array, nearest: Array) -> Array:
  batch, classes = linear.shape
  combinations = np.array(list(itertools.product(range(classes), repeat=batch)))  # [C^m, m]
  rows = np.arange(batch)
  values = jnp.sum(linear[rows, combinations], 1)
  left, right = combinations[:, :, None], combinations[:, None, :]
  values = values + jnp.sum(pairs[rows[:, None], left, rows[None], right], (1, 2))
  # Among equals the labelling with most labels at the ground truth, so that x = 0 keeps its label.
  lowest = jnp.min(values)
  kept = jnp.sum(combinations == nearest[None], 1)
  return jnp.asarray(combinations)[jnp.argmax(jnp.where(values <= lowest, kept, -1))]


def _descend(linear: Array, pairs: Array, nearest: Array) -> Array:
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
  return jax.lax.while_loop(lambda s: s[1] & (s[2] < _MAX_SWEEPS), sweep, state)[0]
