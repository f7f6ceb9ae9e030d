"""Comparisons and charts of records, `[seeds, records]` by the key of their method."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from last_jax.base import Records
from last_jax.reproduction.claims import Comparison, mean_log_ratio
from last_jax.reproduction.config import Method
from last_jax.teaching import METRICS
from last_jax.tools.charts import Chart, Level, metric_charts


class Distances(NamedTuple):
  """Distances of several methods to the target, to be compared seed by seed."""

  records: Mapping[str, Records]  # By method.
  floor: float  # Smaller distances are rounding.

  def of(self, method: Method) -> np.ndarray:
    """Return the method's distances, `[seeds, records]`."""
    return np.asarray(self.records[method.key].distance)

  def nearer(self, winner: Method, loser: Method, margin: float = 0.0) -> Comparison:
    """Compare on average over the run."""
    step = self.records[winner.key].step
    values = mean_log_ratio(step, self.of(loser), self.of(winner), self.floor)
    return Comparison(f"{winner.name} against {loser.name}", values, margin=margin)

  def nearer_at_end(self, winner: Method, loser: Method) -> Comparison:
    """Compare after the last step."""
    one, other = (np.log10(np.maximum(self.of(each)[:, -1], self.floor)) for each in (winner, loser))
    return Comparison(f"{winner.name} against {loser.name}, after the last step", other - one)

  def beats(self, winner: Method, loser: Method) -> list[Comparison]:
    """Compare on average over the run, and after the last step."""
    return [self.nearer(winner, loser), self.nearer_at_end(winner, loser)]

  def nearer_by_time(self, seconds: Mapping[str, float], winner: Method, loser: Method) -> Comparison:
    """Compare after equal wall time, on average over the time that both have; `seconds` per step by method."""
    end = min(seconds[each.key] * self.records[each.key].step[-1] for each in (winner, loser))
    times = np.geomspace(end / 100, end, 60)

    def at_times(method: Method) -> np.ndarray:
      own = self.records[method.key].step * seconds[method.key]
      return np.exp([np.interp(times, own, each) for each in np.log(self.of(method))])

    return Comparison(f"{winner.name} against {loser.name}", mean_log_ratio(times, at_times(loser), at_times(winner)))


def charts(
  methods: Sequence[Method],
  records: Mapping[str, Records],
  times: Mapping[str, Mapping[str, float]],
  *,
  levels: Mapping[str, Sequence[Level]] | None = None,
  x_log: bool = False,
  suffix: str = "",
) -> tuple[Chart, ...]:
  """Return one chart for each metric that was recorded.

  Args:
    methods: in the order of the legend.
    records: by method.
    times: by the label of an x axis, seconds per step by method.
    levels: by metric.
    x_log: whether the x axis is logarithmic.
    suffix: of the titles.
  """
  curves = []
  for method in methods:
    own = records[method.key]
    axes = {"iteration": own.step} | {label: seconds[method.key] * own.step for label, seconds in times.items()}
    curves.append(method.curves({metric: getattr(own, metric) for metric in METRICS}, axes))
  found = metric_charts(curves, levels=levels, x_log=x_log)
  return tuple(chart._replace(title=chart.title + suffix) for chart in found)
