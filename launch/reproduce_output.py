"""What `launch.reproduce` shows and writes, from the files of its figures."""

import datetime
import pathlib
import platform
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from last_jax import report
from last_jax.experiments import FIGURES, Figure, Size, Stored, Verdict, judge, load
from last_jax.experiments.claims import FAILS, HOLDS, OPEN, TEST, explain
from last_jax.report.page import ClaimRow, Page, Section, write_page

_TITLE = "Iterative teaching by label synthesis: the paper's figures and claims"
_INTRODUCTION = (
  "A teacher steers a learner to target parameters w* by choosing, in every iteration, the labels of random examples "
  "(LAST, NeurIPS 2021). Every figure of the paper was made again with last_jax, and every claim was judged by what "
  "came out. Nothing was tuned for a claim to hold."
)


class Judged(NamedTuple):
  """A claim with its figure."""

  figure: Figure
  verdict: Verdict
  explanation: str

  def row(self) -> ClaimRow:
    """As the page has it."""
    effect, interval = self.verdict.weakest.describe()
    claim, seeds = self.verdict.claim, self.verdict.weakest.seeds
    return ClaimRow(
      self.figure.name, self.figure.paper, claim.text, effect, interval, seeds, self.verdict.verdict, self.explanation
    )


def write_files(
  out: pathlib.Path,
  wanted: Sequence[Figure],
  size: Size,
  failures: Mapping[str, str],
  config: dict[str, Any],
  seconds: float,
) -> tuple[list[Judged], list[pathlib.Path]]:
  """Writes the page and what belongs to all figures; gives the judged claims, and the files.

  Args:
    out: the folder.
    wanted: the figures asked for. Others that are finished at the same size are shown as well.
    size: of all figures.
    failures: by figure, why there is none.
    config: the content of config.json.
    seconds: that this run took.
  """
  stored = {name: load(out / name, figure, size) for name, figure in FIGURES.items()}
  shown = [f for name, f in FIGURES.items() if stored[name] is not None or f in wanted]
  finished = {name: each for name, each in stored.items() if each is not None}
  judged = [
    Judged(FIGURES[name], verdict, explain(verdict, FIGURES[name].reason(verdict.claim.text)))
    for name, each in finished.items()
    for verdict in map(judge, each.claims)
  ]
  arrays = {f"{name}/{key}": values for name, each in finished.items() for key, values in each.arrays.items()}
  report.write_npz(out / "curves.npz", arrays)
  report.write_json(out / "claims.json", [_entry(each) for each in judged])
  report.write_json(out / "summary.json", _summarize(size, finished, judged, failures, seconds))
  report.write_json(out / "config.json", config)
  page = Page(
    _TITLE,
    _INTRODUCTION,
    {
      "date": f"{datetime.date.today():%Y-%m-%d}",
      "command": _command(size),
      "size": f"{size.name}, {size.seeds} seeds",
      "versions": ", ".join(f"{name} {version}" for name, version in config["versions"].items() if name != "device"),
      "machine": f"{platform.machine()}, {config['versions']['device']}",
    },
    TEST,
    tuple(each.row() for each in judged),
    tuple(_section(figure, finished.get(figure.name), size, failures) for figure in shown),
  )
  write_page(out / "index.html", page)
  return judged, [out / name for name in ("index.html", "claims.json", "curves.npz", "summary.json", "config.json")]


def _entry(judged: Judged) -> dict[str, Any]:
  """Of claims.json."""
  comparisons = [each._asdict() | {"verdict": each.verdict} for each in judged.verdict.comparisons]
  return judged.row()._asdict() | {"comparisons": comparisons}


def _summarize(
  size: Size, finished: Mapping[str, Stored], judged: Sequence[Judged], failures: Mapping[str, str], seconds: float
) -> dict[str, Any]:
  verdicts = [each.verdict.verdict for each in judged]
  return {
    "size": size.name,
    "seeds": size.seeds,
    "verdicts": {name: verdicts.count(name) for name in (HOLDS, FAILS, OPEN)},
    "figures": {name: {"seconds": each.seconds, "settings": each.settings} for name, each in finished.items()},
    "failures": {name: failure.strip().splitlines()[-1] for name, failure in failures.items()},
    "seconds": seconds,
  }


def _section(figure: Figure, stored: Stored | None, size: Size, failures: Mapping[str, str]) -> Section:
  settings = {} if stored is None else stored.settings
  failure = ""
  if stored is None:
    failure = failures.get(figure.name, "It was not finished: the same command goes on with it.")
    failure = failure.strip().splitlines()[-1]
  blocks = () if stored is None else stored.blocks
  return Section(
    figure.name, figure.title, figure.paper, figure.shows, settings, _command(size, figure), blocks, failure
  )


def _command(size: Size, figure: Figure | None = None) -> str:
  """What makes a figure, or all of them, again."""
  words = ["python -m launch.reproduce"]
  words += [] if figure is None else [f"--figure={figure.name}"]
  words += [f"--seeds={size.seeds}"]
  words += [f"--{size.name}"] if size.name != "usual" else []
  words += [f"--seed={size.seed}"] if size.seed else []
  words += ["--mnist_folder=FOLDER"] if size.mnist_folder else []
  return " ".join(words)


def make_table(judged: Sequence[Judged]) -> Any:
  """The table of claims."""
  from rich import box
  from rich.table import Table

  table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
  for column in ("figure", "claim", "effect", "95 % interval", "seeds", "verdict"):
    table.add_column(column, overflow="fold")
  for each in judged:
    row = each.row()
    table.add_row(row.figure, row.claim, row.effect, row.interval, str(row.seeds), row.verdict)
  return table
