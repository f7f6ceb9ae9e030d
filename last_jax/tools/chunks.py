"""Running in chunks: one program for each length of a chunk, and seconds of compiling and of running apart."""

from collections.abc import Callable, Hashable
from typing import Any

from last_jax.tools.timing import Program, compile_program


class Timed:
  """A function with its compiled programs, one for each value of the static arguments, which are given by keyword.

  The shapes of the other arguments must not change between calls.

  Attributes:
    compile_seconds: all time of compiling so far.
    run_seconds: all time of running so far, until results were ready.
  """

  def __init__(self, function: Callable[..., Any]):
    self.compile_seconds = 0.0
    self.run_seconds = 0.0
    self._function = function
    self._programs: dict[Hashable, Program] = {}

  def __call__(self, *arguments: Any, **static: Hashable) -> Any:
    """Call the function and wait for its results."""
    key = tuple(sorted(static.items()))
    if key not in self._programs:
      self._programs[key] = compile_program(self._function, *arguments, **static)
      self.compile_seconds += self._programs[key].compile_seconds
    results, seconds = self._programs[key].run(*arguments)
    self.run_seconds += seconds
    return results


def chunk_length(steps: int, record_every: int) -> int:
  """Return a number of steps to take at a time: whole records and, if possible, a divisor of all of them.

  There are then at most about 100 chunks: long compared with a call, short for a person at the terminal. Chunks of
  equal length share a program.
  """
  records = max(1, steps // record_every)
  about = min(100, max(20, steps // 1000))
  few, many = max(1, records // (2 * about)), max(1, records // (about // 4))
  fitting = [size for size in range(few, many + 1) if records % size == 0]
  size = min(fitting, key=lambda size: abs(records // size - about)) if fitting else -(-records // about)
  return min(steps, size * record_every)
