"""Times last_jax against PyTorch, NumPy and C, all on the same problems in this process, and in part against itself.

  python -m benchmarks.run
      Everything, in about half an hour: a table, runs/benchmarks/benchmarks.json, and pictures of how times grow.

  python -m benchmarks.run --suite=greedy,imt --repetitions=21
      Some jobs, more exactly.

  python -m benchmarks.run --tiny
      So small that times mean nothing, in a minute: to see whether everything works.

Before anything is compared, both sides must have come to the same results. What is looked at is the ratio of two times:
times themselves depend on the machine and on who else uses it. Each is of one unit of work, as one step of a student.
PyTorch is needed for most comparisons (pip install '.[bench]'), a C compiler for some; what is missing is said and left
out.

The file is written after every job. Ctrl-C keeps those that are finished.
"""

import os
import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from absl import flags

import last_jax as last
from benchmarks import baselines, machine, plots, tables
from benchmarks.equality import ResultsDiffer
from benchmarks.jobs import JOBS, Job, Settings
from benchmarks.records import Measurement
from last_jax.report import check_writable, write_json
from launch.command import FAILED, INTERRUPTED, UsageError, make_console, run_command
from launch.progress import make_progress


def define_flags() -> flags.FlagValues:
  """The command's flags."""
  values = flags.FlagValues()

  def define(kind: Any, name: str, default: Any, explanation: str, **settings: Any) -> None:
    kind(name, default, help=explanation, flag_values=values, **settings)

  whole, text = flags.DEFINE_integer, flags.DEFINE_string
  known = "; ".join(f"{job.name}: {job.description}" for job in JOBS.values())
  define(flags.DEFINE_list, "suite", list(JOBS), f"Jobs to run, separated by commas. {known}.")
  define(text, "out", os.path.join("runs", "benchmarks"), "Folder for benchmarks.json and the pictures.")
  define(text, "json", None, "A file to write all figures to as well.")
  define(whole, "repetitions", 7, "How often each side is timed, in turns.", lower_bound=1)
  define(whole, "seed", 0, "Of the problems and of the examples proposed.", lower_bound=0, upper_bound=2**31 - 1)
  define(
    whole,
    "torch_threads",
    None,
    "How many threads PyTorch uses. Unless given, as many as it does by default and one are tried; the faster counts.",
    lower_bound=1,
  )
  define(
    whole,
    "devices",
    last.devices.num_cores(),
    "Into how many devices JAX divides a CPU; students are split over them. As many as cores unless given.",
    lower_bound=1,
  )
  define(flags.DEFINE_boolean, "tiny", False, "Problems so small that times mean nothing.")
  return values


def main(values: flags.FlagValues) -> int:
  """Runs the jobs; gives the exit status."""
  chosen = chosen_jobs(values.suite)
  folder, files = _places(values.out, values.json)
  if values.tiny:
    machine.compile_quickly()
  last.devices.prepare(devices=values.devices)  # Where JAX has started already, as in a test, it keeps what it has.
  console = make_console()
  for why in baselines.missing():
    console.print(why, markup=False, soft_wrap=True)
  facts = machine.facts()
  settings = Settings(values.seed, values.repetitions, values.torch_threads, values.tiny)

  def keep(done: Done) -> None:
    report = {
      "machine": facts,
      "settings": {"seed": values.seed, "repetitions": values.repetitions, "tiny": values.tiny},
      "interrupted": done.interrupted,
      "failed": done.failed,
      "measurements": [measured.to_json() for measured in done.measured],
    }
    for file in files:
      write_json(file, report)

  done = run_jobs(chosen, settings, console, keep)
  _show(done, facts, values.tiny, console)
  if not done.measured and not done.failed:
    console.print("stopped before any job was finished: nothing was written")
    return INTERRUPTED
  keep(done)
  written = [*files, *plots.write_plots(folder, done.measured)]
  if done.interrupted:
    console.print("stopped: what is finished is kept")
  console.print("wrote " + ", ".join(map(str, written)), markup=False, soft_wrap=True)
  return INTERRUPTED if done.interrupted else FAILED if done.failed else 0


def chosen_jobs(names: Iterable[str]) -> list[Job]:
  """The jobs of these names, in their order.

  Raises:
    UsageError: where there is no such job, or none was named.
  """
  wanted = list(dict.fromkeys(name.strip() for name in names))
  unknown = [name for name in wanted if name not in JOBS]
  if unknown or not wanted:
    named = ", ".join(map(repr, unknown)) or "none"
    raise UsageError(f"--suite names {named}, but the jobs are {', '.join(JOBS)}")
  return [JOBS[name] for name in wanted]


def _places(out: str, json_file: str | None) -> tuple[pathlib.Path, list[pathlib.Path]]:
  """The folder and the files to write, made ready before minutes are spent on timing."""
  folder = pathlib.Path(out)
  files = [folder / "benchmarks.json"] + ([] if json_file is None else [pathlib.Path(json_file)])
  for file in files:
    if file.is_dir():
      raise UsageError(f"{file} is a directory: --json takes a file, --out a directory")
    try:
      check_writable(file.parent)
    except OSError as error:
      raise UsageError(f"cannot write to {file.parent}: {error.strerror}") from error
  return folder, files


class Done(NamedTuple):
  """What running jobs came to."""

  measured: list[Measurement]
  failed: dict[str, str]  # Why, by the name of the job.
  interrupted: bool


def run_jobs(jobs: Sequence[Job], settings: Settings, console: Any, keep: Callable[[Done], None]) -> Done:
  """Runs one job after the other. One that fails does not take the others with it; Ctrl-C ends it.

  Args:
    jobs: which.
    settings: how.
    console: what to print to.
    keep: is given what there is after every job, so that nothing is lost if the process is ended by force.
  """
  measured: list[Measurement] = []
  failed: dict[str, str] = {}
  try:
    with make_progress(console) as progress:
      bar = progress.add_task("", total=len(jobs))
      for place, job in enumerate(jobs, 1):
        name, begin = f"{place}/{len(jobs)} {job.name}", time.perf_counter()
        progress.update(bar, description=name)
        try:
          measured += job.measure(settings)
        except ResultsDiffer as error:
          failed[job.name] = str(error)
          print(f"error: {job.name}: two sides do not compute the same: {error}", file=sys.stderr)
        except Exception as error:  # Hours may have gone into what is finished.
          failed[job.name] = f"{type(error).__name__}: {error}"
          traceback.print_exc()
        keep(Done(measured, failed, interrupted=place < len(jobs)))
        progress.advance(bar)
        console.print(f"{name}: {time.perf_counter() - begin:.0f} s", markup=False)
  except KeyboardInterrupt:
    return Done(measured, failed, interrupted=True)
  return Done(measured, failed, interrupted=False)


def _show(done: Done, facts: dict[str, Any], tiny: bool, console: Any) -> None:
  compared = [measured for measured in done.measured if measured.axis is None]
  along_axes = [measured for measured in done.measured if measured.axis is not None]
  if compared:
    console.print(tables.make_table(compared))
  if along_axes:
    console.print(tables.make_scaling_table(along_axes))
  if tiny:
    console.print("The problems were tiny: these times mean nothing.")
  elif facts["load_per_core"] is not None and facts["load_per_core"] > 0.5:
    console.print(
      f"Others were using this machine (load per core {facts['load_per_core']:.1f}): do not trust the ratios."
    )


if __name__ == "__main__":
  sys.exit(run_command(main, define_flags(), __doc__ or "", sys.argv))
