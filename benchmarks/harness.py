"""Timing that can be trusted: compilation apart from running, all sides in one process, results checked first.

A figure alone says little, since machines differ and are shared. What counts here is the ratio of two medians whose
repetitions took turns, so that whatever else the machine did, it did to both.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from benchmarks.records import Against, Measurement, Target, Timing

Timer = Callable[[], float]  # Seconds, from any start.

# Threads that wait for more work spin for a while: those of one side would take the cores from the next.
_REST_SECONDS = 0.1
# A variant that took so many times as long as another of its kind when warming up is not timed any further.
_HOPELESS = 3.0


@dataclasses.dataclass(frozen=True)
class Side:
  """One implementation, in one setting.

  Attributes:
    name: for tables.
    run: what is timed; the arrays it returns are waited for. It may also wait for other processes.
    check: compares its results with ours and gives the largest difference of each, or raises `ResultsDiffer`. Never
      timed. None for ourselves, and for a side that computes something else.
    units: how many units of work are in a call. Sides are compared by the time of one.
    memory: what the program needs besides arguments and results, in bytes. Asked for after the first call.
  """

  name: str
  run: Callable[[], Any]
  check: Callable[[], Mapping[str, float]] | None = None
  units: int = 1
  memory: Callable[[], int] | None = None


@dataclasses.dataclass(frozen=True)
class Baseline:
  """What we compare with: of its variants the fastest counts."""

  kind: str
  variants: Sequence[Side]
  target: Target | None = None


class Program:
  """A function of some arguments, compiled with its first call; it then says how much memory it needs."""

  def __init__(self, function: Callable[..., Any], *arguments: Any):
    self._function, self._arguments = function, arguments

  @functools.cached_property
  def _compiled(self) -> Any:
    return jax.jit(self._function).lower(*self._arguments).compile()

  def __call__(self) -> Any:
    """What it gives for its arguments."""
    return self._compiled(*self._arguments)

  def temporary_bytes(self) -> int:
    """What it needs on each device besides its arguments and results."""
    return int(self._compiled.memory_analysis().temp_size_in_bytes)


def measure(
  job: str,
  problem: Mapping[str, Any],
  unit: str,
  ours: Side,
  baselines: Sequence[Baseline] = (),
  *,
  axis: str | None = None,
  repetitions: int = 7,
  warmups: int = 1,
  rest: float = _REST_SECONDS,
  timer: Timer = time.perf_counter,
) -> Measurement:
  """Times all sides in turns, once their results are known to be equal.

  Args:
    job: its name.
    problem: what is computed and how large; kept with the figures.
    unit: what `Side.units` counts.
    ours: our side.
    baselines: what to compare with. None: only ours is timed.
    axis: the one of `problem["sizes"]` that the job goes along, if it does.
    repetitions: how many timed calls of each side.
    warmups: how many calls after the first are not counted.
    rest: seconds of doing nothing before each timed call.
    timer: seconds, from any start.

  Raises:
    ResultsDiffer: before anything but the first calls is timed.
  """
  if repetitions < 1:
    raise ValueError(f"repetitions must be at least 1, but it is {repetitions}")
  if warmups < 0:
    raise ValueError(f"warmups must not be negative, but it is {warmups}")
  # The first calls come before the check, which would otherwise compile unseen.
  mine = _Clocked(ours, warmups, timer)
  others = [[_Clocked(side, warmups, timer) for side in baseline.variants] for baseline in baselines]
  for variant in (variant for variants in others for variant in variants):
    variant.check()
  timed = [mine]
  for variants in others:
    fastest = min(variant.warm for variant in variants)
    timed += [variant for variant in variants if variant.warm <= _HOPELESS * fastest]
  for repetition in range(repetitions):
    # Back and forth: no side always comes after the same other one.
    for clocked in timed if repetition % 2 == 0 else reversed(timed):
      time.sleep(rest)
      clocked.repeat()
  against = tuple(_compare(mine, baseline, variants) for baseline, variants in zip(baselines, others, strict=True))
  return Measurement(job, dict(problem), unit, mine.timing(), against, axis)


def _compare(mine: "_Clocked", baseline: Baseline, variants: Sequence["_Clocked"]) -> Against:
  best = min((variant for variant in variants if variant.seconds), key=lambda variant: variant.timing().median)
  ours, theirs = mine.timing(), best.timing()
  pairs = zip(ours.seconds, theirs.seconds, strict=True)
  lower, _, upper = _quartiles([their / our for our, their in pairs])
  ratio = theirs.median / ours.median
  return Against(
    baseline.kind,
    theirs,
    tuple(variant.timing() for variant in variants if variant is not best),
    ratio=ratio,
    ratio_lower_quartile=lower,
    ratio_upper_quartile=upper,
    ratio_of_fastest=theirs.fastest / ours.fastest,
    largest_difference=best.differences,
    target=baseline.target,
    met=None if baseline.target is None else baseline.target.is_met(ratio),
  )


class _Clocked:
  """A side whose calls are timed."""

  def __init__(self, side: Side, warmups: int, timer: Timer):
    self._side, self._timer = side, timer
    self._first = self._call()
    self._warm = [self._call() for _ in range(warmups)]
    self.seconds: list[float] = []  # Of whole calls.
    self.differences: dict[str, float] = {}

  @property
  def warm(self) -> float:
    """How long a unit took when warming up, as far as is known."""
    return min([self._first, *self._warm]) / self._side.units

  def check(self) -> None:
    if self._side.check is not None:
      self.differences = dict(self._side.check())

  def repeat(self) -> None:
    self.seconds.append(self._call())

  def _call(self) -> float:
    start = self._timer()
    jax.block_until_ready(self._side.run())  # JAX returns before it is done; what is not a JAX array passes through.
    return self._timer() - start

  def timing(self) -> Timing:
    side, calls = self._side, self.seconds or self._warm or [self._first]
    seconds = [call / side.units for call in calls]
    lower, median, upper = _quartiles(seconds)
    return Timing(
      side.name,
      max(0.0, self._first - _quartiles(calls)[1]),
      median,
      lower,
      upper,
      min(seconds),
      tuple(seconds),
      side.units,
      None if side.memory is None else side.memory(),
    )


def _quartiles(values: list[float]) -> tuple[float, float, float]:
  if len(values) == 1:
    return values[0], values[0], values[0]
  lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
  return lower, median, upper
