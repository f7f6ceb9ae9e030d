"""Progress of long calls: the same results in chunks, a line with the time left, a function for each record."""

import os
import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import data, watching
from tests.compilations import counted

ROOT = pathlib.Path(__file__).parents[1]
KEY = jax.random.key(0)
KEYS = jax.random.split(KEY, 3)
GREEDY = last.teachers.greedy(last.constraints.simplex())


def make(teacher=GREEDY, **settings):
  dataset = data.gaussian(0, per_class=20)
  learner = last.learners.logistic(4, learning_rate=0.1, momentum=0.9)
  target = jax.tree.map(jnp.ones_like, learner.init(KEY))
  arguments = {"target": target, "test": dataset.test, "tolerance": 1.0, "probe": lambda w: {"bias": w["bias"]}}
  return (learner, teacher, dataset.train), arguments | settings


def assert_same(first, second):
  plain = jax.tree.map(lambda leaf: np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf), (first, second))
  assert jax.tree.structure(plain[0]) == jax.tree.structure(plain[1])
  for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(plain[0]), jax.tree.leaves(plain[1]), strict=True):
    assert one.dtype == other.dtype
    if jax.tree_util.keystr(path).endswith("certificate.iterations"):  # They end where rounding is reached.
      assert np.mean(one != other) < 0.1
    elif one.dtype.kind == "f":
      # The compiler settings of the tests let the same loop round differently: test_pieces.py.
      np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    else:
      np.testing.assert_array_equal(one, other)


def _is_key(leaf):
  return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


# Records with a rest, whole, with a rest of one, one step, two, few records, fewer still with a rest.
SHAPES = [(43, 4), (40, 1), (41, 5), (1, 1), (2, 5), (60, 30), (121, 60)]
LONG = [(1000, 1), (1009, 1), (25, 1), (20_000, 9973), (100_000, 100_000)]


@pytest.mark.parametrize(("steps", "every"), SHAPES)
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.slow
def test_results_are_those_of_one_call(steps, every, many, capsys):
  arguments, settings = make(steps=steps, record_every=every, lessons=True, batch_size=2)
  teach, key = (last.teach_many, KEYS) if many else (last.teach, KEY)
  whole = teach(key, *arguments, **settings)
  with last.progress():
    watched = teach(key, *arguments, **settings)
  assert_same(watched, whole)
  assert capsys.readouterr().err.endswith("\n")


BITS = """
import jax
import numpy as np
import last_jax as last
from tests import pieces

last.devices.prepare(devices=2)
keys = jax.random.split(jax.random.key(0), pieces.STUDENTS)
for kind, name in (("logistic", "imt"), ("mlp", "greedy_none")):
  problem = pieces.make_problem(kind)
  arguments = (problem.learner, pieces.TEACHERS[name](problem), problem.pool)
  settings = {"target": problem.target, "tolerance": 0.1, "steps": 101, "record_every": 3, "lessons": True}
  for teach, key, more in (
    (last.teach, keys[0], {}),
    (last.teach_many, keys, {}),
    (last.teach_many, keys, {"mesh": last.devices.mesh()}),
  ):
    whole = teach(key, *arguments, **settings, **more)
    with last.progress(show=False):
      watched = teach(key, *arguments, **settings, **more)
    for (path, one), other in zip(jax.tree_util.tree_leaves_with_path(whole), jax.tree.leaves(watched), strict=True):
      if jax.dtypes.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
      one, other, where, axis = np.asarray(one), np.asarray(other), jax.tree_util.keystr(path), key.ndim
      if where in (".records.distance", ".records.objective"):  # The start is measured by a program of its own.
        starts = [np.take(leaf, 0, axis) for leaf in (one, other)]
        np.testing.assert_allclose(*starts, rtol=1e-6)
        one, other = (np.delete(leaf, 0, axis) for leaf in (one, other))
      assert np.array_equal(one, other), (kind, name, more, where)
"""


@pytest.mark.slow
def test_bits_are_those_of_one_call_with_the_compiler_settings_of_users():
  environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
  done = subprocess.run(
    [sys.executable, "-c", BITS], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr


def test_run_too():
  (learner, teacher, pool), _ = make()
  problem = last.Problem(learner, pool, target=learner.init(KEY))
  state = last.init(KEYS, problem, teacher)
  whole = last.run(state, problem, teacher, steps=30, record_every=2)
  with last.progress(show=False):
    assert_same(last.run(state, problem, teacher, steps=30, record_every=2), whole)


@pytest.mark.parametrize(("steps", "every"), [*SHAPES, *LONG])
def test_chunks_end_at_records_or_divide_the_way_to_them(steps, every):
  ends = watching._ends(steps, every)
  assert ends[-1] == steps
  assert sorted(set(ends)) == ends
  assert len(ends) <= 201
  lengths = np.diff([0, *ends])
  assert len(set(lengths)) <= 2
  records = {*range(every, steps, every), steps}
  if not all(end % every == 0 for end in ends[:-1]):
    assert records <= set(ends)
  if steps > 20 and every * 10 < steps:
    assert min(lengths) > 1
  if steps >= 1000 and every != 9973:
    assert len(ends) >= 10


@pytest.mark.slow
def test_nothing_is_compiled_when_the_block_is_left_or_entered_again():
  arguments, settings = make(steps=40, probe=None)
  last.teach(KEY, *arguments, **settings)
  with last.progress(show=False):
    last.teach(KEY, *arguments, **settings)
  with counted() as programs:
    last.teach(KEY, *arguments, **settings)
    with last.progress(show=False):
      last.teach(KEY, *arguments, **settings)
  assert not programs.names


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.slow
def test_each_record_is_handed_over_as_it_is_made(many):
  arguments, settings = make(steps=43, record_every=4)
  teach, key = (last.teach_many, KEYS) if many else (last.teach, KEY)
  calls = []
  with last.progress(lambda step, metrics: calls.append((step, metrics)), show=False):
    result = teach(key, *arguments, **settings)
  steps = [step for step, _ in calls]
  assert steps == [0, *range(4, 43, 4), 43]
  for place, (_, metrics) in enumerate(calls):
    assert set(metrics) == {"distance", "objective", "accuracy", "probe"}
    assert isinstance(metrics["distance"], np.ndarray | np.generic)
    np.testing.assert_array_equal(metrics["distance"], result.distance[..., place])
    np.testing.assert_array_equal(metrics["probe"]["bias"], result.probe["bias"][..., place, :])


def test_records_come_before_the_run_is_over():
  arguments, settings = make(steps=1000, record_every=10)
  seen = []

  def stop(step, metrics):
    seen.append(step)
    if step >= 100:
      raise KeyboardInterrupt

  with pytest.raises(KeyboardInterrupt), last.progress(stop, show=False):
    last.teach(KEY, *arguments, **settings)
  assert seen[-1] == 100
  assert not watching.is_on()  # The block is left.


@pytest.mark.slow
def test_the_line_says_how_much_is_done_and_left(capsys, monkeypatch):
  now = iter(np.arange(0, 1000, 10.0))
  monkeypatch.setattr(watching.time, "perf_counter", lambda: next(now))
  arguments, settings = make(steps=1000, record_every=10)
  with last.progress():
    last.teach(KEY, *arguments, **settings)
  lines = [line.strip() for line in re.split("[\r\n]", capsys.readouterr().err) if line.strip()]
  assert lines[0] == "5 %  50 of 1,000 steps"  # The first includes the time of compiling.
  assert lines[1] == "10 %  100 of 1,000 steps, 3:00 left"
  assert lines[-2] == "95 %  950 of 1,000 steps, 0:10 left"
  assert lines[-1] == "100 %  1,000 steps in 3:30"


def test_calls_that_are_traced_are_left_alone(capsys):
  arguments, settings = make(last.teachers.sgd(), steps=20, metrics="distance", probe=None)

  def teach(key):
    return last.teach(key, *arguments, **settings).distance

  with last.progress(lambda *_: pytest.fail("traced")):
    traced = [jax.jit(teach)(KEY), jax.jit(lambda: teach(KEY))(), jax.vmap(teach)(KEYS[:1])[0]]
  assert capsys.readouterr().err == ""
  np.testing.assert_allclose(traced[0], teach(KEY), rtol=1e-5)
  np.testing.assert_allclose(traced[0], traced[1], rtol=1e-5)


def test_the_function_must_be_one():
  with pytest.raises(TypeError, match="on_record must be a function of"), last.progress("log"):
    pass


@pytest.mark.slow
def test_labels_that_stay_are_searched_in_chunks(capsys):
  (learner, _, pool), _ = make()
  settings = {"validation": pool, "steps": 3, "students": 2, "updates": 45}
  whole, log = last.distill_labels(KEY, learner, pool.x[:4], pool.y[:4], **settings)
  seen = []
  with last.progress(lambda update, metrics: seen.append((update, float(metrics["objective"])))):
    labels, watched = last.distill_labels(KEY, learner, pool.x[:4], pool.y[:4], **settings)
  assert_same((labels, watched), (whole, log))
  assert seen == [(update, float(value)) for update, value in enumerate(watched.objective)]
  assert capsys.readouterr().err.rstrip().splitlines()[-1].startswith("100 %  45 updates in ")


def test_a_sweep_says_which_settings_are_done(capsys):
  (learner, _, pool), settings = make()
  given = {"target": settings["target"], "steps": 4}
  teachers = {rate: last.teachers.label_smoothing(rate) for rate in (0.6, 0.9)}
  plain = last.sweep(KEYS, learner, teachers, pool, **given)
  with last.progress():
    watched = last.sweep(KEYS, learner, teachers, pool, at_once=3, **given)
  lines = [line.strip() for line in re.split("[\r\n]", capsys.readouterr().err) if line.strip()]
  assert lines[0] == "50 %  1 of 2 settings"
  assert lines[-1].startswith("100 %  2 settings in ")
  np.testing.assert_allclose(watched.distance, plain.distance, rtol=1e-5)
