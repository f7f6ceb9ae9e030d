"""The parts that solvers of quadratics share, against NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import quadratic
from last_jax.quadratic import Quadratic


@pytest.mark.parametrize("largest", [3e-30, 0.7, 1.0, 1.5, 4.0, 6e30])
def test_a_power_of_two_makes_the_largest_magnitude_one_to_two(largest):
  values = jnp.array([[0.1 * largest, -largest], [0.0, 0.5 * largest]], jnp.float32)
  size = float(quadratic.power_of_two(values))
  mantissa, _ = np.frexp(size)
  assert mantissa == 0.5
  assert largest / size * (1 + 1e-6) >= 1
  assert largest / size < 2


@pytest.mark.parametrize("values", [[0.0, 0.0], [np.inf, 1.0], [-np.inf, 0.0]])
def test_what_has_no_size_is_divided_by_one(values):
  assert quadratic.power_of_two(jnp.array(values)) == 1


def test_division_by_zero_is_zero_and_so_is_its_derivative():
  numerator, denominator = jnp.array([3.0, 3.0]), jnp.array([2.0, 0.0])
  np.testing.assert_allclose(quadratic.safe_divide(numerator, denominator), [1.5, 0.0])
  slopes = jax.grad(lambda *given: jnp.sum(quadratic.safe_divide(*given)), (0, 1))(numerator, denominator)
  np.testing.assert_allclose(slopes, [[0.5, 0.0], [-0.75, 0.0]])


def test_columns_of_any_size_keep_their_digits_in_an_orthonormal_basis():
  draw = np.random.default_rng(0)
  columns = np.float32(draw.normal(size=(5, 3)) * [1e-12, 1.0, 1e12])
  basis, factors = quadratic.triangular(jnp.asarray(columns))
  np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-6)
  np.testing.assert_allclose(
    np.asarray(basis @ factors) / np.abs(columns).max(0), columns / np.abs(columns).max(0), atol=1e-6
  )
  np.testing.assert_allclose(np.linalg.norm(factors, axis=0), np.linalg.norm(columns, axis=0), rtol=1e-5)


def problem(draw, spectrum, batch=2, width=3):
  """Return a quadratic whose matrix has these eigenvalues."""
  basis = np.linalg.qr(draw.normal(size=(batch * width, batch * width)))[0]
  matrix = jnp.asarray((basis * spectrum) @ basis.T).reshape(batch, width, batch, width)
  at, linear = (jnp.asarray(draw.normal(size=(batch, width))) for _ in range(2))
  return Quadratic(at, matrix, linear, 0.5)


@pytest.mark.parametrize("spectrum", [[1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 7e-5], [5e4, 4.9e4, 3, 2, 1, 0]])
def test_the_largest_curvature_is_hardly_too_low_and_not_far_above(x64, spectrum):
  spectrum = np.array(spectrum, float)
  for seed in range(3):
    whole = problem(np.random.default_rng(seed), spectrum)
    by_product = whole._replace(
      matrix=lambda direction, whole=whole: jnp.einsum("ikjl,jl->ik", whole.matrix, direction)
    )
    for each in (whole, by_product):
      found = float(quadratic.largest_curvature(each))
      assert 0.97 * spectrum.max() <= found <= 1.1001 * spectrum.max()
    assert float(quadratic.largest_curvature(whole)) <= spectrum.sum() * (1 + 1e-12)


def test_change_and_gradient_are_those_of_the_formula(x64):
  draw = np.random.default_rng(0)
  whole = problem(draw, np.arange(6.0))
  by_product = whole._replace(matrix=lambda direction: jnp.einsum("ikjl,jl->ik", whole.matrix, direction))
  labels = draw.normal(size=(2, 3))
  d = (labels - whole.at).ravel()
  matrix, linear = np.asarray(whole.matrix).reshape(6, 6), np.ravel(whole.linear)
  for each in (whole, by_product):
    np.testing.assert_allclose(each.change(labels), 0.25 * (d @ matrix @ d + 2 * linear @ d), rtol=1e-12)
    np.testing.assert_allclose(np.ravel(each.gradient(labels)), matrix @ d + linear, rtol=1e-10)


@pytest.mark.parametrize("most", [1, 1000])
def test_classes_of_a_batch_are_the_best_of_all_or_a_descent(x64, most):
  draw = np.random.default_rng(3)
  whole, classes = problem(draw, np.arange(6.0)), np.eye(3)
  labels, certificate = quadratic.minimise_discrete(whole, jnp.asarray(classes), most)
  values = {choice: float(whole.change(classes[list(choice)])) for choice in itertools.product(range(3), repeat=2)}
  chosen = tuple(np.argmax(np.asarray(labels), 1).tolist())
  found = values[chosen]
  assert certificate.exact == (most > 1)
  if certificate.exact:
    assert found == pytest.approx(min(values.values()))
    return
  assert 1 <= certificate.iterations <= 20
  assert all(found <= values[(other, chosen[1])] + 1e-12 for other in range(3))
  assert all(found <= values[(chosen[0], other)] + 1e-12 for other in range(3))


def test_of_equally_good_classes_those_of_the_truth_stay(x64):
  """A quadratic without effect: every labelling is as good, and the enumeration begins with another one."""
  truth = jnp.eye(3)[jnp.array([2, 1])]
  flat = Quadratic(truth, jnp.zeros((2, 3, 2, 3)), jnp.zeros((2, 3)))
  for most in (1, 1000):
    labels, _ = quadratic.minimise_discrete(flat, jnp.eye(3), most)
    np.testing.assert_array_equal(labels, truth)


def test_the_residual_is_the_natural_map(x64):
  draw = np.random.default_rng(5)
  whole = problem(draw, np.arange(1.0, 7))
  project = last.constraints.magnitude(0.5).projection(last.losses.squared_error, whole.at, whole.at)
  labels = whole.at + 0.3 * draw.normal(size=(2, 3))
  gradient = np.asarray(whole.matrix).reshape(6, 6) @ np.ravel(labels - whole.at) + np.ravel(whole.linear)
  size = np.linalg.norm(np.arange(1.0, 7))  # Frobenius.
  moved = project(labels - gradient.reshape(2, 3) / size)
  expected = np.linalg.norm(labels - moved) / (1 + np.linalg.norm(labels))
  np.testing.assert_allclose(quadratic.residual(whole, project, labels), expected, rtol=1e-12)
  # Steps no longer than a million times the labels: where G is a plane, that is the step.
  plane = whole._replace(matrix=jnp.zeros((2, 3, 2, 3)))
  step = 1e6 * (1 + np.linalg.norm(labels)) * whole.linear / np.linalg.norm(whole.linear)
  moved = project(labels - step)
  expected = np.linalg.norm(labels - moved) / (1 + np.linalg.norm(labels))
  np.testing.assert_allclose(quadratic.residual(plane, project, labels), expected, rtol=1e-9)
