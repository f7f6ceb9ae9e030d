"""The promises of each teacher, step by step."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import last_jax as last
from last_jax import distances, synthesis
from tests import problems
from tests.problems import answer_of, task

pytestmark = pytest.mark.sampled

KEY = jax.random.key(0)


def problem_of(kind):
  learner, pool, target = task(kind)
  return last.Problem(learner, pool, target=target)


@functools.partial(jax.jit, static_argnames="batch")
def distance_after(teacher, problem, params, key, batch):
  """The squared distance after one step, from these parameters, on the examples that belong to this key."""
  state = last.init(key, problem, teacher, params)
  return distances.squared_distance(last.step(state, problem, teacher, batch_size=batch)[0].params, problem.target)


@jax.jit
def distances_of_all(problem, student):
  """The squared distance after a step on each example of the pool with its ground truth, `[n]`."""

  def distance(x, label):
    after = problem.learner.step(student, x[None], label[None])
    return distances.squared_distance(problem.learner.position(after), problem.target)

  return jax.lax.map(lambda example: distance(*example), (problem.pool.x, problem.truth))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["least_squares", "logistic", "softmax_2", "softmax_5", "mlp", "conv"])
@pytest.mark.parametrize("batch", [1, 3])
def test_imt_chooses_the_best_of_all_examples(x64, kind, batch):
  problem = problem_of(kind)
  teacher = last.teachers.imt(chunk_size=7)
  for seed in range(3):
    state = last.init(KEY, problem, teacher, problem.learner.init(jax.random.key(100 + seed)))
    _, info = last.step(state, problem, teacher, batch_size=batch)
    every = distances_of_all(problem, state.student)
    assert set(np.asarray(info.lesson.index)) == set(np.argsort(every)[:batch])


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("size", [1, 2, 3, 64, 127, 128, 129, 257, 1000, 1031])
def test_one_of_the_lowest_scores_is_chosen(x64, dtype, size):
  """From w = 0, with x = 1, rate 1 and w* = 0, the score of an example is the square of its target."""
  learner = last.learners.least_squares(1, learning_rate=dtype(1), bias=False)
  draw = np.random.default_rng(0)
  huge = dtype(np.finfo(dtype).max)  # Its square is infinite.
  spread = draw.normal(size=size).astype(dtype)
  few = draw.choice([-1.5, -0.0, 0.0, huge], size).astype(dtype)  # Ties, and zeros of both signs.
  holes = np.where(draw.random(size) < 0.5, huge, spread).astype(dtype)
  holes[size // 2] = 1.0
  zero = {"weights": np.zeros((1, 1), dtype)}
  far = {"weights": np.full((1, 1), huge)}
  teacher = last.teachers.imt()
  with jax.debug_nans(False), np.errstate(over="ignore", invalid="ignore"):
    for targets, goal in ((spread, 0), (few, 0), (np.full(size, huge), 0), (holes, 0), (holes, huge)):
      problem = last.Problem(learner, last.Pool(np.ones((size, 1), dtype), targets), target=far if goal else zero)
      _, info = last.step(last.init(KEY, problem, teacher, zero), problem, teacher)
      wide = targets.astype(np.promote_types(dtype, np.float32))  # Numbers of 16 bits are computed with in float32.
      scores = wide**2 - 2 * wide * wide.dtype.type(goal)  # With the far target some are NaN: inf - inf.
      (index,) = np.asarray(info.lesson.index)
      assert 0 <= index < size
      assert np.all(np.isnan(scores)) or scores[index] == np.nanmin(scores)


@pytest.mark.slow
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
  problem = last.Problem(learner, pool, target=target)
  for seed in range(3):
    params, key = learner.init(jax.random.key(50 + seed)), jax.random.key(seed)
    after = {name: distance_after(teacher, problem, params, key, batch) for name, teacher in teachers.items()}
    slack = 1 + 1e-9
    assert after["greedy"] <= after["sgd"] * slack
    assert after["mixed"] <= after["imt"] * slack
    assert after["joint"] <= after["mixed"] * slack


@pytest.mark.parametrize("kind", ["least_squares", "logistic", "softmax_5", "mlp"])
@pytest.mark.slow
def test_greedy_never_moves_away_where_sgd_would_not(x64, kind):
  learner, pool, target = task(kind)
  teacher = last.teachers.greedy(last.constraints.simplex() if kind != "least_squares" else last.constraints.none())
  result = last.teach(KEY, learner, teacher, pool, target=target, steps=40, lessons=True, probe=lambda params: params)
  truth = learner.encode(pool.x, pool.y)
  for t in range(40):
    params = jax.tree.map(lambda leaf, t=t: leaf[t], result.probe)
    index = result.lessons.index[t]
    sgd = learner.step(learner.start(params), pool.x[index], truth[index]).params
    by_sgd = float(distances.squared_distance(sgd, target)) ** 0.5
    assert result.distance[t + 1] <= by_sgd * (1 + 1e-9)
    if by_sgd <= result.distance[t]:
      assert result.distance[t + 1] <= result.distance[t] * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.6}, {"momentum": 0.6, "nesterov": True}])
def test_closed_form_scores_rank_the_whole_pool_as_steps_do(x64, settings):
  """IMT with a batch as large as the pool returns its ranking."""
  learner = last.learners.softmax(4, 3, learning_rate=0.2, weight_decay=0.1, **settings)
  draw = np.random.default_rng(0)
  pool = last.Pool(draw.normal(size=(20, 4)), np.arange(20) % 3)
  problem = last.Problem(learner, pool, target=learner.init(jax.random.key(1)))
  for seed in range(3):
    student = learner.start(learner.init(jax.random.key(2 + seed)))
    student = learner.step(student, pool.x[:3], problem.truth[:3])  # Momentum has something to remember.
    lesson, _ = answer_of(last.teachers.imt(), problem, student, jnp.zeros(20, int))
    np.testing.assert_array_equal(lesson.index, np.argsort(distances_of_all(problem, student)))


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.6}, {"momentum": 0.6, "nesterov": True}])
@pytest.mark.parametrize("name", ["simplex", "one_hot", "none"])
def test_joint_selection_judges_each_example_with_its_best_label(x64, settings, name):
  learner = last.learners.softmax(4, 3, learning_rate=0.2, weight_decay=0.1, **settings)
  draw = np.random.default_rng(0)
  pool = last.Pool(draw.normal(size=(20, 4)), np.arange(20) % 3)
  constraint = problems.CONSTRAINTS[name]
  problem = last.Problem(learner, pool, target=learner.init(jax.random.key(1)))
  for seed in range(3):
    student = learner.start(learner.init(jax.random.key(2 + seed)))
    student = learner.step(student, pool.x[:3], problem.truth[:3])

    @jax.jit
    def best(x, truth, student=student):
      labels = synthesis.synthesize_labels(
        learner, student.params, problem.target, x[None], truth[None], constraint, opt_state=student.opt_state
      )
      return distances.squared_distance(learner.position(learner.step(student, x[None], labels)), problem.target)

    every = [float(best(x, truth)) for x, truth in zip(pool.x, problem.truth, strict=True)]
    lesson, _ = answer_of(last.teachers.mixed(constraint, joint=True), problem, student, jnp.zeros(1, int))
    assert every[int(lesson.index[0])] == pytest.approx(min(every), rel=1e-9)


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


def teach_live(problem, teacher, steps, batch=1, key=KEY, params=None):
  """Teach by lessons for a live student that learns as expected: nothing is predicted from step to step."""

  def one(state, _):
    lesson, state = last.next_lesson(state, problem, teacher, batch_size=batch)
    return state, (lesson, distances.distance(state.params, problem.target))

  start = last.init(key, problem, teacher, params)
  state, (lessons, distance) = jax.jit(lambda state: jax.lax.scan(one, state, length=steps))(start)
  return state, lessons, distance


@pytest.mark.parametrize(
  ("name", "settings"), [*((name, "usual") for name in TRACKED), ("imt", "no bias"), ("batch", "schedule")]
)
@pytest.mark.slow
def test_tracked_outputs_are_those_of_the_weights(x64, name, settings):
  """The Gram matrix in place of the weights changes nothing, before and after they are renewed."""
  learner, pool, target = track_task(SETTINGS[settings])
  teacher, batch = TRACKED[name]
  tracked = last.teach(
    KEY, learner, teacher, pool, target=target, steps=300, batch_size=batch, record_every=1, lessons=True
  )
  problem = last.Problem(learner, pool, target=target)
  _, lessons, distance = teach_live(problem, teacher, 300, batch)
  close = 1e-6 if settings == "schedule" else 1e-12  # optax's schedules answer in float32.
  np.testing.assert_allclose(tracked.state.teacher_state, learner.apply(tracked.params, pool.x), atol=close)
  np.testing.assert_array_equal(tracked.lessons.index, lessons.index)
  np.testing.assert_allclose(tracked.distance[1:], distance, atol=close)


def test_tracked_outputs_do_not_lose_digits_over_many_steps():
  learner, pool, target = track_task({"learning_rate": 0.02})
  result = last.teach(KEY, learner, last.teachers.imt(), pool, target=target, steps=5119, record_every=5119)
  exact = np.asarray(learner.apply(result.params, pool.x))
  np.testing.assert_allclose(result.state.teacher_state, exact, atol=2e-6 * np.abs(exact).max())


def far_least_squares():
  """Least squares with all parameters at 3e4 or -3e4."""
  draw = np.random.default_rng(0)
  x = draw.normal(size=(200, 4)).astype(np.float32)
  learner = last.learners.least_squares(4, learning_rate=0.1)
  pool = last.Pool(x, x @ np.array([1.0, -2.0, 0.5, 1.5], np.float32))
  params = jax.tree.map(
    lambda leaf: jnp.asarray(3e4 * draw.choice([-1, 1], size=leaf.shape), leaf.dtype), learner.init(KEY)
  )
  return last.Problem(learner, pool, target=last.fit_target(learner, pool)), params, 250


def half_moons():
  pool = last.data.half_moons().train
  learner = last.learners.logistic(2, learning_rate=1e-2, weight_decay=5e-5)
  return last.Problem(learner, pool, target=last.fit_target(learner, pool)), learner.init(KEY), 255


@pytest.mark.slow
@pytest.mark.parametrize(("make", "factor"), [(far_least_squares, 10), (half_moons, 3)])
def test_tracked_outputs_reach_the_target_as_nearly_as_computed_ones(make, factor):
  """In float32, where the outputs at the start may be a million times those at the target."""
  problem, params, steps = make()
  teacher = last.teachers.mixed(last.constraints.none(), joint=True)
  start = last.init(KEY, problem, teacher, params)
  tracked, records = last.run(start, problem, teacher, steps=steps, metrics="distance")
  _, _, computed = teach_live(problem, teacher, steps, params=params)
  rounding = np.finfo(np.float32).eps * float(optax.tree.norm(problem.target))
  assert records.distance[-1] <= factor * max(float(computed[-1]), rounding)
  assert records.distance[-1] < 1e-5 * records.distance[0]
  # It stays there, rather than rise again.
  assert np.max(records.distance[-100:]) <= factor * max(float(np.max(computed[-100:])), rounding)
  half, _ = last.run(start, problem, teacher, steps=60, metrics="distance")
  rest, _ = last.run(half, problem, teacher, steps=steps - 60, metrics="distance")
  assert_same_bits(rest.student, tracked.student)


def assert_same_bits(one, other):
  for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
    np.testing.assert_array_equal(a, b)


def test_soft_label_teachers_give_the_labels_of_their_formulas(x64):
  learner, pool, target = task("softmax_5")
  params = learner.init(jax.random.key(3))
  problem = last.Problem(learner, pool)
  truth = np.asarray(problem.truth)

  def labels(teacher):
    return np.asarray(answer_of(teacher, problem, learner.start(params), jnp.arange(10))[0].label)

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
  one_output = last.Problem(binary, last.Pool(pool.x, np.arange(30) % 2))
  lesson, _ = answer_of(last.teachers.label_smoothing(0.7), one_output, binary.start(binary.init(KEY)), jnp.arange(10))
  np.testing.assert_allclose(lesson.label[:, 0], 0.7 * (np.arange(10) % 2) + 0.15)


@pytest.mark.slow
def test_imt_on_a_network_holds_few_gradients_at_once():
  """The compiled program's own account: memory does not grow with the pool, except for the pool and its scores."""
  learner = last.learners.mlp((10, 64, 5), learning_rate=0.1)
  params = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(learner.init, KEY)))
  teacher = last.teachers.imt(chunk_size=16)

  def temporary_bytes(size):
    draw = np.random.default_rng(0)
    pool = last.Pool(draw.normal(size=(size, 10)), np.arange(size) % 5)
    problem = last.Problem(learner, pool, target=learner.init(jax.random.key(1)))
    state = last.init(KEY, problem, teacher)
    compiled = jax.jit(last.step).lower(state, problem, teacher).compile()
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
