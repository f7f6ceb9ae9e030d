"""Running in chunks: one program for each length of a chunk, and seconds of compiling and of running apart."""

from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.numpy as jnp

from last_jax.tools.timing import Program, compile_program


class Timed:
  """A function with its compiled programs.

  There is one for each value of the static arguments, which are given by keyword, and each structure of the others: the
  tree, and shapes and types of its leaves. Their devices must not change between calls.

  Attributes:
    compile_seconds: all time of compiling so far.
    run_seconds: all time of running so far, until results were ready.
  """

  def __init__(self, function: Callable[..., Any]):
    self.compile_seconds: float = 0.0
    self.run_seconds: float = 0.0
    self._function = function
    self._programs: dict[Hashable, Program] = {}

  def __call__(self, *arguments: Any, **static: Hashable) -> Any:
    """Call the function and wait for its results."""
    leaves, structure = jax.tree.flatten(arguments)
    key = (tuple(sorted(static.items())), structure, tuple(map(_kind, leaves)))
    if key not in self._programs:
      self._programs[key] = compile_program(self._function, *arguments, **static)
      self.compile_seconds += self._programs[key].compile_seconds
    results, seconds = self._programs[key].run(*arguments)
    self.run_seconds += seconds
    return results


def _kind(leaf: Any) -> Hashable:
  """Return what a program depends on in a leaf."""
  weak = getattr(leaf, "weak_type", isinstance(leaf, (bool, int, float, complex)))
  return jnp.shape(leaf), jnp.result_type(leaf), weak
