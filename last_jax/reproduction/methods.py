"""The methods that several figures compare, each with its family and variant; and how to find them in a list."""

from collections.abc import Iterable

from last_jax import constraints, teachers
from last_jax.constraints import Constraint
from last_jax.reproduction.config import Method
from last_jax.solvers import Descent
from last_jax.tools.styles import Ball, Family, Variant


def sgd() -> Method:
  """Random examples with their true labels."""
  return Method("sgd", teachers.sgd(), "sgd")


def imt() -> Method:
  """The best example of the pool with its true label."""
  return Method("imt", teachers.imt(), "imt")


def greedy(constraint: Constraint, solver: Descent | None = None) -> Method:
  """LAST: random examples with the best labels of the set, or those that a solver finds."""
  teacher = teachers.greedy(constraint, solver=solver)
  return Method(f"greedy:{_labels(constraint, solver)}", teacher, "greedy", _look(constraint, solver))


def mixed(constraint: Constraint, solver: Descent | None = None, *, joint: bool = False) -> Method:
  """Chosen examples with the best labels of the set; with `joint`, both are chosen together."""
  family: Family = "joint_mixed" if joint else "mixed"
  teacher = teachers.mixed(constraint, joint=joint, solver=solver)
  return Method(f"{family}:{_labels(constraint, solver)}", teacher, family, _look(constraint, solver))


def _look(constraint: Constraint, solver: Descent | None) -> Variant:
  return label_set(constraint) if solver is None else "searched"


def _labels(constraint: Constraint, solver: Descent | None) -> str:
  return constraint.name if solver is None else f"{constraint.name}:searched"


def choosing() -> list[Method]:
  """Return LAST and mixed teaching with one-hot, with soft and with any labels."""
  sets = (constraints.one_hot(), constraints.simplex(), constraints.none())
  return [make(each) for make in (greedy, mixed) for each in sets]


def label_set(constraint: Constraint, p: float = 2.0) -> Variant:
  """Return the variant of the methods that choose labels from this set.

  Args:
    constraint: One of `last_jax.constraints`.
    p: The norm of a ball, which a `Constraint` does not record.

  Raises:
    ValueError: a set of the user's own. Its methods have a position in a list as their variant.
  """
  if constraint.radius is not None:
    return Ball(float(constraint.radius), p, constraint.around, constraint.hull)
  if constraint.max_nonzero is not None:
    return constraint.max_nonzero  # A position in the palette.
  if constraint.discrete:
    return "one_hot"
  if constraint.project is None:
    return "none"
  if not constraint.hull:
    raise ValueError(f"constraint must come from last_jax.constraints, but it is {constraint.name!r}: use a number")
  return "simplex"


def select(methods: Iterable[Method], *families: Family, variant: Variant | None = None) -> list[Method]:
  """Return the methods of these families, in their order; with `variant`, only those that have it."""
  return [each for each in methods if each.family in families and variant in (None, each.variant)]
