"""Numbers of a results page as JSON: rounded to what can be seen."""

import math
from typing import Any

import numpy as np

from last_jax.tools.charts import (
  Chart,
  Demonstration,
  Gallery,
  LabelFrames,
  Line,
  Side,
  check_chart,
  check_demonstration,
  check_frames,
  check_gallery,
)
from last_jax.tools.page_contents import Block
from last_jax.tools.statistics import interval_ends, mean_interval
from last_jax.tools.styles import method_style

WIDTH = 2.0  # Line width in pixels: matplotlib measures dashes in widths, Plotly in pixels.
_SYMBOLS = {
  "o": "circle", "s": "square", "D": "diamond", "d": "diamond-tall", "^": "triangle-up", "v": "triangle-down",
  "<": "triangle-left", ">": "triangle-right", "X": "x", "P": "cross", "*": "star", "p": "pentagon", "h": "hexagon",
}  # fmt: skip
# Levels of a label as letters, one for each: a tenth of the size of numbers, and more than the eye tells apart.
_LEVELS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_"


def _numbers(values: Any) -> Any:
  """Return nested lists of numbers with 6 significant digits, which suffice on screen; NaN becomes None."""
  array = np.asarray(values)
  if array.dtype.kind in "biu":
    return array.astype(int).tolist()
  return [_numbers(row) for row in array] if array.ndim > 1 else _rounded(array.astype(np.float64).tolist())


def _rounded(values: Any) -> Any:
  if isinstance(values, list):
    return [_rounded(value) for value in values]
  if not math.isfinite(values):
    return None
  value = float(f"{values:.6g}")
  return int(value) if value.is_integer() and abs(value) < 1e15 else value


def block_data(place: str, block: Block) -> dict[str, Any]:
  """Return the numbers of a block.

  Raises:
    ValueError: arrays that do not fit together.
  """
  if isinstance(block, Chart):
    check_chart(place, block)
    return {
      "kind": "chart", "title": block.title, "label": block.label, "log": bool(block.log), "x_log": bool(block.x_log),
      "levels": [[level.name, _numbers(level.height), bool(level.floor)] for level in block.levels],
      "lines": [_line_data(line) for line in block.lines],
    }  # fmt: skip
  if isinstance(block, LabelFrames):
    check_frames(place, block)
    return {
      "kind": "labels", "title": block.title, "x": _numbers(block.x), "steps": _numbers(block.steps),
      "truth": _digits(block.truth), "labels": [_digits(labels) for labels in block.labels],
      "boundaries": _numbers(block.boundaries), "optimal": _numbers(block.optimal),
    }  # fmt: skip
  if isinstance(block, Gallery):
    check_gallery(place, block)
  return {"kind": "images"}


def demonstration_data(place: str, shown: Demonstration) -> dict[str, Any]:
  """Return the numbers of a demonstration; labels of all examples as one letter each, between the lowest and highest.

  Raises:
    ValueError: arrays that do not fit together.
  """
  check_demonstration(place, shown)
  low, high = float(min(shown.labels.min(), 0.0)), float(max(shown.labels.max(), 1.0))
  levels = np.rint((shown.labels - low) / (high - low) * (len(_LEVELS) - 1)).astype(int)
  return {
    "x": _numbers(np.round(np.asarray(shown.x, np.float64), 3)), "truth": _digits(shown.truth),
    "shown": _numbers(shown.shown), "optimal": _numbers(shown.optimal), "range": _numbers([low, high]),
    "levels": _LEVELS, "labels": ["".join(_LEVELS[level] for level in frame) for frame in levels],
    "sides": [_side_data(shown.taught), _side_data(shown.other)],
  }  # fmt: skip


def _side_data(side: Side) -> dict[str, Any]:
  arrays = {"labels": side.labels, "boundaries": side.boundaries, "distance": side.distance}
  return {"name": side.name, **{name: _numbers(array) for name, array in arrays.items()}}


def _line_data(line: Line) -> dict[str, Any]:
  """Return a curve's look and numbers: the mean, and the ends of its interval on a linear and on a log axis."""
  mean, half_width = mean_interval(line.values)
  with np.errstate(over="ignore"):  # Diverged students can be at 1e300.
    low, high = interval_ends(mean, half_width, log=False)
    log_low, log_high = interval_ends(mean, half_width, log=True)
  style = method_style(line.family, line.variant)
  dash = "solid" if isinstance(style.line, str) else ",".join(f"{WIDTH * part:g}px" for part in style.line[1])
  arrays = {"mean": mean, "low": low, "high": high, "log_low": log_low, "log_high": log_high}
  return {
    "name": line.name, "color": style.color, "dash": dash, "symbol": _SYMBOLS[style.marker],
    **{name: _numbers(array) for name, array in arrays.items()},
    "axes": {name: _numbers(axis) for name, axis in line.axes.items()},
  }  # fmt: skip


def _digits(labels: Any) -> str:
  """Return labels as a string, "0110": half the size of a list."""
  return "".join("1" if label else "0" for label in np.asarray(labels))
