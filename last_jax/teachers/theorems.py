"""The teachers of the paper's theorems 1, 2 and 3, whose labels realise a certain step.

A theorem says where the student should be after the step. The label that realises it is greedy synthesis towards that
point, which moves from step to step: exact wherever some label realises the step, as near as labels can take the
student otherwise. How near is the teacher's *residual*, reported by `teach(..., lessons=True)`.

Theorems 1 and 2 scale the gradient of the batch under its ground truth by one number g, which labels can do for every
loss whose gradient is affine in the label. The margin form of the logistic loss reaches only some g.
"""

import abc
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from last_jax import checks, constraints, synthesis
from last_jax.learners import Learner
from last_jax.optimizers import Sgd
from last_jax.teachers.base import OmniscientView, Teacher, Uniform, View
from last_jax.types import STATIC, Array, Key, Params, Student

_ROUNDING = 1000  # Where a loss should fall by fewer units of its last digit than this, it is not looked at itself.
_FIXED_KEY = 0  # The Hessian at w* is computed once, from examples drawn with jax.random.key(_FIXED_KEY).


class _Steering(abc.ABC):
  """Labels that bring the student as near as they can to `wanted`."""

  @abc.abstractmethod
  def wanted(self, memory: Any, view: Any, index: Array) -> Params:
    """Where the student should be after the step."""

  def label(self, memory: Any, view: Any, index: Array) -> Array:
    """Labels `[m, K]`; of several that do the same, those nearest to the ground truth."""
    wanted = self.wanted(memory, view, index)
    x, truth = view.x[index], view.truth[index]
    return synthesis.greedy_labels(view.learner, view.student, wanted, x, truth, constraints.none())

  def residual(self, memory: Any, view: Any, index: Array, label: Array) -> Array:
    """The distance `[]` between where the labels bring the student and where it is wanted."""
    after = view.learner.step(view.student, view.x[index], label).params
    return jnp.sqrt(synthesis.squared_distance(after, self.wanted(memory, view, index)))


def _scaled_step(view: Any, index: Array, factor: Array) -> Params:
  """Where the student's own step on `factor` times the batch's gradient under its ground truth takes it."""
  gradient = jax.grad(view.learner.mean_loss)(view.student.params, view.x[index], view.truth[index])
  return view.learner.update(view.student, jax.tree.map(lambda leaf: factor * leaf, gradient)).params


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ByDistance(_Steering):
  """g = c1 ||w - w*||."""

  c1: Array | float
  omniscient = True

  def prepare(self, learner: Learner, x: Array, truth: Array, target: Params | None) -> None:
    """Nothing to prepare."""

  def wanted(self, memory: None, view: OmniscientView, index: Array) -> Params:
    """After a step on the gradient times g."""
    distance = jnp.sqrt(synthesis.squared_distance(view.student.params, view.target))
    return _scaled_step(view, index, self.c1 * distance)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ByLineSearch(_Steering):
  """g by backtracking until the batch's own loss falls enough."""

  c2: Array | float
  largest: Array | float
  shrink: Array | float
  trials: int = dataclasses.field(metadata=STATIC)
  omniscient = False

  def prepare(self, learner: Learner, x: Array, truth: Array, target: Params | None) -> None:
    """Nothing to prepare, but a learner without a learning rate of its own is refused."""
    _check_plain_sgd(learner)

  def wanted(self, memory: None, view: View, index: Array) -> Params:
    """After a step on the gradient times g."""
    return _scaled_step(view, index, self.factor(view, index))

  def factor(self, view: View, index: Array) -> Array:
    """g `[]`: the first of the trials under which the batch's loss falls enough, or else the last."""
    learner, params = view.learner, view.student.params
    x, truth = view.x[index], view.truth[index]
    loss, gradient = jax.value_and_grad(learner.mean_loss)(params, x, truth)
    size = synthesis.squared_distance(gradient, jax.tree.map(jnp.zeros_like, gradient))
    factors = self.largest * self.shrink ** jnp.arange(self.trials, dtype=loss.dtype)

    def along(step: Array) -> Array:
      return learner.mean_loss(jax.tree.map(lambda w, g: w - step * g, params, gradient), x, truth)

    def falls_enough(factor: Array) -> Array:
      step = _rate(learner, view.student) * factor
      after, slope = jax.jvp(along, (step,), (jnp.ones_like(step),))
      # Near the minimum, rounding hides how much the loss falls, but not its slope. By the trapezoidal rule the fall is
      # step * (size - slope) / 2, exactly so for squared error (Hager and Zhang's "approximate" condition).
      visible = step * size > _ROUNDING * jnp.finfo(loss.dtype).eps * jnp.abs(loss)
      return jnp.where(visible, after <= loss - self.c2 * step * size, slope <= (1 - 2 * self.c2) * size)

    good = jax.vmap(falls_enough)(factors)
    return factors[jnp.where(jnp.any(good), jnp.argmax(good), self.trials - 1)]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ByHessian(_Steering):
  """Newton's step on the objective of the whole pool, with the Hessian between w and w*."""

  alpha: float = dataclasses.field(metadata=STATIC)
  hessian_size: int | None = dataclasses.field(metadata=STATIC)

  @property
  def omniscient(self) -> bool:
    """Only Newton's method itself (alpha = 0) does without w*."""
    return self.alpha > 0

  def prepare(self, learner: Learner, x: Array, truth: Array, target: Params | None) -> Array | None:
    """The inverse of the Hessian at w*, `[P, P]`, where that is the one in use."""
    if self.hessian_size is not None and self.hessian_size > x.shape[0]:
      raise ValueError(f"hessian_size={self.hessian_size} examples cannot be drawn from a pool of {x.shape[0]}")
    return self._inverse(learner, target, x, truth, jax.random.key(_FIXED_KEY)) if self.alpha == 1 else None

  def wanted(self, memory: Array | None, view: Any, index: Array) -> Params:
    """w - H^-1 times the gradient of the objective."""
    learner, params = view.learner, view.student.params
    inverse = memory
    if inverse is None:
      at = params
      if self.alpha > 0:
        at = jax.tree.map(lambda goal, w: self.alpha * goal + (1 - self.alpha) * w, view.target, params)
      inverse = self._inverse(learner, at, view.x, view.truth, view.key)
    flat, unravel = ravel_pytree(params)
    gradient, _ = ravel_pytree(jax.grad(learner.objective)(params, view.x, view.truth))
    return unravel(flat - inverse @ gradient)

  def _inverse(self, learner: Learner, at: Params, x: Array, truth: Array, key: Key) -> Array:
    """The pseudo-inverse of the objective's Hessian, `[P, P]`.

    Directions without curvature, as softmax has, are left alone. Those that curve down, as networks have, are not
    turned around: the theorem is about a neighbourhood of w*.
    """
    if self.hessian_size is not None:
      some = jax.random.choice(key, x.shape[0], (self.hessian_size,), replace=False)
      x, truth = x[some], truth[some]
    flat, unravel = ravel_pytree(at)
    values, vectors = jnp.linalg.eigh(jax.hessian(lambda w: learner.objective(unravel(w), x, truth))(flat))
    curved = jnp.abs(values) > 10 * flat.size * jnp.finfo(flat.dtype).eps * jnp.max(jnp.abs(values))
    inverse = jnp.where(curved, 1.0 / jnp.where(curved, values, 1.0), 0.0)
    return (vectors * inverse[None]) @ vectors.T


def _check_plain_sgd(learner: Learner) -> None:
  optimizer = learner.optimizer
  if not isinstance(optimizer, Sgd) or optimizer.momentum is not None:
    raise ValueError(
      "theorem_2 searches along plain SGD steps: the learner must have a learning_rate, no momentum and no optimizer"
    )


def _rate(learner: Learner, student: Student) -> Any:
  assert isinstance(learner.optimizer, Sgd), "checked before the first iteration"
  return learner.optimizer.rate(student.opt_state)


def theorem_1(c1: Any) -> Teacher:
  """Exponential teachability: labels that scale the gradient by g = c1 ||w - w*||.

  It is proven for plain SGD; other optimizers are handed the gradient times g.

  Args:
    c1: a positive number; see `theory.bound_1` for which are good.
  """
  checks.check_positive("c1", c1)
  return Teacher("theorem 1", Uniform(), ByDistance(c1))


def theorem_2(c2: Any = 0.5, largest: Any = 1024.0, shrink: Any = 0.5, trials: int = 32) -> Teacher:
  """Exponential teachability without w*: labels that scale the gradient by a g found by Armijo's line search.

  g is the first of `largest`, `largest` * `shrink`, ... under which the loss of the batch (with its ground truth, and
  without weight decay) falls by at least c2 eta g ||gradient||^2. If none of the trials does it, the last is taken.

  Args:
    c2: between 0 and 1; the theorem has 1/2, and is proven for no less.
    largest: where the search begins. The learning rate times this is the longest step, the theorem's eta'_max.
    shrink: between 0 and 1.
    trials: how many g are tried, all at once.
  """
  for name, value in (("c2", c2), ("shrink", shrink)):
    checks.check_positive(name, value)
    checks.check_between(name, value, 0.0, 1.0)
  checks.check_positive("largest", largest)
  checks.check_count("trials", trials)
  return Teacher("theorem 2", Uniform(), ByLineSearch(c2, largest, shrink, trials))


def theorem_3(alpha: float = 0.0, hessian_size: int | None = None) -> Teacher:
  """Super-exponential teachability: labels for w+ = w - H^-1 times the gradient of the objective over the whole pool.

  H is the objective's Hessian at alpha w* + (1 - alpha) w. With alpha = 0 that is Newton's method, which does not need
  w*; with alpha = 1 the Hessian at w*, computed once.

  m examples have labels of m K numbers. Where these are fewer than the parameters, the labels take the student as near
  to w+ as they can, and the residual says how near: show batches of several examples.

  Args:
    alpha: between 0 and 1.
    hessian_size: how many examples of the pool to compute the Hessian from, drawn anew each iteration (once, with a
      fixed key, for alpha = 1); all of them unless given. The gradient is always that of the whole pool.
  """
  checks.check_between("alpha", alpha, 0.0, 1.0)
  if hessian_size is not None:
    checks.check_count("hessian_size", hessian_size)
  sampled = "" if hessian_size is None else f", |S|={hessian_size}"
  name = f"theorem 3 (\N{GREEK SMALL LETTER ALPHA}={float(alpha):g}{sampled})"
  return Teacher(name, Uniform(), ByHessian(float(alpha), hessian_size))
