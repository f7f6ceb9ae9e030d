"""Policy gradient: unbiased against the exact gradient of a problem small enough to enumerate; rewards and returns."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import last_jax as last
from last_jax import training
from tests.problems import view_of
from tests.training import digits

KEY = jax.random.key(0)
ACTIONS = np.array([[-1.0], [0.5], [2.0]])


def tiny(baseline, batch, discount=0.9, horizon=2, reward=None, group=1):
  """One example, one start: all that is random are the actions."""
  learner = last.learners.least_squares(2, learning_rate=0.4, bias=False)
  target = {"weights": jnp.array([[0.7], [-0.4]])}
  start = {"weights": jnp.array([[0.1], [0.3]])}
  pool = last.Pool(np.array([[1.0, -0.5]]), np.array([0.3]))
  method = training.Reinforce(
    actions=ACTIONS,
    horizon=horizon,
    batch_size=batch,
    students=400,
    discount=discount,
    baseline=baseline,
    group=group,
    reward=reward,
    hidden=(4,),
    standardize=False,
  )
  trainer = training.make_trainer(method, learner, pool, target=target, init_fn=training.near(start, 0.0))
  state = jax.jit(training.Trainer.init)(trainer, KEY)
  weights = jax.tree.map(lambda w: w + 0.7 * jax.random.normal(jax.random.key(2), w.shape), state.policy.weights)
  return trainer, state, dataclasses.replace(state.policy, weights=weights)


def exact_gradient(trainer, policy, start, batch, discount, horizon):
  """d/dtheta of the expected sum of gamma^t r_t, over all sequences of actions."""
  problem = trainer.problem
  index = jnp.zeros(batch, int)
  sequences = np.array(list(itertools.product(range(3), repeat=horizon * batch))).reshape(-1, horizon, batch)

  def weighted_value(current, sequence):
    student, log_probability, value = problem.learner.start(start), 0.0, 0.0
    for step in range(horizon):
      numbers = current.numbers(view_of(problem, student), index)
      log_probability += jnp.sum(jax.nn.log_softmax(numbers)[jnp.arange(batch), sequence[step]])
      student = problem.learner.step(student, problem.pool.x[index], jnp.asarray(ACTIONS)[sequence[step]])
      value -= discount ** (step + 1) * jnp.sum((student.params["weights"] - problem.target["weights"]) ** 2)
    return jnp.exp(log_probability) * value

  def expected(weights):
    current = dataclasses.replace(policy, weights=weights)
    return jnp.sum(jax.vmap(lambda sequence: weighted_value(current, sequence))(sequences))

  return jax.jit(jax.grad(expected))(policy.weights)


@pytest.mark.slow
@pytest.mark.parametrize(("baseline", "batch", "group"), [(None, 1, 1), (-0.1, 1, 1), (None, 2, 1), (None, 1, 4)])
def test_the_estimate_has_no_bias(x64, baseline, batch, group):
  trainer, state, policy = tiny(baseline, batch, group=group)
  start = jax.tree.map(lambda leaf: leaf[0], state.students.params)
  exact = ravel_pytree(exact_gradient(trainer, policy, start, batch, 0.9, 2))[0]

  @jax.jit
  def estimate(key):
    keys = jax.random.split(key, 400)
    gradient, *_ = trainer.method.episode(trainer.problem, policy, state.students, keys)
    return -ravel_pytree(gradient)[0]  # Training minimises: it is given minus the gradient of J.

  many = np.asarray(jax.lax.map(estimate, jax.random.split(jax.random.key(7), 150)))  # 60,000 trajectories.
  error = many.mean(0) - exact
  deviation = many.std(0, ddof=1) / np.sqrt(len(many))
  noise = deviation.max()
  assert noise < 0.05 * np.abs(exact).max()  # Or the test could not fail.
  z = error / np.maximum(deviation, 1e-3 * noise)
  assert np.abs(z).max() < 4.5
  assert np.mean(z**2) < 3.0  # Weights are many, but independent directions few: a mean of 2.5 occurs by chance.


@pytest.mark.slow
def test_returns_are_sums_to_go_less_the_baseline(x64):
  rewards = np.random.default_rng(0).normal(size=(3, 4))
  before = np.array([0.5, -1.0, 2.0])
  method = tiny(-0.1, 1)[0].method
  found = dataclasses.replace(method, discount=0.8).returns(jnp.asarray(rewards), jnp.asarray(before))
  for i, t in itertools.product(range(3), range(4)):
    expected = sum(0.8 ** (tau + 1) * (rewards[i, tau] + 0.1) for tau in range(t, 4))
    np.testing.assert_allclose(found[i, t], expected)
  others = dataclasses.replace(method, discount=0.8, baseline=None).returns(jnp.asarray(rewards), jnp.asarray(before))
  paid = 0.8 ** np.arange(1, 5)[None] * (rewards - before[:, None])
  own = np.stack([paid[:, t:].sum(1) for t in range(4)], 1)
  for i in range(3):
    np.testing.assert_allclose(others[i], own[i] - np.mean(np.delete(own, i, 0), 0))


def test_the_baseline_of_a_group_is_the_mean_return_of_its_others(x64):
  rewards, before = np.random.default_rng(0).normal(size=(6, 4)), np.zeros(6)
  method = training.Reinforce(actions=ACTIONS, discount=1.0, group=3, students=6)
  found = method.returns(jnp.asarray(rewards), jnp.asarray(before))
  own = np.cumsum(rewards[:, ::-1], 1)[:, ::-1]
  for i, group in itertools.product(range(3), range(2)):
    members = own[3 * group : 3 * group + 3]
    np.testing.assert_allclose(found[3 * group + i], members[i] - np.mean(np.delete(members, i, 0), 0))


@pytest.mark.slow
def test_a_group_shares_start_and_examples_but_not_actions():
  data = last.data.half_moons()
  learner = last.learners.softmax(2, 2, learning_rate=0.5)
  method = training.Reinforce(actions=np.eye(2), horizon=8, students=6, group=3, hidden=(4,), batch_size=2)
  trainer = training.make_trainer(method, learner, data.train)
  state = jax.jit(training.Trainer.init)(trainer, KEY)
  keys = jax.random.split(jax.random.key(3), 6)

  @jax.jit
  def teach(trainer, state):
    paths, after = trainer.method.teach(trainer.problem, state.policy, state.students, keys)
    return paths.steps.students.params["weights"][0], *paths.steps.lessons, after.params["weights"]

  start, index, label, after = teach(trainer, state)  # [N, ...], [T, N, m, ...], [N, ...]
  for i, j in itertools.combinations(range(6), 2):
    together = i // 3 == j // 3
    assert np.array_equal(start[i], start[j]) == together
    assert np.array_equal(index[:, i], index[:, j]) == together
    assert not np.array_equal(label[:, i], label[:, j])
    assert not np.array_equal(after[i], after[j])


def one_path(trainer, policy, student):
  """The path of one student, `[T, ...]`, and the student after it."""
  students = jax.tree.map(lambda leaf: leaf[None], student)
  paths, after = trainer.method.teach(trainer.problem, policy, students, jax.random.key(3)[None])
  steps = jax.tree.map(lambda leaf: leaf[:, 0], paths.steps)
  path = paths._replace(steps=steps, rewards=paths.rewards[0], start_reward=paths.start_reward[0])
  return path, jax.tree.map(lambda leaf: leaf[0], after)


class TestRewards:
  def classifier(self):
    data = last.data.half_moons()
    return last.learners.softmax(2, 2, learning_rate=0.5), data.train, data.test

  def path(self, reward, horizon=12):
    learner, pool, test = self.classifier()
    method = training.Reinforce(actions=np.eye(2), reward=reward, horizon=horizon, students=2, hidden=(4,))
    trainer = training.make_trainer(method, learner, pool, validation=test)
    state = jax.jit(training.Trainer.init)(trainer, KEY)
    student = jax.tree.map(lambda leaf: leaf[0], state.students)
    return learner, test, *one_path(trainer, state.policy, student)

  def accuracies(self, learner, test, path, after):
    params = path.steps.students.params
    every = jax.tree.map(lambda before, end: jnp.concatenate([before, end[None]]), params, after.params)
    truth = learner.encode(test.x, test.y)
    return np.asarray(jax.vmap(lambda w: learner.accuracy(w, test.x, truth))(every))

  @pytest.mark.slow
  def test_final_accuracy(self):
    learner, test, path, after = self.path(last.rewards.accuracy())
    assert np.all(path.rewards[:-1] == 0)
    np.testing.assert_allclose(path.rewards[-1], self.accuracies(learner, test, path, after)[-1])

  @pytest.mark.slow
  def test_steps_to_an_accuracy(self):
    learner, test, path, after = self.path(last.rewards.steps(0.99))
    assert np.sum(path.rewards) == -12  # Never reached.
    accuracy = self.accuracies(learner, test, path, after)
    for threshold in np.unique(accuracy):
      found = last.rewards.steps(float(threshold)).rewards(jnp.asarray(accuracy), 12)
      assert -np.sum(found) == np.argmax(accuracy >= np.float32(threshold))

  @pytest.mark.slow
  def test_loss_of_validation_examples(self):
    learner, test, path, _ = self.path(last.rewards.loss(3000))
    truth = learner.encode(test.x, test.y)
    after = np.asarray(jax.vmap(lambda w: learner.mean_loss(w, test.x, truth))(path.steps.students.params))[1:]
    np.testing.assert_allclose(-path.rewards[:-1], after, rtol=0.1)


@pytest.mark.slow
def test_labels_shown_are_those_whose_probability_is_taken(x64):
  """Stored labels are those that the loop showed: each is an action, and its probability is the policy's."""
  trainer, state, policy = tiny(None, 2)
  student = jax.tree.map(lambda leaf: leaf[0], state.students)
  steps = one_path(trainer, policy, student)[0].steps
  for step in range(2):
    params = jax.tree.map(lambda leaf, step=step: leaf[step], steps.students.params)
    view = view_of(trainer.problem, trainer.problem.learner.start(params))
    logs = policy.log_probabilities(view, steps.lessons.index[step], steps.lessons.label[step])
    numbers = jax.nn.log_softmax(policy.numbers(view, steps.lessons.index[step]))
    for example in range(2):
      chosen = np.flatnonzero(ACTIONS[:, 0] == steps.lessons.label[step, example, 0])
      assert len(chosen) == 1
      np.testing.assert_allclose(logs[example], numbers[example, chosen[0]])


def test_equal_actions_count_together(x64):
  output = last.outputs.actions([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
  numbers = jnp.array([[0.3, 1.0, -0.5]])
  truth, index = jnp.array([[0.0, 1.0]]), jnp.zeros(1, int)
  found = output.log_probabilities(numbers, truth, index, jnp.array([[0.0, 1.0]]))
  shares = jax.nn.softmax(numbers[0])
  np.testing.assert_allclose(found, np.log(shares[0] + shares[2])[None])


@pytest.mark.slow
def test_a_trained_teacher_beats_sgd_on_digits():
  learner, pool, target, init_fn = digits.task()
  policy, log = last.train_reinforce(
    KEY,
    learner,
    pool,
    target=target,
    init_fn=init_fn,
    actions=last.outputs.BINARY_AUGMENTED,
    horizon=60,
    episodes=400,
  )
  assert log.score.shape == (20,)
  gain = digits.gains(policy, learner, pool, target, init_fn, steps=200, batch_size=16)
  assert np.mean(gain) > 4 * np.std(gain, ddof=1) / np.sqrt(len(gain))


@pytest.mark.parametrize(
  ("settings", "error", "message"),
  [
    ({"actions": [[1.0, 0.0]]}, ValueError, "at least two labels"),
    ({"actions": [1.0, 0.0]}, ValueError, "at least two labels"),
    ({"actions": np.eye(3)}, ValueError, "labels of length 3, but the learner has 2"),
    ({"actions": [[1.0, np.nan], [0.0, 1.0]]}, ValueError, "actions holds NaN"),
    ({"actions": last.outputs.mixtures(soft_labels=np.ones((3, 2)))}, ValueError, "soft_labels must have shape"),
    ({"reward": "accuracy"}, TypeError, "reward must come from last_jax.rewards"),
    ({"discount": 1.5}, ValueError, "discount must lie between"),
    ({"baseline": np.nan}, ValueError, "baseline must be a finite number"),
    ({"students": 1}, ValueError, "students must be at least 2"),
    ({"group": 3}, ValueError, "students=10 cannot be divided into groups of group=3"),
    ({"target": None, "reward": last.rewards.distance()}, ValueError, "the distance needs a target"),
    ({"target": None, "features": ("progress",)}, ValueError, "need a target"),
  ],
)
def test_bad_settings_are_named(settings, error, message):
  data = last.data.half_moons()
  learner = last.learners.softmax(2, 2, learning_rate=0.5)
  given = {"actions": np.eye(2), "target": learner.init(KEY)} | settings
  with pytest.raises(error, match=message):
    last.train_reinforce(KEY, learner, data.train, **given)


def test_accuracy_is_for_classifiers():
  learner = last.learners.least_squares(2, learning_rate=0.1)
  pool = last.Pool(np.eye(2), np.array([0.5, 1.5]))
  with pytest.raises(ValueError, match="accuracy is for classifiers"):
    last.train_reinforce(KEY, learner, pool, actions=[[0.0], [1.0]], reward=last.rewards.accuracy())


@pytest.mark.slow
@pytest.mark.parametrize("reward", [last.rewards.accuracy(), last.rewards.steps(0.8)])
def test_it_learns_how_much_of_the_truth_to_show_from_terminal_rewards(reward):
  """Three clusters. Uniform labels teach nothing: the larger the share of the truth, the better the reward."""
  draw, y = np.random.default_rng(0), np.arange(120) % 3
  x = np.array([[2.0, 0.0], [-1.0, 1.7], [-1.0, -1.7]])[y] + 0.5 * draw.normal(size=(120, 2))
  mu = np.array([0.0, 0.5, 1.0])
  method = training.Reinforce(
    actions=last.outputs.mixtures(mu),
    reward=reward,
    horizon=12,
    students=64,
    group=8,
    hidden=(),
    features=("x", "label"),
    discount=1.0,
    learning_rate=0.05,
  )
  learner = last.learners.softmax(2, 3, learning_rate=0.3)
  trainer = training.make_trainer(method, learner, last.Pool(x, y))
  view = view_of(trainer.problem, learner.start(learner.init(KEY)))

  def mean_share(policy):
    return np.mean(jax.nn.softmax(policy.numbers(view, jnp.arange(120))) @ mu)

  state = jax.jit(training.Trainer.init)(trainer, KEY)
  before = mean_share(state.policy)
  state, _ = jax.jit(training.Trainer.advance, static_argnums=2)(trainer, state, 25)
  assert mean_share(state.policy) > before + 0.08
