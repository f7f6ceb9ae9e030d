"""The nouns that need no others: a student, a lesson, and the evidence of how good its labels are."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from last_jax import fields, frames

Params = Any  # A pytree of arrays: whatever `learner.init` returns.
Array = jax.Array

# Metadata of a dataclass field that is fixed when a program is compiled, not a leaf of the pytree.
STATIC = {"static": True}


@fields.documented
class Student(NamedTuple):
  """A learner's parameters and the state of its optimizer.

  Attributes:
    params: w, a pytree as `learner.init` returns it.
    opt_state: what the optimizer carries from step to step, as momentum.
  """

  params: Params
  opt_state: Any


@fields.documented
class Lesson(NamedTuple):
  """The examples shown in one iteration, as indices into the pool, with their labels.

  A curriculum is a `Lesson` whose leaves have a leading [steps] axis: `Lessons`.

  Attributes:
    index: `[m]`, rows of the pool.
    label: `[m, K]`, or `[m, T, K]` for learners with outputs for each token.
  """

  index: Array  # type: ignore[assignment]  # Shadows tuple.index, on purpose.
  label: Array

  def to_frame(self, classes: Sequence[str] | None = None) -> Any:
    """Return a curriculum as a pandas frame in long form: step, place in the batch, example, class and label.

    Of many students, the first column is the student. `classes` are the names of the classes, `pool.classes`.
    """
    return frames.lessons_to_frame(self, classes)


Lessons = Lesson


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Certificate:
  """Evidence of how well a label problem was solved.

  Attributes:
    residual: `[]` relative optimality residual, 0 for closed forms and enumeration; see `quadratic.py`.
    iterations: `[]` of the solver, 0 for closed forms.
    miss: `[]` distance between w+ and the point that the teacher steers to; only of theorem teachers.
    exact: whether the labels are known to be a global optimum, up to `residual`, before they are computed. Where not,
      a `gap` of 0, to rounding, still shows that they are.
    road: how they were found, as "closed form".
    gap: `[]` what the labels miss, as a share of what could be gained on the ground truth (moved into the set); at most
      1, and None where nothing is known beyond `residual`. For sparse labels that are a local optimum,
      `constraints.simplex(max_nonzero=k)`, where steps are affine in the label: a bound, 0, to rounding, only where the
      labels are a global optimum. For free labels of a batch: an estimate of what rounding has cost, from what is left
      of the error along each direction in which labels act, known in float32 or lost. It is above 1e-3 where examples
      are so nearly alike that the digits of labels do not suffice, and may be so where they are the same. For labels in
      a ball, `constraints.magnitude`: the rounding of labels and outputs beside its radius, which is large around large
      predictions. For one example of a linear learner: the digits of label and outputs beside the way from the truth.
      Of batches it does not show what outputs lose when they are rounded, where ||x|| ||w|| is above 1e6.
  """

  residual: Array
  iterations: Array
  miss: Array | None = None
  exact: bool = dataclasses.field(default=True, metadata=STATIC)
  road: str = dataclasses.field(default="closed form", metadata=STATIC)
  gap: Array | None = None
