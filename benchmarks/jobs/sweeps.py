"""Scaling of our times with each size of a case, one at a time; beside batched PyTorch where that is cheap."""

import dataclasses
from collections.abc import Mapping

from benchmarks import cases, harness, ours
from benchmarks.baselines import BATCHED, KINDS
from benchmarks.cases import STRATEGIES
from benchmarks.harness import Job, Options
from benchmarks.jobs.teaching import UNIT, Checker, make_baseline
from benchmarks.records import Measurement

_MAX_REPETITIONS = 3  # There are many points, and only their growth matters.
_TINY = {"students": 4, "steps": 3, "pool": 20, "features": 3}


@dataclasses.dataclass(frozen=True)
class SweepLine:
  """A strategy along an axis.

  Attributes:
    strategy: one of `cases.STRATEGIES`.
    students: their number, except along their own axis.
    steps: by the size along the axis. Large cases have few, so that no call takes much more than a second; sizes that
      need too much memory are left out.
    batched: whether batched PyTorch is timed as well.
    softmax: whether students are softmax learners.
  """

  strategy: str
  students: int
  steps: Mapping[int, int]
  batched: bool = False
  softmax: bool = False


@dataclasses.dataclass(frozen=True)
class SweepJob(Job):
  """Times along one axis.

  Attributes:
    axis: one of the sizes of `cases.draw_linear`.
    lines: strategies to measure along it.
    tiny: the only size along the axis of a tiny run.
  """

  axis: str
  lines: tuple[SweepLine, ...]
  tiny: int = 3

  def measure(self, options: Options) -> list[Measurement]:
    """Time every line at every size."""
    options = dataclasses.replace(options, repetitions=min(_MAX_REPETITIONS, options.repetitions))
    return [self._measure_one(line, sizes, options) for line in self.lines for sizes in self.sizes(line, options.tiny)]

  def sizes(self, line: SweepLine, tiny: bool) -> list[dict[str, int]]:
    """Return the sizes of a line's cases."""
    if tiny:
      return [_TINY | {self.axis: self.tiny}]
    return [{"students": line.students, "steps": steps, self.axis: size} for size, steps in line.steps.items()]

  def _measure_one(self, line: SweepLine, sizes: dict[str, int], options: Options) -> Measurement:
    case, strategy = cases.draw_linear(options.seed, line.softmax, **sizes), STRATEGIES[line.strategy]
    teacher = ours.make_teacher(strategy)
    mine = harness.Side(teacher.name, ours.program(case, teacher), units=case.work)
    compared = line.batched and not KINDS[BATCHED].missing()
    baselines = [make_baseline(KINDS[BATCHED], Checker(case, strategy), options)] if compared else []
    return harness.measure(options, self, case, UNIT, mine, baselines, axis=self.axis)


def _scaling(size: str) -> str:
  return f"time per student and step, and memory, by the number of {size}"


JOBS: tuple[Job, ...] = (
  SweepJob(
    "students",
    _scaling("students"),
    "students",
    (
      SweepLine(
        "greedy", 0, {1: 1000, 10: 1000, 100: 1000, 256: 1000, 1000: 1000, 10_000: 100, 100_000: 20}, batched=True
      ),
      SweepLine("imt", 0, {1: 200, 10: 200, 100: 200, 1000: 50, 10_000: 5}),
    ),
  ),
  SweepJob(
    "pool",
    _scaling("examples in the pool"),
    "pool",
    (
      SweepLine("greedy", 1000, {1000: 500, 10_000: 500, 100_000: 500, 1_000_000: 500}, batched=True),
      SweepLine("imt", 10, {1000: 200, 10_000: 100, 100_000: 20, 1_000_000: 3}),
    ),
    tiny=20,
  ),
  SweepJob(
    "features",
    _scaling("features"),
    "features",
    (
      SweepLine("greedy", 1000, {4: 1000, 16: 1000, 64: 500, 256: 200, 1024: 50, 4096: 10}, batched=True),
      SweepLine("imt", 10, {4: 200, 16: 200, 64: 200, 256: 50, 1024: 20, 4096: 5}),
    ),
  ),
  SweepJob(
    "classes",
    _scaling("classes (softmax students)"),
    "classes",
    (
      SweepLine("greedy", 1000, {2: 500, 5: 200, 10: 100, 30: 50, 100: 20}, softmax=True),
      SweepLine("imt", 10, {2: 200, 5: 200, 10: 100, 30: 50, 100: 20}, softmax=True),
    ),
  ),
  SweepJob(
    "batch",
    _scaling("examples shown in a step"),
    "batch_size",
    (
      SweepLine("sgd", 1000, {1: 500, 2: 500, 4: 200, 8: 200, 16: 100, 32: 50, 64: 20, 128: 10}),
      SweepLine("greedy", 10, {1: 50, 2: 50, 4: 50, 8: 20, 16: 10, 32: 5, 64: 3, 128: 2}),
    ),
  ),
)
