"""Omniscient greedy LAST, algorithm 1 of the paper: random examples, the best labels for the next step."""

import dataclasses
from typing import Any

import jax

from last_jax import solvers, synthesis, targets
from last_jax.base import Array, Certificate, Teacher, View
from last_jax.constraints import Constraint, check_constraint
from last_jax.linear import Geometry
from last_jax.solvers import Descent
from last_jax.targets import Target
from last_jax.teachers.compose import compose


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GreedyLabels:
  """Equation 1: the labels in the constraint set after which the student is nearest to the target."""

  constraint: Constraint
  toward: Target
  solver: Descent | None = None  # None: exactly.

  def target_of(self, view: View) -> Target:
    """Return the target of this iteration."""
    return self.toward.now(view.learner, view.student, view.problem.target, view.step, view.key)

  def __call__(self, view: View, index: Array, geometry: Geometry | None) -> tuple[Array, Certificate]:
    """Label the examples `index [m]` for one joint step, `[m, K]`; `geometry` is that of the pool."""
    return synthesis.greedy_labels(
      view.learner,
      view.student,
      self.target_of(view),
      view.x[index],
      view.truth[index],
      self.constraint,
      None if geometry is None else Geometry(geometry.target_outputs[index], geometry.squared_norms[index]),
      self.solver,
    )


def _label(labels: GreedyLabels, view: View, index: Array) -> tuple[Array, Certificate]:
  return labels(view, index, view.cache)


def as_target(toward: Any, layer_weights: Any) -> Target:
  """Return what to steer toward: the problem's own parameters unless `toward` is given."""
  if toward is None:
    return targets.params(layer_weights=layer_weights)
  targets.check_target("toward", toward)
  if layer_weights is not None:
    raise ValueError("layer_weights are a setting of the target here: give them to targets.params")
  return toward


def name_of_set(constraint: Constraint, solver: Descent | None) -> str:
  """Return the set of labels and, unless they are exact, how they are found, for names of teachers."""
  return constraint.name if solver is None else f"{constraint.name}, {solver.steps} steps"


def greedy(
  constraint: Constraint, toward: Target | None = None, *, layer_weights: Any = None, solver: Descent | None = None
) -> Teacher:
  """LAST: random examples with the labels that are best for the next step (equation 1).

  Args:
    constraint: the set of labels to choose from.
    toward: what to steer toward, from `targets`; the problem's target parameters unless given.
    layer_weights: the paper's beta, as a prefix of the parameters' tree: {"layer_0": beta, "layer_1": 1.0}.
    solver: how labels are found: exactly unless given; by gradient steps with `solvers.descent(steps, rate)`.
  """
  check_constraint(constraint)
  solvers.check_solver(solver, constraint)
  toward = as_target(toward, layer_weights)
  return compose(
    f"LAST ({name_of_set(constraint, solver)})",
    jax.tree_util.Partial(_label, GreedyLabels(constraint, toward, solver)),
    prepare=jax.tree_util.Partial(type(toward).prepare, toward),
    needs_target=toward.needs_params,
  )
