"""The teachers of the paper's theorems 1, 2 and 3, whose labels realise a certain step.

A theorem says where the student should be after the step. The label that realises it is greedy synthesis toward that
point, which moves from step to step: exact wherever some label realises the step, as near as labels can take the
student otherwise. The remaining distance is `certificate.miss`, recorded by `teach(..., lessons=True)`.

Theorems 1 and 2 scale the gradient of the batch under its ground truth by one number g, which labels can do for every
loss whose gradient is affine in the label. The margin form of the logistic loss reaches only some g.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.tree_util import Partial

from last_jax import checks, constraints, distances, quadratic, synthesis, targets
from last_jax.base import STATIC, Array, Certificate, Key, Params, Student, Teacher, View
from last_jax.learners import Learner
from last_jax.optimizers import Sgd
from last_jax.problem import Problem
from last_jax.teachers.compose import compose

_ROUNDING = 1000  # A decrease of the loss by fewer units of its last digit than this is not visible.
_FIXED_KEY = 0  # The Hessian at w* is computed once, from examples drawn with jax.random.key(_FIXED_KEY).


def _steer(wanted_fn: Callable[[View, Array], Params], view: View, index: Array) -> tuple[Array, Certificate]:
  """Label the examples so that the student comes as near as it can to `wanted_fn(view, index)`."""
  wanted = wanted_fn(view, index)
  x, truth = view.x[index], view.truth[index]
  target = targets.params(wanted, coasting=False)  # A theorem is about the next parameters themselves.
  labels, certificate = synthesis.greedy_labels(view.learner, view.student, target, x, truth, constraints.none())
  after = view.learner.step(view.student, x, labels).params
  return labels, dataclasses.replace(certificate, miss=distances.distance(after, wanted))


def _scaled_step(view: View, index: Array, factor: Array) -> Params:
  """Return the parameters after the student's own step on `factor` times the batch's gradient under the truth."""
  gradient = view.learner.gradient(view.student.params, view.x[index], view.truth[index])
  return view.learner.update(view.student, jax.tree.map(lambda leaf: factor * leaf, gradient)).params


# --- Theorem 1.


def _by_distance(c1: Any, view: View, index: Array) -> Params:
  """g = c1 ||w - w*||."""
  return _scaled_step(view, index, c1 * distances.distance(view.student.params, view.target))


def _by_relative_distance(c1: Any, view: View, index: Array) -> Params:
  """g = c1 ||w - w*|| / ||gradient||, and 0 without a gradient."""
  gradient = view.learner.gradient(view.student.params, view.x[index], view.truth[index])
  size = distances.distance(gradient, jax.tree.map(jnp.zeros_like, gradient))
  length = c1 * distances.distance(view.student.params, view.target)
  return _scaled_step(view, index, quadratic.safe_divide(length, size))


# --- Theorem 2.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LineSearch:
  """g by backtracking until the batch's own loss decreases enough."""

  c2: Array | float
  largest: Array | float
  shrink: Array | float
  trials: int = dataclasses.field(metadata=STATIC)

  def __call__(self, view: View, index: Array) -> Params:
    """Return the parameters after a step on the gradient times g."""
    return _scaled_step(view, index, self.factor(view, index))

  def factor(self, view: View, index: Array) -> Array:
    """Return g, `[]`: the first of the trials under which the batch's loss decreases enough, or else the last."""
    learner, params = view.learner, view.student.params
    x, truth = view.x[index], view.truth[index]
    loss, gradient = jax.value_and_grad(learner.mean_loss)(params, x, truth)
    size = distances.squared_distance(gradient, jax.tree.map(jnp.zeros_like, gradient))
    factors = self.largest * self.shrink ** jnp.arange(self.trials, dtype=loss.dtype)

    def along(step: Array) -> Array:
      return learner.mean_loss(jax.tree.map(lambda w, g: w - step * g, params, gradient), x, truth)

    def decreases_enough(factor: Array) -> Array:
      step = _rate(learner, view.student) * factor
      after, slope = jax.jvp(along, (step,), (jnp.ones_like(step),))
      # Near the minimum, rounding hides the decrease of the loss, but not its slope. By the trapezoidal rule it is
      # step * (size - slope) / 2, exactly so for squared error (Hager and Zhang's "approximate" condition).
      visible = step * size > _ROUNDING * jnp.finfo(loss.dtype).eps * jnp.abs(loss)
      return jnp.where(visible, after <= loss - self.c2 * step * size, slope <= (1 - 2 * self.c2) * size)

    good = jax.vmap(decreases_enough)(factors)
    return factors[jnp.where(jnp.any(good), jnp.argmax(good), self.trials - 1)]


# --- Theorem 3.


def _draw(key: Key, hessian_size: int, pool_size: int) -> Array:
  return jax.random.choice(key, pool_size, (hessian_size,), replace=False)


def hessian_examples(hessian_size: int, pool_size: int) -> Array:
  """Return the examples whose Hessian at w* `theorem_3(alpha=1, hessian_size)` uses, `[hessian_size]`."""
  return _draw(jax.random.key(_FIXED_KEY), hessian_size, pool_size)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class NewtonStep:
  """Newton's step on the objective of the whole pool, with the Hessian between w and w*."""

  alpha: float = dataclasses.field(metadata=STATIC)
  hessian_size: int | None = dataclasses.field(metadata=STATIC)

  def prepare(self, problem: Problem) -> Array | None:
    """Return the inverse of the Hessian at w*, `[P, P]`, for alpha = 1."""
    x, truth = problem.pool.x, problem.truth
    if self.hessian_size is not None and self.hessian_size > x.shape[0]:
      raise ValueError(f"hessian_size={self.hessian_size} examples cannot be drawn from a pool of {x.shape[0]}")
    if self.alpha < 1:
      return None
    some = None if self.hessian_size is None else hessian_examples(self.hessian_size, x.shape[0])
    return self._inverse(problem.learner, problem.target, x, truth, some)

  def __call__(self, view: View, index: Array) -> Params:
    """Return w - H^-1 times the gradient of the objective."""
    learner, params, inverse = view.learner, view.student.params, view.cache
    if inverse is None:
      at = params
      if self.alpha > 0:
        at = jax.tree.map(lambda goal, w: self.alpha * goal + (1 - self.alpha) * w, view.target, params)
      some = None if self.hessian_size is None else _draw(view.key, self.hessian_size, view.x.shape[0])
      inverse = self._inverse(learner, at, view.x, view.truth, some)
    flat, unravel = ravel_pytree(params)
    gradient, _ = ravel_pytree(jax.grad(learner.objective)(params, view.x, view.truth))
    return unravel(flat - inverse @ gradient)

  def _inverse(self, learner: Learner, at: Params, x: Array, truth: Array, some: Array | None) -> Array:
    """Return the pseudo-inverse of the Hessian, `[P, P]`, of the objective on the examples `some`; None: on all.

    Directions without curvature, as softmax has, are left alone. Those of negative curvature, as networks have, are not
    turned around: the theorem is about a neighbourhood of w*.
    """
    if some is not None:
      x, truth = x[some], truth[some]
    flat, unravel = ravel_pytree(at)
    values, vectors = jnp.linalg.eigh(jax.hessian(lambda w: learner.objective(unravel(w), x, truth))(flat))
    curved = jnp.abs(values) > 10 * flat.size * jnp.finfo(flat.dtype).eps * jnp.max(jnp.abs(values))
    inverse = jnp.where(curved, 1.0 / jnp.where(curved, values, 1.0), 0.0)
    return (vectors * inverse[None]) @ vectors.T


def _check_plain_sgd(problem: Problem) -> None:
  optimizer = problem.learner.optimizer
  if not isinstance(optimizer, Sgd) or optimizer.momentum is not None:
    raise ValueError(
      "theorem_2 searches along plain SGD steps: the learner must have a learning_rate, no momentum and no optimizer"
    )


def _rate(learner: Learner, student: Student) -> Any:
  assert isinstance(learner.optimizer, Sgd), "checked by prepare"
  return learner.optimizer.rate(student.opt_state)


def theorem_1(c1: Any, *, unit_gradient: bool = False) -> Teacher:
  """Exponential teachability: labels that scale the gradient by g = c1 ||w - w*||.

  It is proven for plain SGD; other optimizers are handed the gradient times g.

  Args:
    c1: a positive number; see `theory.bound_1` for which are good.
    unit_gradient: whether g is divided by the length of the gradient. The theorem needs gradients that do not vanish
      with the distance, which those of squared error and cross-entropy do; divided by their length, they do not.
  """
  c1 = checks.check_positive("c1", c1)
  unit_gradient = checks.check_flag("unit_gradient", unit_gradient)
  scale, name = (_by_relative_distance, "theorem 1, unit gradient") if unit_gradient else (_by_distance, "theorem 1")
  return compose(name, Partial(_steer, Partial(scale, c1)), needs_target=True)


def theorem_2(c2: Any = 0.5, largest: Any = 1024.0, shrink: Any = 0.5, trials: int = 32) -> Teacher:
  """Exponential teachability without w*: labels that scale the gradient by a g found by Armijo's line search.

  g is the first of `largest`, `largest` * `shrink`, ... under which the loss of the batch (with its ground truth,
  without weight decay) decreases by at least c2 eta g ||gradient||^2; the last if none does.

  Args:
    c2: between 0 and 1; the theorem has 1/2, and is proven for no less.
    largest: start of the search. The learning rate times this is the longest step, the theorem's eta'_max.
    shrink: between 0 and 1.
    trials: the number of g that are tried, all at once.
  """
  for name, value in (("c2", c2), ("shrink", shrink)):
    checks.check_positive(name, value)
  c2, shrink = checks.check_between("c2", c2, 0.0, 1.0), checks.check_between("shrink", shrink, 0.0, 1.0)
  largest, trials = checks.check_positive("largest", largest), checks.check_count("trials", trials)
  search = LineSearch(c2, largest, shrink, trials)
  return compose("theorem 2", Partial(_steer, search), prepare=_check_plain_sgd)


def theorem_3(alpha: float = 0.0, hessian_size: int | None = None) -> Teacher:
  """Super-exponential teachability: labels for w+ = w - H^-1 times the gradient of the objective over the whole pool.

  H is the objective's Hessian at alpha w* + (1 - alpha) w. With alpha = 0 that is Newton's method, which does not need
  w*; with alpha = 1 the Hessian at w*, computed once.

  m examples have labels of m K numbers. Where these are fewer than the parameters, the labels take the student as near
  to w+ as they can, and `certificate.miss` says how near: show batches of several examples.

  Args:
    alpha: between 0 and 1.
    hessian_size: number of examples of the pool that the Hessian is computed from, drawn in each iteration (once, with
      a fixed key, for alpha = 1); all of them unless given. The gradient is always that of the whole pool.
  """
  alpha = checks.check_between("alpha", alpha, 0.0, 1.0)
  if isinstance(alpha, jax.core.Tracer):
    raise TypeError("alpha must not be traced: whether the teacher needs w* depends on it")
  if hessian_size is not None:
    hessian_size = checks.check_count("hessian_size", hessian_size)
  sampled = "" if hessian_size is None else f", |S|={hessian_size}"
  name = f"theorem 3 (\N{GREEK SMALL LETTER ALPHA}={float(alpha):g}{sampled})"
  newton = NewtonStep(float(alpha), hessian_size)
  prepare = Partial(NewtonStep.prepare, newton)
  # Only Newton's method itself (alpha = 0) needs no target.
  return compose(name, Partial(_steer, newton), prepare=prepare, needs_target=bool(alpha > 0))
