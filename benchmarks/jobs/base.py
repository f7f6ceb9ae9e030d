"""What a job is: a name, a line about it, and how it is measured."""

import dataclasses
import time
from typing import Any, Protocol

from benchmarks import harness
from benchmarks.records import Measurement


@dataclasses.dataclass(frozen=True)
class Settings:
  """How to measure.

  Attributes:
    seed: of the problems and of what is proposed.
    repetitions: how many timed calls of each side.
    threads: how many PyTorch uses. Unless given, several numbers are tried, and the fastest counts.
    tiny: whether problems are so small that times mean nothing: to see that everything works.
    timer: seconds, from any start.
  """

  seed: int = 0
  repetitions: int = 7
  threads: int | None = None
  tiny: bool = False
  timer: harness.Timer = time.perf_counter

  def measure(self, *arguments: Any, **more: Any) -> Measurement:
    """`harness.measure`, as these settings say."""
    usual: dict[str, Any] = {"repetitions": self.repetitions, "timer": self.timer}
    if self.tiny:
      usual["rest"] = 0.0
    return harness.measure(*arguments, **usual | more)


class Job(Protocol):
  """Something to be measured."""

  @property
  def name(self) -> str:
    """What `--suite` calls it."""

  @property
  def description(self) -> str:
    """One line, for `--help` and the JSON file."""

  def measure(self, settings: Settings) -> list[Measurement]:
    """Its figures, one for each size that it is measured at.

    Raises:
      ResultsDiffer: where two sides do not compute the same.
    """
