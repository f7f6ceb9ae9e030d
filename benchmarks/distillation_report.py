"""Tables and the picture of `benchmarks.distillation`, from its draws: dicts that `run_draw` returns."""

import json
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from last_jax.tools.statistics import mean_interval

TRUE, SMOOTHED, PRETRAINED = "true labels", "label smoothing (0.9)", "labels of a trained network (T = 2)"
SOLVED, SEARCHED = "distilled, solved", "distilled, through the loop"
ROWS = (TRUE, SMOOTHED, PRETRAINED, SOLVED, SEARCHED)
# Test accuracy in percent, mean and deviation over students, by number of images, as published.
_PUBLISHED = {10: (60.9, 3.2), 100: (87.3, 0.7), 500: (93.3, 0.3)}


def read(paths: Iterable[str]) -> list[dict[str, Any]]:
  """Return the draws of files that `--json` wrote."""
  files = [json.loads(pathlib.Path(path).read_text(encoding="utf-8")) for path in paths]
  return [draw for content in files for draw in content["draws"]]


def transferred_to(network: str) -> str:
  """Return the network of the students of transfer."""
  return "mlp" if network == "cnn" else "cnn"


def _by_recipe(draws: list[dict[str, Any]]) -> dict[str, dict[int, list[dict[str, Any]]]]:
  """Return the draws of each recipe by number of base images."""
  groups: dict[str, dict[int, list[dict[str, Any]]]] = {}
  for draw in sorted(draws, key=lambda draw: (draw["recipe"], draw["images"], draw["draw"])):
    groups.setdefault(draw["recipe"], {}).setdefault(draw["images"], []).append(draw)
  return groups


def _names(sizes: dict[int, list[dict[str, Any]]]) -> list[str]:
  """Return the rows that were measured, in the order of `ROWS`."""
  measured = next(iter(sizes.values()))[0]["accuracy"]
  return [name for name in ROWS if name in measured]


def _titles(sizes: dict[int, list[dict[str, Any]]]) -> dict[str, str]:
  """Return the students of each part."""
  network = next(iter(sizes.values()))[0]["network"]
  return {"accuracy": f"{network}, SGD", "transfer": f"{transferred_to(network)}, Adam"}


def table(draws: list[dict[str, Any]]) -> list[str]:
  """Return a Markdown table for each recipe: percent correct of each draw, with intervals, by number of images."""
  lines = []
  for recipe, sizes in _by_recipe(draws).items():
    titles = _titles(sizes)
    head = [f"{images} images, {student}" for student in titles.values() for images in sizes]
    lines += ["", f"| labels ({recipe}) | {' | '.join(head)} |", "|---" * (1 + len(head)) + "|"]
    for name in _names(sizes):
      cells = [
        ", ".join(
          f"{found.mean:.1f} ± {found.half_width:.1f}" for found in (_interval(draw, part, name) for draw in several)
        )
        for part in titles
        for several in sizes.values()
      ]
      lines.append(f"| {name} | {' | '.join(cells)} |")
  return lines


def _interval(draw: dict[str, Any], part: str, name: str) -> Any:
  """Return mean and interval over the students of a draw, in percent."""
  return mean_interval(100 * np.asarray(draw[part][name]))


def draw_figure(path: str, draws: list[dict[str, Any]]) -> None:
  """Write a PNG file: accuracy by number of images, a point with its interval for each draw, a line through means.

  A row of panels for each recipe; its own students on the left, those of transfer on the right.
  """
  from matplotlib.figure import Figure

  groups = _by_recipe(draws)
  figure = Figure(figsize=(10, 0.5 + 3.8 * len(groups)), layout="constrained")
  panels = figure.subplots(len(groups), 2, sharex=True, sharey="row", squeeze=False)
  ticks = sorted({draw["images"] for draw in draws})
  for row, (recipe, sizes) in zip(panels, groups.items(), strict=True):
    for axis, (part, title) in zip(row, _titles(sizes).items(), strict=True):
      _draw_panel(axis, part, sizes)
      axis.set(title=f"{recipe}: students {title}", xscale="log", xlim=(ticks[0] / 1.4, ticks[-1] * 1.4))
      axis.set_xticks(ticks, [str(images) for images in ticks])
      axis.set_xticks([], minor=True)
      axis.grid(alpha=0.3)
    row[0].set_ylabel("test accuracy (%)")
  panels[0, 0].legend(loc="lower right", fontsize=8)
  for axis in panels[-1]:
    axis.set_xlabel("base images")
  figure.savefig(path, dpi=130)


def _draw_panel(axis: Any, part: str, sizes: dict[int, list[dict[str, Any]]]) -> None:
  """Draw the rows and, beside students of the labels' own kind, the published figures."""
  for place, name in enumerate(_names(sizes)):
    places = [images * 1.04 ** (place - 1.5) for images in sizes]  # Apart, so that no interval hides another.
    found = [[_interval(draw, part, name) for draw in several] for several in sizes.values()]
    (line,) = axis.plot(places, [np.mean([each.mean for each in several]) for several in found], label=name)
    points = [(at, each.mean, each.half_width) for at, several in zip(places, found, strict=True) for each in several]
    at, means, widths = zip(*points, strict=True)
    axis.errorbar(at, means, yerr=widths, color=line.get_color(), marker="o", markersize=3, linestyle="", capsize=2)
  if part == "accuracy" and (known := [(n, *figures) for n, figures in _PUBLISHED.items() if n in sizes]):
    at, means, widths = zip(*known, strict=True)
    axis.errorbar(
      at, means, yerr=widths, color="gray", marker="x", linestyle=":", capsize=3,
      label="label distillation, Bohdal et al. (LeNet)",
    )  # fmt: skip
