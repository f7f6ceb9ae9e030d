"""Finding w*, and what of the way to it no label can reach."""

import functools
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import logging
from jax.flatten_util import ravel_pytree

from last_jax import checks, devices, models
from last_jax.learners import Learner, check_learns_from
from last_jax.types import Array, Key, Params, Pool


class Fit(NamedTuple):
  """How well a target was fitted."""

  gradient_norm: float  # Linear models are fitted in float64 and then rounded to the dtype of the pool.
  objective: float
  steps: int
  converged: bool


def fit_target(
  learner: Learner,
  pool: Pool,
  *,
  key: Key | None = None,
  init: Params | None = None,
  tolerance: float | None = None,
  max_steps: int | None = None,
  with_fit: bool = False,
) -> Any:
  """w*, the minimiser of the learner's objective over the pool: Newton for linear models, L-BFGS for others.

  Warns if the gradient is not as small as asked for, and says how small it is.

  Args:
    learner: whose objective; its optimizer does not matter.
    pool: examples with their ground truth.
    key: for a network's random start; `jax.random.key(0)` unless given.
    init: where to start instead. Linear models start at zero.
    tolerance: what the gradient's norm must come down to, relative to its norm at zero parameters or 1, whichever is
      more; 1e-9 unless given (1e-5 for networks in float32).
    max_steps: 100 Newton or 5000 L-BFGS steps unless given.
    with_fit: return also a `Fit`, with the gradient norm reached.

  Returns:
    The parameters; with `with_fit`, a pair of them and a `Fit`.
  """
  check_learns_from(learner, pool)
  checks.check_two_classes(learner, pool.y, "pool")
  if tolerance is not None:
    checks.check_positive("tolerance", tolerance)
  if max_steps is not None:
    checks.check_count("max_steps", max_steps)
  if init is not None:
    checks.check_params(learner, init, "init")
  linear = isinstance(learner.model, models.Linear)
  steps = max_steps or (100 if linear else 5000)
  if tolerance is None:
    tolerance = 1e-9 if linear or pool.x.dtype == jnp.float64 else 1e-5
  labels = learner.encode(pool.x, pool.y)
  if linear:
    target, objective, norm, taken, bound = _fit_linear(learner, init, pool.x, labels, tolerance, steps)
  else:
    params = learner.init(jax.random.key(0) if key is None else key) if init is None else init
    target, objective, norm, taken, bound = _minimise(learner, params, pool.x, labels, tolerance, steps, linear=False)
  fit = Fit(float(norm), float(objective), int(taken), bool(norm <= bound))
  message = f"fit_target: gradient norm {fit.gradient_norm:.2e} after {fit.steps} steps"
  logging.info(message)
  if not fit.converged:
    warnings.warn(f"{message}, but {float(bound):.2e} was asked for: the target is not a minimum", stacklevel=2)
  return (target, fit) if with_fit else target


def _fit_linear(learner: Learner, init: Params | None, x: Array, labels: Array, tolerance: float, steps: int) -> Any:
  """In float64 whatever the precision, from zero: convex and small, so that w* is as good as its dtype allows.

  On the host, because GPUs are slow in float64 and TPUs have none.
  """
  dtype = x.dtype
  arrays = jax.tree.map(np.asarray, (init, x, labels))
  with jax.enable_x64(True), jax.default_device(devices.host()):
    init, x, labels = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), arrays)
    start = jax.tree.map(lambda s: jnp.zeros(s.shape), models.param_shapes(learner.model)) if init is None else init
    target, *rest = _minimise(learner, start, x, labels, tolerance, steps, linear=True)
    target, rest = jax.tree.map(np.asarray, (target, rest))
  return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), target), *rest


@functools.partial(jax.jit, static_argnames="linear")
def _minimise(
  learner: Learner, params: Params, x: Array, labels: Array, tolerance: Any, max_steps: Any, *, linear: bool
):
  flat, unravel = ravel_pytree(params)

  def objective(flat: Array) -> Array:
    return learner.objective(unravel(flat), x, labels)

  flat, norm, taken, bound = (_newton if linear else _lbfgs)(objective, flat, tolerance, max_steps)
  return unravel(flat), objective(flat), norm, taken, bound


def _bound(gradient: Any, flat: Array, tolerance: Any) -> Array:
  return tolerance * jnp.maximum(1.0, jnp.linalg.norm(gradient(jnp.zeros_like(flat))))


def _newton(value: Any, flat: Array, tolerance: Any, max_steps: Any):
  """Newton's method with a little damping, which fades with the gradient, and backtracking. For convex objectives."""
  gradient, hessian = jax.grad(value), jax.hessian(value)
  bound = _bound(gradient, flat, tolerance)

  def step(state):
    flat, slope, count = state
    curvature = hessian(flat)
    # Softmax has directions without curvature: the damping keeps the system solvable and does not move along them.
    trace = jnp.trace(curvature) / flat.size + jnp.finfo(flat.dtype).tiny
    damping = trace * (10 * jnp.finfo(flat.dtype).eps + 1e-3 * jnp.minimum(1.0, jnp.linalg.norm(slope)))
    direction = -jnp.linalg.solve(curvature + damping * jnp.eye(flat.size, dtype=flat.dtype), slope)
    shares = 2.0 ** -jnp.arange(12.0, dtype=flat.dtype)
    candidates = flat[None] + shares[:, None] * direction[None]
    values, norms = jax.lax.map(lambda w: (value(w), jnp.linalg.norm(gradient(w))), candidates)
    # Armijo's rule; near the minimum the objective's own rounding hides progress, but the gradient still shows it.
    now = value(flat)
    enough = values <= now + 1e-4 * shares * jnp.vdot(slope, direction)
    level = jnp.abs(values - now) <= 10 * jnp.finfo(flat.dtype).eps * jnp.abs(now)
    good = enough | (level & (norms < jnp.linalg.norm(slope)))
    new = jnp.where(jnp.any(good), candidates[jnp.argmax(good)], flat)
    return new, gradient(new), jnp.where(jnp.any(good), count + 1, max_steps)

  def unfinished(state):
    return (jnp.linalg.norm(state[1]) > bound) & (state[2] < max_steps)

  flat, slope, count = jax.lax.while_loop(unfinished, step, (flat, gradient(flat), jnp.zeros((), int)))
  return flat, jnp.linalg.norm(slope), count, bound


def _lbfgs(value: Any, flat: Array, tolerance: Any, max_steps: Any):
  solver = optax.lbfgs(memory_size=20)
  value_and_gradient = optax.value_and_grad_from_state(value)
  bound = _bound(jax.grad(value), flat, tolerance)

  def step(state):
    flat, opt_state, _, count, best, best_norm = state
    loss, slope = value_and_gradient(flat, state=opt_state)
    norm = jnp.linalg.norm(slope)
    best, best_norm = jnp.where(norm < best_norm, flat, best), jnp.minimum(norm, best_norm)
    updates, opt_state = solver.update(slope, opt_state, flat, value=loss, grad=slope, value_fn=value)
    return optax.apply_updates(flat, updates), opt_state, norm, count + 1, best, best_norm

  def unfinished(state):
    return (state[2] > bound) & (state[3] < max_steps)

  infinity = jnp.full((), jnp.inf, flat.dtype)
  state = (flat, solver.init(flat), infinity, jnp.zeros((), int), flat, infinity)
  *_, count, best, best_norm = jax.lax.while_loop(unfinished, step, state)
  return best, best_norm, count, bound


def unreachable_distance(learner: Learner, params: Params, target: Params, x: Array) -> Array:
  """The norm of `unreachable_part`: for linear learners ||w - w*|| can never fall below it (weight decay aside)."""
  return optax.tree.norm(unreachable_part(learner, params, target, x))


def unreachable_part(learner: Learner, params: Params, target: Params, x: Array) -> Params:
  """The part of w - w* that no labels of the examples `x [n, ...]` can change, around these parameters.

  For linear learners it is the same all along: what lies outside the span of the examples and, for softmax, what is
  common to all classes.
  """
  checks.check_params(learner, params, "params")
  checks.check_params(learner, target, "target")
  checks.check_inputs(learner, x, "x")
  checks.check_finite("x", x)
  width = learner.num_outputs(x)

  def directions(x_one: Array) -> Array:
    outputs, pull = jax.vjp(lambda w: learner.apply(w, x_one[None])[0], params)
    slope = learner.loss.label_slope(outputs, jnp.zeros(width, x.dtype) + 0.5)
    return jax.vmap(lambda column: ravel_pytree(pull(column)[0])[0])(slope.T)  # [K, P]

  # The span of all directions, from the P x P sum of their outer products: no [n K, P] matrix is kept.
  size = ravel_pytree(params)[0].size

  def add(total: Array, x_one: Array) -> tuple[Array, None]:
    rows = directions(x_one)
    return total + rows.T @ rows, None

  gram, _ = jax.lax.scan(add, jnp.zeros((size, size), x.dtype), x)
  values, vectors = jnp.linalg.eigh(gram)
  beyond = values <= size * jnp.finfo(x.dtype).eps * jnp.max(values)
  error, unravel = ravel_pytree(optax.tree.sub(params, target))
  return unravel(vectors @ jnp.where(beyond, vectors.T @ error, 0.0))
