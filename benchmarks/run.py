"""Times last_jax against eager PyTorch, both in this process and on the same problem, and in part against itself.

  python -m benchmarks.run [--suite=NAME,...] [--json=FILE]

Before anything is compared, both sides must have come to the same result. Needs PyTorch for the comparison:
pip install '.[bench]'. What is looked at is the ratio: times themselves depend on the machine and on who else uses it.
"""

import json
import math
import os
import pathlib
import platform
import sys
from collections.abc import Iterable
from importlib import metadata
from typing import Any

import jax
from absl import flags
from rich.table import Table

import last_jax as last
from benchmarks import harness, jobs, torch_baseline, training_jobs
from last_jax.data.files import replaced
from last_jax.report import check_writable
from launch.command import UsageError, make_console, run_command

_FAILED = 1


def define_flags() -> flags.FlagValues:
  """The command's flags."""
  values = flags.FlagValues()
  known = "; ".join(f"{job.name}: {job.description}" for job in known_jobs().values())
  flags.DEFINE_list("suite", list(known_jobs()), f"Jobs to run, separated by commas. {known}.", flag_values=values)
  flags.DEFINE_string("json", None, "A file to write every figure to.", flag_values=values)
  flags.DEFINE_string("out", None, "A directory to write the same to, as benchmarks.json.", flag_values=values)
  flags.DEFINE_integer("repetitions", 7, "How often each side is timed, in turns.", lower_bound=1, flag_values=values)
  flags.DEFINE_integer("seed", 0, "Of the problem and of the examples proposed.", lower_bound=0, flag_values=values)
  flags.DEFINE_integer(
    "torch_threads",
    None,
    "How many threads PyTorch uses. Unless given, as many as it does by default and one are tried; the faster counts.",
    lower_bound=1,
    flag_values=values,
  )
  flags.DEFINE_integer(
    "devices",
    os.cpu_count(),
    "Into how many devices JAX divides a CPU; students are split over them. As many as cores unless given.",
    lower_bound=1,
    flag_values=values,
  )
  flags.DEFINE_boolean(
    "tiny", False, "Problems so small that the times mean nothing: to see whether everything works.", flag_values=values
  )
  return values


def main(values: flags.FlagValues) -> int:
  """Runs the jobs; gives the exit status."""
  chosen = chosen_jobs(values.suite)
  last.prepare_cpu(values.devices)  # Where JAX has started already, as in a test, it keeps what it has.
  files = _files(values.json, values.out)
  against_torch = torch_baseline.is_installed()
  if not against_torch:
    print("PyTorch is not installed, so there are no comparisons, only our own times: pip install '.[bench]'")
  facts = machine_facts()
  results: list[harness.Comparison] = []
  for job in chosen:
    try:
      results += run_job(job, values, against_torch)
    except harness.ResultsDiffer as error:
      what = "teach" if isinstance(job, jobs.Job) else "compute"
      print(f"error: {job.name}: both sides do not {what} the same: {error}", file=sys.stderr)
      return _FAILED
  console = make_console()
  console.print(make_table(results))
  if any("temporary_bytes" in result.problem for result in results):
    console.print(make_memory_table(results))
  if facts["load_per_core"] is not None and facts["load_per_core"] > 0.5:
    print(f"Others were using this machine (load per core {facts['load_per_core']:.1f}): do not trust the ratios.")
  report = {"machine": facts, "tiny": values.tiny, "results": [result.to_json() for result in results]}
  for file in files:
    write_json(file, report)
    print(f"Written: {file}")
  return 0


def known_jobs() -> dict[str, jobs.Job | training_jobs.Job]:
  """All jobs, of teaching and of training, by name."""
  return {**jobs.JOBS, **training_jobs.JOBS}


def run_job(
  job: jobs.Job | training_jobs.Job, values: flags.FlagValues, against_torch: bool
) -> list[harness.Comparison]:
  """A job's figures, one for every size that it is timed at."""
  settings = {
    "seed": values.seed,
    "repetitions": values.repetitions,
    "against_torch": against_torch,
    "threads": values.torch_threads,
  }
  if isinstance(job, jobs.Job):
    return [jobs.run(job, jobs.TINY if values.tiny else None, **settings)]
  return job.run(training_jobs.Settings(tiny=values.tiny, **settings))


def chosen_jobs(names: Iterable[str]) -> list[jobs.Job | training_jobs.Job]:
  """The jobs of these names, in their order.

  Raises:
    UsageError: where there is no such job, or none was named.
  """
  wanted = list(dict.fromkeys(name.strip() for name in names))
  known = known_jobs()
  unknown = [name for name in wanted if name not in known]
  if unknown or not wanted:
    named = ", ".join(map(repr, unknown)) or "none"
    raise UsageError(f"--suite names {named}, but the jobs are {', '.join(known)}")
  return [known[name] for name in wanted]


def _files(json_file: str | None, directory: str | None) -> list[pathlib.Path]:
  """Where to write, made ready before minutes are spent on timing."""
  files = [] if json_file is None else [pathlib.Path(json_file)]
  files += [] if directory is None else [pathlib.Path(directory) / "benchmarks.json"]
  for file in files:
    if file.is_dir():
      raise UsageError(f"{file} is a directory: --json takes a file, --out a directory")
    try:
      check_writable(file.parent)
    except OSError as error:
      raise UsageError(f"cannot write to {file.parent}: {error.strerror}") from error
  return files


def machine_facts() -> dict[str, Any]:
  """What figures depend on, and nothing that says whose machine it is."""
  cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
  versions: dict[str, str | None] = {}
  for package in ("jax", "jaxlib", "numpy", "torch"):
    try:
      versions[package] = metadata.version(package)
    except metadata.PackageNotFoundError:
      versions[package] = None
  return {
    "cores": cores,
    "architecture": platform.machine(),
    "system": platform.system(),
    "python": platform.python_version(),
    "versions": versions,
    "jax_backend": jax.default_backend(),
    "xla_flags": os.environ.get("XLA_FLAGS", ""),
    "load_per_core": os.getloadavg()[0] / cores if hasattr(os, "getloadavg") else None,  # Before the first job.
  }


def make_table(results: Iterable[harness.Comparison]) -> Table:
  """A row for every comparison, and one for each baseline that was slower. In brackets: quartiles."""
  table = Table(title="last_jax against a baseline: medians of a call or an episode, with quartiles in brackets")
  for column in ("job", "sizes, and what against"):
    table.add_column(column)
  for column in ("last_jax, ms", "compiling, s", "baseline, ms", "ratio", "target"):
    table.add_column(column, justify="right")
  for result in results:
    table.add_row(
      result.job,
      _what(result),
      _milliseconds(result.ours),
      f"{result.ours.compile_seconds:.2f}",
      "-" if result.baseline is None else _milliseconds(result.baseline),
      _ratio(result),
      "-" if result.target_ratio is None else f"{'< ' if result.at_most else ''}{result.target_ratio:g}",
    )
    for other in result.other_baselines:
      ratio = f"{other.median / result.ours.median:.2f}"
      table.add_row("", f"against {other.name}", "", "", _milliseconds(other), ratio, "")
  return table


def make_memory_table(results: Iterable[harness.Comparison]) -> Table:
  """What gradients in segments and those for which everything is kept need of memory, and in what time.

  Growth is the power of the horizon that memory grew with since the last row: 1 in proportion to it, 0.5 as its root.
  """
  table = Table(title="Temporary memory of an episode's gradient, in KiB, and its time")
  columns = (
    "horizon",
    "segment",
    "kept",
    "growth",
    "in segments",
    "growth",
    "kept, ms",
    "in segments, ms",
    "times as long",
  )
  for column in columns:
    table.add_column(column, justify="right")
  before: dict[str, int] | None = None
  for result in results:
    if "temporary_bytes" not in result.problem:
      continue
    sizes, memory = result.problem["sizes"], result.problem["temporary_bytes"]
    now = memory | {"horizon": sizes["horizon"]}
    growth = {name: "-" if before is None else f"{_growth(before, now, name):.2f}" for name in memory}
    before = now
    assert result.baseline is not None, "segments are compared with none"
    table.add_row(
      str(sizes["horizon"]),
      str(sizes["segment"]),
      *(cell for name in ("kept", "segments") for cell in (f"{memory[name] / 1024:.0f}", growth[name])),
      _milliseconds(result.baseline),
      _milliseconds(result.ours),
      f"{result.ours.median / result.baseline.median:.2f}",
    )
  return table


def _growth(before: dict[str, int], now: dict[str, int], name: str) -> float:
  return math.log(now[name] / before[name]) / math.log(now["horizon"] / before["horizon"])


def _what(result: harness.Comparison) -> str:
  sizes = ", ".join(f"{size} {name.replace('_', ' ')}" for name, size in result.problem["sizes"].items())
  return sizes if result.baseline is None else f"{sizes}\nagainst {result.baseline.name}"


def _milliseconds(timing: harness.Timing) -> str:
  median, lower, upper = (1e3 * value for value in (timing.median, timing.lower_quartile, timing.upper_quartile))
  places = 1 if median >= 10 else 3
  # Escaped: rich takes brackets for markup.
  return rf"{median:.{places}f} \[{lower:.{places}f}, {upper:.{places}f}]"


def _ratio(result: harness.Comparison) -> str:
  if result.ratio is None:
    return "-"
  return rf"{result.ratio:.2f} \[{result.ratio_lower_quartile:.2f}, {result.ratio_upper_quartile:.2f}]"


def write_json(file: pathlib.Path, value: Any) -> None:
  """Writes all of it or nothing: who reads meanwhile sees the old file or the new one."""
  text = json.dumps(value, indent=2, allow_nan=False)
  with replaced(file) as temporary:
    temporary.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
  sys.exit(run_command(main, define_flags(), __doc__ or "", sys.argv))
