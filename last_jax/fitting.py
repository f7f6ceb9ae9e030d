"""The target w*, and the part of w - w* that no label can change."""

import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import logging
from jax.flatten_util import ravel_pytree

from last_jax import checks, devices, losses, models, programs
from last_jax.base import Array, Key, Params, Pool
from last_jax.learner import check_learner
from last_jax.learners import Learner, check_learns_from
from last_jax.minimising import Minimum, input_size, minimise, relative_gradient


class Fit(NamedTuple):
  """Quality of a fitted target. Linear models are fitted in float64 and rounded afterwards: this is before rounding."""

  gradient_norm: float
  objective: float
  steps: int
  converged: bool  # Whether the gradient is within the tolerance.


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
  their product. Warns if the gradient reached is above the tolerance.

  The target does not depend on the units of features and labels, for linear models and `learners.mlp`: a network whose
  inputs are not within a factor of a thousand of 1 starts from random weights divided by their size. (Of other networks
  it is not known which parameters multiply the inputs.)

  Args:
    learner: defines the objective; its optimizer has no influence.
    pool: examples with their ground truth.
    key: for the random start of a network; `jax.random.key(0)` by default.
    init: parameters to start from instead. Linear models start from zero by default.
    tolerance: bound on the gradient norm, relative to the problem's scale; 1e-9 by default (1e-5 for networks in
      float32). For linear models each entry is divided by the size of its feature and by that of the loss's slope in
      the outputs at zero parameters, both root mean squares. For networks only by the latter, in regression, and by the
      size of the inputs where that is far from 1.
    max_steps: 100 Newton or 5000 L-BFGS steps by default.
    with_fit: whether to return a `Fit` as well, with the gradient norm reached.

  Returns:
    The parameters; with `with_fit`, the pair (parameters, `Fit`).

  Raises:
    ValueError: an argument is wrong, or the gradient is not finite at zero parameters or at the end.
  """
  programs.make_room()
  check_learns_from(learner, pool)
  checks.check_two_classes(learner, pool.x, pool.y, "pool")
  if tolerance is not None:
    tolerance = checks.check_positive("tolerance", tolerance)
  if max_steps is not None:
    max_steps = checks.check_count("max_steps", max_steps)
  key = None if key is None else checks.as_one_key(key)
  with_fit = checks.check_flag("with_fit", with_fit)
  if init is not None:
    checks.check_params(learner, init, "init")
  linear = isinstance(learner.model, models.Linear)
  steps = max_steps or (100 if linear else 5000)
  if tolerance is None:
    tolerance = 1e-9 if linear or pool.x.dtype == jnp.float64 else 1e-5
  labels = learner.encode(pool.x, pool.y)
  if linear:
    found = _fit_linear(learner, init, pool.x, labels, tolerance, steps)
  else:
    params = init
    if init is None:
      params = _for_inputs(learner, learner.init(jax.random.key(0) if key is None else key), pool.x)
    found = _fit(learner, models.wide(params), pool.x, labels, tolerance, steps)
    # Parameters of 16 bits are fitted in float32, and rounded at the end.
    found = found._replace(params=jax.tree.map(lambda new, old: new.astype(old.dtype), found.params, params))
  norm, share = float(found.gradient_norm), float(found.share)
  message = f"fit_target: gradient norm {norm:.2e} after {int(found.steps)} steps"
  if not np.isfinite(norm):
    raise ValueError(f"{message}, so there is no target: scale pool.x, or start nearer to the minimum with init")
  logging.info(message)
  fit = Fit(norm, float(found.objective), int(found.steps), share <= tolerance)
  if not fit.converged:
    wanted = f"but {tolerance:.2e} of the problem's scale was asked for, not {share:.2e}"
    warnings.warn(f"{message}, {wanted}: the target is not a minimum", stacklevel=2)
  return (found.params, fit) if with_fit else found.params


def _fit_linear(
  learner: Learner, init: Params | None, x: Array, labels: Array, tolerance: float, max_steps: int
) -> Minimum:
  """Fit in float64, whatever the precision of `x`: the problem is convex, and w* as good as its dtype allows.

  Runs on the host: GPUs are slow in float64, and TPUs have none.
  """
  dtype = labels.dtype
  arrays = jax.tree.map(np.asarray, (init, x, labels))
  with jax.enable_x64(True), jax.default_device(devices.host()):
    init, x, labels = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), arrays)
    start = jax.tree.map(lambda s: jnp.zeros(s.shape), models.param_shapes(learner.model)) if init is None else init
    found = jax.tree.map(np.asarray, _fit(learner, start, x, labels, tolerance, max_steps))
  return found._replace(params=jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), found.params))


def _fit(learner: Learner, params: Params, x: Array, labels: Array, tolerance: float, max_steps: int) -> Minimum:
  """Return the minimum found."""
  # The zeros are an argument of the compiled program. With jaxlib 0.10.2 on a CPU, zeros that are a constant in it give
  # NaN in 8 of 100 compilations, in every run of such a compilation: XLA miscompiles the fusion of a matrix product
  # with a constant and the maximum over a row (softmax). tests/miscompilation.py reproduces it in pure JAX. It was not
  # seen with the flag for YNNPACK that `devices.prepare` sets, with which all commands run.
  norm = float(relative_gradient(learner, jax.tree.map(jnp.zeros_like, params), x, labels))
  if not np.isfinite(norm):
    raise ValueError(
      f"pool: the objective's gradient norm at zero parameters, relative to the pool's scale, is {norm}: "
      "scale pool.x, or change the learner"
    )
  return minimise(learner, params, x, labels, tolerance, max_steps)


def _for_inputs(learner: Learner, params: Params, x: Array) -> Params:
  """Return a random start for inputs of this size: weights are made for inputs of size one."""
  if not isinstance(learner.model, models.Mlp):
    return params
  first = params["layer_0"]
  return params | {"layer_0": first | {"weights": first["weights"] / input_size(learner, x)}}


def unreachable_distance(learner: Learner, params: Params, target: Params, x: Array) -> Array:
  """Return the norm of `unreachable_part`: a lower bound of ||w - w*|| for linear learners without weight decay."""
  return optax.tree.norm(unreachable_part(learner, params, target, x))


def unreachable_part(learner: Learner, params: Params, target: Params, x: Array) -> Params:
  """Return the part of w - w* that no labels of the examples `x [n, ...]` can change, around these parameters.

  For a linear learner it is the same at all parameters: the part outside the span of the examples and, for softmax, the
  part that all classes have in common. Takes memory for P x P numbers, where P is the number of parameters.
  """
  check_learner(learner)
  checks.check_params(learner, params, "params")
  checks.check_params(learner, target, "target")
  x = jnp.asarray(checks.check_array("x", x))
  checks.check_inputs(learner, x, "x")
  return _unreachable_part(learner, params, target, x)


@jax.jit  # Otherwise the loop inside would be compiled in every call.
def _unreachable_part(learner: Learner, params: Params, target: Params, x: Array) -> Params:
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
