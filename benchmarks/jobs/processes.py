"""Students split over two processes, one on each core, against one process on one core."""

import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks import cases, equality, harness
from benchmarks.harness import Job, Options
from benchmarks.jobs.teaching import UNIT
from benchmarks.records import Measurement, Target

_TINY, _SIZES = {"students": 8, "steps": 20, "pool": 50}, {"students": 1000, "steps": 1000}
_TARGET = Target(1.6)
_PREPARED = ("XLA_FLAGS", "PJRT_NPROC")  # What `devices.prepare` sets in the environment, which processes inherit.
_END_SECONDS = 120  # For a process to end.


@dataclasses.dataclass(frozen=True)
class ProcessesJob(Job):
  """The speed of two processes relative to one."""

  def measure(self, options: Options) -> list[Measurement]:
    """Start both groups of processes once, and let them teach in turns."""
    sizes = _TINY if options.tiny else _SIZES
    case = cases.draw_linear(options.seed, **sizes)
    with contextlib.ExitStack() as open_:
      folder = pathlib.Path(open_.enter_context(tempfile.TemporaryDirectory()))
      one = open_.enter_context(workers(1, folder / "one.npy", sizes, options.seed))
      two = open_.enter_context(workers(2, folder / "two.npy", sizes, options.seed))

      def check() -> dict[str, float]:
        return equality.check_equal({"distance": two.result()}, {"distance": one.result()}, equality.FLOAT32)

      alone = harness.Side("last_jax, one process", one.teach, check, case.work)
      mine = harness.Side("last_jax, two processes", two.teach, units=case.work)
      baseline = harness.Baseline("last_jax, one process", [alone], _TARGET)
      return [harness.measure(options, self, case, UNIT, mine, [baseline])]


class Workers:
  """Processes that teach together on command."""

  def __init__(self, processes: list[subprocess.Popen], file: pathlib.Path):
    self._processes, self._file = processes, file

  def teach(self) -> None:
    """Teach once; return when all are done."""
    self._command("teach")

  def result(self) -> np.ndarray:
    """Teach once and return the distances, `[students, records]`."""
    self._command("save")
    return np.load(self._file)

  def _command(self, word: str) -> None:
    for process in self._processes:
      assert process.stdin is not None, "it was opened as a pipe"
      process.stdin.write(f"{word}\n")
      process.stdin.flush()
    for process in self._processes:
      assert process.stdout is not None, "it was opened as a pipe"
      while (line := process.stdout.readline()) != "done\n":  # Libraries may print as well.
        if not line:
          raise RuntimeError(f"a process of the benchmark ended with the status {process.wait()}")


def free_address() -> str:
  """Return HOST:PORT of an unused port, for processes of this machine."""
  with socket.socket() as free:
    free.bind(("localhost", 0))
    return f"localhost:{free.getsockname()[1]}"


@contextlib.contextmanager
def workers(
  count: int, file: pathlib.Path, sizes: Mapping[str, int], seed: int, *, plain: bool = False
) -> Iterator[Workers]:
  """Start processes with a core each; or, if `plain`, one in which nothing is prepared, as users start it."""
  cores: list[Any] = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
  cores = ["all"] if plain else cores
  environment = {name: value for name, value in os.environ.items() if name not in _PREPARED} if plain else None
  address, processes = free_address(), []
  for i in range(count):
    arguments = (file, json.dumps(sizes), seed, cores[i % len(cores)], address, count, i)
    command = [sys.executable, "-m", "benchmarks.worker", *map(str, arguments)]
    processes.append(
      subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    )
  try:
    yield Workers(processes, file)
  finally:
    for process in processes:
      assert process.stdin is not None, "it was opened as a pipe"
      process.stdin.close()  # The process ends with its input.
    for process in processes:
      process.wait(_END_SECONDS)


JOBS: tuple[Job, ...] = (
  ProcessesJob(
    "processes", "greedy labels, students split over two processes with a core each, against one with one core"
  ),
)
