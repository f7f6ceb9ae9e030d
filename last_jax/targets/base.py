"""The protocol of targets, and G as a quadratic in the labels of a step."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, NoReturn, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import distances, fields
from last_jax.base import Array, Key, Params, Student
from last_jax.kernels import fast_in_loops
from last_jax.learners import Learner
from last_jax.linear import Geometry
from last_jax.models import wide
from last_jax.optimizers import Sgd
from last_jax.problem import Problem
from last_jax.quadratic import MOST_NUMBERS, Quadratic, power_of_two

ROADS = ("kernel", "products")  # To the label problem of a network: with its matrix, or without.


@fields.documented
class Step(NamedTuple):
  """One step on a batch whose labels are open: at labels y the gradient in the outputs is u + B (y - at).

  Labels of tokens are rows of their own: n = m T rows, or m without tokens.

  Attributes:
    learner: the learner.
    student: before the step.
    x: `[m, ...]` the batch.
    outputs: `[n, K]`.
    gradients: `[n, K]`, u.
    slopes: `[n, K, K]`, B.
    at: `[n, K]`, the labels that u belongs to.
    is_free: whether labels have no constraint: how accurate they are depends on `Quadratic.squares`.
  """

  learner: Learner
  student: Student
  x: Array
  outputs: Array
  gradients: Array
  slopes: Array
  at: Array
  is_free: bool = False


@fields.documented
class Local(NamedTuple):
  """G near what a target measured: G(r + t) = G(r) + 2 ⟨slope, t⟩ + ||root(t)||^2, to second order in t.

  Attributes:
    slope: half the gradient of G, a tree like r.
    root: linear, from trees like r to any tree.
  """

  slope: Any
  root: Callable[[Any], Any]

  def moved(self, tangent: Any) -> "Local":
    """Return the same quadratic around r + tangent."""
    image, pull = jax.vjp(self.root, tangent)
    return Local(jax.tree.map(jnp.add, self.slope, pull(image)[0]), self.root)


class Target(Protocol):
  """What labels steer toward: G, a convex function of what is measured of a student after its step.

  Targets are pytrees.
  """

  @property
  def needs_params(self) -> bool:
    """Whether it is the problem's own w*."""

  @property
  def coasting(self) -> bool:
    """Whether, with momentum, the point where the student would come to rest is steered, or the next parameters."""

  def check(self, learner: Learner) -> None:
    """Raise an error that names the argument, unless the target is one for this learner."""

  def prepare(self, problem: Problem) -> Geometry | None:
    """Check the target. Return inner products of the problem's pool, where closed forms apply."""

  def now(self, learner: Learner, student: Student, params: Params | None, step: Array, key: Key | None) -> "Target":
    """Return the target of one step.

    Args:
      learner: the learner.
      student: before the step.
      params: the problem's w*, or None.
      step: `[]` the iteration.
      key: for targets that draw examples; without one, they take all.
    """

  def has_closed_form(self, learner: Learner) -> bool:
    """Return whether everything follows from inner products of the pool, computed once: see `linear`."""

  def geometry(self, learner: Learner, x: Array) -> Geometry | None:
    """Return inner products of `x [m, ...]`, where closed forms apply."""

  def measure(self, learner: Learner, student: Student) -> Any:
    """Return what G is a function of, for a student after its step: a tree of arrays, as w - w* or outputs."""

  def value(self, learner: Learner, measured: Any) -> Array:
    """Return G, `[]`."""

  def local(self, learner: Learner, measured: Any) -> Local:
    """Return G near what was measured."""

  def expand(self, step: Step) -> Quadratic:
    """Return G around the step's labels `at`, by tangent kernels. The learner's optimizer is diagonal."""


class PerStep:
  """What targets have in common that are others in each step: only the target of one step, `now`, is one."""

  def has_closed_form(self, learner: Learner) -> bool:
    """Return False: inner products with a target that moves cannot be computed once."""
    del learner
    return False

  def geometry(self, *_: Any) -> NoReturn:
    """Raise: only the target of a step has one."""
    raise TypeError(f"{type(self).__name__} is a target per step: use .now(learner, student, params, step, key)")

  # Likewise.
  measure: ClassVar[Callable[..., NoReturn]] = geometry
  value: ClassVar[Callable[..., NoReturn]] = geometry
  local: ClassVar[Callable[..., NoReturn]] = geometry
  expand: ClassVar[Callable[..., NoReturn]] = geometry


def value(target: Target, learner: Learner, student: Student) -> Array:
  """Return G for a student after its step, `[]`."""
  return target.value(learner, target.measure(learner, student))


def squares(measured: Any) -> Local:
  """Return the sum of squares near `measured`."""
  return Local(measured, lambda tangent: tangent)


def sum_of_squares(tree: Any) -> Array:
  """Return the sum of the squares of all leaves, `[]`."""
  return jax.tree.reduce(jnp.add, jax.tree.map(lambda leaf: jnp.sum(jnp.ravel(leaf) ** 2), tree))


def along(local: Local, columns: Any) -> tuple[Array, Array]:
  """Return G along n columns, leaves `[n, ...]` like what is measured: its matrix `[n, n]` and half its slope `[n]`."""

  def flat(tree: Any) -> list[Array]:
    return [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(tree)]

  matrix = functools.reduce(jnp.add, [leaf @ leaf.T for leaf in flat(jax.vmap(local.root)(columns))])
  pairs = zip(flat(columns), jax.tree.leaves(local.slope), strict=True)
  return matrix, functools.reduce(jnp.add, [leaf @ slope.reshape(-1) for leaf, slope in pairs])


def expand(target: Target, step: Step) -> Quadratic:
  """Return G around the step's labels `at`: exact for affine steps, and otherwise for the step linearized there."""
  diagonal = step.learner.optimizer.is_diagonal(step.student.params)
  return target.expand(step) if diagonal else _expand_by_columns(target, step)


def _expand_by_columns(target: Target, step: Step) -> Quadratic:
  """Return G around `at` for any optimizer, from the derivative of what is measured in every entry of every label."""
  learner, student = step.learner, step.student
  (rows, width), batch = step.at.shape, step.x.shape[0]

  def outputs(params: Params, x: Array) -> Array:
    return learner.apply(params, x).reshape(-1, width)

  _, pull_batch = jax.vjp(lambda params: outputs(params, step.x), student.params)
  (gradient,) = pull_batch(step.gradients / rows)
  after, derivative = jax.linearize(lambda g: target.measure(learner, learner.update(student, g)), gradient)
  affine = learner.optimizer.is_affine(student.params)

  def push(tangent: Params) -> Any:
    moved = derivative(tangent)
    # Adam has no derivative at a gradient of zero.
    return moved if affine else jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, 0.0), moved)

  # How far one unit of gradient moves what is measured is taken out of the columns before they are squared.
  moved = jax.tree.leaves(push(jax.tree.map(jnp.ones_like, gradient)))
  scale = power_of_two(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in moved]))

  def columns_of(x_one: Array, slopes: Array) -> Any:
    """Return the columns of the labels of one example, leaves `[T, K, ...]`, from its slopes `[T, K, K]`."""
    _, pull = jax.vjp(lambda params: outputs(params, x_one[None]), student.params)
    tokens = jnp.arange(slopes.shape[0])

    def column(token: Array, slope: Array) -> Any:
      return push(pull(jnp.zeros(slopes.shape[:2], slope.dtype).at[token].set(slope / (rows * scale)))[0])

    return jax.vmap(jax.vmap(column, (None, 1)))(tokens, slopes)

  slopes = step.slopes.reshape(batch, rows // batch, width, width)
  columns = jax.vmap(columns_of)(step.x, slopes)  # Derivatives / scale, leaves [m, T, K, ...].
  columns = jax.tree.map(lambda leaf: leaf.reshape(rows * width, *leaf.shape[3:]), columns)
  matrix, linear_term = along(target.local(learner, after), columns)
  return Quadratic(step.at, matrix.reshape(step.at.shape * 2), (linear_term / scale).reshape(step.at.shape), scale)


def respond(learner: Learner, student: Student, coasting: bool) -> tuple[Params, Array | float, Params | None]:
  """Return how a step of a diagonal optimizer answers to a gradient: w+ = drift - rate P gradient.

  Returns:
    The drift, as `Learner.drift` does; the rate, `[]`; and P, for each leaf a factor `[]` or one for each of its
    entries, or None: all are 1.
  """
  if isinstance(learner.optimizer, Sgd):
    return *learner.drift(student, coasting), None
  start = Student(wide(student.params), student.opt_state)
  zeros, ones = (jax.tree.map(function, start.params) for function in (jnp.zeros_like, jnp.ones_like))
  after, slopes = jax.jvp(lambda gradient: learner.update(start, gradient).params, (zeros,), (ones,))
  rate = power_of_two(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(slopes)]))
  factors = learner.optimizer.factors(start.params)
  assert factors is not None, "the optimizer is diagonal"
  shares = [
    -(leaf.reshape(-1)[0] if same else leaf) / rate for leaf, same in zip(jax.tree.leaves(slopes), factors, strict=True)
  ]
  return after, rate, jax.tree.unflatten(jax.tree.structure(slopes), shares)


def gradient_rows(step: Step) -> Array:
  """Return the rows `[T R, T K]` of which the loss's gradient in the outputs of an example is made, with T tokens."""
  rows = step.learner.loss.gradient_rows(step.at.shape[1])
  return jnp.asarray(np.kron(np.eye(step.at.shape[0] // step.x.shape[0]), rows), step.gradients.dtype)


def push(learner: Learner, params: Params, x: Array, tangent: Params) -> Array:
  """Return J(x) times a tangent, `[m, ..., K]`."""
  return jax.jvp(lambda params: learner.apply(params, x), (wide(params),), (tangent,))[1]


def choose_road(road: str | None, step: Step) -> str:
  """Return "kernel" or "products": as set, or else by the size of the label problem."""
  return road or ("kernel" if step.at.size <= MOST_NUMBERS else "products")


def by_products(step: Step, pace: Any, reach: Array, weights: Any) -> Quadratic:
  """Return ||w+ - w*||^2_M around `at`, with a product in place of the matrix: a backward and a forward pass.

  Args:
    step: the step.
    pace: `[]`, how far one unit of u of one row moves the parameters.
    reach: `[n, K]`, J P M e for the student after a step without a gradient; P is that of `respond`.
    weights: P M P.
  """
  params = wide(step.student.params)

  def outputs(params: Params) -> Array:
    return step.learner.apply(params, step.x).reshape(step.at.shape)

  _, pull = jax.vjp(fast_in_loops(outputs), params)
  _, push_on = jax.linearize(outputs, params)

  def kernel(u: Array) -> Array:
    return push_on(distances.weigh(pull(u)[0], weights))

  # Sizes are taken out before they are squared; powers of two round nothing.
  trial = jnp.cos(jnp.arange(step.at.size, dtype=step.at.dtype)).reshape(step.at.shape)
  length = power_of_two(jnp.sqrt(jnp.max(jnp.abs(jax.lax.stop_gradient(kernel(trial))))))
  scale = power_of_two(jnp.asarray(pace * length))
  share = pace * length / scale

  forward, back = step.learner.loss.slope_products(step.outputs, step.at)

  def multiply(direction: Array) -> Array:
    return share**2 * back(kernel(forward(direction)) / length**2)

  after = reach / length - pace * length * (kernel(step.gradients) / length**2)
  return Quadratic(step.at, multiply, -share / scale * back(after), scale)
