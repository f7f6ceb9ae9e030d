"""Teachers that choose examples: iterative machine teaching (IMT), and mixed teaching, which chooses labels as well.

A batch of m takes the m examples that would each be best alone. For small steps G falls linearly with the gradients, so
that is the best batch; the joint choice is a combinatorial problem.

For linear learners the outputs of the whole pool are the teacher's state: a step on example i moves all of them along
row i of the Gram matrix, which is cheaper than a product of the pool with the weights.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from last_jax import checks, linear, synthesis
from last_jax.base import STATIC, Array, Lesson, Teacher, View
from last_jax.constraints import Constraint
from last_jax.linear import Geometry
from last_jax.problem import Problem
from last_jax.teachers.greedy import GreedyLabels, check_constraint, prepare_geometry

# Largest pool whose Gram matrix is formed: 16 MiB. A larger one does not stay in a cache, and then reading a row takes
# as long as computing the outputs. Forming it takes as long as the outputs of n / 2 steps of one student.
_MAX_TRACKED = 2048
# Tracked outputs are computed from the weights again after this many steps: rounding errors of the student's own
# weights, which tracking does not see, stay those of a few steps.
_RENEW_EVERY = 16


class Cache(NamedTuple):
  """Inner products of a pool, for linear learners."""

  geometry: Geometry
  gram: Array | None  # [n, n] where outputs are tracked.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Selection:
  """The examples of the pool after which the student is nearest to the target.

  Attributes:
    constraint: None: an example is judged with its ground truth (IMT). Otherwise with its best label in the set.
    layer_weights: as for greedy labels.
    chunk_size: number of examples whose gradients are held at once where there is no closed form.
  """

  constraint: Constraint | None = None
  layer_weights: Any = None
  chunk_size: int = dataclasses.field(default=64, metadata=STATIC)

  def __call__(self, view: View, outputs: Array | None, batch: int) -> Array:
    """Select the best `batch` examples, `[m]`; `outputs [n, K]` are the student's where they are tracked."""
    if batch > view.x.shape[0]:
      raise ValueError(f"batch_size={batch} examples cannot be chosen from a pool of {view.x.shape[0]}")
    if view.cache is None or not (self.constraint is None or linear.is_projection(view.learner, self.constraint)):
      return _lowest(self._scores(view), batch)
    scores = _computed_once(view.step, lambda: self._scores_linear(view, outputs))
    return _lowest_index(scores)[None] if batch == 1 else _lowest(scores, batch)

  def _scores_linear(self, view: View, outputs: Array | None) -> Array:
    """Compute eta^2 T1 - 2 eta T2 of equation 1 for the whole pool from its outputs, `[n]`."""
    learner, student, geometry = view.learner, view.student, view.cache.geometry
    outputs = learner.apply(student.params, view.x) if outputs is None else outputs
    labels = view.truth
    if self.constraint is not None:
      labels = linear.closed_form_labels(learner, student, view.x, view.truth, outputs, self.constraint, geometry)
    return linear.scores(learner, student, view.x, outputs, labels, geometry)

  def _scores(self, view: View) -> Array:
    """Compute G after a step on each example, `[n]`, for any learner, a chunk of examples at a time."""
    learner, student = view.learner, view.student

    def score(example: tuple[Array, Array]) -> Array:
      x, label = (value[None] for value in example)
      if self.constraint is not None:
        label, _ = synthesis.greedy_labels(
          learner, student, view.target, x, label, self.constraint, layer_weights=self.layer_weights
        )
      after = learner.step(student, x, label).params
      return synthesis.squared_distance(after, view.target, self.layer_weights)

    return jax.lax.map(score, (view.x, view.truth), batch_size=min(self.chunk_size, view.x.shape[0]))


def _computed_once(step: Array, compute: Callable[[], Array]) -> Array:
  """Keep XLA from fusing a computation into each of its consumers, and so from repeating it.

  On a CPU only a branch does: an optimization barrier is removed before operations are fused.
  """
  shape = jax.eval_shape(compute)
  return jax.lax.cond(step >= 0, compute, lambda: jnp.zeros(shape.shape, shape.dtype))


def _lowest(scores: Array, batch: int) -> Array:
  """Return the indices of the lowest scores, `[m]`. NaN scores sort last."""
  return jax.lax.top_k(-jnp.where(jnp.isnan(scores), jnp.inf, scores), batch)[1]


_COLUMNS = 128


def _lowest_index(scores: Array) -> Array:
  """Return the index of the lowest of `scores [n]`, `[]`: `jnp.argmin` (NaN last), several times as fast on a CPU.

  XLA vectorizes elementwise minima of rows, but not reductions along a row. So the scores are laid out in rows of at
  most 128; the lowest of each column is found first, then the lowest column, then the row.
  """
  size = scores.shape[0]
  rows = -(-size // _COLUMNS)
  columns = -(-size // rows)
  # Integers in the order of the scores, NaN last: a minimum of floats has to propagate NaN.
  whole = jnp.dtype(f"int{8 * scores.dtype.itemsize}")
  most = jnp.iinfo(whole).max
  bits = jax.lax.bitcast_convert_type(scores + 0.0, whole)  # The sum makes -0 and 0 equal.
  ordered = jnp.where(jnp.isnan(scores), most, jnp.where(bits < 0, bits ^ most, bits))
  table = jnp.pad(ordered, (0, rows * columns - size), constant_values=most).reshape(rows, columns)
  lowest = table
  while lowest.shape[0] > 1:
    half = lowest.shape[0] // 2
    lowest = jnp.concatenate([jnp.minimum(lowest[:half], lowest[half : 2 * half]), lowest[2 * half :]])
  column = jnp.min(jnp.where(lowest[0] == jnp.min(lowest), jnp.arange(columns), columns - 1))
  return jnp.minimum(jnp.argmin(table[:, column]) * columns + column, size - 1)


# --- Tracked outputs: the state of these teachers.


def _tracks(layer_weights: Any, problem: Problem) -> bool:
  linear_learner = problem.learner.is_linear and layer_weights is None
  return linear_learner and linear.can_track(problem.learner) and len(problem.pool) <= _MAX_TRACKED


def _init(layer_weights: Any, problem: Problem) -> Array | None:
  """Return outputs of the pool `[n, K]`, to be renewed in the first step; None where they are not tracked."""
  return jnp.zeros_like(problem.truth) if _tracks(layer_weights, problem) else None


def _prepare(layer_weights: Any, problem: Problem) -> Cache | None:
  geometry = prepare_geometry(layer_weights, problem)
  if geometry is None:
    return None
  tracks = _tracks(layer_weights, problem)
  return Cache(geometry, linear.gram(problem.learner, problem.pool.x) if tracks else None)


def _with_outputs(tracked: Array | None, view: View, teach: Callable[[Array | None], Any]) -> Any:
  """Return `teach(outputs)`, with outputs `[n, K]` as tracked or, where it is time, computed again."""
  if tracked is None:
    return teach(None)

  def compute() -> Any:
    return teach(view.learner.apply(view.student.params, view.x))

  if view.reported is True:
    return compute()
  # The whole of `teach` is in both branches: a branch that only returned what is tracked would copy it in every step.
  return jax.lax.cond(view.reported | (view.step % _RENEW_EVERY == 0), compute, lambda: teach(tracked))


def _outputs_after(outputs: Array | None, view: View, lesson: Lesson) -> Array | None:
  if outputs is None or view.reported is True:
    return outputs
  return linear.outputs_after(view.learner, view.student, outputs, view.cache.gram, lesson.index, lesson.label)


# --- The teachers.


def _imt_step(selection: Selection, state: Array | None, view: View, proposal: Array) -> tuple[Lesson, Any, None]:
  def teach(outputs: Array | None) -> tuple[Lesson, Any]:
    index = selection(view, outputs, proposal.shape[0])
    lesson = Lesson(index, view.truth[index])
    return lesson, _outputs_after(outputs, view, lesson)

  return *_with_outputs(state, view, teach), None


def _mixed_step(
  alternating: Selection,
  joint: Selection | None,
  labels: GreedyLabels,
  state: Array | None,
  view: View,
  proposal: Array,
) -> tuple[Lesson, Any, Any]:
  """Choose examples, then their labels. With `joint`, take the better of the two batches: never worse than either."""
  batch = proposal.shape[0]
  geometry = None if view.cache is None else view.cache.geometry

  def distance(lesson: Lesson) -> Array:
    after = view.learner.step(view.student, view.x[lesson.index], lesson.label)
    return synthesis.squared_distance(after.params, view.target, labels.layer_weights)

  def choose(selection: Selection, outputs: Array | None) -> tuple[Lesson, Any]:
    index = selection(view, outputs, batch)
    label, certificate = labels(view, index, geometry)
    return Lesson(index, label), certificate

  def teach(outputs: Array | None) -> tuple[Lesson, Any, Any]:
    if joint is None:
      lesson, certificate = choose(alternating, outputs)
    elif batch == 1:  # One example judged with its best label cannot be beaten.
      lesson, certificate = choose(joint, outputs)
    else:
      one, other = choose(joint, outputs), choose(alternating, outputs)
      better = distance(one[0]) <= distance(other[0])
      lesson, certificate = jax.tree.map(lambda a, b: jnp.where(better, a, b), one, other)
    return lesson, _outputs_after(outputs, view, lesson), certificate

  return _with_outputs(state, view, teach)


def imt(layer_weights: Any = None, chunk_size: int = 64) -> Teacher:
  """Iterative machine teaching: the examples of the pool that are best for the next step, with their ground truth.

  Args:
    layer_weights: as for `greedy`.
    chunk_size: for networks, the number of examples whose gradients are held in memory at once.
  """
  checks.check_count("chunk_size", chunk_size)
  return _teacher("IMT", Partial(_imt_step, Selection(None, layer_weights, chunk_size)), layer_weights)


def mixed(constraint: Constraint, joint: bool = False, layer_weights: Any = None, chunk_size: int = 64) -> Teacher:
  """Mixed teaching: examples and labels.

  Args:
    constraint: the set of labels to choose from.
    joint: False: the paper's alternation, examples as IMT chooses them, then their best labels. True: examples by what
      their best label does, which is never worse in a step.
    layer_weights: as for `greedy`.
    chunk_size: as for `imt`.
  """
  check_constraint(constraint)
  checks.check_count("chunk_size", chunk_size)
  alternating = Selection(None, layer_weights, chunk_size)
  jointly = Selection(constraint, layer_weights, chunk_size) if joint else None
  step = Partial(_mixed_step, alternating, jointly, GreedyLabels(constraint, layer_weights))
  return _teacher(f"{'joint mixed' if joint else 'mixed'} ({constraint.name})", step, layer_weights)


def _teacher(name: str, step: Any, layer_weights: Any) -> Teacher:
  init, prepare = Partial(_init, layer_weights), Partial(_prepare, layer_weights)
  return Teacher(name, init, step, prepare=prepare, needs_target=True)
