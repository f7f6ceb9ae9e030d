"""g(y): closed forms of the paper for one output, and for several the gradients themselves, by finite differences."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import theory

KEY = jax.random.key(0)


def test_factors_of_one_output_are_the_papers(x64):
  draw = np.random.default_rng(0)
  x, y = draw.normal(size=(20, 3)), draw.normal(size=20)
  sign = np.where(draw.normal(size=20) > 0, 1.0, -1.0)
  squares = last.learners.least_squares(3, learning_rate=0.1)
  params = squares.init(KEY)
  z = np.asarray(squares.apply(params, jnp.asarray(x)))[:, 0]
  found = theory.label_factor(squares, params, jnp.asarray(x), jnp.asarray(y), jnp.asarray(sign))
  np.testing.assert_allclose(found, (z - y) / (z - sign), rtol=1e-9)
  margin = last.learners.logistic(3, learning_rate=0.1, form="margin")
  found = theory.label_factor(margin, params, jnp.asarray(x), jnp.asarray(y)[:, None], jnp.asarray(sign)[:, None])
  np.testing.assert_allclose(found, y * (1 + np.exp(sign * z)) / (sign * (1 + np.exp(y * z))), rtol=1e-9)
  assert np.isinf(theory.label_factor(squares, params, jnp.asarray(x), jnp.asarray(y), jnp.asarray(z))).all()
  np.testing.assert_array_equal(
    theory.label_factor(squares, params, jnp.asarray(x), jnp.asarray(z), jnp.asarray(z)), 1.0
  )


D, K = 5, 3


def numeric_gradient(weights, x, y):
  """The gradient `[D, K]` of ||W'x - y||^2 / 2 by central differences: exact for a quadratic, up to rounding."""
  gradient = np.zeros((D, K))
  for place in np.ndindex(D, K):
    step = np.zeros((D, K))
    step[place] = 0.5
    values = [0.5 * np.sum(((weights + sign * step).T @ x - y) ** 2) for sign in (1, -1)]
    gradient[place] = values[0] - values[1]
  return gradient


def vector_example(seed):
  draw = np.random.default_rng(seed)
  learner = last.learners.least_squares(D, K, learning_rate=0.1, bias=False)
  return learner, *(draw.normal(size=shape) for shape in ((D, K), (D,), (K,), (K,)))


@pytest.mark.parametrize("seed", range(3))
def test_each_output_has_a_factor_of_its_own(x64, seed):
  learner, weights, x, y, truth = vector_example(seed)
  given = numeric_gradient(weights, x, truth)
  found = theory.label_factors(learner, {"weights": weights}, *map(jnp.asarray, (x[None], y[None], truth[None])))
  assert found.shape == (1, K)
  np.testing.assert_allclose(given * np.asarray(found), numeric_gradient(weights, x, y), atol=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_papers_factor_is_one_over_the_number_of_outputs(x64, seed):
  """Both readings of its formula, a number and a matrix: with 1/K they give the new gradient, with 1/d they do not."""
  learner, weights, x, y, truth = vector_example(seed)
  params, z = {"weights": weights}, weights.T @ x
  factor = lambda y: float(theory.label_factor(learner, params, *map(jnp.asarray, (x[None], y[None], truth[None])))[0])  # noqa: E731
  product = np.dot(y - z, 1 / (truth - z))
  assert factor(y) == pytest.approx(product / K)
  # A number, exact where the label scales the whole gradient.
  given, scaled = numeric_gradient(weights, x, truth), z + 0.7 * (truth - z)
  wanted = numeric_gradient(weights, x, scaled)
  assert factor(scaled) == pytest.approx(0.7)
  np.testing.assert_allclose(factor(scaled) * given, wanted, atol=1e-12)
  with_d = np.dot(scaled - z, 1 / (truth - z)) / D
  assert with_d == pytest.approx(0.7 * K / D)
  assert np.linalg.norm(with_d * given - wanted) == pytest.approx((1 - K / D) * np.linalg.norm(wanted))
  # A matrix, exact for every label.
  column_times_row = np.outer(y - z, 1 / (truth - z))
  wanted = numeric_gradient(weights, x, y).T  # [K, d]
  np.testing.assert_allclose(column_times_row / K @ given.T, wanted, atol=1e-12)
  np.testing.assert_allclose(column_times_row / D @ given.T, wanted * K / D, atol=1e-12)
  assert np.trace(column_times_row / K) == pytest.approx(factor(y))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["least_squares", "softmax"])
def test_labels_of_theorem_1_scale_all_outputs_alike(x64, kind):
  """Of a teacher that knows nothing of g: its labels realise a step."""
  draw = np.random.default_rng(3)
  make = {"least_squares": last.learners.least_squares, "softmax": last.learners.softmax}[kind]
  learner = make(4, 3, learning_rate=0.3)
  x = draw.normal(size=(12, 4))
  y = draw.normal(size=(12, 3)) if kind == "least_squares" else np.arange(12) % 3
  pool = last.Pool(jnp.asarray(x), jnp.asarray(y))
  target, start = (learner.init(jax.random.key(seed)) for seed in (1, 2))
  problem = last.Problem(learner, pool, target=target)
  state = last.init(KEY, problem, last.teachers.theorem_1(0.2), params=start)
  _, info = last.step(state, problem, last.teachers.theorem_1(0.2))
  shown = np.asarray(info.lesson.index)
  given = pool.x[shown], info.lesson.label, problem.truth[shown]
  found = theory.label_factors(learner, start, *given)
  distance = np.sqrt(sum(np.sum((start[name] - target[name]) ** 2) for name in start))
  np.testing.assert_allclose(found, 0.2 * distance, rtol=1e-9)
  np.testing.assert_allclose(theory.label_factor(learner, start, *given), 0.2 * distance, rtol=1e-9)


def test_outputs_of_every_token_are_refused():
  learner = last.learners.from_apply(
    lambda key: {"w": jax.random.normal(key, (2, 3))}, lambda params, x: x @ params["w"], "softmax_cross_entropy",
    learning_rate=0.1,
  )  # fmt: skip
  x, y = jnp.ones((1, 4, 2)), jnp.ones((1, 4, 3))
  with pytest.raises(ValueError, match=r"learner must have one label for each example, .* \[1, 4, 3\]"):
    theory.label_factors(learner, learner.init(KEY), x, y, y)
