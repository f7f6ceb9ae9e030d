"""The planner: labels of several steps at once, generalized iterative teaching GIT(m, v) of the paper's section 5.2.

Greedy labels are the best for the next step. The planner knows the examples of the next v steps as well, and chooses
all of their labels for where the student is at the end:

    argmin over y¹ .. yᵛ of  ||w^{t+v} - w*||^2

It plans in blocks of v steps. Nothing is remembered between steps: in the middle of a block the rest of the block is
planned again, which by the principle of optimality gives the same labels.
"""

import dataclasses
import itertools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from last_jax import checks, losses, models, synthesis
from last_jax.constraints import Constraint
from last_jax.learners import Learner
from last_jax.proposals import propose
from last_jax.quadratic import Quadratic
from last_jax.teachers.base import OmniscientView, Teacher, Uniform
from last_jax.teachers.greedy import check_constraint
from last_jax.types import STATIC, Array, Params, Student

_TRIED_AT_ONCE = 256  # Sequences of one-hot labels: each is a student of its own.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PlannedLabels:
  """The labels in the constraint set that bring the student nearest to the target at the end of the block."""

  constraint: Constraint
  horizon: int = dataclasses.field(metadata=STATIC)
  omniscient = True

  def prepare(self, learner: Learner, x: Array, truth: Array, target: Params) -> None:
    """Nothing to prepare."""

  def label(self, memory: None, view: OmniscientView, index: Array) -> Array:
    """The first labels of the plan, `[m, K]`."""
    learner, constraint, batch = view.learner, self.constraint, index.shape[0]
    if self.horizon == 1:
      x, truth = view.x[index], view.truth[index]
      return synthesis.greedy_labels(learner, view.student, view.target, x, truth, constraint)
    if view.proposal_key is None:
      raise ValueError("view.proposal_key is missing: the planner looks ahead at the examples of the next steps")
    ahead = jnp.arange(self.horizon)
    proposals = propose(view.proposal_key, view.step + ahead, batch, view.x.shape[0])  # [v, m]
    proposals = jnp.concatenate([index[None], proposals[1:]])
    inside = view.step % self.horizon + ahead < self.horizon  # Steps after the block do not count.
    truth = view.truth[proposals.ravel()]  # [v m, K]

    def end_of_block(labels: Array) -> Array:
      """The parameters `[P]` after labels `[v m, K]`."""

      def one_step(student: Student, given: tuple[Array, Array, Array]) -> tuple[Student, None]:
        index, label, counts = given
        after = learner.step(student, view.x[index], label)
        return jax.tree.map(lambda new, old: jnp.where(counts, new, old), after, student), None

      steps = (proposals, labels.reshape(self.horizon, batch, -1), inside)
      return ravel_pytree(jax.lax.scan(one_step, view.student, steps)[0].params)[0]

    return self._plan(learner, end_of_block, view.target, truth)[:batch]

  def _plan(self, learner: Learner, end_of_block: Callable[[Array], Array], target: Params, truth: Array) -> Array:
    """The best labels of the block, `[v m, K]`."""
    goal = ravel_pytree(target)[0]
    basis = jnp.eye(truth.size, dtype=truth.dtype).reshape(truth.size, *truth.shape)

    def expand_at(labels: Array) -> Quadratic:
      after, push = jax.linearize(end_of_block, labels)
      columns = jax.vmap(push)(basis)  # [v m K, P]
      matrix = (columns @ columns.T).reshape(*truth.shape, *truth.shape)
      return Quadratic(labels, matrix, (columns @ (after - goal)).reshape(truth.shape))

    def distance(labels: Array) -> Array:
      return jnp.sum((end_of_block(labels) - goal) ** 2)

    count, width = truth.shape
    if self.constraint.discrete and self.constraint.is_exact(count, width):
      return _best_of_all(learner.loss, distance, truth)
    if _is_affine(learner, target) and not self.constraint.discrete:
      labels = synthesis.best_labels(learner.loss, self.constraint, expand_at(truth), truth, truth)
      # Once more from there: what the quadratic has lost to rounding is regained.
      return synthesis.best_labels(learner.loss, self.constraint, expand_at(labels), truth, truth)
    return synthesis.labels_numerically(learner, self.constraint, expand_at, distance, truth, truth)


def _is_affine(learner: Learner, params: Params) -> bool:
  """Whether the parameters after several steps are affine in all of their labels."""
  squares = isinstance(learner.model, models.Linear) and learner.loss == losses.squared_error
  return squares and learner.optimizer.is_affine(params)


def _best_of_all(loss: losses.Loss, distance: Callable[[Array], Array], truth: Array) -> Array:
  """Of all sequences of class labels the best, `[v m, K]`, found by trying every one on the student."""
  class_labels = loss.class_labels_like(truth)
  sequences = np.array(list(itertools.product(range(len(class_labels)), repeat=truth.shape[0])))  # [C^(v m), v m]
  at_once = min(_TRIED_AT_ONCE, len(sequences))
  distances = jax.lax.map(lambda tried: distance(class_labels[tried]), jnp.asarray(sequences), batch_size=at_once)
  # Among equals the sequence with most labels at the ground truth: labels without effect stay as they are.
  kept = jnp.sum(jnp.all(class_labels[sequences] == loss.nearest_class_labels(truth)[None], -1), 1)
  return class_labels[jnp.asarray(sequences)[jnp.argmax(jnp.where(distances <= jnp.min(distances), kept, -1))]]


def planner(horizon: int, constraint: Constraint) -> Teacher:
  """Labels that are the best for where the student is after every `horizon` steps; examples are random.

  Where the steps are affine in the labels (least squares), the plan is the best there is; with one-hot labels it is
  while all C^(horizon m) sequences can be tried (`constraint.max_combinations`), for every learner. Otherwise it is
  found by Gauss-Newton from the ground truth, and is a local optimum; and sequences of one-hot labels that are too many
  to try are chosen for steps linearized at the ground truth.

  Args:
    horizon: v, how many steps are planned at once; 1 is greedy.
    constraint: the set of labels to choose from. It may not be a ball around the prediction: what is predicted later
      depends on what is taught now.
  """
  checks.check_count("horizon", horizon)
  check_constraint(constraint)
  if constraint.around == "prediction":
    raise ValueError(
      f"constraint {constraint.name!r} is around the prediction, which later in a plan depends on earlier labels: "
      "use around='truth'"
    )
  return Teacher(f"planner ({constraint.name})", Uniform(), PlannedLabels(constraint, int(horizon)))
