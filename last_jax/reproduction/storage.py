"""Finished figures as files. The page is made from these files, so it shows exactly the numbers of curves.npz."""

import functools
import hashlib
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from last_jax import io, tools
from last_jax.reproduction.claims import Claim, Comparison, Reading, Unit
from last_jax.reproduction.config import Figure, Outcome, Size
from last_jax.tools.charts import Chart, Gallery, LabelFrames, Level, Line
from last_jax.tools.pictures import draw_gallery, draw_labels
from last_jax.tools.styles import Ball, Variant

ARRAYS, FACTS = "curves.npz", "figure.json"


class Stored(NamedTuple):
  """A finished figure."""

  settings: dict[str, str]
  blocks: tuple[Chart | LabelFrames | Gallery, ...]
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


def save(folder: pathlib.Path, figure: Figure, size: Size, outcome: Outcome, seconds: float) -> list[str]:
  """Write a figure's files: numbers, then the facts that mark them as complete and name the pictures, then pictures.

  Pictures of an earlier save are removed, by the names in its facts; other files in the folder stay.

  Returns:
    A line for each picture that could not be drawn.
  """
  folder.mkdir(parents=True, exist_ok=True)
  io.remove_temporaries(folder)
  for name in _earlier_pictures(folder):
    (folder / name).unlink(missing_ok=True)
  (folder / FACTS).unlink(missing_ok=True)
  arrays: dict[str, np.ndarray] = {}
  pictures: dict[str, Callable[[pathlib.Path], None]] = {}
  blocks = []
  for place, block in enumerate(outcome.blocks, 1):
    blocks.append({"kind": type(block).__name__} | _save_block(place, block, arrays, pictures))
  pictures |= _chart_pictures(figure.title, [block for block in outcome.blocks if isinstance(block, Chart)])
  claims = [_save_claim(f"claims/{number}", claim, arrays) for number, claim in enumerate(outcome.claims)]
  io.save_npz(folder / ARRAYS, **arrays)
  facts = {
    "fingerprint": fingerprint(figure, size),
    "settings": {name: str(value) for name, value in outcome.settings.items()},
    "seconds": seconds,
    "blocks": blocks,
    "claims": claims,
    "pictures": list(pictures),
    "versions": tools.versions(),
  }
  tools.write_json(folder / FACTS, facts)
  faults = {}
  for name, draw in pictures.items():
    try:
      draw(folder / name)
    except Exception as error:  # Whatever a picture needs, the numbers are there without it.
      faults[name] = f"{name} could not be drawn: {' '.join(str(error).split()) or type(error).__name__}"
  if faults:
    tools.write_json(folder / FACTS, facts | {"pictures": [name for name in pictures if name not in faults]})
  return list(faults.values())


def _earlier_pictures(folder: pathlib.Path) -> list[str]:
  """Return the names of the pictures that the facts in the folder list, if they can be read."""
  try:
    names = io.read_json(folder / FACTS)["pictures"]
    return [name for name in names if _is_picture(name)]
  except (OSError, ValueError, LookupError, TypeError):
    return []


def _is_picture(name: Any) -> bool:
  """Return whether this can be the name of a picture beside the facts, and leads nowhere else."""
  return isinstance(name, str) and name.endswith(".png") and pathlib.PurePath(name).name == name


def _chart_pictures(title: str, charts: list[Chart]) -> dict[str, Callable[[pathlib.Path], None]]:
  """Return what draws all charts by their first x axis, and by each further one, which is a time, as time_N.png."""
  if not charts:
    return {}
  pictures: dict[str, Callable[[pathlib.Path], None]] = {}
  pictures["curves.png"] = functools.partial(tools.plot_charts, charts=charts, title=title)
  further = dict.fromkeys(axis for chart in charts for axis in list(chart.lines[0].axes)[1:])
  for number, axis in enumerate(further, 1):
    timed = [chart._replace(x_log=True) for chart in charts if axis in chart.lines[0].axes]
    pictures[f"time_{number}.png"] = functools.partial(tools.plot_charts, charts=timed, title=title, axis=axis)
  return pictures


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


def _save_block(
  place: int, block: Any, arrays: dict[str, np.ndarray], pictures: dict[str, Callable[[pathlib.Path], None]]
) -> dict[str, Any]:
  """Add a block's arrays to `arrays`, what draws its own picture to `pictures`, and return the remaining facts."""
  if isinstance(block, Gallery):
    pictures[f"gallery_{place}.png"] = functools.partial(draw_gallery, gallery=block)
    arrays[f"{block.title}/images"] = np.asarray(block.images)
    return {"title": block.title, "captions": list(block.captions), "description": block.description}
  if isinstance(block, LabelFrames):
    last = len(block.steps) - 1
    chosen = sorted({0, last // 8, last // 3, last})
    pictures["labels.png"] = functools.partial(draw_labels, frames=block, chosen=chosen)
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
    facts = io.read_json(folder / FACTS)
    if facts["fingerprint"] != fingerprint(figure, size):
      return None
    drawn = {name for name in facts["pictures"] if _is_picture(name)}
    if not all((folder / name).is_file() for name in drawn):
      return None  # The process was killed before it had drawn them.
    arrays = io.read_arrays(folder / ARRAYS)
    blocks = tuple(_load_block(block, arrays) for block in facts["blocks"])
    claims = tuple(_load_claim(f"claims/{number}", claim, arrays) for number, claim in enumerate(facts["claims"]))
  except (OSError, ValueError, LookupError, TypeError, AttributeError):
    return None  # Incomplete or damaged: the figure is made again.
  return Stored(facts["settings"], blocks, claims, facts["seconds"], arrays)


def _load_block(facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
  title = facts["title"]
  if facts["kind"] == "Gallery":
    return Gallery(title, arrays[f"{title}/images"], tuple(map(str, facts["captions"])), facts["description"])
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
