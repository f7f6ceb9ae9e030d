"""Contents of figures as data: curves of methods, labels of points, pictures. PNG files and the page are made of it."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from last_jax.tools.statistics import spans_decades
from last_jax.tools.styles import Family, Variant


class Line(NamedTuple):
  """One method's curve. Family and variant set its look, see `styles.py`; the name is its entry in the legend."""

  name: str
  values: np.ndarray  # [seeds, records]
  axes: Mapping[str, np.ndarray]  # By the label of the x axis, the default first: [records].
  family: Family
  variant: Variant = ""


class Level(NamedTuple):
  """A horizontal line: a value to reach, or a floor that no curve can pass."""

  name: str
  height: float
  floor: bool = False


class Chart(NamedTuple):
  """One metric of several methods."""

  title: str
  label: str  # Of the y axis, with its unit.
  lines: tuple[Line, ...]
  log: bool = False  # Whether the y axis is logarithmic at first.
  x_log: bool = False  # The same for the x axis.
  levels: tuple[Level, ...] = ()
  limits: tuple[float, float] | None = None  # Values outside are impossible, though a confidence band can reach there.


class LabelFrames(NamedTuple):
  """Synthesized labels of points in the plane and the decision boundary, iteration by iteration."""

  title: str
  x: np.ndarray  # [n, 2]
  truth: np.ndarray  # [n], 0 or 1
  steps: np.ndarray  # [frames]
  labels: np.ndarray  # [frames, n], 0 or 1
  boundaries: np.ndarray  # [frames, 3]: a x + b y + c = 0
  optimal: np.ndarray  # [3]


class Side(NamedTuple):
  """One of the two students of a `Demonstration`: what it was shown, and where that led it.

  Attributes:
    name: Of the method: "LAST".
    title: What is special about it.
    labels: The labels with which examples were shown, `[frames]`.
    boundaries: a x + b y + c = 0, `[frames, 3]`.
    distance: To the target, `[frames]`.
  """

  name: str
  title: str
  labels: np.ndarray
  boundaries: np.ndarray
  distance: np.ndarray


class Demonstration(NamedTuple):
  """Two students in the plane who are shown the same examples, with synthesized and with true labels.

  A frame is an iteration: the students before it, and the example that it shows them.

  Attributes:
    title: Heading.
    lead: What the two students are, in a sentence.
    text: What there is to see.
    x: All examples, `[n, 2]`.
    truth: Their true labels, 0 or 1, `[n]`.
    shown: The place of the example shown, `[frames]`.
    labels: What would be synthesized for every example, `[frames, n]`, any numbers.
    optimal: The boundary of the target, `[3]`.
    taught: The student that gets synthesized labels.
    other: The one that gets true labels.
  """

  title: str
  lead: str
  text: str
  x: np.ndarray
  truth: np.ndarray
  shown: np.ndarray
  labels: np.ndarray
  optimal: np.ndarray
  taught: Side
  other: Side


class Gallery(NamedTuple):
  """Images, each with a caption."""

  title: str
  images: np.ndarray  # [n, 28, 28], 0 for paper and 255 for ink.
  captions: tuple[str, ...]
  description: str  # Text alternative.


class Picture(NamedTuple):
  """A PNG file."""

  title: str
  path: pathlib.Path
  description: str  # Text alternative.


class Curves(NamedTuple):
  """Everything that was recorded of one method."""

  name: str
  axes: Mapping[str, Any]  # By the label of the x axis, the default first: [records].
  metrics: Mapping[str, Any]  # By metric, [seeds or students, records]; None where it was not recorded.
  family: Family
  variant: Variant = ""


class Panel(NamedTuple):
  """Layout of the chart of a metric."""

  title: str
  label: str
  log: Literal["always", "over decades", "never"]
  scale: float = 1.0
  limits: tuple[float, float] | None = None


PANELS: Mapping[str, Panel] = {
  "objective": Panel("Objective", "mean loss over the pool + weight decay", "over decades"),
  "excess": Panel("Excess objective", "objective − that of w*", "over decades"),
  "distance": Panel("Distance to the target", "‖w − w*‖", "always"),
  "reachable": Panel("Reachable distance", "‖part of w − w* that labels can change‖", "always"),
  "accuracy": Panel("Test accuracy", "share of the test pool (%)", "never", 100.0, (0.0, 100.0)),
}


def metric_charts(
  curves: Sequence[Curves], *, levels: Mapping[str, Sequence[Level]] | None = None, x_log: bool = False
) -> tuple[Chart, ...]:
  """Return one chart for each of the metrics of `PANELS` that a method recorded.

  Args:
    curves: One entry for each method.
    levels: By metric, in its own unit: accuracies between 0 and 1.
    x_log: Whether the x axis is logarithmic. A record at 0 is then not visible.

  Raises:
    ValueError: none of the metrics was recorded.
  """
  charts = []
  for metric, panel in PANELS.items():
    lines = tuple(
      Line(
        each.name,
        panel.scale * np.asarray(each.metrics[metric], np.float64),
        {label: np.asarray(axis) for label, axis in each.axes.items()},
        each.family,
        each.variant,
      )
      for each in curves
      if each.metrics.get(metric) is not None
    )
    if lines:
      own = tuple(level._replace(height=panel.scale * level.height) for level in (levels or {}).get(metric, ()))
      means = np.concatenate([line.values.mean(0) for line in lines])
      log = panel.log == "always" or (panel.log == "over decades" and spans_decades(means))
      charts.append(Chart(panel.title, panel.label, lines, log, x_log, own, panel.limits))
  if not charts:
    raise ValueError(f"curves must hold some of the metrics {', '.join(PANELS)}, but there is nothing to draw")
  return tuple(charts)


def check_chart(place: str, chart: Chart) -> None:
  """Raise a ValueError, which begins with `place`, unless there are lines and their arrays fit together."""
  if not chart.lines:
    raise ValueError(f"{place}: a chart must have a line")
  for line in chart.lines:
    shape = np.shape(line.values)
    if len(shape) != 2 or not line.axes:
      raise ValueError(
        f"{place}, {line.name!r}: values must be [seeds, records] over one x axis or more, but the shape is "
        f"{list(shape)} and there are {len(line.axes)} axes"
      )
    for name, axis in line.axes.items():
      _check_shape(f"{place}, {line.name!r}, axis {name!r}", axis, shape[1:])


def check_frames(place: str, frames: LabelFrames) -> None:
  """Raise a ValueError, which begins with `place`, unless the arrays fit together and labels are 0 or 1."""
  count, points = len(frames.steps), len(frames.x)
  if not count or not points:
    raise ValueError(f"{place}: there must be a frame and a point, but there are {count} and {points}")
  shapes = {"x": (points, 2), "truth": (points,), "labels": (count, points), "boundaries": (count, 3), "optimal": (3,)}
  for name, shape in shapes.items():
    _check_shape(f"{place}, {name}", getattr(frames, name), shape)
  for labels in (frames.truth, frames.labels):
    if not np.isin(labels, (0, 1)).all():
      raise ValueError(f"{place}: labels must be 0 or 1")


def check_demonstration(place: str, shown: Demonstration) -> None:
  """Raise a ValueError, which begins with `place`, unless the arrays fit together and numbers are finite."""
  count, points = len(shown.shown), len(shown.x)
  if not count or not points:
    raise ValueError(f"{place}: there must be a frame and an example, but there are {count} and {points}")
  shapes = {"x": (points, 2), "truth": (points,), "shown": (count,), "labels": (count, points), "optimal": (3,)}
  arrays = {name: (getattr(shown, name), shape) for name, shape in shapes.items()}
  for side in (shown.taught, shown.other):
    for name, shape in {"labels": (count,), "boundaries": (count, 3), "distance": (count,)}.items():
      arrays[f"{side.name}, {name}"] = getattr(side, name), shape
  for name, (values, shape) in arrays.items():
    _check_shape(f"{place}, {name}", values, shape)
    if not np.isfinite(values).all():
      raise ValueError(f"{place}, {name}: all numbers must be finite")
  if not np.isin(shown.truth, (0, 1)).all() or not np.isin(shown.shown, np.arange(points)).all():
    raise ValueError(f"{place}: true labels must be 0 or 1, and examples shown must be places of x")


def check_gallery(place: str, gallery: Gallery) -> None:
  """Raise a ValueError, which begins with `place`, unless there are images of bytes with a caption each."""
  images = np.asarray(gallery.images)
  if images.ndim != 3 or images.dtype != np.uint8 or len(images) != len(gallery.captions):
    raise ValueError(
      f"{place}: images must be [n, height, width] of uint8 with n captions, but they are {list(images.shape)} of "
      f"{images.dtype} with {len(gallery.captions)}"
    )


def _check_shape(place: str, values: Any, shape: tuple[int, ...]) -> None:
  if np.shape(values) != shape:
    raise ValueError(f"{place}: the shape must be {list(shape)}, but is {list(np.shape(values))}")
