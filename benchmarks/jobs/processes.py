"""Students split over two processes, one on each core, against one process on one core."""

import contextlib
import dataclasses
import json
import os
import pathlib
import socket
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

from benchmarks import cases, equality, harness
from benchmarks.harness import Job, Options
from benchmarks.jobs.teaching import UNIT
from benchmarks.records import Measurement, Target
from benchmarks.workers import Workers, start

_TINY, _SIZES = {"students": 8, "steps": 20, "pool": 50}, {"students": 1000, "steps": 1000}
_TARGET = Target(1.6)
_PREPARED = ("XLA_FLAGS", "PJRT_NPROC")  # What `devices.prepare` sets in the environment, which processes inherit.


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

      alone = harness.Side("last_jax, one process", one.work, check, case.work)
      mine = harness.Side("last_jax, two processes", two.work, units=case.work)
      baseline = harness.Baseline("last_jax, one process", [alone], _TARGET)
      return [harness.measure(options, self, case, UNIT, mine, [baseline])]


def free_address() -> str:
  """Return HOST:PORT of an unused port, for processes of this machine."""
  with socket.socket() as free:
    free.bind(("localhost", 0))
    return f"localhost:{free.getsockname()[1]}"


def workers(
  count: int, file: pathlib.Path, sizes: Mapping[str, int], seed: int, *, plain: bool = False
) -> contextlib.AbstractContextManager[Workers]:
  """Start processes with a core each; or, if `plain`, one in which nothing is prepared, as users start it."""
  cores: list[Any] = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
  cores = ["all"] if plain else cores
  environment = {name: value for name, value in os.environ.items() if name not in _PREPARED} if plain else None
  address = free_address()
  arguments = [(file, json.dumps(sizes), seed, cores[i % len(cores)], address, count, i) for i in range(count)]
  commands = [[sys.executable, "-m", "benchmarks.worker", *map(str, each)] for each in arguments]
  return start(commands, file, environment)


JOBS: tuple[Job, ...] = (
  ProcessesJob(
    "processes", "greedy labels, students split over two processes with a core each, against one with one core"
  ),
)
