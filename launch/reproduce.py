"""The paper, figure by figure: every experiment, a verdict on every claim, one page.

  python -m launch.reproduce
      All figures at a size that a laptop does in some minutes. Ends with a table of claims and with
      runs/reproduce/index.html, one file that opens offline: what label synthesis is, in motion; contents with a
      filter; the claims; and every figure with its settings.

  python -m launch.reproduce --figure=lsr,theory
      Some of them. Figures that were finished in --out with the same size and code stay on the page.

  python -m launch.reproduce --full --mnist_folder=mnist --out=runs/full
      The paper's sizes, 20 seeds, with all of MNIST: about an hour on two cores.

  python -m launch.reproduce --quick
      A check that everything works, in a minute or two; too small for any verdict.

Figures are made in processes of their own, several at a time (--jobs). If one fails, the others are still made: the
page says why it is missing, and the exit status is 1. Stopped and started again, the command resumes: figures that were
finished with the same settings, code and versions are not made again (--redo makes them).

--out receives index.html, claims.json, curves.npz (arrays FIGURE/CHART/METHOD/values [seeds, records], and those along
the x axis; opening/... holds those of the motion), summary.json and config.json; and for each figure a folder with its
own curves.npz and pictures.
"""

import contextlib
import os
import pathlib
import sys
import time
from collections.abc import Sequence

from last_jax import checks, reproduction
from last_jax.io import remove_temporaries
from last_jax.reproduction import FIGURES, SEEDS, Figure, Finished, Size, report

from . import command, datasets, lock, stopping
from .console import Console, Forecast, Task
from .flags import Flags
from .folder import check_writable, make_config
from .output import draw_all, say_written

_TABLES = {"Figures": {each.name: f"{each.title} ({each.paper})." for each in FIGURES.values()}}


def make_flags() -> Flags:
  """Return the flags of this command."""
  values = Flags()
  values.group("What is made, and its size", "--figure=lsr,theory --seeds=10")
  values.several("figure", ["all"], f"One or more of {', '.join(FIGURES)}; or all. --list says what they show.")
  values.whole(
    "seeds", None,
    f"Students (for learned teachers: teachers) on which each method is tried. Default: {SEEDS['usual']}, "
    f"{SEEDS['full']} with --full, {SEEDS['quick']} with --quick. Fewer than six give no verdict.",
  )  # fmt: skip
  values.switch("quick", False, "Tiny sizes, which only show that everything works.")
  values.switch("full", False, "The paper's sizes.")
  values.text("mnist_folder", None, "Folder with the four original files of MNIST, in place of the packaged subset.")
  values.whole(
    "seed", 0, "The first of the seeds: of synthetic data, starts, examples and training.", least=0, most=2**31 - 1
  )
  values.group("How it is made, and where", f"--jobs=1 --out={os.path.join('runs', 'again')}")
  values.whole(
    "jobs", None,
    "Number of figures made at the same time. Default: one for each core, at most four. With 1, other figures do not "
    "disturb wall times.",
  )  # fmt: skip
  values.switch("redo", False, "Make finished figures again.")
  values.text("out", os.path.join("runs", "reproduce"), "Folder for the page and all other files.")
  return values


def main(arguments: Sequence[str]) -> int:
  """Run the command with arguments as in `sys.argv`, and return the exit status."""
  return command.run_command(_reproduce, make_flags(), __doc__ or "", arguments, _TABLES)


def run() -> int:
  """Run the installed command, `last-reproduce`."""
  return main(sys.argv)


def _reproduce(values: Flags) -> int:
  with command.user_errors():
    size, wanted = _read(values)
    check_writable(values.out)
  console, out = Console(), pathlib.Path(values.out)
  with contextlib.ExitStack() as stack:
    with command.user_errors():
      held = stack.enter_context(lock.hold(out))
    remove_temporaries(out)
    return _make_all(values, size, wanted, held, console)


def _make_all(values: Flags, size: Size, wanted: Sequence[Figure], held: lock.Lock, console: Console) -> int:
  """Make the figures that are not finished, and the report on all; return the exit status."""
  out = pathlib.Path(values.out)
  left = [each for each in wanted if values.redo or reproduction.load(out / each.name, each, size) is None]
  for figure in wanted:
    if figure not in left:
      console.print(f"{figure.name}: already finished (--redo makes it again)")
  begin = time.perf_counter()
  finished, stopped = _make_figures(left, size, out, values.jobs or min(4, os.cpu_count() or 1), console)
  failures = {each.figure.name: each.failure for each in finished if each.failure}
  config = make_config("launch.reproduce", values, {"seeds": size.seeds}, {})
  held.check()
  findings, write_page = reproduction.write_report(out, wanted, size, failures, config, time.perf_counter() - begin)
  if findings:
    console.print(report.make_table(findings))
  for name, failure in failures.items():
    console.say(f"{name} failed: {report.last_line(failure)}")
  with console.doing("writing the page"):
    status = draw_all({out / "index.html": write_page})
  if stopped:
    console.say("stopped: finished figures stay, and the same command resumes with the rest")
  say_written(console, [out / name for name in report.FILES])
  return stopped or (command.FAILED if failures else status)


def _read(values: Flags) -> tuple[Size, list[Figure]]:
  """Return the size and the figures that the flags name."""
  if values.quick and values.full:
    raise ValueError("--quick and --full exclude each other")
  name = "quick" if values.quick else "full" if values.full else "usual"
  names = list(FIGURES) if "all" in values.figure else list(dict.fromkeys(values.figure))
  if not names:
    raise ValueError(f"--figure is empty: use all, or some of {', '.join(FIGURES)}")
  for each in names:
    checks.check_name("--figure", each, FIGURES)
  datasets.check_mnist_folder(values.mnist_folder)
  size = Size(name, values.seeds or SEEDS[name], values.mnist_folder, values.seed)
  return size, [FIGURES[each] for each in names]


def _make_figures(
  figures: Sequence[Figure], size: Size, out: pathlib.Path, jobs: int, console: Console
) -> tuple[list[Finished], int]:
  """Make figures with a progress bar for each and for all.

  Return the finished ones, and the exit status if Ctrl-C or SIGTERM has ended it, otherwise 0.
  """
  finished: list[Finished] = []
  total = sum(figure.weight for figure in figures) or 1.0
  with contextlib.ExitStack() as stack:
    overall = stack.enter_context(console.doing("all figures", total=total))
    forecast = Forecast(1)
    bars: dict[str, tuple[contextlib.ExitStack, Task]] = {}
    done = dict.fromkeys((figure.name for figure in figures), 0.0)  # The share of each figure.

    def advance(figure: Figure, share: float) -> None:
      done[figure.name] = share
      weight = sum(each.weight * done[each.name] for each in figures)
      overall.update(weight, left=forecast.left(weight / total, compiling=0.0))

    def on_progress(figure: Figure, text: str, share: float) -> None:
      if figure.name not in bars:
        own = stack.enter_context(contextlib.ExitStack())
        bars[figure.name] = own, own.enter_context(console.doing(figure.name, total=1.0))
      bars[figure.name][1].update(share, f"  {figure.name}: {text}")
      advance(figure, share)

    def on_finished(result: Finished) -> None:
      finished.append(result)
      bars.pop(result.figure.name)[0].close()
      advance(result.figure, 1.0)
      outcome = "failed" if result.failure else "finished"
      console.print(f"{result.figure.name}: {outcome} after {result.seconds:.0f} s ({len(finished)} of {len(figures)})")

    try:
      reproduction.run_figures(figures, size, out, jobs, on_progress, on_finished)
    except KeyboardInterrupt as error:
      return finished, stopping.status_of(error)
  return finished, 0


if __name__ == "__main__":
  sys.exit(run())
