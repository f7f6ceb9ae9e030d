"""What each teacher promises, step by step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import last_jax as last
from last_jax import synthesis
from last_jax.teachers import base, selection
from tests import problems
from tests.problems import task

KEY = jax.random.key(0)


def view_of(learner, pool, target, params):
  truth = learner.encode(pool.x, pool.y)
  view = base.View(learner, learner.start(params), pool.x, truth, jnp.zeros((), int), KEY)
  return base.OmniscientView(*view, target=target)


@jax.jit
def distances_of(teachers, view, proposal):
  """The squared distance after each teacher's lesson."""
  return {name: _distance_of(teacher, view, proposal) for name, teacher in teachers.items()}


def _distance_of(teacher, view, proposal):
  memory = teacher.prepare(view.learner, view.x, view.truth, view.target)
  lesson = teacher.lesson(memory, base.View(*view[:-1]), view.target, proposal)
  after = view.learner.step(view.student, view.x[lesson.index], lesson.label)
  return synthesis.squared_distance(after.params, view.target)


@pytest.mark.parametrize("kind", ["least_squares", "logistic", "softmax_2", "softmax_5", "mlp", "conv"])
@pytest.mark.parametrize("batch", [1, 3])
def test_imt_chooses_the_best_of_all_examples(x64, kind, batch):
  learner, pool, target = task(kind)
  rule = last.teachers.imt(chunk_size=7).selection

  @jax.jit
  def choose(view):
    return rule.select(rule.prepare(learner, view.x, view.truth, target), view, jnp.zeros(batch, int))

  @jax.jit
  def distance(student, x, label):
    return synthesis.squared_distance(learner.step(student, x[None], label[None]).params, target)

  for seed in range(3):
    view = view_of(learner, pool, target, learner.init(jax.random.key(100 + seed)))
    every = [distance(view.student, x, label) for x, label in zip(view.x, view.truth, strict=True)]
    assert set(np.asarray(choose(view))) == set(np.argsort(every)[:batch])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_one_of_the_lowest_scores_is_chosen(x64, dtype):
  draw = np.random.default_rng(0)
  for size in (1, 2, 3, 64, 127, 128, 129, 257, 1000, 1031):
    scores = draw.normal(size=size).astype(dtype)
    few = draw.choice([-1.5, -0.0, 0.0, np.inf], size).astype(dtype)  # Ties, and zeros of both signs.
    holes = np.where(draw.random(size) < 0.5, np.nan, scores).astype(dtype)
    holes[size // 2] = 1.0
    with jax.debug_nans(False):
      find = jax.jit(selection._lowest_index)
      for values in (scores, few, np.abs(few), holes, -np.abs(few), np.full(size, np.inf, dtype)):
        assert values[find(jnp.asarray(values))] == np.nanmin(values)
      assert find(jnp.full(size, jnp.nan, dtype)) < size


@pytest.mark.parametrize("kind", ["least_squares", "logistic", "softmax_5", "mlp"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", ["one_hot", "simplex", "none", "ball_inf"])
def test_the_order_of_teachers_within_a_step(x64, kind, batch, name):
  """Greedy is never worse than SGD on the same examples, mixed never worse than IMT, joint never worse than mixed."""
  learner, pool, target = task(kind)
  if kind == "least_squares" and name in ("one_hot", "simplex"):
    pool = last.Pool(pool.x, np.arange(30) % 2 * 1.0)  # So that the ground truth is inside the set.
  constraint = problems.CONSTRAINTS[name]
  teachers = {
    "sgd": last.teachers.sgd(),
    "greedy": last.teachers.greedy(constraint),
    "imt": last.teachers.imt(),
    "mixed": last.teachers.mixed(constraint),
    "joint": last.teachers.mixed(constraint, joint=True),
  }
  for seed in range(3):
    view = view_of(learner, pool, target, learner.init(jax.random.key(50 + seed)))
    proposal = jax.random.randint(jax.random.key(seed), (batch,), 0, 30)
    after = distances_of(teachers, view, proposal)
    slack = 1 + 1e-9
    assert after["greedy"] <= after["sgd"] * slack
    assert after["mixed"] <= after["imt"] * slack
    assert after["joint"] <= after["mixed"] * slack


@pytest.mark.parametrize("kind", ["least_squares", "logistic", "softmax_5", "mlp"])
def test_greedy_never_moves_away_where_sgd_would_not(x64, kind):
  learner, pool, target = task(kind)
  teacher = last.teachers.greedy(last.constraints.simplex() if kind != "least_squares" else last.constraints.none())
  result = last.teach(KEY, learner, teacher, pool, target=target, steps=40, lessons=True, probe=lambda params: params)
  truth = learner.encode(pool.x, pool.y)
  for t in range(40):
    params = jax.tree.map(lambda leaf, t=t: leaf[t], result.probe)
    index = result.lessons.index[t]
    sgd = learner.step(learner.start(params), pool.x[index], truth[index]).params
    by_sgd = float(synthesis.squared_distance(sgd, target)) ** 0.5
    assert result.distance[t + 1] <= by_sgd * (1 + 1e-9)
    if by_sgd <= result.distance[t]:
      assert result.distance[t + 1] <= result.distance[t] * (1 + 1e-9)


def test_linear_scores_are_the_true_ones(x64):
  """T1 and T2 from one product give the same order and differences as G itself, with every kind of momentum."""
  for settings in ({}, {"momentum": 0.6}, {"momentum": 0.6, "nesterov": True}):
    learner = last.learners.softmax(4, 3, learning_rate=0.2, weight_decay=0.1, **settings)
    draw = np.random.default_rng(0)
    pool = last.Pool(draw.normal(size=(20, 4)), np.arange(20) % 3)
    target = learner.init(jax.random.key(1))
    view = view_of(learner, pool, target, learner.init(jax.random.key(2)))
    student = learner.step(view.student, view.x[:3], view.truth[:3])
    view = view._replace(student=student)
    for constraint in (None, last.constraints.simplex(), last.constraints.one_hot(), last.constraints.none()):
      rule = selection.NearestAfterStep(constraint)
      known = rule.prepare(learner, view.x, view.truth, target)
      fast = rule._scores_linear(known.geometry, view)
      slow = rule._scores(view)
      np.testing.assert_allclose(fast - fast[0], slow - slow[0], atol=1e-10)


TRACKED = {
  "imt": (last.teachers.imt(), 1),
  "batch": (last.teachers.imt(), 3),
  "mixed": (last.teachers.mixed(last.constraints.simplex()), 2),
  "joint": (last.teachers.mixed(last.constraints.simplex(), joint=True), 2),
}


def track_task(settings, size=40):
  learner = last.learners.softmax(4, 3, weight_decay=0.1, **settings)
  draw = np.random.default_rng(0)
  pool = last.Pool(draw.normal(size=(size, 4)), np.arange(size) % 3)
  return learner, pool, learner.init(jax.random.key(1))


SETTINGS = {
  "usual": {"learning_rate": 0.05},
  "no bias": {"learning_rate": 0.05, "bias": False},
  "schedule": {"learning_rate": optax.linear_schedule(0.1, 0, 300)},
}


@pytest.mark.parametrize(
  ("name", "settings"), [*((name, "usual") for name in TRACKED), ("imt", "no bias"), ("batch", "schedule")]
)
def test_tracked_outputs_are_those_of_the_weights(x64, monkeypatch, name, settings):
  """The Gram matrix in place of the weights changes nothing, before and after they are renewed."""
  learner, pool, target = track_task(SETTINGS[settings])
  teacher, batch = TRACKED[name]
  taught = {}
  for most in (selection._MOST_TRACKED, 0):
    monkeypatch.setattr(selection, "_MOST_TRACKED", most)
    jax.clear_caches()  # What is compiled does not know of the change.
    taught[most] = last.teach(
      KEY, learner, teacher, pool, target=target, steps=300, batch_size=batch, record_every=100, lessons=True
    )
  tracked, computed = taught.values()
  assert tracked.kept is not None
  assert computed.kept is None
  close = 1e-6 if settings == "schedule" else 1e-12  # optax's schedules answer in float32.
  np.testing.assert_allclose(tracked.kept, learner.apply(tracked.params, pool.x), atol=close)
  np.testing.assert_array_equal(tracked.lessons.index, computed.lessons.index)
  np.testing.assert_allclose(tracked.distance, computed.distance, atol=close)


def test_tracked_outputs_do_not_lose_digits_over_many_steps():
  learner, pool, target = track_task({"learning_rate": 0.02})
  result = last.teach(KEY, learner, last.teachers.imt(), pool, target=target, steps=5119, record_every=5119)
  exact = np.asarray(learner.apply(result.params, pool.x))
  np.testing.assert_allclose(result.kept, exact, atol=2e-6 * np.abs(exact).max())


def test_in_two_parts_tracked_outputs_come_to_the_same_bits_and_not_to_those_of_another_pool():
  learner, pool, target = track_task({"learning_rate": 0.05})
  other = last.Pool(pool.x[::-1], pool.y[::-1])
  teach = functools.partial(last.teach, KEY, learner, last.teachers.imt(), target=target)
  whole, half = teach(pool, steps=300), teach(pool, steps=140)
  assert_same_bits(teach(pool, steps=160, resume=half).student, whole.student)
  elsewhere = teach(other, steps=3, resume=half)
  anew = teach(other, steps=3, resume=half._replace(kept=None))
  assert_same_bits(elsewhere.student, anew.student)


def assert_same_bits(one, other):
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
    np.testing.assert_array_equal(a, b)


def test_soft_label_teachers_give_the_labels_of_their_formulas(x64):
  learner, pool, target = task("softmax_5")
  params = learner.init(jax.random.key(3))
  truth = np.asarray(learner.encode(pool.x, pool.y))
  index = jnp.arange(10)
  view = base.View(learner, learner.start(params), pool.x, jnp.asarray(truth), jnp.zeros((), int), KEY)

  def labels(teacher):
    memory = teacher.prepare(learner, pool.x, jnp.asarray(truth), None)
    return np.asarray(teacher.lesson(memory, view, None, index).label)

  np.testing.assert_array_equal(labels(last.teachers.sgd()), truth[:10])
  np.testing.assert_allclose(labels(last.teachers.label_smoothing(0.7)), 0.7 * truth[:10] + 0.3 / 5)
  logits = np.asarray(learner.apply(target, pool.x))
  soft = np.exp(logits / 2.5) / np.exp(logits / 2.5).sum(1, keepdims=True)
  np.testing.assert_allclose(
    labels(last.teachers.distillation(lambda x: learner.apply(target, x), 2.5)), soft[:10], rtol=1e-9
  )
  own = np.asarray(learner.apply(params, pool.x))[:10]
  np.testing.assert_allclose(labels(last.teachers.self_training()), np.asarray(jax.nn.softmax(own)), rtol=1e-9)
  np.testing.assert_array_equal(labels(last.teachers.self_training(hard=True)), np.eye(5)[own.argmax(1)])
  binary = last.learners.logistic(4, learning_rate=0.1)
  rule = last.teachers.label_smoothing(0.7).synthesis
  assert rule.prepare(binary, pool.x, jnp.ones((30, 1)), None) == pytest.approx(0.5)


class TargetThief:
  """A black-box synthesis that looks for a target wherever it could be."""

  omniscient = False
  seen: list = []  # noqa: RUF012

  def prepare(self, learner, x, truth, target):
    TargetThief.seen.append(target)

  def label(self, memory, view, index):
    TargetThief.seen.append(getattr(view, "target", None))
    return view.truth[index]


jax.tree_util.register_static(TargetThief)


def test_a_black_box_teacher_is_not_handed_the_target():
  learner, pool, target = task("logistic")
  thief = last.teachers.Teacher("thief", last.teachers.Uniform(), TargetThief())
  last.teach(KEY, learner, thief, pool, target=target, steps=2)
  mixed = last.teachers.Teacher("half a thief", selection.NearestAfterStep(), TargetThief())
  last.teach(KEY, learner, mixed, pool, target=target, steps=2)
  assert TargetThief.seen
  assert all(value is None for value in TargetThief.seen)


def test_imt_on_a_network_holds_few_gradients_at_once():
  """The compiled program's own account: memory does not grow with the pool, but for the pool itself and its scores."""
  learner = last.learners.mlp((10, 64, 5), learning_rate=0.1)
  params = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(learner.init, KEY)))

  def temporary_bytes(size):
    draw = np.random.default_rng(0)
    pool = last.Pool(draw.normal(size=(size, 10)), np.arange(size) % 5)
    view = view_of(learner, pool, learner.init(jax.random.key(1)), learner.init(KEY))
    rule = selection.NearestAfterStep(None, None, 16)
    compiled = jax.jit(lambda v: rule._scores(v)).lower(view).compile()
    return compiled.memory_analysis().temp_size_in_bytes

  small, large = temporary_bytes(160), temporary_bytes(1600)
  assert large - small < 4 * params * 160  # A tenth of what all gradients of the larger pool would add.


@pytest.mark.parametrize(
  ("make", "error", "message"),
  [
    (lambda: last.teachers.label_smoothing(1.5), ValueError, "mu must lie between 0 and 1"),
    (lambda: last.teachers.distillation("model"), TypeError, "logits_fn must be a function"),
    (lambda: last.teachers.distillation(jnp.tanh, 0.0), ValueError, "temperature must be a positive number"),
    (lambda: last.teachers.greedy("simplex"), TypeError, "constraint must come from last_jax.constraints"),
    (lambda: last.teachers.mixed(None), TypeError, "constraint must come from last_jax.constraints"),
    (lambda: last.teachers.imt(chunk_size=0), ValueError, "chunk_size must be a whole number"),
  ],
)
def test_bad_teachers_are_refused(make, error, message):
  with pytest.raises(error, match=message):
    make()


def test_teachers_that_do_not_fit_the_learner_say_so():
  learner, pool, target = task("least_squares")
  with pytest.raises(ValueError, match="label_smoothing is for classifiers, but the learner's loss is squared_error"):
    last.teach(KEY, learner, last.teachers.label_smoothing(0.5), pool, target=target, steps=2)
  with pytest.raises(ValueError, match=r"logits_fn must map the pool to shape \(30, 1\)"):
    last.teach(KEY, learner, last.teachers.distillation(lambda x: x), pool, target=target, steps=2)
  teacher = last.teachers.greedy(last.constraints.none(), layer_weights={"layer_0": 1.0})
  with pytest.raises(ValueError, match="layer_weights must be a prefix of the parameters' tree"):
    last.teach(KEY, learner, teacher, pool, target=target, steps=2)
