"""Compiled programs are counted, warned of and bounded; loops over numbers compile nothing new."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import programs
from tests.compilations import assert_compiled_once, counted

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
POOL = last.Pool(X, np.arange(40) % 2)
TARGET = {"weights": np.ones((3, 1), np.float32), "bias": np.zeros(1, np.float32)}
LOGISTIC = last.learners.logistic(3, learning_rate=0.1)
NUMBERS = [0.3, 0.5, 1, 2]  # Whole ones too.


@pytest.fixture
def counter(monkeypatch):
  """The counter of this process, as it is at the start of a process."""
  counter = programs._counter
  for name, value in {"compiled": 0, "most": None, "is_full": False, "has_warned": False, "_next_look": 0}.items():
    monkeypatch.setattr(counter, name, value)
  return counter


@pytest.fixture
def forgotten(monkeypatch):
  """The times that JAX's programs were forgotten; they are not, which would cost other tests theirs."""
  times = []
  monkeypatch.setattr(jax, "clear_caches", lambda: times.append(1))
  return times


def pretend(monkeypatch, folder, maps, most=1000):
  for name, text in (("_MAPS", "a map\n" * maps), ("_MOST_MAPS", f"{most}\n")):
    (folder / name).write_text(text)
    monkeypatch.setattr(programs, name, folder / name)


def compile_one(number):
  jax.jit(lambda x: x * number)(1.0)  # A new function each time.


def teach():
  return last.teach(KEY, LOGISTIC, last.teachers.sgd(), POOL, target=TARGET, steps=2)


def test_every_compiled_program_is_counted(counter):
  before = last.devices.count_programs().compiled
  with counted() as compiled:
    for number in range(3):
      compile_one(number)
  assert last.devices.count_programs().compiled - before == compiled.count >= 3


def test_maps_are_those_that_the_system_lists():
  _, maps, most = last.devices.count_programs()
  assert (maps is None) == (most is None)
  if maps is not None:
    assert 100 < maps < most


def test_a_warning_comes_once_and_well_before_the_end(counter, monkeypatch, tmp_path):
  pretend(monkeypatch, tmp_path, maps=599)
  compile_one(1)
  pretend(monkeypatch, tmp_path, maps=601)
  with pytest.warns(RuntimeWarning, match="601 memory maps, of the 1,000"):
    compile_one(2)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    compile_one(3)


def test_maps_are_counted_again_only_when_there_could_be_enough(counter, monkeypatch, tmp_path):
  pretend(monkeypatch, tmp_path, maps=100, most=65_530)
  looks, count = [], programs.count_programs
  monkeypatch.setattr(programs, "count_programs", lambda: looks.append(counter.compiled) or count())
  for _ in range(100):
    counter(programs._COMPILED, 0.1)
  assert looks == [1, 40, 79]  # 39 programs of 1,000 maps from 60 %.


@pytest.mark.slow
def test_near_the_end_the_next_call_forgets_all_programs_once(counter, forgotten, monkeypatch, tmp_path):
  pretend(monkeypatch, tmp_path, maps=850)
  with pytest.warns(RuntimeWarning, match="memory maps"):
    counter(programs._COMPILED, 0.1)
  for _ in range(20):
    counter(programs._COMPILED, 0.1)
  teach()
  assert len(forgotten) == 1
  for _ in range(10):  # The caller holds them: forgetting again at once would free nothing.
    counter(programs._COMPILED, 0.1)
  teach()
  assert len(forgotten) == 1


CALLS = {
  "teach": teach,
  "teach_many": lambda: last.teach_many(jax.random.split(KEY, 2), LOGISTIC, last.teachers.sgd(), POOL, steps=2),
  "fit_target": lambda: last.fit_target(LOGISTIC, POOL),
  "synthesize_labels": lambda: last.synthesize_labels(LOGISTIC, TARGET, TARGET, X[:2], np.arange(2)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_bound_on_programs_holds(counter, forgotten, name):
  last.devices.limit_programs(3)
  for number in range(3):
    compile_one(number)
  counter.is_full = counter.compiled > 3  # Operations compile too.
  compile_one(4)
  CALLS[name]()
  assert len(forgotten) == 1
  last.devices.limit_programs(None)
  for number in range(10):
    compile_one(number)
  CALLS[name]()
  assert len(forgotten) == 1


@pytest.mark.slow
def test_a_loop_that_compiles_in_every_call_holds_a_bounded_number_of_maps(counter):
  before = last.devices.count_programs()
  if before.maps is None:
    pytest.skip("the system does not list maps")
  last.devices.limit_programs(2)
  seen = []
  for steps in range(3, 10):
    last.teach(KEY, LOGISTIC, last.teachers.greedy(last.constraints.simplex()), POOL, target=TARGET, steps=steps)
    seen.append(last.devices.count_programs().maps)
  assert max(seen) < seen[0] + 450  # Each program has about 110, and three are held at most.


def test_programs_are_not_forgotten_while_one_is_traced(counter, forgotten):
  last.devices.limit_programs(1)
  counter.is_full = True
  jax.jit(lambda key: last.teach(key, LOGISTIC, last.teachers.sgd(), POOL, steps=2).params)(KEY)
  assert not forgotten
  teach()
  assert forgotten


@pytest.mark.parametrize("most", [0, -1, True])
def test_a_bad_bound_is_refused(most):
  with pytest.raises(ValueError, match="most must be a whole number of at least 1"):
    last.devices.limit_programs(most)


def with_teacher(make):
  return lambda number: last.teach(KEY, LOGISTIC, make(number), POOL, target=TARGET, steps=2)


LOOPS = {
  "tolerance": lambda number: last.teach(
    KEY, LOGISTIC, last.teachers.sgd(), POOL, target=TARGET, steps=2, tolerance=number
  ),
  "temperature": with_teacher(lambda number: last.teachers.distillation(lambda x: x[:, :1], number)),
  "damping": with_teacher(
    lambda number: last.teachers.greedy(last.constraints.none(), toward=last.targets.loss(POOL, damping=number))
  ),
  "unreachable": lambda number: last.unreachable_distance(
    last.learners.logistic(3, learning_rate=number), TARGET, TARGET, jnp.asarray(X)
  ),
  "distilled": lambda number: last.distill_labels(
    KEY, LOGISTIC, X[:4], np.arange(4) % 2, target=TARGET, steps=2, students=2, road="loop", updates=1,
    constraint=last.constraints.magnitude(number),
  ),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_over_numbers_compiles_once(name):
  assert_compiled_once(LOOPS[name], NUMBERS)


TEACHERS = {
  "mixed": last.teachers.mixed,
  "joint": lambda constraint: last.teachers.mixed(constraint, joint=True),
  "planner": lambda constraint: last.teachers.planner(2, constraint),
}


@pytest.mark.slow
@pytest.mark.parametrize("teacher", TEACHERS)
def test_a_loop_over_radii_compiles_once(teacher):
  for make in (last.constraints.magnitude, lambda radius: last.constraints.simplex(radius, p=1)):
    assert_compiled_once(with_teacher(lambda radius, make=make: TEACHERS[teacher](make(radius))), NUMBERS)
