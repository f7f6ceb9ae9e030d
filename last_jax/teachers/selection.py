"""Teachers that choose examples: iterative machine teaching (IMT), and mixed teaching, which chooses labels as well.

A batch of m takes the m examples that would each be best alone. For small steps G falls linearly with the gradients, so
that is the best batch; choosing jointly is a combinatorial problem.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from last_jax import checks, linear, synthesis
from last_jax.constraints import Constraint
from last_jax.learners import Learner
from last_jax.linear import Geometry
from last_jax.teachers.base import OmniscientView, Teacher
from last_jax.teachers.fixed import GroundTruth
from last_jax.teachers.greedy import GreedyLabels, check_constraint, prepare_geometry
from last_jax.types import STATIC, Array, Params

# (G after one step on each example alone [n], or with a term that is the same for all left out).
Scores = Array


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

  def prepare(self, learner: Learner, x: Array, truth: Array, target: Params) -> Geometry | None:
    """The pool's geometry, for linear learners."""
    return prepare_geometry(learner, x, target, self.layer_weights)

  def select(self, memory: Geometry | None, view: OmniscientView, proposal: Array) -> Array:
    """The best examples in place of the proposed, `[m]`."""
    batch = proposal.shape[0]
    if batch > view.x.shape[0]:
      raise ValueError(f"batch_size={batch} examples cannot be chosen from a pool of {view.x.shape[0]}")
    if memory is not None and (self.constraint is None or linear.is_projection(view.learner, self.constraint)):
      scores = self._scores_linear(memory, view)
    else:
      scores = self._scores(view)
    # Rather any example than one whose score is not a number.
    scores = jnp.where(jnp.isnan(scores), jnp.inf, scores)
    return _first_lowest(scores)[None] if batch == 1 else jax.lax.top_k(-scores, batch)[1]

  def _scores_linear(self, memory: Geometry, view: OmniscientView) -> Scores:
    """eta^2 T1 - 2 eta T2 of equation 1 for the whole pool, from one product of the pool with the weights."""
    learner, student = view.learner, view.student
    outputs = learner.apply(student.params, view.x)
    labels = view.truth
    if self.constraint is not None:
      labels = linear.closed_form_labels(learner, student, view.x, view.truth, outputs, self.constraint, memory)
    return linear.scores(learner, student, view.x, outputs, labels, memory)

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


def _first_lowest(scores: Array) -> Array:
  """As `jnp.argmin`, several times as fast on a CPU: XLA vectorizes operations on halves, but not reductions of rows.

  In whole numbers that are ordered as the scores are, because a minimum of floats has to look out for NaN.
  """
  whole = jnp.dtype(f"int{8 * scores.dtype.itemsize}")
  bits = jax.lax.bitcast_convert_type(scores + 0.0, whole)  # The sum makes -0 and 0 equal.
  # Kept apart from what comes before, or the scores would be computed once for each of the two passes.
  ordered = jax.lax.optimization_barrier(jnp.where(bits < 0, bits ^ jnp.iinfo(whole).max, bits))
  size = scores.shape[0]
  return _lowest(jnp.where(ordered == _lowest(ordered), jnp.arange(size), size - 1))


def _lowest(values: Array) -> Array:
  while values.shape[0] > 64 and values.shape[0] % 2 == 0:
    values = jnp.minimum(*jnp.split(values, 2))
  return jnp.min(values)


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
