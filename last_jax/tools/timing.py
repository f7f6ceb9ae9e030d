"""Programs that are compiled ahead of their first call, so that compiling and running are timed apart."""

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from last_jax import programs


class Program(NamedTuple):
  """A function, compiled for the shapes of some arguments.

  Attributes:
    call: The function of these arguments, without the static ones.
    compile_seconds: The time that tracing and compiling took.
  """

  call: Callable[..., Any]
  compile_seconds: float

  def run(self, *arguments: Any) -> tuple[Any, float]:
    """Return the results once they are ready, and the seconds that they took."""
    begin = time.perf_counter()
    results = jax.block_until_ready(self.call(*arguments))
    return results, time.perf_counter() - begin


def compile_program(function: Callable[..., Any], *arguments: Any, **static: Any) -> Program:
  """Compile a function for these arguments.

  Args:
    function: Traceable. Arrays that it closes over are copied into the program: pass large ones as arguments.
    *arguments: Pytrees of arrays, of the shapes of later calls.
    **static: Arguments that are fixed in the program.
  """
  programs.make_room()
  begin = time.perf_counter()
  program = jax.jit(function, static_argnames=tuple(static)).lower(*arguments, **static).compile()
  return Program(program, time.perf_counter() - begin)


def time_in_turns(programs: Mapping[str, tuple[Program, tuple[Any, ...]]], runs: int) -> dict[str, np.ndarray]:
  """Return the seconds of each program, `[runs]`, after one run of each that does not count.

  The programs, each given with its arguments, take turns: a change in the machine's speed affects all of them.
  """
  rounds = [{name: program.run(*given)[1] for name, (program, given) in programs.items()} for _ in range(runs + 1)]
  return {name: np.array([seconds[name] for seconds in rounds[1:]]) for name in programs}
