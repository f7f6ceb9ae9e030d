"""The bounds of the paper's theorems 1, 2 and 3 on a given problem, as curves to draw measured distances beside.

For linear learners with one output: least squares, and logistic regression with cross-entropy. A bias counts as the
weight of one more feature, which is 1. Everything holds on a ball around w*, ||w - w*|| <= radius, which is where a
student has to stay: `constants` measures the problem there, and each bound is a short function of what it finds.

Theorems 1 and 2 assume *interpolation*, that w* minimises every single loss: `interpolating_pool` makes such problems.
They are about students who are shown one uniformly random example a step.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import checks, fields, losses, models
from last_jax.base import Array, Params, Pool, is_concrete
from last_jax.learners import Learner, check_learns_from
from last_jax.quadratic import safe_divide

_SLACK = 1e-6  # A start at the radius is at the radius, whatever rounding says.

# The largest second derivative of the sigmoid: the Lipschitz constant of the loss's second derivative.
_SIGMOID_JERK = 1 / (6 * 3**0.5)


def interpolating_pool(learner: Learner, target: Params, x: Any) -> Pool:
  """A pool of the examples `x [n, ...]` whose labels are what w* predicts, so that w* minimises every single loss.

  For regression that is a pool without noise, for classification one of soft labels. The learner must not have weight
  decay: it would pull away from w*.
  """
  checks.check_params(learner, target, "target")
  return Pool(x, learner.loss.predict_all(learner.apply(target, jnp.asarray(x))))


@fields.documented
class Constants(NamedTuple):
  """Constants of a problem that the bounds depend on, for parameters with ||w - w*|| <= radius.

  The loss of example i is a convex function of its output z_i = <w, x_i>, with second derivative h_i(z_i).

  Attributes:
    features: `[n, p]` the examples, with a 1 for the bias.
    curvature_low: `[n]` the smallest h_i.
    curvature_high: `[n]` the largest h_i.
    curvature: `[n]` h_i at w*.
    decay: `[p]` weight decay, of each feature's weight.
    lipschitz: `[]` L_max of theorem 1: the longest gradient of a single loss.
    hessian_low: `[]` a lower bound of the eigenvalues of the objective's Hessian (weight decay included).
    hessian_lipschitz: `[]` the Lipschitz constant of the objective's Hessian: L of theorem 3.
    order_1: `[]` the modulus of order-1 strong convexity of the mean loss where ||w - w*|| >= inner_radius.
    gap: `[]` the longest gradient of a single loss at w*: zero with interpolation.
    radius: `[]` how far from w* they hold.
  """

  features: Array
  curvature_low: Array
  curvature_high: Array
  curvature: Array
  decay: Array
  lipschitz: Array
  hessian_low: Array
  hessian_lipschitz: Array
  order_1: Array
  gap: Array
  radius: Array

  @property
  def smoothness(self) -> Array:
    """L_i of theorem 2, `[n]`: the Lipschitz constant of the gradient of each loss."""
    return self.curvature_high * jnp.sum(self.features**2, 1)

  @property
  def convexity(self) -> Array:
    """mu_i of theorem 2, `[n]`: each loss's own strong convexity; zero as soon as there are two features."""
    own = self.curvature_low * jnp.sum(self.features**2, 1)
    return own if self.features.shape[1] == 1 else jnp.zeros_like(own)


def constants(learner: Learner, pool: Pool, target: Params, *, radius: Any, inner_radius: Any = 0.0) -> Constants:
  """Measures a problem.

  Args:
    learner: least squares with one output, or logistic with cross-entropy.
    pool: the examples with their ground truth.
    target: w*.
    radius: of the ball around w* in which students are.
    inner_radius: theorem 1 speaks of students who are at least this far from w*; at 0 its bound says nothing.
  """
  check_learns_from(learner, pool)
  checks.check_params(learner, target, "target")
  radius = checks.check_positive("radius", radius)
  inner_radius = checks.check_not_negative("inner_radius", inner_radius)
  model = learner.model
  if not isinstance(model, models.Linear) or model.num_outputs != 1:
    raise ValueError("learner must be linear and have one output: the bounds are for least squares and logistic")
  if learner.loss not in (losses.squared_error, losses.sigmoid_cross_entropy):
    raise ValueError(f"learner has the loss {learner.loss.name}: bounds are for squared error and cross-entropy only")
  x, truth = pool.x, learner.encode(pool.x, pool.y)
  features = jnp.concatenate([x, jnp.ones_like(x[:, :1])], 1) if model.bias else x
  norms = jnp.linalg.norm(features, axis=1)
  center = learner.apply(target, x)  # [n, 1]
  reach = (radius * norms)[:, None]  # How far an output can be from its center.
  low, high = _curvature(learner.loss, center[:, 0], reach[:, 0])

  def gradient_norms(outputs: Array) -> Array:
    return jnp.abs(jax.vmap(learner.loss.output_gradient)(outputs, truth))[:, 0] * norms

  decay = 0.0 if learner.weight_decay is None else learner.weight_decay
  decayed = jnp.array([decay] * x.shape[1] + [0.0] * model.bias, x.dtype)
  moment = _mean_outer(low, features)
  jerk = 0.0 if learner.loss == losses.squared_error else _SIGMOID_JERK
  gap = jnp.max(gradient_norms(center)) + decay * jnp.linalg.norm(target["weights"])
  return Constants(
    features,
    low,
    high,
    _curvature(learner.loss, center[:, 0], jnp.zeros_like(norms))[0],
    decayed,
    # The gradient in the output is monotone, so it is longest at an end.
    jnp.maximum(jnp.max(gradient_norms(center - reach)), jnp.max(gradient_norms(center + reach))),
    jnp.linalg.eigvalsh(moment + jnp.diag(decayed))[0],
    jnp.linalg.eigvalsh(_mean_outer(jerk * norms, features))[-1],
    jnp.maximum(jnp.linalg.eigvalsh(moment)[0], 0.0) * inner_radius,
    gap,
    jnp.asarray(radius, x.dtype),
  )


def _curvature(loss: losses.Loss, center: Array, reach: Array) -> tuple[Array, Array]:
  """The least and the largest second derivative of the loss in outputs within `reach` of `center`, `[n]` each."""
  if loss == losses.squared_error:
    return jnp.ones_like(center), jnp.ones_like(center)
  far, near = jnp.abs(center) + reach, jnp.maximum(jnp.abs(center) - reach, 0.0)
  low, high = (jax.nn.sigmoid(z) * jax.nn.sigmoid(-z) for z in (far, near))
  return low, high


def _mean_outer(weights: Array, features: Array) -> Array:
  """The mean over examples of weight_i x_i x_i', `[p, p]`."""
  return (features * weights[:, None]).T @ features / features.shape[0]


def bound_1(constants: Constants, *, c1: Any, learning_rate: Any, distance: Any, steps: int) -> Array:
  """Theorem 1: bounds the mean of ||w - w*||^2 over students, `[steps + 1]`, by c0^t times its start.

      c0 = 1 - c1 eta mu + (c1 eta L_max)^2 ,           least for c1 eta = mu / (2 L_max^2)

  Notes on the paper (docs/errata.md). Its statement has L_max where its proof has L_max^2; the proof is right. The
  proof uses each loss's own order-1 modulus mu_i, zero for most; but g does not depend on the example, so that the
  modulus mu of the mean loss f is enough:

      <grad f(w), w - w*> >= f(w) - f(w*) + (mu / 2) ||w - w*||

  No loss has this all the way to w*, but least squares and logistic regression do at a distance of at least
  `inner_radius`, with mu = inner_radius times the least eigenvalue of the Hessian. So this bounds
  E[||e_t||^2 1{student was outside of the inner radius at every step before t}].

  Students stay in the ball if c1 eta radius <= 2 / max L_i, since no step then leads away from w*.

  Args:
    constants: of an interpolating problem, with an inner radius.
    c1: the teacher's.
    learning_rate: eta, the student's.
    distance: ||w0 - w*||, at most the radius.
    steps: T.
  """
  _check_start(constants, distance, steps)
  _check_interpolation(constants)
  c1 = checks.check_positive("c1", c1)
  learning_rate = checks.check_positive("learning_rate", learning_rate)
  pace = c1 * learning_rate
  return _powers(1 - pace * constants.order_1 + (pace * constants.lipschitz) ** 2, distance, steps)


def bound_2(constants: Constants, *, largest_rate: Any, distance: Any, steps: int) -> Array:
  """Theorem 2 as the paper states it: bounds the mean of ||w - w*||^2, `[steps + 1]`, for c2 = 1/2.

      max(1 - mu / L_max, 1 - mu eta'_max)^t ,     mu the mean of the mu_i, L_max the largest of the L_i

  Notes on the paper. A single loss of more than one feature is not strongly convex: then mu = 0, and the bound is its
  start for ever. And the proof takes every step that meets the condition to be at least 2 (1 - c2) / L_i long, but
  short steps meet it as well: what is meant is a search for the longest. Backtracking may stop shorter by a factor of
  `shrink`, and can exceed this bound. `bound_2_refined` does without both.

  Args:
    constants: of an interpolating problem.
    largest_rate: eta'_max, the learning rate times the teacher's `largest`.
    distance: ||w0 - w*||, at most the radius.
    steps: T.
  """
  _check_start(constants, distance, steps)
  _check_interpolation(constants)
  largest_rate = checks.check_positive("largest_rate", largest_rate)
  mu = jnp.mean(constants.convexity)
  factor = jnp.maximum(1 - safe_divide(mu, jnp.max(constants.smoothness)), 1 - mu * largest_rate)
  return _powers(factor, distance, steps)


def bound_2_refined(
  constants: Constants, *, largest_rate: Any, distance: Any, steps: int, c2: Any = 0.5, shrink: Any = 0.5
) -> Array:
  """Theorem 2 for backtracking and any number of features: bounds the mean of ||w - w*||^2, `[steps + 1]`.

      (1 - least eigenvalue of mean_i s_i h_i x_i x_i')^t ,     s_i = min(2 shrink (1 - c2) / L_i, eta'_max)

  Because: with e = w - w*, c2 >= 1/2, interpolation, and l_i convex, the condition gives
  eta' ||grad l_i||^2 <= 2 (l_i(w) - l_i(w*)), and so

      ||e+||^2 = ||e||^2 - 2 eta' <grad l_i, e> + eta'^2 ||grad l_i||^2 <= ||e||^2 - 2 eta' D_i(w*, w)

  where the Bregman divergence D_i(w*, w) = l_i(w*) - l_i(w) + <grad l_i(w), e> is at least h_i <x_i, e>^2 / 2. By
  smoothness every step of length 2 (1 - c2) / L_i or less meets the condition, so backtracking stops at s_i or before.
  (No step leads away from w*, so students stay in the ball.) The search must not run out of trials before s_i.

  Args:
    constants: of an interpolating problem.
    largest_rate: eta'_max, the learning rate times the teacher's `largest`.
    distance: ||w0 - w*||, at most the radius.
    steps: T.
    c2: the teacher's, at least 1/2 and less than 1.
    shrink: the teacher's.
  """
  _check_start(constants, distance, steps)
  _check_interpolation(constants)
  largest_rate = checks.check_positive("largest_rate", largest_rate)
  c2 = checks.check_between("c2", c2, 0.5, 1.0)
  shrink = checks.check_between("shrink", shrink, 0.0, 1.0)
  guaranteed = 2 * shrink * (1 - c2) / jnp.maximum(constants.smoothness, jnp.finfo(constants.features.dtype).tiny)
  lengths = jnp.minimum(guaranteed, largest_rate)
  progress = jnp.linalg.eigvalsh(_mean_outer(lengths * constants.curvature_low, constants.features))[0]
  return _powers(1 - jnp.maximum(progress, 0.0), distance, steps)


def bound_3(constants: Constants, *, alpha: Any, distance: Any, steps: int) -> Array:
  """Theorem 3: bounds ||w - w*|| itself, not its square, `[steps + 1]`, for labels that realise the step.

      ||e+|| <= (L / mu) ((1 - alpha)^2 + alpha^2) / 2 ||e||^2

  with mu the least eigenvalue of the objective's Hessian in the ball and L the Lipschitz constant of the Hessian.

  Notes on the paper. It assumes eigenvalues of at least mu, but then bounds the *inverse* of the Hessian by mu: its
  L mu delta < 2 is (L / mu) delta < 2 here. What it calls L-smooth is the gradient, so L is the Hessian's Lipschitz
  constant only as its proof uses it. For indefinite Hessians it must be every eigenvalue that is large, not the least.

  Args:
    constants: of a problem whose w* minimises the objective; weight decay is allowed and interpolation not needed.
    alpha: the teacher's.
    distance: ||w0 - w*||, at most the radius.
    steps: T.
  """
  alpha = checks.check_between("alpha", alpha, 0.0, 1.0)
  _check_start(constants, distance, steps)
  if is_concrete(constants.hessian_low) and constants.hessian_low <= 0:
    raise ValueError("constants: the objective's Hessian is singular in the ball, so theorem 3 does not apply")
  factor = constants.hessian_lipschitz / constants.hessian_low * ((1 - alpha) ** 2 + alpha**2) / 2
  start = jnp.asarray(distance, factor.dtype)
  _, later = jax.lax.scan(lambda error, _: (factor * error**2,) * 2, start, length=steps)
  return jnp.concatenate([start[None], later])


def bound_3_sampled(constants: Constants, *, chosen: Array, distance: Any, steps: int) -> Array:
  """Theorem 3 for alpha = 1 with the Hessian of some examples: bounds ||w - w*||, `[steps + 1]`.

      ||e+|| <= ||I - H_S^-1 H|| ||e|| + ||H_S^-1|| (L / 2) ||e||^2

  with H and H_S the Hessians at w*, of the whole objective and of the examples S, because

      e+ = H_S^-1 ((H_S - H) + integral over t in [0, 1] of (H - H(w* + t e))) e

  The first term remains: near w* students converge exponentially, at the pace ||I - H_S^-1 H||, and not quadratically.
  The bound says nothing where it grows.

  Args:
    constants: as for `bound_3`.
    chosen: `[s]` the examples S: those of a teacher are `teachers.theorems.hessian_examples(hessian_size, n)`.
    distance: ||w0 - w*||, at most the radius.
    steps: T.
  """
  _check_start(constants, distance, steps)
  some = jnp.asarray(chosen)
  whole = _mean_outer(constants.curvature, constants.features) + jnp.diag(constants.decay)
  sampled = _mean_outer(constants.curvature[some], constants.features[some]) + jnp.diag(constants.decay)
  values = jnp.linalg.eigvalsh(sampled)
  if is_concrete(values) and values[0] <= values[-1] * values.size * np.finfo(values.dtype).eps:
    raise ValueError(f"chosen: the Hessian of these {some.size} examples is singular: choose more of them")
  pace = jnp.linalg.norm(jnp.linalg.solve(sampled, sampled - whole), 2)
  factor = constants.hessian_lipschitz / (2 * values[0])
  start = jnp.asarray(distance, pace.dtype)
  _, later = jax.lax.scan(lambda error, _: (pace * error + factor * error**2,) * 2, start, length=steps)
  return jnp.concatenate([start[None], later])


def _check_start(constants: Constants, distance: Any, steps: int) -> None:
  if not isinstance(constants, Constants):
    raise TypeError(f"constants must come from theory.constants, but it is a {type(constants).__name__}")
  checks.check_not_negative("distance", distance)
  checks.check_count("steps", steps)
  if is_concrete(constants.radius) and not isinstance(distance, jax.core.Tracer):
    checks.check_between("distance", distance, 0.0, float(constants.radius) * (1 + _SLACK))


def _check_interpolation(constants: Constants) -> None:
  gap, lipschitz = constants.gap, constants.lipschitz
  if is_concrete(gap, lipschitz) and gap > np.sqrt(np.finfo(gap.dtype).eps) * lipschitz:
    raise ValueError(
      f"constants: w* does not minimise every single loss (a gradient of {float(gap):.2g} is left): theorems 1 and 2 "
      "need that, as theory.interpolating_pool has it, and a learner without weight decay"
    )


def _powers(factor: Any, distance: Any, steps: int) -> Array:
  """factor^t distance^2, `[steps + 1]`."""
  return factor ** jnp.arange(steps + 1) * distance**2
