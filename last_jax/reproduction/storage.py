"""Finished figures as files. The page is made from these files, so it shows exactly the numbers of curves.npz."""

import functools
import hashlib
import json
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from last_jax import io, tools
from last_jax.reproduction.claims import Claim, Comparison, Reading, Unit
from last_jax.reproduction.config import Figure, Outcome, Size
from last_jax.tools.charts import Chart, Gallery, LabelFrames, Level, Line, Picture
from last_jax.tools.pictures import draw_gallery, draw_labels
from last_jax.tools.styles import Ball, Variant

ARRAYS, FACTS = "curves.npz", "figure.json"


class Stored(NamedTuple):
  """A finished figure."""

  settings: dict[str, str]
  blocks: tuple[Chart | LabelFrames | Picture, ...]
  claims: tuple[Claim, ...]
  seconds: float  # Duration of the experiment.
  arrays: dict[str, np.ndarray]  # All of curves.npz.


def fingerprint(figure: Figure, size: Size) -> str:
  """Return a hash of everything that a figure's numbers depend on: settings, data, code, and versions of packages."""
  facts: list[Any] = [code_hash(), tools.package_versions(), figure.name, size.name, size.seeds, size.seed]
  if size.mnist_folder is not None:
    facts += sorted((path.name, path.stat().st_size) for path in pathlib.Path(size.mnist_folder).glob("*ubyte*"))
  return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


@functools.cache
def code_hash() -> str:
  """Return a hash of the package's Python files and packaged data, as they were at the first call."""
  import last_jax

  return hash_files(pathlib.Path(last_jax.__file__).parent)


def hash_files(folder: pathlib.Path) -> str:
  """Return a hash of names and contents of all Python and npz files below the folder."""
  digest = hashlib.sha256()
  paths = {path.relative_to(folder).as_posix(): path for kind in ("*.py", "*.npz") for path in folder.rglob(kind)}
  for name, path in sorted(paths.items()):
    content = path.read_bytes()
    digest.update(f"{name}\0{len(content)}\0".encode() + content)
  return digest.hexdigest()


def save(folder: pathlib.Path, figure: Figure, size: Size, outcome: Outcome, seconds: float) -> None:
  """Write a figure's files. The last one marks the others as complete."""
  folder.mkdir(parents=True, exist_ok=True)
  (folder / FACTS).unlink(missing_ok=True)
  for stale in folder.glob("*.png"):
    stale.unlink()
  arrays: dict[str, np.ndarray] = {}
  blocks = []
  for place, block in enumerate(outcome.blocks, 1):
    blocks.append({"kind": type(block).__name__} | _save_block(folder, place, block, arrays))
  _draw_charts(folder, figure.title, [block for block in outcome.blocks if isinstance(block, Chart)])
  claims = [_save_claim(f"claims/{number}", claim, arrays) for number, claim in enumerate(outcome.claims)]
  io.save_npz(folder / ARRAYS, **arrays)
  facts = {
    "fingerprint": fingerprint(figure, size),
    "settings": {name: str(value) for name, value in outcome.settings.items()},
    "seconds": seconds,
    "blocks": blocks,
    "claims": claims,
    "versions": tools.versions(),
  }
  tools.write_json(folder / FACTS, facts)


def _draw_charts(folder: pathlib.Path, title: str, charts: list[Chart]) -> None:
  """Draw all charts by their first x axis as curves.png, and by each further one, which is a time, as time_N.png."""
  if not charts:
    return
  tools.plot_charts(folder / "curves.png", charts, title=title)
  further = dict.fromkeys(axis for chart in charts for axis in list(chart.lines[0].axes)[1:])
  for number, axis in enumerate(further, 1):
    timed = [chart._replace(x_log=True) for chart in charts if axis in chart.lines[0].axes]
    tools.plot_charts(folder / f"time_{number}.png", timed, title=title, axis=axis)


def _save_claim(place: str, claim: Claim, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
  """Add the values of all comparisons to `arrays`, and return the remaining facts."""
  readings = [
    reading._asdict() | {"comparisons": _save_comparisons(f"{place}/{reading.name}", reading.comparisons, arrays)}
    for reading in claim.readings
  ]
  comparisons = _save_comparisons(place, claim.comparisons, arrays)
  return claim._asdict() | {"comparisons": comparisons, "readings": readings}


def _save_comparisons(place: str, comparisons: Sequence[Comparison], arrays: dict[str, np.ndarray]) -> list[Any]:
  found = []
  for number, comparison in enumerate(comparisons):
    arrays[f"{place}/{number}"] = np.asarray(comparison.values)
    facts = comparison._asdict() | {"unit": comparison.unit._asdict()}
    facts["beside"] = _save_comparisons(f"{place}/{number}/beside", comparison.beside, arrays)
    found.append({name: value for name, value in facts.items() if name != "values"})
  return found


def _save_block(folder: pathlib.Path, place: int, block: Any, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
  """Add a block's arrays to `arrays`, draw its own picture if it has one, and return the remaining facts."""
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
  lines = [
    {"name": line.name, "axes": list(line.axes), "family": line.family, "variant": _variant_to_json(line.variant)}
    for line in block.lines
  ]
  return block._asdict() | {"lines": lines, "levels": [level._asdict() for level in block.levels]}


def _variant_to_json(variant: Variant) -> Any:
  # The norm as text: JSON has no infinity.
  return variant._asdict() | {"p": str(variant.p)} if isinstance(variant, Ball) else variant


def _variant_from_json(facts: Any) -> Variant:
  return Ball(**facts | {"p": float(facts["p"])}) if isinstance(facts, dict) else facts


def load(folder: pathlib.Path, figure: Figure, size: Size) -> Stored | None:
  """Return the figure that was finished with this size, code and data; None if there is none."""
  try:
    facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
    if facts["fingerprint"] != fingerprint(figure, size):
      return None
    arrays = io.read_arrays(folder / ARRAYS)
    blocks = tuple(_load_block(folder, block, arrays) for block in facts["blocks"])
    claims = tuple(_load_claim(f"claims/{number}", claim, arrays) for number, claim in enumerate(facts["claims"]))
  except (OSError, ValueError, KeyError, TypeError):
    return None  # Incomplete or damaged: the figure is made again.
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
      line["family"],
      _variant_from_json(line["variant"]),
    )
    for line in facts["lines"]
  )
  levels = tuple(Level(**level) for level in facts["levels"])
  limits = None if facts["limits"] is None else tuple(facts["limits"])
  return Chart(title, facts["label"], lines, facts["log"], facts["x_log"], levels, limits)


def _load_claim(place: str, facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> Claim:
  readings = tuple(
    Reading(**each | {"comparisons": _load_comparisons(f"{place}/{each['name']}", each["comparisons"], arrays)})
    for each in facts["readings"]
  )
  comparisons = _load_comparisons(place, facts["comparisons"], arrays)
  return Claim(**facts | {"comparisons": comparisons, "readings": readings})


def _load_comparisons(place: str, facts: list[Any], arrays: dict[str, np.ndarray]) -> tuple[Comparison, ...]:
  return tuple(
    Comparison(
      values=arrays[f"{place}/{number}"],
      **each
      | {
        "unit": Unit(**each["unit"]),
        "beside": _load_comparisons(f"{place}/{number}/beside", each["beside"], arrays),
      },
    )
    for number, each in enumerate(facts)
  )
