"""Targets in the space of the outputs: what another model says of some examples."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from last_jax import checks, distances, losses
from last_jax.base import STATIC, Array, Key, Params, Student
from last_jax.kernels import factored_gradients, fast_in_loops
from last_jax.learners import Learner
from last_jax.models import wide
from last_jax.problem import Problem
from last_jax.quadratic import Quadratic, power_of_two
from last_jax.targets.base import ROADS, Local, Step, along, choose_road, gradient_rows, respond, sum_of_squares

_MOST_ENTRIES = 2**28  # Of the derivative of all outputs at the examples in all labels: 1 GiB in float32.


class OfOutputs:
  """What targets have in common whose G is a function of the outputs at some examples, linearized around w.

  After a step with gradients u in the outputs of the batch, the outputs z at these examples are z - pace Θ u, where Θ
  is the tangent kernel between them and the batch.
  """

  x: Array  # [e, ...]
  coasting: bool
  needs_params: ClassVar[bool] = False
  road: str | None = None

  def has_closed_form(self, learner: Learner) -> bool:
    """See `Target`."""
    del learner
    return False

  def geometry(self, learner: Learner, x: Array) -> None:
    """See `Target`."""
    del learner, x

  def measure(self, learner: Learner, student: Student) -> Array:
    """Return the outputs, `[e, K]`, or `[e T, K]` with those of tokens as rows of their own."""
    return losses.rows(learner.apply(learner.position(student, self.coasting), self.x))

  def local(self, learner: Learner, measured: Array) -> Local:
    """See `Target`."""
    raise NotImplementedError

  def expand(self, step: Step) -> Quadratic:
    """See `Target`."""
    learner, student = step.learner, step.student
    current = wide(student.params)
    drift, rate, shares = respond(learner, student, self.coasting)
    moved = distances.difference(drift, student.params)
    reached, shift = jax.jvp(lambda params: learner.apply(params, self.x), (current,), (moved,))
    before = losses.rows(reached + shift)  # [e, K], after a step without a gradient.
    pace = rate / step.at.shape[0]
    road = "products" if self.road is None and step.at.size * before.size > _MOST_ENTRIES else self.road
    if choose_road(road, step) == "products":
      return self._by_products(step, pace, before, shares)
    shown = factored_gradients(learner.apply, current, step.x, cotangents=gradient_rows(step), weights=shares)
    evaluated = factored_gradients(learner.apply, current, self.x)
    response = shown.inner_products(evaluated).reshape(step.at.shape[0], -1, *before.shape)  # [n, R, e, K]
    count = response.shape[1]
    # Sizes are taken out before they are squared; powers of two round nothing.
    length = power_of_two(response)
    scale = power_of_two(jnp.asarray(pace * length))
    share, response = pace * length / scale, response / length
    after = -pace * length * jnp.einsum("jr,jrek->ek", step.gradients[:, :count], response)
    columns = -share * jnp.einsum("jrc,jrek->jcek", step.slopes[:, :count], response)
    columns = columns.reshape(step.at.size, *before.shape)
    matrix, linear_term = along(self.local(learner, before).moved(after), columns)
    return Quadratic(step.at, matrix.reshape(step.at.shape * 2), (linear_term / scale).reshape(step.at.shape), scale)

  def _by_products(self, step: Step, pace: Any, before: Array, shares: Params | None) -> Quadratic:
    """Return the same with a product in place of the matrix: two backward and two forward passes."""
    current = wide(step.student.params)

    def passes(x: Array) -> tuple[Callable[[Array], Params], Callable[[Params], Array]]:
      def outputs(params: Params) -> Array:
        return losses.rows(step.learner.apply(params, x))

      pull = jax.vjp(fast_in_loops(outputs), current)[1]
      return lambda u: distances.weigh(pull(u)[0], shares), jax.linearize(outputs, current)[1]

    (pull_shown, push_shown), (pull_compared, push_compared) = passes(step.x), passes(self.x)

    def respond_to(u: Array) -> Array:
      return push_compared(pull_shown(u))

    # Sizes are taken out before they are squared; powers of two round nothing.
    trial = jnp.cos(jnp.arange(step.at.size, dtype=step.at.dtype)).reshape(step.at.shape)
    length = power_of_two(jax.lax.stop_gradient(respond_to(trial)))
    scale = power_of_two(jnp.asarray(pace * length))
    share = pace * length / scale
    near = self.local(step.learner, before).moved(-pace * respond_to(step.gradients))
    forward, back = step.learner.loss.slope_products(step.outputs, step.at)

    def multiply(direction: Array) -> Array:
      image, transposed = jax.vjp(near.root, respond_to(forward(direction)) / length)
      return share**2 * back(push_shown(pull_compared(transposed(image)[0])) / length)

    line = -share / scale * back(push_shown(pull_compared(near.slope)) / length)
    return Quadratic(step.at, multiply, line, scale)


def draw(key: Key | None, size: int | None, *arrays: Array) -> tuple[Array, ...]:
  """Return `size` random rows of arrays `[n, ...]`, the same of each; all of them without a size or a key."""
  if size is None or key is None:
    return arrays
  chosen = jax.random.randint(key, (size,), 0, arrays[0].shape[0])
  return tuple(array[chosen] for array in arrays)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ToOutputs(OfOutputs):
  """See `outputs`."""

  x: Array  # [e, ...]
  outputs: Array  # [e, ..., K]
  batch_size: int | None = dataclasses.field(default=None, metadata=STATIC)
  coasting: bool = dataclasses.field(default=True, metadata=STATIC)
  road: str | None = dataclasses.field(default=None, metadata=STATIC)

  def check(self, learner: Learner) -> None:
    """See `Target`."""
    checks.check_inputs(learner, self.x, "x of targets.outputs")
    shape = (self.x.shape[0], *learner.output_shape(self.x))
    if self.outputs.shape != shape:
      raise ValueError(f"z of targets.outputs must have shape {list(shape)}, but it has {list(self.outputs.shape)}")

  def prepare(self, problem: Problem) -> None:
    """See `Target`."""
    self.check(problem.learner)

  def now(self, learner: Learner, student: Student, params: Params | None, step: Array, key: Key | None) -> "ToOutputs":
    """See `Target`."""
    del learner, student, params, step
    x, outputs = draw(key, self.batch_size, self.x, self.outputs)
    return dataclasses.replace(self, x=x, outputs=outputs, batch_size=None)

  def value(self, learner: Learner, measured: Array) -> Array:
    """See `Target`."""
    return sum_of_squares(_centre(learner, measured - losses.rows(self.outputs)))

  def local(self, learner: Learner, measured: Array) -> Local:
    """See `Target`."""
    errors = _centre(learner, measured - losses.rows(self.outputs))
    return Local(errors, lambda tangent: _centre(learner, tangent))


def _centre(learner: Learner, outputs: Array) -> Array:
  """Return outputs without what all classes have in common, where the loss does not see it."""
  return outputs - jnp.mean(outputs, -1, keepdims=True) if learner.loss.ignores_common_shift else outputs


def outputs(
  x: Any,
  z: Any,
  *,
  temperature: Any = 1.0,
  batch_size: int | None = None,
  coasting: bool = True,
  road: str | None = None,
) -> ToOutputs:
  """Outputs that the student should have, of any other model: G = ||f(w+, x) - z||^2, f linearized around w.

  For softmax the mean over the classes, which has no effect on predictions, is taken out of both.

  Args:
    x: `[e, ...]` examples to compare on; they need not be in the pool. A few hundred are enough.
    z: `[e, K]` outputs wanted there, before the softmax or sigmoid.
    temperature: what `z` is divided by. Outputs of a network that was trained for long are far away from those of a
      student, and labels of a bounded set lead there by detours: 3 to 10 is better than 1 for the simplex.
    batch_size: number of examples that are drawn from `x` in each iteration; all of them unless given.
    coasting: as in `params`.
    road: as in `params`; without a matrix, every iteration takes two backward and two forward passes.
  """
  if road is not None:
    checks.check_name("road", road, ROADS)
  x, z = jnp.asarray(checks.check_array("x", x)), jnp.asarray(checks.check_array("z", z), float)
  x = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)
  if x.ndim < 1 or z.ndim < 2 or x.shape[:1] != z.shape[:1] or not x.shape[0]:
    raise ValueError(
      f"x [e, ...] and z [e, K] must have e >= 1 rows each, but their shapes are {x.shape} and {z.shape}"
    )
  temperature = checks.check_positive("temperature", temperature)
  if batch_size is not None:
    batch_size = checks.check_count("batch_size", batch_size)
  return ToOutputs(x, z / temperature, batch_size, checks.check_flag("coasting", coasting), road)
