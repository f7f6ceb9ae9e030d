"""The loop: one student, one teacher, one scan. Many students are `teach_many` in `students.py`."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from last_jax import checks, synthesis
from last_jax.learners import Learner, check_learns_from
from last_jax.proposals import propose
from last_jax.teachers.base import Teacher, View
from last_jax.types import Array, Key, Lessons, Params, Pool, Result, Student

METRICS = ("distance", "objective", "accuracy")

# Examples are proposed this many steps at a time: enough to draw them in one go, few enough for memory to stay bounded.
_PROPOSED_AHEAD = 1024


class Task(NamedTuple):
  """What the loop needs besides a student, as arrays."""

  pool: Pool
  target: Params | None
  test: Pool | None
  tolerance: Any  # A distance, or None.


class Plan(NamedTuple):
  """What the loop needs besides, that is fixed when it is compiled."""

  steps: int
  batch_size: int
  record_every: int
  metrics: tuple[str, ...]
  probe: Callable[[Params], Any] | None
  lessons: bool


def teach(
  key: Key,
  learner: Learner,
  teacher: Teacher,
  pool: Pool,
  *,
  target: Params | None = None,
  init: Params | None = None,
  steps: int = 1000,
  batch_size: int = 1,
  record_every: int = 1,
  test: Pool | None = None,
  lessons: bool = False,
  tolerance: Any = None,
  metrics: Sequence[str] = METRICS,
  probe: Callable[[Params], Any] | None = None,
  resume: Result | None = None,
) -> Result:
  """Teaches one student. Compiled once per shape; can itself be jitted, vmapped, differentiated and sharded.

  Args:
    key: of `jax.random.key`. The examples proposed depend on the key and the number of the iteration alone.
    learner: what is taught.
    teacher: who teaches.
    pool: the examples to teach from, with their ground truth.
    target: w*. Needed by omniscient teachers and for the distance.
    init: where the student starts; random if not given.
    steps: how many iterations.
    batch_size: m, how many examples are shown in each.
    record_every: metrics are computed at the start, after every so many steps, and at the end.
    test: examples to measure the accuracy on.
    lessons: whether to return what was shown: `Result.lessons`, and `Result.residual` where the teacher has one.
    tolerance: if given, `Result.hitting_time` is the first iteration with distance <= tolerance.
    metrics: which of "distance", "objective", "accuracy" to record. The last two go over a whole pool each time.
    probe: your own function of the parameters, recorded as `Result.probe`. Pass the same function again to reuse what
      is compiled.
    resume: an earlier result to go on from, with the same key, in place of `init`. In two parts or in one: the same.

  Returns:
    A `Result`.
  """
  check_teachable(learner, teacher, pool, test, target)
  if init is not None:
    checks.check_params(learner, init, "init")
  plan = make_plan(learner, target, test, steps, batch_size, record_every, lessons, tolerance, metrics, probe)
  return run(key, learner, teacher, Task(pool, target, test, tolerance), init, resume, plan=plan)


def check_teachable(learner: Learner, teacher: Teacher, pool: Pool, test: Pool | None, target: Params | None) -> None:
  """Raises, naming the argument, where these do not fit together."""
  if not isinstance(teacher, Teacher):
    raise TypeError(f"teacher must come from last_jax.teachers, as greedy(...), but it is {teacher!r}")
  check_learns_from(learner, pool)
  if test is not None:
    check_learns_from(learner, test, "test")
  checks.check_two_classes(learner, pool.y, "pool")
  if target is not None:
    checks.check_params(learner, target, "target")
  elif teacher.omniscient:
    raise ValueError(f"target is missing: the teacher {teacher.name} is omniscient and steers towards it")


def make_plan(
  learner: Learner,
  target: Params | None,
  test: Pool | None,
  steps: int,
  batch_size: int,
  record_every: int,
  lessons: bool,
  tolerance: Any,
  metrics: Sequence[str],
  probe: Callable[[Params], Any] | None,
) -> Plan:
  """What is fixed when the loop is compiled, from checked settings; of the metrics those that can be computed."""
  for name, value in (("steps", steps), ("batch_size", batch_size), ("record_every", record_every)):
    checks.check_count(name, value)
  metrics = (metrics,) if isinstance(metrics, str) else tuple(metrics)
  for metric in metrics:
    checks.check_name("metrics", metric, METRICS)
  if tolerance is not None:
    checks.check_positive("tolerance", tolerance)
    if target is None:
      raise ValueError("tolerance is a distance to the target, so it needs target=")
  possible = {
    "distance": target is not None,
    "objective": True,
    "accuracy": test is not None and learner.loss.classification,
  }
  recorded = tuple(metric for metric in METRICS if metric in metrics and possible[metric])
  return Plan(steps, batch_size, min(record_every, steps), recorded, probe, bool(lessons))


class _Carry(NamedTuple):
  student: Student
  kept: Any  # What the teacher keeps from step to step.
  hitting_time: Array | None  # [] -1 until the tolerance is reached.


class _Shown(NamedTuple):
  lesson: Lessons | None
  residual: Array | None  # []


def run_inline(
  key: Key,
  learner: Learner,
  teacher: Teacher,
  task: Task,
  init: Params | None,
  resume: Result | None,
  *,
  plan: Plan,
) -> Result:
  """The compiled part of `teach`. To be called while something else is traced, as training does; otherwise `run`."""
  init_key, proposal_key, teacher_key = jax.random.split(key, 3)
  if resume is None:
    student = learner.start(learner.init(init_key) if init is None else init)
    first_step = jnp.zeros((), int)
    hitting_time = None if task.tolerance is None else jnp.where(_within_tolerance(task, student), 0, -1)
  else:
    student, first_step, hitting_time = resume.student, resume.step[-1], resume.hitting_time
    if (task.tolerance is None) != (hitting_time is None):
      raise ValueError("tolerance must be given both here and for the result to resume from, or for neither")
  x, truth = task.pool.x, learner.encode(task.pool.x, task.pool.y)
  record = _make_recorder(learner, task, plan, truth)
  memory = teacher.prepare(learner, x, truth, task.target)
  shown_target = task.target if teacher.omniscient else None

  def view_of(student: Student, step: Array, kept: Any) -> View:
    return View(learner, student, x, truth, step, jax.random.fold_in(teacher_key, step), proposal_key, kept)

  def iterate(carry: _Carry, inputs: tuple[Array, Array]) -> tuple[_Carry, _Shown | None]:
    """One iteration: the loop proposes, the teacher decides, the student learns."""
    step, proposal = inputs
    student = carry.student
    view = view_of(student, step, carry.kept)
    lesson = teacher.lesson(memory, view, shown_target, proposal)
    shown = _Shown(lesson, teacher.residual(memory, view, shown_target, lesson)) if plan.lessons else None
    student = learner.step(student, x[lesson.index], lesson.label)
    kept = teacher.follow(memory, view, shown_target, lesson, student)
    hit = carry.hitting_time
    if hit is not None:
      hit = jnp.where((hit < 0) & _within_tolerance(task, student), step + 1, hit)
    return _Carry(student, kept, hit), shown

  def stretch(carry: _Carry, start: Array, records: int, stride: int):
    """`records` times `stride` iterations from `start` on, with a record after each stride."""
    count = records * stride
    steps = start + jnp.arange(count)
    proposals = propose(proposal_key, steps, plan.batch_size, len(task.pool))
    inputs = jax.tree.map(lambda leaf: leaf.reshape(records, stride, *leaf.shape[1:]), (steps, proposals))

    def stride_then_record(carry: _Carry, inputs):
      carry, shown = jax.lax.scan(iterate, carry, inputs)
      return carry, (record(carry.student.params), shown)

    carry, (recorded, shown) = jax.lax.scan(stride_then_record, carry, inputs)
    flat = jax.tree.map(lambda leaf: leaf.reshape(count, *leaf.shape[2:]), shown)
    return carry, (steps[stride - 1 :: stride] + 1, recorded, flat)

  kept = teacher.begin(memory, view_of(student, first_step, None), shown_target)
  if resume is not None:
    kept = _keep_on(resume.kept, kept)
  carry = _Carry(student, kept, hitting_time)
  start = (first_step[None], jax.tree.map(lambda v: v[None], record(student.params)), None)
  pieces = [start]
  per_stretch = max(1, _PROPOSED_AHEAD // plan.record_every)
  stretches, left = divmod(plan.steps, per_stretch * plan.record_every)
  done = first_step
  if stretches > 1:
    length = per_stretch * plan.record_every
    carry, piece = jax.lax.scan(
      lambda carry, begin: stretch(carry, begin, per_stretch, plan.record_every),
      carry,
      done + length * jnp.arange(stretches),
    )
    pieces.append(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), piece))
    done = done + length * stretches
  else:
    left += stretches * per_stretch * plan.record_every
  for records, stride in ((left // plan.record_every, plan.record_every), (1, left % plan.record_every)):
    if records * stride:
      carry, piece = stretch(carry, done, records, stride)
      pieces.append(piece)
      done = done + records * stride

  steps, recorded, shown = zip(*pieces, strict=True)
  recorded = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *recorded)
  curriculum = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *shown[1:]) if plan.lessons else _Shown(None, None)
  return Result(
    step=jnp.concatenate(steps),
    distance=recorded.get("distance"),
    objective=recorded.get("objective"),
    accuracy=recorded.get("accuracy"),
    probe=recorded.get("probe"),
    hitting_time=carry.hitting_time,
    lessons=curriculum.lesson,
    student=carry.student,
    kept=carry.kept,
    residual=curriculum.residual,
  )


run = jax.jit(run_inline, static_argnames="plan")


def kept_at_first(learner: Learner, teacher: Teacher, task: Task, student: Student) -> Any:
  """What the teacher keeps from step to step, before a student's first."""
  x, truth = task.pool.x, learner.encode(task.pool.x, task.pool.y)
  view = View(learner, student, x, truth, jnp.zeros((), int), jax.random.key(0))
  return teacher.begin(teacher.prepare(learner, x, truth, task.target), view, task.target)


def go_on_from(student: Student, step: Array, hitting_time: Array | None = None, kept: Any = None) -> Result:
  """A result to resume from, with nothing in it that is not needed for that: `step [1]` iterations were taken."""
  return Result(step, None, None, None, None, hitting_time, None, student, kept)


def _keep_on(earlier: Any, anew: Any) -> Any:
  """What the teacher kept when it stopped, to go on to the same bits; unless it is not what it would begin with now.

  That is so after another teacher or with another pool.
  """
  shapes: list[Any] = [jax.tree.map(jax.typeof, kept) for kept in (earlier, anew)]
  if shapes[0] != shapes[1]:
    return anew
  pairs = list(zip(jax.tree.leaves(earlier), jax.tree.leaves(anew), strict=True))
  size = sum((jnp.max(jnp.abs(new)) for _, new in pairs), jnp.zeros(()))
  gap = sum((jnp.max(jnp.abs(old - new)) for old, new in pairs), jnp.zeros(()))
  same = gap <= 256 * jnp.finfo(size.dtype).eps * size  # Rounding since it began.
  return jax.tree.map(lambda old, new: jnp.where(same, old, new), earlier, anew)


def _within_tolerance(task: Task, student: Student) -> Array:
  return synthesis.squared_distance(student.params, task.target) <= jnp.square(task.tolerance)


def _make_recorder(learner: Learner, task: Task, plan: Plan, truth: Array) -> Callable[[Params], dict[str, Any]]:
  test = task.test if "accuracy" in plan.metrics else None
  test_truth: Any = None if test is None else learner.encode(test.x, test.y)

  def record(params: Params) -> dict[str, Any]:
    """Nothing is computed here that is not recorded."""
    values: dict[str, Any] = {}
    if "distance" in plan.metrics:
      values["distance"] = jnp.sqrt(synthesis.squared_distance(params, task.target))
    if "objective" in plan.metrics:
      values["objective"] = learner.objective(params, task.pool.x, truth)
    if test is not None:
      values["accuracy"] = learner.accuracy(params, test.x, test_truth)
    if plan.probe is not None:
      values["probe"] = plan.probe(params)
    return values

  return record
