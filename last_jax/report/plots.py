"""Figures, drawn without a display and without touching matplotlib's global state."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from last_jax.data.files import replaced
from last_jax.report.records import FilePath
from last_jax.report.statistics import mean_interval
from last_jax.report.styles import method_style
from last_jax.types import Params

BAND = "mean over students with 95 % confidence band"

_NEAR = 30.0  # How many times a floor a curve may lie above it and still be called near.
_MARKERS = 7  # Per curve: enough to follow it in grey print, few enough to see the line.


class Panel(NamedTuple):
  """One metric: how its axis is called, and which scale it has."""

  metric: str
  title: str
  label: str
  log: bool | None  # None: if the values call for it.


PANELS = (
  Panel("objective", "Objective", "mean loss over the pool + weight decay", None),
  Panel("distance", "Distance to the target", r"$\Vert w - w^*\Vert$", True),
  Panel("accuracy", "Test accuracy", "share of the test pool (%)", False),
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
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  panels = [p for p in PANELS if any(curve.get(p.metric) is not None for curve in curves.values())]
  if not panels:
    raise ValueError("curves hold none of objective, distance and accuracy: there is nothing to draw")
  columns = max(1, min(4, len(panels) + 1, len(curves)))
  rows = math.ceil(len(curves) / columns)
  figure = Figure(figsize=(4.6 * max(len(panels), 2), 4.3 + 0.24 * rows), dpi=150, layout="constrained")
  FigureCanvasAgg(figure)
  axes = figure.subplots(1, len(panels), squeeze=False)[0]
  for panel, axis in zip(panels, axes, strict=True):
    _draw_panel(axis, panel, curves)
    axis.set_xlabel(x_label)
    if x_log and any(np.any(np.isfinite(line.get_ydata()) & (line.get_xdata() > 0)) for line in axis.get_lines()):
      axis.set_xscale("log")
    reference = (references or {}).get(panel.metric)
    if reference is not None:
      _draw_level(axis, float(_in_units(panel, reference)), "target")
    if panel.metric == "distance" and floors:
      _draw_floors(axis, panel, curves, floors)
  entries: dict[str, Any] = {}
  for axis in axes:
    handles, labels = axis.get_legend_handles_labels()
    entries |= dict(zip(labels, handles, strict=True))
  # Below the panels, where it covers nothing.
  figure.legend(entries.values(), entries, loc="outside lower center", ncols=columns, frameon=False, handlelength=4.2)
  figure.suptitle(f"{title}\n({BAND})" if title else BAND, fontsize=11)
  with replaced(path) as temporary:
    figure.savefig(temporary, format="png")


def rounding_floor(target: Params) -> float:
  """The norm of half a unit in the last place of every parameter: nearer than that, numbers cannot tell."""
  spacings = [np.spacing(np.abs(np.asarray(leaf))).ravel() for leaf in jax.tree.leaves(target)]
  return float(0.5 * np.linalg.norm(np.concatenate(spacings).astype(np.float64)))


def _in_units(panel: Panel, values: Any) -> np.ndarray:
  return np.asarray(values, np.float64) * (100 if panel.metric == "accuracy" else 1)


def _draw_panel(axis: Any, panel: Panel, curves: Mapping[str, Mapping[str, Any]]) -> None:
  drawn = {
    name: (np.asarray(curve["step"]), _in_units(panel, curve[panel.metric]))
    for name, curve in curves.items()
    if curve.get(panel.metric) is not None
  }
  log = panel.log if panel.log is not None else _spans_decades([values for _, values in drawn.values()])
  means = []
  for place, (name, (step, values)) in enumerate(drawn.items()):
    mean, half_width = mean_interval(values)
    low, high = _band(mean, half_width, log)
    mean = np.where(mean > 0, mean, np.nan) if log else mean
    style = method_style(name)
    # Curves that coincide are seen to, since each has its markers at other places.
    spacing = max(1, len(step) // _MARKERS)
    every = (round(place * spacing / max(1, len(drawn))), spacing)
    axis.fill_between(step, low, high, color=style.color, alpha=0.16, linewidth=0)
    axis.plot(
      step, mean, label=name, color=style.color, linestyle=style.line, linewidth=1.7,
      marker=style.marker, markersize=4.5, markerfacecolor="white", markeredgewidth=1.1, markevery=every,
    )  # fmt: skip
    means.append(mean)
  if log:
    _set_log(axis, np.concatenate(means))
  if panel.metric == "accuracy":
    axis.set_ylim(max(axis.get_ylim()[0], -1.0), min(axis.get_ylim()[1], 101.0))  # Bands of few students reach beyond.
  axis.set_title(panel.title, fontsize=11)
  axis.set_ylabel(panel.label)
  axis.margins(x=0.015)
  axis.grid(True, which="major", color="0.9", linewidth=0.7)
  axis.set_axisbelow(True)
  axis.spines[["top", "right"]].set_visible(False)


def _band(mean: np.ndarray, half_width: np.ndarray, log: bool) -> tuple[np.ndarray, np.ndarray]:
  """The interval's ends. On a log axis those of the mean's logarithm: positive, and the same where narrow."""
  if not log:
    return mean - half_width, mean + half_width
  positive = np.where(mean > 0, mean, np.nan)
  factor = np.exp(np.minimum(half_width / positive, 50.0))
  return positive / factor, positive * factor


def _spans_decades(values: list[np.ndarray]) -> bool:
  means = np.concatenate([each.mean(0) for each in values])
  means = means[np.isfinite(means)]
  return bool(means.size and means.min() > 0 and means.max() > 50 * means.min())


def _set_log(axis: Any, means: np.ndarray) -> None:
  """A log axis that shows the means; bands of few students may reach far below them."""
  visible = means[np.isfinite(means)]
  if visible.size:
    axis.set_yscale("log")
    low, high = visible.min(), visible.max()
    room = max((high / low) ** 0.06, 1.15)
    axis.set_ylim(low / room, high * room)


def _draw_level(axis: Any, height: float, name: str, line: str = "-") -> None:
  if not np.isfinite(height) or (axis.get_yscale() == "log" and height <= 0):
    return
  axis.axhline(height, color="0.45", linewidth=0.8, linestyle=line, zorder=1.5)
  axis.annotate(
    name, (1.0, height), xycoords=("axes fraction", "data"), xytext=(3, 0), textcoords="offset points",
    ha="left", va="center", fontsize=8, color="0.35",
  )  # fmt: skip


def _draw_floors(axis: Any, panel: Panel, curves: Mapping[str, Mapping[str, Any]], floors: Mapping[str, float]) -> None:
  values = [_in_units(panel, c[panel.metric]).mean(0) for c in curves.values() if c.get(panel.metric) is not None]
  lowest = min((v[np.isfinite(v)].min(initial=np.inf) for v in values), default=np.inf)
  for name, floor in floors.items():
    if floor > 0 and lowest <= _NEAR * floor:
      _draw_level(axis, floor, name, line=":")
      low, high = axis.get_ylim()
      axis.set_ylim(min(low, floor / 1.5), high)


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
