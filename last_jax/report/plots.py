"""Figures, drawn without a display and without touching matplotlib's global state."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from last_jax.data.files import replaced
from last_jax.report.page import Chart, Line
from last_jax.report.records import FilePath
from last_jax.report.statistics import interval_ends, mean_interval
from last_jax.report.styles import method_style
from last_jax.types import Params

BAND = "mean over {who} with 95 % confidence band"

_NEAR = 30.0  # How many times a floor a curve may lie above it and still be called near.
_MARKERS = 7  # Per curve: enough to follow it in grey print, few enough to see the line.


class Panel(NamedTuple):
  """One metric: how it and its axis are called, and its unit."""

  metric: str
  title: str
  label: str
  scale: float = 1.0


PANELS = (
  Panel("objective", "Objective", "mean loss over the pool + weight decay"),
  Panel("distance", "Distance to the target", "‖w − w*‖"),
  Panel("accuracy", "Test accuracy", "share of the test pool (%)", 100.0),
)


def plot_curves(
  path: FilePath,
  curves: Mapping[str, Mapping[str, Any]],
  *,
  title: str = "",
  references: Mapping[str, float | None] | None = None,
  floors: Mapping[str, float] | None = None,
  x_label: str = "iteration",
  x_log: bool = False,
) -> None:
  """Draws one panel per metric that was recorded, by iteration or by time, into a PNG file.

  Args:
    path: the file to write, or to replace, whole.
    curves: by the method's name (which decides on its look, see `styles.py`): "step" `[records]` and any of
      "objective", "distance", "accuracy", each `[students, records]` or None.
    title: the first line of the figure; the second says what lines and bands are.
    references: by metric, what the target itself has: a thin line.
    floors: by name, distances that cannot be passed; each is drawn if a curve comes near it.
    x_label: what "step" counts.
    x_log: whether its axis is logarithmic; what is at 0 is then not seen.
  """
  charts = []
  for panel in PANELS:
    lines = tuple(
      Line(name, panel.scale * np.asarray(curve[panel.metric], np.float64), {x_label: np.asarray(curve["step"])})
      for name, curve in curves.items()
      if curve.get(panel.metric) is not None
    )
    reference = (references or {}).get(panel.metric)
    levels = {} if reference is None else {"target": panel.scale * float(reference)}
    levels |= dict(floors or {}) if panel.metric == "distance" else {}
    if lines:
      charts.append(Chart(panel.title, panel.label, lines, needs_log(panel.metric, lines), x_log, levels))
  if not charts:
    raise ValueError("curves hold none of objective, distance and accuracy: there is nothing to draw")
  plot_charts(path, charts, title=title, who="students")


def needs_log(metric: str, lines: Sequence[Line]) -> bool:
  """Whether the metric's axis is to be logarithmic: always for distances, for objectives if they span decades."""
  means = np.concatenate([line.values.mean(0) for line in lines])
  means = means[np.isfinite(means)]
  spans = bool(means.size and means.min() > 0 and means.max() > 50 * means.min())
  return metric == "distance" or (metric == "objective" and spans)


def plot_charts(
  path: FilePath, charts: Sequence[Chart], *, title: str = "", who: str = "seeds", axis: str | None = None
) -> None:
  """Draws charts side by side into a PNG file.

  Args:
    path: the file to write, or to replace, whole.
    charts: what to draw. A level is drawn if a curve comes near it.
    title: the first line of the figure; the second says what lines and bands are.
    who: what means are over.
    axis: what is along the x axis; the first of each chart's axes unless given.
  """
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  methods = {line.name for chart in charts for line in chart.lines}
  columns = max(1, min(4, len(charts) + 1, len(methods)))
  rows = math.ceil(len(methods) / columns)
  figure = Figure(figsize=(4.6 * max(len(charts), 2), 4.3 + 0.24 * rows), dpi=150, layout="constrained")
  FigureCanvasAgg(figure)
  axes = figure.subplots(1, len(charts), squeeze=False)[0]
  for chart, place in zip(charts, axes, strict=True):
    _draw_chart(place, chart, axis or next(iter(chart.lines[0].axes)))
  entries: dict[str, Any] = {}
  for place in axes:
    handles, labels = place.get_legend_handles_labels()
    entries |= dict(zip(labels, handles, strict=True))
  # Below the panels, where it covers nothing.
  figure.legend(entries.values(), entries, loc="outside lower center", ncols=columns, frameon=False, handlelength=4.2)
  band = BAND.format(who=who)
  figure.suptitle(f"{title}\n({band})" if title else band, fontsize=11)
  with replaced(path) as temporary:
    figure.savefig(temporary, format="png")


def rounding_floor(target: Params) -> float:
  """The norm of half a unit in the last place of every parameter: nearer than that, numbers cannot tell."""
  spacings = [np.spacing(np.abs(np.asarray(leaf))).ravel() for leaf in jax.tree.leaves(target)]
  return float(0.5 * np.linalg.norm(np.concatenate(spacings).astype(np.float64)))


def _draw_chart(axis: Any, chart: Chart, x_label: str) -> None:
  means = []
  for place, line in enumerate(chart.lines):
    step = np.asarray(line.axes[x_label])
    mean, half_width = mean_interval(line.values)
    low, high = interval_ends(mean, half_width, chart.log)
    mean = np.where(mean > 0, mean, np.nan) if chart.log else mean
    style = method_style(line.name)
    # Curves that coincide are seen to, since each has its markers at other places.
    spacing = max(1, len(step) // _MARKERS)
    every = (round(place * spacing / max(1, len(chart.lines))), spacing)
    axis.fill_between(step, low, high, color=style.color, alpha=0.16, linewidth=0)
    axis.plot(
      step, mean, label=line.name, color=style.color, linestyle=style.line, linewidth=1.7,
      marker=style.marker, markersize=4.5, markerfacecolor="white", markeredgewidth=1.1, markevery=every,
    )  # fmt: skip
    means.append(mean)
  if chart.log:
    _set_log(axis, np.concatenate(means))
  if "%" in chart.label:
    axis.set_ylim(max(axis.get_ylim()[0], -1.0), min(axis.get_ylim()[1], 101.0))  # Bands of few students reach beyond.
  axis.set_title(chart.title, fontsize=11)
  axis.set_ylabel(chart.label)
  axis.set_xlabel(x_label)
  axis.margins(x=0.015)
  axis.grid(True, which="major", color="0.9", linewidth=0.7)
  axis.set_axisbelow(True)
  axis.spines[["top", "right"]].set_visible(False)
  if chart.x_log and any(np.any(np.isfinite(line.get_ydata()) & (line.get_xdata() > 0)) for line in axis.get_lines()):
    axis.set_xscale("log")
  _draw_levels(axis, chart, np.concatenate(means))


def _set_log(axis: Any, means: np.ndarray) -> None:
  """A log axis that shows the means; bands of few students may reach far below them."""
  visible = means[np.isfinite(means)]
  if visible.size:
    axis.set_yscale("log")
    low, high = visible.min(), visible.max()
    room = max((high / low) ** 0.06, 1.15)
    axis.set_ylim(low / room, high * room)


def _draw_levels(axis: Any, chart: Chart, means: np.ndarray) -> None:
  """Levels that a curve comes near to, which are in view then. What cannot be passed is dotted."""
  visible = means[np.isfinite(means)]
  for name, height in chart.levels.items():
    floor = name != "target"
    if not np.isfinite(height) or not visible.size or (chart.log and height <= 0):
      continue
    if not visible.min() <= _NEAR * height <= _NEAR**2 * visible.max():
      continue
    axis.axhline(height, color="0.45", linewidth=0.8, linestyle=":" if floor else "-", zorder=1.5)
    axis.annotate(
      name.replace(" ", "\n", 1) if floor else name, (1.0, height), xycoords=("axes fraction", "data"), xytext=(3, 0),
      textcoords="offset points", ha="left", va="center", fontsize=8, color="0.35",
    )  # fmt: skip
    low, high = axis.get_ylim()
    axis.set_ylim(min(low, height / 1.5 if chart.log else height), max(high, height))


_TRAINING = {
  "loss": "loss, mean over students",
  "distance": r"$\Vert w - w^*\Vert$ at the end of an episode",
  "score": "score on the same students every time",
}


def plot_training(path: FilePath, episodes: Sequence[int], metrics: Mapping[str, Sequence[Any]], *, title: str) -> None:
  """Draws how a training went, by episode, into a PNG file: one panel per metric that there is.

  Args:
    path: the file to write, or to replace, whole.
    episodes: `[records]`.
    metrics: any of "loss", "distance" and "score", `[records]` each; None where there is no number.
    title: above all panels.
  """
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  drawn = {name: np.array([np.nan if v is None else v for v in metrics[name]], float) for name in _TRAINING}
  drawn = {name: values for name, values in drawn.items() if np.isfinite(values).any()}
  figure = Figure(figsize=(4.6 * max(len(drawn), 2), 4.0), dpi=150, layout="constrained")
  FigureCanvasAgg(figure)
  axes = figure.subplots(1, max(len(drawn), 1), squeeze=False)[0]
  for axis, (name, values) in zip(axes, drawn.items(), strict=False):
    axis.plot(
      episodes, values, color="#0072b2", linewidth=1.3, marker="o" if len(values) < 30 else None, markersize=3.5
    )
    axis.set_title(name, fontsize=11)
    axis.set_ylabel(_TRAINING[name])
    axis.set_xlabel("episode")
    axis.grid(True, color="0.9", linewidth=0.7)
    axis.set_axisbelow(True)
    axis.spines[["top", "right"]].set_visible(False)
  figure.suptitle(title, fontsize=11)
  with replaced(path) as temporary:
    figure.savefig(temporary, format="png")
