"""Pictures of examples as PNG files: galleries of digits, and labelled points with their boundaries."""

import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from last_jax.tools.charts import Gallery, LabelFrames, check_frames
from last_jax.tools.files import FilePath
from last_jax.tools.png import make_figure, write_png

# As on the page: blue and orange for the two classes; as in the paper, purple for the current boundary, green for the
# optimal one.
_CLASS_COLORS = ("#0072b2", "#d55e00")
_CLASS_MARKERS = ("o", "D")
_CURRENT, _OPTIMAL = "#7b3294", "#008837"
_COLUMNS = 10
_MOST_ROWS = 100  # Of fixed labels, up to which their images are drawn beside them.
_LEAST_PIXELS = 196  # Fewer numbers are taken for features.
_TITLE_LETTERS = 85  # In a line of the title of fixed labels.


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


def draw_fixed_labels(
  path: FilePath,
  title: str,
  x: np.ndarray,
  truth: np.ndarray,
  labels: np.ndarray,
  classes: Sequence[str] | None = None,
) -> None:
  """Write a PNG file: the labels of examples as rows of a heat map, beside their images where they are images.

  Args:
    path: The file to write or to replace.
    title: Above the picture.
    x: Examples, `[n, 28, 28, 1]` or `[n, 784]` for images, or any other `[n, ...]`.
    truth: `[n, K]`, marked by dots where it is a class. Labels of one output are drawn as bars, beside the truth.
    labels: `[n, K]`. Labels of tokens, `[n, T, K]`, are drawn as rows of their own.
    classes: the names of the K classes.
  """
  truth, labels = (values.reshape(-1, values.shape[-1]) for values in (truth, labels))
  count, width = labels.shape
  if width == 1:
    figure = make_figure(8, 3.6)
    axis = figure.subplots()
    axis.bar(np.arange(count), labels[:, 0], color=_CLASS_COLORS[0], label="label")
    axis.plot(np.arange(count), truth[:, 0], linestyle="", marker="o", color=_CLASS_COLORS[1], label="truth")
    axis.set(xlabel="example", ylabel="label")
    axis.legend()
  else:
    order = np.argsort(np.argmax(truth, 1), kind="stable")
    pixels = _as_images(x, count)
    figure = make_figure(6.4, min(24.0, 1.6 + 0.22 * count))
    axes = figure.subplots(1, 2, width_ratios=(1, 12)) if pixels is not None and count <= _MOST_ROWS else None
    axis = figure.subplots() if axes is None else axes[1]
    far = max(1.0, float(np.abs(labels).max()))
    shown = axis.imshow(labels[order], cmap="RdBu_r", vmin=-far, vmax=far, aspect="auto", interpolation="nearest")
    axis.plot(np.argmax(truth, 1)[order], np.arange(count), linestyle="", marker=".", color="black", markersize=3)
    axis.set(xlabel="class (dots: the truth)", xticks=np.arange(width) if width <= 20 else [], yticks=[])
    if classes is not None and len(classes) == width <= 20:
      names = [name if len(name) <= 16 else f"{name[:15]}…" for name in classes]
      axis.set_xticklabels(names, rotation=30 if width > 4 else 0)
    figure.colorbar(shown, ax=axis)
    if axes is not None:
      assert pixels is not None
      strip = np.concatenate(list(pixels[order]))
      axes[0].imshow(strip, cmap="gray_r", aspect="auto", interpolation="nearest")
      axes[0].set_axis_off()
  figure.suptitle(textwrap.fill(title, _TITLE_LETTERS), fontsize=9)  # matplotlib's own wrapping reads "$" as formulas.
  write_png(path, figure)


def _as_images(x: np.ndarray, count: int) -> np.ndarray | None:
  """Return examples as square images of one channel, `[n, side, side]`, or None where they are none."""
  if len(x) != count or x[0].size < _LEAST_PIXELS:
    return None
  side = math.isqrt(x[0].size)
  is_square = side * side == x[0].size and (x.ndim == 2 or x.shape[1:3] == (side, side))
  return x.reshape(count, side, side) if is_square else None


def _line(axis: Any, boundary: np.ndarray, low: np.ndarray, high: np.ndarray, **style: Any) -> None:
  """Draw a x + b y + c = 0 across the whole picture."""
  a, b, c = (float(value) for value in boundary)
  if abs(b) >= abs(a):
    x = np.array([low[0], high[0]])
    axis.plot(x, -(a * x + c) / b if b else np.full(2, np.nan), linewidth=2.2, **style)
  else:
    y = np.array([low[1], high[1]])
    axis.plot(-(b * y + c) / a, y, linewidth=2.2, **style)
