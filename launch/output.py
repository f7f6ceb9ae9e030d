"""Results of teaching: the summary, the table, the arrays and the pictures of `launch.teach`."""

import functools
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

import last_jax as last
from last_jax import tools
from last_jax.teaching import METRICS
from last_jax.tools import Family, Level, Variant

from .command import FAILED
from .console import Console

_STEERED = ("greedy", "mixed", "joint_mixed", "planner", "imt")  # Families with something to steer toward.


class Taught(NamedTuple):
  """Results of one method."""

  name: str  # For people.
  family: Family  # With the variant, its look in pictures.
  variant: Variant
  certificate: Any  # A `last.Certificate` without numbers, or None: how labels are found.
  arrays: Mapping[str, np.ndarray]  # "step" [records], metrics [students, records], lessons.
  hitting_time: np.ndarray | None  # [students], -1 where the tolerance was not reached.
  params: Any  # The students' parameters at the end, with a leading [students] axis.
  compile_seconds: float
  run_seconds: float  # Records included, compiling not.

  @property
  def metrics(self) -> dict[str, np.ndarray]:
    """The metrics that were recorded, `[students, records]` each."""
    return {name: self.arrays[name] for name in METRICS if name in self.arrays}


def summarize(
  title: str,
  taught: Mapping[str, Taught],
  target_facts: Mapping[str, Any],
  interrupted: bool,
  classes: Sequence[str] | None,
) -> dict[str, Any]:
  """Return the content of summary.json."""
  first = next(iter(taught.values()))
  return {
    "title": title,
    "classes": classes,
    "interrupted": interrupted,
    "students": _count_students(first),
    "steps": int(first.arrays["step"][-1]),
    "intervals": "mean and half-width of the 95 % confidence interval over students (Student's t)",
    "target": dict(target_facts),
    "methods": {key: _summarize_method(result) for key, result in taught.items()},
  }


def _count_students(result: Taught) -> int:
  return next(iter(result.metrics.values())).shape[0]


def _summarize_method(result: Taught) -> dict[str, Any]:
  certificate, students = result.certificate, _count_students(result)
  summary: dict[str, Any] = {"name": result.name}
  if certificate is not None:
    summary |= {"labels": certificate.road, "exact": certificate.exact}
  for metric, values in result.metrics.items():
    summary[metric] = interval(values[:, -1])
  if result.hitting_time is not None:
    reached = result.hitting_time[result.hitting_time >= 0]
    summary["hitting_time"] = {"reached": len(reached), "of": students}
    summary["hitting_time"] |= interval(reached) if len(reached) else {"mean": None, "half_width": None}
  return (
    summary
    | summarize_diverged(diverged_at(result))
    | {
      "microseconds_per_student_step": 1e6 * result.run_seconds / (students * int(result.arrays["step"][-1])),
      "run_seconds": result.run_seconds,
      "compile_seconds": result.compile_seconds,
    }
  )


def diverged_at(result: Taught) -> np.ndarray:
  """Return the step of the first record with a metric that is no finite number, `[students]`; -1 where all are."""
  return find_diverged(result.arrays["step"], result.metrics)


def find_diverged(step: np.ndarray, metrics: Mapping[str, np.ndarray]) -> np.ndarray:
  """Return the like from steps `[records]` and metrics `[students, records]`."""
  lost = np.any([~np.isfinite(values) for values in metrics.values()], axis=0)
  return np.where(lost.any(1), step[lost.argmax(1)], -1)


def summarize_diverged(steps: np.ndarray) -> dict[str, int | None]:
  """Return how many students diverged, and by which step the first did, from `diverged_at [students]`."""
  lost = steps[steps >= 0]
  return {"diverged": len(lost), "first_diverged_at": int(lost.min()) if len(lost) else None}


def interval(values: np.ndarray) -> dict[str, float]:
  """Return the mean over students, with the half-width of its confidence interval."""
  mean, half_width = tools.mean_interval(values)
  return {"mean": float(mean), "half_width": float(half_width)}


_COLUMNS = {
  "distance": "distance",
  "objective": "objective",
  "accuracy": "test acc. %",
  "hitting_time": "hitting time",
}


def make_table(summary: dict[str, Any]) -> Any:
  """Return the table of the final values."""
  from rich import box
  from rich.table import Table

  methods = summary["methods"].values()
  table = Table(box=box.SIMPLE_HEAD, title=summary["title"], title_justify="left", title_style="bold", pad_edge=False)
  table.caption = (
    f"after {summary['steps']} steps: mean over students ± half the 95 % confidence interval; "
    "µs: one step of one student, once compiled, records included"
  )
  table.caption_justify = "left"
  table.add_column("method")
  shown = {name: title for name, title in _COLUMNS.items() if any(name in method for method in methods)}
  for title in (*shown.values(), "µs", "compile s"):
    table.add_column(title, justify="right")
  for method in methods:
    cells = [cell(method, name) for name in shown]
    timing = (f"{method['microseconds_per_student_step']:.3g}", f"{method['compile_seconds']:.1f}")
    table.add_row(method["name"], *cells, *timing)
  return table


def cell(method: Mapping[str, Any], name: str) -> str:
  """Return the text of a metric in a table."""
  if name not in method:
    return "-"
  value = method[name]
  if name == "hitting_time":
    share = f"({value['reached']} of {value['of']})"
    return f"{_spread(value, '.4g', '.3g')} {share}" if value["reached"] else f"never {share}"
  if not np.isfinite(value["mean"]):
    return "diverged"
  if name == "accuracy":
    return _spread({part: 100 * number for part, number in value.items()}, ".1f", ".1f")
  return _spread(value, ".3g", ".2g")


def _spread(value: Mapping[str, float], mean_format: str, width_format: str) -> str:
  half_width = "?" if np.isnan(value["half_width"]) else format(value["half_width"], width_format)
  return f"{value['mean']:{mean_format}} ± {half_width}"


def make_notes(summary: dict[str, Any]) -> list[str]:
  """Return notes on results that the table does not explain."""
  notes = []
  unreachable = summary["target"].get("unreachable_distance") or 0.0
  if unreachable > 100 * summary["target"]["rounding_floor"]:
    notes.append(f"{unreachable:.3g} of the distance (mean) lies where no label can teach: no method can pass it")
  for method in summary["methods"].values():
    if not method.get("exact", True):
      notes.append(f"{method['name']}: labels are found by {method['labels']}: a local optimum")
    if method["diverged"]:
      notes.append(
        f"{method['name']}: {method['diverged']} students diverged, the first by step "
        f"{method['first_diverged_at']}: try a smaller --learning_rate"
      )
  return notes


def make_advice(taught: Mapping[str, Taught], toward: str) -> list[str]:
  """Return a note for each method by which a network ends behind SGD, with what to try: students are compared in pairs.

  Args:
    taught: results by method.
    toward: what labels steered toward, one of `methods.TOWARD`.
  """
  baseline = taught.get("sgd")
  if baseline is None:
    return []
  metric, sign = ("accuracy", 1) if "accuracy" in baseline.metrics else ("objective", -1)
  notes = []
  for each in taught.values():
    if each.family not in _STEERED:
      continue
    lead = sign * (each.metrics[metric] - baseline.metrics[metric])  # [students, records]
    mean, half_width = tools.mean_interval(lead[:, -1])
    if not mean + half_width < 0:
      continue
    best = int(np.argmax(lead.mean(0)))
    was = f", after a lead of {lead.mean(0)[best]:.3g} at step {each.arrays['step'][best]}" if best else ""
    other = "fewer --steps, or a smaller --constraint" if toward == "loss" else "--toward=loss"
    notes.append(f"{each.name} ends behind SGD in {metric}, by {-mean:.3g} ± {half_width:.2g}{was}: try {other}")
  return notes


def to_curves(taught: Mapping[str, Taught]) -> dict[str, np.ndarray]:
  """Return the content of curves.npz."""
  curves: dict[str, np.ndarray] = {"step": next(iter(taught.values())).arrays["step"]}
  for key, result in taught.items():
    curves |= {f"{key}/{metric}": values for metric, values in result.metrics.items()}
    if result.hitting_time is not None:
      curves[f"{key}/hitting_time"] = result.hitting_time
    if ((steps := diverged_at(result)) >= 0).any():
      curves[f"{key}/diverged_at"] = steps
  return curves


def to_curriculum(
  problem: last.Problem, init: Any, taught: Mapping[str, Taught], **about: Any
) -> last.Curriculum | None:
  """Return the content of lessons.npz, or None where no lessons were recorded.

  Args:
    problem: what was taught.
    init: the students' starts, with a leading [students] axis.
    taught: results by method.
    **about: further arguments of `last.Curriculum`.
  """
  recorded: dict[str, Mapping[str, Any]] = {key: each.arrays for key, each in taught.items() if "index" in each.arrays}
  lessons = {key: last.Lesson(arrays["index"], arrays["label"]) for key, arrays in recorded.items()}
  if not lessons:
    return None
  final = {key: taught[key].params for key in lessons}
  return last.Curriculum(problem, lessons, init=init, final=final, **about)


def pictures(
  out: pathlib.Path, title: str, taught: Sequence[Taught], target_facts: Mapping[str, Any], precision: str
) -> dict[pathlib.Path, Callable[[pathlib.Path], None]]:
  """Return functions that draw curves.png, by iteration, and time.png, by wall time."""
  levels = {name: [Level("target", target_facts[name])] for name in ("objective", "accuracy") if name in target_facts}
  levels["distance"] = [Level(f"{precision} rounding", target_facts["rounding_floor"], floor=True)]
  if target_facts.get("unreachable_distance", 0.0) > 0:
    levels["distance"].append(Level("no label teaches this", target_facts["unreachable_distance"], floor=True))
  who = "all students at once" if _count_students(taught[0]) > 1 else "one student"
  by_time = f"seconds of teaching {who}, once compiled"

  def draw_by(path: pathlib.Path, label: str) -> None:
    curves = []
    for each in taught:
      step = each.arrays["step"]
      # All steps of a method take about the same time.
      axis = step if label == "iteration" else each.run_seconds * step / step[-1]
      curves.append(tools.Curves(each.name, {label: axis}, each.metrics, each.family, each.variant))
    charts = tools.metric_charts(curves, levels=levels, x_log=label != "iteration")
    tools.plot_charts(path, charts, title=title, who="students")

  labels = {"curves.png": "iteration", "time.png": by_time}
  return {out / file: functools.partial(draw_by, label=label) for file, label in labels.items()}


def draw_all(pictures: Mapping[pathlib.Path, Callable[[pathlib.Path], None]]) -> int:
  """Draw pictures, after all numbers are written. One that fails is named, and costs nothing else.

  Returns:
    The exit status.
  """
  status = 0
  for path, draw_one in pictures.items():
    try:
      draw_one(path)
    except Exception as error:  # Nothing that a picture needs may end the command.
      reason = " ".join(str(error).split()) or type(error).__name__
      print(f"error: {path} could not be made, all else is written: {reason}", file=sys.stderr)
      status = FAILED
  return status


def say_written(console: Console, paths: Sequence[pathlib.Path], *, before: str = "") -> None:
  """Print the paths of those files that are there."""
  console.say(f"{before}wrote " + ", ".join(str(path) for path in paths if path.exists()))
