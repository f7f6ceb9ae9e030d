"""Times, with the case that they were measured on: the content of tables, plots and benchmarks.json."""

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Timing:
  """The time of one side. In seconds and, except for compiling, per unit of work."""

  name: str
  compile_seconds: float  # The first call minus a warm one; not below 0.
  median: float
  lower_quartile: float
  upper_quartile: float
  fastest: float
  seconds: tuple[float, ...]  # Every repetition, in order.
  units: int = 1  # Number of units in a repetition.
  temporary_bytes: int | None = None  # On a device, besides arguments and results, where known.


@dataclasses.dataclass(frozen=True)
class Target:
  """The aim of a comparison: at least `factor` times as fast or, with `slower`, at most `factor` times as long."""

  factor: float
  slower: bool = False

  def is_met(self, ratio: float) -> bool:
    """Return whether a ratio (last_jax is `ratio` times as fast) is enough."""
    return ratio * self.factor >= 1 if self.slower else ratio >= self.factor


@dataclasses.dataclass(frozen=True)
class BaselineResult:
  """A comparison with one kind of baseline.

  Attributes:
    kind: the baseline's name.
    timing: of its fastest variant.
    slower: of its other variants; of a variant that was far slower only the warm-up.
    ratio: the baseline's median over ours: last_jax is `ratio` times as fast.
    ratio_lower_quartile: of the ratios of single repetitions.
    ratio_upper_quartile: likewise.
    ratio_of_fastest: the baseline's fastest repetition over ours. On a shared machine, a value far from `ratio` shows
      that one side was disturbed more than the other.
    largest_difference: between the results, by name, absolute. Empty where both compute different things.
    target: the aim, where there is one.
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
class Limit:
  """A quantity of a case, besides its time, that must not exceed a bound.

  Attributes:
    name: for tables.
    value: as measured.
    most: the bound.
    unit: "B" for bytes; "" for a number.
  """

  name: str
  value: float
  most: float
  unit: str = ""

  @property
  def met(self) -> bool:
    """Whether the value is within the bound; never if it is not a number."""
    return self.value <= self.most


@dataclasses.dataclass(frozen=True)
class Measurement:
  """Our time for one case, and its comparisons.

  Attributes:
    job: the job's name.
    problem: facts about the case: description, sizes, seed and settings.
    unit: the unit of work, as "student-step".
    ours: our timing.
    against: a comparison for each kind of baseline that is available.
    axis: the one of the sizes that the job varies, if it is about scaling.
    limits: other quantities with a bound, as memory.
  """

  job: str
  problem: dict[str, Any]
  unit: str
  ours: Timing
  against: tuple[BaselineResult, ...] = ()
  axis: str | None = None
  limits: tuple[Limit, ...] = ()

  @property
  def size(self) -> int:
    """The size along the axis."""
    assert self.axis is not None, f"{self.job} has no axis"
    return self.problem["sizes"][self.axis]

  def to_json(self) -> dict[str, Any]:
    """Return dictionaries, lists, strings and numbers."""
    return dataclasses.asdict(self)

  @classmethod
  def from_json(cls, values: Mapping[str, Any]) -> "Measurement":
    """Rebuild a measurement from `to_json`, also of earlier versions."""
    against = tuple(
      BaselineResult(
        **{
          **each,
          "timing": _timing(each["timing"]),
          "slower": tuple(map(_timing, each["slower"])),
          "target": each["target"] and Target(**each["target"]),
        }
      )
      for each in values["against"]
    )
    limits = tuple(Limit(**each) for each in values.get("limits", ()))  # Earlier versions have none.
    return cls(**{**values, "ours": _timing(values["ours"]), "against": against, "limits": limits})


def _timing(values: Mapping[str, Any]) -> Timing:
  return Timing(**{**values, "seconds": tuple(values["seconds"])})
