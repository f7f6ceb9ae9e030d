"""The lines of metrics.jsonl, of which `launch.train_teacher` writes one every --report_every episodes."""

import json
import pathlib
from typing import Any

import numpy as np

from last_jax.io import opened, replaced
from last_jax.io.files import parse_json
from last_jax.training import Log

METRICS_FILE = "metrics.jsonl"


def make_line(episode: int, log: Log, rate: float) -> dict[str, Any]:
  """Return one line of metrics: means over the episodes since the last one."""
  line: dict[str, Any] = {"episode": episode, "loss": _mean(log.loss)}
  if log.distance is not None:
    line["distance"] = _mean(log.distance)
  if log.score is not None:
    line["score"] = _mean(log.score)
  line["skipped"] = int(np.sum(~np.asarray(log.applied)))
  return line | {"episodes_per_second": round(rate, 2)}


def _mean(values: Any) -> float | None:
  mean = float(np.mean(np.asarray(values)))
  return mean if np.isfinite(mean) else None  # JSON has no NaN.


def describe(line: dict[str, Any]) -> str:
  """Return a line of metrics as people read it."""
  parts = [f"{name} {line[name]:.4g}" for name in ("loss", "distance", "score") if line.get(name) is not None]
  return ", ".join([*parts, f"{line['episodes_per_second']:.0f} episodes/s"])


def read(path: pathlib.Path, episode: int) -> list[dict[str, Any]]:
  """Return the lines up to the checkpoint, and remove later ones from the file: they will be written again.

  A last line without an end is dropped: the process was killed while it wrote it. Any other line that is not one of
  `make_line` raises a ValueError that names it, and the file stays as it is.
  """
  lines: list[dict[str, Any]] = []
  if episode and path.exists():
    with opened(path) as stream:
      texts = stream.read().split(b"\n")[:-1]
    for number, text in enumerate(texts, 1):
      try:
        line = _check_line(parse_json(text), lines[-1]["episode"] if lines else 0)
      except ValueError as error:
        raise ValueError(f"{path}, line {number}, is not one of this command: it has {error}") from error
      if line["episode"] <= episode:
        lines.append(line)
  with replaced(path) as temporary:
    temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
  return lines


def _check_line(line: Any, before: int) -> dict[str, Any]:
  """Return a line of metrics, or raise; `before` is the episode of the one before it."""
  if not isinstance(line, dict) or type(line.get("episode")) is not int or line["episode"] <= before:
    raise ValueError(f"no episode after {before}")
  if type(line.get("skipped")) is not int or line["skipped"] < 0:
    raise ValueError("no number of skipped episodes")
  for name in ("loss", "distance", "score"):
    if not isinstance(line.get(name), (int, float, type(None))):
      raise ValueError(f"a {name} that is no number")
  return line
