"""Write the tables of docs/benchmarks.md from docs/benchmarks.json.

  python -m benchmarks.page docs/benchmarks.json docs/benchmarks.md
      The tables again, after the file has changed.

  python -m benchmarks.page docs/benchmarks.json docs/benchmarks.md --add=runs/benchmarks/benchmarks.json
      First add a run, as benchmarks.run writes it; it replaces one of the same date and the same jobs.

The file holds figures in two forms: "given" are rows of earlier runs whose single measurements were not kept, with
their source; "runs" are reports of benchmarks.run.
"""

import argparse
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.records import BaselineResult, Measurement
from benchmarks.tables import digits, seconds
from last_jax.io import replaced
from last_jax.reproduction.claims_table import replace_table
from last_jax.tools import write_json

BEGIN = "<!-- benchmarks: written by benchmarks.page, not by hand -->"
END = "<!-- end of benchmarks -->"
_COLUMNS = ("job", "ours", "against", "ratio", "aimed at")


def make_markdown(figures: Mapping[str, Any]) -> str:
  """Return all tables, as Markdown: what was given, then a section for each run, the latest first.

  Args:
    figures: the content of docs/benchmarks.json.
  """
  given = figures["given"]
  parts = [given["source"], _table(given["rows"])]
  for run in sorted(figures["runs"], key=lambda run: run["date"], reverse=True):
    measured = [Measurement.from_json(each) for each in run["measurements"]]
    parts += [
      f"### Run of {run['date']}",
      _about(run, measured),
      _table([row for each in measured for row in _rows(each)]),
    ]
  return "\n\n".join(parts)


def _table(rows: Sequence[Sequence[str]]) -> str:
  lines = ["|".join(f" {cell} " if cell else " " for cell in row) for row in (_COLUMNS, *rows)]
  lines.insert(1, "|".join(["---"] * len(_COLUMNS)))
  return "\n".join(f"|{line}|" for line in lines)


def _about(run: Mapping[str, Any], measured: Sequence[Measurement]) -> str:
  """Return how the run was started, on what machine, and whether others used it."""
  machine, versions = run["machine"], run["machine"]["versions"]
  jobs = ",".join(dict.fromkeys(each.job for each in measured))
  libraries = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
  command = f"python -m benchmarks.run --suite={jobs} --repetitions={run['settings']['repetitions']}"
  text = (
    f"`{command}`: {machine['cores']} cores, {machine['architecture']}, {machine['system']}, "
    f"Python {machine['python']}, {libraries}. Medians; ratios with the quartiles of single repetitions in brackets."
  )
  load = machine["load_per_core"]
  if load is not None and load > 0.5:
    text += (
      f" Others used the machine heavily (load per core {load:.1f} before the first job): times are several times those"
      " of a quiet machine; both sides of a ratio took turns."
    )
  return text


def _rows(measured: Measurement) -> list[list[str]]:
  sizes = measured.problem["sizes"]
  job = f"`{measured.job}`: {measured.problem['description']}; {sizes['students']:,} × {sizes['steps']:,} steps"
  ours = f"{seconds(measured.ours.median)} a {measured.unit}"
  compared = [[against.timing.name, _ratio(against), _aim(against)] for against in measured.against]
  rows = [["", "", *each] for each in compared or [["", "", ""]]]
  rows[0][:2] = job, ours
  return rows


def _ratio(against: BaselineResult) -> str:
  """Return the factor by which last_jax is faster or, where it is slower, takes longer."""
  middle, low, high = against.ratio, against.ratio_lower_quartile, against.ratio_upper_quartile
  slower = against.target.slower if against.target else middle < 1
  if slower:
    middle, low, high = 1 / middle, 1 / high, 1 / low
  return f"{digits(middle)} times as {'long' if slower else 'fast'} [{digits(low)}, {digits(high)}]"


def _aim(against: BaselineResult) -> str:
  if against.target is None:
    return ""
  text = f"{'at most ' if against.target.slower else ''}{against.target.factor:g}"
  return text if against.met else f"**{text}**"


def add(figures: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
  """Return the figures with one more run, in place of one of the same date and the same jobs."""

  def about(run: Mapping[str, Any]) -> tuple[str, frozenset[str]]:
    return run["date"], frozenset(each["job"] for each in run["measurements"])

  return {**figures, "runs": [*(each for each in figures["runs"] if about(each) != about(run)), run]}


def main(arguments: Sequence[str] | None = None) -> None:
  """Run the command."""
  parser = argparse.ArgumentParser(description="Write the tables of a page of benchmarks.")
  parser.add_argument("figures", type=pathlib.Path, help="docs/benchmarks.json")
  parser.add_argument("document", type=pathlib.Path, help="Markdown file with the two markers")
  parser.add_argument("--add", type=pathlib.Path, help="report of a run to add first")
  options = parser.parse_args(arguments)
  figures = json.loads(options.figures.read_text(encoding="utf-8"))
  if options.add is not None:
    figures = add(figures, json.loads(options.add.read_text(encoding="utf-8")))
    write_json(options.figures, figures)
  text = replace_table(options.document.read_text(encoding="utf-8"), make_markdown(figures), BEGIN, END)
  with replaced(options.document) as temporary:
    temporary.write_text(text, encoding="utf-8")
  print(f"wrote {options.document}")


if __name__ == "__main__":
  main()
