"""Scaling as pictures: a PNG file for each axis, with the look of the other figures."""

import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.records import Measurement, Timing
from benchmarks.tables import unit_of
from last_jax.data.files import replaced
from last_jax.report import Style, method_style

_AXES = {
  "students": "students",
  "pool": "examples in the pool",
  "features": "features",
  "classes": "classes",
  "batch_size": "examples shown in a step",
  "horizon": "steps of an episode",
  "seeds": "teachers trained at once",
}
_DOTTED = (0.0, (1.2, 1.6))
_LEAST_SPAN = 10.0  # How many times as high as its bottom a panel is at least: small differences are to look small.


class _Line(NamedTuple):
  label: str
  style: Style
  sizes: list[int]
  timings: list[Timing]


def write_plots(folder: pathlib.Path, measurements: Iterable[Measurement]) -> list[pathlib.Path]:
  """Draws every job that goes along an axis, as scaling_JOB.png; gives the files."""
  jobs: dict[str, list[Measurement]] = {}
  for measured in measurements:
    if measured.axis is not None:
      jobs.setdefault(measured.job, []).append(measured)
  written = []
  for job, own in jobs.items():
    path = folder / f"scaling_{job}.png"
    figure = draw(own)
    with replaced(path) as temporary:
      figure.savefig(temporary, format="png")
    written.append(path)
  return written


def draw(measurements: Sequence[Measurement]) -> Any:
  """A job's figure: time per unit and, where it is known, temporary memory, by the size along the axis."""
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  first, lines = measurements[0], _lines(measurements)
  assert first.axis is not None, f"{first.job} goes along no axis"
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
  # Below the panels, where it covers nothing.
  figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False, handlelength=4.2)
  figure.suptitle(f"{first.job}: {first.problem['description']}", fontsize=11)
  return figure


def _mebibytes(timing: Timing) -> float | None:
  return timing.temporary_bytes and timing.temporary_bytes / 2**20  # Nothing is left out of a logarithmic axis.


def _lines(measurements: Sequence[Measurement]) -> list[_Line]:
  """Our own by their names; after each, in its colour but dotted, what it is compared with."""
  lines: dict[tuple[str, str], _Line] = {}
  several = len({measured.ours.name for measured in measurements}) > 1
  for measured in measurements:
    name = measured.ours.name
    style = method_style(name)._replace(line="-")
    shown = [(name, style, measured.ours)]
    for against in measured.against:
      label = f"{name}, {against.kind}" if several else against.kind
      shown.append((label, style._replace(line=_DOTTED, marker="x"), against.timing))
    for label, style, timing in shown:
      line = lines.setdefault((name, label), _Line(label, style, [], []))
      line.sizes.append(measured.size)
      line.timings.append(timing)
  return list(lines.values())


def _draw_panel(axis: Any, lines: Sequence[_Line], value: Callable[[Timing], float | None]) -> None:
  drawn: list[tuple[int, float]] = []
  for line in lines:
    points = [
      (size, height) for size, timing in zip(line.sizes, line.timings, strict=True) if (height := value(timing))
    ]
    drawn += points
    if points:
      axis.plot(
        *zip(*points, strict=True), label=line.label, color=line.style.color, linestyle=line.style.line, linewidth=1.7,
        marker=line.style.marker, markersize=5.0, markerfacecolor="white", markeredgewidth=1.1,
      )  # fmt: skip
  axis.set_xscale("log")
  axis.set_yscale("log")
  if drawn:
    _draw_proportion(axis, drawn)
    _set_ticks(axis, sorted({size for size, _ in drawn}))
  axis.grid(True, which="major", color="0.9", linewidth=0.7)
  axis.set_axisbelow(True)
  axis.spines[["top", "right"]].set_visible(False)


def _draw_proportion(axis: Any, points: Sequence[tuple[int, float]]) -> None:
  """What grows in proportion to the size is as steep as this line, through the middle; limits are set before."""
  sizes, heights = (sorted(values) for values in zip(*points, strict=True))
  room = max(1.25, (_LEAST_SPAN * heights[0] / heights[-1]) ** 0.5)
  axis.set_ylim(heights[0] / room, heights[-1] * room)
  axis.set_xlim(sizes[0] / 1.15, sizes[-1] * 1.15)
  middle = (heights[0] * heights[-1]) ** 0.5 / (sizes[0] * sizes[-1]) ** 0.5
  ends = (sizes[0] / 1.15, sizes[-1] * 1.15)
  axis.plot(
    ends, [middle * size for size in ends], label="in proportion", color="0.6", linewidth=1.0, linestyle="--", zorder=1,
    scalex=False, scaley=False,
  )  # fmt: skip


def _set_ticks(axis: Any, sizes: Sequence[int]) -> None:
  """Plain numbers: along the axis those that were measured."""
  from matplotlib.ticker import LogLocator, NullLocator

  axis.set_xticks(sizes, [f"{size:,}" for size in sizes])
  axis.xaxis.set_minor_locator(NullLocator())
  low, high = axis.get_ylim()
  axis.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 1000 * low else (1.0,)))
  axis.yaxis.set_major_formatter(lambda height, _: f"{height:g}")
  axis.yaxis.set_minor_locator(NullLocator())
