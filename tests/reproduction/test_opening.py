"""The opening of the page: its numbers against NumPy's own steps, and labels against trying many."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax.reproduction import labels, opening

RATE, DECAY = 0.1, 5e-5


def step(w, x, label, rate=RATE, decay=DECAY):
  """SGD of logistic regression with weights and bias `w [3]`, in float64, for one label or many."""
  features = np.append(x, 1.0)
  output = 1 / (1 + np.exp(-w @ features))
  return w - rate * ((output - np.asarray(label))[..., None] * features + decay * w)


def best_label(w, target, x, truth, radius, **settings):
  """The label within the radius whose step ends nearest to the target, by trying 3,001."""
  tried = truth + np.linspace(-radius, radius, 3001)
  return tried[np.argmin(np.linalg.norm(step(w, x, tried, **settings) - target, axis=1))]


def test_labels_of_the_pool_are_the_best_of_all():
  draw = np.random.default_rng(0)
  learner = last.learners.logistic(2, learning_rate=0.3)
  pool = last.Pool(draw.normal(size=(7, 2)), np.arange(7) % 2)
  params = {"weights": jnp.array(draw.normal(size=(2, 2, 1))), "bias": jnp.array(draw.normal(size=(2, 1)))}
  target = jax.tree.map(lambda leaf: leaf[0] + 0.2, params)
  problem = last.Problem(learner, pool, target=target)
  found = labels.label_pool(problem, params, last.constraints.magnitude(0.5))
  lines, end = labels.boundary(params), labels.boundary(target)
  for w, own in zip(lines, np.asarray(found), strict=True):
    expected = [best_label(w, end, x, y, 0.5, rate=0.3, decay=0.0) for x, y in zip(pool.x, pool.y, strict=True)]
    np.testing.assert_allclose(own, expected, atol=1e-3)


@pytest.fixture(scope="module")
def shown():
  return opening.make_opening()


@pytest.mark.slow
class TestOpening:
  def test_each_step_is_that_of_the_label_shown(self, shown):
    for side in (shown.taught, shown.other):
      for frame in range(len(shown.shown) - 1):
        after = step(side.boundaries[frame].astype(float), shown.x[shown.shown[frame]], side.labels[frame])
        np.testing.assert_allclose(side.boundaries[frame + 1], after, atol=1e-5)
    np.testing.assert_array_equal(shown.taught.boundaries[0], shown.other.boundaries[0])

  def test_distances_are_those_of_the_lines(self, shown):
    for side in (shown.taught, shown.other):
      expected = np.linalg.norm(side.boundaries - shown.optimal, axis=1)
      np.testing.assert_allclose(side.distance, expected, rtol=1e-5, atol=1e-6)
    assert shown.taught.distance[-1] < 0.1 < 2.0 < shown.other.distance[-1]

  def test_labels_are_the_best_within_1_of_the_truth(self, shown):
    np.testing.assert_array_equal(shown.other.labels, shown.truth[shown.shown])
    taught, frames = shown.taught, np.arange(len(shown.shown))
    np.testing.assert_allclose(shown.labels[frames, shown.shown], taught.labels, atol=2e-3)
    for frame in (0, 30, 60, 100):
      for place in range(0, len(shown.x), 97):
        w = taught.boundaries[frame].astype(float)
        expected = best_label(w, shown.optimal, shown.x[place], shown.truth[place], 1.0)
        np.testing.assert_allclose(shown.labels[frame, place], expected, atol=5e-3)

  def test_the_target_is_that_of_the_figure(self, shown):
    """And the start is that of its first student."""
    from last_jax import data, learners
    from last_jax.reproduction import problems, seeds

    learner = learners.logistic(2, learning_rate=1e-4, weight_decay=problems.WEIGHT_DECAY)
    problem = problems.fit(learner, data.half_moons(0))
    np.testing.assert_allclose(shown.optimal, labels.boundary(problem.target), atol=1e-4)
    first = jax.tree.map(lambda leaf: leaf[0, 0], seeds.draw_students(learner.init, range(1)).params)
    np.testing.assert_array_equal(shown.taught.boundaries[0], labels.boundary(first))

  def test_it_is_the_same_every_time(self, shown):
    again = opening.make_opening.__wrapped__()
    for one, other in zip(jax.tree.leaves(shown), jax.tree.leaves(again), strict=True):
      np.testing.assert_array_equal(one, other)
