"""How many compiled programs this process holds, and a bound on them.

On a CPU, Linux gives every kernel of a compiled program three memory maps of its own, some hundred for a program that
teaches. A process has 65,530 of them; at the next one XLA dies of a segmentation fault. JAX keeps all programs of a
process, so that a loop in which each call compiles, as for numbers of steps or shapes of pools that differ, gets there
after some 300 to 600 of them. Here they are counted, with a warning at 60 % of the maps; at 80 % the next call of the
library has JAX forget all programs, and those that are used again are compiled again.
"""

import gc
import pathlib
import warnings
from typing import Any, NamedTuple

import jax

from last_jax import checks, compiler, fields

_COMPILED = "/jax/core/compile/backend_compile_duration"  # JAX's event, also where its disk cache has the program.
_WARN_SHARE, _FORGET_SHARE = 0.6, 0.8
_MAPS_OF_A_PROGRAM = 1000  # More than any has.
_LEAST_BETWEEN = 16  # Programs, between two times that JAX forgets: it cannot free those that a caller holds.
_MAPS, _MOST_MAPS = pathlib.Path("/proc/self/maps"), pathlib.Path("/proc/sys/vm/max_map_count")


@fields.documented
class Programs(NamedTuple):
  """What a process holds.

  Attributes:
    compiled: number of programs compiled since the process began or JAX forgot all: an upper bound of those it holds.
    maps: number of the process's memory maps; None where the system does not say.
    most_maps: the number beyond which the process dies; None where the system does not say.
  """

  compiled: int
  maps: int | None
  most_maps: int | None


class _Counter:
  """Listens to JAX's compilations."""

  def __init__(self) -> None:
    self.compiled = 0
    self.most: int | None = None  # Programs; set by `limit_programs`.
    self.is_full = False
    self.has_warned = False
    self._next_look = 0  # Number of programs at which maps are counted again: reading them takes milliseconds.

  def __call__(self, event: str, duration_secs: float, **details: Any) -> None:
    if event == _COMPILED:
      self.compiled += 1
      self.is_full |= self.most is not None and self.compiled > self.most
      if self.compiled >= self._next_look:
        self._look()

  def _look(self) -> None:
    """Count the memory maps, and say when to count them again: when there could be enough of them to act."""
    _, maps, most = count_programs()
    if maps is None or most is None:
      self._next_look = self.compiled + 2**62
      return
    level = _FORGET_SHARE if self.has_warned else _WARN_SHARE
    self._next_look = self.compiled + max(1, int(level * most - maps) // _MAPS_OF_A_PROGRAM)
    self.is_full |= maps > _FORGET_SHARE * most and self.compiled >= _LEAST_BETWEEN
    if maps > _WARN_SHARE * most and not self.has_warned:
      self.has_warned = True
      warnings.warn(
        f"this process has {maps:,} memory maps, of the {most:,} beyond which it would die of a segmentation fault: "
        f"{self.compiled:,} programs were compiled. What differs between calls (steps, batch_size, shapes of pools, "
        f"functions) compiles again; numbers do not. At {int(_FORGET_SHARE * most):,} maps last_jax has JAX forget "
        "all programs (jax.clear_caches()); devices.limit_programs(n) does so after n of them",
        RuntimeWarning,
        stacklevel=1,
      )

  def forget(self) -> None:
    """Have JAX forget its programs."""
    jax.clear_caches()
    gc.collect()
    self.compiled, self.is_full, self._next_look = 0, False, 0


_counter = _Counter()
jax.monitoring.register_event_duration_secs_listener(_counter)


def count_programs() -> Programs:
  """Return the number of compiled programs, and of memory maps, of this process."""
  try:
    maps, most = _MAPS.read_bytes().count(b"\n"), int(_MOST_MAPS.read_text())
  except (OSError, ValueError):  # Not on Linux.
    return Programs(_counter.compiled, None, None)
  return Programs(_counter.compiled, maps, most)


def limit_programs(most: int | None) -> None:
  """Bound the number of compiled programs that JAX keeps in this process.

  When more were compiled, by last_jax or by the caller, the next call of a function of last_jax has JAX forget all of
  them (`jax.clear_caches`). Those that are used again are compiled again.

  Args:
    most: number of programs, small ones included; None for no bound but that of the process's memory maps.
  """
  if most is not None:
    checks.check_count("most", most)
  _counter.most = most
  _counter.is_full = most is not None and _counter.compiled > most


def make_room() -> None:
  """Have JAX forget all programs if there are too many. Call it where a call of the library begins."""
  if _counter.is_full and not compiler.is_tracing():
    _counter.forget()
