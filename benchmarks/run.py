"""Times last_jax against batched eager PyTorch, both in this process and on the same problem.

  python -m benchmarks.run [--suite=NAME,...] [--json=FILE]

Before anything is compared, both sides must have come to the same result. Needs PyTorch for the comparison:
pip install '.[bench]'. What is looked at is the ratio: times themselves depend on the machine and on who else uses it.
"""

import json
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
from benchmarks import harness, jobs, torch_baseline
from last_jax.data.files import replaced
from last_jax.report import check_writable
from launch.command import UsageError, make_console, run_command

_FAILED = 1


def define_flags() -> flags.FlagValues:
  """The command's flags."""
  values = flags.FlagValues()
  known = "; ".join(f"{job.name}: {job.description}" for job in jobs.JOBS.values())
  flags.DEFINE_list("suite", list(jobs.JOBS), f"Jobs to run, separated by commas. {known}.", flag_values=values)
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
  results = []
  for job in chosen:
    try:
      result = jobs.run(
        job,
        jobs.TINY if values.tiny else None,
        seed=values.seed,
        repetitions=values.repetitions,
        against_torch=against_torch,
        threads=values.torch_threads,
      )
    except harness.ResultsDiffer as error:
      print(f"error: {job.name}: both sides do not teach the same: {error}", file=sys.stderr)
      return _FAILED
    results.append(result)
  make_console().print(make_table(results))
  if facts["load_per_core"] is not None and facts["load_per_core"] > 0.5:
    print(f"Others were using this machine (load per core {facts['load_per_core']:.1f}): do not trust the ratios.")
  report = {"machine": facts, "tiny": values.tiny, "results": [result.to_json() for result in results]}
  for file in files:
    write_json(file, report)
    print(f"Written: {file}")
  return 0


def chosen_jobs(names: Iterable[str]) -> list[jobs.Job]:
  """The jobs of these names, in their order.

  Raises:
    UsageError: where there is no such job, or none was named.
  """
  wanted = list(dict.fromkeys(name.strip() for name in names))
  unknown = [name for name in wanted if name not in jobs.JOBS]
  if unknown or not wanted:
    named = ", ".join(map(repr, unknown)) or "none"
    raise UsageError(f"--suite names {named}, but the jobs are {', '.join(jobs.JOBS)}")
  return [jobs.JOBS[name] for name in wanted]


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
  """One row a job. In brackets: quartiles."""
  table = Table(title="last_jax against batched eager PyTorch: medians, with quartiles in brackets")
  for column in ("job", "sizes"):
    table.add_column(column)
  for column in ("last_jax, ms", "compiling, s", "baseline, ms", "ratio", "target"):
    table.add_column(column, justify="right")
  for result in results:
    table.add_row(
      result.job,
      ", ".join(f"{size} {name}" for name, size in result.problem["sizes"].items()),
      _milliseconds(result.ours),
      f"{result.ours.compile_seconds:.2f}",
      "-" if result.baseline is None else _milliseconds(result.baseline),
      _ratio(result),
      "-" if result.target_ratio is None else f"{result.target_ratio:g}",
    )
  return table


def _milliseconds(timing: harness.Timing) -> str:
  median, lower, upper = (1e3 * value for value in (timing.median, timing.lower_quartile, timing.upper_quartile))
  return rf"{median:.1f} \[{lower:.1f}, {upper:.1f}]"  # Escaped: rich takes brackets for markup.


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
