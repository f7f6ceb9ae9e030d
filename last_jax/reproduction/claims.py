"""Verdicts on the paper's claims: paired comparisons over seeds, in named readings, by a rule fixed beforehand."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

HOLDS, FAILS, OPEN = "holds", "does not hold", "not resolved"
DEPENDS, NOT_RUN = "depends on the reading", "not run at this size"
VERDICTS = (HOLDS, DEPENDS, FAILS, OPEN, NOT_RUN)
LITERAL = "literal"
FEWEST_SEEDS = 6  # With fewer, even a sign test could not reach the 5 % level.

_WORST_FIRST = (FAILS, OPEN, HOLDS)
PARTS = {"run": "over the run", "end": "at the end"}


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
    part: "run" or "end", where both are compared; otherwise "".
    beside: Other measurements of the same pair, which decide nothing: objective, accuracy, reachable distance.
  """

  name: str
  values: np.ndarray
  unit: Unit = NEARER
  margin: float = 0.0
  every: bool = False
  part: str = ""
  beside: Sequence["Comparison"] = ()


class Reading(NamedTuple):
  """A setting that the paper allows, and a claim's measurements in it.

  Attributes:
    name: "bounded".
    setting: What differs from the literal reading, in a few words.
    comparisons: As of `Claim`.
    because: Why the claim may not hold in this reading; reported only if it does not.
  """

  name: str
  setting: str
  comparisons: Sequence[Comparison]
  because: str = ""


class Claim(NamedTuple):
  """A claim of the paper and its measurements.

  Attributes:
    text: The claim.
    comparisons: Those of the literal reading.
    remark: How it was measured, where that is not obvious.
    because: Why it may not hold as literally read; reported only if it does not.
    readings: Further ones.
    size: "full" where a run of this size does not train enough for a verdict.
  """

  text: str
  comparisons: Sequence[Comparison]
  remark: str = ""
  because: str = ""
  readings: Sequence[Reading] = ()
  size: str = ""

  @property
  def all_readings(self) -> tuple[Reading, ...]:
    """The literal reading, and the further ones."""
    return (
      Reading(LITERAL, "as written, with exact labels", self.comparisons, self.because),
      *self.readings,
    )


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
  part: str = ""
  beside: tuple["Estimate", ...] = ()

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
    effect, interval = self._in_words()
    return f"{effect} {PARTS.get(self.part, '')}".strip(), interval

  @property
  def threshold(self) -> str:
    """What the whole interval must exceed for the claim to hold, in the unit of the effect: "> 0.5"."""
    sign, margin = ">", self.margin
    if self.unit.ratio:
      sign, margin = ("<", 10.0**-margin) if self._is_inverse else (">", 10.0**margin)
    text = f"{margin:.3g}".replace("-", "−")
    shown = float(f"{margin:.3g}")
    if 1e-12 < abs(shown - margin) < 1e-5 * abs(shown):  # By so little that the rounded number itself is enough.
      sign = "≤" if sign == "<" else "≥"
    return f"{'every seed ' if self.every else ''}{sign} {text}"

  @property
  def _is_inverse(self) -> bool:
    """Whether the inverse of the ratio is reported."""
    return self.high < 0 and bool(self.unit.opposite)

  def _in_words(self) -> tuple[str, str]:
    if not self.unit.ratio:
      return f"{self.mean:.3g} {self.unit.text}".strip(), f"{self.low:.3g} to {self.high:.3g}"
    ends, text = (self.mean, self.low, self.high), self.unit.text
    if self._is_inverse:
      ends, text = (-self.mean, -self.high, -self.low), self.unit.opposite
    effect, low, high = (10.0**value for value in ends)
    digits = 4 if 0.8 < effect < 1.25 else None  # Near 1 the decimals matter.
    return f"{_written(effect, digits)} {text}", f"{_written(low, digits)} to {_written(high, digits)}"


def _written(ratio: float, decimals: int | None) -> str:
  """Return a ratio with `decimals` decimals, or with three digits if None: "0.719", "27,800,000"."""
  if decimals is not None:
    return f"{ratio:.{decimals}f}"
  text = f"{ratio:.3g}"
  return f"{float(text):,.0f}" if 1e3 <= ratio < 1e9 else text


class Judged(NamedTuple):
  """A reading with its verdict."""

  reading: Reading
  verdict: str  # HOLDS, FAILS or OPEN.
  estimates: tuple[Estimate, ...]  # The decisive one first.

  @property
  def weakest(self) -> Estimate:
    """The comparison that decides."""
    return self.estimates[0]

  @property
  def disagreement(self) -> str:
    """A sentence where the run and its end have different verdicts; "" otherwise."""
    parts = {
      part: _decisive([each for each in self.estimates if each.part == part]).verdict
      for part in PARTS
      if any(each.part == part for each in self.estimates)
    }
    if len(set(parts.values())) < 2:
      return ""
    run, end = parts["run"], parts["end"]
    worse_at_end = _WORST_FIRST.index(end) < _WORST_FIRST.index(run)
    decided = "the last step alone decides" if worse_at_end else "the run decides"
    return f"Over the run it {_is(run)}, at the end it {_is(end)}: {decided}."

  @property
  def beside(self) -> str:
    """The other measurements of the decisive pair, as a sentence; "" if there are none."""
    texts = [
      f"{each.name} {effect} ({interval})" for each in self.weakest.beside for effect, interval in [each.describe()]
    ]
    return f"Beside it, after the last step: {'; '.join(texts)}." if texts else ""


def _is(verdict: str) -> str:
  return f"is {verdict}" if verdict == OPEN else verdict


class Verdict(NamedTuple):
  """A claim with its verdict."""

  claim: Claim
  verdict: str  # Of VERDICTS.
  readings: tuple[Judged, ...]  # The literal one first.

  @property
  def estimates(self) -> tuple[Estimate, ...]:
    """The comparisons of the literal reading, the decisive one first."""
    return self.readings[0].estimates

  @property
  def weakest(self) -> Estimate:
    """The comparison that decides the literal reading."""
    return self.estimates[0]

  @property
  def explanation(self) -> str:
    """The text beside the verdict: how it was measured, and, unless the claim holds, why."""
    literal = self.readings[0]
    texts = [self.claim.remark]
    if self.verdict == NOT_RUN:
      return " ".join(filter(None, [*texts, "The numbers are those of this shorter run, and judge nothing."]))
    if literal.verdict != HOLDS and len(literal.estimates) > 1:
      texts.append(f"Decided by {self.weakest.name}.")
    texts.append(literal.disagreement)
    if literal.verdict == FAILS:
      texts.append(self.claim.because or "The measurements show the opposite.")
    elif literal.verdict == OPEN and self.weakest.seeds < FEWEST_SEEDS:
      texts.append(f"{self.weakest.seeds} seeds are too few for a verdict.")
    elif literal.verdict == OPEN:
      texts += ["The interval contains both answers.", self.claim.because]
    texts.append(literal.beside)
    return " ".join(text for text in texts if text)


def judge(claim: Claim) -> Verdict:
  """Return the verdict on a claim by all of its comparisons, in each of its readings."""
  names = [reading.name for reading in claim.all_readings]
  if len(set(names)) < len(names):
    raise ValueError(f"readings must have different names, but those of {claim.text!r} are {names}")
  readings = tuple(_judge_reading(claim.text, reading) for reading in claim.all_readings)
  verdicts = {each.verdict for each in readings}
  verdict = readings[0].verdict if len(verdicts) == 1 or HOLDS not in verdicts else DEPENDS
  return Verdict(claim, NOT_RUN if claim.size else verdict, readings)


def _judge_reading(text: str, reading: Reading) -> Judged:
  if not reading.comparisons:
    raise ValueError(f"claim must have comparisons, but {text!r} has none ({reading.name})")
  estimates = list(map(_estimate, reading.comparisons))
  first = _decisive(estimates)
  return Judged(reading, first.verdict, tuple(sorted(estimates, key=_order)))


def _decisive(estimates: Sequence[Estimate]) -> Estimate:
  return min(estimates, key=_order)


def _order(estimate: Estimate) -> tuple[int, float]:
  """Order estimates: those that fail, then those that are open, then those that hold, the weakest first."""
  return _WORST_FIRST.index(estimate.verdict), _lead(estimate)


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
    part=comparison.part,
    beside=tuple(map(_estimate, comparison.beside)),
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
