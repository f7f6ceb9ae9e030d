"""Omniscient greedy LAST, algorithm 1 of the paper: random examples, the best labels for the next step."""

import dataclasses
from typing import Any

import jax

from last_jax import checks, linear, synthesis
from last_jax.base import Array, Certificate, Teacher, View
from last_jax.constraints import Constraint
from last_jax.linear import Geometry
from last_jax.problem import Problem
from last_jax.teachers.compose import compose


def prepare_geometry(layer_weights: Any, problem: Problem) -> Geometry | None:
  """Compute the inner products of the pool that closed forms need; None where closed forms do not apply."""
  checks.check_layer_weights(layer_weights, problem.target)
  if not problem.learner.is_linear or layer_weights is not None:
    return None
  return linear.geometry(problem.learner, problem.target, problem.pool.x)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GreedyLabels:
  """Equation 1: the labels in the constraint set that bring the student nearest to the target."""

  constraint: Constraint
  layer_weights: Any = None

  def __call__(self, view: View, index: Array, geometry: Geometry | None) -> tuple[Array, Certificate]:
    """Label the examples `index [m]` for one joint step, `[m, K]`; `geometry` is that of the pool."""
    return synthesis.greedy_labels(
      view.learner,
      view.student,
      view.target,
      view.x[index],
      view.truth[index],
      self.constraint,
      layer_weights=self.layer_weights,
      known=None if geometry is None else Geometry(geometry.target_outputs[index], geometry.squared_norms[index]),
    )


def _label(labels: GreedyLabels, view: View, index: Array) -> tuple[Array, Certificate]:
  return labels(view, index, view.cache)


def check_constraint(constraint: Any) -> None:
  """Raise unless it is a Constraint."""
  if not isinstance(constraint, Constraint):
    raise TypeError(f"constraint must come from last_jax.constraints, as simplex(), but it is {constraint!r}")


def greedy(constraint: Constraint, layer_weights: Any = None) -> Teacher:
  """LAST: random examples with the labels of equation 1.

  Args:
    constraint: the set of labels to choose from.
    layer_weights: the paper's beta, as a prefix of the parameters' tree: {"layer_0": beta, "layer_1": 1.0}.
  """
  check_constraint(constraint)
  return compose(
    f"LAST ({constraint.name})",
    jax.tree_util.Partial(_label, GreedyLabels(constraint, layer_weights)),
    prepare=jax.tree_util.Partial(prepare_geometry, layer_weights),
    needs_target=True,
  )
