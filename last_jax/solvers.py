"""Other ways to search for labels than the exact one of `synthesis`, for comparison: gradient steps on the labels.

`teachers.greedy(constraint, solver=solvers.descent(steps=300, rate=0.02))` finds labels as a general optimizer would:
by that many steps, and no nearer to the optimum than they lead.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from last_jax import checks, quadratic
from last_jax.base import STATIC, Array, Certificate
from last_jax.constraints import Constraint
from last_jax.quadratic import Quadratic

Projection = Callable[[Array], Array]  # [m, K] -> [m, K]


def within(project: Projection, labels: Array, slope: Array, rate: Any) -> Array:
  """Return the part of a gradient `[m, K]` at labels of a set that leads within the set, by a step of this length."""
  share = quadratic.safe_divide(jnp.asarray(rate, slope.dtype), jnp.max(jnp.abs(slope)))
  moved = project(labels - share * slope)
  # Exactly the gradient where the projection does nothing: differences would round.
  inside = moved == labels - share * slope
  return jnp.where(inside, slope, quadratic.safe_divide(labels - moved, share))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Descent:
  """Projected gradient steps on the labels, by Adam from the ground truth. Made by `descent`.

  Adam scales every entry by itself, so its steps followed by a projection can come to rest elsewhere than at a minimum
  on the edge of the set. It is therefore given the part of the gradient that leads within the set, (y - P(y - t g)) / t
  with t g of the length of a step: the gradient itself inside, and zero at the minima of the set and nowhere else.

  Attributes:
    steps: number of steps.
    rate: of Adam, a leaf of the pytree. No label moves farther than about `steps * rate` from the truth.
  """

  steps: int = dataclasses.field(metadata=STATIC)
  rate: Array | float

  def __call__(self, gradient: Projection, project: Projection, truth: Array) -> Array:
    """Return labels `[m, K]`.

    Args:
      gradient: of G in the labels, `[m, K] -> [m, K]`.
      project: onto the set of labels, `[m, K] -> [m, K]`.
      truth: `[m, K]`, where the search begins, moved into the set.
    """
    optimizer = optax.adam(self.rate)

    def step(state: tuple[Array, Any], _: None) -> tuple[tuple[Array, Any], None]:
      labels, opt_state = state
      updates, opt_state = optimizer.update(within(project, labels, gradient(labels), self.rate), opt_state)
      moved = project(optax.apply_updates(labels, updates))
      return (jnp.where(jnp.isfinite(moved), moved, labels), opt_state), None

    start = project(truth)
    return jax.lax.scan(step, (start, optimizer.init(start)), length=self.steps)[0][0]


def descent(steps: int = 300, rate: Any = 0.02) -> Descent:
  """Search for labels by gradient steps: Adam on G, the distance after the learner's step, from the ground truth.

  For sets that labels can move in: all but `one_hot` and sparse labels. The certificate's `exact` is False, and its
  residual says what the steps left.

  Args:
    steps: number of steps for each lesson.
    rate: of Adam, a positive number.
  """
  return Descent(checks.check_count("steps", steps), checks.check_positive("rate", rate))


def check_solver(solver: Any, constraint: Constraint) -> None:
  """Raise unless it is None, or a solver that can search the set."""
  if solver is None:
    return
  if not isinstance(solver, Descent):
    raise TypeError(f"solver must be None or come from last_jax.solvers, as descent(), but it is {checks.show(solver)}")
  if constraint.discrete or constraint.max_nonzero is not None:
    raise ValueError(f"solver=descent(...) needs a convex set, as simplex(), but the constraint is {constraint.name!r}")


def search(
  solver: Descent,
  expand_at: Callable[[Array], Quadratic],
  distance: Callable[[Array], Array],
  affine: bool,
  project: Projection,
  truth: Array,
) -> tuple[Array, Certificate]:
  """Return the labels `[m, K]` that a solver finds, with the gradient of G itself: Adam's depends on its size.

  Args:
    expand_at: `labels [m, K]` -> G of the step linearized there.
    distance: `labels [m, K]` -> G, `[]`.
    affine: whether G is a quadratic in the labels, so that one expansion has its gradient everywhere.
  """
  if affine:
    problem = expand_at(truth)

    def gradient(labels: Array) -> Array:
      return 2 * problem.scale * (problem.scale * problem.gradient(labels))

    labels = solver(gradient, project, truth)
  else:
    labels = solver(jax.grad(distance), project, truth)
    problem = expand_at(labels)
  left = quadratic.residual(problem, project, labels)
  return labels, Certificate(residual=left, iterations=jnp.full((), solver.steps), exact=False, road="descent")
