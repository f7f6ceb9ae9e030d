"""Figures with what they were measured on: all that tables, plots and the JSON file are made of."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class Timing:
  """How long one side took. In seconds, and but for compiling those of one unit of work."""

  name: str
  compile_seconds: float  # The first call less a warm one; not below 0.
  median: float
  lower_quartile: float
  upper_quartile: float
  fastest: float
  seconds: tuple[float, ...]  # Every repetition, in order.
  units: int = 1  # How many units a repetition had.
  temporary_bytes: int | None = None  # What the program needs on a device besides arguments and results, where known.


@dataclasses.dataclass(frozen=True)
class Target:
  """What is aimed at: at least `factor` times as fast or, with `slower`, at most `factor` times as long."""

  factor: float
  slower: bool = False

  def is_met(self, ratio: float) -> bool:
    """Whether a ratio, how many times as fast we are, is enough."""
    return ratio * self.factor >= 1 if self.slower else ratio >= self.factor


@dataclasses.dataclass(frozen=True)
class Against:
  """A comparison with one kind of baseline.

  Attributes:
    kind: of what kind it is.
    timing: of its fastest variant.
    slower: those of its other variants; of one that was hopeless only what warming up took.
    ratio: the baseline's median over ours: how many times as fast we are.
    ratio_lower_quartile: of the ratios of the single repetitions.
    ratio_upper_quartile: likewise.
    ratio_of_fastest: the baseline's fastest repetition over our fastest. On a machine that others use as well, a ratio
      far from this one says that one side was disturbed more than the other.
    largest_difference: between the results, by name, in absolute terms. Empty where both compute different things.
    target: what is aimed at, where something is.
    met: whether it was reached.
  """

  kind: str
  timing: Timing
  slower: tuple[Timing, ...]
  ratio: float
  ratio_lower_quartile: float
  ratio_upper_quartile: float
  ratio_of_fastest: float
  largest_difference: dict[str, float]
  target: Target | None = None
  met: bool | None = None


@dataclasses.dataclass(frozen=True)
class Measurement:
  """Our time for one problem, and what it was compared with.

  Attributes:
    job: its name.
    problem: what was computed: its description, sizes, seed and settings.
    unit: what times are of, as "student-step".
    ours: our timing.
    against: a comparison for each kind of baseline that there was.
    axis: the one of the sizes that the job goes along, where it is about scaling.
  """

  job: str
  problem: dict[str, Any]
  unit: str
  ours: Timing
  against: tuple[Against, ...] = ()
  axis: str | None = None

  @property
  def size(self) -> int:
    """Where on its axis it is."""
    assert self.axis is not None, f"{self.job} goes along no axis"
    return self.problem["sizes"][self.axis]

  def to_json(self) -> dict[str, Any]:
    """As dictionaries, lists, strings and numbers."""
    return dataclasses.asdict(self)
