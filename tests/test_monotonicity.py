"""The premise of proposition 1, against matrices of least squares and against steps taken in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import theory

KEY = jax.random.key(0)
NONE = last.constraints.none()


def make_task(x, rate=0.3):
  """Least squares without bias and without noise."""
  x = np.asarray(x)
  learner = last.learners.least_squares(x.shape[1], learning_rate=rate, bias=False)
  target = {"weights": jnp.full((x.shape[1], 1), 0.4)}
  return learner, theory.interpolating_pool(learner, target, x), target


def circle(count):
  angles = 2 * np.pi * np.arange(count) / count
  return np.stack([np.cos(angles), np.sin(angles)], 1)


def step_matrix(x, rate):
  """The mean of (I - s x x')^2, with s the rate, or 1 / ||x||^2 for greedy labels, which project."""
  maps = [np.eye(x.shape[1]) - (rate or 1 / (row @ row)) * np.outer(row, row) for row in x]
  return np.mean([m @ m for m in maps], 0)


@pytest.mark.slow
@pytest.mark.parametrize("constraint", [None, NONE])
def test_extremes_are_eigenvalues_of_the_mean_step(x64, constraint):
  x = np.random.default_rng(0).normal(size=(30, 2)) @ np.diag([1.0, 0.4])
  found = theory.monotonicity(*make_task(x), key=KEY, radii=[2.0, 0.5], directions=2000, constraint=constraint)
  low, high = np.linalg.eigvalsh(step_matrix(x, None if constraint else 0.3))
  np.testing.assert_array_equal(found.distances, [0.5, 2.0])
  np.testing.assert_allclose(found.least, low * np.array([0.25, 4.0]), rtol=1e-4)
  np.testing.assert_allclose(found.largest, high * np.array([0.25, 4.0]), rtol=1e-4)
  np.testing.assert_allclose(found.ratio, high / low, rtol=1e-4)


@pytest.mark.parametrize("constraint", [None, NONE])
@pytest.mark.slow
def test_it_holds_on_isotropic_examples(x64, constraint):
  found = theory.monotonicity(*make_task(circle(7)), key=KEY, radii=(0.5, 1.0), constraint=constraint)
  assert found.ratio == pytest.approx(1.0, abs=1e-12)


@pytest.mark.slow
def test_a_student_that_is_nearer_can_be_farther_after_the_step(x64):
  """Along an axis without examples E[G] hardly falls, along the other to nearly nothing."""
  x = np.array([[1.0, 0.0], [1.0, 0.05], [1.0, -0.05]])
  found = theory.monotonicity(*make_task(x, rate=0.9), key=KEY, radii=(0.8, 1.0))
  assert found.largest[0] > 10 * found.least[1]
  assert found.ratio == pytest.approx(found.largest[0] / found.least[0])  # Equal distances are the strictest.


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_other_losses_by_taking_the_steps(x64, dtype):
  """Noisy labels, weight decay and a bias, in NumPy, for students on the axes."""
  draw = np.random.default_rng(1)
  x, y = draw.normal(size=(20, 2)), draw.integers(2, size=20)
  learner = last.learners.logistic(2, learning_rate=0.5, weight_decay=0.1)
  target = {"bias": jnp.array([0.1], dtype), "weights": jnp.array([[0.5], [-0.2]], dtype)}
  found = theory.monotonicity(learner, last.Pool(x.astype(dtype), y), target, key=KEY, radii=0.7, directions=500)
  features = np.concatenate([np.ones((20, 1)), x], 1)
  center, decayed = np.array([0.1, 0.5, -0.2]), np.array([0.0, 0.1, 0.1])
  means = []
  for way in draw.normal(size=(500, 3)):
    w = center + 0.7 * way / np.linalg.norm(way)
    u = 1 / (1 + np.exp(-features @ w)) - y
    after = w - 0.5 * (u[:, None] * features + decayed * w)
    means.append(np.mean(np.sum((after - center) ** 2, 1)))
  assert found.least.dtype == dtype
  assert found.least[0] == pytest.approx(min(means), rel=0.02)
  assert found.largest[0] == pytest.approx(max(means), rel=0.02)


def test_bad_settings_are_named():
  task = make_task(circle(3))
  with pytest.raises(ValueError, match="radii must be a positive number"):
    theory.monotonicity(*task, key=KEY, radii=(1.0, 0.0))
  with pytest.raises(ValueError, match="directions must be a whole number"):
    theory.monotonicity(*task, key=KEY, radii=1.0, directions=0)
