"""The best sparse labels: a convex quadratic over mixtures of at most k of K classes, a set that is not convex.

Once each label's classes (its support) are chosen, what is left is convex, and has k numbers per label instead of K.
All C(K, k)^m choices are tried while there are few. Beyond, local search: supports follow from gradient steps of
several lengths (iterative hard thresholding) from several starts, each support is solved exactly, the best is kept.

Local optima are certified by the relaxation, the quadratic over the whole simplex. From any labels y of the simplex

    G(y) + sum over labels i of  min over classes c of ⟨∇G(y)_i, e_c - y_i⟩   <=   G   everywhere on the simplex

since G is convex: a lower bound however well the relaxation was solved, and tight at its minimum.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import projected, simplices
from last_jax import quadratic as quadratics
from last_jax.base import Array, Certificate
from last_jax.quadratic import BatchProjection, Quadratic, safe_divide

_STEPS = (0.05, 1.0, 4.0, 16.0, 64.0)  # Lengths of gradient steps from which supports are read, in 1 / curvature.
_MAX_SWEEPS = 30
_ENTRIES = 2**20  # Of the matrices of all supports that are solved at once.


def minimise(
  problem: Quadratic,
  project: BatchProjection,
  relaxed: BatchProjection,
  max_nonzero: int,
  max_combinations: int,
  truth: Array,
) -> tuple[Array, Certificate]:
  """Return the best labels with at most `max_nonzero` positive entries, `[m, K]`.

  The certificate's residual is that of the convex problem on the supports that were chosen.

  Args:
    problem: the quadratic.
    project: onto the sparse labels.
    relaxed: onto the simplex.
    max_nonzero: k, at least 2 and less than K.
    max_combinations: the largest number of choices of supports that are enumerated.
    truth: `[m, K]`, what the gap is relative to.
  """
  quadratics.check(problem)
  batch, width = problem.at.shape
  fixed = jax.lax.stop_gradient(problem)  # Supports have no derivative.
  start = project(problem.at)
  first = jax.lax.stop_gradient(start)
  if math.comb(width, max_nonzero) ** batch <= max_combinations:
    support = _enumerate(fixed, first, max_nonzero)
    sweeps, gap, road = jnp.zeros((), int), None, "enumeration of supports"
  else:
    relaxation, _ = projected.minimise(fixed, relaxed)
    support, sweeps = _search(fixed, jnp.stack([first, project(relaxation)]), max_nonzero)
    road = "sparse, local"
  labels = _solve_on(problem, support)
  # False, too, where a label is not a number.
  better = problem.scaled_change(labels) < problem.scaled_change(start)
  labels = jnp.where(better, labels, start)
  support = jnp.where(better, support, _largest(first, max_nonzero))
  left = quadratics.residual(_restrict(fixed, support), _project_each, _take(jax.lax.stop_gradient(labels), support))
  if road == "sparse, local":
    corners = jnp.eye(width, dtype=labels.dtype)
    gap = _gap(fixed, relaxation, corners, jax.lax.stop_gradient(labels), project(truth))
  return labels, Certificate(left, sweeps, exact=gap is None, road=road, gap=gap)


# --- The gap.


def relative_gap(
  problem: Quadratic, relaxed: BatchProjection, class_labels: Array, labels: Array, reference: Array
) -> Array:
  """Return `Certificate.gap` of labels that are mixtures of the classes: `[]`.

  Args:
    problem: the quadratic.
    relaxed: the projection onto all mixtures.
    class_labels: `[C, K]`.
    labels: `[m, K]`.
    reference: `[m, K]`, the ground truth or the like.
  """
  problem, labels, reference = jax.lax.stop_gradient((problem, labels, reference))
  relaxation, _ = projected.minimise(problem, relaxed)
  return _gap(problem, relaxation, class_labels, labels, reference)


def _gap(problem: Quadratic, relaxation: Array, class_labels: Array, labels: Array, reference: Array) -> Array:
  slope = 2 * problem.gradient(relaxation)
  toward = jnp.min(slope @ class_labels.T, 1) - jnp.sum(slope * relaxation, 1)
  bound = problem.scaled_change(relaxation) + jnp.sum(jnp.minimum(toward, 0.0))
  missed = problem.scaled_change(labels) - bound
  return jnp.clip(safe_divide(missed, problem.scaled_change(reference) - bound), 0.0, 1.0)


# --- The convex problem on given supports.


def _restrict(problem: Quadratic, support: Array) -> Quadratic:
  """Return the quadratic in the entries of `support [m, k]` alone, all others being zero."""
  rows = jnp.arange(support.shape[0])[:, None]
  at = _take(problem.at, support)
  outside = problem.at.at[rows, support].set(0.0)
  linear = _take(problem.linear - problem.product(outside), support)
  matrix = problem.matrix[rows[..., None, None], support[..., None, None], rows[None, None], support[None, None]]
  return Quadratic(at, matrix, linear)


def _take(labels: Array, support: Array) -> Array:
  return jnp.take_along_axis(labels, support, 1)


def _project_each(labels: Array) -> Array:
  return jax.vmap(simplices.project)(labels)


def _solve_on(problem: Quadratic, support: Array) -> Array:
  """Return the best labels `[m, K]` whose entries outside of `support [m, k]` are zero."""
  best, _ = projected.minimise(_restrict(problem, support), _project_each)
  return jnp.zeros_like(problem.at).at[jnp.arange(support.shape[0])[:, None], support].set(best)


def _largest(values: Array, max_nonzero: int) -> Array:
  return jax.lax.top_k(values, max_nonzero)[1]


# --- Choosing supports.


def _enumerate(problem: Quadratic, start: Array, max_nonzero: int) -> Array:
  """Return the best of all supports, `[m, k]`."""
  batch, width = problem.at.shape
  choices = np.array(list(itertools.combinations(range(width), max_nonzero)))
  supports = jnp.asarray(choices[np.array(list(itertools.product(range(len(choices)), repeat=batch)))])  # [., m, k]

  def judge(support: Array) -> tuple[Array, Array]:
    labels = _solve_on(problem, support)
    return problem.scaled_change(labels), jnp.sum((labels - start) ** 2)

  at_once = max(1, min(len(supports), _ENTRIES // (batch * max_nonzero) ** 2))
  changes, moved = jax.lax.map(judge, supports, batch_size=at_once)
  changes = jnp.where(jnp.isnan(changes), jnp.inf, changes)
  least = jnp.min(changes)
  # Among equals those nearest to the start, so that x = 0 changes no label.
  equal = changes <= least + 16 * jnp.finfo(changes.dtype).eps * jnp.abs(least)
  return supports[jnp.argmin(jnp.where(equal, moved, jnp.inf))]


def _search(problem: Quadratic, starts: Array, max_nonzero: int) -> tuple[Array, Array]:
  """Return the supports `[m, k]` of the best local optimum found from `starts [s, m, K]`, and the sweeps `[]`."""
  curvature = quadratics.largest_curvature(problem)
  lengths = jnp.asarray((0.0, *_STEPS), starts.dtype)[:, None, None]

  def sweep(state: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
    labels, support, change, _ = state
    step = safe_divide(problem.gradient(labels), curvature)
    supports = _largest(labels[None] - lengths * step[None], max_nonzero)  # [lengths, m, k]
    found = jax.vmap(lambda support: _solve_on(problem, support))(supports)
    changes = jax.vmap(problem.scaled_change)(found)
    best = jnp.argmin(jnp.where(jnp.isnan(changes), jnp.inf, changes))
    lower = changes[best] < change - 16 * jnp.finfo(change.dtype).eps * jnp.abs(change)
    new, old = (found[best], supports[best], changes[best]), (labels, support, change)
    labels, support, change = jax.tree.map(lambda a, b: jnp.where(lower, a, b), new, old)
    return labels, support, change, lower

  def descend(start: Array) -> tuple[Array, Array, Array]:
    def more(state: tuple[tuple[Array, ...], Array]) -> Array:
      return state[0][-1] & (state[1] < _MAX_SWEEPS)

    first = (start, _largest(start, max_nonzero), problem.scaled_change(start), jnp.array(True))
    (_, support, change, _), sweeps = jax.lax.while_loop(
      more, lambda state: (sweep(state[0]), state[1] + 1), (first, jnp.zeros((), int))
    )
    return support, change, sweeps

  supports, changes, sweeps = jax.vmap(descend)(starts)
  # The first of equals: that from the ground truth.
  return supports[jnp.argmin(jnp.where(jnp.isnan(changes), jnp.inf, changes))], jnp.sum(sweeps)
