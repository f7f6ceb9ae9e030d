"""The minimiser of a convex quadratic over all labels: least squares, and of several answers the shortest.

A matrix holds the squares of what a step does, and with them half of its digits: in float32 an effect that is 3,000
times smaller than another is lost. Where the columns of the step are known, G(at + d) = ||error + columns d||^2 is
solved as it stands, by their singular values. Every example is brought to unit size first, so that those of different
scale do not drown each other. Free labels come with a gap, which shows what rounding has left of the possible gain.
"""

import jax
import jax.numpy as jnp

from last_jax.base import Array, Certificate
from last_jax.quadratic import (
  Quadratic,
  Squares,
  check,
  largest_curvature,
  power_of_two,
  residual,
  safe_divide,
  solved_directly,
)

_REFINEMENTS = 3  # Of a solution by singular values.
_WORTH = 1e-4  # Of the gain: where less is to be had, directions that may have no effect are left alone.
_FACTORED_FROM = 128  # Numbers from which a Cholesky factor is tried first: eigenvalues take four times as long.
_CONJUGATE_GRADIENTS = 300  # At most, where there is no matrix.


def minimise(quadratic: Quadratic) -> tuple[Array, Certificate]:
  """Return the minimiser over all labels that is nearest to `at`, `[m, K]`."""
  check(quadratic)
  at, size = quadratic.at, quadratic.at.size
  if callable(quadratic.matrix):
    return _conjugate_gradients(quadratic)
  if size == 1:
    labels = at - safe_divide(quadratic.linear, quadratic.matrix.reshape(1, 1))
    return jnp.where(jnp.isfinite(labels), labels, at), solved_directly(at, "closed form")
  labels, gap = _by_matrix(quadratic) if quadratic.squares is None else _by_columns(at, quadratic.squares)
  left = residual(quadratic, lambda y: y, labels)
  return labels, Certificate(residual=left, iterations=jnp.zeros((), int), exact=True, road="linear solve", gap=gap)


def _by_columns(at: Array, squares: Squares) -> tuple[Array, Array]:
  """Return the labels at the least ||error + columns d||^2, and the share of the possible gain that they miss, `[]`."""
  size = at.size
  lengths = _lengths(squares.columns.reshape(-1, *at.shape), at)
  columns = squares.columns / lengths[None]
  slope = power_of_two(squares.error)
  error = squares.error / slope
  fixed, fixed_error = jax.lax.stop_gradient((columns, error))
  left, values, right = jnp.linalg.svd(fixed)
  count = values.shape[0]
  left, right_kept = left[:, :count], right[:count]

  def solve(moved: Array, inverse: Array) -> Array:
    """Return the pseudo-inverse of the columns times `moved [q]`, `[m K]`."""
    return (inverse * (moved @ left)) @ right_kept

  def attempt(cut: Array) -> tuple[Array, Array, Array]:
    """Return a step, the inverse singular values above the cut, and the length of what is left of the error."""
    inverse = jnp.where(values > cut * values[0], 1 / jnp.where(values > 0, values, 1.0), 0.0)
    step = -solve(fixed_error, inverse)
    for _ in range(_REFINEMENTS):
      step = step - solve(fixed_error + fixed @ step, inverse)
    return step, inverse, jnp.sum((fixed_error + fixed @ step) ** 2)

  # What is as small as rounding may have an effect or none: it has, if it brings a good part of the gain.
  eps = jnp.finfo(at.dtype).eps
  (safe, keen), (inverse, more), (missed, left_over) = jax.vmap(attempt)(jnp.asarray([4 * size**0.5 * eps, eps]))
  is_keen = missed - left_over > _WORTH * (jnp.sum(fixed_error**2) - missed)
  step, inverse = jnp.where(is_keen, keen, safe), jnp.where(is_keen, more, inverse)
  kept = inverse > 0
  step = _shortened(step, jnp.where(jnp.arange(size) < jnp.sum(kept), 0.0, right.T), lengths)
  # What autodiff sees, of value zero: how the answer moves, and how the directions without effect turn.
  source = inverse * (right_kept @ step)  # Of step = columnsᵀ left @ source.
  pull = (fixed_error + fixed @ step) @ columns
  turn = (left @ source) @ columns
  change = -solve(error + columns @ step, inverse) - (inverse**2 * (right_kept @ pull)) @ right_kept
  change = change + turn - (jnp.where(kept, right_kept @ turn, 0.0)) @ right_kept
  step = step + change - jax.lax.stop_gradient(change)
  labels = at + (step * (slope / lengths)).reshape(at.shape)
  # Judged as labels that are rounded.
  rounded = jax.lax.stop_gradient((labels - at).reshape(size) * (lengths / slope))
  moved = fixed @ rounded
  gained = -jnp.sum(moved * (moved + 2 * fixed_error))
  usable = (gained >= 0) & jnp.all(jnp.isfinite(labels))
  gained, moved = jnp.where(usable, gained, 0.0), jnp.where(usable, moved, 0.0)
  # Whatever is left along a column could have been gained, also where the columns are too small to say how.
  missed = jnp.sum(((fixed_error + moved) @ left) ** 2) + jnp.sum((eps * (jnp.abs(fixed) @ jnp.abs(rounded))) ** 2)
  return jnp.where(usable, labels, at), safe_divide(missed, missed + gained)


def _lengths(columns: Array, at: Array) -> Array:
  """Return a power of two of the size of each example's columns `[q, m, K]`, one for each column: `[m K]`."""
  sizes = jax.vmap(power_of_two, 1)(columns)
  return jnp.broadcast_to(sizes[:, None], at.shape).reshape(at.size)


def _shortened(step: Array, without_effect: Array, lengths: Array) -> Array:
  """Return `step` such that step / lengths has no part without effect, where scales differ between examples.

  Args:
    step: `[n]`.
    without_effect: `[n, n]`, an orthonormal basis of the steps without effect, and zeros.
    lengths: `[n]`.
  """
  weights = jnp.min(lengths) / lengths

  def shorten(step: Array) -> Array:
    basis = (weights[:, None] * without_effect)[:, ::-1]  # Zeros are last: they spoil no direction before them.
    directions, upper = jnp.linalg.qr(basis)
    used = jnp.any(basis != 0, 0) & (jnp.diagonal(upper) != 0)
    upper = jnp.where(used[None] & used[:, None], upper, jnp.eye(step.size, dtype=step.dtype))
    shares = jnp.where(used, (weights * step) @ directions, 0.0)
    shorter = step - without_effect[:, ::-1] @ jax.scipy.linalg.solve_triangular(upper, shares)
    return jnp.where(jnp.sum((weights * shorter) ** 2) < jnp.sum((weights * step) ** 2), shorter, step)

  differs = (jnp.max(lengths) > jnp.min(lengths)) & jnp.any(without_effect != 0)
  return jax.lax.cond(differs, shorten, lambda step: step, step)


def _by_matrix(quadratic: Quadratic) -> tuple[Array, Array]:
  """Return the labels and their gap, from the matrix: to half of the digits of an ill-conditioned step."""
  at, size = quadratic.at, quadratic.at.size
  eps = jnp.finfo(at.dtype).eps
  matrix = quadratic.matrix.reshape(size, size)
  blocks = jnp.einsum("ikik->ik", jax.lax.stop_gradient(quadratic.matrix))
  lengths = _lengths(jnp.sqrt(jnp.maximum(blocks, 0.0))[None], at)
  matrix = matrix / lengths[None] / lengths[:, None]
  linear = quadratic.linear.reshape(size) / lengths
  slope = power_of_two(linear)
  linear = linear / slope
  fixed, fixed_linear = jax.lax.stop_gradient((matrix, linear))
  root, without_effect = _inverse_root(fixed)

  def solve(gradient: Array) -> Array:
    return root.T @ (root @ gradient)

  step = -solve(fixed_linear)
  step = step - solve(fixed_linear + fixed @ step)
  step = _shortened(step, without_effect, lengths)
  turn = matrix @ solve(step)
  change = -solve(linear + matrix @ step) + without_effect @ (without_effect.T @ turn)
  step = step + change - jax.lax.stop_gradient(change)
  labels = at + (step * (slope / lengths)).reshape(at.shape)
  rounded = jax.lax.stop_gradient((labels - at).reshape(size) * (lengths / slope))
  gained = -jnp.sum(rounded * (fixed @ rounded + 2 * fixed_linear))
  usable = (gained >= 0) & jnp.all(jnp.isfinite(labels))
  gained, rounded = jnp.where(usable, gained, 0.0), jnp.where(usable, rounded, 0.0)
  left = fixed_linear + fixed @ rounded
  unit = eps * (jnp.linalg.norm(fixed_linear) + jnp.linalg.norm(fixed) * jnp.linalg.norm(rounded))
  # The matrix itself is rounded: what is left is known to `unit` along each direction, and costs more in flat ones.
  missed = jnp.sum((root @ left) ** 2) + unit**2 * jnp.sum(root**2)
  # A slope above rounding along a direction that is taken for one without effect: any part of the gain may be missed.
  noise = 8 * size**0.5 * unit
  lost = jnp.any(jnp.abs(left @ without_effect) > noise)
  return jnp.where(usable, labels, at), jnp.where(lost, 1.0, safe_divide(missed, missed + gained))


@jax.jit  # Where a factor holds NaN, only this function sees them.
def _inverse_root(matrix: Array) -> tuple[Array, Array]:
  """Return R `[n, n]` with Rᵀ R the pseudo-inverse, and an orthonormal basis of what it leaves out, and zeros `[n, n]`.

  Eigenvalues within rounding of zero count as zero.
  """
  size = matrix.shape[0]
  tolerance = size * jnp.finfo(matrix.dtype).eps

  def by_eigenvalues() -> tuple[Array, Array]:
    values, vectors = jnp.linalg.eigh(matrix)
    kept = values > tolerance * jnp.max(jnp.abs(values))
    inverse = jnp.where(kept, 1.0 / jnp.sqrt(jnp.where(kept, values, 1.0)), 0.0)
    return inverse[:, None] * vectors.T, jnp.where(kept[None], 0.0, vectors)[:, ::-1]

  if size < _FACTORED_FROM:
    return by_eigenvalues()
  lower = jnp.linalg.cholesky(matrix, symmetrize_input=False)
  root = jax.scipy.linalg.solve_triangular(lower, jnp.eye(size, dtype=matrix.dtype), lower=True)
  at = jnp.zeros((size, 1), matrix.dtype)
  inverse_norm = largest_curvature(Quadratic(at, lambda direction: root.T @ (root @ direction), at))
  regular = inverse_norm * jnp.linalg.norm(matrix) * tolerance < 1  # No eigenvalue counts as zero. False for NaN.
  return jax.lax.cond(regular, lambda: (root, jnp.zeros_like(root)), by_eigenvalues)


def _conjugate_gradients(quadratic: Quadratic) -> tuple[Array, Certificate]:
  """Return the minimiser from products alone: conjugate gradients from `at` never leave the range of the matrix."""
  slope = power_of_two(quadratic.linear)
  tolerance = float(4 * jnp.finfo(quadratic.at.dtype).eps)
  step, _ = jax.scipy.sparse.linalg.cg(
    quadratic.product, -quadratic.linear / slope, tol=tolerance, maxiter=_CONJUGATE_GRADIENTS
  )
  labels = quadratic.at + slope * step
  better = (quadratic.scaled_change(labels) <= 0) & jnp.all(jnp.isfinite(labels))
  labels = jnp.where(better, labels, quadratic.at)
  left = residual(quadratic, lambda y: y, labels)
  count = jnp.full((), _CONJUGATE_GRADIENTS, int)
  return labels, Certificate(residual=left, iterations=count, exact=True, road="conjugate gradients")
