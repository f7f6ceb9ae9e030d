"""Training as a whole: in pieces or at once, over seeds, with resets and evaluations; and checkpoints of it."""

import gc
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import last_jax as last
from last_jax import training
from last_jax.training.checkpoint import Checkpoints
from tests.compilations import assert_compiled_once
from tests.data.samples import read_or_refuse

KEY = jax.random.key(0)


@pytest.fixture(scope="module")
def task():
  data = last.data.half_moons()
  learner = last.learners.softmax(2, 2, learning_rate=0.3, bias=False)
  return learner, data.train, last.fit_target(learner, data.train)


def make(method, task, init_scale=0.3, **settings):
  learner, pool, target = task
  settings = {"horizon": 4, "students": 5, "hidden": (8,)} | settings
  kinds = {
    "unroll": training.Unrolled,
    "reinforce": lambda **given: training.Reinforce(**{"actions": last.outputs.BINARY} | given),
    "evolution": training.Evolution,
    "persistent": lambda **given: training.Evolution(persistent=True, **given),
  }
  chosen = kinds[method](**settings)
  return training.make_trainer(chosen, learner, pool, target=target, init_fn=training.near(target, init_scale))


start = jax.jit(training.Trainer.init)
_advance = jax.jit(training.Trainer.advance, static_argnums=2)


def advance(trainer, state, *pieces):
  logs = []
  for count in pieces:
    state, log = _advance(trainer, state, count)
    logs.append(log)
  return state, logs


@pytest.mark.parametrize(("method", "evaluate_every"), [("unroll", 0), ("reinforce", 3)])
@pytest.mark.slow
def test_with_progress_it_is_the_same(task, capsys, method, evaluate_every):
  trainer, calls = make(method, task, evaluate_every=evaluate_every), []
  policy, log = training.trainer.train(trainer, KEY, episodes=8)
  with last.progress(lambda episode, metrics: calls.append((episode, metrics))):
    watched = training.trainer.train(trainer, KEY, episodes=8)
  jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6), watched, (policy, log))
  assert [episode for episode, _ in calls] == list(range(1, 9))
  np.testing.assert_allclose([metrics["loss"] for _, metrics in calls], log.loss, rtol=1e-4)
  scored = [(episode, metrics["score"]) for episode, metrics in calls if "score" in metrics]
  assert [episode for episode, _ in scored] == ([3, 6, 8] if evaluate_every else [])
  if evaluate_every:
    np.testing.assert_allclose([score for _, score in scored], log.score, rtol=1e-4)
  assert capsys.readouterr().err.split("\r")[-1].startswith("100 %  8 episodes in 0:")


def assert_same(one, other):
  def compare(a, b):
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
      a, b = jax.random.key_data(a), jax.random.key_data(b)
    np.testing.assert_array_equal(a, b)

  jax.tree.map(compare, one, other)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["unroll", "reinforce", "evolution"])
def test_in_pieces_or_at_once(task, method):
  trainer = make(method, task, evaluate_every=0)
  begin = start(trainer, KEY)
  whole, logs = advance(trainer, begin, 6)
  pieces, _ = advance(trainer, begin, 2, 2, 2)
  assert int(whole.episode) == 6
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), whole.policy, pieces.policy)
  assert_same(whole.best, whole.policy)  # Without evaluation the last policy is the best.
  settings = {"horizon": 4, "students": 5, "hidden": (8,), "evaluate_every": 0, "episodes": 6}
  learner, pool, target = task
  settings |= {"target": target, "init_fn": training.near(target, 0.3)}
  if method == "reinforce":
    policy, log = last.train_reinforce(KEY, learner, pool, actions=last.outputs.BINARY, **settings)
  else:
    train = last.train_unrolled if method == "unroll" else last.train_evolution
    policy, log = train(KEY, learner, pool, **settings)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), policy, whole.policy)
  np.testing.assert_allclose(log.loss, logs[0].loss, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["unroll", "reinforce"])
def test_many_seeds_at_once(task, method):
  learner, pool, target = task
  settings = {"target": target, "horizon": 4, "students": 3, "hidden": (8,), "episodes": 5, "evaluate_every": 2}

  def train(key):
    if method == "reinforce":
      return last.train_reinforce(key, learner, pool, actions=last.outputs.BINARY, **settings)
    return last.train_unrolled(key, learner, pool, **settings)

  keys = jax.random.split(KEY, 3)
  policies, logs = jax.vmap(train)(keys)
  assert logs.loss.shape == (3, 5)
  assert logs.score.shape == (3, 3)  # After episodes 2, 4 and 5.
  for i, key in enumerate(keys):
    policy, log = train(key)
    np.testing.assert_allclose(logs.loss[i], log.loss, rtol=1e-4)
    jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b, rtol=1e-3, atol=1e-5), policies, policy)


@pytest.mark.slow
def test_settings_that_are_numbers_do_not_compile_again(task):
  _, pool, target = task

  def train(numbers):
    seed, rate, shift, spread, decay, policy_rate = numbers
    learner = last.learners.softmax(2, 2, learning_rate=rate, bias=False)
    moved = {"weights": np.asarray(target["weights"]) + np.float32(shift)}
    last.train_unrolled(
      jax.random.key(seed),
      learner,
      pool,
      target=moved,
      init_fn=training.near(moved, spread),
      decay=decay,
      learning_rate=policy_rate,
      horizon=3,
      students=2,
      hidden=(8,),
      episodes=2,
    )

  assert_compiled_once(train, [(0, 0.3, 0.0, 0.1, 0.95, 0.001), (1, 0.5, 1.0, 0.2, 0.8, 0.01)])


@pytest.mark.slow
@pytest.mark.parametrize(("share", "count"), [(0.0, 0), (0.2, 1), (0.5, 2), (1.0, 5)])
def test_a_share_of_the_students_starts_again(task, share, count):
  trainer = make("unroll", task, init_scale=0.0, reset=share)
  state, _ = advance(trainer, start(trainer, KEY), 1)
  at_start = np.all(np.asarray(state.students.params["weights"]) == np.asarray(task[2]["weights"])[None], (1, 2))
  assert at_start.sum() == count


@pytest.mark.slow
def test_students_that_continue_have_the_optimizer_state_of_before(task):
  learner, pool, target = task
  heavy = last.learners.softmax(2, 2, learning_rate=0.1, momentum=0.9, bias=False)
  method = training.Unrolled(horizon=3, students=2, reset=0.0, hidden=(8,))
  trainer = training.make_trainer(method, heavy, pool, target=target)
  state, _ = advance(trainer, start(trainer, KEY), 1)
  assert any(np.any(leaf != 0) for leaf in jax.tree.leaves(state.students.opt_state))
  assert learner is not heavy


@pytest.mark.slow
def test_gradients_that_are_not_finite_change_only_the_students(task):
  learner, pool, target = task
  wild = last.learners.least_squares(2, 2, learning_rate=1e30, bias=False)
  numbers = last.Pool(pool.x, np.eye(2)[np.asarray(pool.y)])
  method = training.Unrolled(horizon=4, students=3, reset=0.0, hidden=(8,))
  trainer = training.make_trainer(method, wild, numbers, target=target, init_fn=training.near(target, 0.3))
  with jax.debug_nans(False):
    begin = start(trainer, KEY)
    state, logs = advance(trainer, begin, 2)
  assert not np.any(logs[0].applied)
  assert_same(state.policy, begin.policy)
  assert_same(state.opt_state, begin.opt_state)
  assert np.isfinite(state.students.params["weights"]).all()
  assert learner is not wild


def test_a_black_box_measures_the_loss_on_the_whole_pool_and_keeps_the_best_policy():
  draw = np.random.default_rng(0)
  learner, pool = (
    last.learners.softmax(3, 2, learning_rate=0.1),
    last.Pool(draw.normal(size=(600, 3)), np.arange(600) % 2),
  )
  params = learner.init(KEY)
  whole = learner.mean_loss(params, pool.x, learner.encode(pool.x, pool.y))
  for kind, more in ((training.Unrolled, {}), (training.Reinforce, {"actions": np.eye(2)}), (training.Evolution, {})):
    few, usual = (
      training.make_trainer(kind(**more, **settings), learner, pool)
      for settings in ({"reward": last.rewards.loss(20)}, {})
    )
    assert usual.method.evaluate_every == training.EVALUATE_EVERY
    found = [each.method.reward.measure(each.problem, jax.random.key(5))(params) for each in (few, usual)]
    np.testing.assert_allclose(found[1], whole, rtol=1e-5)
    assert abs(found[0] - whole) > 1e-3 * whole
  omniscient = training.make_trainer(training.Unrolled(), learner, pool, target=params)
  assert omniscient.method.evaluate_every == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["unroll", "reinforce"])
def test_the_best_policy_by_its_score_on_fixed_students_is_returned(task, method):
  # A rate so high that training jumps about: the last policy is unlikely to be the best.
  trainer = make(method, task, evaluate_every=1, learning_rate=0.3, evaluation_steps=10)
  state = start(trainer, KEY)
  scores, policies = [], []
  for _ in range(6):
    state, logs = advance(trainer, state, 1)
    scores.append(float(logs[0].score[0]))
    policies.append(state.policy)
  assert_same(state.best, policies[int(np.argmax(scores))])
  assert float(state.best_score) == max(scores)
  evaluate = jax.jit(training.Trainer.evaluate)
  assert evaluate(trainer, state) == evaluate(trainer, state._replace(episode=state.episode + 7))  # The same students.


@pytest.mark.slow
@pytest.mark.parametrize(
  ("reward", "check"),
  [
    (
      last.rewards.distance(),
      lambda score, d, a, loss: np.testing.assert_allclose(score, -np.mean(d[:, -1] ** 2), rtol=1e-4),
    ),
    (
      last.rewards.loss(),
      lambda score, d, a, loss: np.testing.assert_allclose(score, -np.mean(loss[:, -1]), rtol=1e-4),
    ),
    (
      last.rewards.accuracy(),
      lambda score, d, a, loss: np.testing.assert_allclose(score, np.mean(a[:, -1]), rtol=1e-4),
    ),
    (
      last.rewards.steps(0.8),
      lambda score, d, a, loss: np.testing.assert_allclose(
        -score, np.mean([np.argmax(row >= 0.8) if np.any(row[:-1] >= 0.8) else len(row) - 1 for row in a]), rtol=1e-4
      ),
    ),
  ],
)
def test_scores_are_what_the_students_reach(task, reward, check):
  learner, pool, target = task
  trainer = make("reinforce", task, reward=reward, evaluation_steps=15, batch_size=2)
  state = start(trainer, KEY)
  start_key, lesson_key = jax.random.split(jax.random.fold_in(state.key, 0xFFFFFFFF))  # No episode's number.
  init = jax.vmap(trainer.init_fn)(jax.random.split(start_key, 20))
  result = last.teach_many(
    jax.random.split(lesson_key, 20),
    learner,
    last.teachers.policy(state.policy),
    pool,
    target=target,
    init=init,
    steps=15,
    batch_size=2,
    test=pool,
  )
  check(
    float(jax.jit(training.Trainer.evaluate)(trainer, state)),
    *map(np.asarray, (result.distance, result.accuracy, result.objective)),
  )


@pytest.mark.slow
def test_a_custom_optimizer_is_used(task):
  trainer = make("unroll", task, optimizer=optax.set_to_zero())
  begin = start(trainer, KEY)
  state, _ = advance(trainer, begin, 3)
  assert_same(state.policy, begin.policy)


def test_a_share_of_less_than_one_student_is_refused(task):
  with pytest.raises(ValueError, match=r"reset=0.05 of 10 students is less than one: give 0 or at least 0.1"):
    make("unroll", task, reset=0.05, students=10)
  assert make("unroll", task, reset=0.1, students=10).method.num_reset == 1


@pytest.mark.parametrize(("students", "share"), [(1, 1.0), (2, 0.5), (3, 0.2), (4, 0.2), (10, 0.2)])
def test_the_usual_share_that_starts_again_is_a_fifth_but_at_least_one_student(task, students, share):
  method = make("unroll", task, students=students).method
  assert method.reset == share
  assert method.num_reset == max(1, round(0.2 * students))


@pytest.mark.parametrize("method", ["unroll", "reinforce"])
@pytest.mark.parametrize("setting", ["learning_rate", "weight_decay"])
def test_settings_of_adam_are_refused_beside_another_optimizer(task, method, setting):
  with pytest.raises(ValueError, match=f"{setting} belongs to Adam: give either it or optimizer"):
    make(method, task, optimizer=optax.sgd(0.1), **{setting: 0.01})


@pytest.mark.parametrize(
  ("train", "settings", "message"),
  [
    (
      last.train_unrolled,
      {"horizn": 3},
      r"train_unrolled\(\) got an unexpected keyword argument 'horizn': .*horizon\?",
    ),
    (last.train_unrolled, {"actions": [[0.0], [1.0]]}, r"train_unrolled\(\) got an unexpected keyword argument 'actio"),
    (last.train_unrolled, {"xyzzy": 3}, r"train_unrolled\(\) got .* 'xyzzy': it takes horizon, "),
    (last.train_reinforce, {"discuont": 0.9}, r"train_reinforce\(\) got .* 'discuont': did you mean discount\?"),
    (last.train_reinforce, {"segment": 3}, r"train_reinforce\(\) got an unexpected keyword argument 'segment'"),
    (last.train_reinforce, {}, r"train_reinforce\(\) needs actions"),
    (last.train_evolution, {"sigma": 0.1}, r"train_evolution\(\) got an unexpected keyword argument 'sigma'"),
  ],
)
def test_a_misspelt_setting_is_an_error_of_the_function_that_was_called(task, train, settings, message):
  learner, pool, target = task
  with pytest.raises(TypeError, match=message):
    train(KEY, learner, pool, target=target, **settings)


@pytest.mark.slow
@pytest.mark.parametrize("rate", [1.5, 1e30])
def test_evaluations_that_are_never_finite_return_the_last_policy(rate):
  """A student that diverges over the many steps of an evaluation, but not over the few of an episode."""
  learner = last.learners.least_squares(2, learning_rate=rate, bias=False)
  pool = last.Pool(10 * np.eye(2), np.array([0.5, 1.5]))
  target = learner.init(jax.random.key(1))
  settings = {"horizon": 1, "evaluation_steps": 200, "students": 2, "hidden": (4,), "reset": 1.0}
  method = training.Unrolled(evaluate_every=2, reward=last.rewards.distance(), **settings)
  trainer = training.make_trainer(method, learner, pool, target=target)
  with jax.debug_nans(False):
    begin = start(trainer, KEY)
    state, logs = advance(trainer, begin, 2, 2)
    assert not any(np.isfinite(log.score).any() for log in logs)
    assert_same(state.best, state.policy)
    if rate < 10:  # Otherwise no gradient was finite, and the last policy is the first.
      assert np.all(logs[0].applied)
      assert any(np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (state.best, begin.policy)), strict=True))


class TestCheckpoints:
  @pytest.mark.slow
  @pytest.mark.parametrize("method", ["reinforce", "persistent"])
  def test_everything_comes_back(self, task, tmp_path, method):
    trainer = make(method, task, evaluate_every=1, evaluation_steps=5)
    begin = start(trainer, KEY)
    state, _ = advance(trainer, begin, 3)
    checkpoints = Checkpoints(tmp_path / "here", "mine")
    assert checkpoints.latest() is None
    checkpoints.save(state)
    checkpoints.close()
    again = Checkpoints(tmp_path / "here", "mine")
    assert again.latest() == 3
    found = again.restore(begin)
    assert jax.tree.structure(found) == jax.tree.structure(state)
    assert_same(found, state)
    one, _ = advance(trainer, state, 2)
    other, _ = advance(trainer, found, 2)
    assert_same(one, other)
    again.close()

  @pytest.mark.slow
  def test_the_last_two_are_left(self, task, tmp_path):
    trainer = make("unroll", task)
    state = start(trainer, KEY)
    checkpoints = Checkpoints(tmp_path, "mine")
    for _ in range(4):
      state, _ = advance(trainer, state, 1)
      checkpoints.save(state)
    checkpoints.close()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.isdigit()) == ["3", "4"]

  @pytest.fixture
  def saved(self, task, tmp_path):
    trainer = make("unroll", task)
    begin = start(trainer, KEY)
    checkpoints = Checkpoints(tmp_path / "here", "mine")
    checkpoints.save(begin)
    checkpoints.close()
    return begin, tmp_path / "here"

  def test_that_of_another_training_is_refused(self, saved):
    begin, folder = saved
    before = content(folder)
    with pytest.raises(ValueError, match=r"here/0 belongs to another training, and was not changed"):
      Checkpoints(folder, "other").restore(begin)
    assert content(folder) == before

  # Left behind by Orbax's reading when it fails.
  @pytest.mark.slow
  @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
  def test_every_truncated_file_is_noticed(self, saved):
    begin, folder = saved
    whole = content(folder)
    assert sum(len(data) > 1 for data in whole.values()) >= 5
    for name, data in whole.items():
      if len(data) < 2:
        continue
      (folder / name).write_bytes(data[: len(data) // 2])
      damaged = content(folder)
      found = read_or_refuse(lambda folder: Checkpoints(folder, "mine").restore(begin), folder)
      if found is not None:
        assert_same(found, begin)  # A file that nothing depends on, as one of Orbax's own notes.
      assert content(folder) == damaged
      (folder / name).write_bytes(data)
    assert_same(Checkpoints(folder, "mine").restore(begin), begin)
    gc.collect()

  def test_changed_numbers_are_noticed(self, saved, monkeypatch):
    begin, folder = saved
    import orbax.checkpoint as ocp

    restore = ocp.CheckpointManager.restore

    def damaged(self, *args, **kwargs):
      found = restore(self, *args, **kwargs)
      found.state["episode"] = found.state["episode"] + 1
      return found

    monkeypatch.setattr(ocp.CheckpointManager, "restore", damaged)
    with pytest.raises(ValueError, match="is damaged, and was not changed: its checksum does not agree"):
      Checkpoints(folder, "mine").restore(begin)


def content(folder):
  return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(pathlib.Path(folder).rglob("*")) if p.is_file()}
