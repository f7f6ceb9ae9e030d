"""Programs compiled ahead and timed, and the lengths of chunks."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import data
from last_jax.tools.chunks import Timed
from last_jax.watching import chunk_length


def test_a_program_is_compiled_once_for_each_static_value():
  traced = []

  def scale(x, *, by):
    traced.append(by)
    return by * x

  timed = Timed(scale)
  for by in (2, 3, 2, 3):
    np.testing.assert_array_equal(timed(jnp.arange(3.0), by=by), by * np.arange(3.0))
  assert traced == [2, 3]
  compiling, running = timed.compile_seconds, timed.run_seconds
  assert compiling > 0
  assert running > 0
  timed(jnp.arange(3.0), by=2)
  assert timed.compile_seconds == compiling
  assert timed.run_seconds > running


@pytest.mark.parametrize(
  ("steps", "every"), [(400, 4), (23, 4), (1, 1), (7, 7), (1009, 10), (100, 1), (9, 20), (53, 1)]
)
def test_chunks_hold_whole_records(steps, every):
  length = chunk_length(steps, every)
  assert 1 <= length <= steps
  assert length % every == 0 or length == steps
  assert steps / length <= 200
  if steps == 400:
    assert length == 20


def test_teaching_in_chunks_is_teaching_in_one():
  dataset = data.gaussian(0, per_class=20)
  learner = last.learners.logistic(4, learning_rate=0.1, momentum=0.9, nesterov=True)
  keys = jax.random.split(jax.random.key(0), 2)
  problem = last.Problem(learner, dataset.train, target=jax.tree.map(jnp.ones_like, learner.init(keys[0])))
  teacher = last.teachers.imt()
  run = Timed(functools.partial(last.run, batch_size=2, record_every=3, lessons=True))

  def teach(chunk):
    state, pieces = last.init(keys, problem, teacher), []
    for _ in range(18 // chunk):
      state, records = run(state, problem, teacher, steps=chunk)
      pieces.append(records)
    state = state._replace(key=jax.random.key_data(state.key))
    return state, jax.tree.map(lambda *leaves: np.concatenate(leaves, 1), *pieces)

  jax.tree.map(np.testing.assert_array_equal, teach(6), teach(18))
