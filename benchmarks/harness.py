"""Timing that can be trusted: compilation apart from running, both sides in one process, results checked first.

A figure alone says little, since machines differ and are shared. What counts here is the ratio of two medians whose
repetitions took turns, so that whatever else the machine did, it did to both.
"""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

Timer = Callable[[], float]  # Seconds, from any start.


@dataclasses.dataclass(frozen=True)
class Timing:
  """How long one side took. In seconds, and but for compiling those of one unit: a call, or one of its episodes."""

  name: str
  compile_seconds: float  # The first call less a warm one; not below 0.
  median: float
  lower_quartile: float
  upper_quartile: float
  fastest: float
  seconds: tuple[float, ...]  # Every repetition, in order.
  units: int = 1  # How many a repetition had.


@dataclasses.dataclass(frozen=True)
class Tolerance:
  """Two results are equal if |ours - baseline| <= absolute + relative |baseline| at a share of all places, at least."""

  relative: float
  absolute: float
  share: float = 1.0


@dataclasses.dataclass(frozen=True)
class Comparison:
  """Figures with what they were measured on.

  Attributes:
    job: its name.
    problem: what was computed, its sizes and its seed.
    ours: our timing.
    baseline: the other's, the fastest if there were several; None where there was nothing to compare with, and then
      there is nothing in what follows either.
    other_baselines: those that were slower.
    ratio: the baseline's median over ours: how many times as fast we are.
    ratio_lower_quartile: of the ratios of the single repetitions.
    ratio_upper_quartile: likewise.
    ratio_of_fastest: the baseline's fastest repetition over our fastest. On a machine that others use as well, a ratio
      far from this one says that one side was disturbed more than the other.
    largest_difference: between the results, by name, in absolute terms.
    tolerance: what was allowed, by name.
    target_ratio: what is aimed at, where something is.
    at_most: whether less than that is aimed at, rather than more.
  """

  job: str
  problem: dict[str, Any]
  ours: Timing
  baseline: Timing | None = None
  other_baselines: tuple[Timing, ...] = ()
  ratio: float | None = None
  ratio_lower_quartile: float | None = None
  ratio_upper_quartile: float | None = None
  ratio_of_fastest: float | None = None
  largest_difference: dict[str, float] | None = None
  tolerance: dict[str, Tolerance] | None = None
  target_ratio: float | None = None
  at_most: bool = False

  def to_json(self) -> dict[str, Any]:
    """As dictionaries, lists, strings and numbers."""
    return dataclasses.asdict(self)


@dataclasses.dataclass(frozen=True)
class Side:
  """One of two implementations.

  Attributes:
    name: for tables.
    run: what is timed; the arrays it returns are waited for.
    outcome: arrays by name, to be checked against the other side's. Never timed.
    units: how many units of work are in a call. Where the sides do different numbers of them, as episodes of training,
      they are compared by the time of one.
  """

  name: str
  run: Callable[[], Any]
  outcome: Callable[[], Mapping[str, Any]]
  units: int = 1


class ResultsDiffer(Exception):
  """The two sides did not compute the same, so their times cannot be compared."""


def compare(
  job: str,
  problem: Mapping[str, Any],
  ours: Side,
  baselines: Sequence[Side],
  tolerance: Mapping[str, Tolerance],
  *,
  repetitions: int = 7,
  warmups: int = 1,
  target_ratio: float | None = None,
  at_most: bool = False,
  timer: Timer = time.perf_counter,
) -> Comparison:
  """Times the sides in turns, once their results are known to be equal.

  Args:
    job: its name.
    problem: what is computed and how large; kept with the figures.
    ours: our side.
    baselines: the other side, in one or more settings; the one whose median is lowest counts. None: only ours is timed.
    tolerance: how far the results may be apart, by their names.
    repetitions: how many timed calls of each side.
    warmups: how many calls after the first are not counted.
    target_ratio: what is aimed at; kept with the figures.
    at_most: whether it is aimed at less than that.
    timer: seconds, from any start.

  Raises:
    ResultsDiffer: before anything but the first calls is timed.
  """
  _check_counts(repetitions, warmups)
  sides = (ours, *baselines)
  # The first calls come before the check, which would otherwise compile unseen.
  first = [_warm_up(side.run, warmups, timer) for side in sides]
  expected = ours.outcome() if baselines else {}
  differences = [check_equal(expected, side.outcome(), tolerance) for side in baselines]
  seconds: list[list[float]] = [[] for _ in sides]
  for repetition in range(repetitions):
    # Back and forth: no side always comes after the same other one.
    for i in range(len(sides)) if repetition % 2 == 0 else reversed(range(len(sides))):
      seconds[i].append(_time(sides[i].run, timer))
  timings = [_timing(side, first[i], seconds[i]) for i, side in enumerate(sides)]
  if not baselines:
    return Comparison(job, dict(problem), timings[0], target_ratio=target_ratio, at_most=at_most)
  best = min(range(1, len(sides)), key=lambda i: timings[i].median)
  pairs = zip(timings[0].seconds, timings[best].seconds, strict=True)
  lower, _, upper = _quartiles([theirs / mine for mine, theirs in pairs])
  return Comparison(
    job,
    dict(problem),
    timings[0],
    timings[best],
    tuple(timing for i, timing in enumerate(timings) if i not in (0, best)),
    ratio=timings[best].median / timings[0].median,
    ratio_lower_quartile=lower,
    ratio_upper_quartile=upper,
    ratio_of_fastest=timings[best].fastest / timings[0].fastest,
    largest_difference=differences[best - 1],
    tolerance=dict(tolerance),
    target_ratio=target_ratio,
    at_most=at_most,
  )


def check_equal(
  ours: Mapping[str, Any], baseline: Mapping[str, Any], tolerance: Mapping[str, Tolerance]
) -> dict[str, float]:
  """The largest difference of each result.

  Raises:
    ResultsDiffer: naming the result, and where it differs most.
  """
  if not set(ours) == set(baseline) == set(tolerance):
    names = [", ".join(sorted(side)) or "none" for side in (ours, baseline, tolerance)]
    raise ResultsDiffer(
      f"our results are {names[0]}, the baseline's {names[1]}, and there are tolerances for {names[2]}"
    )
  return {name: _check_one(name, np.asarray(ours[name]), np.asarray(baseline[name]), tolerance[name]) for name in ours}


def _check_one(name: str, mine: np.ndarray, theirs: np.ndarray, tolerance: Tolerance) -> float:
  if mine.shape != theirs.shape:
    raise ResultsDiffer(f"{name} has shape {mine.shape}, but the baseline's has shape {theirs.shape}")
  gaps = np.abs(mine.astype(float) - theirs.astype(float))
  allowed = tolerance.absolute + tolerance.relative * np.abs(theirs.astype(float))
  good = gaps <= allowed  # Not so where the gap is not a number.
  if good.mean() < tolerance.share:
    excess = np.where(np.isnan(gaps), np.inf, gaps - allowed)
    where = tuple(int(i) for i in np.unravel_index(np.argmax(excess), gaps.shape))
    raise ResultsDiffer(
      f"{name} differs at {int((~good).sum())} of {gaps.size} places, most at {where}: {mine[where]} against "
      f"{theirs[where]}, where {allowed[where]:.3g} is allowed"
    )
  return float(gaps.max())


def _check_counts(repetitions: int, warmups: int) -> None:
  if repetitions < 1:
    raise ValueError(f"repetitions must be at least 1, but it is {repetitions}")
  if warmups < 0:
    raise ValueError(f"warmups must not be negative, but it is {warmups}")


def _time(run: Callable[[], Any], timer: Timer) -> float:
  start = timer()
  jax.block_until_ready(run())  # JAX returns before it is done; what is not a JAX array passes through.
  return timer() - start


def _warm_up(run: Callable[[], Any], warmups: int, timer: Timer) -> float:
  first = _time(run, timer)
  for _ in range(warmups):
    jax.block_until_ready(run())
  return first


def _timing(side: Side, first: float, calls: list[float]) -> Timing:
  seconds = [call / side.units for call in calls]
  lower, median, upper = _quartiles(seconds)
  compiling = max(0.0, first - _quartiles(calls)[1])
  return Timing(side.name, compiling, median, lower, upper, min(seconds), tuple(seconds), side.units)


def _quartiles(values: list[float]) -> tuple[float, float, float]:
  if len(values) == 1:
    return values[0], values[0], values[0]
  lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
  return lower, median, upper
