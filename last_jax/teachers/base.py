"""What a teacher is: a selection of examples and a synthesis of labels.

Each iteration the loop *proposes* a random batch, drawn ahead. A `Selection` may replace its examples, a `Synthesis`
labels what is then shown. Every method of the paper is such a pair, and a new one is a class with one method:

    class Flipped:
      omniscient = False
      def prepare(self, learner, x, truth, target): return None
      def label(self, memory, view, index): return 1 - view.truth[index]

Both may be pytrees (registered dataclasses), so that their numbers can be swept, trained or vmapped.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol

import jax

from last_jax.learners import Learner
from last_jax.types import STATIC, Array, Key, Lessons, Params, Student


class View(NamedTuple):
  """What a black-box teacher sees before an iteration. There is no target in it."""

  learner: Learner
  student: Student
  x: Array  # [n, ...] the pool's inputs.
  truth: Array  # [n, K] the pool's labels.
  step: Array  # [] how many iterations were taken so far.
  key: Key  # This iteration's own.
  proposal_key: Key | None = None  # What proposals are drawn from, for those who look ahead: `proposals.propose`.
  kept: Any = None  # What the selection keeps from step to step, if it does.


class OmniscientView(NamedTuple):
  """What an omniscient teacher sees: the same, and the target."""

  learner: Learner
  student: Student
  x: Array
  truth: Array
  step: Array
  key: Key
  proposal_key: Key | None
  kept: Any
  target: Params


class Selection(Protocol):
  """Which examples to show.

  One that keeps something from step to step has two more methods: `begin(memory, view)`, what to keep at first, and
  `follow(memory, view, lesson, after)`, what to keep once the lesson has made the student what it is `after`. It finds
  it in `view.kept`.
  """

  omniscient: bool  # Whether it is given an OmniscientView, or a View.

  def prepare(self, learner: Learner, x: Array, truth: Array, target: Params | None) -> Any:
    """What can be computed once, before the first iteration. The target is None unless `omniscient`."""

  def select(self, memory: Any, view: Any, proposal: Array) -> Array:
    """Indices `[m]` into the pool, in place of the random ones proposed."""


class Synthesis(Protocol):
  """Which labels to give them.

  One that wants to bring the student to a certain point may also have a method `residual(memory, view, index, label)`,
  the distance `[]` between that point and where these labels bring the student. `teach` reports it with the lessons.
  """

  @property
  def omniscient(self) -> bool:
    """As for a selection. A class may simply say `omniscient = False`."""

  def prepare(self, learner: Learner, x: Array, truth: Array, target: Params | None) -> Any:
    """As for a selection."""

  def label(self, memory: Any, view: Any, index: Array) -> Array:
    """Labels `[m, K]` for the examples `index [m]`."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Uniform:
  """Shows what is proposed."""

  omniscient = False

  def prepare(self, learner: Learner, x: Array, truth: Array, target: Params | None) -> None:
    """Nothing to prepare."""

  def select(self, memory: None, view: View, proposal: Array) -> Array:
    """The proposal."""
    return proposal


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Teacher:
  """A selection and a synthesis, under a name for tables and legends."""

  name: str = dataclasses.field(metadata=STATIC)
  selection: Selection
  synthesis: Synthesis

  @property
  def omniscient(self) -> bool:
    """Whether it cannot teach without a target."""
    return self.selection.omniscient or self.synthesis.omniscient

  def prepare(self, learner: Learner, x: Array, truth: Array, target: Params | None) -> tuple[Any, Any]:
    """What both parts compute once; a part that is not omniscient is not handed the target."""
    parts = (self.selection, self.synthesis)
    selection, synthesis = (p.prepare(learner, x, truth, target if p.omniscient else None) for p in parts)
    return selection, synthesis

  def lesson(self, memory: tuple[Any, Any], view: View, target: Params | None, proposal: Array) -> Lessons:
    """What to show in this iteration, given the random examples `proposal [m]`."""
    index = self.selection.select(memory[0], _seen_by(self.selection, view, target), proposal)
    label = self.synthesis.label(memory[1], _seen_by(self.synthesis, view, target), index)
    return Lessons(index, label)

  def begin(self, memory: tuple[Any, Any], view: View, target: Params | None) -> Any:
    """What the selection keeps before the first step; None where it keeps nothing."""
    find = getattr(self.selection, "begin", None)
    return None if find is None else find(memory[0], _seen_by(self.selection, view, target))

  def follow(self, memory: tuple[Any, Any], view: View, target: Params | None, lesson: Lessons, after: Student) -> Any:
    """What it keeps once this lesson has made the student what it is `after`."""
    find = getattr(self.selection, "follow", None)
    return None if find is None else find(memory[0], _seen_by(self.selection, view, target), lesson, after)

  def residual(self, memory: tuple[Any, Any], view: View, target: Params | None, lesson: Lessons) -> Array | None:
    """How far from where the synthesis wants it the lesson takes the student, `[]`; None where it does not say."""
    find = getattr(self.synthesis, "residual", None)
    if find is None:
      return None
    return find(memory[1], _seen_by(self.synthesis, view, target), lesson.index, lesson.label)


def _seen_by(part: Selection | Synthesis, view: View, target: Params | None) -> View | OmniscientView:
  """A part that is not omniscient is not handed the target."""
  return OmniscientView(*view, target=target) if part.omniscient and target is not None else view
