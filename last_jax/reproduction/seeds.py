"""Teaching the students of all seeds by one method, in one compiled program. All methods get the same students."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import teaching
from last_jax.base import Key, Params, Records, State, Teacher
from last_jax.problem import Problem
from last_jax.reproduction.config import Method, Tell
from last_jax.reproduction.problems import InitFn, is_per_seed
from last_jax.tools import timing

MOST_RECORDS = 160  # Of a curve: no more can be seen in a chart.
_TIMED_RUNS = 9

Programs = dict[Hashable, timing.Program]
Schedule = Sequence[tuple[int, int]]  # (steps, record_every), one part after the other.


class Students(NamedTuple):
  """The students of all seeds: their keys and starts."""

  keys: Key  # [seeds, students]
  params: Params  # With leading axes [seeds, students].

  def first(self) -> "Students":
    """Return the first student of the first seed, for problems that the seeds share."""
    return jax.tree.map(lambda leaf: leaf[:1, :1], self)


def draw_students(init_fn: InitFn, seeds: range, students: int = 1) -> Students:
  """Return `students` for each seed. A seed's do not depend on the other seeds."""
  start_key, lesson_key = jax.random.split(jax.random.key(0))

  def draw(key: Key) -> Key:
    return jax.vmap(lambda key: jax.random.split(key, students))(seed_keys(key, seeds))

  return Students(draw(lesson_key), jax.jit(jax.vmap(jax.vmap(init_fn)))(draw(start_key)))


def seed_keys(key: Key, seeds: range) -> Key:
  """Return keys `[seeds]`. A seed's key does not depend on the other seeds."""
  return jax.vmap(lambda seed: jax.random.fold_in(key, seed))(jnp.arange(seeds.start, seeds.stop))


def teach(
  problem: Problem,
  students: Students,
  method: Method,
  schedule: Schedule,
  *,
  batch_size: int = 1,
  metrics: Sequence[str] | None = None,
  probe: Callable[[Params], Any] | None = None,
  lessons: bool = False,
  runs: int = 1,
  programs: Programs | None = None,
) -> tuple[Records, float]:
  """Teach all students at once.

  Args:
    problem: shared by all seeds, or with a leading [seeds] axis on every leaf.
    students: of all seeds.
    method: a learned one has a teacher for each seed, with a leading [seeds] axis on its leaves.
    schedule: parts (steps, record_every), one after the other.
    batch_size: number of examples shown in each step. IMT shows one, as in the paper.
    metrics: to be recorded; all that are possible, unless given.
    probe: recorded function of the parameters.
    lessons: whether to record the lessons.
    runs: number of times that the program is run, for a time that can be trusted.
    programs: those compiled before, for the same problem, students and settings; receives a new one.

  Returns:
    Records as NumPy arrays: step `[records]`, at most `MOST_RECORDS`; metrics `[seeds, records]`, means over each
    seed's students; probe and lessons of every record and step, with leading axes [seeds, students]. And the seconds of
    one step of all students, compiling excluded: the median over runs.
  """
  # Methods that differ in numbers only, such as a radius, are one program.
  known, kind = {} if programs is None else programs, _kind(method)
  if kind not in known:
    known[kind] = _compile(
      problem, students, method, schedule, batch_size=batch_size, metrics=metrics, probe=probe, lessons=lessons
    )[0]
  program, given = known[kind], (students, problem, method.teacher)
  timed = [program.run(*given) for _ in range(runs)]
  records: Records = jax.tree.map(np.asarray, timed[-1][0][0])
  step = np.asarray(records.step[0, 0])
  chosen = thin_out(step)
  means = {
    name: values[:, :, chosen].mean(1, dtype=np.float64)
    for name in teaching.METRICS
    if (values := getattr(records, name)) is not None
  }
  seconds = np.median([seconds for _, seconds in timed])
  return records._replace(step=step[chosen], **means), float(seconds / step[-1])


def teach_all(
  problem: Problem,
  students: Students,
  methods: Sequence[Method],
  schedule: Schedule,
  tell: Tell,
  *,
  programs: Programs | None = None,
  **settings: Any,
) -> tuple[dict[str, Records], dict[str, float]]:
  """Return records and seconds per step of each method, by its key: see `teach`."""
  records, seconds = {}, {}
  programs = {} if programs is None else programs
  for place, method in enumerate(methods):
    tell(f"compiling and teaching: {method.name}", place / len(methods))
    records[method.key], seconds[method.key] = teach(problem, students, method, schedule, programs=programs, **settings)
  return records, seconds


def time_steps(
  problem: Problem, students: Students, methods: Iterable[Method], steps: int, batch_size: int = 1
) -> dict[str, np.ndarray]:
  """Return the seconds of one step of all students, `[runs]`, by the method's key; nothing is recorded."""
  programs = {
    each.key: _compile(problem, students, each, [(steps, steps)], batch_size=batch_size, metrics=()) for each in methods
  }
  return {key: seconds / steps for key, seconds in timing.time_in_turns(programs, _TIMED_RUNS).items()}


def _kind(method: Method) -> Hashable:
  """Return what a method's program depends on besides the settings of `teach`."""
  leaves, structure = jax.tree.flatten(method.teacher)
  return method.family, structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


def _compile(
  problem: Problem, students: Students, method: Method, schedule: Schedule, *, batch_size: int, **settings: Any
) -> tuple[timing.Program, tuple[Any, ...]]:
  """Return a program that teaches all seeds, and its arguments."""
  settings["batch_size"] = 1 if method.family == "imt" else batch_size

  def teach_seed(students: Students, problem: Problem, teacher: Teacher) -> tuple[Records, State]:
    (steps, every), *rest = schedule
    records, state = teaching.teach_many(
      students.keys, problem.learner, teacher, problem.pool, target=problem.target, test=problem.test,
      init=students.params, steps=steps, record_every=every, **settings,
    )  # fmt: skip
    parts = [records]
    for steps, every in rest:
      state, records = teaching.run(state, problem, teacher, steps=steps, record_every=every, **settings)
      parts.append(records)
    # The state is returned too: XLA would remove the work on it where nothing is recorded.
    return jax.tree.map(lambda *leaves: jnp.concatenate(leaves, 1), *parts), state

  axes = (0, 0 if is_per_seed(problem) else None, 0 if method.family == "learned" else None)
  given = (students, problem, method.teacher)
  return timing.compile_program(jax.vmap(teach_seed, axes), *given), given


def thin_out(step: np.ndarray) -> np.ndarray:
  """Return the places of records `step [records]` to draw: dense enough for a linear axis and for a logarithmic one."""
  if len(step) <= MOST_RECORDS:
    return np.arange(len(step))
  half = MOST_RECORDS // 2
  evenly = np.linspace(0, len(step) - 1, half)
  by_decades = np.searchsorted(step, np.geomspace(max(step[1], 1), step[-1], half))
  return np.unique(np.concatenate([evenly.round(), by_decades]).astype(int).clip(0, len(step) - 1))
