"""The report on finished figures: verdicts on all claims, the page, and the files beside it."""

import datetime
import functools
import pathlib
import platform
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from last_jax import io, tools
from last_jax.reproduction import storage
from last_jax.reproduction.claims import HOLDS, LITERAL, NOT_RUN, VERDICTS, Estimate, Judged, Verdict, judge
from last_jax.reproduction.config import SEEDS, Figure, Size
from last_jax.reproduction.figures import FIGURES
from last_jax.reproduction.names import NAMES
from last_jax.reproduction.opening import make_opening
from last_jax.reproduction.rule import RULE
from last_jax.reproduction.storage import Stored
from last_jax.tools.charts import Demonstration
from last_jax.tools.page import ClaimRow, Page, ReadingRow, Section, write_page

FILES = ("index.html", "claims.json", "curves.npz", "summary.json", "config.json")
_TITLE = "Iterative teaching by label synthesis: the paper's figures and claims"
_INTRODUCTION = (
  "A teacher steers a learner to target parameters w* by choosing, in every iteration, the labels of random examples: "
  "label synthesis teaching (LAST, NeurIPS 2021). Every figure of the paper was made again with last_jax, and every "
  "claim was judged by the results, in each reading of what the paper leaves open. Nothing was tuned for a claim to "
  "hold."
)


class Finding(NamedTuple):
  """A claim of a figure with its verdict."""

  figure: Figure
  verdict: Verdict
  size: Size

  @property
  def explanation(self) -> str:
    """The verdict's explanation and, where this run was too small for one, the command that judges the claim."""
    text = self.verdict.explanation
    if self.verdict.verdict != NOT_RUN:
      return text
    larger = self.size._replace(name=self.verdict.claim.size, seeds=SEEDS[self.verdict.claim.size])
    return f"{text} It is judged by: {_command(larger, self.figure)}"

  def row(self) -> ClaimRow:
    """Return the claim's row of the page."""
    weakest = self.verdict.weakest
    effect, interval = weakest.describe()
    several = len(self.verdict.readings) > 1
    return ClaimRow(
      figure=self.figure.name,
      paper=self.figure.paper,
      claim=self.verdict.claim.text,
      effect=effect,
      interval=interval,
      seeds=weakest.seeds,
      verdict=self.verdict.verdict,
      explanation=self.explanation,
      readings=tuple(map(_reading_row, self.verdict.readings)) if several else (),
      threshold=weakest.threshold,
    )

  def entry(self) -> dict[str, Any]:
    """Return the claim's entry of claims.json: the row, and every comparison of every reading in numbers."""
    readings = [
      _reading_row(each)._asdict() | {"comparisons": list(map(_numbers, each.estimates))}
      for each in self.verdict.readings
    ]
    return self.row()._asdict() | {"readings": readings}


def _reading_row(judged: Judged) -> ReadingRow:
  effect, interval = judged.weakest.describe()
  because = judged.reading.because if judged.verdict != HOLDS and judged.reading.name != LITERAL else ""
  notes = [judged.disagreement, because] if judged.reading.name != LITERAL else []
  return ReadingRow(
    judged.reading.name,
    judged.reading.setting,
    effect,
    interval,
    judged.verdict,
    " ".join(filter(None, notes)),
    judged.weakest.threshold,
  )


def _numbers(estimate: Estimate) -> dict[str, Any]:
  facts = {"unit": estimate.unit.text, "ratio": estimate.unit.ratio, "verdict": estimate.verdict}
  return estimate._asdict() | facts | {"beside": list(map(_numbers, estimate.beside))}


def write_report(
  out: pathlib.Path,
  wanted: Sequence[Figure],
  size: Size,
  failures: Mapping[str, str],
  config: Mapping[str, Any],
  seconds: float,
) -> tuple[list[Finding], Callable[[pathlib.Path], None]]:
  """Write `FILES` except the page, from the files of the finished figures; summary.json marks them as of one run.

  Args:
    out: The folder that holds a folder of each finished figure.
    wanted: The figures that must appear on the page. Others appear if they were finished with the same size and code.
    size: Of all figures.
    failures: By figure, the reason why it is missing.
    config: The contents of config.json; "versions" among them.
    seconds: The duration of this run.

  Returns:
    The claims with their verdicts, and a function that writes the page to a path.
  """
  stored = {name: storage.load(out / name, figure, size) for name, figure in FIGURES.items()}
  finished = {name: each for name, each in stored.items() if each is not None}
  findings = [Finding(FIGURES[name], judge(claim), size) for name, each in finished.items() for claim in each.claims]
  sections = [
    _section(figure, finished.get(name), size, failures)
    for name, figure in FIGURES.items()
    if name in finished or figure in wanted
  ]
  arrays = {f"{name}/{key}": values for name, each in finished.items() for key, values in each.arrays.items()}
  opening = make_opening(size.seed)
  arrays |= _opening_arrays(opening)
  run = uuid.uuid4().hex
  with io.replaced_together(out, "summary.json", FILES) as aside:
    io.save_npz(aside / "curves.npz", **arrays)
    tools.write_json(aside / "claims.json", [finding.entry() for finding in findings])
    tools.write_json(aside / "config.json", {"run": run, **config})
    tools.write_json(aside / "summary.json", {"run": run, **_summarize(size, finished, findings, failures, seconds)})
  versions = dict(config["versions"])
  device = versions.pop("device")
  facts = {
    "date": f"{datetime.date.today():%Y-%m-%d}",
    "command": _command(size),
    "size": f"{size.name}, {size.seeds} seeds",
    "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
    "machine": f"{platform.machine()}, {device}",
  }
  rows = tuple(finding.row() for finding in findings)
  page = Page(_TITLE, _INTRODUCTION, facts, RULE, rows, tuple(sections), opening, NAMES)
  return findings, functools.partial(write_page, page=page)


def _opening_arrays(opening: Demonstration) -> dict[str, Any]:
  """Return the numbers of the opening for curves.npz."""
  arrays = {name: getattr(opening, name) for name in ("x", "truth", "shown", "labels", "optimal")}
  for side in (opening.taught, opening.other):
    arrays |= {f"{side.name}/{name}": getattr(side, name) for name in ("labels", "boundaries", "distance")}
  return {f"opening/{name}": values for name, values in arrays.items()}


def _summarize(
  size: Size, finished: Mapping[str, Stored], findings: Sequence[Finding], failures: Mapping[str, str], seconds: float
) -> dict[str, Any]:
  verdicts = [each.verdict.verdict for each in findings]
  return {
    "size": size.name,
    "seeds": size.seeds,
    "verdicts": {name: verdicts.count(name) for name in VERDICTS},
    "figures": {name: {"seconds": each.seconds, "settings": each.settings} for name, each in finished.items()},
    "failures": {name: last_line(failure) for name, failure in failures.items()},
    "seconds": seconds,
  }


def last_line(failure: str) -> str:
  """Return the line of a traceback that says what was wrong."""
  return failure.strip().splitlines()[-1]


def _section(figure: Figure, stored: Stored | None, size: Size, failures: Mapping[str, str]) -> Section:
  head = (figure.name, figure.title, figure.paper, figure.shows)
  if stored is None:
    failure = failures.get(figure.name, "It was not finished: the same command resumes with it.")
    return Section(*head, {}, _command(size, figure), failure=last_line(failure))
  return Section(*head, stored.settings, _command(size, figure), stored.blocks)


def _command(size: Size, figure: Figure | None = None) -> str:
  """Return the command that makes a figure, or all of them, again."""
  words = ["python -m launch.reproduce"]
  words += [] if figure is None else [f"--figure={figure.name}"]
  words += [f"--seeds={size.seeds}"]
  words += [f"--{size.name}"] if size.name != "usual" else []
  words += [f"--seed={size.seed}"] if size.seed else []
  words += ["--mnist_folder=FOLDER"] if size.mnist_folder else []
  return " ".join(words)


def make_table(findings: Sequence[Finding]) -> Any:
  """Return the claims as a table of rich."""
  from rich import box
  from rich.table import Table

  table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
  for column in ("figure", "claim", "effect", "95 % interval", "seeds", "verdict"):
    table.add_column(column, overflow="fold")
  for finding in findings:
    row = finding.row()
    table.add_row(row.figure, row.claim, row.effect, row.interval, str(row.seeds), row.verdict)
    for each in row.readings:
      table.add_row("", f"  {each.name}: {each.setting}", each.effect, each.interval, "", each.verdict)
  return table
