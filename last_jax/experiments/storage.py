"""A finished figure as files, from which the page is made: what is drawn is what curves.npz holds."""

import hashlib
import json
import pathlib
from typing import Any, NamedTuple

import numpy as np

from last_jax import report
from last_jax.data.files import read_arrays
from last_jax.experiments.claims import Claim, Comparison
from last_jax.experiments.config import Figure, Outcome, Size
from last_jax.report.page import Chart, LabelFrames, Line, Picture
from last_jax.report.pictures import Gallery, draw_gallery, draw_labels

ARRAYS, FACTS = "curves.npz", "figure.json"


class Stored(NamedTuple):
  """A finished figure."""

  settings: dict[str, str]
  blocks: tuple[Chart | LabelFrames | Picture, ...]
  claims: tuple[Claim, ...]
  seconds: float  # What it took to make.
  arrays: dict[str, np.ndarray]  # All of curves.npz.


def fingerprint(figure: Figure, size: Size) -> str:
  """Stands for all that the numbers of a figure depend on, but for the versions of packages."""
  import last_jax

  facts: list[Any] = [last_jax.__version__, figure.name, size.name, size.seeds, size.seed]
  if size.mnist_folder is not None:
    facts += sorted((path.name, path.stat().st_size) for path in pathlib.Path(size.mnist_folder).glob("*ubyte*"))
  return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def save(folder: pathlib.Path, figure: Figure, size: Size, outcome: Outcome, seconds: float) -> None:
  """Writes a figure's files. The last one says that the others are complete."""
  folder.mkdir(parents=True, exist_ok=True)
  (folder / FACTS).unlink(missing_ok=True)
  for stale in folder.glob("*.png"):
    stale.unlink()
  arrays: dict[str, np.ndarray] = {}
  blocks = []
  for place, block in enumerate(outcome.blocks, 1):
    blocks.append({"kind": type(block).__name__} | _save_block(folder, place, block, arrays))
  charts = [block for block in outcome.blocks if isinstance(block, Chart)]
  if charts:
    report.plot_charts(folder / "curves.png", charts, title=figure.title)
  for axis, file in (("one student", "time_one.png"), ("at once", "time_many.png")):
    named = {name for chart in charts for name in chart.lines[0].axes if name.endswith(axis)}
    for name in named:
      timed = [chart._replace(x_log=True) for chart in charts if name in chart.lines[0].axes]
      report.plot_charts(folder / file, timed, title=figure.title, axis=name)
  for number, claim in enumerate(outcome.claims):
    for place, comparison in enumerate(claim.comparisons):
      arrays[f"claims/{number}/{place}"] = np.asarray(comparison.values)
  report.write_npz(folder / ARRAYS, arrays)
  facts = {
    "fingerprint": fingerprint(figure, size),
    "settings": {name: str(value) for name, value in outcome.settings.items()},
    "seconds": seconds,
    "blocks": blocks,
    "claims": [
      {
        "text": claim.text,
        "remark": claim.remark,
        "comparisons": [_without_values(each) for each in claim.comparisons],
      }
      for claim in outcome.claims
    ],
    "versions": report.versions(),
  }
  report.write_json(folder / FACTS, facts)


def _without_values(comparison: Comparison) -> dict[str, Any]:
  return {name: value for name, value in comparison._asdict().items() if name != "values"}


def _save_block(folder: pathlib.Path, place: int, block: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
  """Puts a block's arrays among the others, draws what has a picture of its own, and gives the rest."""
  if isinstance(block, Gallery):
    file = f"gallery_{place}.png"
    draw_gallery(folder / file, block)
    return {"title": block.title, "file": file, "description": block.description}
  if isinstance(block, LabelFrames):
    last = len(block.steps) - 1
    draw_labels(folder / "labels.png", block, sorted({0, last // 8, last // 3, last}))
    for name in LabelFrames._fields[1:]:
      arrays[f"{block.title}/{name}"] = np.asarray(getattr(block, name))
    return {"title": block.title}
  for line in block.lines:
    arrays[f"{block.title}/{line.name}/values"] = np.asarray(line.values)
    for axis, values in line.axes.items():
      arrays[f"{block.title}/{line.name}/{axis}"] = np.asarray(values)
  lines = [{"name": line.name, "axes": list(line.axes)} for line in block.lines]
  return {"title": block.title, "label": block.label, "lines": lines, "log": block.log, "x_log": block.x_log,
          "levels": dict(block.levels)}  # fmt: skip


def load(folder: pathlib.Path, figure: Figure, size: Size) -> Stored | None:
  """A figure that was finished with this size, or None."""
  try:
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    if facts["fingerprint"] != fingerprint(figure, size):
      return None
    arrays = read_arrays(folder / ARRAYS)
    blocks = tuple(_load_block(folder, block, arrays) for block in facts["blocks"])
    claims = tuple(_load_claim(number, claim, arrays) for number, claim in enumerate(facts["claims"]))
  except (OSError, ValueError, KeyError, TypeError):
    return None  # Cut short, or damaged: it is made again.
  return Stored(facts["settings"], blocks, claims, facts["seconds"], arrays)


def _load_block(folder: pathlib.Path, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
  title = facts["title"]
  if facts["kind"] == "Gallery":
    path = folder / facts["file"]
    if not path.is_file():
      raise FileNotFoundError(path)
    return Picture(title, path, facts["description"])
  if facts["kind"] == "LabelFrames":
    return LabelFrames(title, *(arrays[f"{title}/{name}"] for name in LabelFrames._fields[1:]))
  lines = tuple(
    Line(
      line["name"],
      arrays[f"{title}/{line['name']}/values"],
      {axis: arrays[f"{title}/{line['name']}/{axis}"] for axis in line["axes"]},
    )
    for line in facts["lines"]
  )
  return Chart(title, facts["label"], lines, facts["log"], facts["x_log"], facts["levels"])


def _load_claim(number: int, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> Claim:
  comparisons = tuple(
    Comparison(values=arrays[f"claims/{number}/{place}"], **each) for place, each in enumerate(facts["comparisons"])
  )
  return Claim(facts["text"], comparisons, facts["remark"])
