"""The planner: labels of several steps at once, generalized iterative teaching GIT(m, v) of the paper's section 5.2.

Greedy labels are the best for the next step. The planner knows the examples of the next v steps as well, and chooses
all of their labels for where the student is at the end:

    argmin over y¹ .. yᵛ of  ||w^{t+v} - w*||^2         or of another distance: see `targets`

It plans in blocks of v steps. It has no state: in the middle of a block the rest of the block is planned again, which
by the principle of optimality gives the same labels. (Not toward a validation loss, `targets.loss`, whose damping, and
whose minibatch, are those of the step in which it is planned.)
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import argmin, checks, losses, models, synthesis, targets
from last_jax.base import STATIC, Array, Certificate, Params, Student, Teacher, View
from last_jax.constraints import Constraint, check_constraint
from last_jax.learners import Learner
from last_jax.problem import Problem
from last_jax.proposals import propose
from last_jax.quadratic import Quadratic
from last_jax.targets import Target
from last_jax.teachers.compose import compose
from last_jax.teachers.greedy import as_target

_FORMED = (
  2**26
)  # Entries of the derivative of a block's end in its labels, up to which it is formed: 256 MiB in float32.
_TRIED_AT_ONCE = 256  # Sequences of one-hot labels: each is a student of its own.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PlannedLabels:
  """The labels in the constraint set that bring the student nearest to the target at the end of the block."""

  constraint: Constraint
  toward: Target
  horizon: int = dataclasses.field(metadata=STATIC)

  def __call__(self, view: View, index: Array) -> tuple[Array, Certificate]:
    """Return the first labels of the plan, `[m, K]`."""
    learner, constraint, batch = view.learner, self.constraint, index.shape[0]
    # The last step of the block is the one whose target counts.
    last = view.step + self.horizon - 1 - view.step % self.horizon
    target = self.toward.now(learner, view.student, view.problem.target, last, view.key)
    if self.horizon == 1:
      return synthesis.greedy_labels(learner, view.student, target, view.x[index], view.truth[index], constraint)
    ahead = jnp.arange(self.horizon)
    proposals = propose(view.proposal_key, view.step, self.horizon, batch, view.x.shape[0])  # [v, m]
    proposals = jnp.concatenate([index[None], proposals[1:]])
    inside = view.step % self.horizon + ahead < self.horizon  # Steps after the block do not count.
    shape = view.truth.shape[1:]  # (K,), or (T, K) with a label for each token, which are rows of their own here.
    truth = losses.rows(view.truth[proposals.ravel()])  # [v m T, K]

    def end_of_block(labels: Array) -> Any:
      """Return what the target measures after labels `[v m T, K]`."""

      def one_step(student: Student, given: tuple[Array, Array, Array]) -> tuple[Student, None]:
        index, label, counts = given
        after = learner.step(student, view.x[index], label)
        return jax.tree.map(lambda new, old: jnp.where(counts, new, old), after, student), None

      steps = (proposals, labels.reshape(self.horizon, batch, *shape), inside)
      student, _ = jax.lax.scan(one_step, view.student, steps)
      return target.measure(learner, student)

    affine = _is_affine(learner, view.student.params)
    labels, certificate = self._plan(learner, target, end_of_block, affine, truth)
    return labels.reshape(-1, *shape)[:batch], certificate

  def _plan(
    self, learner: Learner, target: Target, end_of_block: Callable[[Array], Any], affine: bool, truth: Array
  ) -> tuple[Array, Certificate]:
    """Return the best labels of the block, `[v m, K]`."""
    basis = jnp.eye(truth.size, dtype=truth.dtype).reshape(truth.size, *truth.shape)

    def expand_at(labels: Array) -> Quadratic:
      after, push = jax.linearize(end_of_block, labels)
      local = target.local(learner, after)
      if not self._needs_matrix(truth) and truth.size * sum(leaf.size for leaf in jax.tree.leaves(after)) > _FORMED:
        return _by_products(labels, push, local)
      matrix, slope = targets.along(local, jax.vmap(push)(basis))
      return Quadratic(labels, matrix.reshape(*truth.shape, *truth.shape), slope.reshape(truth.shape))

    def distance(labels: Array) -> Array:
      return target.value(learner, end_of_block(labels))

    count, width = truth.shape
    if self.constraint.discrete and self.constraint.is_exact(count, width):
      labels = _best_of_all(learner.loss, distance, truth)
      return labels, Certificate(jnp.zeros((), truth.dtype), jnp.zeros((), int), exact=True, road="enumeration")
    if affine and not self.constraint.discrete:
      labels, _ = argmin.best_labels(learner.loss, self.constraint, expand_at(truth), truth, truth)
      # Once more from there, to regain what the quadratic has lost to rounding.
      return argmin.best_labels(learner.loss, self.constraint, expand_at(labels), truth, truth)
    return synthesis.labels_numerically(learner, self.constraint, expand_at, distance, truth, truth)

  def _needs_matrix(self, truth: Array) -> bool:
    return self.constraint.discrete or self.constraint.is_sparse(truth.shape[1])


def _by_products(labels: Array, push: Callable[[Array], Any], local: targets.Local) -> Quadratic:
  """Return G around `labels [v m, K]` with a product in place of its matrix: through the block's steps and back.

  Args:
    labels: of the block.
    push: the derivative of what the target measures at its end.
    local: G near what it measures.
  """
  pull = jax.linear_transpose(push, labels)

  def multiply(direction: Array) -> Array:
    image, back = jax.vjp(local.root, push(direction))
    return pull(back(image)[0])[0]

  return Quadratic(labels, multiply, pull(local.slope)[0])


def _is_affine(learner: Learner, params: Params) -> bool:
  """Whether the parameters after several steps are affine in all of their labels."""
  # For squared error the validation loss, too, is a quadratic.
  squares = isinstance(learner.model, models.Linear) and learner.loss == losses.squared_error
  return squares and learner.optimizer.is_affine(params)


def _best_of_all(loss: losses.Loss, distance: Callable[[Array], Array], truth: Array) -> Array:
  """Try every sequence of class labels on the student and return the best, `[v m, K]`."""
  class_labels = loss.class_labels_like(truth)
  sequences = np.array(list(itertools.product(range(len(class_labels)), repeat=truth.shape[0])))  # [C^(v m), v m]
  at_once = min(_TRIED_AT_ONCE, len(sequences))
  distances = jax.lax.map(lambda tried: distance(class_labels[tried]), jnp.asarray(sequences), batch_size=at_once)
  # Among equals the sequence with most labels at the ground truth: labels without effect stay as they are.
  unchanged = jnp.sum(jnp.all(class_labels[sequences] == loss.nearest_class_labels(truth)[None], -1), 1)
  return class_labels[jnp.asarray(sequences)[jnp.argmax(jnp.where(distances <= jnp.min(distances), unchanged, -1))]]


def planner(horizon: int, constraint: Constraint, toward: Target | None = None) -> Teacher:
  """Random examples with the labels that are best for where the student is after every `horizon` steps.

  The plan is a global optimum where the steps are affine in the labels (least squares), and with one-hot labels while
  all C^(horizon m) sequences can be tried (`constraint.max_combinations`). Otherwise it is a local optimum, found by
  Gauss-Newton from the ground truth; one-hot sequences too many to try are chosen for steps linearized there.

  Args:
    horizon: v, the number of steps planned at once; 1 is greedy.
    constraint: the set of labels to choose from. It may not be a ball around the prediction, which in later
      steps depends on earlier labels.
    toward: what to steer toward, from `targets`; the problem's target parameters unless given.
  """
  horizon = checks.check_count("horizon", horizon)
  check_constraint(constraint)
  if constraint.around == "prediction":
    raise ValueError(
      f"constraint {constraint.name!r} is around the prediction, which later in a plan depends on earlier labels: "
      "use around='truth'"
    )
  toward = as_target(toward, None)
  return compose(
    f"planner ({constraint.name})",
    PlannedLabels(constraint, toward, horizon),
    prepare=jax.tree_util.Partial(_check_target, toward),
    needs_target=toward.needs_params,
  )


def _check_target(toward: Target, problem: Problem) -> None:
  toward.prepare(problem)
