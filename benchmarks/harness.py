"""Timing: compilation apart from running, all sides in one process, results checked first.

The only place in the benchmarks that compiles and times. Times alone say little, since machines differ and are shared.
The measure is the ratio of two medians whose repetitions took turns, so that disturbances hit both sides.
"""

import dataclasses
import functools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from benchmarks.cases import Case
from benchmarks.records import BaselineResult, Measurement, Target, Timing

# A variant that took this many times as long as another of its kind in the warm-up is not timed further.
_HOPELESS = 3.0


@dataclasses.dataclass(frozen=True)
class Options:
  """Settings of a measurement.

  Attributes:
    seed: of the cases and of all that is random.
    repetitions: number of timed calls of each side.
    threads: number of threads of PyTorch. Unless given, several are tried, and the fastest counts.
    tiny: whether cases are so small that times mean nothing, to test that everything works.
    warmups: number of calls after the first that are not counted.
    rest: seconds of sleep before each timed call. Idle threads spin for a while: those of one side would take the cores
      from the next.
    timer: seconds, from any start.
    neural_tangents: the Python interpreter of an environment that has neural_tangents; None: it is no baseline.
  """

  seed: int = 0
  repetitions: int = 7
  threads: int | None = None
  tiny: bool = False
  warmups: int = 1
  rest: float = 0.1
  timer: Callable[[], float] = time.perf_counter
  neural_tangents: str | None = None


@dataclasses.dataclass(frozen=True)
class Job:
  """A comparison to measure.

  Attributes:
    name: for `--suite`.
    description: one line, for `--help` and the JSON file.
  """

  name: str
  description: str

  def measure(self, options: Options) -> list[Measurement]:
    """Return a measurement for each size.

    Raises:
      ResultsDiffer: two sides do not compute the same.
    """
    raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class Side:
  """One implementation, in one setting.

  Attributes:
    name: for tables.
    run: the call that is timed; the harness waits for the arrays it returns.
    check: compares its results with ours and returns the largest difference of each, or raises `ResultsDiffer`. Never
      timed. None for ourselves, and for a side that computes something else.
    units: units of work in a call. Sides are compared by the time of one.
  """

  name: str
  run: Callable[[], Any]
  check: Callable[[], Mapping[str, float]] | None = None
  units: int = 1


@dataclasses.dataclass(frozen=True)
class Baseline:
  """A kind of side to compare with: the fastest of its variants counts."""

  kind: str
  variants: Sequence[Side]
  target: Target | None = None


class Program:
  """A function of fixed arguments, compiled by its first call. As a `Side.run`, its memory is recorded."""

  def __init__(self, function: Callable[..., Any], *arguments: Any):
    self._function, self._arguments = function, arguments

  @functools.cached_property
  def _compiled(self) -> Any:
    return jax.jit(self._function).lower(*self._arguments).compile()

  def __call__(self) -> Any:
    """Return the function's value."""
    return self._compiled(*self._arguments)

  def temporary_bytes(self) -> int:
    """Return the memory that it needs on each device besides arguments and results."""
    return int(self._compiled.memory_analysis().temp_size_in_bytes)

  def total_bytes(self) -> int:
    """Return the memory that it needs on each device with arguments and results: a bound of its peak."""
    sizes = self._compiled.memory_analysis()
    held = sizes.argument_size_in_bytes + sizes.output_size_in_bytes + sizes.temp_size_in_bytes
    return int(held - sizes.alias_size_in_bytes)


def measure(
  options: Options,
  job: Job,
  case: Case,
  unit: str,
  ours: Side,
  baselines: Sequence[Baseline] = (),
  *,
  axis: str | None = None,
  sizes: Mapping[str, int] | None = None,
) -> Measurement:
  """Time all sides in turns, after their results were found equal.

  Args:
    options: how to measure.
    job: its name and description are stored.
    case: its sizes are stored.
    unit: the unit of `Side.units`.
    ours: our side.
    baselines: the sides to compare with.
    axis: the one of the sizes that the job varies, if any.
    sizes: further ones to store.

  Raises:
    ResultsDiffer: before anything except the first calls is timed.
  """
  # The first calls come before the checks, which would otherwise compile unseen.
  mine = _Clocked(ours, options)
  others = [[_Clocked(side, options) for side in baseline.variants] for baseline in baselines]
  for variant in (variant for variants in others for variant in variants):
    variant.check()
  timed = [mine]
  for variants in others:
    fastest = min(variant.warm for variant in variants)
    timed += [variant for variant in variants if variant.warm <= _HOPELESS * fastest]
  for repetition in range(options.repetitions):
    # Back and forth: no side always follows the same other one.
    for clocked in timed if repetition % 2 == 0 else reversed(timed):
      time.sleep(options.rest)
      clocked.repeat()
  against = tuple(_compare(mine, baseline, variants) for baseline, variants in zip(baselines, others, strict=True))
  return Measurement(job.name, case.about(job.description, sizes), unit, mine.timing(), against, axis)


def _compare(mine: "_Clocked", baseline: Baseline, variants: Sequence["_Clocked"]) -> BaselineResult:
  best = min((variant for variant in variants if variant.seconds), key=lambda variant: variant.timing().median)
  ours, theirs = mine.timing(), best.timing()
  lower, _, upper = _quartiles([their / our for our, their in zip(ours.seconds, theirs.seconds, strict=True)])
  ratio = theirs.median / ours.median
  return BaselineResult(
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

  def __init__(self, side: Side, options: Options):
    self._side, self._timer = side, options.timer
    self._first = self._call()
    self._warm = [self._call() for _ in range(options.warmups)]
    self.seconds: list[float] = []  # Of whole calls.
    self.differences: dict[str, float] = {}

  @property
  def warm(self) -> float:
    """Time of a unit in the warm-up, as far as is known."""
    return min([self._first, *self._warm]) / self._side.units

  def check(self) -> None:
    if self._side.check is not None:
      self.differences = dict(self._side.check())

  def repeat(self) -> None:
    self.seconds.append(self._call())

  def _call(self) -> float:
    start = self._timer()
    jax.block_until_ready(self._side.run())  # JAX returns before it is done.
    return self._timer() - start

  def timing(self) -> Timing:
    side, calls = self._side, self.seconds or self._warm or [self._first]
    seconds = [call / side.units for call in calls]
    lower, median, upper = _quartiles(seconds)
    return Timing(
      side.name,
      compile_seconds=max(0.0, self._first - statistics.median(calls)),
      median=median,
      lower_quartile=lower,
      upper_quartile=upper,
      fastest=min(seconds),
      seconds=tuple(seconds),
      units=side.units,
      temporary_bytes=side.run.temporary_bytes() if isinstance(side.run, Program) else None,
    )


def _quartiles(values: list[float]) -> tuple[float, float, float]:
  if len(values) == 1:
    return values[0], values[0], values[0]
  lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
  return lower, median, upper
