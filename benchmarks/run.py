"""Time last_jax against PyTorch, NumPy and C on the same cases in this process, and in part against itself.

  python -m benchmarks.run
      Everything, in about half an hour: a table, runs/benchmarks/benchmarks.json, and plots of scaling.

  python -m benchmarks.run --suite=greedy,imt --repetitions=21
      Some jobs, more precisely.

  python -m benchmarks.run --tiny
      So small that times mean nothing, in a minute or two: to test that everything works.

  python -m benchmarks.compare BEFORE.json AFTER.json
      Two such runs, side by side.

Results of both sides must be equal before they are compared. The measure is the ratio of two times: times themselves
depend on the machine and its other users. Each is of one unit of work, as one step of a student. Most comparisons need
PyTorch (pip install '.[bench]'), some a C compiler; baselines that are not available are named and left out.

The file is written after every job. After Ctrl-C it holds the jobs that are finished.
"""

import dataclasses
import datetime
import os
import pathlib
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import last_jax as last
from benchmarks import baselines, machine, plots, tables
from benchmarks.equality import ResultsDiffer
from benchmarks.harness import Job, Options
from benchmarks.jobs import JOBS
from benchmarks.records import Measurement
from last_jax.checks import suggest
from last_jax.tools import check_writable, write_json
from launch.command import FAILED, UsageError, run_command, user_errors
from launch.console import Console
from launch.flags import Flags
from launch.stopping import INTERRUPTED


def define_flags() -> Flags:
  """Return the command's flags."""
  values = Flags()
  values.group("What is timed, and how often", "--suite=greedy,imt --repetitions=21")
  values.several("suite", ["all"], "Jobs to run, separated by commas: --list says what they are.")
  values.whole("repetitions", 7, "Number of timed calls of each side, in turns.")
  values.whole("seed", 0, "Of the cases and of the examples proposed.", least=0, most=2**31 - 1)
  values.switch("tiny", False, "Cases so small that times mean nothing.")
  values.group("Threads and other environments", "--devices=2 --torch_threads=1")
  values.whole(
    "torch_threads", None,
    "Number of threads of PyTorch. Unless given, its default and one are tried; the faster counts.",
  )  # fmt: skip
  values.whole(
    "devices", None,
    "Number of devices that JAX divides a CPU into; students are split over them. One per core unless given.",
  )  # fmt: skip
  values.text(
    "neural_tangents", None,
    "Python interpreter of an environment with neural_tangents, to which `tangent_kernel` is then compared.",
  )  # fmt: skip
  values.group("Files", "--json=before.json")
  values.text("out", os.path.join("runs", "benchmarks"), "Folder for benchmarks.json and the plots.")
  values.text("json", None, "Another file for the content of benchmarks.json.")
  return values


def main(values: Flags) -> int:
  """Run the jobs and return the exit status."""
  chosen = choose_jobs(values.suite)
  folder, files = _prepare_files(values.out, values.json)
  if values.tiny:
    machine.compile_quickly()
  with user_errors({"devices": "devices"}):
    last.devices.prepare(devices=values.devices or (None if last.devices.has_started() else last.devices.num_cores()))
  console = Console()
  for why in baselines.missing():
    console.say(why)
  facts = machine.facts()
  options = Options(values.seed, values.repetitions, values.torch_threads, values.tiny)
  options = dataclasses.replace(options, neural_tangents=values.neural_tangents)
  if values.tiny:
    options = dataclasses.replace(options, rest=0.0)

  def save(done: Done) -> None:
    report = {
      "date": datetime.date.today().isoformat(),
      "machine": facts,
      "settings": {"seed": values.seed, "repetitions": values.repetitions, "tiny": values.tiny},
      "interrupted": done.interrupted,
      "failed": done.failed,
      "measurements": [measured.to_json() for measured in done.measured],
    }
    for file in files:
      write_json(file, report)

  done = run_jobs(chosen, options, console, save)
  _show(done, facts, values.tiny, console)
  if not done.measured and not done.failed:
    console.say("stopped before any job was finished: nothing was written")
    return INTERRUPTED
  save(done)
  written = [*files, *plots.write_plots(folder, done.measured)]
  if done.interrupted:
    console.say("stopped: the finished jobs are saved")
  console.say("wrote " + ", ".join(map(str, written)))
  return INTERRUPTED if done.interrupted else FAILED if done.failed else 0


def command(arguments: Sequence[str]) -> int:
  """Run the command with arguments as in `sys.argv`; return the exit status."""
  jobs = {"Jobs": {job.name: job.description for job in JOBS.values()}}
  return run_command(main, define_flags(), __doc__ or "", arguments, jobs)


def choose_jobs(names: Iterable[str]) -> list[Job]:
  """Return the jobs of these names, in their order.

  Raises:
    UsageError: an unknown name, or none.
  """
  wanted = list(dict.fromkeys(name.strip() for name in names))
  wanted = list(JOBS) if wanted == ["all"] else wanted
  unknown = [name for name in wanted if name not in JOBS]
  if unknown or not wanted:
    named = ", ".join(map(repr, unknown)) or "none"
    raise UsageError(
      f"--suite names {named}, but the jobs are {', '.join(JOBS)}{suggest(unknown and unknown[0], JOBS)}"
    )
  return [JOBS[name] for name in wanted]


def _prepare_files(out: str, json_file: str | None) -> tuple[pathlib.Path, list[pathlib.Path]]:
  """Return the folder and the JSON files, checked before minutes are spent on timing."""
  folder = pathlib.Path(out)
  files = {"out": folder / "benchmarks.json"} | ({} if json_file is None else {"json": pathlib.Path(json_file)})
  for flag, file in files.items():
    if os.path.isdir(file):
      raise UsageError(f"--{flag}: {file} is a directory: --json takes a file, --out a directory")
    try:
      check_writable(file.parent)
      file.exists()  # Raises where it can be no name of a file.
    except (OSError, ValueError) as error:
      raise UsageError(f"--{flag}: cannot write to {file.parent}: {error}") from error
  return folder, [*files.values()]


class Done(NamedTuple):
  """The jobs that were run."""

  measured: list[Measurement]
  failed: dict[str, str]  # The error, by the name of the job.
  interrupted: bool


def run_jobs(jobs: Sequence[Job], options: Options, console: Console, save: Callable[[Done], None]) -> Done:
  """Run one job after the other. A job that fails does not stop the others; Ctrl-C does.

  Args:
    jobs: the jobs.
    options: how to measure.
    console: for progress.
    save: called after every job, so that nothing is lost if the process is killed.
  """
  measured: list[Measurement] = []
  failed: dict[str, str] = {}
  try:
    for place, job in enumerate(jobs, 1):
      name, begin = f"{place}/{len(jobs)} {job.name}", time.monotonic()
      try:
        with console.doing(name):
          measured += job.measure(options)
      except ResultsDiffer as error:
        failed[job.name] = str(error)
        print(f"error: {job.name}: two sides do not compute the same: {error}", file=sys.stderr)
      except Exception as error:  # The other jobs may be hours of work.
        failed[job.name] = f"{type(error).__name__}: {error}"
        traceback.print_exc()
      save(Done(measured, failed, interrupted=place < len(jobs)))
      console.say(f"{name}: {time.monotonic() - begin:.0f} s")
  except KeyboardInterrupt:
    return Done(measured, failed, interrupted=True)
  return Done(measured, failed, interrupted=False)


def _show(done: Done, facts: dict[str, Any], tiny: bool, console: Console) -> None:
  if done.measured:
    console.print(tables.make_table(done.measured))
  if tiny:
    console.say("The cases were tiny: these times mean nothing.")
  elif facts["load_per_core"] is not None and facts["load_per_core"] > 0.5:
    console.say(
      f"Others were using this machine (load per core {facts['load_per_core']:.1f}): do not trust the ratios."
    )


if __name__ == "__main__":
  sys.exit(command(sys.argv))
