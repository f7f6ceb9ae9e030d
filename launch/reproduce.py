"""The paper, figure by figure: every experiment, every claim judged, one page to look at.

  python -m launch.reproduce
      All figures at a size that a laptop does in some minutes. Ends with a table of claims and with
      runs/reproduce/index.html, one file that opens offline: the claims, then every figure with its settings.

  python -m launch.reproduce --figure=lsr,theory
      Some of them. What is finished in --out at the same size stays on the page.

  python -m launch.reproduce --full --mnist_folder=mnist --out=runs/full
      The paper's sizes, 20 seeds, with all of MNIST: about an hour on two cores.

  python -m launch.reproduce --quick
      A look at how everything works, in a minute or two; too small for any verdict.

Figures are made in processes of their own, several at a time (--jobs). One that fails does not take the others with it:
the page says why it is missing, and the exit status is 1. Stopped and started again, the command goes on where it was:
figures that are finished with the same settings are not made again (--redo makes them).

Into --out go index.html, claims.json, curves.npz (arrays FIGURE/CHART/METHOD/values [seeds, records], and what is along
the x axis), summary.json and config.json; and into a folder for each figure its own curves.npz and pictures.
"""

import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

from absl import flags

from last_jax import checks
from last_jax.experiments import FIGURES, SEEDS, Figure, Size, load
from launch import command, problem
from launch.progress import make_progress
from launch.reproduce_output import make_table, write_files
from launch.reproduce_work import Finished, run_figures

FAILED = 1


def make_flags() -> flags.FlagValues:
  """The flags of this command."""
  values = flags.FlagValues()

  def define(kind: Any, name: str, default: Any, explanation: str, **settings: Any) -> None:
    kind(name, default, help=explanation, flag_values=values, **settings)

  whole, text, switch = flags.DEFINE_integer, flags.DEFINE_string, flags.DEFINE_boolean
  define(flags.DEFINE_list, "figure", ["all"], f"Which, one or more of {', '.join(FIGURES)}; or all.")
  define(
    whole, "seeds", None,
    f"Students (for learned teachers: teachers) that each method is tried on. Unless given: {SEEDS['usual']}, "
    f"{SEEDS['full']} with --full, {SEEDS['quick']} with --quick. No claim is judged with fewer than six.",
    lower_bound=1,
  )  # fmt: skip
  define(switch, "quick", False, "So small that it only shows that everything works.")
  define(switch, "full", False, "The paper's sizes.")
  define(text, "mnist_folder", None, "Folder with the four original files of MNIST, in place of the subset shipped.")
  define(
    whole, "jobs", None,
    "Figures made at the same time. Unless given: one for each core, at most four. With 1, wall times are not "
    "disturbed by other figures.", lower_bound=1,
  )  # fmt: skip
  define(switch, "redo", False, "Make figures again that are finished.")
  define(
    whole, "seed", 0, "The first of the seeds: of synthetic data, starts, examples and training.", lower_bound=0,
    upper_bound=2**31 - 1,
  )  # fmt: skip
  define(text, "out", os.path.join("runs", "reproduce"), "Folder for the page and all other files.")
  return values


def main(arguments: Sequence[str]) -> int:
  """Runs the command with arguments as in `sys.argv`; gives the exit status."""
  return command.run_command(_reproduce, make_flags(), __doc__ or "", arguments)


def run() -> int:
  """The installed command, `last-reproduce`."""
  return main(sys.argv)


def _reproduce(values: flags.FlagValues) -> int:
  with command.user_errors():
    size, wanted = _read(values)
    problem.check_out(values.out)
  console = command.make_console()
  out = pathlib.Path(values.out)
  left = [figure for figure in wanted if values.redo or load(out / figure.name, figure, size) is None]
  for figure in wanted:
    if figure not in left:
      console.print(f"{figure.name}: finished before, kept (--redo makes it again)")
  begin = time.perf_counter()
  finished, interrupted = _run(left, size, out, values.jobs, console)
  failures = {each.name: each.failure for each in finished if each.failure}
  config = command.make_config("launch.reproduce", values, {"seeds": size.seeds}, {})
  judged, written = write_files(out, wanted, size, failures, config, time.perf_counter() - begin)
  if judged:
    console.print(make_table(judged))
  for name, failure in failures.items():
    console.print(f"{name} failed: {failure.strip().splitlines()[-1]}", markup=False, soft_wrap=True)
  if interrupted:
    console.print("stopped: what is finished is kept; the same command goes on with the rest")
  console.print("wrote " + ", ".join(str(path) for path in written), markup=False, soft_wrap=True)
  return command.INTERRUPTED if interrupted else FAILED if failures else 0


def _read(values: flags.FlagValues) -> tuple[Size, list[Figure]]:
  """The size and the figures that the flags name."""
  if values.quick and values.full:
    raise ValueError("--quick and --full exclude each other")
  name = "quick" if values.quick else "full" if values.full else "usual"
  names = list(FIGURES) if "all" in values.figure else list(dict.fromkeys(values.figure))
  if not names:
    raise ValueError(f"--figure is empty: use all, or some of {', '.join(FIGURES)}")
  for each in names:
    checks.check_name("--figure", each, FIGURES)
  problem.check_mnist_folder(values.mnist_folder)
  size = Size(name, values.seeds or SEEDS[name], values.mnist_folder, values.seed)
  return size, [FIGURES[each] for each in names]


def _run(
  figures: Sequence[Figure], size: Size, out: pathlib.Path, jobs: int | None, console: Any
) -> tuple[list[Finished], bool]:
  """Makes figures, with progress of each and of all; gives what is finished, and whether Ctrl-C ended it."""
  finished: list[Finished] = []
  jobs = jobs or min(4, os.cpu_count() or 1)
  with make_progress(console) as progress:
    overall = progress.add_task("all figures", total=sum(figure.weight for figure in figures) or 1.0)
    bars: dict[str, Any] = {}
    shares: dict[str, float] = {}  # Of every figure, how much of it is done.

    def show() -> None:
      progress.update(overall, completed=sum(FIGURES[name].weight * share for name, share in shares.items()))

    def on_progress(figure: Figure, text: str, share: float) -> None:
      if figure.name not in bars:
        bars[figure.name] = progress.add_task("", total=1.0)
      shares[figure.name] = share
      progress.update(bars[figure.name], completed=share, description=f"  {figure.name}: {text}")
      show()

    def on_finished(result: Finished) -> None:
      finished.append(result)
      shares[result.name] = 1.0
      progress.remove_task(bars.pop(result.name))
      show()
      outcome = "failed" if result.failure else "finished"
      console.print(f"{result.name}: {outcome} after {result.seconds:.0f} s ({len(finished)} of {len(figures)})")

    try:
      run_figures(figures, size, out, jobs, on_progress, on_finished)
    except KeyboardInterrupt:
      return finished, True
  return finished, False


if __name__ == "__main__":
  sys.exit(run())
