"""Targets in the space of the parameters: one point, or a trajectory."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from last_jax import checks, distances, linear
from last_jax.base import STATIC, Array, Key, Params, Student
from last_jax.kernels import factored_gradients
from last_jax.learners import Learner
from last_jax.linear import Geometry
from last_jax.models import wide
from last_jax.problem import Problem
from last_jax.quadratic import Quadratic, Squares, power_of_two, triangular
from last_jax.targets.base import (
  ROADS,
  Local,
  PerStep,
  Step,
  by_products,
  choose_road,
  gradient_rows,
  push,
  respond,
  squares,
  sum_of_squares,
)

_FORMED = 2**17  # Entries of the gradients of all outputs of a batch, up to which they are formed for free labels.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ToParams:
  """See `params`."""

  params: Params | None
  layer_weights: Any = None
  coasting: bool = dataclasses.field(default=True, metadata=STATIC)
  road: str | None = dataclasses.field(default=None, metadata=STATIC)

  @property
  def needs_params(self) -> bool:
    """Whether it is the problem's own w*."""
    return self.params is None

  def check(self, learner: Learner) -> None:
    """See `Target`."""
    checks.check_layer_weights(self.layer_weights, learner.shapes())
    if self.params is not None:
      checks.check_params(learner, self.params, "params")

  def prepare(self, problem: Problem) -> Geometry | None:
    """See `Target`."""
    self.check(problem.learner)
    goal = problem.target if self.params is None else self.params
    return dataclasses.replace(self, params=goal).geometry(problem.learner, problem.pool.x)

  def now(self, learner: Learner, student: Student, params: Params | None, step: Array, key: Key | None) -> "ToParams":
    """See `Target`."""
    del learner, student, step, key
    return dataclasses.replace(self, params=params) if self.params is None else self

  def geometry(self, learner: Learner, x: Array) -> Geometry | None:
    """See `Target`."""
    return linear.geometry(learner, self.params, x) if self.has_closed_form(learner) else None

  def has_closed_form(self, learner: Learner) -> bool:
    """See `Target`."""
    return learner.is_linear and self.layer_weights is None

  def measure(self, learner: Learner, student: Student) -> Any:
    """See `Target`."""
    reached = learner.position(student, self.coasting)
    roots = None if self.layer_weights is None else jax.tree.map(jnp.sqrt, self.layer_weights)
    return distances.weigh(distances.difference(reached, self.params), roots)

  def value(self, learner: Learner, measured: Any) -> Array:
    """See `Target`."""
    del learner
    return sum_of_squares(measured)

  def local(self, learner: Learner, measured: Any) -> Local:
    """See `Target`."""
    del learner
    return squares(measured)

  def error(self, learner: Learner, student: Student) -> tuple[Params, Array | float, Any]:
    """Return P M (drift - w*), the rate `[]`, and the weights P M P: see `respond`."""
    drift, rate, shares = respond(learner, student, self.coasting)
    error = distances.weigh(distances.difference(drift, self.params), self.layer_weights)
    if shares is None:
      return error, rate, self.layer_weights
    return distances.weigh(error, shares), rate, distances.weigh(jax.tree.map(jnp.square, shares), self.layer_weights)

  def expand(self, step: Step) -> Quadratic:
    """See `Target`."""
    learner, student = step.learner, step.student
    error, rate, weights = self.error(learner, student)
    reach = push(learner, student.params, step.x, error).reshape(step.at.shape)
    if choose_road(self.road, step) == "products":
      return by_products(step, rate / step.at.shape[0], reach, weights)
    rows = gradient_rows(step)
    found = factored_gradients(
      learner.apply, wide(student.params), step.x, cotangents=rows, weights=weights
    ).inner_products()
    number, width = step.at.shape
    count = rows.shape[0] * width // rows.shape[1]
    products = found.reshape(number, count, number, count)
    # Sizes are taken out before they are squared; powers of two round nothing. The largest product is a square.
    pace = rate / number
    length = power_of_two(jnp.sqrt(jax.lax.stop_gradient(jnp.einsum("irir->ir", products))))
    scale = power_of_two(jnp.asarray(pace * length))
    share, products = pace * length / scale, products / length**2
    matrix = share**2 * learner.loss.between_labels(products, step.slopes)
    # Rows of J M (w+ - w*) / length, after the step with labels `at`.
    moved = jnp.einsum("irjs,js->ir", products, step.gradients[:, :count])
    after = (reach.reshape(-1, rows.shape[1]) @ rows.T).reshape(number, count) / length - pace * length * moved
    line = jnp.einsum("irc,ir->ic", step.slopes[:, :count], after)
    small = sum(leaf.size for leaf in jax.tree.leaves(student.params)) * step.at.size <= _FORMED
    exact = self._squares(step, pace, scale) if step.is_free and small else None
    return Quadratic(step.at, matrix, -share / scale * line, scale, exact)

  def _squares(self, step: Step, pace: Any, scale: Any) -> Squares:
    """Return the squares of `expand`, from the gradients of all outputs, which are formed."""
    learner, params = step.learner, wide(step.student.params)
    roots = None if self.layer_weights is None else jax.tree.map(jnp.sqrt, self.layer_weights)
    rows = gradient_rows(step)

    def gradients_of(x: Array) -> Array:
      """Return the gradients of one example that belong to the rows, `[T R, P]`."""
      _, pull = jax.vjp(lambda params: learner.apply(params, x[None]).reshape(-1), params)
      return jax.vmap(lambda row: _flat(distances.weigh(distances.weigh(pull(row)[0], roots), shares)))(rows)

    drift, _, shares = respond(learner, step.student, self.coasting)
    error = _flat(distances.weigh(distances.difference(drift, self.params), roots))
    gradients = jax.vmap(gradients_of)(step.x).reshape(-1, error.size)
    basis, factors = triangular(gradients.T)  # [P, r], [r, n R]
    factors = (pace / scale) * factors
    effects = step.slopes[:, : gradients.shape[0] // step.at.shape[0]]  # [n, R, K]
    after = error @ basis / scale - factors @ step.gradients[:, : effects.shape[1]].reshape(-1)
    columns = -jnp.einsum("qir,irc->qic", factors.reshape(-1, *effects.shape[:2]), effects)
    return Squares(after, columns.reshape(-1, step.at.size))


def _flat(tree: Any) -> Array:
  return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(tree)])


def params(
  params: Params | None = None, *, layer_weights: Any = None, coasting: bool = True, road: str | None = None
) -> ToParams:
  """The paper's target: parameters w*, G = ||w+ - w*||^2_M.

  Args:
    params: w*; the problem's own target unless given.
    layer_weights: M, the paper's beta, as a prefix of the parameters' tree: {"layer_0": beta, "layer_1": 1.0}.
    coasting: whether, with momentum, w+ is the point where the student would come to rest, or the next parameters.
    road: "kernel": the label problem of a network has a matrix, from its tangent kernel, and is solved to rounding.
      "products": it has none, and every iteration of the solver takes a backward and a forward pass; for large batches
      of many classes, whose matrix would not fit into memory; labels then have no derivatives. Unless given, by size.
  """
  if road is not None:
    checks.check_name("road", road, ROADS)
  if params is not None:
    checks.check_tree("params", params)
    checks.check_finite("params", params)
  layer_weights = checks.check_weights("layer_weights", layer_weights)
  return ToParams(params, layer_weights, checks.check_flag("coasting", coasting), road)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ToTrajectory(PerStep):
  """See `trajectory`."""

  params: Params  # Leaves [T, ...].
  layer_weights: Any = None
  coasting: bool = dataclasses.field(default=True, metadata=STATIC)
  needs_params: ClassVar[bool] = False

  def check(self, learner: Learner) -> None:
    """See `Target`."""
    lengths = {leaf.shape[:1] for leaf in jax.tree.leaves(self.params)}
    if len(lengths) != 1 or () in lengths or (0,) in lengths:
      raise ValueError("params of targets.trajectory must have a leading axis [T], the same in all leaves")
    first = jax.tree.map(lambda leaf: leaf[0], self.params)
    checks.check_params(learner, first, "params of targets.trajectory, without its axis [T],")
    checks.check_layer_weights(self.layer_weights, first)

  def prepare(self, problem: Problem) -> None:
    """See `Target`."""
    self.check(problem.learner)

  def now(self, learner: Learner, student: Student, params: Params | None, step: Array, key: Key | None) -> ToParams:
    """See `Target`."""
    del learner, student, params, key
    length = jax.tree.leaves(self.params)[0].shape[0]
    goal = jax.tree.map(lambda leaf: leaf[jnp.minimum(step, length - 1)], self.params)
    return ToParams(goal, self.layer_weights, self.coasting)


def trajectory(params: Params, *, layer_weights: Any = None, coasting: bool = True) -> ToTrajectory:
  """A target per step: after iteration t (from 1) the student should be at the t-th parameters.

  Args:
    params: parameters with a leading axis [T] in every leaf, such as the stacked iterates of another learner. The last
      remains the target when they are used up.
    layer_weights: as in `params`.
    coasting: as in `params`.
  """
  checks.check_tree("params", params)
  checks.check_finite("params", params)
  layer_weights = checks.check_weights("layer_weights", layer_weights)
  return ToTrajectory(jax.tree.map(jnp.asarray, params), layer_weights, checks.check_flag("coasting", coasting))
