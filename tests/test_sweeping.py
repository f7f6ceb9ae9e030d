"""`last.sweep`: each pair has the result of `teach_many`, and pairs of one structure share a program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from tests.compilations import counted

KEYS = jax.random.split(jax.random.key(0), 5)
DRAW = np.random.default_rng(0)
POOL = last.Pool(DRAW.normal(size=(40, 3)), np.arange(40) % 2)
TEST = last.Pool(DRAW.normal(size=(20, 3)), np.arange(20) % 2)
TARGET = {"weights": np.ones((3, 1), np.float32), "bias": np.zeros(1, np.float32)}
RATES = (0.03, 0.1, 0.3)
BALLS = {radius: last.teachers.greedy(last.constraints.magnitude(radius)) for radius in (0.2, 0.6)}


def logistic(rate, **settings):
  return last.learners.logistic(3, learning_rate=rate, **settings)


LEARNERS = {rate: logistic(rate, weight_decay=rate / 100) for rate in RATES}


def swept(learners=None, teachers=None, keys=KEYS, **settings):
  settings = {"target": TARGET, "steps": 6} | settings
  return last.sweep(keys, learners or LEARNERS, teachers or BALLS, POOL, **settings)


def programs_of(names):
  return names.count("jit(_teach_stacked)")


def as_numbers(tree):
  def convert(leaf):
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

  return jax.tree.map(convert, tree)


def assert_same(found, wanted, exactly=True):
  """Compare two results, leaf by leaf: to the last digits, which two programs may round otherwise, or nearly."""
  assert jax.tree.structure(found) == jax.tree.structure(wanted)
  rounding = {"rtol": 1e-6, "atol": 1e-7} if exactly else {"rtol": 1e-4, "atol": 1e-5}
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **rounding), as_numbers(found), as_numbers(wanted))
  jax.tree.map(lambda a, b: np.testing.assert_equal(a.dtype, b.dtype), as_numbers(found), as_numbers(wanted))


class TestValues:
  @pytest.mark.slow
  @pytest.mark.parametrize("at_once", [4096, 7, 1])
  def test_each_pair_is_taught_as_by_teach_many(self, at_once):
    teachers = {"sgd": last.teachers.sgd(), **BALLS}
    settings = {"target": TARGET, "steps": 6, "record_every": 4, "test": TEST, "tolerance": 1.5, "lessons": True}
    result = swept(teachers=teachers, at_once=at_once, **settings)
    assert list(result.results) == [(rate, name) for rate in RATES for name in teachers]
    for rate, name in [(0.03, "sgd"), (0.1, 0.2), (0.3, 0.6)]:
      alone = last.teach_many(KEYS, LEARNERS[rate], teachers[name], POOL, **settings)
      assert_same(result[rate, name], alone, exactly=at_once == 4096)
    assert (result.hitting_time >= 0).any()

  def test_a_pair_is_taught_as_by_teach_many(self):
    assert_same(swept()[0.3, 0.6], last.teach_many(KEYS, LEARNERS[0.3], BALLS[0.6], POOL, target=TARGET, steps=6))

  @pytest.mark.slow
  @pytest.mark.parametrize(
    "teacher",
    [
      last.teachers.imt(),
      last.teachers.mixed(last.constraints.simplex(), joint=True),
      last.teachers.greedy(last.constraints.one_hot()),
      last.teachers.planner(2, last.constraints.simplex()),
      last.teachers.theorem_1(0.1),
      last.teachers.label_smoothing(0.8),
    ],
    ids=lambda teacher: teacher.name,
  )
  def test_every_kind_of_teacher(self, teacher):
    result = swept(teachers={"it": teacher}, batch_size=2)
    for rate in RATES[::2]:
      alone = last.teach_many(KEYS, LEARNERS[rate], teacher, POOL, target=TARGET, steps=6, batch_size=2)
      np.testing.assert_allclose(result[rate, "it"].distance, alone.distance, rtol=1e-5)

  @pytest.mark.slow
  def test_float64(self, x64):
    pool = last.Pool(np.asarray(POOL.x, np.float64), POOL.y)
    for dtype in (np.float32, np.float64):  # Rates are Python's numbers: they do not widen float32.
      target = jax.tree.map(lambda leaf, dtype=dtype: leaf.astype(dtype), TARGET)
      init = jax.tree.map(lambda leaf, dtype=dtype: np.zeros((5, *leaf.shape), dtype), TARGET)
      settings = {"target": target, "init": init, "steps": 6}
      result = last.sweep(KEYS, LEARNERS, BALLS, pool, **settings)
      for rate, radius in [(0.03, 0.2), (0.3, 0.6)]:
        alone = last.teach_many(KEYS, LEARNERS[rate], BALLS[radius], pool, **settings)
        assert_same(result[rate, radius], alone, exactly=False)
        assert result[rate, radius].params["weights"].dtype == dtype

  @pytest.mark.slow
  def test_learners_of_several_structures_with_targets_and_starts_of_their_own(self):
    learners = {
      "logistic": logistic(0.1),
      "faster": logistic(0.2),
      "momentum": logistic(0.1, momentum=0.5),
      "network": last.learners.mlp((3, 4, 2), learning_rate=0.1),
    }
    made = []

    def target(learner):
      made.append(learner)
      return jax.tree.map(lambda leaf: len(made) * jnp.ones_like(leaf), learner.init(KEYS[0]))

    def init(learner):
      return jax.vmap(learner.init)(KEYS)

    with counted() as programs:
      result = swept(learners, target=target, init=init)
    assert programs_of(programs.names) == 3
    for place, (name, learner) in enumerate(learners.items()):
      own = jax.tree.map(lambda leaf, place=place: (1 + place) * jnp.ones_like(leaf), learner.init(KEYS[0]))
      alone = last.teach_many(KEYS, learner, BALLS[0.2], POOL, target=own, init=init(learner), steps=6)
      np.testing.assert_allclose(result[name, 0.2].distance, alone.distance, rtol=1e-5)

  @pytest.mark.parametrize("at_once", [4096, 3])
  def test_arrays_and_prepared_labels_that_differ_take_turns_in_one_program(self, at_once):
    logits = {scale: jax.tree_util.Partial(lambda scale, x: scale * x[:, :1], scale) for scale in (1.0, 2.0)}
    teachers = {scale: last.teachers.distillation(function) for scale, function in logits.items()}
    with counted() as programs:
      result = swept(teachers=teachers, at_once=at_once)
    assert programs_of(programs.names) == 1
    for scale, teacher in teachers.items():
      alone = last.teach_many(KEYS, LEARNERS[0.1], teacher, POOL, target=TARGET, steps=6)
      assert_same(result[0.1, scale], alone)
    assert (result.distance[:, 0, :, -1] != result.distance[:, 1, :, -1]).all()

  def test_students_split_over_devices(self):
    mesh = last.devices.mesh()
    assert_same(swept(mesh=mesh)[0.1, 0.6], swept()[0.1, 0.6])

  @pytest.mark.slow
  def test_a_result_can_be_continued(self):
    result = swept()[0.1, 0.2]
    problem = last.Problem(LEARNERS[0.1], POOL, target=TARGET)
    state, _ = last.run(result.state, problem, BALLS[0.2], steps=3)
    alone = last.teach_many(KEYS, LEARNERS[0.1], BALLS[0.2], POOL, target=TARGET, steps=9)
    np.testing.assert_array_equal(state.params["weights"], alone.params["weights"])


class TestPrograms:
  def test_twenty_rates_and_three_radii_of_fifty_seeds_compile_once(self):
    learners = {rate: logistic(rate) for rate in np.geomspace(1e-3, 1.0, 20).tolist()}
    teachers = {radius: last.teachers.greedy(last.constraints.simplex(radius)) for radius in (0.2, 0.5, 1.0)}
    keys = jax.random.split(jax.random.key(1), 50)
    with counted() as programs:
      result = swept(learners, teachers, keys)
    assert programs_of(programs.names) == 1
    assert result.distance.shape == (20, 3, 50, 7)
    assert len(np.unique(result.distance[..., -1].mean(-1))) == 60
    with counted() as programs:  # Other numbers of the same count find the program compiled.
      swept({2 * rate: logistic(2 * rate) for rate in learners}, teachers, keys)
    assert not programs.names

  def test_calls_share_a_program(self):
    with counted() as programs:
      swept(at_once=11)  # 30 students in three calls.
    assert programs_of(programs.names) == 1

  @pytest.mark.slow
  def test_teachers_of_other_structure_have_programs_of_their_own(self):
    teachers = {"sgd": last.teachers.sgd(), "simplex": last.teachers.greedy(last.constraints.simplex()), **BALLS}
    with counted() as programs:
      swept(teachers=teachers, steps=7)
    assert programs_of(programs.names) == 3


class TestSweep:
  def test_axes_and_names(self):
    result = swept(steps=6, record_every=4, test=TEST)
    assert result.learners == RATES
    assert result.teachers == (0.2, 0.6)
    np.testing.assert_array_equal(result.step, [0, 4, 6])
    assert result.distance.shape == result.objective.shape == result.accuracy.shape == (3, 2, 5, 3)
    np.testing.assert_array_equal(result.distance[2, 1], result[0.3, 0.6].distance)
    assert result.hitting_time is None
    assert repr(result) == "Sweep(3 learners x 2 teachers x 5 seeds, 3 records)"
    assert (result.distance[..., 0] == result.distance[:1, :1, :, 0]).all()  # All pairs have the same starts.
    with pytest.raises(KeyError, match=r"learner, teacher"):
      result[0.6, 0.3]

  def test_a_diverging_pair_is_named_and_harms_no_other(self):
    learners = {"slow": logistic(0.1), "wild": logistic(1e30, weight_decay=1.0)}
    learners["slow"] = logistic(0.1, weight_decay=1.0)
    with jax.debug_nans(False):
      result = swept(learners, {"sgd": last.teachers.sgd()}, steps=20)
      alone = last.teach_many(KEYS, learners["slow"], last.teachers.sgd(), POOL, target=TARGET, steps=20)
    assert result.diverged == {("wild", "sgd"): 5}
    assert_same(result["slow", "sgd"], alone)
    assert "diverged (5 of 5)" in result.table()
    assert result.best() == {"sgd": "slow"}

  @pytest.mark.slow
  def test_the_best_has_the_least_mean_distance_and_the_greatest_accuracy(self):
    result = swept(steps=30, test=TEST)
    for metric, choose in (("distance", np.argmin), ("objective", np.argmin), ("accuracy", np.argmax)):
      means = result.values(metric)[..., -1].astype(float).mean(-1)
      best = {radius: RATES[choose(means[:, place])] for place, radius in enumerate(result.teachers)}
      assert result.best(metric) == best

  def test_table(self):
    result = swept()
    title, head, *rows = result.table().splitlines()
    assert title == "distance after 6 steps: mean over 5 seeds ± its standard error"
    assert head.split() == ["0.2", "0.6"]
    assert [row.split()[0] for row in rows] == ["0.03", "0.1", "0.3"]
    ends = result[0.1, 0.6].distance[:, -1].astype(float)
    assert rows[1].endswith(f"{ends.mean():.3g} ± {ends.std(ddof=1) / 5**0.5:.2g}")
    assert "± nan" in swept(keys=KEYS[:1]).table()
    with pytest.raises(ValueError, match="accuracy"):
      result.table("accuracy")

  def test_single_learners_and_teachers_need_no_name(self):
    result = swept(LEARNERS[0.1], last.teachers.sgd())
    assert result.learners == ("learner",)
    assert result.teachers == ("SGD",)


class TestErrors:
  @pytest.mark.parametrize(
    ("settings", "kind", "match"),
    [
      ({"learners": [LEARNERS[0.1]]}, TypeError, "learners must be a Learner or a dict of them by name.* list"),
      ({"learners": {"a": 0.1}}, TypeError, r"learners\['a'\] must be a Learner, but it is a float"),
      ({"teachers": {"a": LEARNERS[0.1]}}, TypeError, r"teachers\['a'\] must be a Teacher, but it is a Learner"),
      ({"keys": KEYS[0]}, ValueError, r"keys must have shape \[seeds\]"),
      ({"at_once": 0}, ValueError, "at_once"),
      ({"steps": 0}, ValueError, "steps"),
      ({"target": None}, ValueError, r"learners\[0.03\], teachers\[0.2\]: target is missing"),
      ({"learners": {"wide": last.learners.logistic(4, learning_rate=1)}}, ValueError, r"learners\['wide'\]: pool.x"),
      ({"init": TARGET}, ValueError, r"learners\[0.03\]: init"),
      ({"target": lambda learner: {}}, ValueError, r"learners\[0.03\]: target"),
      ({"metrics": ("accuracy",)}, ValueError, "accuracy"),
    ],
  )
  def test_bad_arguments_are_named(self, settings, kind, match):
    with pytest.raises(kind, match=match):
      swept(**settings)

  def test_empty_and_traced_arguments(self):
    with pytest.raises(ValueError, match="teachers is empty"):
      last.sweep(KEYS, LEARNERS, {}, POOL)
    with pytest.raises(TypeError, match="keys must not be traced"):
      jax.jit(lambda keys: swept(keys=keys).distance)(KEYS)

  def test_an_error_while_tracing_names_the_settings(self):
    def step(teacher_state, view, proposal):
      return last.Lesson(proposal, view.truth), teacher_state, None

    with pytest.raises(ValueError, match="labels") as caught:
      swept(teachers={"broken": last.Teacher("broken", step=step)})
    assert "while teaching 3 settings of one program, as (0.03, 'broken')" in caught.value.__notes__
