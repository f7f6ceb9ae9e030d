"""Teachers that choose examples: iterative machine teaching (IMT), and mixed teaching, which chooses labels as well.

A batch of m takes the m examples that would each be best alone. For small steps G falls linearly with the gradients, so
that is the best batch; choosing jointly is a combinatorial problem.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from last_jax import checks, linear, synthesis
from last_jax.constraints import Constraint
from last_jax.learners import Learner
from last_jax.linear import Geometry
from last_jax.teachers.base import OmniscientView, Teacher
from last_jax.teachers.fixed import GroundTruth
from last_jax.teachers.greedy import GreedyLabels, check_constraint, prepare_geometry
from last_jax.types import STATIC, Array, Lessons, Params, Student

# (G after one step on each example alone [n], or with a term that is the same for all left out).
Scores = Array

# Up to how many examples the products of all pairs are kept: 16 MiB. Larger pools do not stay in a cache, and then
# reading what is kept takes as long as computing it anew. To compute it once takes as long as the outputs of n / 2
# steps of one student, so that it pays but for the shortest of runs.
_MOST_TRACKED = 2048
# Every so many steps tracked outputs are computed anew, so that rounding does not add up.
_RENEWED_EVERY = 256


class Known(NamedTuple):
  """What is computed once of a pool, for linear learners."""

  geometry: Geometry
  gram: Array | None  # [n, n] where outputs are tracked.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NearestAfterStep:
  """The examples of the pool after which the student is nearest to the target.

  Attributes:
    constraint: None: each example is judged with its ground truth (IMT). Otherwise with its best label in the set.
    layer_weights: as for greedy labels.
    chunk_size: how many examples' gradients are held at once where there is no closed form.
  """

  constraint: Constraint | None = None
  layer_weights: Any = None
  chunk_size: int = dataclasses.field(default=64, metadata=STATIC)
  omniscient = True

  def prepare(self, learner: Learner, x: Array, truth: Array, target: Params) -> Known | None:
    """The pool's geometry, for linear learners."""
    geometry = prepare_geometry(learner, x, target, self.layer_weights)
    if geometry is None:
      return None
    tracked = x.shape[0] <= _MOST_TRACKED and linear.can_track(learner)
    return Known(geometry, linear.gram(learner, x) if tracked else None)

  def begin(self, memory: Known | None, view: OmniscientView) -> Array | None:
    """The student's outputs `[n, K]`, where they are tracked."""
    return None if memory is None or memory.gram is None else view.learner.apply(view.student.params, view.x)

  def follow(self, memory: Known | None, view: OmniscientView, lesson: Lessons, after: Student) -> Array | None:
    """The outputs after the lesson."""
    if memory is None or memory.gram is None or view.kept is None:
      return None
    learner, gram = view.learner, memory.gram
    return jax.lax.cond(
      (view.step + 1) % _RENEWED_EVERY == 0,
      lambda: learner.apply(after.params, view.x),
      lambda: linear.outputs_after(learner, view.student, view.kept, gram, lesson.index, lesson.label),
    )

  def select(self, memory: Known | None, view: OmniscientView, proposal: Array) -> Array:
    """The best examples in place of the proposed, `[m]`."""
    batch = proposal.shape[0]
    if batch > view.x.shape[0]:
      raise ValueError(f"batch_size={batch} examples cannot be chosen from a pool of {view.x.shape[0]}")
    if memory is None or not (self.constraint is None or linear.is_projection(view.learner, self.constraint)):
      return _best(self._scores(view), batch)
    scores = _computed_apart(view.step, lambda: self._scores_linear(memory.geometry, view))
    return _lowest_index(scores)[None] if batch == 1 else _best(scores, batch)

  def _scores_linear(self, geometry: Geometry, view: OmniscientView) -> Scores:
    """eta^2 T1 - 2 eta T2 of equation 1 for the whole pool, from its outputs: one product of the pool with the weights,
    or none where they are tracked."""
    learner, student = view.learner, view.student
    outputs = learner.apply(student.params, view.x) if view.kept is None else view.kept
    labels = view.truth
    if self.constraint is not None:
      labels = linear.closed_form_labels(learner, student, view.x, view.truth, outputs, self.constraint, geometry)
    return linear.scores(learner, student, view.x, outputs, labels, geometry)

  def _scores(self, view: OmniscientView) -> Scores:
    """G for any learner, a chunk of examples at a time: all their gradients at once may not fit into memory."""
    learner, student = view.learner, view.student

    def score(example: tuple[Array, Array]) -> Array:
      x, label = (value[None] for value in example)
      if self.constraint is not None:
        label = synthesis.greedy_labels(
          learner, student, view.target, x, label, self.constraint, layer_weights=self.layer_weights
        )
      after = learner.step(student, x, label).params
      return synthesis.squared_distance(after, view.target, self.layer_weights)

    return jax.lax.map(score, (view.x, view.truth), batch_size=min(self.chunk_size, view.x.shape[0]))


def _computed_apart(step: Array, compute: Callable[[], Array]) -> Array:
  """The same, computed once: XLA would fuse it into all that looks at it, and so compute it several times.

  Nothing but a branch stops it on a CPU; an optimization barrier is taken out before operations are fused.
  """
  shape = jax.eval_shape(compute)
  return jax.lax.cond(step >= 0, compute, lambda: jnp.zeros(shape.shape, shape.dtype))


def _best(scores: Scores, batch: int) -> Array:
  """Where scores are lowest, `[m]`. Rather any example than one whose score is not a number."""
  return jax.lax.top_k(-jnp.where(jnp.isnan(scores), jnp.inf, scores), batch)[1]


_COLUMNS = 128


def _lowest_index(scores: Scores) -> Array:
  """Where `scores [n]` are lowest, `[]`: as `jnp.argmin` but for ties and NaN, and several times as fast on a CPU.

  XLA vectorizes operations on rows that lie side by side, but not reductions of rows. So the scores are laid out in
  rows of at most 128, the lowest of each column is found first, then the lowest column, then the place in it.
  """
  size = scores.shape[0]
  rows = -(-size // _COLUMNS)
  columns = -(-size // rows)
  # In whole numbers that are ordered as the scores are, NaN last: a minimum of floats has to look out for NaN.
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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class BetterBatch:
  """Of two selections, the one whose batch, with greedy labels, brings the student nearer: never worse than either."""

  selections: tuple[NearestAfterStep, NearestAfterStep]
  labels: GreedyLabels
  omniscient = True

  def prepare(self, learner: Learner, x: Array, truth: Array, target: Params) -> tuple[Any, Any]:
    """What the parts prepare: both selections look at the pool in the same way."""
    return (
      self.selections[0].prepare(learner, x, truth, target),
      self.labels.prepare(learner, x, truth, target),
    )

  def begin(self, memory: tuple[Any, Any], view: OmniscientView) -> Array | None:
    """What both selections keep."""
    return self.selections[0].begin(memory[0], view)

  def follow(self, memory: tuple[Any, Any], view: OmniscientView, lesson: Lessons, after: Student) -> Array | None:
    """Likewise."""
    return self.selections[0].follow(memory[0], view, lesson, after)

  def select(self, memory: tuple[Any, Any], view: OmniscientView, proposal: Array) -> Array:
    """Indices of the better batch, `[m]`."""
    first, second = (selection.select(memory[0], view, proposal) for selection in self.selections)
    if proposal.shape[0] == 1:  # One example judged with its best label cannot be beaten.
      return second

    def distance(index: Array) -> Array:
      after = view.learner.step(view.student, view.x[index], self.labels.label(memory[1], view, index))
      return synthesis.squared_distance(after.params, view.target, self.labels.layer_weights)

    return jnp.where(distance(second) <= distance(first), second, first)


def imt(layer_weights: Any = None, chunk_size: int = 64) -> Teacher:
  """Iterative machine teaching: the examples of the pool that are best for the next step, with their ground truth.

  Args:
    layer_weights: as for `greedy`.
    chunk_size: for networks, how many examples' gradients are held in memory at once.
  """
  checks.check_count("chunk_size", chunk_size)
  return Teacher("IMT", NearestAfterStep(None, layer_weights, chunk_size), GroundTruth())


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
  labels = GreedyLabels(constraint, layer_weights)
  alternating = NearestAfterStep(None, layer_weights, chunk_size)
  if not joint:
    return Teacher(f"mixed ({constraint.name})", alternating, labels)
  jointly = BetterBatch((alternating, NearestAfterStep(constraint, layer_weights, chunk_size)), labels)
  return Teacher(f"joint mixed ({constraint.name})", jointly, labels)
