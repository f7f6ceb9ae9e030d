"""Teaching: its records, independence of students, transformations of `teach`, and errors."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params

import last_jax as last
from tests.compilations import assert_compiled_once

KEY = jax.random.key(0)


def small_pool(classes=2, features=3, size=40, seed=0):
  draw = np.random.default_rng(seed)
  y = draw.integers(classes, size=size)
  y[:classes] = np.arange(classes)
  return last.Pool(draw.normal(size=(size, features)) + y[:, None], y)


def small_task(**settings):
  learner = last.learners.logistic(3, learning_rate=0.1, weight_decay=1e-3, **settings)
  pool = small_pool()
  return learner, pool, last.fit_target(learner, pool)


def test_the_loop_is_the_plain_python_loop(x64):
  learner, pool, target = small_task(momentum=0.5)
  teacher = last.teachers.greedy(last.constraints.simplex())
  test = small_pool(seed=1)
  init = learner.init(jax.random.key(7))
  result = last.teach(
    KEY, learner, teacher, pool, target=target, init=init, steps=12, batch_size=2, test=test, lessons=True
  )
  labels = learner.encode(pool.x, pool.y)
  student = learner.start(init)
  for t in range(12):
    index = result.lessons.index[t]
    x, truth = pool.x[index], labels[index]
    expected = last.synthesize_labels(
      learner, student.params, target, x, truth, last.constraints.simplex(), opt_state=student.opt_state
    )
    np.testing.assert_allclose(result.lessons.label[t], expected, atol=1e-9)
    student = learner.step(student, x, result.lessons.label[t])
    gap = optax.tree.norm(optax.tree.sub(student.params, target))
    np.testing.assert_allclose(result.distance[t + 1], gap, rtol=1e-9)
    np.testing.assert_allclose(result.objective[t + 1], learner.objective(student.params, pool.x, labels), rtol=1e-9)
    guess = np.asarray(learner.apply(student.params, test.x))[:, 0] > 0
    assert result.accuracy[t + 1] == pytest.approx(np.mean(guess == (np.asarray(test.y) == 1)))
  for a, b in zip(jax.tree.leaves(student), jax.tree.leaves(result.student), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-9)
  assert result.distance[0] == pytest.approx(float(optax.tree.norm(optax.tree.sub(init, target))))


@pytest.mark.slow
@pytest.mark.parametrize(
  ("steps", "every"), [(30, 1), (30, 7), (30, 30), (30, 100), (2500, 3), (2500, 2000), (1024, 1), (2503, 2503)]
)
def test_records_are_strided_and_end_with_the_end(steps, every):
  learner, pool, target = small_task()
  full = last.teach(KEY, learner, last.teachers.sgd(), pool, target=target, steps=steps)
  strided = last.teach(KEY, learner, last.teachers.sgd(), pool, target=target, steps=steps, record_every=every)
  expected = [*range(0, steps, every), steps]
  np.testing.assert_array_equal(full.step, np.arange(steps + 1))
  np.testing.assert_array_equal(strided.step, expected)
  np.testing.assert_allclose(strided.distance, np.asarray(full.distance)[expected], rtol=1e-5)
  assert strided.objective.shape == (len(expected),)


def steps_of_loops(jaxpr):
  """The number of iterations of every loop over steps that is not inside another: nested loops are multiplied."""
  for equation in jaxpr.eqns:
    inner = [count for each in jaxprs_in_params(equation.params) for count in steps_of_loops(each)]
    if equation.primitive.name == "scan":
      yield equation.params["length"] * sum(inner, start=not inner)
    else:
      yield from inner


@pytest.mark.parametrize("every", [1, 10**6])
@pytest.mark.parametrize("steps", [2, 1024, 1025, 2049, 2503, 5121])
def test_no_step_of_a_run_stands_alone(steps, every):
  """XLA inlines a loop of one iteration and may round it otherwise: a run in pieces would end at other bits."""
  learner, pool, _ = small_task()
  problem, teacher = last.Problem(learner, pool), last.teachers.sgd()
  state = last.init(KEY, problem, teacher)
  traced = jax.make_jaxpr(lambda state: last.run(state, problem, teacher, steps=steps, record_every=every))(state)
  counts = list(steps_of_loops(traced.jaxpr))
  assert sum(counts) == steps
  assert min(counts) > 1


def products_with_the_pool(jaxpr, size, depth=0):
  """How deep in nested scans each matrix product with an axis as long as the pool is."""
  for equation in jaxpr.eqns:
    shapes = [v.aval.shape for v in (*equation.invars, *equation.outvars) if hasattr(v.aval, "shape")]
    if equation.primitive.name == "dot_general" and any(size in shape for shape in shapes):
      yield depth
    for inner in jaxprs_in_params(equation.params):
      yield from products_with_the_pool(inner, size, depth + (equation.primitive.name == "scan"))


def test_a_metric_that_is_not_recorded_is_not_computed():
  """A pass over the pool happens at the start and once a record, and not in the scan over single steps."""
  learner, pool, target = small_task()

  def teach(key, **settings):
    return last.teach(key, learner, last.teachers.sgd(), pool, target=target, steps=20, record_every=10, **settings)

  traced = jax.make_jaxpr(lambda key: teach(key, metrics=("distance", "objective")))(KEY)
  assert sorted(products_with_the_pool(traced.jaxpr, 40)) == [0, 1]
  traced = jax.make_jaxpr(lambda key: teach(key, metrics="distance"))(KEY)
  assert not list(products_with_the_pool(traced.jaxpr, 40))
  nothing = teach(KEY, metrics=())
  assert nothing.distance is None
  assert nothing.objective is None
  assert nothing.accuracy is None


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
def test_run_is_a_loop_of_step_and_teach_is_init_and_run(batch):
  learner, pool, target = small_task(momentum=0.5)
  problem = last.Problem(learner, pool, target=target, tolerance=0.5)
  teacher = last.teachers.mixed(last.constraints.simplex(), joint=True)
  start = last.init(KEY, problem, teacher)
  assert start.step == 0
  state, infos = start, []
  for _ in range(20):
    state, info = last.step(state, problem, teacher, batch_size=batch)
    infos.append(info)
  ran, records = last.run(start, problem, teacher, steps=20, batch_size=batch, lessons=True)
  taught = last.teach(
    KEY, learner, teacher, pool, target=target, tolerance=0.5, steps=20, batch_size=batch, lessons=True
  )
  lessons = jax.tree.map(lambda *leaves: np.stack(leaves), *[info.lesson for info in infos])
  for found in (records.lessons, taught.lessons):
    np.testing.assert_array_equal(found.index, lessons.index)
    np.testing.assert_allclose(found.label, lessons.label, atol=1e-6)
  for found in (ran, taught.state):
    assert (found.step, found.hitting_time) == (state.step, state.hitting_time)
    chex.assert_trees_all_close(found.params, state.params, rtol=1e-5)
  np.testing.assert_array_equal(records.step, np.arange(1, 21))
  np.testing.assert_array_equal(taught.step, np.arange(21))
  np.testing.assert_array_equal(taught.distance[1:], records.distance)
  assert taught.distance[0] == pytest.approx(float(optax.tree.norm(optax.tree.sub(start.params, target))))


@pytest.mark.slow
def test_many_students_are_as_many_single_ones():
  learner, pool, target = small_task()
  keys = jax.random.split(KEY, 5)
  init = jax.vmap(learner.init)(jax.random.split(jax.random.key(3), 5))
  for teacher in (last.teachers.greedy(last.constraints.simplex()), last.teachers.imt()):
    settings = {"target": target, "steps": 60, "test": small_pool(seed=2), "lessons": True}
    many = last.teach_many(keys, learner, teacher, pool, init=init, **settings)
    fewer = last.teach_many(
      keys[:2], learner, teacher, pool, init=jax.tree.map(lambda leaf: leaf[:2], init), **settings
    )
    for i in range(5):
      one = last.teach(keys[i], learner, teacher, pool, init=jax.tree.map(lambda leaf, i=i: leaf[i], init), **settings)
      np.testing.assert_array_equal(one.lessons.index, many.lessons.index[i])
      np.testing.assert_allclose(one.distance, many.distance[i], rtol=1e-5)
      if i < 2:
        np.testing.assert_array_equal(fewer.lessons.index[i], many.lessons.index[i])
        np.testing.assert_allclose(fewer.distance[i], many.distance[i], rtol=1e-5)
    assert many.distance.shape == (5, 61)
    assert many.params["weights"].shape == (5, 3, 1)


@pytest.mark.slow
def test_hitting_time_is_the_first_iteration_within_the_tolerance():
  learner, pool, target = small_task()
  teacher = last.teachers.greedy(last.constraints.none())
  result = last.teach(KEY, learner, teacher, pool, target=target, steps=200, tolerance=0.3)
  first = int(np.argmax(np.asarray(result.distance) <= 0.3))
  assert first > 0
  assert result.hitting_time == first
  strided = last.teach(KEY, learner, teacher, pool, target=target, steps=200, tolerance=0.3, record_every=50)
  assert strided.hitting_time == first
  never = last.teach(KEY, learner, last.teachers.sgd(), pool, target=target, steps=3, tolerance=1e-6)
  assert never.hitting_time == -1
  at_once = last.teach(KEY, learner, teacher, pool, target=target, init=target, steps=3, tolerance=1e-6)
  assert at_once.hitting_time == 0


def test_a_probe_is_recorded():
  learner, pool, target = small_task()
  result = last.teach(KEY, learner, last.teachers.sgd(), pool, target=target, steps=6, record_every=2, probe=weights_of)
  assert result.probe.shape == (4, 3, 1)
  np.testing.assert_array_equal(result.probe[-1], result.params["weights"])


def weights_of(params):
  return params["weights"]


@pytest.mark.slow
def test_teach_can_be_jitted_vmapped_and_differentiated(x64):
  learner, pool, target = small_task()
  init = learner.init(jax.random.key(1))

  def final(rate, teacher):
    swept = last.learners.logistic(3, learning_rate=rate, weight_decay=1e-3)
    return last.teach(KEY, swept, teacher, pool, target=target, init=init, steps=20).distance[-1]

  for teacher in (last.teachers.sgd(), last.teachers.greedy(last.constraints.magnitude(0.5))):
    plain = [float(final(rate, teacher)) for rate in (0.05, 0.1)]
    swept = jax.jit(jax.vmap(lambda rate, teacher=teacher: final(rate, teacher)))(jnp.array([0.05, 0.1]))
    np.testing.assert_allclose(swept, plain, rtol=1e-9)
    slope = jax.grad(lambda rate, teacher=teacher: final(rate, teacher))(0.05)
    step = 1e-6
    expected = (final(0.05 + step, teacher) - final(0.05 - step, teacher)) / (2 * step)
    np.testing.assert_allclose(slope, expected, rtol=1e-4)


def test_settings_that_are_numbers_do_not_recompile():
  _, pool, target = small_task()
  project = last.constraints.magnitude(1.0).project

  def teach(numbers):
    rate, radius = numbers
    learner = last.learners.logistic(3, learning_rate=rate, weight_decay=1e-3)
    teacher = last.teachers.greedy(last.constraints.Constraint("ball", project, radius))
    last.teach(KEY, learner, teacher, pool, target=target, steps=5)

  assert_compiled_once(teach, [(0.1, 0.5), (0.2, 1.0), (0.3, 2.0)])


# --- Errors, each with its own words.


def refusal(message, error=ValueError, **changes):
  learner, pool, target = small_task()
  arguments = {
    "key": KEY,
    "learner": learner,
    "teacher": last.teachers.greedy(last.constraints.simplex()),
    "pool": pool,
    "target": target,
    "steps": 3,
  } | changes
  with pytest.raises(error, match=message):
    last.teach(**arguments)


def test_bad_arguments_are_refused():
  two = {"weights": jnp.zeros((2, 1)), "bias": jnp.zeros(1)}
  refusal("target is missing: the teacher LAST", target=None)
  refusal(r"target\['weights'\] must have shape \(3, 1\), but it has shape \(2, 1\)", target=two)
  refusal("target does not have the learner's parameters", target={"weights": jnp.zeros((3, 1))})
  refusal(r"init\['weights'\] must have shape", init=two)
  nan = {"weights": np.full((3, 1), np.nan, np.float32), "bias": np.zeros(1, np.float32)}
  with jax.debug_nans(False):
    refusal(r"target\['weights'\] holds NaN", target=nan)
  refusal("steps must be a whole number of at least 1", steps=0)
  refusal("steps must be a whole number", error=TypeError, steps=2.5)
  refusal("batch_size must be a whole number of at least 1", batch_size=-1)
  refusal("record_every must be a whole number of at least 1", record_every=0)
  refusal("metrics='speed' is not known: use one of 'accuracy', 'distance', 'objective'", metrics=("speed",))
  refusal("tolerance must be a positive number", tolerance=-1.0)
  refusal("tolerance is a distance", tolerance=1.0, target=None, teacher=last.teachers.sgd())
  refusal(r"pool.x must have shape \[n, 3\]", pool=small_pool(features=4))
  refusal("pool.y holds class ids from 0 to 2, but the learner has 2 classes", pool=small_pool(classes=3))
  refusal("pool holds one class only", pool=last.Pool(np.ones((4, 3)), np.zeros(4, int)))
  refusal("pool.y holds label vectors of length 3", pool=last.Pool(np.ones((4, 3)), np.ones((4, 3))))
  refusal("test.y holds class ids", test=small_pool(classes=4))
  refusal("pool must be a last_jax.Pool", error=TypeError, pool=(np.ones((4, 3)), np.zeros(4)))
  refusal("teacher must be a Teacher, as teachers.greedy", error=TypeError, teacher="greedy")
  refusal("learner must come from last_jax.learners", error=TypeError, learner="logistic")
  refusal("batch_size=41 examples cannot be chosen from a pool of 40", batch_size=41, teacher=last.teachers.imt())


def test_bad_many_arguments_are_refused():
  learner, pool, target = small_task()
  keys = jax.random.split(KEY, 3)
  sgd = last.teachers.sgd()
  with pytest.raises(ValueError, match=r"init\['weights'\] must have shape \(3, 3, 1\)|init\['bias'\] must have shape"):
    last.teach_many(keys, learner, sgd, pool, target=target, init=learner.init(KEY))
  with pytest.raises(ValueError, match=r"keys must have shape \[students\]"):
    last.teach_many(KEY, learner, sgd, pool, target=target)
  with pytest.raises(TypeError, match=r"keys must be made by jax\.random\.key"):
    last.teach_many(jnp.zeros((3, 2)), learner, sgd, pool, target=target)
  with pytest.raises(ValueError, match=r"key must be one key, but its shape is \(3,\): teach_many takes keys"):
    last.teach(keys, learner, sgd, pool, target=target)


def test_a_metric_that_cannot_be_computed_is_refused():
  sgd = last.teachers.sgd()
  refusal("metrics: 'distance' cannot be recorded: it needs a target", metrics="distance", target=None, teacher=sgd)
  refusal("metrics: 'accuracy' cannot be recorded: it needs a test pool", metrics=("objective", "accuracy"))
  pool = last.Pool(np.eye(3), np.array([0.1, 0.2, 0.3]))
  regression = last.learners.least_squares(3, learning_rate=0.1)
  refusal(
    "metrics: 'accuracy' cannot be recorded: the learner's loss squared_error is no classification loss",
    learner=regression,
    pool=pool,
    test=pool,
    metrics="accuracy",
  )
  problem = last.Problem(regression, pool)
  with pytest.raises(ValueError, match="metrics: 'distance' cannot be recorded"):
    last.run(last.init(KEY, problem, sgd), problem, sgd, steps=2, metrics="distance")
  everything = last.teach(KEY, regression, sgd, pool, test=pool, steps=2)  # Unless asked for, all that is possible.
  assert everything.objective is not None
  assert everything.distance is None
  assert everything.accuracy is None


def test_keys_of_the_old_kind_give_the_same_lessons():
  learner, pool, target = small_task()
  sgd = last.teachers.sgd()
  settings = {"target": target, "steps": 5, "lessons": True}
  typed = last.teach(jax.random.key(3), learner, sgd, pool, **settings)
  legacy = last.teach(jax.random.PRNGKey(3), learner, sgd, pool, **settings)
  np.testing.assert_array_equal(typed.lessons.index, legacy.lessons.index)
  np.testing.assert_array_equal(typed.distance, legacy.distance)
  many = last.teach_many(jax.random.split(jax.random.key(3), 4), learner, sgd, pool, **settings)
  legacy = last.teach_many(jax.random.split(jax.random.PRNGKey(3), 4), learner, sgd, pool, **settings)
  np.testing.assert_array_equal(many.lessons.index, legacy.lessons.index)
  np.testing.assert_array_equal(many.distance, legacy.distance)
  problem = last.Problem(learner, pool)
  state = last.init(jax.random.PRNGKey(3), problem, sgd)
  assert jnp.issubdtype(state.key.dtype, jax.dtypes.prng_key)


def test_states_of_many_students_belong_to_run():
  """The functions of one student say so, rather than fail inside."""
  learner, pool, _ = small_task()
  problem, sgd = last.Problem(learner, pool), last.teachers.sgd()
  many = last.init(jax.random.split(KEY, 3), problem, sgd)
  for call in (last.step, last.next_lesson):
    with pytest.raises(ValueError, match=r"state must be of one student|state is of 3 students"):
      call(many, problem, sgd)
  uneven = many._replace(step=many.step.at[0].set(5))
  with pytest.raises(ValueError, match=r"state.step differs between students, from 0 to 5: run them apart"):
    last.run(uneven, problem, sgd, steps=2)


@pytest.mark.parametrize(
  ("x", "y", "message"),
  [
    (np.ones((0, 3)), np.ones(0), "the pool is empty"),
    (np.ones((4, 3)), np.ones(3), "holds 4 examples but y holds 3 labels"),
    (np.ones(4), np.ones(4), r"pool x must have shape \[n, features...\]"),
    (np.ones((4, 3)), np.ones((4, 2, 2, 2)), r"pool y must have shape \[n\], \[n, K\]"),
    (np.zeros((4, 3)), np.ones(4), "pool x is zero everywhere"),
    (
      np.full((4, 3), np.nan),
      np.ones(4),
      r"pool x must be finite, but 12 entries are NaN or infinite, the first at \(0, 0\)",
    ),
    (np.ones((4, 3)), np.array([0, 1, np.inf, 0]), r"pool y must be finite, but 1 entries .* first at \(2,\)"),
    (np.full((2, 2), 1e300), np.ones(2), "pool x must be finite"),
    (np.ones((2, 2)), np.array([2**40, 1]), "pool y holds integers that do not fit into int32"),
  ],
)
def test_bad_pools_are_refused(x, y, message):
  with pytest.raises(ValueError, match=message):
    last.Pool(x, y)


def test_pools_of_other_things_are_refused():
  with pytest.raises(TypeError, match="pool x must hold numbers"):
    last.Pool(np.array([["a", "b"]]), np.ones(1))
  with pytest.raises(TypeError, match="pool y must hold real numbers"):
    last.Pool(np.ones((1, 1)), np.ones(1, complex))


def test_pools_are_pytrees_and_take_any_byte_order():
  pool = last.Pool(np.ones((2, 3), ">f4"), np.array([0, 1], ">i2"))
  doubled = jax.jit(lambda p: jax.tree.map(lambda leaf: 2 * leaf, p))(pool)
  assert isinstance(doubled, last.Pool)
  np.testing.assert_array_equal(doubled.x, 2 * np.ones((2, 3)))
  assert len(pool) == 2
  assert repr(pool) == "Pool(x=float32[2, 3], y=int16[2])"


@pytest.mark.slow
def test_a_zero_example_in_a_good_pool_is_harmless():
  draw = np.random.default_rng(0)
  x = draw.normal(size=(6, 3))
  x[:4] = 0
  learner = last.learners.logistic(3, learning_rate=0.5, bias=False)
  pool = last.Pool(x, np.array([0, 1, 0, 1, 0, 1]))
  target = {"weights": jnp.ones((3, 1))}
  for constraint in (last.constraints.none(), last.constraints.simplex(), last.constraints.one_hot()):
    for teacher in (last.teachers.greedy(constraint), last.teachers.mixed(constraint, joint=True)):
      result = last.teach(KEY, learner, teacher, pool, target=target, steps=30, lessons=True)
      assert np.isfinite(result.distance).all()
      zero = np.asarray(result.lessons.index)[:, 0] < 4
      truth = np.asarray(pool.y)[np.asarray(result.lessons.index)[:, 0]]
      np.testing.assert_array_equal(np.asarray(result.lessons.label)[zero, 0, 0], truth[zero])


def test_a_target_of_numpy_arrays_is_on_the_device_once():
  learner = last.learners.logistic(3, learning_rate=0.1)
  target = {"weights": np.ones((3, 1), np.float32), "bias": np.zeros(1, np.float32)}
  problem = last.Problem(learner, last.Pool(np.eye(3, dtype=np.float32), np.array([0, 1, 1])), target=target)
  assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(problem.target))
