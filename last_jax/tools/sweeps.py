"""Pictures of `last.sweep`: every metric at the end, by the learners' numbers."""

import numbers
from typing import Any

import numpy as np

from last_jax.sweeping import Sweep
from last_jax.teaching import METRICS
from last_jax.tools.charts import Curves, metric_charts
from last_jax.tools.files import FilePath
from last_jax.tools.plots import plot_charts


def plot_sweep(path: FilePath, swept: Sweep, *, label: str = "learning rate", title: str = "") -> None:
  """Draw the metrics at the end of a sweep into a PNG file: a line for each teacher, over the learners.

  Lines have gaps where students diverged.

  Args:
    path: The file to write, or to replace, whole.
    swept: Its learners have numbers as names: `{rate: learners.logistic(24, learning_rate=rate) for rate in rates}`.
    label: What the numbers are, for the x axis, which is logarithmic where all are positive.
    title: The first line of the figure.

  Raises:
    ValueError: a learner's name is not a number.
  """
  for name in swept.learners:
    if isinstance(name, bool) or not isinstance(name, numbers.Real):
      raise ValueError(f"swept must have learners named by numbers, as their learning rates, but one is {name!r}")
  names: Any = swept.learners
  x = np.array(names, np.float64)
  order = np.argsort(x)
  ends = {metric: swept.values(metric) for metric in METRICS}
  curves = [
    Curves(
      str(teacher),
      {label: x[order]},
      {metric: values[order, place, :, -1].T for metric, values in ends.items() if values is not None},
      "greedy",
      place,
    )
    for place, teacher in enumerate(swept.teachers)
  ]
  plot_charts(path, metric_charts(curves, x_log=bool((x > 0).all())), title=title)
