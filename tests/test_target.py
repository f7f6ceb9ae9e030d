"""fit_target against scikit-learn, least squares and its own gradient; the part of the way that no label reaches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.linear_model import LogisticRegression

import last_jax as last


def blobs(classes, seed=0, size=200):
  draw = np.random.default_rng(seed)
  y = np.arange(size) % classes
  return last.Pool(draw.normal(size=(size, 5)) + 1.5 * np.eye(classes, 5)[y], y)


def test_least_squares_is_solved(x64):
  draw = np.random.default_rng(0)
  pool = last.Pool(draw.normal(size=(50, 4)), draw.normal(size=50))
  learner = last.learners.least_squares(4, learning_rate=0.1, weight_decay=0.3)
  target, fit = last.fit_target(learner, pool, with_fit=True)
  x = np.concatenate([pool.x, np.ones((50, 1))], 1)
  expected = np.linalg.solve(x.T @ x / 50 + 0.3 * np.diag([1, 1, 1, 1, 0]), x.T @ np.asarray(pool.y) / 50)
  np.testing.assert_allclose(np.append(target["weights"], target["bias"]), expected, rtol=1e-8)
  assert fit.converged
  assert fit.gradient_norm < 1e-9


@pytest.mark.parametrize("classes", [2, 3])
def test_classifiers_agree_with_scikit_learn(x64, classes):
  pool, decay = blobs(classes), 0.01
  if classes == 2:
    learner = last.learners.logistic(5, learning_rate=0.1, weight_decay=decay)
  else:
    learner = last.learners.softmax(5, classes, learning_rate=0.1, weight_decay=decay)
  target, fit = last.fit_target(learner, pool, with_fit=True)
  assert fit.converged
  # scikit-learn's objective is ours times n C.
  other = LogisticRegression(C=1 / (decay * len(pool)), tol=1e-10, max_iter=10_000).fit(pool.x, pool.y)
  np.testing.assert_allclose(target["weights"].T, other.coef_, atol=1e-5)
  bias = target["bias"] - (target["bias"].mean() if classes > 2 else 0)
  np.testing.assert_allclose(bias, other.intercept_ - (other.intercept_.mean() if classes > 2 else 0), atol=1e-5)


@pytest.mark.parametrize("bits", [32, 64])
def test_the_gradient_norm_reported_is_the_true_one(bits):
  with jax.enable_x64(bits == 64):
    pool = blobs(3)
    for learner in (
      last.learners.softmax(5, 3, learning_rate=0.1, weight_decay=1e-3),
      last.learners.mlp((5, 8, 3), activation="tanh", learning_rate=0.1, weight_decay=1e-2),
    ):
      target, fit = last.fit_target(learner, pool, with_fit=True, tolerance=1e-4)
      gradient = jax.grad(learner.objective)(target, pool.x, learner.encode(pool.x, pool.y))
      np.testing.assert_allclose(fit.gradient_norm, optax.tree.norm(gradient), rtol=0.1, atol=1e-6)
      assert fit.converged
      assert fit.steps > 0


def test_a_target_that_is_not_reached_is_told():
  learner = last.learners.mlp((5, 8, 3), learning_rate=0.1)
  with pytest.warns(UserWarning, match=r"fit_target: gradient norm .* after 2 steps, but .* was asked for"):
    last.fit_target(learner, blobs(3), max_steps=2)


def test_fitting_again_does_not_compile_again():
  from last_jax import target

  sizes = []
  for seed in (0, 1):
    learner = last.learners.logistic(5, learning_rate=0.1 + seed, weight_decay=0.01)
    last.fit_target(learner, blobs(2, seed))
    sizes.append(target._minimise._cache_size())
  assert sizes[0] == sizes[1]


def test_bad_pools_are_refused():
  learner = last.learners.logistic(5, learning_rate=0.1)
  with pytest.raises(ValueError, match="pool holds one class only"):
    last.fit_target(learner, last.Pool(np.ones((4, 5)), np.ones(4, int)))
  with pytest.raises(ValueError, match="tolerance must be a positive number"):
    last.fit_target(learner, blobs(2), tolerance=-1.0)
  with pytest.raises(ValueError, match="max_steps must be a whole number"):
    last.fit_target(learner, blobs(2), max_steps=0)


def test_what_softmax_cannot_be_taught_is_reported(x64):
  """The mean over classes of w - w* never changes, and teaching ends at just that distance."""
  learner = last.learners.softmax(5, 3, learning_rate=0.2)
  pool = blobs(3)
  init, target = (learner.init(jax.random.key(i)) for i in (0, 1))
  out_of_reach = float(last.unreachable_distance(learner, init, target, pool.x))
  gap = jax.tree.map(lambda a, b: np.mean(a - b, -1), init, target)
  expected = np.sqrt(3 * sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gap)))
  assert out_of_reach == pytest.approx(expected, rel=1e-9)
  result = last.teach(
    jax.random.key(2),
    learner,
    last.teachers.greedy(last.constraints.none()),
    pool,
    target=target,
    init=init,
    steps=2000,
  )
  assert float(result.distance[-1]) == pytest.approx(out_of_reach, rel=1e-6)


def test_directions_outside_the_span_of_the_pool_are_out_of_reach(x64):
  learner = last.learners.least_squares(4, learning_rate=0.1, bias=False)
  draw = np.random.default_rng(0)
  x = jnp.asarray(draw.normal(size=(10, 2)) @ draw.normal(size=(2, 4)))
  params, target = {"weights": jnp.zeros((4, 1))}, {"weights": jnp.ones((4, 1))}
  basis = np.linalg.svd(x)[2][2:]
  found = last.unreachable_distance(learner, params, target, x)
  np.testing.assert_allclose(found, np.linalg.norm(basis @ np.ones(4)), rtol=1e-9)


def test_examples_that_are_no_numbers_are_refused():
  learner = last.learners.least_squares(2, learning_rate=0.1, bias=False)
  params = {"weights": jnp.zeros((2, 1))}
  with pytest.raises(ValueError, match="x holds NaN or infinite values"):
    last.unreachable_distance(learner, params, params, np.array([[1.0, np.nan]]))
