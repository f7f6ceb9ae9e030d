"""Students split over two processes, one on each core, against one process on one core."""

import contextlib
import dataclasses
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import numpy as np

from benchmarks import equality, harness, problems
from benchmarks.jobs.base import Job, Settings
from benchmarks.jobs.teaching import UNIT
from benchmarks.problems import Sizes
from benchmarks.records import Measurement, Target

_TINY, _USUAL = Sizes(students=8, steps=20, pool=50), Sizes(students=1000, steps=1000)
_TARGET = Target(1.6)
_PATIENCE = 120  # Seconds for a process to end.


@dataclasses.dataclass(frozen=True)
class Processes:
  """How many times as many student-steps two processes take."""

  name: str = "processes"
  description: str = "greedy labels, students split over two processes with a core each, against one with one core"
  sizes: Sizes = _USUAL
  target: Target = _TARGET

  def measure(self, settings: Settings) -> list[Measurement]:
    """Both are started once, and then told to teach in turns."""
    sizes = _TINY if settings.tiny else self.sizes
    problem = problems.draw(sizes, settings.seed)
    with contextlib.ExitStack() as open_:
      folder = pathlib.Path(open_.enter_context(tempfile.TemporaryDirectory()))
      one = open_.enter_context(_workers(1, folder / "one.npy", sizes, settings.seed))
      two = open_.enter_context(_workers(2, folder / "two.npy", sizes, settings.seed))

      def check() -> dict[str, float]:
        found = {"distance": two.result()}, {"distance": one.result()}
        return equality.check_equal(*found, {"distance": equality.FLOAT32})

      alone = harness.Side("last_jax, one process", one.teach, check, sizes.work)
      mine = harness.Side("last_jax, two processes", two.teach, units=sizes.work)
      about = problems.about(problem, self.description)
      baseline = harness.Baseline("last_jax, one process", [alone], self.target)
      return [settings.measure(self.name, about, UNIT, mine, [baseline])]


class _Workers:
  """Processes that teach together whenever they are told to."""

  def __init__(self, processes: list[subprocess.Popen], file: pathlib.Path):
    self._processes, self._file = processes, file

  def teach(self) -> None:
    """Once; returns when all are done."""
    self._tell("teach")

  def result(self) -> np.ndarray:
    """The distances, `[students, records]`, of teaching once."""
    self._tell("save")
    return np.load(self._file)

  def _tell(self, what: str) -> None:
    for process in self._processes:
      assert process.stdin is not None, "it was opened as a pipe"
      process.stdin.write(f"{what}\n")
      process.stdin.flush()
    for process in self._processes:
      assert process.stdout is not None, "it was opened as a pipe"
      while (line := process.stdout.readline()) != "done\n":  # Libraries may print as well.
        if not line:
          raise RuntimeError(f"a process of the benchmark ended with the status {process.wait()}")


def free_address() -> str:
  """HOST:PORT where nobody listens yet, for processes of this machine to meet."""
  with socket.socket() as free:
    free.bind(("localhost", 0))
    return f"localhost:{free.getsockname()[1]}"


@contextlib.contextmanager
def _workers(count: int, file: pathlib.Path, sizes: Sizes, seed: int) -> Iterator[_Workers]:
  cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
  address = free_address()
  processes = []
  for i in range(count):
    words = (file, *dataclasses.astuple(sizes), seed, cores[i % len(cores)], address, count, i)
    command = [sys.executable, "-m", "benchmarks.worker", *map(str, words)]
    pipe = subprocess.PIPE
    processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True))
  try:
    yield _Workers(processes, file)
  finally:
    for process in processes:
      assert process.stdin is not None, "it was opened as a pipe"
      process.stdin.close()  # It ends when nobody can tell it anything more.
    for process in processes:
      process.wait(_PATIENCE)


JOBS: tuple[Job, ...] = (Processes(),)
