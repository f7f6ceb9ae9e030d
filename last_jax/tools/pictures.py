"""Pictures of examples as PNG files: galleries of digits, and labelled points with their boundaries."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from last_jax.tools.charts import Gallery, LabelFrames, check_frames
from last_jax.tools.files import FilePath
from last_jax.tools.png import make_figure, write_png

# Colours of the two classes, and of the boundaries as in the paper: purple for the current one, green for the optimal.
_CLASS_COLORS = ("#0072b2", "#e69f00")
_CLASS_MARKERS = ("o", "^")
_CURRENT, _OPTIMAL = "#7b3294", "#008837"
_COLUMNS = 10


def draw_gallery(path: FilePath, gallery: Gallery) -> None:
  """Write the gallery as a PNG file."""
  rows = max(1, math.ceil(len(gallery.images) / _COLUMNS))
  figure = make_figure(0.95 * _COLUMNS, 1.25 * rows + 0.5)
  axes = figure.subplots(rows, _COLUMNS, squeeze=False).ravel()
  for axis in axes:
    axis.set_axis_off()
  for axis, image, caption in zip(axes, gallery.images, gallery.captions, strict=False):
    axis.imshow(image, cmap="gray_r", vmin=0, vmax=255, interpolation="nearest")
    axis.set_title(caption, fontsize=9)
  figure.suptitle(gallery.title, fontsize=11)
  write_png(path, figure)


def draw_labels(path: FilePath, frames: LabelFrames, chosen: Sequence[int]) -> None:
  """Write a PNG file: the ground truth, then the synthesized labels of some frames, with both boundaries.

  Args:
    path: The file to write or to replace.
    frames: The labels.
    chosen: Which frames, by position.
  """
  check_frames(repr(frames.title), frames)
  figure = make_figure(3.6 * (len(chosen) + 1), 4.2)
  axes = figure.subplots(1, len(chosen) + 1, sharex=True, sharey=True, squeeze=False)[0]
  low, high = frames.x.min(0) - 0.3, frames.x.max(0) + 0.3
  for place, axis in enumerate(axes):
    labels = frames.truth if place == 0 else frames.labels[chosen[place - 1]]
    for label, color, marker in zip((0, 1), _CLASS_COLORS, _CLASS_MARKERS, strict=True):
      shown = frames.x[labels == label]
      axis.scatter(*shown.T, s=9, c=color, marker=marker, linewidths=0, alpha=0.75, label=f"label {label}")
    _line(axis, frames.optimal, low, high, color=_OPTIMAL, linestyle=(0, (2, 1.5)), label="optimal boundary")
    if place == 0:
      axis.set_title("ground truth", fontsize=11)
    else:
      frame = chosen[place - 1]
      _line(axis, frames.boundaries[frame], low, high, color=_CURRENT, linestyle="-", label="current boundary")
      changed = int((frames.labels[frame] != frames.truth).sum())
      axis.set_title(f"iteration {frames.steps[frame]:,}: {changed} changed", fontsize=11)
    axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xlabel="first feature", aspect="equal")
  axes[0].set_ylabel("second feature")
  handles, names = axes[-1].get_legend_handles_labels()
  figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False, markerscale=2)
  figure.suptitle(frames.title, fontsize=11)
  write_png(path, figure)


def _line(axis: Any, boundary: np.ndarray, low: np.ndarray, high: np.ndarray, **style: Any) -> None:
  """Draw a x + b y + c = 0 across the whole picture."""
  a, b, c = (float(value) for value in boundary)
  if abs(b) >= abs(a):
    x = np.array([low[0], high[0]])
    axis.plot(x, -(a * x + c) / b if b else np.full(2, np.nan), linewidth=2.2, **style)
  else:
    y = np.array([low[1], high[1]])
    axis.plot(-(b * y + c) / a, y, linewidth=2.2, **style)
