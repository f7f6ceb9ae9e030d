"""The minimiser of a convex quadratic over a convex set, which is known by its projection only.

Accelerated projected gradients (FISTA, with restarts) need a product and a projection per iteration, and find the
minimiser of an ordinary label problem in some twenty. Where they have not arrived after a few dozen, the problem is ill
conditioned; but by then it is mostly known which constraints are active, and a semismooth Newton step on the condition
z = P(z - gradient) lands on the minimiser, or on the next constraint. Rounds of both end when rounding is reached.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from last_jax import quadratic as quadratics
from last_jax.base import Array, Certificate
from last_jax.quadratic import BatchProjection, Quadratic, safe_divide

_ROUNDS = 40  # One is enough except for ill-conditioned problems.
_STEPS_PER_ROUND = 60  # Where there is a matrix up to the number of unknowns: they then take as long as a Newton step.
_NEWTON_STEPS = 4  # Tried at the end of a round.
_SHARES = tuple(0.5**power for power in range(12))  # Of a Newton step.
_LARGEST_TRACE = 64  # Units of rounding: in proportion to thousands of numbers, it would displace the minimiser.
_ALIKE = 1e3  # Largest curvature over smallest of all examples, up to which steps of one length serve them all.
_SETTLING = 100  # Steps at most at the end, of each example's own length.
_MISSED = 1e-4  # Of the gain, beyond which they are taken.
_SHORT = 1e-2  # Labels that move less have more digits than the tolerance of the iterations, which is that of ones.
_POLISHED = 256  # Numbers at most of labels that are polished: a Newton step takes their cube.
_POLISHING = 2  # Newton steps at most.
_STALLED = 3  # Rounds without progress after which rounding is taken to be reached.


def minimise(quadratic: Quadratic, project: BatchProjection) -> tuple[Array, Certificate]:
  """Return the minimiser over a convex set, given by its projection: `[m, K]`.

  One number to choose: the projection of the free minimiser. Otherwise by iteration: see the module.
  """
  quadratics.check(quadratic)
  start = project(quadratic.at)
  if quadratic.at.size == 1:
    step = safe_divide(quadratic.linear, quadratic.product(jnp.ones_like(start)))
    far = float(jnp.finfo(step.dtype).max) ** 0.45  # Projections may square it.
    labels = project(quadratic.at - jnp.clip(step, -far, far))
    return jnp.where(jnp.isfinite(labels), labels, start), quadratics.solved_directly(labels, "closed form")
  problem, matrix = _normalise(quadratic, start)

  def miss(labels: Array) -> Array:
    return labels - project(labels - problem.gradient(labels))

  def solve_linear(push: Callable[[Array], Array], goal: Array) -> Array:
    if matrix is None:
      return jax.scipy.sparse.linalg.bicgstab(push, goal, tol=1e-6)[0]
    basis = jnp.eye(goal.size, dtype=goal.dtype).reshape(goal.size, *goal.shape)
    system = jax.vmap(push)(basis).reshape(goal.size, goal.size).T
    return jnp.linalg.solve(system, goal.ravel()).reshape(goal.shape)

  # The derivative of the answer follows from the condition that it meets: nothing is computed for it until it is asked.
  def solve(_: Callable[[Array], Array], start: Array) -> tuple[Array, Array]:
    labels, steps = _iterate(problem, matrix, project, start)
    if matrix is not None and labels.size <= _POLISHED:
      labels = _polish(problem, matrix, project, start, labels)
    return (labels if matrix is None else _settle(quadratics.fixed(quadratic), project, start, labels)), steps

  labels, steps = jax.lax.custom_root(miss, start, solve, solve_linear, has_aux=True)
  # False, too, where a label is not a number.
  better = problem.scaled_change(labels) <= problem.scaled_change(start)
  labels = jnp.where(better, labels, start)
  left = quadratics.residual(quadratic, project, labels)
  gap = None
  if matrix is not None:
    held = quadratics.fixed(quadratic)
    now, first = jax.lax.stop_gradient((labels, start))
    missed = _own_steps(held, project, now)[1]
    gap = safe_divide(missed, missed + jnp.maximum(held.scaled_change(first) - held.scaled_change(now), 0.0))
  return labels, Certificate(left, steps.astype(int), exact=True, road="projected gradients", gap=gap)


def _own_steps(quadratic: Quadratic, project: BatchProjection, labels: Array) -> tuple[Array, Array]:
  """Return labels after a step of each example's own length, `[m, K]`, and about how much G falls by them, `[]`.

  Beside examples that move the student much more, steps of one length for all leave the others where they are.
  """
  gradient = quadratic.gradient(labels)
  blocks = jnp.einsum("ikil->ikl", quadratic.matrix)
  curvature = jnp.sqrt(jnp.sum(blocks**2, (1, 2)))
  size = 1 + jnp.sqrt(jnp.sum(labels**2, 1))
  steep = jnp.sqrt(jnp.sum(gradient**2, 1)) / (quadratics.LONGEST_STEP * size)
  moved = project(labels - safe_divide(gradient, jnp.maximum(curvature, steep)[:, None]))
  falls = jnp.sum(gradient * (labels - moved), 1)
  # Entry by entry: labels near zero have digits that those near one have not.
  rounding = 8 * jnp.finfo(labels.dtype).eps * jnp.sum(jnp.abs(gradient) * (jnp.abs(labels) + jnp.abs(moved)), 1)
  falls = jnp.where(falls > rounding, falls, 0.0)
  return jnp.where((falls > 0)[:, None], moved, labels), jnp.sum(falls)


def _polish(
  problem: Quadratic, matrix: Callable[[], Array], project: BatchProjection, start: Array, labels: Array
) -> Array:
  """Return labels after Newton steps, where they have moved so little that the tolerance is a part of their way."""

  def more(state: tuple[Array, Array]) -> Array:
    labels, count = state
    moved = jnp.max(jnp.abs(labels - start))
    # At a corner of the set nothing is left to do.
    return (count < _POLISHING) & (moved < _SHORT) & jnp.any(project(labels - problem.gradient(labels)) != labels)

  def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
    labels, count = state
    new = project(labels - _newton(problem, matrix(), project, labels)[0])
    better = problem.scaled_change(new) < problem.scaled_change(labels)
    return jnp.where(better, new, labels), jnp.where(better, count + 1, _POLISHING)

  return jax.lax.while_loop(more, step, (labels, jnp.zeros((), int)))[0]


def _settle(quadratic: Quadratic, project: BatchProjection, start: Array, labels: Array) -> Array:
  """Return labels from which steps of each example's own length lead no further; mostly they are there already."""
  sizes = jnp.einsum("ikik->i", quadratic.matrix)

  def more(state: tuple[Array, Array, Array, Array]) -> Array:
    labels, _, missed, count = state
    gained = quadratic.scaled_change(start) - quadratic.scaled_change(labels)
    return (missed > _MISSED * gained) & (count < _SETTLING)

  def step(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
    labels, goal, _, count = state
    way = goal - labels
    share = safe_divide(-jnp.sum(quadratic.gradient(labels) * way), jnp.sum(way * quadratic.product(way)))
    labels = labels + jnp.clip(share, 0.0, 1.0) * way  # Between labels of a convex set.
    return labels, *_own_steps(quadratic, project, labels), count + 1

  def settle() -> Array:
    first = (labels, *_own_steps(quadratic, project, labels), jnp.zeros((), int))
    return jax.lax.while_loop(more, step, first)[0]

  unlike = jnp.max(sizes) > _ALIKE * jnp.min(sizes)
  return jax.lax.cond(unlike | (jnp.max(jnp.abs(labels - start)) < _SHORT), settle, lambda: labels)


def _normalise(quadratic: Quadratic, start: Array) -> tuple[Quadratic, Callable[[], Array] | None]:
  """Return the problem divided by its largest curvature, with a trace of curvature everywhere.

  The trace makes the minimiser unique: the one nearest to `at`, where the quadratic itself does not decide.

  Returns:
    The problem, with a product in place of its matrix: passes over a large matrix take longer than the iterations. And
    a function that forms the matrix, `[m K, m K]`, for Newton steps; None where there is none.
  """
  at = quadratic.at
  largest = quadratics.largest_curvature(quadratic)
  bound = jax.lax.stop_gradient(jnp.maximum(largest, quadratics.steepness(quadratic, start)))
  trace = min(at.size, _LARGEST_TRACE) * jnp.finfo(at.dtype).eps * largest

  def product(direction: Array) -> Array:
    return safe_divide(quadratic.product(direction) + trace * direction, bound)

  def matrix() -> Array:
    size = at.size
    return safe_divide(quadratic.matrix.reshape(size, size) + trace * jnp.eye(size, dtype=at.dtype), bound)

  problem = Quadratic(at, product, safe_divide(quadratic.linear, bound))
  return problem, None if callable(quadratic.matrix) else matrix


class _Progress(NamedTuple):
  labels: Array  # [m, K], inside the set.
  ahead: Array  # [m, K], extrapolated: where the next gradient is taken.
  weight: Array  # [] of the extrapolation.
  best: Array  # [m, K], of all labels whose condition was evaluated.
  best_miss: Array  # []
  steps: Array  # []


def _iterate(
  problem: Quadratic, matrix: Callable[[], Array] | None, project: BatchProjection, start: Array
) -> tuple[Array, Array]:
  """Return labels, and the steps `[]` taken."""
  dtype = start.dtype
  tolerance = 4 * jnp.finfo(dtype).eps * (1 + jnp.sqrt(start.size).astype(dtype))

  def unfinished(progress: _Progress) -> Array:
    return progress.best_miss > tolerance

  def gradient_step(progress: _Progress) -> _Progress:
    labels = project(progress.ahead - problem.gradient(progress.ahead))
    miss = jnp.linalg.norm(labels - progress.ahead)
    # Momentum that points uphill is dropped.
    restart = jnp.sum((progress.ahead - labels) * (labels - progress.labels)) > 0
    weight = jnp.where(restart, 1.0, progress.weight)
    next_weight = 0.5 * (1 + jnp.sqrt(1 + 4 * weight**2))
    momentum = jnp.where(restart, 0.0, (weight - 1) / next_weight)
    better = miss < progress.best_miss
    return _Progress(
      labels,
      labels + momentum * (labels - progress.labels),
      next_weight,
      jnp.where(better, labels, progress.best),
      jnp.where(better, miss, progress.best_miss),
      progress.steps + 1,
    )

  def newton_step(progress: _Progress) -> _Progress:
    assert matrix is not None
    step, miss = _newton(problem, matrix(), project, progress.labels)
    better = miss < progress.best_miss
    best = jnp.where(better, progress.labels, progress.best)
    # Beyond the first constraint that it meets, a whole step may lead uphill: take the best along its way.
    ways = jax.vmap(lambda share: project(progress.labels - share * step))(jnp.asarray(_SHARES, dtype))
    changes = jax.vmap(problem.scaled_change)(ways)
    chosen = jnp.nanargmin(changes)
    downhill = changes[chosen] < problem.scaled_change(progress.labels)
    moved = jnp.where(downhill, ways[chosen], progress.labels)
    return progress._replace(
      labels=moved,
      ahead=jnp.where(downhill, moved, progress.ahead),
      weight=jnp.where(downhill, 1.0, progress.weight),
      best=best,
      best_miss=jnp.minimum(miss, progress.best_miss),
    )

  def repeat(step: Callable[[_Progress], _Progress], progress: _Progress, times: int) -> _Progress:
    def more(counted: tuple[_Progress, Array]) -> Array:
      return unfinished(counted[0]) & (counted[1] < times)

    def once(counted: tuple[_Progress, Array]) -> tuple[_Progress, Array]:
      return step(counted[0]), counted[1] + 1

    return jax.lax.while_loop(more, once, (progress, jnp.zeros((), int)))[0]

  def one_round(state: tuple[_Progress, Array, Array]) -> tuple[_Progress, Array, Array]:
    before, rounds, stalled = state
    after = repeat(gradient_step, before, _STEPS_PER_ROUND if matrix is None else max(_STEPS_PER_ROUND, start.size))
    if matrix is not None:
      # A branch: otherwise the compiler moves what Newton steps share out of their loop, which mostly takes no step.
      newton = functools.partial(repeat, newton_step, times=_NEWTON_STEPS + 1)
      after = jax.lax.cond(unfinished(after), newton, lambda progress: progress, after)
    # A long way along a flat direction lowers G steadily, and the miss only at its end.
    level = problem.scaled_change(before.labels)
    lower = problem.scaled_change(after.labels) < level - 128 * jnp.finfo(dtype).eps * jnp.abs(level)
    progressed = lower | (after.best_miss < 0.5 * before.best_miss)
    return after, rounds + 1, jnp.where(progressed, 0, stalled + 1)

  def more_rounds(state: tuple[_Progress, Array, Array]) -> Array:
    progress, rounds, stalled = state
    return unfinished(progress) & (rounds < _ROUNDS) & (stalled < _STALLED)

  zero = jnp.zeros((), int)
  infinity = jnp.full((), jnp.inf, dtype)
  first = _Progress(start, start, jnp.ones((), dtype), start, infinity, zero)
  last, *_ = jax.lax.while_loop(more_rounds, one_round, (first, zero, zero))
  return last.best, last.steps.astype(dtype)  # `custom_root` differentiates all that it returns: no integers.


def _newton(problem: Quadratic, matrix: Array, project: BatchProjection, labels: Array) -> tuple[Array, Array]:
  """Return one semismooth Newton step on z = P(z - gradient), to be subtracted, and the miss of `labels`."""
  (batch, width), size = labels.shape, labels.size
  moved = labels - problem.gradient(labels)
  # Labels are projected one by one, so K derivatives, each of all labels at once, give all K x K blocks.
  directions = jnp.broadcast_to(jnp.eye(width, dtype=labels.dtype)[:, None], (width, batch, width))
  projected, push = jax.linearize(project, moved)
  blocks = jax.vmap(push, out_axes=2)(directions)  # [m, K, K]
  slope = jnp.einsum("ikl,ij->ikjl", blocks, jnp.eye(batch, dtype=labels.dtype)).reshape(size, size)
  identity = jnp.eye(size, dtype=labels.dtype)
  system = identity - slope @ (identity - matrix)
  step = jnp.linalg.solve(system, (labels - projected).reshape(size))
  step = jnp.where(jnp.all(jnp.isfinite(step)), step, 0.0)
  return step.reshape(labels.shape), jnp.linalg.norm(labels - projected)
