"""The nouns of the reproduction: a method of teaching, a figure of the paper, its size, and its outcome."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from last_jax.reproduction.claims import Claim
from last_jax.teachers import Teacher
from last_jax.tools.charts import Chart, Curves, Gallery, LabelFrames, Line
from last_jax.tools.styles import Family, Variant

T = TypeVar("T")

SIZES = ("quick", "usual", "full")
SEEDS = {"quick": 2, "usual": 8, "full": 20}  # The default number of seeds by size.


class Method(NamedTuple):
  """A named way of teaching: one curve of a figure, one row of a table, one side of a claim.

  Attributes:
    key: Identifies the method within a figure, in dictionaries and in files: "greedy:simplex".
    teacher: Teaches. Its name is the method's name for people.
    family: The kind of teacher: groups methods and sets the line style.
    variant: Tells methods of one family apart, and sets colour and marker. Methods of two families that choose from
      the same set of labels have equal variants.
  """

  key: str
  teacher: Teacher
  family: Family
  variant: Variant = ""

  @property
  def name(self) -> str:
    """The name for legends, tables and the texts of claims."""
    return self.teacher.name

  def line(self, values: Any, axes: Mapping[str, Any]) -> Line:
    """Return the method's curve: `values [seeds, records]` over the axes `[records]`, by label."""
    return Line(self.name, values, axes, self.family, self.variant)

  def curves(self, metrics: Mapping[str, Any], axes: Mapping[str, Any]) -> Curves:
    """Return all curves of the method: metrics `[seeds, records]` by name over the axes `[records]`, by label."""
    return Curves(self.name, axes, metrics, self.family, self.variant)


class Size(NamedTuple):
  """Size of the experiments: "quick" for a check, "usual" for a laptop, "full" as in the paper."""

  name: str
  seeds: int
  mnist_folder: str | None = None  # The full MNIST, in place of the packaged subset.
  seed: int = 0  # The first one.

  @property
  def numbers(self) -> range:
    """The seeds."""
    return range(self.seed, self.seed + self.seeds)

  def pick(self, quick: T, usual: T, full: T) -> T:
    """Return the setting for this size."""
    return dict(zip(SIZES, (quick, usual, full), strict=True))[self.name]


class Outcome(NamedTuple):
  """The result of a figure's experiment."""

  settings: Mapping[str, Any]
  blocks: tuple[Chart | LabelFrames | Gallery, ...]
  claims: tuple[Claim, ...]


# Receives a description of the current work and the share of the figure's work that is done.
Tell = Callable[[str, float], None]


class Figure(NamedTuple):
  """One experiment of the reproduction."""

  name: str
  title: str
  paper: str  # Its place in the paper: "Figure 4".
  shows: str
  run: Callable[[Size, Tell], Outcome]  # A module's function: figures are sent to worker processes.
  weight: float = 1.0  # Relative duration, for the estimate of the remaining time.
