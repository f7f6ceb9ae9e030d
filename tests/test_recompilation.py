"""Sweeps over numbers compile one program, and other functions of the state machine none that they need not."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from tests.compilations import assert_compiled_once, counted

KEY = jax.random.key(0)
KEYS = jax.random.split(KEY, 3)
DRAW = np.random.default_rng(0)
POOL = last.Pool(DRAW.normal(size=(40, 3)), np.arange(40) % 2)
TARGET = {"weights": np.ones((3, 1), np.float32), "bias": np.zeros(1, np.float32)}
TWENTY = [float(value) for value in np.linspace(0.05, 1.0, 20)]


def logistic(rate=0.1, **settings):
  return last.learners.logistic(3, learning_rate=rate, **settings)


def teach(learner, teacher, many=False):
  if many:
    return last.teach_many(KEYS, learner, teacher, POOL, target=TARGET, steps=4)
  return last.teach(KEY, learner, teacher, POOL, target=TARGET, steps=4)


SETS = {
  "ball": last.constraints.magnitude,
  "ball_inf": lambda radius: last.constraints.magnitude(radius, p=np.inf),
  "around": lambda radius: last.constraints.magnitude(radius, around="prediction"),
  "simplex": last.constraints.simplex,
}


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("name", SETS)
def test_a_radius_swept_over_twenty_values_compiles_once(name, many):
  learner = logistic()
  final = []

  def at(radius):
    final.append(teach(learner, last.teachers.greedy(SETS[name](radius)), many).distance[..., -1])

  assert_compiled_once(at, TWENTY)
  assert len(np.unique(np.asarray(final), axis=0)) > 10  # Radii are used, not merely accepted.


@pytest.mark.parametrize("many", [False, True])
def test_a_learning_rate_swept_over_twenty_values_compiles_once(many):
  teacher = last.teachers.greedy(last.constraints.simplex())
  final = []

  def at(rate):
    final.append(teach(logistic(rate, weight_decay=rate / 10, momentum=rate / 2), teacher, many).distance[..., -1])

  assert_compiled_once(at, TWENTY)
  assert len(np.unique(np.asarray(final), axis=0)) == 20


@pytest.mark.parametrize(
  "make",
  [last.teachers.label_smoothing, last.teachers.theorem_1, lambda number: last.teachers.theorem_2(c2=number)],
  ids=["mu", "c1", "c2"],
)
def test_numbers_of_teachers_swept_over_twenty_values_compile_once(make):
  learner = logistic()
  assert_compiled_once(lambda number: teach(learner, make(number)), TWENTY)


def test_pools_targets_starts_and_tolerances_of_one_shape_compile_once():
  learner, teacher = logistic(), last.teachers.greedy(last.constraints.simplex())

  def at(seed):
    draw = np.random.default_rng(seed)
    pool = last.Pool(draw.normal(size=(40, 3)), np.arange(40) % 2)
    params = [{"weights": draw.normal(size=(3, 1)).astype(np.float32), "bias": np.zeros(1, np.float32)} for _ in "ab"]
    last.teach(
      jax.random.key(seed), learner, teacher, pool, target=params[0], init=params[1], steps=4, tolerance=0.1 + seed
    )

  assert_compiled_once(at, range(5))


def test_pieces_of_one_length_compile_once():
  teacher = last.teachers.mixed(last.constraints.simplex(), joint=True)
  problem = last.Problem(logistic(), POOL, target=TARGET)
  for key in (KEY, KEYS):
    state, _ = last.run(last.init(key, problem, teacher), problem, teacher, steps=7)
    with counted() as programs:
      for _ in range(5):
        state, _ = last.run(state, problem, teacher, steps=7)
    assert not programs.names
    assert np.all(np.asarray(state.step) == 42)


def test_a_teacher_is_traced_once():
  """The loop asks for a lesson at one place of its program, and again only for programs of other shapes."""

  @chex.assert_max_traces(n=2)
  def step(teacher_state, view, proposal):
    return last.Lesson(proposal, view.truth[proposal]), teacher_state, None

  teacher = last.Teacher("counted", step=step)
  problem = last.Problem(logistic(), POOL)
  state = last.init(KEY, problem, teacher)
  for _ in range(5):
    state, _ = last.step(state, problem, teacher)
  for _ in range(5):
    state, _ = last.step(state, problem, teacher, batch_size=2)
  with pytest.raises(AssertionError, match="traced > 2 times"):
    last.step(state, problem, teacher, batch_size=3)


def test_a_sweep_can_be_one_vmap():
  learner = logistic()

  def final(radius):
    teacher = last.teachers.greedy(last.constraints.magnitude(radius))
    return last.teach(KEY, learner, teacher, POOL, target=TARGET, steps=4).distance[-1]

  together = jax.vmap(final)(jnp.asarray(TWENTY, jnp.float32))
  np.testing.assert_allclose(together[::7], [final(radius) for radius in TWENTY[::7]], rtol=1e-5)
