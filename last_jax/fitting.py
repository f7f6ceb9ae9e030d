"""The target w*, and the part of w - w* that no label can change."""

import functools
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import logging
from jax.flatten_util import ravel_pytree

from last_jax import checks, devices, losses, models
from last_jax.base import Array, Key, Params, Pool
from last_jax.learners import Learner, check_learns_from

_DENSE_PARAMS = 1000  # Largest number of parameters for which Newton's method forms the Hessian.
_HESSIAN_ENTRIES = 2**22  # Entries of each temporary `[columns, n, K]` while the Hessian is assembled.
_CG_ITERATIONS = 250  # Most conjugate gradient iterations per Newton step.
_HALVINGS = 12  # Step sizes tried per Newton step: 1, 1/2, 1/4, ...


class Fit(NamedTuple):
  """Quality of a fitted target. Linear models are fitted in float64 and rounded afterwards: this is before rounding."""

  gradient_norm: float
  objective: float
  steps: int
  converged: bool  # Whether the gradient norm is within the tolerance.


class Minimum(NamedTuple):
  """End of a minimisation."""

  params: Params
  objective: Array  # []
  gradient_norm: Array  # []
  steps: Array  # []


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
  """Return w*, the minimiser of the learner's objective over the pool.

  Linear models are fitted by Newton's method: with the Hessian up to 1,000 parameters, with Hessian-vector products
  and conjugate gradients beyond. Others are fitted by L-BFGS. Memory grows with the pool and the parameters, not with
  their product. Warns if the gradient norm reached is above the tolerance.

  Args:
    learner: defines the objective; its optimizer has no influence.
    pool: examples with their ground truth.
    key: for the random start of a network; `jax.random.key(0)` by default.
    init: parameters to start from instead. Linear models start from zero by default.
    tolerance: bound on the gradient norm, relative to max(1, gradient norm at zero parameters); 1e-9 by default (1e-5
      for networks in float32).
    max_steps: 100 Newton or 5000 L-BFGS steps by default.
    with_fit: whether to return a `Fit` as well, with the gradient norm reached.

  Returns:
    The parameters; with `with_fit`, the pair (parameters, `Fit`).

  Raises:
    ValueError: an argument is wrong, or the gradient is not finite at zero parameters or at the end.
  """
  check_learns_from(learner, pool)
  checks.check_two_classes(learner, pool.x, pool.y, "pool")
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
    found, bound = _fit_linear(learner, init, pool.x, labels, tolerance, steps)
  else:
    params = learner.init(jax.random.key(0) if key is None else key) if init is None else init
    found, bound = _fit(learner, models.wide(params), pool.x, labels, tolerance, steps)
    # Parameters of 16 bits are fitted in float32, and rounded at the end.
    found = found._replace(params=jax.tree.map(lambda new, old: new.astype(old.dtype), found.params, params))
  norm = float(found.gradient_norm)
  message = f"fit_target: gradient norm {norm:.2e} after {int(found.steps)} steps"
  if not np.isfinite(norm):
    raise ValueError(f"{message}, so there is no target: scale pool.x, or start nearer to the minimum with init")
  logging.info(message)
  fit = Fit(norm, float(found.objective), int(found.steps), norm <= bound)
  if not fit.converged:
    warnings.warn(f"{message}, but {bound:.2e} was asked for: the target is not a minimum", stacklevel=2)
  return (found.params, fit) if with_fit else found.params


def _fit_linear(
  learner: Learner, init: Params | None, x: Array, labels: Array, tolerance: float, max_steps: int
) -> tuple[Minimum, float]:
  """Fit in float64, whatever the precision of `x`: the problem is convex, and w* as good as its dtype allows.

  Runs on the host: GPUs are slow in float64, and TPUs have none.
  """
  dtype = labels.dtype
  arrays = jax.tree.map(np.asarray, (init, x, labels))
  with jax.enable_x64(True), jax.default_device(devices.host()):
    init, x, labels = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), arrays)
    start = jax.tree.map(lambda s: jnp.zeros(s.shape), models.param_shapes(learner.model)) if init is None else init
    found, bound = _fit(learner, start, x, labels, tolerance, max_steps)
    found = jax.tree.map(np.asarray, found)
  return found._replace(params=jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), found.params)), bound


def _fit(
  learner: Learner, params: Params, x: Array, labels: Array, tolerance: float, max_steps: int
) -> tuple[Minimum, float]:
  """Return the minimum found, and the bound on its gradient norm."""
  # The zeros are an argument of the compiled program. With jaxlib 0.10.2 on a CPU, zeros that are a constant in it give
  # NaN in 8 of 100 compilations, in every run of such a compilation: XLA miscompiles the fusion of a matrix product
  # with a constant and the maximum over a row (softmax). tests/miscompilation.py reproduces it in pure JAX. It was not
  # seen with the flag for YNNPACK that `devices.prepare` sets, with which all commands run.
  norm = float(_gradient_norm(learner, jax.tree.map(jnp.zeros_like, params), x, labels))
  if not np.isfinite(norm):
    raise ValueError(
      f"pool: the objective's gradient norm at zero parameters, which the tolerance is relative to, is {norm}: "
      "scale pool.x, or change the learner"
    )
  bound = tolerance * max(1.0, norm)
  return minimise(learner, params, x, labels, bound, max_steps), bound


@jax.jit
def _gradient_norm(learner: Learner, params: Params, x: Array, labels: Array) -> Array:
  return optax.tree.norm(jax.grad(learner.objective)(params, x, labels))


@jax.jit
def minimise(learner: Learner, params: Params, x: Array, labels: Array, bound: Any, max_steps: Any) -> Minimum:
  """Minimise the learner's objective, from `params`, until the gradient norm is at most `bound`.

  Args:
    learner: defines the objective.
    params: where to start.
    x: `[n, ...]` inputs.
    labels: `[n, K]`, as `learner.encode` returns them.
    bound: `[]`.
    max_steps: `[]`, of Newton's method for linear models, of L-BFGS for others.
  """
  flat, unravel = ravel_pytree(params)

  def objective(flat: Array) -> Array:
    return learner.objective(unravel(flat), x, labels)

  if not isinstance(learner.model, models.Linear):
    flat, value, norm, steps = _lbfgs(objective, flat, bound, max_steps)
  elif flat.size <= _DENSE_PARAMS:
    columns = max(1, _HESSIAN_ENTRIES // labels.size)
    flat, value, norm, steps = _newton(objective, functools.partial(_solve, columns), flat, bound, max_steps)
  else:
    flat, value, norm, steps = _newton(objective, _conjugate_gradients, flat, bound, max_steps)
  return Minimum(unravel(flat), value, norm, steps)


def _newton(value: Callable[[Array], Array], solve: Any, flat: Array, bound: Any, max_steps: Any) -> Any:
  """Newton's method with backtracking, for convex objectives; `solve` returns the direction."""
  value_and_slope = jax.value_and_grad(value)
  eps = jnp.finfo(flat.dtype).eps

  def step(state: Any) -> Any:
    flat, now, slope, count = state
    _, product = jax.linearize(jax.grad(value), flat)  # v -> H v, sharing what does not depend on v.
    direction = solve(product, slope, bound)
    descent, norm = jnp.vdot(slope, direction), jnp.linalg.norm(slope)

    def is_good(share: Array, new: Array, new_slope: Array) -> Array:
      # Armijo's rule; near the minimum the objective's own rounding hides progress, but the gradient still shows it.
      level = jnp.abs(new - now) <= 10 * eps * jnp.abs(now)
      return (new <= now + 1e-4 * share * descent) | (level & (jnp.linalg.norm(new_slope) < norm))

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
    return (jnp.linalg.norm(state[2]) > bound) & (state[3] < max_steps)

  state = (flat, *value_and_slope(flat), jnp.zeros((), int))
  flat, now, slope, count = jax.lax.while_loop(unfinished, step, state)
  return flat, now, jnp.linalg.norm(slope), count


def _solve(columns: int, product: Any, slope: Array, bound: Any) -> Array:
  """Newton direction from the Hessian `[P, P]`, which is assembled `columns` columns at a time."""
  size = slope.size
  chunks = -(-size // columns)
  rows = -(-size // chunks)
  identity = jnp.eye(chunks * rows, size, dtype=slope.dtype).reshape(chunks, rows, size)
  hessian = jax.lax.map(jax.vmap(product), identity).reshape(-1, size)[:size]
  # Softmax has directions without curvature: the damping keeps the system solvable, and does not move along them. It
  # fades with the gradient.
  trace = jnp.trace(hessian) / size + jnp.finfo(slope.dtype).tiny
  damping = trace * (10 * jnp.finfo(slope.dtype).eps + 1e-3 * jnp.minimum(1.0, jnp.linalg.norm(slope)))
  return -jnp.linalg.solve(hessian + damping * jnp.eye(size, dtype=slope.dtype), slope)


def _conjugate_gradients(product: Any, slope: Array, bound: Any) -> Array:
  """Newton direction from Hessian-vector products: solves H d = -slope to a tolerance that tightens with the slope.

  The iterates stay in the range of H, so that directions without curvature need no damping.
  """
  norm = jnp.linalg.norm(slope)
  wanted = jnp.maximum(norm * jnp.minimum(0.1, jnp.sqrt(norm)), 0.1 * bound)

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
    return (state[3] > wanted**2) & (state[4] < _CG_ITERATIONS) & state[5]

  state = (jnp.zeros_like(slope), -slope, -slope, norm**2, jnp.zeros((), int), jnp.ones((), bool))
  direction, *_ = jax.lax.while_loop(unfinished, iterate, state)
  return jnp.where(jnp.any(direction != 0), direction, -slope)


def _lbfgs(value: Callable[[Array], Array], flat: Array, bound: Any, max_steps: Any) -> Any:
  """L-BFGS; returns the iterate of least gradient norm, since the last one need not be it."""
  solver = optax.lbfgs(memory_size=20)
  value_and_slope = optax.value_and_grad_from_state(value)

  def step(state: Any) -> Any:
    flat, opt_state, _, count, best, best_norm = state
    loss, slope = value_and_slope(flat, state=opt_state)
    norm = jnp.linalg.norm(slope)
    better = norm < best_norm  # False for NaN, which also ends the loop.
    best, best_norm = jnp.where(better, flat, best), jnp.where(better, norm, best_norm)
    updates, opt_state = solver.update(slope, opt_state, flat, value=loss, grad=slope, value_fn=value)
    return optax.apply_updates(flat, updates), opt_state, norm, count + 1, best, best_norm

  def unfinished(state: Any) -> Any:
    return (state[2] > bound) & (state[3] < max_steps)

  infinity = jnp.full((), jnp.inf, flat.dtype)
  state = (flat, solver.init(flat), infinity, jnp.zeros((), int), flat, infinity)
  *_, count, best, best_norm = jax.lax.while_loop(unfinished, step, state)
  return best, value(best), best_norm, count


def unreachable_distance(learner: Learner, params: Params, target: Params, x: Array) -> Array:
  """Return the norm of `unreachable_part`: a lower bound of ||w - w*|| for linear learners without weight decay."""
  return optax.tree.norm(unreachable_part(learner, params, target, x))


def unreachable_part(learner: Learner, params: Params, target: Params, x: Array) -> Params:
  """Return the part of w - w* that no labels of the examples `x [n, ...]` can change, around these parameters.

  For a linear learner it is the same at all parameters: the part outside the span of the examples and, for softmax, the
  part that all classes have in common. Takes memory for P x P numbers, where P is the number of parameters.
  """
  checks.check_params(learner, params, "params")
  checks.check_params(learner, target, "target")
  checks.check_inputs(learner, x, "x")
  checks.check_finite("x", x)
  params, target = models.wide(params), models.wide(target)
  x = x.astype(models.label_dtype(x))

  def directions(x_one: Array) -> Array:
    outputs, pull = jax.vjp(lambda w: losses.rows(learner.apply(w, x_one[None])[0][None]), params)  # [T, K]
    slopes = jax.vmap(learner.loss.label_slope)(outputs, jnp.full_like(outputs, 0.5))  # [T, K, K]
    columns = jax.vmap(jax.vmap(jnp.outer, (None, 1)), (0, 0))(jnp.eye(outputs.shape[0], dtype=x.dtype), slopes)
    columns = columns.reshape(-1, *outputs.shape)  # [T K, T, K]: du/dy for each number of each token's label.
    return jax.vmap(lambda column: ravel_pytree(pull(column)[0])[0])(columns)

  # The span of all directions, from the sum of their outer products [P, P]: no [n K, P] matrix is formed.
  size = ravel_pytree(params)[0].size

  def add(total: Array, x_one: Array) -> tuple[Array, None]:
    rows = directions(x_one)
    return total + rows.T @ rows, None

  gram, _ = jax.lax.scan(add, jnp.zeros((size, size), x.dtype), x)
  values, vectors = jnp.linalg.eigh(gram)
  beyond = values <= size * jnp.finfo(x.dtype).eps * jnp.max(values)
  error, unravel = ravel_pytree(optax.tree.sub(params, target))
  return unravel(vectors @ jnp.where(beyond, vectors.T @ error, 0.0))
