"""Programs that are compiled ahead of their first call."""

import time

import jax
import jax.numpy as jnp
import numpy as np

from last_jax.tools import timing


def _wait(x):
  time.sleep(0.02)
  return x


def slowly(x, *, power):
  """Takes 50 ms to trace and 20 ms to run."""
  time.sleep(0.05)
  return jax.pure_callback(_wait, x, x) ** power


def test_compiling_and_running_are_timed_apart():
  program = timing.compile_program(slowly, jnp.arange(3.0), power=2)
  assert program.compile_seconds >= 0.05
  result, seconds = program.run(jnp.arange(3.0) + 1)
  np.testing.assert_allclose(result, [1.0, 4.0, 9.0])
  assert seconds >= 0.02


def test_programs_take_turns():
  order = []

  def program(name):
    return timing.Program(lambda argument: order.append((name, argument)) or jnp.zeros(()), 0.0)

  seconds = timing.time_in_turns({name: (program(name), (1,)) for name in "ab"}, runs=2)
  assert order == [("a", 1), ("b", 1)] * 3  # One run of each does not count.
  assert {name: values.shape for name, values in seconds.items()} == {"a": (2,), "b": (2,)}
  assert all((values >= 0).all() for values in seconds.values())
