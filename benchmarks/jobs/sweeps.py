"""How our times grow with each size of a problem, one at a time; beside batched PyTorch where that is cheap."""

import dataclasses
from collections.abc import Mapping

from benchmarks import harness, ours, problems
from benchmarks.baselines import BATCHED, KINDS
from benchmarks.jobs.base import Job, Settings
from benchmarks.jobs.teaching import UNIT, Check, baseline_of
from benchmarks.problems import METHODS, Sizes
from benchmarks.records import Measurement

_REPETITIONS = 3  # At most: there are many points, and what is looked at is how they grow.
_TINY = Sizes(students=4, steps=3, pool=20, features=3)


@dataclasses.dataclass(frozen=True)
class Line:
  """A method along an axis.

  Attributes:
    method: one of `problems.METHODS`.
    students: how many there are, but along their own axis.
    steps: by the place on the axis. Large problems have few, so that no call takes much more than a second; and those
      that need too much memory are left out.
    batched: whether batched PyTorch is timed as well.
    softmax: whether students are softmax learners.
  """

  method: str
  students: int
  steps: Mapping[int, int]
  batched: bool = False
  softmax: bool = False


@dataclasses.dataclass(frozen=True)
class Sweep:
  """Along one axis.

  Attributes:
    name: what `--suite` calls it.
    description: one line.
    axis: one of the `Sizes`.
    lines: what to measure along it.
    tiny: the place on the axis for a look whether everything works.
  """

  name: str
  description: str
  axis: str
  lines: tuple[Line, ...]
  tiny: int = 3

  def measure(self, settings: Settings) -> list[Measurement]:
    """A figure for every line and place."""
    return [
      self._measure_one(line, sizes, settings) for line in self.lines for sizes in self.sizes(line, settings.tiny)
    ]

  def sizes(self, line: Line, tiny: bool) -> list[Sizes]:
    """What a line is measured at."""
    if tiny:
      return [dataclasses.replace(_TINY, **{self.axis: self.tiny})]
    base = {place: Sizes(line.students, steps) for place, steps in line.steps.items()}
    return [dataclasses.replace(sizes, **{self.axis: place}) for place, sizes in base.items()]

  def _measure_one(self, line: Line, sizes: Sizes, settings: Settings) -> Measurement:
    problem, method = problems.draw(sizes, settings.seed, softmax=line.softmax), METHODS[line.method]
    program = ours.program(problem, method)
    mine = harness.Side(ours.teacher_of(method).name, program, units=sizes.work, memory=program.temporary_bytes)
    compared = line.batched and not KINDS[BATCHED].missing()
    baselines = [baseline_of(KINDS[BATCHED], Check(problem, method), settings)] if compared else []
    repetitions = min(_REPETITIONS, settings.repetitions)
    about = problems.about(problem, self.description)
    return settings.measure(self.name, about, UNIT, mine, baselines, axis=self.axis, repetitions=repetitions)


JOBS: tuple[Job, ...] = (
  Sweep(
    "students",
    "time per student and step, and memory, by the number of students",
    "students",
    (
      Line("greedy", 0, {1: 1000, 10: 1000, 100: 1000, 256: 1000, 1000: 1000, 10_000: 100, 100_000: 20}, batched=True),
      Line("imt", 0, {1: 200, 10: 200, 100: 200, 1000: 50, 10_000: 5}),
    ),
  ),
  Sweep(
    "pool",
    "time per student and step, and memory, by the number of examples in the pool",
    "pool",
    (
      Line("greedy", 1000, {1000: 500, 10_000: 500, 100_000: 500, 1_000_000: 500}, batched=True),
      Line("imt", 10, {1000: 200, 10_000: 100, 100_000: 20, 1_000_000: 3}),
    ),
    tiny=20,
  ),
  Sweep(
    "features",
    "time per student and step, and memory, by the number of features",
    "features",
    (
      Line("greedy", 1000, {4: 1000, 16: 1000, 64: 500, 256: 200, 1024: 50, 4096: 10}, batched=True),
      Line("imt", 10, {4: 200, 16: 200, 64: 200, 256: 50, 1024: 20, 4096: 5}),
    ),
  ),
  Sweep(
    "classes",
    "time per student and step, and memory, by the number of classes (softmax students)",
    "classes",
    (
      Line("greedy", 1000, {2: 500, 5: 200, 10: 100, 30: 50, 100: 20}, softmax=True),
      Line("imt", 10, {2: 200, 5: 200, 10: 100, 30: 50, 100: 20}, softmax=True),
    ),
  ),
  Sweep(
    "batch",
    "time per student and step, and memory, by the number of examples shown in a step",
    "batch_size",
    (
      Line("sgd", 1000, {1: 500, 2: 500, 4: 200, 8: 200, 16: 100, 32: 50, 64: 20, 128: 10}),
      Line("greedy", 10, {1: 50, 2: 50, 4: 50, 8: 20, 16: 10, 32: 5, 64: 3, 128: 2}),
    ),
  ),
)
