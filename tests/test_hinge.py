"""Hinge loss, which is not affine in the label: its formulas, and its labels against dense search."""

import functools

import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import distances, losses

KEY = jax.random.key(0)
SETS = {"none": last.constraints.none(), "simplex": last.constraints.simplex(), "ball": last.constraints.magnitude(0.6)}


def test_it_is_the_classical_loss_for_the_labels_of_classes(x64):
  draw = np.random.default_rng(0)
  for z in draw.normal(size=(20, 4)):
    for k in range(4):
      expected = max(0.0, 1 + np.delete(z, k).max() - z[k])
      assert losses.hinge(jnp.asarray(z), jnp.eye(4)[k]) == pytest.approx(expected)
  for z, y in draw.normal(size=(20, 2)):
    assert losses.hinge(jnp.array([z]), jnp.array([y])) == pytest.approx(max(0.0, 1 - y * z))


@pytest.mark.parametrize("width", [1, 4])
def test_its_gradient_is_that_of_finite_differences_and_not_affine_in_the_label(x64, width):
  draw = np.random.default_rng(1)
  assert not losses.hinge.is_affine(width)
  jumps = 0
  for z, one, two in draw.normal(size=(30, 3, width)):
    found = losses.hinge.output_gradient(jnp.asarray(z), jnp.asarray(one))
    steps = 1e-7 * np.eye(width)
    numeric = [(losses.hinge(z + step, one) - losses.hinge(z - step, one)) / 2e-7 for step in steps]
    np.testing.assert_allclose(found, numeric, atol=1e-6)
    other, middle = (losses.hinge.output_gradient(*map(jnp.asarray, (z, y))) for y in (two, (one + two) / 2))
    jumps += not np.allclose(middle, (found + other) / 2)
  assert jumps > 0


def test_predictions_are_classes():
  np.testing.assert_array_equal(losses.hinge.predict_all(jnp.array([[0.3, 2.0, -1.0]])), [[0.0, 1.0, 0.0]])
  np.testing.assert_array_equal(losses.hinge.predict_all(jnp.array([[0.3], [-0.2]])), [[1.0], [-1.0]])


@pytest.mark.parametrize("classes", [2, 3])
def test_the_objective_of_a_machine_is_least_where_a_convex_solver_says(x64, classes):
  """Crammer and Singer's with slack variables, and the margin of two classes; w* for teaching comes from there."""
  draw = np.random.default_rng(2)
  x, y = draw.normal(size=(30, 2)), draw.integers(classes, size=30)
  learner = last.learners.svm(2, classes, learning_rate=0.1, weight_decay=0.1, bias=False)
  pool = last.Pool(jnp.asarray(x), jnp.asarray(y))
  width = 1 if classes == 2 else classes
  weights, slack = cvxpy.Variable((2, width)), cvxpy.Variable(30, nonneg=True)
  z = x @ weights
  if classes == 2:
    rules = [cvxpy.multiply(2 * y - 1, z[:, 0]) >= 1 - slack]
  else:
    rules = [z[i, y[i]] - z[i, k] >= 1 - slack[i] for i in range(30) for k in range(classes) if k != y[i]]
  solved = cvxpy.Problem(cvxpy.Minimize(cvxpy.mean(slack) + 0.05 * cvxpy.sum_squares(weights)), rules)
  solved.solve(solver=cvxpy.CLARABEL)
  truth = learner.encode(pool.x, pool.y)
  value = jax.jit(lambda w: learner.objective({"weights": w}, pool.x, truth))
  assert value(weights.value) == pytest.approx(solved.value, abs=1e-6)
  for other in weights.value + 0.05 * draw.normal(size=(20, 2, width)):
    assert value(other) >= solved.value - 1e-7


def search_grid(width, name, truth):
  """Labels `[s, K]` all over the set; without one, all over a box."""
  if name == "simplex":
    if width == 1:
      return np.linspace(-1, 1, 1001)[:, None]
    return np.array([(i, j, 50 - i - j) for i in range(51) for j in range(51 - i)]) / 50
  size, count = {"none": (4.0, 41), "ball": (0.6, 25)}[name]
  axis = np.linspace(-size, size, count if width > 1 else 2001)
  grid = np.stack(np.meshgrid(*width * [axis]), -1).reshape(-1, width)
  return grid if name == "none" else truth + grid[np.linalg.norm(grid, axis=1) <= size]


@functools.cache
def searcher(name):
  return jax.jit(lambda *problem: last.synthesize_labels(*problem, SETS[name], with_certificate=True))


@jax.jit
def distances_of(learner, params, target, x, labels):
  """G of each of `labels [s, K]`, by taking the step."""
  student = learner.start(params)
  return jax.vmap(lambda y: distances.squared_distance(learner.step(student, x, y[None]).params, target))(labels)


@pytest.mark.slow
@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("classes", [2, 3])
def test_labels_are_never_worse_than_the_truth_and_nearly_as_good_as_dense_search(x64, classes, name):
  """A local search: it misses at most 6 % of what the best labels gain, and says so."""
  width = 1 if classes == 2 else classes
  gains, missed = [], []
  for seed in range(25):
    draw = np.random.default_rng(seed)
    learner = last.learners.svm(2, classes, learning_rate=float(draw.choice([0.1, 1.0])), bias=False)
    params, target = ({"weights": jnp.asarray(draw.normal(size=(2, width)))} for _ in range(2))
    x = jnp.asarray(draw.normal(size=(1, 2)))
    truth = learner.loss.class_labels(width)[[draw.integers(classes)]]
    labels, certificate = searcher(name)(learner, params, target, x, jnp.asarray(truth))
    assert not certificate.exact
    assert certificate.road == "Gauss-Newton"
    tried = np.concatenate([labels, truth, search_grid(width, name, truth[0])])
    found, given, *others = np.asarray(distances_of(learner, params, target, x, jnp.asarray(tried)))
    assert found <= given + 1e-12
    gains.append(given - min(others))
    missed.append(max(found - min(others), 0.0))
  assert np.sum(missed) <= 0.1 * np.sum(gains)


@pytest.mark.parametrize("classes", [2, 3])
def test_single_one_hot_labels_are_the_best_of_all(x64, classes):
  width = 1 if classes == 2 else classes
  learner = last.learners.svm(2, classes, learning_rate=1.0)
  every = jnp.asarray(learner.loss.class_labels(width))
  changed = 0
  for seed in range(5):
    draw = np.random.default_rng(seed)
    params, target = (learner.init(jax.random.key(2 * seed + i)) for i in range(2))
    x, truth = jnp.asarray(draw.normal(size=(1, 2))), every[:1]
    labels, certificate = last.synthesize_labels(
      learner, params, target, x, truth, last.constraints.one_hot(), with_certificate=True
    )
    assert certificate.exact
    found = distances_of(learner, params, target, x, jnp.concatenate([labels, every]))
    assert found[0] == pytest.approx(found[1:].min())
    changed += not np.array_equal(labels, truth)
  assert changed


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_a_machine_of_three_classes_is_taught_and_its_records_say_that_labels_are_not_exact(x64, dtype):
  draw = np.random.default_rng(0)
  learner = last.learners.svm(2, 3, learning_rate=0.1)
  target = jax.tree.map(lambda s: jnp.asarray(draw.normal(size=s.shape), dtype), learner.shapes())
  x = jnp.asarray(draw.normal(size=(40, 2)), dtype)
  start = jax.tree.map(jnp.zeros_like, target)
  pool = last.Pool(x, jnp.argmax(learner.apply(target, x), 1))
  ways = {"sgd": last.teachers.sgd(), "greedy": last.teachers.greedy(last.constraints.none())}
  results = {
    name: last.teach(KEY, learner, teacher, pool, target=target, init=start, steps=60, lessons=True)
    for name, teacher in ways.items()
  }
  assert results["greedy"].distance.dtype == dtype
  assert results["greedy"].distance[-1] < 0.5 * results["sgd"].distance[-1]
  assert not np.any(results["greedy"].certificate.exact)
