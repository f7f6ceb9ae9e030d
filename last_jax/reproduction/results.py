"""Comparisons and charts of records, `[seeds, records]` by the key of their method."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from last_jax import fitting
from last_jax.base import Array, Params, Records
from last_jax.problem import Problem
from last_jax.reproduction import problems
from last_jax.reproduction.claims import Claim, Comparison, Unit, mean_log_ratio
from last_jax.reproduction.config import Method, Size
from last_jax.reproduction.methods import select
from last_jax.teaching import METRICS
from last_jax.tools.charts import Chart, Level, metric_charts

_ARRIVED = 10.0  # On average within this many times the rounding of the target, students are there.
LOWER = Unit("times lower", True, "times higher")
POINTS = Unit("points")


class Distances(NamedTuple):
  """Distances of several methods to the target, to be compared seed by seed.

  Attributes:
    records: By method.
    floor: Smaller distances are rounding.
    lowest: Objective of the target, `[seeds]` or a number; None: objectives are not compared.
    reachable: By method, the part of the distance that labels can change, `[seeds, records]`; None: all of it.
  """

  records: Mapping[str, Records]
  floor: float
  lowest: np.ndarray | float | None = None
  reachable: Mapping[str, np.ndarray] | None = None

  def of(self, method: Method) -> np.ndarray:
    """Return the method's distances, `[seeds, records]`."""
    return np.asarray(self.records[method.key].distance)

  def nearer(self, winner: Method, loser: Method, margin: float = 0.0) -> Comparison:
    """Compare on average over the run."""
    step = self.records[winner.key].step
    values = mean_log_ratio(step, self.of(loser), self.of(winner), self.floor)
    name = f"{winner.name} against {loser.name}"
    return Comparison(name, values, margin=margin, part="run", beside=self.beside(winner, loser))

  def nearer_at_end(self, winner: Method, loser: Method, margin: float = 0.0) -> Comparison:
    """Compare after the last step."""
    values = _log(self.of(loser)[:, -1], self.floor) - _log(self.of(winner)[:, -1], self.floor)
    name = f"{winner.name} against {loser.name}, after the last step"
    return Comparison(name, values, margin=margin, part="end", beside=self.beside(winner, loser))

  def beats(self, winner: Method, loser: Method, margin: float = 0.0) -> list[Comparison]:
    """Compare on average over the run and, unless both have arrived by then, after the last step."""
    both = [self.nearer(winner, loser, margin), self.nearer_at_end(winner, loser, margin)]
    arrived = all(self.of(each)[:, -1].mean() <= _ARRIVED * self.floor for each in (winner, loser))
    return both[:1] if arrived else both

  def beside(self, winner: Method, loser: Method) -> tuple[Comparison, ...]:
    """Return what else was recorded of the pair after the last step; it decides nothing."""
    found, (one, other) = [], (self.records[each.key] for each in (winner, loser))
    if self.reachable is not None:
      ends = [_log(self.reachable[each.key][:, -1], self.floor) for each in (loser, winner)]
      found.append(Comparison("reachable distance", ends[0] - ends[1]))
    if self.lowest is not None and one.objective is not None and other.objective is not None:
      least = 1e-7 * float(np.mean(np.abs(self.lowest)))  # Objectives are sums in float32.
      ends = [_log(np.asarray(each)[:, -1] - self.lowest, least) for each in (other.objective, one.objective)]
      found.append(Comparison("excess objective", ends[0] - ends[1], LOWER))
    if one.accuracy is not None and other.accuracy is not None:
      more = np.asarray(one.accuracy)[:, -1] - np.asarray(other.accuracy)[:, -1]
      found.append(Comparison("accuracy", 100 * more, POINTS))
    return tuple(found)

  def nearer_by_time(self, seconds: Mapping[str, float], winner: Method, loser: Method) -> Comparison:
    """Compare after equal wall time, on average over the time that both have; `seconds` per step by method."""
    end = min(seconds[each.key] * self.records[each.key].step[-1] for each in (winner, loser))
    times = np.geomspace(end / 100, end, 60)

    def at_times(method: Method) -> np.ndarray:
      own = self.records[method.key].step * seconds[method.key]
      return np.exp([np.interp(times, own, each) for each in np.log(self.of(method))])

    return Comparison(f"{winner.name} against {loser.name}", mean_log_ratio(times, at_times(loser), at_times(winner)))


def _log(values: np.ndarray, floor: float) -> np.ndarray:
  return np.log10(np.maximum(values, max(floor, np.finfo(np.float64).tiny)))


def charts(
  methods: Sequence[Method],
  records: Mapping[str, Records],
  times: Mapping[str, Mapping[str, float]],
  *,
  more: Mapping[str, Mapping[str, np.ndarray]] | None = None,
  levels: Mapping[str, Sequence[Level]] | None = None,
  x_log: bool = False,
  suffix: str = "",
) -> tuple[Chart, ...]:
  """Return one chart for each metric that was recorded.

  Args:
    methods: in the order of the legend.
    records: by method.
    times: by the label of an x axis, seconds per step by method.
    more: further metrics of `tools.PANELS`, "excess" or "reachable": `[seeds, records]` by method.
    levels: by metric.
    x_log: whether the x axis is logarithmic.
    suffix: of the titles.
  """
  curves = []
  for method in methods:
    own = records[method.key]
    axes = {"iteration": own.step} | {label: seconds[method.key] * own.step for label, seconds in times.items()}
    measured = {metric: values[method.key] for metric, values in (more or {}).items()}
    curves.append(method.curves({metric: getattr(own, metric) for metric in METRICS} | measured, axes))
  found = metric_charts(curves, levels=levels, x_log=x_log)
  return tuple(chart._replace(title=chart.title + suffix) for chart in found)


def target_charts(
  size: Size,
  problem: Problem,
  ways: Sequence[Method],
  records: Mapping[str, Records],
  seconds: Mapping[str, float] | None = None,
  *,
  x_log: bool,
) -> tuple[Chart, ...]:
  """Return one chart for each metric, with the target's own value and, for distances, the limit of rounding.

  With `seconds` per step by method, there is an x axis of time too.
  """
  each_seed = problems.split(problem)
  objectives = [each.learner.objective(each.target, each.pool.x, each.truth) for each in each_seed]
  floor = Level(f"float{8 * problem.truth.dtype.itemsize} rounding", problems.rounding_floor(problem), floor=True)
  levels = {"distance": [floor], "objective": [Level("target", float(np.mean(objectives)))]}
  if problem.learner.loss.classification:
    accuracies = [
      each.learner.accuracy(each.target, each.test.x, each.test_truth)
      for each in each_seed
      if each.test is not None and each.test_truth is not None
    ]
    levels["accuracy"] = [Level("target", float(np.mean(accuracies)))]
  label = f"seconds once compiled, {size.seeds} students at once"
  return charts(ways, records, {} if seconds is None else {label: seconds}, levels=levels, x_log=x_log)


def compare(problem: Problem, records: Mapping[str, Records]) -> Distances:
  """Return the distances of all methods, with the target's own objective to compare objectives with."""
  return Distances(records, problems.rounding_floor(problem), problems.lowest_objective(problem))


def compare_students(problem: Problem, records: Mapping[str, Records]) -> Distances:
  """Return the distances of all methods, with everything else about the parameters that were recorded.

  Args:
    problem: of a linear learner, with a test pool, shared by all seeds.
    records: whose probe is the parameters, with leading axes [seeds, students, records].
  """
  project = _reachable_part(problem)

  def measure(params: Params) -> tuple[Array, Array, Array]:
    learner, error = problem.learner, ravel_pytree(params)[0] - ravel_pytree(problem.target)[0]
    assert problem.test is not None
    assert problem.test_truth is not None
    accuracy = learner.accuracy(params, problem.test.x, problem.test_truth)
    objective = learner.objective(params, problem.pool.x, problem.truth)
    return jnp.linalg.norm(project @ error), objective, accuracy

  # One seed after the other: the outputs on the test pool of all students and records at once would be gigabytes.
  measure_all = jax.jit(lambda params: jax.lax.map(jax.vmap(jax.vmap(measure)), params))
  found, reachable = {}, {}
  for key, own in records.items():
    measured = measure_all(own.probe)
    reachable[key], objective, accuracy = (np.asarray(each, np.float64).mean(1) for each in measured)
    found[key] = own._replace(objective=objective, accuracy=accuracy)
  return Distances(found, problems.rounding_floor(problem), problems.lowest_objective(problem), reachable)


def _reachable_part(problem: Problem) -> Array:
  """Return the projection `[P, P]` of w - w* onto the part that labels of the pool can change, of a linear learner."""
  flat, unravel = ravel_pytree(problem.target)
  kept = jnp.eye(flat.size, dtype=flat.dtype)

  def lost(direction: Array) -> Array:
    part = fitting.unreachable_part(problem.learner, unravel(flat + direction), problem.target, problem.pool.x)
    return ravel_pytree(part)[0]

  return kept - jax.jit(lambda directions: jax.lax.map(lost, directions))(kept).T


def more_accurate(records: Mapping[str, Records], winner: Method, loser: Method) -> list[Comparison]:
  """Compare test accuracies, on average over the records after the start and after the last step."""
  lead = 100 * (np.asarray(records[winner.key].accuracy) - np.asarray(records[loser.key].accuracy))
  name = f"{winner.name}, against {loser.name}"
  return [
    Comparison(name, lead[:, 1:].mean(1), POINTS, part="run"),
    Comparison(f"{name}, after the last step", lead[:, -1], POINTS, part="end"),
  ]


def every_last_beats_sgd(distances: Distances, ways: Sequence[Method]) -> Claim:
  """Claim that LAST with each set of labels is ahead of SGD."""
  (sgd,) = select(ways, "sgd")
  return Claim(
    "Every LAST beats SGD.", [each for last in select(ways, "greedy") for each in distances.beats(last, sgd)]
  )
