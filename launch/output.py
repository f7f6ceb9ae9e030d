"""Output of commands: lines, progress bars, and the summary, table and pictures of `launch.teach`."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from last_jax import tools
from last_jax.teaching import METRICS
from last_jax.tools import Family, Level, Variant


def say(console: Any, text: str) -> None:
  """Print a line without folding it, and without markup."""
  console.print(text, markup=False, soft_wrap=True)


def make_progress(console: Any) -> Any:
  """Return a progress bar with the remaining time; nothing is shown where the output is no terminal."""
  from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

  columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn())
  return Progress(
    *columns,
    TimeRemainingColumn(),
    TextColumn("left"),
    console=console,
    transient=True,
    disable=not console.is_terminal,
  )


# --- Results of teaching.


class Taught(NamedTuple):
  """Results of one method."""

  name: str  # For people.
  family: Family  # With the variant, its look in pictures.
  variant: Variant
  certificate: Any  # A `last.Certificate` without numbers, or None: how labels are found.
  arrays: Mapping[str, np.ndarray]  # "step" [records], metrics [students, records], lessons.
  hitting_time: np.ndarray | None  # [students], -1 where the tolerance was not reached.
  compile_seconds: float
  run_seconds: float  # Records included, compiling not.

  @property
  def metrics(self) -> dict[str, np.ndarray]:
    """The metrics that were recorded, `[students, records]` each."""
    return {name: self.arrays[name] for name in METRICS if name in self.arrays}


def summarize(
  title: str, taught: Mapping[str, Taught], target_facts: Mapping[str, Any], interrupted: bool
) -> dict[str, Any]:
  """Return the content of summary.json."""
  first = next(iter(taught.values()))
  return {
    "title": title,
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
  lost = sum(~np.isfinite(values[:, -1]) for values in result.metrics.values())
  return summary | {
    "diverged": int(np.count_nonzero(lost)),
    "microseconds_per_student_step": 1e6 * result.run_seconds / (students * int(result.arrays["step"][-1])),
    "run_seconds": result.run_seconds,
    "compile_seconds": result.compile_seconds,
  }


def interval(values: np.ndarray) -> dict[str, float]:
  """Return mean and half-width as a dict."""
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
    cells = [_cell(method, name) for name in shown]
    timing = (f"{method['microseconds_per_student_step']:.3g}", f"{method['compile_seconds']:.1f}")
    table.add_row(method["name"], *cells, *timing)
  return table


def _cell(method: dict[str, Any], name: str) -> str:
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
      notes.append(f"{method['name']}: {method['diverged']} students diverged: try a smaller --learning_rate")
  return notes


def to_curves(taught: Mapping[str, Taught]) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
  """Return the content of curves.npz and of lessons.npz; the latter is empty unless lessons were recorded."""
  curves: dict[str, np.ndarray] = {"step": next(iter(taught.values())).arrays["step"]}
  lessons: dict[str, np.ndarray] = {}
  for key, result in taught.items():
    curves |= {f"{key}/{metric}": values for metric, values in result.metrics.items()}
    if result.hitting_time is not None:
      curves[f"{key}/hitting_time"] = result.hitting_time
    lessons |= {f"{key}/{name}": result.arrays[name] for name in ("index", "label") if name in result.arrays}
  return curves, lessons


def draw(
  out: pathlib.Path, title: str, taught: Sequence[Taught], target_facts: Mapping[str, Any], precision: str
) -> None:
  """Draw curves.png, by iteration, and time.png, by wall time."""
  levels = {name: [Level("target", target_facts[name])] for name in ("objective", "accuracy") if name in target_facts}
  levels["distance"] = [Level(f"{precision} rounding", target_facts["rounding_floor"], floor=True)]
  if target_facts.get("unreachable_distance", 0.0) > 0:
    levels["distance"].append(Level("no label teaches this", target_facts["unreachable_distance"], floor=True))
  who = "all students at once" if _count_students(taught[0]) > 1 else "one student"
  by_time = f"seconds of teaching {who}, once compiled"
  for file, label in (("curves.png", "iteration"), ("time.png", by_time)):
    curves = []
    for each in taught:
      step = each.arrays["step"]
      # All steps of a method take about the same time.
      axis = step if label == "iteration" else each.run_seconds * step / step[-1]
      curves.append(tools.Curves(each.name, {label: axis}, each.metrics, each.family, each.variant))
    charts = tools.metric_charts(curves, levels=levels, x_log=label != "iteration")
    tools.plot_charts(out / file, charts, title=title, who="students")
