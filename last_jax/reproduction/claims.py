"""Verdicts on the paper's claims: paired comparisons over seeds, by a rule that was fixed beforehand."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

HOLDS, FAILS, OPEN = "holds", "does not hold", "not resolved"
FEWEST_SEEDS = 6  # With fewer, even a sign test could not reach the 5 % level.

TEST = (
  "Every method teaches the same students from the same random examples, so methods are compared seed by seed. The "
  "effect is the mean over seeds, its 95 % interval a bootstrap over seeds (BCa, 9,999 samples). A claim holds if "
  "the whole interval lies on its side, does not hold if the whole interval lies on the other side, and is not "
  f"resolved otherwise or with fewer than {FEWEST_SEEDS} seeds. A claim about several methods holds if each "
  "comparison does; the table shows the weakest. Distances along a run are compared by the mean logarithm of their "
  "ratio, with equal weight for every decade of iterations."
)


class Unit(NamedTuple):
  """The unit of a comparison's values.

  Attributes:
    text: Follows the number: "3.1 times nearer".
    ratio: Whether values are decimal logarithms of ratios. The ratios are reported.
    opposite: For ratios, the text where the whole interval is below 1, and the inverse is reported.
  """

  text: str
  ratio: bool = False
  opposite: str = ""


NEARER = Unit("times nearer", True, "times farther")
BELOW = Unit("times below", True, "times above")
AS_FAST = Unit("times as fast", True)
TIMES = Unit("times", True)


class Comparison(NamedTuple):
  """One paired comparison.

  Attributes:
    name: Both sides: "LAST (none) against IMT".
    values: `[seeds]`, larger in favour of the claim.
    unit: Of the values.
    margin: The value from which on the claim is right: positive for "by far", negative for "level with or ahead".
    every: Whether the claim is about every seed, so that a single one refutes it. The smallest and the largest value
      then take the place of a confidence interval.
  """

  name: str
  values: np.ndarray
  unit: Unit = NEARER
  margin: float = 0.0
  every: bool = False


class Claim(NamedTuple):
  """A claim of the paper and its measurements."""

  text: str
  comparisons: Sequence[Comparison]
  remark: str = ""  # How it was measured, where that is not obvious.
  because: str = ""  # Why it may not hold; reported only if it does not.


class Estimate(NamedTuple):
  """The mean of a comparison with its interval, in the units of `Comparison.values`."""

  name: str
  mean: float
  low: float
  high: float
  seeds: int
  unit: Unit
  margin: float
  every: bool

  @property
  def verdict(self) -> str:
    """The verdict by this comparison alone."""
    if self.every and self.low <= self.margin:
      return FAILS
    if self.seeds < FEWEST_SEEDS or not np.isfinite([self.low, self.high]).all():
      return OPEN
    return HOLDS if self.low > self.margin else FAILS if self.high < self.margin else OPEN

  def describe(self) -> tuple[str, str]:
    """Return the effect and its interval in words."""
    if not self.unit.ratio:
      return f"{self.mean:.3g} {self.unit.text}".strip(), f"{self.low:.3g} to {self.high:.3g}"
    ends, text = (self.mean, self.low, self.high), self.unit.text
    if self.high < 0 and self.unit.opposite:
      ends, text = (-self.mean, -self.high, -self.low), self.unit.opposite
    effect, low, high = (10.0**value for value in ends)
    digits = ".4f" if 0.8 < effect < 1.25 else ".3g"  # Near 1 the decimals matter.
    return f"{effect:{digits}} {text}", f"{low:{digits}} to {high:{digits}}"


class Verdict(NamedTuple):
  """A claim with its verdict."""

  claim: Claim
  verdict: str  # HOLDS, FAILS or OPEN.
  estimates: tuple[Estimate, ...]  # The decisive one first.

  @property
  def weakest(self) -> Estimate:
    """The comparison that decides."""
    return self.estimates[0]

  @property
  def explanation(self) -> str:
    """The text beside the verdict: how it was measured, and, unless the claim holds, why."""
    texts = [self.claim.remark]
    if self.verdict != HOLDS and len(self.estimates) > 1:
      texts.append(f"Decided by {self.weakest.name}.")
    if self.verdict == FAILS:
      texts.append(self.claim.because or "The measurements show the opposite.")
    elif self.verdict == OPEN and self.weakest.seeds < FEWEST_SEEDS:
      texts.append(f"{self.weakest.seeds} seeds are too few for a verdict.")
    elif self.verdict == OPEN:
      texts += ["The interval contains both answers.", self.claim.because]
    return " ".join(text for text in texts if text)


def judge(claim: Claim) -> Verdict:
  """Return the verdict on a claim by all of its comparisons."""
  if not claim.comparisons:
    raise ValueError(f"claim must have comparisons, but {claim.text!r} has none")
  # The decisive comparison first: one that fails, else one that is open, else the weakest that holds.
  order = (FAILS, OPEN, HOLDS)
  estimates = sorted(map(_estimate, claim.comparisons), key=lambda each: (order.index(each.verdict), _lead(each)))
  return Verdict(claim, estimates[0].verdict, tuple(estimates))


def _lead(estimate: Estimate) -> float:
  """Return by how much the lower end of the interval exceeds the margin; lowest where it is not a number."""
  lead = estimate.low - estimate.margin
  return lead if np.isfinite(lead) else -np.inf


def _estimate(comparison: Comparison) -> Estimate:
  values = np.asarray(comparison.values, np.float64)
  low, high = (values.min(), values.max()) if comparison.every else bootstrap(values)
  return Estimate(
    name=comparison.name,
    mean=float(values.mean()),
    low=float(low),
    high=float(high),
    seeds=len(values),
    unit=comparison.unit,
    margin=float(comparison.margin),
    every=comparison.every,
  )


def bootstrap(values: np.ndarray) -> tuple[float, float]:
  """Return the 95 % interval (BCa) of the mean of `values [seeds]`; NaN for fewer than two or non-finite values."""
  from scipy.stats import bootstrap as scipy_bootstrap

  if len(values) < 2 or not np.isfinite(values).all():
    return float("nan"), float("nan")
  if np.ptp(values) <= 1e-12 * np.abs(values).max():  # All equal: BCa divides by their spread.
    return float(values.mean()), float(values.mean())
  interval = scipy_bootstrap(
    (values,), np.mean, confidence_level=0.95, method="BCa", rng=np.random.default_rng(0)
  ).confidence_interval
  return float(interval.low), float(interval.high)


def mean_log_ratio(axis: Any, slower: np.ndarray, faster: np.ndarray, floor: float = 0.0) -> np.ndarray:
  """Return log10(slower / faster) `[seeds]`, averaged over the run with equal weight for every decade of the axis.

  Args:
    axis: `[records]`, increasing: iterations or seconds. Records at or below zero are left out.
    slower: `[seeds, records]`.
    faster: `[seeds, records]`.
    floor: Smaller values are rounding, and are replaced by it.
  """
  axis = np.asarray(axis, np.float64)
  positive = axis > 0
  place, least = np.log(axis[positive]), max(floor, np.finfo(np.float64).tiny)
  ratio = np.log10(np.maximum(slower[:, positive], least)) - np.log10(np.maximum(faster[:, positive], least))
  if place.size == 1:
    return ratio[:, 0]
  return np.trapezoid(ratio, place, axis=1) / (place[-1] - place[0])
