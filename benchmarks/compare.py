"""Compare two runs of `benchmarks.run`, as a Markdown table.

  python -m benchmarks.compare BEFORE.json AFTER.json

Times are of last_jax, per unit of work: medians, with quartiles in brackets. A change is beyond the noise where the
quartiles of the repetitions do not overlap and medians differ by more than 5 %; it is bold where no repetition of one
run overlaps with those of the other. The last column has the ratios to the baselines of the same run (last_jax is that
many times as fast), which depend less on how busy the machine was.
"""

import collections
import json
import math
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from benchmarks.baselines import KINDS
from benchmarks.records import BaselineResult, Measurement
from benchmarks.tables import case_name, digits, seconds, spread

_LEAST_CHANGE = 1.05
_RENAMED = {"everything kept": "everything stored"}  # Baselines, from earlier versions.

Pair = tuple[Measurement, Measurement]  # One case before and after.


class Report(NamedTuple):
  """The content of a benchmarks.json."""

  settings: dict[str, Any]
  failed: dict[str, str]
  measurements: dict[Any, Measurement]  # By job and sizes; equal ones are counted.


def read_report(path: str) -> Report:
  """Read a benchmarks.json, also of earlier versions.

  Raises:
    ValueError: it is not one.
    OSError: it cannot be read.
  """
  measured: dict[Any, Measurement] = {}
  seen: collections.Counter[Any] = collections.Counter()
  try:
    content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    for each in map(Measurement.from_json, content["measurements"]):
      key = each.job, *sorted(each.problem["sizes"].items())
      seen[key] += 1
      measured[key, seen[key]] = each
    return Report(content["settings"], content["failed"], measured)
  except (ValueError, KeyError, TypeError) as error:
    raise ValueError(f"{path} was not written by benchmarks.run: {type(error).__name__}: {error}") from error


def compare(before: Report, after: Report) -> str:
  """Return the table, with a summary below."""
  pairs = [(before.measurements[key], new) for key, new in after.measurements.items() if key in before.measurements]
  lines = [
    "| job | before | after | after / before | fastest | change | compiling | × as fast as |",
    "|---|---|---|---|---|---|---|---|",
    *map(_row, pairs),
    "",
    *_summarize(pairs),
  ]
  for name, report, other in (("before", before, after), ("after", after, before)):
    alone = collections.Counter(each.job for key, each in report.measurements.items() if key not in other.measurements)
    lines += [f"- only {name}: {job} ({count})" for job, count in alone.items()]
    lines += [f"- failed {name}: {job}: {error}" for job, error in report.failed.items()]
  if before.settings != after.settings:
    lines.append(f"- settings differ: {before.settings} before, {after.settings} after")
  return "\n".join(lines)


def _row(pair: Pair) -> str:
  before, after = (measured.ours for measured in pair)
  ratios = (f"{new.kind} {digits(old.ratio)} → {digits(new.ratio)}" for old, new in _baselines(pair))
  cells = (
    f"{_name(pair)}, per {pair[1].unit}",
    spread(before),
    spread(after),
    digits(_factor(pair)),
    digits(after.fastest / before.fastest),
    _change(pair),
    f"{seconds(before.compile_seconds)} → {seconds(after.compile_seconds)}",
    "; ".join(ratios),
  )
  return f"| {' | '.join(cells)} |"


def _summarize(pairs: Sequence[Pair]) -> list[str]:
  if not pairs:
    return ["- no case is in both"]
  lines = [f"- last_jax, mean of {len(pairs)} cases: {digits(_mean(map(_factor, pairs)))} × the time before"]
  external = [
    new.timing.median / old.timing.median for pair in pairs for old, new in _baselines(pair) if new.kind in KINDS
  ]
  if external:
    lines.append(f"- other libraries on the same cases: {digits(_mean(external))} × the time before (the machine)")
  for word in ("slower", "faster"):
    found = [_name(pair) for pair in pairs if word in _change(pair)]
    lines.append(f"- {word} beyond the noise: " + "; ".join([f"{len(found)} of {len(pairs)}", *found]))
  return lines


def _name(pair: Pair) -> str:
  return pair[1].job + (f", {case_name(pair[1])}" if pair[1].axis else "")


def _factor(pair: Pair) -> float:
  return pair[1].ours.median / pair[0].ours.median


def _change(pair: Pair) -> str:
  """Return "slower" or "faster" where our time changed beyond the noise, else ""."""
  before, after = (measured.ours for measured in pair)
  for word, low, high in (("slower", before, after), ("faster", after, before)):
    if low.upper_quartile < high.lower_quartile and high.median > _LEAST_CHANGE * low.median:
      return f"**{word}**" if max(low.seconds) < min(high.seconds) else word
  return ""


def _baselines(pair: Pair) -> list[tuple[BaselineResult, BaselineResult]]:
  """Return the baselines that are in both runs."""
  before, after = ({_RENAMED.get(each.kind, each.kind): each for each in measured.against} for measured in pair)
  return [(before[kind], after[kind]) for kind in after if kind in before]


def _mean(factors: Iterable[float]) -> float:
  """Return the geometric mean."""
  logs = [math.log(factor) for factor in factors]
  return math.exp(sum(logs) / len(logs))


def main(arguments: Sequence[str]) -> int:
  """Print the comparison and return the exit status."""
  if len(arguments) != 2:
    print((__doc__ or "").strip(), file=sys.stderr)
    return 2
  try:
    before, after = map(read_report, arguments)
  except (OSError, ValueError) as error:
    print(f"error: {error}", file=sys.stderr)
    return 2
  print(compare(before, after))
  return 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
