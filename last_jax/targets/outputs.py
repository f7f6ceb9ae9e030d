"""Targets in the space of the outputs: what another model says of some examples."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import checks, distances
from last_jax.base import STATIC, Array, Key, Params, Student
from last_jax.kernels import factored_gradients
from last_jax.learners import Learner
from last_jax.models import wide
from last_jax.problem import Problem
from last_jax.quadratic import Quadratic, power_of_two
from last_jax.targets.base import Step


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ToOutputs:
  """See `outputs`."""

  x: Array  # [e, ...]
  outputs: Array  # [e, ..., K]
  batch_size: int | None = dataclasses.field(default=None, metadata=STATIC)
  coasting: bool = dataclasses.field(default=True, metadata=STATIC)
  needs_params: ClassVar[bool] = False

  def check(self, learner: Learner) -> None:
    """See `Target`."""
    checks.check_inputs(learner, self.x, "x of targets.outputs")
    shape = (self.x.shape[0], *learner.output_shape(self.x))
    if self.outputs.shape != shape:
      raise ValueError(f"z of targets.outputs must have shape {list(shape)}, but it has {list(self.outputs.shape)}")

  def prepare(self, problem: Problem) -> None:
    """See `Target`."""
    self.check(problem.learner)

  def now(self, params: Params | None, step: Array, key: Key) -> "ToOutputs":
    """See `Target`."""
    del params, step
    if self.batch_size is None:
      return self
    chosen = jax.random.randint(key, (self.batch_size,), 0, self.x.shape[0])
    return dataclasses.replace(self, x=self.x[chosen], outputs=self.outputs[chosen], batch_size=None)

  def has_closed_form(self, learner: Learner) -> bool:
    """See `Target`."""
    del learner
    return False

  def geometry(self, learner: Learner, x: Array) -> None:
    """See `Target`."""
    del learner, x

  def residuals(self, learner: Learner, student: Student) -> Array:
    """See `Target`."""
    return self._errors(learner, learner.apply(learner.position(student, self.coasting), self.x))

  def _errors(self, learner: Learner, outputs: Array) -> Array:
    return _centre(learner, outputs - self.outputs).reshape(-1, outputs.shape[-1])

  def expand(self, step: Step) -> Quadratic:
    """See `Target`."""
    learner, student = step.learner, step.student
    current = wide(student.params)
    drift, rate = learner.drift(student, self.coasting)
    moved = distances.difference(drift, student.params)
    reached, shift = jax.jvp(lambda params: learner.apply(params, self.x), (current,), (moved,))
    errors = self._errors(learner, reached + shift)  # [e, K]
    shown = factored_gradients(learner.apply, current, step.x)
    evaluated = factored_gradients(learner.apply, current, self.x)
    response = evaluated.inner_products(shown).reshape(*errors.shape, *step.at.shape)
    response = _centre(learner, response, 1)
    # Sizes are taken out before they are squared; powers of two round nothing.
    pace = rate / step.at.shape[0]
    length = power_of_two(response)
    scale = power_of_two(jnp.asarray(pace * length))
    share, response = pace * length / scale, response / length
    after = errors - pace * length * jnp.einsum("ekjl,jl->ek", response, step.gradients)
    columns = -share * jnp.einsum("ekjl,jlc->ekjc", response, step.slopes).reshape(errors.size, step.at.size)
    linear_term = (columns.T @ after.reshape(-1)) / scale
    return Quadratic(
      step.at, (columns.T @ columns).reshape(step.at.shape * 2), linear_term.reshape(step.at.shape), scale
    )


def _centre(learner: Learner, outputs: Array, axis: int = -1) -> Array:
  """Return outputs without what all classes have in common, where the loss does not see it."""
  return outputs - jnp.mean(outputs, axis, keepdims=True) if learner.loss.ignores_common_shift else outputs


def outputs(
  x: Any, z: Any, *, temperature: Any = 1.0, batch_size: int | None = None, coasting: bool = True
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
  """
  for name, value in (("x", x), ("z", z)):
    checks.check_finite(name, value if isinstance(value, jax.Array) else np.asarray(value))
  x, z = jnp.asarray(x), jnp.asarray(z, float)
  x = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)
  if x.ndim < 1 or z.ndim < 2 or x.shape[:1] != z.shape[:1] or not x.shape[0]:
    raise ValueError(
      f"x [e, ...] and z [e, K] must have e >= 1 rows each, but their shapes are {x.shape} and {z.shape}"
    )
  checks.check_positive("temperature", temperature)
  if batch_size is not None:
    checks.check_count("batch_size", batch_size)
  return ToOutputs(x, z / temperature, batch_size, bool(coasting))
