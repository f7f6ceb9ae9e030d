"""Runs on disk in chunks: the same bits as in memory, also after a kill; memory that does not grow with the run."""

import pathlib
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import data, streaming

ROOT = pathlib.Path(__file__).parents[1]
KEYS = jax.random.split(jax.random.key(0), 3)
GREEDY = last.teachers.greedy(last.constraints.simplex())
SETTINGS = {"batch_size": 1, "record_every": 4, "lessons": True}


def make(scale=1.0):
  dataset = data.gaussian(0, per_class=20)
  learner = last.learners.logistic(4, learning_rate=0.1, momentum=0.9)
  target = jax.tree.map(lambda leaf: scale * jnp.ones_like(leaf), learner.init(KEYS[0]))
  return last.Problem(learner, dataset.train, target=target, test=dataset.test)


def plain(tree):
  is_key = lambda leaf: isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
  return jax.tree.map(lambda leaf: np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf), tree)


def join(folder, axis):
  chunks = [*last.streamed(folder)]
  return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis), *chunks), len(chunks)


def assert_same(one, other):
  """The same trees, to the rounding of the compiler settings of tests: see test_pieces.py."""
  one, other = plain(one), plain(other)
  assert jax.tree.structure(one) == jax.tree.structure(other)
  for first, second in zip(*map(jax.tree.leaves, (one, other)), strict=True):
    assert first.dtype == second.dtype
    assert first.shape == second.shape
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.slow
def test_chunks_on_disk_are_the_records_of_one_run(tmp_path, many):
  problem = make()
  state = last.init(KEYS if many else KEYS[0], problem, GREEDY)
  probe = {"probe": lambda params: {"bias": params["bias"]}}
  whole, records = last.run(state, problem, GREEDY, steps=43, **SETTINGS, **probe)
  final = last.stream(tmp_path, state, problem, GREEDY, steps=43, write_every=8, **SETTINGS, **probe)
  assert_same(final, whole)
  found, chunks = join(tmp_path, int(many))
  assert_same(found, records)
  assert chunks == 6
  # Nothing is left to do; and more steps are added to those.
  assert_same(last.stream(tmp_path, state, problem, GREEDY, steps=43, write_every=8, **SETTINGS, **probe), whole)


@pytest.mark.slow
def test_a_stopped_run_is_continued_from_its_last_chunk(tmp_path, monkeypatch):
  problem = make()
  state = last.init(KEYS, problem, GREEDY)
  last.stream(tmp_path / "whole", state, problem, GREEDY, steps=40, write_every=8, **SETTINGS)
  for written in range(10):  # Stopped before each of its ten files.
    folder, count, save = tmp_path / f"{written}", [0], streaming.io.save

    def stop(*arguments, limit=written, count=count, save=save, **named):
      if count[0] == limit:
        raise KeyboardInterrupt
      count[0] += 1
      save(*arguments, **named)

    monkeypatch.setattr(streaming.io, "save", stop)
    with pytest.raises(KeyboardInterrupt):
      last.stream(folder, state, problem, GREEDY, steps=40, write_every=8, **SETTINGS)
    monkeypatch.setattr(streaming.io, "save", save)
    if written >= 2:  # What there is can be read.
      assert join(folder, 1)[0].step[0, -1] == 8 * (written // 2)
    last.stream(folder, state, problem, GREEDY, steps=40, write_every=8, **SETTINGS)
    for path in (tmp_path / "whole").iterdir():
      assert (folder / path.name).read_bytes() == path.read_bytes()


KILLED = """
import sys
import jax
import last_jax as last
from tests import test_streaming

problem = test_streaming.make()
teacher, settings = test_streaming.GREEDY, test_streaming.SETTINGS
state = last.init(test_streaming.KEYS, problem, teacher)
with last.progress(lambda step, metrics: print(step, flush=True), show=False):
  last.stream(sys.argv[1], state, problem, teacher, steps=2000, write_every=100, **settings)
"""


@pytest.mark.slow
def test_killed_processes_are_continued_to_the_same_bytes(tmp_path):
  def begin(name, **more):
    command = [sys.executable, "-c", KILLED, str(tmp_path / name)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, **more)

  with begin("whole") as process:
    process.communicate(timeout=120)
    assert process.returncode == 0
  with begin("killed") as process:
    for line in process.stdout:
      if int(line) >= 700:
        process.send_signal(signal.SIGKILL)
        break
    process.communicate(timeout=120)
    assert process.returncode != 0
  assert 700 <= join(tmp_path / "killed", 1)[0].step.max() < 2000
  with begin("killed") as process:
    process.communicate(timeout=120)
    assert process.returncode == 0
  for path in (tmp_path / "whole").iterdir():
    assert (tmp_path / "killed" / path.name).read_bytes() == path.read_bytes()


def test_progress_hands_over_every_record(tmp_path):
  problem, seen = make(), []
  state = last.init(KEYS, problem, GREEDY)
  with last.progress(lambda step, metrics: seen.append((step, metrics["distance"])), show=False):
    last.stream(tmp_path, state, problem, GREEDY, steps=40, write_every=8, **SETTINGS)
  assert [step for step, _ in seen] == [*range(4, 41, 4)]
  np.testing.assert_array_equal(np.stack([distance for _, distance in seen], 1), join(tmp_path, 1)[0].distance)


def test_a_folder_holds_one_run(tmp_path):
  problem = make()
  state = last.init(KEYS, problem, GREEDY)
  run = {"steps": 16, "write_every": 8} | SETTINGS
  last.stream(tmp_path, state, problem, GREEDY, **run)
  others = {
    "another state": (last.init(KEYS[::-1], problem, GREEDY), problem, GREEDY, run),
    "another problem or teacher": (state, make(2.0), GREEDY, run),
    "batch_size, lessons of another run": (state, problem, GREEDY, run | {"batch_size": 2, "lessons": False}),
  }
  for message, (*given, settings) in others.items():
    with pytest.raises(ValueError, match=f"folder: .* was written with {message}"):
      last.stream(tmp_path, *given, **settings)
  with pytest.raises(ValueError, match=r"steps=8: .* holds 16 already"):
    last.stream(tmp_path, state, problem, GREEDY, **run | {"steps": 8})
  with pytest.raises(ValueError, match="write_every must be a multiple of record_every=4, but it is 7"):
    last.stream(tmp_path, state, problem, GREEDY, **run | {"write_every": 7})
  longer = last.stream(tmp_path, state, problem, GREEDY, **run | {"steps": 24})
  assert_same(longer, last.run(state, problem, GREEDY, steps=24, **SETTINGS)[0])


def test_folders_that_hold_something_else(tmp_path):
  with pytest.raises(FileNotFoundError):
    next(last.streamed(tmp_path))
  problem = make()
  state = last.init(KEYS, problem, GREEDY)
  last.save(tmp_path / "state.npz", state)
  with pytest.raises(ValueError, match=r"was not written by last_jax.stream"):
    next(last.streamed(tmp_path))
  with pytest.raises(ValueError, match=r"folder: .* was written with"):
    last.stream(tmp_path, state, problem, GREEDY, steps=16)


MEMORY = """
import resource
import sys
import jax
import last_jax as last
from tests import test_streaming

problem = test_streaming.make()
teacher, steps = test_streaming.GREEDY, int(sys.argv[2])
state = last.init(jax.random.split(jax.random.key(0), 200), problem, teacher)
last.stream(sys.argv[1], state, problem, teacher, steps=steps, write_every=500, lessons=True, record_every=10)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_run(tmp_path):
  """200 students, whose lessons would take 160 MB of ten times as many steps."""
  peaks = []
  for steps in (1000, 10_000):
    command = [sys.executable, "-c", MEMORY, str(tmp_path / str(steps)), str(steps)]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    peaks.append(int(done.stdout) / 1024)
  assert peaks[1] < peaks[0] + 25


@pytest.mark.parametrize("record_every", [1, 7, 1000])
def test_chunks_hold_whole_records_of_a_bounded_size(record_every):
  problem = make()
  state = last.init(jax.random.split(KEYS[0], 1000), problem, GREEDY)
  settings = streaming.teaching.make_plan(problem, 10**6, 4, record_every, ("distance",), None, True)
  length = streaming._chunk(state, problem, GREEDY, settings)
  assert length % record_every == 0
  assert 1000 * length * 4 * 8 <= max(streaming._BYTES, 1000 * record_every * 4 * 8)
