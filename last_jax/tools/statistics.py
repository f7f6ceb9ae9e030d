"""Numbers behind the pictures: means over students with confidence intervals, spans, and the limit of rounding."""

from typing import Any, NamedTuple

import jax
import numpy as np

_DECADES = 50.0  # The ratio of the largest to the smallest value from which a linear axis hides the small ones.


class Interval(NamedTuple):
  """A mean, and half the width of its confidence interval: NaN where there are too few values."""

  mean: np.ndarray
  half_width: np.ndarray


def mean_interval(values: Any, confidence: float = 0.95) -> Interval:
  """Return the mean over the first axis, with Student's t interval.

  Args:
    values: `[students, ...]`.
    confidence: The share of intervals that contain the true mean, for normally distributed values.

  Returns:
    Mean and half-width, each of shape `[...]`. Both are NaN where a value is not finite.
  """
  from scipy.special import stdtrit

  samples = np.asarray(values, np.float64)
  if samples.ndim == 0 or samples.shape[0] == 0:
    raise ValueError(
      f"values must have shape [students, ...] with at least 1 student, but the shape is {samples.shape}"
    )
  if not 0 < confidence < 1:
    raise ValueError(f"confidence must lie between 0 and 1, but it is {confidence}")
  samples = np.where(np.isfinite(samples), samples, np.nan)
  count = samples.shape[0]
  mean = samples.mean(0)
  if count == 1:
    return Interval(mean, np.full_like(mean, np.nan))
  quantile = stdtrit(count - 1, 0.5 + confidence / 2)
  with np.errstate(over="ignore"):  # Diverged students can be at 1e200.
    return Interval(mean, quantile * samples.std(0, ddof=1) / np.sqrt(count))


def interval_ends(mean: np.ndarray, half_width: np.ndarray, log: bool) -> tuple[np.ndarray, np.ndarray]:
  """Return the lower and upper end of an interval, in the shape of `mean`.

  Args:
    mean: `[...]`.
    half_width: `[...]`.
    log: For a logarithmic axis: the interval of the mean's logarithm, by the delta method. It is positive, and agrees
      with the plain interval where that is narrow.
  """
  if not log:
    return mean - half_width, mean + half_width
  positive = np.where(mean > 0, mean, np.nan)
  factor = np.exp(np.minimum(half_width / positive, 50.0))
  return positive / factor, positive * factor


def spans_decades(values: Any) -> bool:
  """Return whether the finite ones of `values [...]` are positive and differ by a factor of more than 50."""
  values = np.asarray(values, np.float64)
  values = values[np.isfinite(values)]
  return bool(values.size and values.min() > 0 and values.max() > _DECADES * values.min())


def rounding_floor(params: Any) -> float:
  """Return the norm of half a unit in the last place of every parameter: smaller distances to `params` are rounding."""
  spacings = [np.spacing(np.abs(np.asarray(leaf))).ravel() for leaf in jax.tree.leaves(params)]
  return float(0.5 * np.linalg.norm(np.concatenate(spacings).astype(np.float64)))
