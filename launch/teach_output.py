"""What `launch.teach` shows and writes."""

import os
import pathlib
from typing import Any

import numpy as np

from last_jax import report
from launch.chunks import Taught
from launch.teach_setup import Setup

FILES = ("config.json", "curves.npz", "summary.json", "curves.png", "time.png", "lessons.npz")


def summarize(setup: Setup, taught: dict[str, Taught], interrupted: bool) -> dict[str, Any]:
  """The content of summary.json."""
  room = setup.classroom
  return {
    "title": setup.title,
    "interrupted": interrupted,
    "students": room.keys.shape[0],
    "steps": room.steps,
    "intervals": "mean and half-width of the 95 % confidence interval over students (Student's t)",
    "target": setup.target_facts,
    "methods": {key: _summary(setup, key, result) for key, result in taught.items()},
  }


def _summary(setup: Setup, key: str, result: Taught) -> dict[str, Any]:
  method, students = setup.methods[key], setup.classroom.keys.shape[0]
  summary: dict[str, Any] = {"name": method.teacher.name, "labels": method.labels}
  for metric, values in result.metrics.items():
    summary[metric] = _interval(values[:, -1])
  if result.hitting_time is not None:
    reached = result.hitting_time[result.hitting_time >= 0]
    summary["hitting_time"] = {"reached": len(reached), "of": students}
    summary["hitting_time"] |= _interval(reached) if len(reached) else {"mean": None, "half_width": None}
  lost = sum(~np.isfinite(values[:, -1]) for values in result.metrics.values())
  summary["diverged"] = int(np.count_nonzero(lost))
  per_step = 1e6 * result.run_seconds / (students * setup.classroom.steps)
  timing = {"microseconds_per_student_step": per_step, "run_seconds": result.run_seconds}
  return summary | timing | {"compile_seconds": result.compile_seconds}


def _interval(values: np.ndarray) -> dict[str, float]:
  mean, half_width = report.mean_interval(values)
  return {"mean": float(mean), "half_width": float(half_width)}


def make_table(summary: dict[str, Any]) -> Any:
  """The table of the final values."""
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
  titles = {
    "distance": "distance",
    "objective": "objective",
    "accuracy": "test acc. %",
    "hitting_time": "hitting time",
  }
  shown = {name: title for name, title in titles.items() if any(name in method for method in methods)}
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


def _spread(value: dict[str, float], mean_format: str, width_format: str) -> str:
  half_width = "?" if np.isnan(value["half_width"]) else format(value["half_width"], width_format)
  return f"{value['mean']:{mean_format}} ± {half_width}"


def write_files(
  folder: str, setup: Setup, taught: dict[str, Taught], summary: dict[str, Any], config: dict[str, Any]
) -> list[str]:
  """Writes the run folder; whatever an earlier run left there under the same names is replaced or removed."""
  out = pathlib.Path(folder)
  names = {key: setup.methods[key].teacher.name for key in taught}
  curves: dict[str, Any] = {"step": next(iter(taught.values())).step}
  lessons: dict[str, Any] = {}
  for key, result in taught.items():
    curves |= {f"{key}/{metric}": values for metric, values in result.metrics.items()}
    if result.hitting_time is not None:
      curves[f"{key}/hitting_time"] = result.hitting_time
    if result.lessons is not None:
      lessons |= {f"{key}/{name}": values for name, values in result.lessons.items()}
  report.write_npz(out / "curves.npz", curves)
  if lessons:
    report.write_npz(out / "lessons.npz", lessons)
  else:
    (out / "lessons.npz").unlink(missing_ok=True)  # Of an earlier run, and so not of these curves.
  pictures: dict[str, Any] = {
    "title": setup.title,
    "references": {metric: setup.target_facts.get(metric) for metric in ("objective", "accuracy")},
    "floors": _floors(setup),
  }
  by_step = {names[key]: {"step": result.step, **result.metrics} for key, result in taught.items()}
  report.plot_curves(out / "curves.png", by_step, **pictures)
  by_time = {names[key]: {"step": _seconds(result), **result.metrics} for key, result in taught.items()}
  everyone = "all students at once" if setup.classroom.keys.shape[0] > 1 else "one student"
  label = f"seconds of teaching {everyone}, once compiled"
  report.plot_curves(out / "time.png", by_time, **pictures, x_label=label, x_log=True)
  report.write_json(out / "summary.json", summary)
  report.write_json(out / "config.json", config)
  return [os.path.join(folder, name) for name in FILES if name != "lessons.npz" or lessons]


def _seconds(result: Taught) -> np.ndarray:
  """The wall time at each record, `[records]`: every step of a method takes about as long as any other."""
  return result.run_seconds * result.step / result.step[-1]


def _floors(setup: Setup) -> dict[str, float]:
  precision = f"float{8 * setup.classroom.pool.x.dtype.itemsize}"
  floors = {f"{precision}\nrounding": setup.target_facts["rounding_floor"]}
  unreachable = setup.target_facts.get("unreachable_distance", 0.0)
  return floors | ({"no label\nteaches this": unreachable} if unreachable > 0 else {})
