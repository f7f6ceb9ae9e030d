"""Omniscient greedy LAST, algorithm 1 of the paper: random examples, the best labels for the next step."""

import dataclasses
from typing import Any

import jax

from last_jax import checks, linear, synthesis
from last_jax.constraints import Constraint
from last_jax.learners import Learner
from last_jax.linear import Geometry
from last_jax.teachers.base import OmniscientView, Teacher, Uniform
from last_jax.types import Array, Params


def prepare_geometry(learner: Learner, x: Array, target: Params, layer_weights: Any) -> Geometry | None:
  """What closed forms need of the whole pool, where they apply."""
  checks.check_layer_weights(layer_weights, target)
  return linear.geometry(learner, target, x) if learner.is_linear and layer_weights is None else None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GreedyLabels:
  """Equation 1: the labels in the constraint set that bring the student nearest to the target."""

  constraint: Constraint
  layer_weights: Any = None
  omniscient = True

  def prepare(self, learner: Learner, x: Array, truth: Array, target: Params) -> Geometry | None:
    """The pool's geometry, for linear learners."""
    return prepare_geometry(learner, x, target, self.layer_weights)

  def label(self, memory: Geometry | None, view: OmniscientView, index: Array) -> Array:
    """The labels of one joint step, `[m, K]`."""
    return synthesis.greedy_labels(
      view.learner,
      view.student,
      view.target,
      view.x[index],
      view.truth[index],
      self.constraint,
      layer_weights=self.layer_weights,
      known=None if memory is None else Geometry(memory.target_outputs[index], memory.squared_norms[index]),
    )


def check_constraint(constraint: Any) -> None:
  """Raises unless it is a Constraint."""
  if not isinstance(constraint, Constraint):
    raise TypeError(f"constraint must come from last_jax.constraints, as simplex(), but it is {constraint!r}")


def greedy(constraint: Constraint, layer_weights: Any = None) -> Teacher:
  """LAST: labels by equation 1, for random examples.

  Args:
    constraint: the set of labels to choose from.
    layer_weights: the paper's beta, as a prefix of the parameters' tree: {"layer_0": beta, "layer_1": 1.0}.
  """
  check_constraint(constraint)
  return Teacher(f"LAST ({constraint.name})", Uniform(), GreedyLabels(constraint, layer_weights))
