"""Equality of the results of two sides: times of different computations cannot be compared."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np


class Tolerance(NamedTuple):
  """Results are equal if |ours - baseline| <= relative * max |baseline| for at least this share of the entries."""

  relative: float
  share: float = 1.0


# In float64, sides that compute the same agree to the last few digits. In float32, as timed, sums in another order
# differ by rounding; where two examples or labels are equally good up to rounding, a teacher may choose either, and the
# student then takes another path.
FLOAT64 = Tolerance(1e-9)
FLOAT32 = Tolerance(5e-4)
FLOAT32_WITH_TIES = Tolerance(5e-4, share=0.9)


class ResultsDiffer(Exception):
  """Two sides did not compute the same."""


def check_equal(ours: Mapping[str, Any], baseline: Mapping[str, Any], tolerance: Tolerance) -> dict[str, float]:
  """Return the largest difference of each result, by name.

  Raises:
    ResultsDiffer: naming the result, and where it differs most.
  """
  if set(ours) != set(baseline):
    names = [", ".join(sorted(side)) or "none" for side in (ours, baseline)]
    raise ResultsDiffer(f"our results are {names[0]}, the baseline's {names[1]}")
  differences = {}
  for name in ours:
    mine, theirs = np.asarray(ours[name]), np.asarray(baseline[name])
    gaps = np.abs(_difference(name, mine, theirs))
    differences[name] = _check(name, mine, theirs, gaps, tolerance.relative * np.abs(theirs).max(), tolerance.share)
  return differences


def check_not_above(name: str, mine: np.ndarray, theirs: np.ndarray, slack: float) -> dict[str, float]:
  """Return the most by which our result exceeds the baseline's (0: nowhere), where both minimise it.

  Raises:
    ResultsDiffer: ours exceeds the baseline's by more than `slack`.
  """
  gaps = np.maximum(_difference(name, mine, theirs), 0.0)
  return {name: _check(name, mine, theirs, gaps, slack)}


def _difference(name: str, mine: np.ndarray, theirs: np.ndarray) -> np.ndarray:
  if mine.shape != theirs.shape:
    raise ResultsDiffer(f"{name} has shape {mine.shape}, but the baseline's has shape {theirs.shape}")
  return mine.astype(float) - theirs.astype(float)


def _check(
  name: str, mine: np.ndarray, theirs: np.ndarray, gaps: np.ndarray, allowed: float, share: float = 1.0
) -> float:
  good = gaps <= allowed  # False for NaN.
  if good.mean() < share:
    where = tuple(int(i) for i in np.unravel_index(np.argmax(np.where(good, 0.0, gaps)), gaps.shape))
    raise ResultsDiffer(
      f"{name} differs at {int((~good).sum())} of {gaps.size} places, most at {where}: {mine[where]} against "
      f"{theirs[where]}, where {allowed:.3g} is allowed"
    )
  return float(gaps.max())
