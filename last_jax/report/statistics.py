"""Means over students, and how far to trust them."""

from typing import Any, NamedTuple

import numpy as np


class Interval(NamedTuple):
  """A mean, and half the width of its confidence interval, NaN where there are too few values to say."""

  mean: np.ndarray
  half_width: np.ndarray


def mean_interval(values: Any, confidence: float = 0.95) -> Interval:
  """The mean over the first axis, with Student's interval.

  Args:
    values: `[students, ...]`.
    confidence: the share of such intervals that hold the true mean, for values that are normally distributed.

  Returns:
    Mean and half-width, each of shape `[...]`. Both are NaN where a value is not finite.
  """
  from scipy.special import stdtrit

  samples = np.asarray(values, np.float64)
  if samples.ndim == 0 or samples.shape[0] == 0:
    raise ValueError(f"values must have shape [students, ...] with a student, but its shape is {samples.shape}")
  if not 0 < confidence < 1:
    raise ValueError(f"confidence must lie between 0 and 1, but it is {confidence}")
  samples = np.where(np.isfinite(samples), samples, np.nan)
  count = samples.shape[0]
  mean = samples.mean(0)
  if count == 1:
    return Interval(mean, np.full_like(mean, np.nan))
  quantile = stdtrit(count - 1, 0.5 + confidence / 2)
  with np.errstate(over="ignore"):  # Students who diverge may be at 1e200.
    return Interval(mean, quantile * samples.std(0, ddof=1) / np.sqrt(count))


def interval_ends(mean: np.ndarray, half_width: np.ndarray, log: bool) -> tuple[np.ndarray, np.ndarray]:
  """The interval's ends. On a log axis those of the mean's logarithm: positive, and the same where narrow."""
  if not log:
    return mean - half_width, mean + half_width
  positive = np.where(mean > 0, mean, np.nan)
  factor = np.exp(np.minimum(half_width / positive, 50.0))
  return positive / factor, positive * factor
