"""Teaching sets: training on them ends at w*, and fewer examples do not do, by trying them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import theory
from tests import problems

KINDS = {
  "least_squares": (last.learners.least_squares, ()),
  "least_squares_3": (last.learners.least_squares, (3,)),
  "logistic": (last.learners.logistic, ()),
  "softmax": (last.learners.softmax, (3,)),
}


def make_task(kind, x, weight_decay=0.0, bias=True, seed=1):
  """A learner, a pool whose labels say nothing, and a random target; of softmax, one without a common part."""
  make, more = KINDS[kind]
  learner = make(x.shape[1], *more, learning_rate=0.3, weight_decay=weight_decay, bias=bias)
  width = 1 if kind in ("least_squares", "logistic") else 3
  pool = last.Pool(jnp.asarray(x), jnp.zeros((len(x), width)))
  target = learner.init(jax.random.key(seed))
  target = jax.tree.map(lambda leaf: leaf + 0.1, target)
  if kind == "softmax":
    target = jax.tree.map(lambda leaf: leaf - jnp.mean(leaf, -1, keepdims=True), target)
  return learner, pool, target


def train(learner, start, x, labels, steps=20_000):
  """Where gradient steps on this one batch end."""
  step = lambda _, student: learner.step(student, x, labels)  # noqa: E731
  return jax.jit(lambda start: jax.lax.fori_loop(0, steps, step, learner.start(start)).params)(start)


def examples(count=12, features=3, rank=3, seed=0):
  draw = np.random.default_rng(seed)
  return draw.normal(size=(count, rank)) @ np.linalg.qr(draw.normal(size=(features, rank)))[0].T


@pytest.mark.slow
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_training_to_convergence_ends_at_the_target(x64, kind, weight_decay):
  """From two starts; of softmax up to the common part, which has no effect."""
  learner, pool, target = make_task(kind, examples(), weight_decay)
  found = theory.teaching_set(learner, pool, target)
  assert found.minimal
  assert found.chosen.shape == (4,)  # Three features and the bias: a random target is in no smaller span.
  assert found.miss < 1e-12
  for seed in (5, 6):
    end = train(learner, learner.init(jax.random.key(seed)), pool.x[found.chosen], found.labels)
    apart = problems.flatten(jax.tree.map(lambda w, goal: _without_common(kind, w - goal), end, target))
    np.testing.assert_allclose(apart, 0.0, atol=1e-6)


def _without_common(kind, leaf):
  return leaf - jnp.mean(leaf, -1, keepdims=True) if kind == "softmax" else leaf


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_training_to_convergence_ends_at_the_target_of_regression(x64, dtype):
  learner, pool, target = make_task("least_squares", examples(), 0.1)
  pool = last.Pool(pool.x.astype(dtype), pool.y.astype(dtype))
  target = jax.tree.map(lambda leaf: leaf.astype(dtype), target)
  found = theory.teaching_set(learner, pool, target)
  assert found.labels.dtype == dtype
  end = train(learner, jax.tree.map(jnp.zeros_like, target), pool.x[found.chosen], found.labels, 5_000)
  atol = 1e-4 if dtype == jnp.float32 else 1e-9
  np.testing.assert_allclose(problems.flatten(end), problems.flatten(target), atol=atol)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_without_weight_decay_the_dimension_is_the_rank(x64, rank):
  """Fewer examples leave more of w - w* unchanged than the whole pool does, whatever their labels."""
  learner, pool, target = make_task("least_squares", examples(count=7, rank=rank), bias=False)
  found = theory.teaching_set(learner, pool, target)
  assert len(found.chosen) == rank == np.linalg.matrix_rank(np.asarray(pool.x))
  np.testing.assert_allclose(found.labels, learner.apply(target, pool.x[found.chosen]))
  error = np.asarray(learner.init(jax.random.key(9))["weights"] - target["weights"])[:, 0]

  def unchanged(x):
    return np.linalg.norm(error - np.linalg.pinv(x) @ (x @ error))

  whole, x = unchanged(np.asarray(pool.x)), np.asarray(pool.x)
  assert unchanged(x[found.chosen]) == pytest.approx(whole, abs=1e-9)
  for subset in itertools.combinations(range(7), rank - 1):
    assert unchanged(x[list(subset)]) > whole + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["least_squares", "least_squares_3"])
def test_with_weight_decay_no_fewer_examples_have_labels_that_hold_the_target(x64, kind):
  """The least gradient at w* over all labels of each smaller set, by least squares."""
  draw = np.random.default_rng(3)
  x = draw.normal(size=(8, 4))
  learner, pool, target = make_task(kind, x, 0.2, bias=False)
  # In the span of two examples, which are hidden among the others.
  weights = jnp.asarray(x[[2, 5]].T @ draw.normal(size=(2, target["weights"].shape[1])))
  found = theory.teaching_set(learner, pool, {"weights": weights})
  assert sorted(np.asarray(found.chosen)) == [2, 5]
  assert found.minimal
  for subset in itertools.combinations(range(8), 1):
    rows = x[list(subset)].T
    assert np.linalg.norm(rows @ np.linalg.pinv(rows) @ weights - weights) > 1e-3
  gradient = jax.grad(learner.objective)({"weights": weights}, pool.x[found.chosen], found.labels)
  np.testing.assert_allclose(gradient["weights"], 0.0, atol=1e-12)


def test_known_dimensions(x64):
  """Unit vectors: the number of nonzero weights. With a bias: two examples whose difference is parallel to w*."""
  learner, pool, _ = make_task("least_squares", np.eye(5), 0.1, bias=False)
  sparse = {"weights": jnp.array([[0.0], [2.0], [0.0], [-1.0], [0.0]])}
  found = theory.teaching_set(learner, pool, sparse)
  assert sorted(np.asarray(found.chosen)) == [1, 3]
  x = np.array([[1.0, 0.0], [0.0, 3.0], [3.0, 1.0], [5.0, -7.0]])
  learner, pool, _ = make_task("logistic", x, 0.1)
  found = theory.teaching_set(learner, pool, {"weights": jnp.array([[4.0], [2.0]]), "bias": jnp.array([0.3])})
  assert sorted(np.asarray(found.chosen)) == [0, 2]


@pytest.mark.slow
def test_a_target_that_was_fitted_with_weight_decay_can_be_held(x64):
  draw = np.random.default_rng(4)
  learner = last.learners.softmax(3, 3, learning_rate=0.1, weight_decay=0.05)
  pool = last.Pool(jnp.asarray(draw.normal(size=(30, 3))), np.arange(30) % 3)
  target = last.fit_target(learner, pool, tolerance=1e-12)
  found = theory.teaching_set(learner, pool, target)
  assert len(found.chosen) == 4
  assert found.miss < 1e-10
  again = last.fit_target(learner, last.Pool(pool.x[found.chosen], found.labels), tolerance=1e-12)
  np.testing.assert_allclose(problems.flatten(again["weights"]), problems.flatten(target["weights"]), atol=1e-8)


def test_what_no_labels_hold_is_reported(x64):
  """The common part of softmax's classes, and what is outside of the span of the pool: weight decay pulls at both."""
  learner, pool, target = make_task("softmax", examples(), 0.1)
  common = {"bias": target["bias"], "weights": target["weights"] + 0.5}
  assert theory.teaching_set(learner, pool, common).miss == pytest.approx(0.1 * 0.5 * 3)  # Of nine weights.
  learner, pool, target = make_task("least_squares", examples(rank=2), 0.1, bias=False)
  away = np.linalg.svd(np.asarray(pool.x))[2][2]
  found = theory.teaching_set(learner, pool, target)
  assert len(found.chosen) == 2
  assert found.miss == pytest.approx(0.1 * abs(away @ np.asarray(target["weights"])[:, 0]))


def test_beyond_the_combinations_it_is_an_upper_bound_and_says_so(x64):
  learner, pool, target = make_task("least_squares", examples(count=40), 0.1)
  found = theory.teaching_set(learner, pool, target, max_combinations=100)
  assert len(found.chosen) == 4
  assert not found.minimal


def test_other_learners_are_refused():
  learner, pool, target = make_task("least_squares", examples())
  for other in (last.learners.svm(3, learning_rate=0.1), last.learners.mlp((3, 2, 1), learning_rate=0.1)):
    with pytest.raises(ValueError, match="learner must be linear, with squared error or a cross-entropy"):
      theory.teaching_set(other, pool, other.init(jax.random.key(0)))
  with pytest.raises(ValueError, match="max_combinations must be a whole number"):
    theory.teaching_set(learner, pool, target, max_combinations=0)
