"""The loop: what it records, how it resumes, that students do not influence each other, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.extend.core import jaxprs_in_params

import last_jax as last
from last_jax import loop, proposals

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


@pytest.mark.parametrize(
  ("steps", "every"), [(30, 1), (30, 7), (30, 30), (30, 100), (2500, 3), (2500, 2000), (1024, 1)]
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
  plan = loop.make_plan(learner, target, None, 20, 1, 10, False, None, ("distance", "objective"), None)
  task = loop.Task(pool, target, None, None)
  run = jax.make_jaxpr(lambda key: loop.run_inline(key, learner, last.teachers.sgd(), task, None, None, plan=plan))
  assert sorted(products_with_the_pool(run(KEY).jaxpr, 40)) == [0, 1]
  nothing = last.teach(KEY, learner, last.teachers.sgd(), pool, target=target, steps=5, metrics=())
  assert nothing.distance is None
  assert nothing.objective is None
  assert nothing.accuracy is None


@pytest.mark.parametrize("teacher", [last.teachers.sgd(), last.teachers.greedy(last.constraints.simplex())])
def test_in_two_parts_or_in_one_the_bits_are_the_same(teacher):
  learner, pool, target = small_task(momentum=0.9)
  settings = {"target": target, "batch_size": 2, "record_every": 4, "tolerance": 0.5, "lessons": True}
  whole = last.teach(KEY, learner, teacher, pool, steps=40, **settings)
  first = last.teach(KEY, learner, teacher, pool, steps=16, **settings)
  second = last.teach(KEY, learner, teacher, pool, steps=24, resume=first, **settings)
  np.testing.assert_array_equal(np.concatenate([first.distance, second.distance[1:]]), whole.distance)
  np.testing.assert_array_equal(np.concatenate([first.step, second.step[1:]]), whole.step)
  np.testing.assert_array_equal(np.concatenate([first.lessons.label, second.lessons.label]), whole.lessons.label)
  assert second.hitting_time == whole.hitting_time
  jax.tree.map(np.testing.assert_array_equal, second.student, whole.student)


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


def test_proposals_are_uniform_and_belong_to_key_and_step():
  drawn = np.asarray(proposals.propose(KEY, jnp.arange(4000), 5, 10))
  counts = np.bincount(drawn.ravel(), minlength=10)
  assert np.sum((counts - 2000) ** 2 / 2000) < 30  # Chi-squared with 9 degrees of freedom: p < 0.0005.
  repeats = np.mean(drawn[1:, 0] == drawn[:-1, 0])  # Neighbouring steps are independent.
  assert abs(repeats - 0.1) < 0.02
  np.testing.assert_array_equal(drawn[100:200], proposals.propose(KEY, jnp.arange(100, 200), 5, 10))
  assert len(np.unique(drawn[:, 0])) == 10
  for size in (1, 7, 65536, 65537, 1_000_003, 2**31 - 1):
    bits = np.random.default_rng(0).integers(2**32, size=1000, dtype=np.uint64)
    expected = (bits * np.uint64(size)) >> np.uint64(32)
    np.testing.assert_array_equal(proposals._scale_down(jnp.asarray(bits.astype(np.uint32)), size), expected)


def test_a_probe_is_recorded():
  learner, pool, target = small_task()
  result = last.teach(KEY, learner, last.teachers.sgd(), pool, target=target, steps=6, record_every=2, probe=weights_of)
  assert result.probe.shape == (4, 3, 1)
  np.testing.assert_array_equal(result.probe[-1], result.params["weights"])


def weights_of(params):
  return params["weights"]


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
  before = None
  for rate, radius in ((0.1, 0.5), (0.2, 1.0), (0.3, 2.0)):
    learner = last.learners.logistic(3, learning_rate=rate, weight_decay=1e-3)
    teacher = last.teachers.greedy(last.constraints.Constraint("ball", last.constraints.magnitude(1.0).project, radius))
    last.teach(KEY, learner, teacher, pool, target=target, steps=5)
    size = loop.run._cache_size()
    assert before is None or size == before
    before = size


# --- What is refused, each with its own words.


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
  refusal("teacher must come from last_jax.teachers", error=TypeError, teacher="greedy")
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
    last.teach_many(jnp.zeros((3, 2), jnp.uint32), learner, sgd, pool, target=target)


@pytest.mark.parametrize(
  ("x", "y", "message"),
  [
    (np.ones((0, 3)), np.ones(0), "the pool is empty"),
    (np.ones((4, 3)), np.ones(3), "holds 4 examples but y holds 3 labels"),
    (np.ones(4), np.ones(4), r"pool x must have shape \[n, features...\]"),
    (np.ones((4, 3)), np.ones((4, 2, 2)), r"pool y must have shape \[n\] or \[n, K\]"),
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
