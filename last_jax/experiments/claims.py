"""Judging the paper's claims: paired comparisons over seeds, and a verdict that nothing was tuned for."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

HOLDS, FAILS, OPEN = "holds", "does not hold", "not resolved"
FEWEST_SEEDS = 6  # With fewer, an interval is not to be trusted: even a sign test could not tell.

TEST = (
  "Every method teaches the same students from the same random examples, so methods are compared seed by seed. The "
  "effect is the mean over seeds, its 95 % interval a bootstrap over seeds (BCa, 9,999 samples). A claim holds if "
  "the whole interval lies on its side, does not hold if the whole interval lies on the other side, and is not "
  f"resolved otherwise or with fewer than {FEWEST_SEEDS} seeds. A claim about several methods holds if each "
  "comparison does; the table shows the weakest. Distances along a run are compared by the mean logarithm of their "
  "ratio, every decade of iterations counting alike."
)


_OPPOSITE = {"times nearer": "times farther", "times below": "times above"}


class Comparison(NamedTuple):
  """One paired comparison.

  Attributes:
    name: what is compared, as "LAST (none) against IMT".
    values: `[seeds]` positive where the claim is right. For "times": decimal logarithms of a ratio.
    unit: "times" for ratios, otherwise what the numbers are.
    margin: how much it takes: "by far" asks for more than nothing, "level with or ahead" for a little less.
    every: whether the claim is about every seed, so that a single one refutes it. In place of a confidence interval
      stand the least and the largest value then.
  """

  name: str
  values: np.ndarray
  unit: str = "times nearer"
  margin: float = 0.0
  every: bool = False


class Claim(NamedTuple):
  """What the paper says, and what was measured of it."""

  text: str
  comparisons: Sequence[Comparison]
  remark: str = ""  # How it was measured, where that is not obvious.


class Judged(NamedTuple):
  """A comparison with its mean and interval, in the units of `Comparison.values`."""

  name: str
  mean: float
  low: float
  high: float
  seeds: int
  unit: str
  margin: float
  every: bool

  @property
  def verdict(self) -> str:
    """What this comparison alone says."""
    if self.every and self.low <= self.margin:
      return FAILS
    if self.seeds < FEWEST_SEEDS or not np.isfinite([self.low, self.high]).all():
      return OPEN
    return HOLDS if self.low > self.margin else FAILS if self.high < self.margin else OPEN

  def describe(self) -> tuple[str, str]:
    """The effect and its interval in words."""
    if self.unit.startswith("times"):
      ends, unit = (self.mean, self.low, self.high), self.unit
      if self.high < 0 and unit in _OPPOSITE:
        ends, unit = (-self.mean, -self.high, -self.low), _OPPOSITE[unit]
      effect, low, high = (10.0**value for value in ends)
      digits = ".4f" if 0.8 < effect < 1.25 else ".3g"  # Near 1 it is the digits behind the point that tell.
      return f"{effect:{digits}} {unit}", f"{low:{digits}} to {high:{digits}}"
    return f"{self.mean:.3g} {self.unit}".strip(), f"{self.low:.3g} to {self.high:.3g}"


class Verdict(NamedTuple):
  """A claim of the paper, judged."""

  claim: Claim
  verdict: str
  comparisons: tuple[Judged, ...]  # The one that decides first.

  @property
  def weakest(self) -> Judged:
    """The comparison that decides."""
    return self.comparisons[0]


def judge(claim: Claim) -> Verdict:
  """Judges a claim by all of its comparisons."""
  if not claim.comparisons:
    raise ValueError(f"the claim {claim.text!r} has no comparisons")
  judged = sorted(map(_judge, claim.comparisons), key=lambda one: one.low - one.margin)
  # What decides comes first: a comparison that fails, else one that is open, else the weakest that holds.
  judged.sort(key=lambda one: (FAILS, OPEN, HOLDS).index(one.verdict))
  return Verdict(claim, judged[0].verdict, tuple(judged))


def explain(verdict: Verdict, because: str = "") -> str:
  """What is to be said beside a verdict.

  Args:
    verdict: of a claim.
    because: why it may not hold; said only if it does not.
  """
  texts = [verdict.claim.remark]
  if verdict.verdict != HOLDS:
    weakest = verdict.weakest
    if len(verdict.comparisons) > 1:
      texts.append(f"Decided by {weakest.name}.")
    if verdict.verdict == OPEN and weakest.seeds < FEWEST_SEEDS:
      texts.append(f"{weakest.seeds} seeds are too few to tell.")
    elif verdict.verdict == OPEN:
      texts.append("The interval holds both answers." + (f" {because}" if because else ""))
    else:
      texts.append(because or "Here it is the other way round.")
  return " ".join(text for text in texts if text)


def _judge(comparison: Comparison) -> Judged:
  values = np.asarray(comparison.values, np.float64)
  low, high = (values.min(), values.max()) if comparison.every else bootstrap(values)
  return Judged(
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
  """The 95 % interval of the mean of `values [seeds]`; NaN where it cannot be had."""
  from scipy.stats import bootstrap as scipy_bootstrap

  if len(values) < 2 or not np.isfinite(values).all():
    return float("nan"), float("nan")
  if np.ptp(values) <= 1e-12 * np.abs(values).max():  # All alike: there is nothing to resample.
    return float(values.mean()), float(values.mean())
  interval = scipy_bootstrap(
    (values,), np.mean, confidence_level=0.95, method="BCa", rng=np.random.default_rng(0)
  ).confidence_interval
  return float(interval.low), float(interval.high)


def mean_log_ratio(axis: Any, slower: np.ndarray, faster: np.ndarray, floor: float = 0.0) -> np.ndarray:
  """log10(slower / faster), `[seeds]`: averaged over the run, every decade of iterations (or seconds) counting alike.

  Args:
    axis: `[records]` increasing; what is at or below zero is left out.
    slower: `[seeds, records]`.
    faster: `[seeds, records]`.
    floor: what is below it is rounding, and counts as much.
  """
  axis = np.asarray(axis, np.float64)
  kept = axis > 0
  place, least = np.log(axis[kept]), max(floor, np.finfo(np.float64).tiny)
  ratio = np.log10(np.maximum(slower[:, kept], least)) - np.log10(np.maximum(faster[:, kept], least))
  if place.size == 1:
    return ratio[:, 0]
  return np.trapezoid(ratio, place, axis=1) / (place[-1] - place[0])
