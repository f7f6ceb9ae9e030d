"""Scores of examples: how near one step on an example alone brings the student to the target. The lowest is the best.

With e = drift - w*, where drift is the student after a step without a gradient, a step of SGD on example i ends at

    ||e - rho g_i||^2_M = ||e||^2_M + rho (rho ||g_i||^2_M - 2 ⟨e, g_i⟩_M)

so examples are ranked by squared norms of their gradients and products with e. Neither needs the gradient itself: see
`last_jax.kernels`. Three roads, each tested against the others: closed forms of linear learners, inner products for any
model under SGD (where leaves have rates of their own, g is each leaf's gradient times its rate), and real steps for all
the rest. Scores of one road differ by a common constant and factor from G: they are comparable with each other only.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from last_jax import argmin, kernels, linear, synthesis, targets
from last_jax.base import Array, Params, View
from last_jax.constraints import Constraint
from last_jax.kernels import direction
from last_jax.linear import Geometry
from last_jax.models import wide
from last_jax.quadratic import Quadratic, power_of_two
from last_jax.targets import Target, ToParams

# Entries of a network's layers that are held at once: 1 MiB in float32, about the size of a core's own cache.
_ENTRIES = 2**18
_STEPS = 64  # Examples whose gradients are formed at once where steps are taken.


class Examples(NamedTuple):
  """Some examples of the pool, with what is known about them."""

  x: Array  # [r, ...]
  truth: Array  # [r, K]
  geometry: Geometry | None = None  # For linear learners.
  outputs: Array | None = None  # [r, K], the student's, where they are known.


def score(
  view: View,
  examples: Examples,
  target: Target,
  constraint: Constraint | None = None,
  chunk_size: int | None = None,
) -> Array:
  """Return the score of each example, `[r]`.

  Args:
    view: of the teacher.
    examples: r examples.
    target: of this iteration.
    constraint: None: examples are judged with their ground truth. Otherwise with their best label in the set.
    chunk_size: number of examples that pass through the model at once where there is no closed form; by default as many
      as fit into a cache.
  """
  learner = view.learner
  if examples.geometry is not None and (constraint is None or linear.is_projection(learner, constraint)):
    assert isinstance(target, ToParams), "only parameters have closed forms"
    return _computed_once(view.step, lambda: _closed_forms(view, examples, target, constraint))
  rates = learner.optimizer.factors(view.student.params)
  if rates is not None and all(rates) and isinstance(target, ToParams) and examples.truth.ndim == 2:
    if constraint is None:
      return _inner_products(view, examples, target, chunk_size)
    if learner.loss.is_affine(examples.truth.shape[1]):
      return _kernel_blocks(view, examples, target, constraint, chunk_size)
  return _steps(view, examples, target, constraint, chunk_size)


def _computed_once(step: Array, compute: Callable[[], Array]) -> Array:
  """Keep XLA from fusing a computation into each of its consumers, and so from repeating it.

  On a CPU only a branch does: an optimization barrier is removed before operations are fused.
  """
  shape = jax.eval_shape(compute)
  return jax.lax.cond(step >= 0, compute, lambda: jnp.zeros(shape.shape, shape.dtype))


def _closed_forms(view: View, examples: Examples, target: ToParams, constraint: Constraint | None) -> Array:
  """Compute eta^2 T1 - 2 eta T2 of equation 1 for a linear learner from its outputs, `[r]`."""
  learner, student = view.learner, view.student
  x, labels, geometry, outputs = examples
  assert geometry is not None, "closed forms need inner products"
  outputs = learner.apply(student.params, x) if outputs is None else outputs
  if constraint is not None:
    labels = linear.closed_form_labels(learner, student, x, labels, outputs, constraint, geometry, target.coasting)
  return linear.scores(learner, student, x, outputs, labels, geometry, target.coasting)


def _inner_products(view: View, examples: Examples, target: ToParams, chunk_size: int | None) -> Array:
  """Compute rho ||g||^2 - 2 ⟨e, g⟩ for any model, `[r]`: one forward and one backward pass."""
  learner, params = view.learner, wide(view.student.params)
  error, rate, weights = target.error(learner, view.student)

  def losses(params: Params, batch: tuple[Array, Array]) -> Array:
    return jax.vmap(learner.loss)(learner.apply(params, batch[0]), batch[1])[:, None]

  def compute(*batch: Array) -> Array:
    norms, products = direction.norms_and_products(losses, params, batch, error, weights=weights)
    return rate * norms - 2 * products

  batch = (examples.x, examples.truth)
  return _in_chunks(compute, batch, chunk_size or _ENTRIES // direction.entries_per_example(losses, params, batch))


def _kernel_blocks(
  view: View, examples: Examples, target: ToParams, constraint: Constraint, chunk_size: int | None
) -> Array:
  """Compute the like for the best label of each example, `[r]`, from its block of the tangent kernel, `[K, K]`.

  G is a quadratic in the label, u = a + B y: its matrix is rho^2 Bᵀ J M Jᵀ B, its slope -rho Bᵀ J M (e - rho Jᵀ u).
  """
  learner, params = view.learner, wide(view.student.params)
  error, rate, weights = target.error(learner, view.student)

  def best(outputs: Array, truth: Array, kernel: Array, along: Array) -> Array:  # [K], [K], [K, K], [K] -> []
    gradient, slope = learner.loss.output_gradient(outputs, truth), learner.loss.label_slope(outputs, truth)
    # The size of the step for one unit of u is taken out before it is squared; powers of two round nothing.
    length = power_of_two(jnp.sqrt(jnp.max(jnp.abs(kernel))))
    scale = power_of_two(jnp.asarray(rate * length))
    share, block = rate * length / scale, kernel / length**2
    after = along / length - rate * length * block @ gradient
    matrix, line = share**2 * slope.T @ block @ slope, -share / scale * slope.T @ after
    problem = Quadratic(truth[None], matrix[None, :, None], line[None], scale)
    labels, _ = argmin.best_labels(learner.loss, constraint, problem, outputs[None], truth[None])
    gradient = learner.loss.output_gradient(outputs, labels[0])
    return rate * gradient @ kernel @ gradient - 2 * gradient @ along

  def compute(x: Array, truth: Array) -> Array:
    outputs, along = jax.jvp(lambda params: learner.apply(params, x), (params,), (error,))
    blocks = kernels.tangent_kernel(learner.apply, params, x, weights=weights, diagonal=True)
    return jax.vmap(best)(outputs, truth, blocks.astype(outputs.dtype), along)

  entries = direction.entries_per_example(learner.apply, params, examples.x)
  return _in_chunks(compute, (examples.x, examples.truth), chunk_size or _ENTRIES // entries)


def _steps(
  view: View, examples: Examples, target: Target, constraint: Constraint | None, chunk_size: int | None
) -> Array:
  """Compute G after a step on each example, `[r]`, for any learner, a chunk of examples at a time."""
  learner, student = view.learner, view.student

  def after(example: tuple[Array, Array]) -> Array:
    x, label = (value[None] for value in example)
    if constraint is not None:
      label, _ = synthesis.greedy_labels(learner, student, target, x, label, constraint)
    return targets.value(target, learner, learner.step(student, x, label))

  size = min(chunk_size or _STEPS, examples.x.shape[0])
  return jax.lax.map(after, (examples.x, examples.truth), batch_size=size)


def _in_chunks(compute: Callable[..., Array], arrays: tuple[Array, ...], size: int) -> Array:
  """Return `compute(*arrays)`, `[r]`, for at most `size` examples at a time.

  Chunks are slices, and the last may overlap the one before: the pool is neither padded nor copied.
  """
  number = arrays[0].shape[0]
  chunks = -(-number // max(1, size))
  if chunks == 1:
    return compute(*arrays)
  size = -(-number // chunks)

  def part(start: Any) -> Array:
    return compute(*(jax.lax.dynamic_slice_in_dim(array, start, size) for array in arrays))

  def body(scores: Array, chunk: Array) -> tuple[Array, None]:
    start = jnp.minimum(chunk * size, number - size)
    return jax.lax.dynamic_update_slice_in_dim(scores, part(start), start, 0), None

  empty = jnp.zeros(number, jax.eval_shape(part, 0).dtype)
  return jax.lax.scan(body, empty, jnp.arange(chunks))[0]
