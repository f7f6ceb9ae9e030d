"""Curves as PNG files: charts of methods, and the course of a training."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from last_jax.tools.charts import Chart, Line, check_chart
from last_jax.tools.files import FilePath
from last_jax.tools.png import make_figure, write_png
from last_jax.tools.statistics import interval_ends, mean_interval
from last_jax.tools.styles import method_style

_NEAR = 30.0  # A curve is near a level if it comes within this factor of it.
_MARKERS = 7  # Per curve: enough to follow it in grey print, few enough to see the line.
_DECADE = 10.0  # Of less, a logarithmic axis has hardly a power of ten to label.
_LEAST_ROOM = 1.03  # The factor by which a logarithmic axis extends beyond the means, at least.
_REACH = 0.25  # The share of the means' span by which a linear axis extends to show bands.
_PANEL = 4.6  # Width of a chart in inches;
_HANDLE, _LETTER = 1.1, 0.085  # of a line in the legend and its margins, and of a letter beside it.
_LEVEL_LETTERS = 10  # Per line of a level's name, which stands in the right margin.


def plot_charts(path: FilePath, charts: Sequence[Chart], **settings: Any) -> None:
  """Draw charts into a PNG file, which is written or replaced whole; settings as in `draw_charts`."""
  write_png(path, draw_charts(charts, **settings))


def draw_charts(charts: Sequence[Chart], *, title: str = "", who: str = "seeds", axis: str | None = None) -> Any:
  """Return a matplotlib figure with charts side by side: means with 95 % confidence bands.

  Args:
    charts: At least one. A level is drawn if a curve comes near it.
    title: The first line of the figure; the second says what lines and bands are.
    who: The noun for what means are over.
    axis: The label of the x axis, one of each line's `axes`; the first of them unless given.

  Raises:
    ValueError: no chart, or one whose arrays do not fit together.
  """
  if not charts:
    raise ValueError("charts must not be empty: there is nothing to draw")
  for chart in charts:
    check_chart(repr(chart.title), chart)
  methods = {line.name for chart in charts for line in chart.lines}
  width = _PANEL * max(len(charts), 2)
  fitting = int(width / (_HANDLE + _LETTER * max(map(len, methods))))
  columns = max(1, min(4, len(charts) + 1, len(methods), fitting))
  rows = math.ceil(len(methods) / columns)
  figure = make_figure(width, 4.3 + 0.24 * rows)
  places = figure.subplots(1, len(charts), squeeze=False)[0]
  for chart, place in zip(charts, places, strict=True):
    _draw_chart(place, chart, axis or next(iter(chart.lines[0].axes)))
  entries: dict[str, Any] = {}
  for place in places:
    entries |= {line.get_label(): line for line in place.get_lines() if line.get_label() in methods - {""}}
  if entries:  # Below the panels, where it covers nothing. A single line may have no name.
    legend = figure.legend(
      entries.values(), map(str, range(len(entries))), loc="outside lower center", ncols=columns, frameon=False,
      handlelength=4.2,
    )  # fmt: skip
    for text, name in zip(legend.get_texts(), entries, strict=True):  # Not at once: names may begin with "_".
      text.set_text(name)
  several = any(len(line.values) > 1 for chart in charts for line in chart.lines)
  band = f"mean over {who} with 95 % confidence band" if several else ""
  figure.suptitle(f"{title}\n({band})" if title and band else title or band, fontsize=11)
  return figure


def _draw_chart(axis: Any, chart: Chart, x_label: str) -> None:
  means, ends = [], []
  x_log = chart.x_log and any(_has_places(line, x_label, chart.log) for line in chart.lines)
  for place, line in enumerate(chart.lines):
    step = np.asarray(line.axes[x_label])
    mean, half_width = mean_interval(line.values)
    low, high = interval_ends(mean, half_width, chart.log)
    mean = np.where(mean > 0, mean, np.nan) if chart.log else mean
    style = method_style(line.family, line.variant)
    # Markers of different curves are at different places, which shows curves that coincide.
    spacing = max(1, len(step) // _MARKERS)
    every = (round(place * spacing / max(1, len(chart.lines))), spacing)
    # At 0 there is no place on a logarithmic axis: a curve that comes from there would be level up to its next record.
    step = np.where(step > 0, step, np.nan) if x_log else step
    axis.fill_between(step, low, high, color=style.color, alpha=0.16, linewidth=0)
    axis.plot(
      step, mean, label=line.name, color=style.color, linestyle=style.line, linewidth=1.7,
      marker=style.marker, markersize=4.5, markerfacecolor="white", markeredgewidth=1.1, markevery=every,
    )  # fmt: skip
    means.append(mean)
    ends += [low, high]
  visible = _finite(means)
  if visible.size:
    _set_range(axis, chart.log, visible, _finite(ends))
  if chart.limits is not None:
    least, most = chart.limits
    room = 0.01 * (most - least)
    axis.set_ylim(max(axis.get_ylim()[0], least - room), min(axis.get_ylim()[1], most + room))
  axis.set_title(chart.title, fontsize=11)
  axis.set_ylabel(chart.label)
  axis.set_xlabel(x_label)
  axis.margins(x=0.015)
  _clean(axis)
  if x_log:
    axis.set_xscale("log")
  _draw_levels(axis, chart, visible)
  low, high = axis.get_ylim()
  if axis.get_yscale() == "log" and high < _DECADE * low:
    _count_evenly(axis.yaxis)


def _has_places(line: Line, x_label: str, log: bool) -> bool:
  """Return whether some of the curve can be seen on a logarithmic x axis; `log`: the y axis is logarithmic too."""
  mean = mean_interval(line.values).mean
  return bool(np.any((np.asarray(line.axes[x_label]) > 0) & np.isfinite(mean) & ((mean > 0) | (not log))))


def _finite(arrays: Sequence[np.ndarray]) -> np.ndarray:
  values = np.concatenate(arrays)
  return values[np.isfinite(values)]


def _set_range(axis: Any, log: bool, means: np.ndarray, ends: np.ndarray) -> None:
  """Show all means, and the bands near them: those of few students can reach far and would squeeze the curves."""
  low, high = means.min(), means.max()
  if log:
    axis.set_yscale("log")
    room = max((high / low) ** 0.06, _LEAST_ROOM)
    axis.set_ylim(low / room, high * room)
    return
  span = high - low or abs(high) or 1.0
  shown = np.clip(np.append(ends, means), low - _REACH * span, high + _REACH * span)
  room = 0.05 * (shown.max() - shown.min() or span)
  axis.set_ylim(shown.min() - room, shown.max() + room)


def _count_evenly(axis: Any) -> None:
  """Label a logarithmic axis of less than a decade as a linear one: 2.6, 2.8, 3.0."""
  from matplotlib.ticker import MaxNLocator, NullLocator, ScalarFormatter

  axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], min_n_ticks=3))
  axis.set_minor_locator(NullLocator())
  axis.set_major_formatter(ScalarFormatter(useOffset=False))


def _draw_levels(axis: Any, chart: Chart, visible: np.ndarray) -> None:
  """Draw the levels that a curve comes near, and have the axis show them. Floors are dotted."""
  for level in chart.levels:
    if not np.isfinite(level.height) or not visible.size or (chart.log and level.height <= 0):
      continue
    if not visible.min() <= _NEAR * level.height <= _NEAR**2 * visible.max():
      continue
    axis.axhline(level.height, color="0.45", linewidth=0.8, linestyle=":" if level.floor else "-", zorder=1.5)
    axis.annotate(
      textwrap.fill(level.name, _LEVEL_LETTERS), (1.0, level.height), xycoords=("axes fraction", "data"),
      xytext=(3, 0), textcoords="offset points", ha="left", va="center", fontsize=8, color="0.35",
    )  # fmt: skip
    low, high = axis.get_ylim()
    axis.set_ylim(min(low, level.height / 1.5 if chart.log else level.height), max(high, level.height))


def _clean(axis: Any) -> None:
  axis.grid(True, which="major", color="0.9", linewidth=0.7)
  axis.set_axisbelow(True)
  axis.spines[["top", "right"]].set_visible(False)


_TRAINING = {
  "loss": "loss, mean over students",
  "distance": "‖w − w*‖ at the end of an episode",
  "score": "score, on the same students every time",
}


def plot_training(path: FilePath, episodes: Sequence[int], metrics: Mapping[str, Sequence[Any]], *, title: str) -> None:
  """Draw the metrics of a training by episode into a PNG file, each in a panel of its own.

  Args:
    path: The file to write, or to replace, whole.
    episodes: `[records]`.
    metrics: Any of "loss", "distance" and "score", `[records]` each; None where there is no number.
    title: Above all panels.
  """
  drawn = {
    name: np.array([np.nan if value is None else value for value in metrics[name]], float)
    for name in _TRAINING
    if name in metrics
  }
  drawn = {name: values for name, values in drawn.items() if np.isfinite(values).any()}
  figure = make_figure(4.6 * max(len(drawn), 2), 4.0)
  axes = figure.subplots(1, max(len(drawn), 1), squeeze=False)[0]
  for axis, (name, values) in zip(axes, drawn.items(), strict=False):
    axis.plot(
      episodes, values, color="#0072b2", linewidth=1.3, marker="o" if len(values) < 30 else None, markersize=3.5
    )
    axis.set_title(name, fontsize=11)
    axis.set_ylabel(_TRAINING[name])
    axis.set_xlabel("episode")
    _clean(axis)
  figure.suptitle(title, fontsize=11)
  write_png(path, figure)
