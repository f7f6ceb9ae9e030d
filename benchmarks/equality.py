"""Whether two sides computed the same: times of different things cannot be compared."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np


@dataclasses.dataclass(frozen=True)
class Tolerance:
  """Two results are equal if |ours - baseline| <= absolute + relative |baseline| at a share of all places, at least."""

  relative: float
  absolute: float
  share: float = 1.0


# In float64 sides must agree to the last digits but a few: they compute the same. In float32, as timed, sums in another
# order differ by rounding; where two examples or labels are equally good but for that, a teacher may choose the one or
# the other, and that student then goes another way.
FLOAT64 = Tolerance(relative=1e-9, absolute=1e-9)
FLOAT32 = Tolerance(relative=5e-4, absolute=5e-4)
FLOAT32_BUT_TIES = dataclasses.replace(FLOAT32, share=0.9)


class ResultsDiffer(Exception):
  """Two sides did not compute the same."""


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
  gaps = np.abs(_difference(name, mine, theirs))
  allowed = tolerance.absolute + tolerance.relative * np.abs(theirs.astype(float))
  _check_gaps(name, mine, theirs, gaps, allowed, tolerance.share)
  return float(gaps.max())


def check_not_above(name: str, mine: np.ndarray, theirs: np.ndarray, slack: float) -> dict[str, float]:
  """By how much our result exceeds the baseline's at most (0: nowhere), where both seek what is smallest.

  Raises:
    ResultsDiffer: where ours is larger than the baseline's by more than `slack`.
  """
  gaps = np.maximum(_difference(name, mine, theirs), 0.0)
  _check_gaps(name, mine, theirs, gaps, np.full(gaps.shape, slack), 1.0)
  return {name: float(gaps.max())}


def _difference(name: str, mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
  if mine.shape != theirs.shape:
    raise ResultsDiffer(f"{name} has shape {mine.shape}, but the baseline's has shape {theirs.shape}")
  return mine.astype(float) - theirs.astype(float)


def _check_gaps(
  name: str, mine: np.ndarray, theirs: np.ndarray, gaps: np.ndarray, allowed: np.ndarray, share: float
) -> None:
  good = gaps <= allowed  # Not so where the gap is not a number.
  if good.mean() < share:
    excess = np.where(np.isnan(gaps), np.inf, gaps - allowed)
    where = tuple(int(i) for i in np.unravel_index(np.argmax(excess), gaps.shape))
    raise ResultsDiffer(
      f"{name} differs at {int((~good).sum())} of {gaps.size} places, most at {where}: {mine[where]} against "
      f"{theirs[where]}, where {allowed[where]:.3g} is allowed"
    )
