"""What an experiment is: one figure of the paper, what it shows, and how it is run at some size."""

import types
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from last_jax.experiments.claims import Claim
from last_jax.report.page import Chart, LabelFrames
from last_jax.report.pictures import Gallery

T = TypeVar("T")

SIZES = ("quick", "usual", "full")
SEEDS = {"quick": 2, "usual": 8, "full": 20}  # Unless asked for otherwise.


class Size(NamedTuple):
  """How much of it: for a look, for a laptop, or as in the paper."""

  name: str
  seeds: int
  mnist_folder: str | None = None  # The full MNIST, in place of the subset that is shipped.
  seed: int = 0  # The first one.

  @property
  def numbers(self) -> range:
    """The seeds themselves."""
    return range(self.seed, self.seed + self.seeds)

  def pick(self, quick: T, usual: T, full: T) -> T:
    """The setting for this size."""
    return dict(zip(SIZES, (quick, usual, full), strict=True))[self.name]


class Outcome(NamedTuple):
  """What a figure's run gave."""

  settings: Mapping[str, Any]
  blocks: tuple[Chart | LabelFrames | Gallery, ...]
  claims: tuple[Claim, ...]


# Says what is being done, and which share of the figure's work is behind.
Tell = Callable[[str, float], None]


class Figure(NamedTuple):
  """One entry of the reproduction."""

  name: str
  title: str
  paper: str  # Where it is in the paper.
  shows: str
  run: Callable[[Size, Tell], Outcome]
  weight: float = 1.0  # About how long it takes beside others, for the time left.
  because: Mapping[str, str] = types.MappingProxyType({})  # By how a claim begins, why it may not hold.

  def reason(self, claim: str) -> str:
    """Why this claim may not hold, if there is something to say."""
    return next((text for beginning, text in self.because.items() if claim.startswith(beginning)), "")
