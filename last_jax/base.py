"""The nouns of the package, in the order in which a run meets them.

Pool → Problem (problem.py) → State ⟲ Teacher(View) → Lesson → State     one iteration: `teaching.step`
                                   Records, Info                        returned beside the state, never carried
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp

from last_jax import fields, frames, identity, summaries
from last_jax.functions import as_pure_function
from last_jax.lessons import STATIC, Array, Certificate, Lesson, Lessons, Params, Student
from last_jax.pool import Dataset, Pool, is_concrete

if TYPE_CHECKING:
  from last_jax.learners import Learner
  from last_jax.problem import Problem

Key = jax.Array

__all__ = [
  "STATIC", "Array", "Certificate", "Dataset", "Info", "Key", "Lesson", "Lessons", "Params", "Pool", "Records",
  "Result", "State", "Student", "Teacher", "TeacherStep", "View", "is_concrete",
]  # fmt: skip


@fields.documented
class Info(NamedTuple):
  """Diagnostics of one iteration: returned beside the state, never carried.

  Attributes:
    lesson: what was shown.
    certificate: a `Certificate`, or whatever else the teacher returns.
  """

  lesson: Lesson
  certificate: Any = None

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


@fields.documented
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
    if not isinstance(self.needs_target, bool):
      raise TypeError(f"needs_target must be True or False, but it is a {type(self.needs_target).__name__}")
    if self.step is None:
      raise TypeError("step is missing: a teacher is Teacher(name, step=function of (teacher_state, view, proposal))")
    arguments = {"init": ("problem",), "step": ("teacher_state", "view", "proposal"), "prepare": ("problem",)}
    for part, names in arguments.items():
      function = getattr(self, part)
      if function is not None:
        object.__setattr__(self, part, as_pure_function(part, function, names))

  def __repr__(self) -> str:
    return f"Teacher({self.name!r}{', needs_target=True' * self.needs_target})"


@fields.documented
class State(NamedTuple):
  """Everything between two iterations of one student. Of many students, every leaf has a leading [students] axis.

  Attributes:
    student: parameters and the state of the optimizer.
    teacher_state: what the teacher carries; None for teachers without state.
    step: `[]` number of iterations taken so far.
    key: all randomness of the run follows from this key and the number of the iteration.
    hitting_time: `[]` first iteration with distance <= tolerance, -1 until then; None without a tolerance.
    reported: `[]` whether `observe` has replaced the parameters since the last iteration.
  """

  student: Student
  teacher_state: Any
  step: Array
  key: Key
  hitting_time: Array | None
  reported: Array | bool = False

  def __repr__(self) -> str:
    return f"State({summaries.state(self.step, self.params, self.hitting_time)})"

  @property
  def params(self) -> Params:
    """The student's parameters."""
    return self.student.params


@fields.documented
class Records(NamedTuple):
  """Metrics along a run. One that was not asked for is None.

  Attributes:
    step: `[records]` number of iterations taken.
    distance: `[records]` ||w - w*||.
    objective: `[records]` mean loss over the pool, plus (weight decay / 2) ||w||^2.
    accuracy: `[records]` share of the test pool that is classified correctly.
    probe: `[records, ...]` the caller's own function of the parameters.
    lessons: the curriculum, when asked for: index `[steps, m]`, label `[steps, m, K]`.
    certificate: `[steps]` of each lesson, with the lessons.
    diverged: `[records]` whether a parameter was NaN or infinite, as it then stays. With a distance in the records,
      also whether it is too large for its dtype, above 1.8e19 in float32.
  """

  step: Array
  distance: Array | None = None
  objective: Array | None = None
  accuracy: Array | None = None
  probe: Any = None
  lessons: Lesson | None = None
  certificate: Any = None
  diverged: Array | None = None

  def __repr__(self) -> str:
    metrics = {name: getattr(self, name) for name in ("distance", "objective", "accuracy")}
    others = [name for name in ("probe", "lessons") if getattr(self, name) is not None]
    return f"Records({', '.join([summaries.records(self.step, metrics), *others])})"

  @property
  def diverged_at(self) -> Array | None:
    """First recorded iteration after which the student had `diverged`, `[]`; -1 where there was none.

    It happened after the record before that one: to know the very step, record every step. Of many students,
    `[students]`. None in records that were made without `diverged`.
    """
    if self.diverged is None:
      return None
    first = jnp.argmax(self.diverged, -1)
    step = jnp.take_along_axis(jnp.broadcast_to(self.step, self.diverged.shape), first[..., None], -1)[..., 0]
    return jnp.where(jnp.any(self.diverged, -1), step, -1)

  def to_frame(self) -> Any:
    """Return the metrics as a pandas frame in long form: step, metric and value; of many students, student first."""
    return frames.records_to_frame(self)


@fields.documented
class Result(NamedTuple):
  """Records and final state, as `teach` returns them. Of `teach_many`, every leaf has a leading [students] axis.

  Attributes:
    records: metrics along the run, `Records`; the properties below are shorter ways to them.
    state: after the last iteration, `State`: save it, or give it to `run` to resume.
  """

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
  def diverged_at(self) -> Array | None:
    """First recorded iteration after which the student had diverged, `[]`; -1 where there was none: see `Records`."""
    return self.records.diverged_at

  @property
  def student(self) -> Student:
    """The final parameters and optimizer state."""
    return self.state.student

  @property
  def params(self) -> Params:
    """The final parameters."""
    return self.state.student.params
