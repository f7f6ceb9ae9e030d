"""Minimisers of a learner's objective, independent of the units of features and labels.

Newton's method for linear models: with the Hessian, or with conjugate gradients where that is large. L-BFGS for others.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from last_jax import losses, models
from last_jax.base import Array, Params
from last_jax.learners import Learner
from last_jax.quadratic import power_of_two

_DENSE_PARAMS = 1000  # Largest number of parameters for which Newton's method forms the Hessian.
_HESSIAN_ENTRIES = 2**22  # Entries of each temporary `[columns, n, K]` while the Hessian is assembled.
_CG_ITERATIONS = 250  # Most conjugate gradient iterations per Newton step.
_HALVINGS = 12  # Step sizes tried per Newton step: 1, 1/2, 1/4, ...
_ALIKE = 1e-4  # Features at least this large, relative to the largest, are fitted in one unit.
_USUAL = 1e3  # Inputs of a network whose size is within this factor of 1 are fitted as they are.


class Minimum(NamedTuple):
  """End of a minimisation."""

  params: Params
  objective: Array  # []
  gradient_norm: Array  # []
  steps: Array  # []
  share: Array  # [] the gradient norm relative to the problem's scale: see `_Scale`.


class _Scale(NamedTuple):
  """The sizes that a fit is relative to, one for each parameter, so that units of features and labels do not matter."""

  steps: Array  # [P] parameters times these are of size one: the features, and what weight decay adds to them.
  weights: Array  # [P] the gradient in those, times these, is relative to that of each feature alone.


@jax.jit
def relative_gradient(learner: Learner, params: Params, x: Array, labels: Array) -> Array:
  """Return the gradient norm at these parameters, relative to the problem's scale: `[]`."""
  scale = _scale(learner, params, x, labels)
  slope, _ = ravel_pytree(jax.grad(learner.objective)(params, x, labels))
  return _measure(slope / scale.steps, scale)


def _measure(slope: Array, scale: _Scale) -> Array:
  """Return the size of the gradient `[P]` in the scaled parameters, relative to the problem's scale: `[]`."""
  return jnp.linalg.norm(slope * scale.weights)


def _scale(learner: Learner, params: Params, x: Array, labels: Array) -> _Scale:
  """Return the scale of the problem, from the inputs and from the loss's slope in the outputs at zero parameters."""
  decay = 0.0 if learner.weight_decay is None else jnp.sqrt(learner.weight_decay)
  steps = weights = jax.tree.map(jnp.ones_like, params)
  if isinstance(learner.model, models.Linear):
    size = power_of_two(x)
    features = size * jnp.sqrt(jnp.mean((x / size) ** 2, 0))  # [d]
    largest = jnp.maximum(jnp.max(features), 1.0) if learner.model.bias else jnp.max(features)
    # One size for all that are not very different: of several minimisers the shortest is then found, which is in the
    # span of the examples.
    alike = (features > _ALIKE * largest) | (features == 0)
    features = jnp.where(alike, jnp.where(largest > 0, largest, 1.0), features)[:, None]
    steps = {"weights": steps["weights"] * jnp.hypot(features, decay)}
    weights = {"weights": steps["weights"] / features}
    if learner.model.bias:
      one = jnp.where(_ALIKE * largest < 1, largest, 1.0)
      steps, weights = steps | {"bias": params["bias"] * 0 + one}, weights | {"bias": jnp.ones_like(params["bias"])}
  elif isinstance(learner.model, models.Mlp):
    first = {"weights": steps["layer_0"]["weights"] * input_size(learner, x)}
    steps = steps | {"layer_0": steps["layer_0"] | first}
  unit: Array | float = 1.0
  if isinstance(learner.model, models.Linear) or not learner.loss.classification:
    outputs = losses.rows(learner.apply(jax.tree.map(jnp.zeros_like, params), x))
    slopes = jax.vmap(learner.loss.output_gradient)(outputs, losses.rows(labels))
    size = power_of_two(slopes)
    unit = size * jnp.sqrt(jnp.mean(jnp.sum((slopes / size) ** 2, 1)))
    unit = jnp.where(unit > 0, unit, 1.0)
  return _Scale(ravel_pytree(steps)[0], ravel_pytree(weights)[0] / unit)


def input_size(learner: Learner, x: Array) -> Array | float:
  """Return the size of a network's inputs and of weight decay, or 1 if within a factor of a thousand of 1: `[]`."""
  x = models.wide(x)
  size = power_of_two(x)
  size = size * jnp.sqrt(jnp.max(jnp.mean((x / size) ** 2, 0)))
  usual = ((size > 1 / _USUAL) & (size < _USUAL)) | (size == 0)
  decay = 0.0 if learner.weight_decay is None else jnp.sqrt(learner.weight_decay)
  return jnp.where(usual, 1.0, power_of_two(jnp.hypot(size, decay)))


@jax.jit
def minimise(learner: Learner, params: Params, x: Array, labels: Array, tolerance: Any, max_steps: Any) -> Minimum:
  """Minimise the learner's objective, from `params`, until the gradient is at most `tolerance`.

  Args:
    learner: defines the objective.
    params: where to start.
    x: `[n, ...]` inputs.
    labels: `[n, K]`, as `learner.encode` returns them.
    tolerance: `[]`, relative to the problem's scale.
    max_steps: `[]`, of Newton's method for linear models, of L-BFGS for others.
  """
  flat, unravel = ravel_pytree(params)
  scale = _scale(learner, params, x, labels)

  def objective(flat: Array) -> Array:
    return learner.objective(unravel(flat / scale.steps), x, labels)

  flat = flat * scale.steps
  if not isinstance(learner.model, models.Linear):
    flat, value, slope, steps = _lbfgs(objective, flat, scale, tolerance, max_steps)
  elif flat.size <= _DENSE_PARAMS:
    columns = max(1, _HESSIAN_ENTRIES // labels.size)
    solve = functools.partial(_solve, columns)
    flat, value, slope, steps = _newton(objective, solve, flat, scale, tolerance, max_steps)
  else:
    flat, value, slope, steps = _newton(objective, _conjugate_gradients, flat, scale, tolerance, max_steps)
  gradient = slope * scale.steps
  size = power_of_two(gradient)  # Whose squares may overflow.
  norm = size * jnp.linalg.norm(gradient / size)
  return Minimum(unravel(flat / scale.steps), value, norm, steps, _measure(slope, scale))


def _newton(
  value: Callable[[Array], Array], solve: Any, flat: Array, scale: _Scale, tolerance: Any, max_steps: Any
) -> Any:
  """Newton's method with backtracking, for convex objectives; `solve` returns the direction."""
  value_and_slope = jax.value_and_grad(value)
  eps = jnp.finfo(flat.dtype).eps

  def step(state: Any) -> Any:
    flat, now, slope, count = state
    _, product = jax.linearize(jax.grad(value), flat)  # v -> H v, sharing what does not depend on v.
    direction = solve(product, slope, scale)
    descent, left = jnp.vdot(slope, direction), _measure(slope, scale)

    def is_good(share: Array, new: Array, new_slope: Array) -> Array:
      # Armijo's rule; near the minimum the objective's own rounding hides progress, but the gradient still shows it.
      level = jnp.abs(new - now) <= 10 * eps * jnp.abs(now)
      return (new <= now + 1e-4 * share * descent) | (level & (_measure(new_slope, scale) < left))

    def attempt(state: Any) -> Any:
      tries, *_ = state
      share = jnp.asarray(0.5, flat.dtype) ** tries
      candidate = flat + share * direction
      new, new_slope = value_and_slope(candidate)
      return tries + 1, is_good(share, new, new_slope), candidate, new, new_slope

    def unsettled(state: Any) -> Any:
      return ~state[1] & (state[0] < _HALVINGS)

    start = (jnp.zeros((), int), jnp.zeros((), bool), flat, now, slope)
    _, good, *found = jax.lax.while_loop(unsettled, attempt, start)
    found = [jnp.where(good, new, old) for new, old in zip(found, (flat, now, slope), strict=True)]
    return *found, jnp.where(good, count + 1, max_steps)  # Without progress it ends.

  def unfinished(state: Any) -> Any:
    return (_measure(state[2], scale) > tolerance) & (state[3] < max_steps)

  state = (flat, *value_and_slope(flat), jnp.zeros((), int))
  flat, now, slope, count = jax.lax.while_loop(unfinished, step, state)
  return flat, now, slope, count


def _solve(columns: int, product: Any, slope: Array, scale: _Scale) -> Array:
  """Newton direction from the Hessian `[P, P]`, which is assembled `columns` columns at a time."""
  size = slope.size
  chunks = -(-size // columns)
  rows = -(-size // chunks)
  identity = jnp.eye(chunks * rows, size, dtype=slope.dtype).reshape(chunks, rows, size)
  hessian = jax.lax.map(jax.vmap(product), identity).reshape(-1, size)[:size]
  # Softmax has directions without curvature: the damping keeps the system solvable, and does not move along them. It
  # fades with the gradient.
  trace = jnp.trace(hessian) / size + jnp.finfo(slope.dtype).tiny
  damping = trace * (10 * jnp.finfo(slope.dtype).eps + 1e-3 * jnp.minimum(1.0, _measure(slope, scale)))
  return -jnp.linalg.solve(hessian + damping * jnp.eye(size, dtype=slope.dtype), slope)


def _conjugate_gradients(product: Any, slope: Array, scale: _Scale) -> Array:
  """Newton direction from Hessian-vector products: solves H d = -slope to a tolerance that tightens with the slope.

  The iterates stay in the range of H, so that directions without curvature need no damping.
  """
  left = _measure(slope, scale)
  wanted = left * jnp.minimum(0.1, jnp.sqrt(left))

  def iterate(state: Any) -> Any:
    direction, residual, conjugate, square, count, _ = state
    image = product(conjugate)
    curvature = jnp.vdot(conjugate, image)
    curved = curvature > 0  # Not where rounding is all that is left: the direction so far is then the answer.
    share = jnp.where(curved, square / jnp.where(curved, curvature, 1.0), 0.0)
    direction, residual = direction + share * conjugate, residual - share * image
    new_square = jnp.vdot(residual, residual)
    return direction, residual, residual + new_square / square * conjugate, new_square, count + 1, curved

  def unfinished(state: Any) -> Any:
    return (_measure(state[1], scale) > wanted) & (state[4] < _CG_ITERATIONS) & state[5]

  state = (jnp.zeros_like(slope), -slope, -slope, jnp.vdot(slope, slope), jnp.zeros((), int), jnp.ones((), bool))
  direction, *_ = jax.lax.while_loop(unfinished, iterate, state)
  return jnp.where(jnp.any(direction != 0), direction, -slope)


def _lbfgs(value: Callable[[Array], Array], flat: Array, scale: _Scale, tolerance: Any, max_steps: Any) -> Any:
  """L-BFGS; returns the iterate of least gradient norm, since the last one need not be it."""
  solver = optax.lbfgs(memory_size=20)
  value_and_slope = optax.value_and_grad_from_state(value)

  def step(state: Any) -> Any:
    flat, opt_state, _, count, best, best_slope = state
    loss, slope = value_and_slope(flat, state=opt_state)
    norm = _measure(slope, scale)
    better = norm < _measure(best_slope, scale)  # False for NaN, which also ends the loop.
    best, best_slope = jnp.where(better, flat, best), jnp.where(better, slope, best_slope)
    updates, opt_state = solver.update(slope, opt_state, flat, value=loss, grad=slope, value_fn=value)
    return optax.apply_updates(flat, updates), opt_state, norm, count + 1, best, best_slope

  def unfinished(state: Any) -> Any:
    return (state[2] > tolerance) & (state[3] < max_steps)

  infinity = jnp.full((), jnp.inf, flat.dtype)
  state = (flat, solver.init(flat), infinity, jnp.zeros((), int), flat, jnp.full_like(flat, jnp.inf))
  *_, count, best, best_slope = jax.lax.while_loop(unfinished, step, state)
  return best, value(best), best_slope, count
