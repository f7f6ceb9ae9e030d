"""Scaling as pictures: a PNG file for each job along an axis."""

import itertools
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.records import Measurement, Timing
from benchmarks.tables import digits, unit_of
from last_jax.io import replaced

_AXES = {
  "students": "students",
  "pool": "examples in the pool",
  "features": "features",
  "classes": "classes",
  "batch_size": "examples shown in a step",
  "horizon": "steps of an episode",
  "seeds": "teachers trained at once",
  "shortlist": "examples on the shortlist",
  "parameters": "parameters",
}
_COLORS = ("#009e73", "#0072b2", "#e69f00", "#cc79a7")  # Of Okabe and Ito, apart under colour blindness.


class _Line(NamedTuple):
  label: str
  look: dict[str, Any]
  sizes: list[int]
  timings: list[Timing]


def write_plots(folder: pathlib.Path, measurements: Iterable[Measurement]) -> list[pathlib.Path]:
  """Draw every job along an axis, as scaling_JOB.png, and return the files."""
  jobs: dict[str, list[Measurement]] = {}
  for measured in measurements:
    if measured.axis is not None:
      jobs.setdefault(measured.job, []).append(measured)
  written = []
  for job, own in jobs.items():
    path, figure = folder / f"scaling_{job}.png", draw(own)
    with replaced(path) as temporary:
      figure.savefig(temporary, format="png")
    written.append(path)
  for job, own in jobs.items():
    if all("share_of_progress" in measured.problem for measured in own):
      path, figure = folder / f"progress_{job}.png", draw_progress(own)
      with replaced(path) as temporary:
        figure.savefig(temporary, format="png")
      written.append(path)
  shared: dict[str, list[Sequence[Measurement]]] = {}
  for own in jobs.values():
    if (name := own[0].problem.get("picture")) is not None:
      shared.setdefault(name, []).append(own)
  for name, panels in shared.items():
    path, figure = folder / f"{name}.png", draw_ratios(panels)
    with replaced(path) as temporary:
      figure.savefig(temporary, format="png")
    written.append(path)
  return written


def draw_ratios(jobs: Sequence[Sequence[Measurement]]) -> Any:
  """Draw our time over that of the first baseline, a panel for each job, by the size along its axis."""
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure
  from matplotlib.ticker import LogLocator

  figure = Figure(figsize=(4.6 * max(len(jobs), 2), 4.5), dpi=150, layout="constrained")
  FigureCanvasAgg(figure)
  places = figure.subplots(1, len(jobs), squeeze=False, sharey=True)[0]
  for place, own in zip(places, jobs, strict=True):
    lines: dict[str, list[tuple[int, float]]] = {}
    for measured in own:
      lines.setdefault(measured.ours.name, []).append((measured.size, 1 / measured.against[0].ratio))
    for color, marker, (name, points) in zip(_COLORS, "osD^", lines.items(), strict=False):
      look = {"color": color, "marker": marker, "markersize": 5.0, "markerfacecolor": "white"}
      place.plot(*zip(*points, strict=True), label=name, **look)
    assert own[0].axis is not None, f"{own[0].job} has no axis"
    place.set_xlabel(_AXES[own[0].axis])
    place.set_title(own[0].problem["description"], fontsize=10)
    place.set_xscale("log")
    place.set_yscale("log")
    sizes = sorted({size for points in lines.values() for size, _ in points})
    place.set_xticks(sizes, [_short(size) for size in sizes])
    place.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    place.yaxis.set_major_formatter(lambda height, _: f"{height:g} ×")
    place.minorticks_off()
    place.axhline(1.0, color="0.6", linestyle="--", zorder=1)
    place.grid(True, which="major", color="0.9", linewidth=0.7)
    place.set_axisbelow(True)
    place.spines[["top", "right"]].set_visible(False)
    place.legend(frameon=False)
  places[0].set_ylabel(f"time of a {jobs[0][0].unit}, as a multiple of {jobs[0][0].against[0].kind}")
  return figure


def _short(size: int) -> str:
  """Return "960", "96 k" or "9.6 M"."""
  if size < 10**4:
    return f"{size:,}"
  unit, name = (10**6, "M") if size >= 10**6 else (10**3, "k")
  return f"{digits(size / unit).removesuffix('.0')} {name}"


def draw_progress(measurements: Sequence[Measurement]) -> Any:
  """Draw the trade-off of approximate selection: share of exact IMT's progress by work and by time."""
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure
  from matplotlib.ticker import LogLocator

  figure = Figure(figsize=(9.2, 4.5), dpi=150, layout="constrained")
  FigureCanvasAgg(figure)
  left, right = figure.subplots(1, 2, sharey=True)
  less = [1 / measured.problem["work"] for measured in measurements]
  for color, name in zip(_COLORS, measurements[0].problem["share_of_progress"], strict=False):
    shares = [measured.problem["share_of_progress"][name] for measured in measurements]
    left.plot(less, shares, "o-", color=color, markerfacecolor="white", label=name)
  times = [measured.against[0].ratio for measured in measurements]
  shares = [measured.problem["share_of_progress"]["shortlist"] for measured in measurements]
  right.plot(times, shares, "o-", color=_COLORS[0], markerfacecolor="white")
  for axis, label in ((left, "times less work: examples judged in a step"), (right, "times as fast as exact IMT")):
    axis.axhline(0.95, color="0.6", linestyle="--")
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axis.minorticks_off()
    axis.set_xlabel(label)
    axis.grid(True, color="0.9", linewidth=0.7)
    axis.spines[["top", "right"]].set_visible(False)
  left.axvline(50, color="0.6", linestyle="--")
  left.set_ylabel("share of exact IMT's progress in a step, mean")
  left.legend(frameon=False)
  figure.suptitle(f"{measurements[0].job}: {measurements[0].problem['description']}", fontsize=11)
  return figure


def draw(measurements: Sequence[Measurement]) -> Any:
  """Draw a job: time per unit and, where it is known, temporary memory, by the size along the axis."""
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  first, lines = measurements[0], _lines(measurements)
  assert first.axis is not None, f"{first.job} has no axis"
  seconds, unit = unit_of(max(timing.median for line in lines for timing in line.timings))
  panels: list[tuple[str, Callable[[Timing], float | None]]] = [
    (f"time per {first.unit} ({unit})", lambda timing: timing.median / seconds)
  ]
  if any(timing.temporary_bytes is not None for line in lines for timing in line.timings):
    panels.append(("temporary memory of a device (MiB)", _mebibytes))
  figure = Figure(figsize=(4.6 * max(len(panels), 2), 4.5), dpi=150, layout="constrained")
  FigureCanvasAgg(figure)
  places = figure.subplots(1, len(panels), squeeze=False)[0]
  for place, (label, value) in zip(places, panels, strict=True):
    _draw_panel(place, lines, value)
    place.set_xlabel(_AXES[first.axis])
    place.set_ylabel(label)
  handles, labels = places[0].get_legend_handles_labels()
  figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False, handlelength=4.2)
  figure.suptitle(f"{first.job}: {first.problem['description']}", fontsize=11)
  return figure


def _mebibytes(timing: Timing) -> float | None:
  return timing.temporary_bytes and timing.temporary_bytes / 2**20  # A logarithmic axis has no place for 0.


def _lines(measurements: Sequence[Measurement]) -> list[_Line]:
  """Return our lines by name and, in the same colour but dotted, those of their baselines."""
  lines: dict[tuple[str, str], _Line] = {}
  names = list(dict.fromkeys(measured.ours.name for measured in measurements))
  for measured in measurements:
    name = measured.ours.name
    color = _COLORS[names.index(name) % len(_COLORS)]
    shown = [(name, {"color": color, "linestyle": "-", "marker": "o"}, measured.ours)]
    for against, marker in zip(measured.against, itertools.cycle("xsD^v"), strict=False):
      label = f"{name}, {against.kind}" if len(names) > 1 else against.kind
      shown.append((label, {"color": color, "linestyle": ":", "marker": marker}, against.timing))
    for label, look, timing in shown:
      line = lines.setdefault((name, label), _Line(label, look, [], []))
      line.sizes.append(measured.size)
      line.timings.append(timing)
  return list(lines.values())


def _draw_panel(axis: Any, lines: Sequence[_Line], value: Callable[[Timing], float | None]) -> None:
  drawn: list[tuple[int, float]] = []
  for line in lines:
    points = [(size, y) for size, timing in zip(line.sizes, line.timings, strict=True) if (y := value(timing))]
    drawn += points
    if points:
      axis.plot(*zip(*points, strict=True), label=line.label, markersize=5.0, markerfacecolor="white", **line.look)
  axis.set_xscale("log")
  axis.set_yscale("log")
  if drawn:
    _finish(axis, drawn)
  axis.grid(True, which="major", color="0.9", linewidth=0.7)
  axis.set_axisbelow(True)
  axis.spines[["top", "right"]].set_visible(False)


def _finish(axis: Any, points: Sequence[tuple[int, float]]) -> None:
  """Label the axes with plain numbers, and draw a line through the middle with the slope of proportional growth."""
  from matplotlib.ticker import LogLocator

  sizes, heights = (sorted(set(values)) for values in zip(*points, strict=True))
  middle = ((heights[0] * heights[-1]) / (sizes[0] * sizes[-1])) ** 0.5
  # Small differences are to look small: a panel spans at least a factor of ten.
  room = max(1.25, (10 * heights[0] / heights[-1]) ** 0.5)
  axis.set_ylim(heights[0] / room, heights[-1] * room)
  ends = [sizes[0], sizes[-1]]
  axis.plot(ends, [middle * size for size in ends], label="in proportion", color="0.6", linestyle="--", zorder=1)
  axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
  axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if heights[-1] < 300 * heights[0] else (1.0,)))
  axis.yaxis.set_major_formatter(lambda height, _: f"{height:g}")
  axis.minorticks_off()
