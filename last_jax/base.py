"""The nouns of the package, in the order in which a run meets them.

Pool → Problem (problem.py) → State ⟲ Teacher(View) → Lesson → State     one iteration: `teaching.step`
                                   Records, Info                        returned beside the state, never carried
"""

import dataclasses
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
from jax.tree_util import Partial

from last_jax import frames, identity, summaries
from last_jax.pool import Dataset, Pool, is_concrete

if TYPE_CHECKING:
  from last_jax.learners import Learner
  from last_jax.problem import Problem

Params = Any  # A pytree of arrays: whatever `learner.init` returns.
Array = jax.Array
Key = jax.Array

__all__ = [
  "STATIC", "Array", "Certificate", "Dataset", "Info", "Key", "Lesson", "Lessons", "Params", "Pool", "Records",
  "Result", "State", "Student", "Teacher", "TeacherStep", "View", "as_pure_function", "is_concrete",
]  # fmt: skip

# Metadata of a dataclass field that is fixed when a program is compiled, not a leaf of the pytree.
STATIC = {"static": True}


class Student(NamedTuple):
  """A learner's parameters and the state of its optimizer."""

  params: Params
  opt_state: Any


class Lesson(NamedTuple):
  """The examples shown in one iteration, as indices into the pool, with their labels.

  A curriculum is a `Lesson` whose leaves have a leading [steps] axis: `Lessons`.
  """

  index: Array  # type: ignore[assignment]  # [m]. (Shadows tuple.index, on purpose.)
  label: Array  # [m, K]; [m, T, K] for learners with outputs for each token.

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
      predictions. It does not show what outputs lose when they are rounded, where ||x|| ||w|| is above 1e6.
  """

  residual: Array
  iterations: Array
  miss: Array | None = None
  exact: bool = dataclasses.field(default=True, metadata=STATIC)
  road: str = dataclasses.field(default="closed form", metadata=STATIC)
  gap: Array | None = None


class Info(NamedTuple):
  """Diagnostics of one iteration: returned beside the state, never carried."""

  lesson: Lesson
  certificate: Any = None  # A `Certificate`, or whatever else the teacher returns.

  @property
  def residual(self) -> Array:
    """Relative optimality residual of the label problem, `[]`."""
    return self.certificate.residual

  @property
  def iterations(self) -> Array:
    """Iterations of the label solver, `[]`."""
    return self.certificate.iterations

  @property
  def exact(self) -> bool:
    """Whether the labels are a global optimum; `certificate.road` says how they were found."""
    return self.certificate.exact


class View(NamedTuple):
  """Everything that a teacher sees before an iteration.

  Attributes:
    problem: learner, pool and ground truth. Its target is None unless the teacher declares `needs_target`.
    student: before the step.
    step: `[]` number of iterations taken so far.
    key: this iteration's own key.
    proposal_key: key that all proposals are drawn from, for teachers that look ahead: `proposals.propose`.
    cache: result of the teacher's `prepare`.
    reported: `[]` whether the parameters are those that a live student reports (`teaching.observe`): predictions that
      the teacher carries are out of date. In `teaching.next_lesson` it is True, a constant: none is needed.
  """

  problem: "Problem"
  student: Student
  step: Array
  key: Key
  proposal_key: Key
  cache: Any = None
  reported: Array | bool = False

  @property
  def learner(self) -> "Learner":
    """The learner that is taught."""
    return self.problem.learner

  @property
  def x(self) -> Array:
    """The pool's inputs, `[n, ...]`."""
    return self.problem.pool.x

  @property
  def truth(self) -> Array:
    """The pool's labels, `[n, K]` or `[n, T, K]`."""
    return self.problem.truth

  @property
  def target(self) -> Params:
    """w*, for teachers that declare `needs_target`."""
    if self.problem.target is None:
      raise ValueError("view.target is not available: the teacher must be made with needs_target=True")
    return self.problem.target


# step(teacher_state, view, proposal [m]) -> (Lesson, teacher_state, Certificate or None)
TeacherStep = Callable[[Any, View, Array], tuple[Lesson, Any, Any]]


@identity.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Teacher:
  """A method of teaching: pure functions, as an optax transformation is.

  Each iteration the loop proposes a batch of random examples; `step` answers with the lesson to show instead.

      def step(teacher_state, view, proposal):
        return Lesson(proposal, 1 - view.truth[proposal]), teacher_state, None

      teacher = Teacher("flipped", step=step)

  Numbers that are to be swept without compiling again are passed through `jax.tree_util.Partial(step, number)`, whose
  arguments are leaves. Functions are compared by structure (`identity.py`): made again, they do not compile again.

  Attributes:
    name: for tables and legends; behaviour never depends on it.
    init: `problem -> teacher_state`, the part that is carried from step to step and saved with the state; None for
      teachers without state.
    step: `(teacher_state, view, proposal [m]) -> (Lesson, teacher_state, certificate)`; the certificate may be None.
    prepare: `problem -> cache`, computed once per run, shared by all students, available as `view.cache`, never carried
      or saved; None for nothing.
    needs_target: whether `init`, `step` and `prepare` see the target w*. Where not, it is not in what they are given.
  """

  name: str = dataclasses.field(compare=False, metadata=STATIC)
  init: Callable[["Problem"], Any] | None = None
  step: TeacherStep = None  # type: ignore[assignment]  # Needed; see __post_init__.
  prepare: Callable[["Problem"], Any] | None = dataclasses.field(default=None, kw_only=True)
  needs_target: bool = dataclasses.field(default=False, kw_only=True, metadata=STATIC)

  def __post_init__(self) -> None:
    if not isinstance(self.name, str):
      raise TypeError(f"name must be a string, but it is a {type(self.name).__name__}")
    if self.step is None:
      raise TypeError("step is missing: a teacher is Teacher(name, step=function of (teacher_state, view, proposal))")
    arguments = {"init": ("problem",), "step": ("teacher_state", "view", "proposal"), "prepare": ("problem",)}
    for part, names in arguments.items():
      function = getattr(self, part)
      if function is not None:
        object.__setattr__(self, part, as_pure_function(part, function, names))

  def __repr__(self) -> str:
    return f"Teacher({self.name!r}{', needs_target=True' * self.needs_target})"


def as_pure_function(name: str, function: Any, arguments: tuple[str, ...]) -> Any:
  """Make a pytree of a function: its numbers are leaves, the function itself is static and compared by structure.

  Args:
    name: the argument's name, for messages.
    function: a plain function, which has no numbers; a `jax.tree_util.Partial`, whose bound arguments are leaves; or
      any other callable that is a pytree, as a registered dataclass with `__call__`.
    arguments: the names of the positional arguments that it will be called with.

  Raises:
    TypeError: it cannot be called with these arguments.
  """
  shown = ", ".join(arguments)
  if not callable(function):
    raise TypeError(f"{name} must be a function of ({shown}), but it is a {type(function).__name__}")
  try:
    inspect.signature(function).bind(*arguments)
  except TypeError as error:
    raise TypeError(f"{name} must be a function of ({shown}): {error}") from None
  except ValueError:
    pass  # Some built-in functions have no signature.
  if isinstance(function, Partial):
    return Partial(identity.Static(function.func), *function.args, **function.keywords)
  is_leaf = jax.tree_util.all_leaves((function,))
  return Partial(identity.Static(function)) if is_leaf else function


class State(NamedTuple):
  """Everything between two iterations of one student. Of many students, every leaf has a leading [students] axis."""

  student: Student
  teacher_state: Any
  step: Array  # [] number of iterations taken so far.
  key: Key  # All randomness of the run follows from this key and the number of the iteration.
  hitting_time: Array | None  # [] first iteration with distance <= tolerance, -1 until then; None without a tolerance.
  reported: Array | bool = False  # [] whether `observe` has replaced the parameters since the last iteration.

  def __repr__(self) -> str:
    return f"State({summaries.state(self.step, self.params, self.hitting_time)})"

  @property
  def params(self) -> Params:
    """The student's parameters."""
    return self.student.params


class Records(NamedTuple):
  """Metrics along a run. One that was not asked for is None."""

  step: Array  # [records] number of iterations taken.
  distance: Array | None = None  # [records] ||w - w*||.
  objective: Array | None = None  # [records] mean loss over the pool, plus (weight decay / 2) ||w||^2.
  accuracy: Array | None = None  # [records] share of the test pool that is classified correctly.
  probe: Any = None  # [records, ...] the caller's own function of the parameters.
  lessons: Lesson | None = None  # [steps, m], [steps, m, K] the curriculum, when asked for.
  certificate: Any = None  # [steps] of each lesson, with the lessons.

  def __repr__(self) -> str:
    metrics = {name: getattr(self, name) for name in ("distance", "objective", "accuracy")}
    others = [name for name in ("probe", "lessons") if getattr(self, name) is not None]
    return f"Records({', '.join([summaries.records(self.step, metrics), *others])})"

  def to_frame(self) -> Any:
    """Return the metrics as a pandas frame in long form: step, metric and value; of many students, student first."""
    return frames.records_to_frame(self)


class Result(NamedTuple):
  """Records and final state, as `teach` returns them. Of `teach_many`, every leaf has a leading [students] axis."""

  records: Records
  state: State

  def __repr__(self) -> str:
    return repr(self.records).replace("Records", "Result", 1)

  def to_frame(self) -> Any:
    """Return the metrics as a pandas frame in long form: step, metric and value; of many students, student first."""
    return self.records.to_frame()

  @property
  def step(self) -> Array:
    """The iteration of each record, `[records]`. Record 0 is the start."""
    return self.records.step

  @property
  def distance(self) -> Array | None:
    """||w - w*||, `[records]`; None without a target."""
    return self.records.distance

  @property
  def objective(self) -> Array | None:
    """Mean loss over the pool with its ground truth, plus (weight decay / 2) ||w||^2: `[records]`."""
    return self.records.objective

  @property
  def accuracy(self) -> Array | None:
    """Share of the test pool that is classified correctly, `[records]`; None without one."""
    return self.records.accuracy

  @property
  def probe(self) -> Any:
    """The caller's own function of the parameters, `[records, ...]`."""
    return self.records.probe

  @property
  def lessons(self) -> Lesson | None:
    """The curriculum, index `[steps, m]` and label `[steps, m, K]` (or `[steps, m, T, K]`), when asked for."""
    return self.records.lessons

  @property
  def certificate(self) -> Any:
    """The certificate of each lesson, `[steps]`, with the lessons."""
    return self.records.certificate

  @property
  def hitting_time(self) -> Array | None:
    """First iteration with distance <= tolerance, `[]`; -1 where there was none, None without a tolerance."""
    return self.state.hitting_time

  @property
  def student(self) -> Student:
    """The final parameters and optimizer state."""
    return self.state.student

  @property
  def params(self) -> Params:
    """The final parameters."""
    return self.state.student.params
