"""Evolution strategies: estimates against the exact gradient of the smoothed score, and rewards without gradients."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import last_jax as last
from last_jax import training

KEY = jax.random.key(0)
SIGMA, RATE, HORIZON = 0.3, 0.4, 3
X, TRUTH, START, TARGET = (np.array(v) for v in ([1.0, -0.5], [0.3], [0.1, 0.3], [0.7, -0.4]))


def tiny(persistent):
  """One example, one start, a policy of two weights: label = truth + a (prediction) + b. All else is certain."""
  learner = last.learners.least_squares(2, learning_rate=RATE, bias=False)
  target, start = ({"weights": jnp.asarray(values)[:, None]} for values in (TARGET, START))
  method = training.Evolution(
    horizon=HORIZON,
    students=500,
    deviation=SIGMA,
    persistent=persistent,
    reset=0.0,
    hidden=(),
    features=("prediction",),
    output=last.outputs.free(),
    standardize=False,
  )
  pool = last.Pool(X[None], TRUTH)
  trainer = training.make_trainer(method, learner, pool, target=target, init_fn=training.near(start, 0.0))
  state = jax.jit(training.Trainer.init)(trainer, KEY)
  weights = {"own": {"bias": jnp.array([0.2]), "kernel": jnp.array([[-0.3]])}}
  return trainer, state, dataclasses.replace(state.policy, weights=weights)


def scores(thetas):
  """Minus the squared distance after the last of some episodes, each with its own weights (b, a), in NumPy."""
  w = START
  for b, a in thetas:
    for _ in range(HORIZON):
      z = X @ w
      w = w - RATE * (z - (TRUTH[0] + a * z + b)) * X
  return -np.sum((w - TARGET) ** 2)


def smoothed_gradient(theta, episodes):
  """Gradient in theta of E[score], each episode with its own noise: by Gauss-Hermite quadrature, finite differences."""
  nodes, weights = np.polynomial.hermite_e.hermegauss(7 if episodes == 1 else 5)
  weights = weights / weights.sum()
  grid = list(itertools.product(range(len(nodes)), repeat=2 * episodes))

  def expected(theta):
    total = 0.0
    for places in grid:
      noise = SIGMA * nodes[list(places)].reshape(episodes, 2)
      total += np.prod(weights[list(places)]) * scores(theta + noise)
    return total

  step = 1e-4
  return np.array([(expected(theta + d) - expected(theta - d)) / (2 * step) for d in step * np.eye(2)])


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_the_estimate_is_the_gradient_of_the_smoothed_score(x64, persistent):
  """Of the first episode or, persistent, of the second in all noise since the start."""
  trainer, state, policy = tiny(persistent)

  @jax.jit
  def estimate(key):
    students = state.students
    for each in jax.random.split(key, 2 if persistent else 1):
      gradient, students, _ = trainer.method.episode(trainer.problem, policy, students, jax.random.split(each, 500))
    return -ravel_pytree(gradient)[0]

  many = np.asarray(jax.lax.map(estimate, jax.random.split(jax.random.key(7), 100)))
  exact = smoothed_gradient(np.array([0.2, -0.3]), 2 if persistent else 1)
  deviation = many.std(0, ddof=1) / 10
  assert deviation.max() < 0.05 * np.abs(exact).max()  # Or the test could not fail.
  np.testing.assert_array_less(np.abs(many.mean(0) - exact), 4.5 * deviation)


@pytest.mark.slow
def test_a_pair_differs_by_its_policies_only(x64):
  """Without noise to speak of, both of a pair are the same student: same start, examples and measure."""
  data = last.data.half_moons()
  learner = last.learners.softmax(2, 2, learning_rate=0.3)
  method = training.Evolution(horizon=5, students=3, deviation=1e-12, persistent=True, hidden=(4,))
  trainer = training.make_trainer(method, learner, data.train)
  state = jax.jit(training.Trainer.init)(trainer, KEY)
  keys = jax.random.split(KEY, 3)
  _, pairs, _ = jax.jit(type(trainer.method).episode)(
    trainer.method, trainer.problem, state.policy, state.students, keys
  )
  plus, minus = (np.asarray(each.params["weights"]) for each in (pairs.plus, pairs.minus))
  np.testing.assert_allclose(plus, minus, atol=1e-10)
  assert np.abs(plus[0] - plus[1]).max() > 1e-3
  assert pairs.noise.shape[0] == 3


@pytest.mark.slow
@pytest.mark.parametrize("reward", [last.rewards.accuracy(), last.rewards.steps(0.8)])
def test_it_learns_from_rewards_without_gradients(reward):
  data = last.data.half_moons()
  learner = last.learners.softmax(2, 2, learning_rate=0.3)
  method = training.Evolution(
    reward=reward,
    hidden=(),
    features=("x", "label"),
    horizon=20,
    evaluation_steps=20,
    students=20,
    deviation=0.3,
    learning_rate=0.1,
  )
  trainer = training.make_trainer(method, learner, data.train)
  state = jax.jit(training.Trainer.init)(trainer, KEY)
  before = jax.jit(training.Trainer.evaluate)(trainer, state)  # About uniform labels.
  _, log = jax.jit(training.Trainer.advance, static_argnums=2)(trainer, state, 10)
  assert log.score[0] > before + (0.1 if before > 0 else 3.0)


@pytest.mark.slow
def test_the_best_action_is_an_output_like_any_other():
  data = last.data.half_moons()
  learner = last.learners.softmax(2, 2, learning_rate=0.3)
  output = last.outputs.actions(np.eye(2), prior=5.0)
  policy, _ = last.train_evolution(KEY, learner, data.train, output=output, hidden=(), horizon=2, episodes=2)
  result = last.teach(KEY, learner, last.teachers.policy(policy), data.train, steps=3, lessons=True, metrics=())
  truth = learner.encode(data.train.x, data.train.y)[result.lessons.index]
  np.testing.assert_array_equal(
    result.lessons.label, truth
  )  # It begins at the truth, and two steps do not change that.


@pytest.mark.parametrize(
  ("settings", "error", "message"),
  [
    ({"deviation": 0.0}, ValueError, "deviation must be a positive"),
    ({"output": "simplex"}, TypeError, "output must come from last_jax.outputs"),
    ({"actions": np.eye(2)}, TypeError, r"train_evolution\(\) got an unexpected keyword argument 'actions'"),
    ({"reward": last.rewards.distance()}, ValueError, "the distance needs a target"),
    ({"evaluate_every": -1}, ValueError, "evaluate_every must be"),
  ],
)
def test_bad_settings_are_named(settings, error, message):
  data = last.data.half_moons()
  learner = last.learners.softmax(2, 2, learning_rate=0.5)
  with pytest.raises(error, match=message):
    last.train_evolution(KEY, learner, data.train, **settings)


def test_persistent_pairs_start_again_less_often():
  data = last.data.half_moons()
  learner = last.learners.softmax(2, 2, learning_rate=0.5)
  for persistent, share in ((False, 1.0), (True, 0.2)):
    method = training.Evolution(persistent=persistent)
    assert training.make_trainer(method, learner, data.train).method.reset == share
