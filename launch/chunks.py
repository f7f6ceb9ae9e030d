"""Teaching a few steps at a time, so that progress is seen, Ctrl-C is heard, and compiling is timed apart."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

import last_jax as last
from last_jax import devices, loop
from last_jax.students import before_teaching


class Taught(NamedTuple):
  """What one method did to all students, as numpy arrays."""

  step: np.ndarray  # [records]
  metrics: dict[str, np.ndarray]  # By metric, [students, records]; only those that were recorded.
  hitting_time: np.ndarray | None  # [students], -1 where the tolerance was not reached.
  lessons: dict[str, np.ndarray] | None  # index [students, steps, m], label [students, steps, m, K]
  compile_seconds: float
  run_seconds: float  # Records included, compiling not.


class Classroom(NamedTuple):
  """Everything but the teacher: each one gets the same students and the same keys."""

  keys: jax.Array  # [students]
  learner: last.learners.Learner
  pool: last.Pool
  test: last.Pool | None
  target: Any
  init: Any  # Parameters with a leading [students] axis.
  steps: int
  batch_size: int
  record_every: int
  tolerance: float | None
  lessons: bool
  chunk: int  # How many steps are taken at a time, a multiple of record_every.
  mesh: Mesh | None = None  # Devices to split the students over.

  def check(self, teacher: last.teachers.Teacher) -> None:
    """Raises what teaching would raise, without computing anything."""
    loop.check_teachable(self.learner, teacher, self.pool, self.test, self.target)
    _Course(self, teacher).trace(self.chunk)


def chunk_length(steps: int, record_every: int) -> int:
  """How many steps to take at a time: whole records, and if possible chunks of equal length, which share a program."""
  records = max(1, steps // record_every)
  about = min(100, max(20, steps // 1000))  # Chunks: a chunk should be long against a call, and short for who waits.
  few, many = max(1, records // (2 * about)), max(1, records // (about // 4))
  fitting = [size for size in range(few, many + 1) if records % size == 0]
  size = min(fitting, key=lambda size: abs(records // size - about)) if fitting else -(-records // about)
  return min(steps, size * record_every)


class _Course:
  """One teacher in a classroom: the program that goes on by some steps, and what it is called with."""

  def __init__(self, room: Classroom, teacher: last.teachers.Teacher):
    def advance(keys, learner, teacher, pool, test, target, latest, steps):
      result = last.teach_many(
        keys,
        learner,
        teacher,
        pool,
        target=target,
        test=test,
        steps=steps,
        batch_size=room.batch_size,
        record_every=room.record_every,
        lessons=room.lessons,
        tolerance=room.tolerance,
        resume=latest,
        mesh=room.mesh,
      )
      # Only what the next chunk needs is handed on: then all chunks, the first one too, share a program.
      return result, loop.go_on_from(result.student, result.step[:, -1:], result.hitting_time, result.kept)

    # All that is large is an argument: what a program closes over is copied into it.
    self._advance = jax.jit(advance, static_argnames="steps")
    shared = devices.copy_to_all((room.learner, teacher, room.pool, room.test, room.target), room.mesh)
    self._given = (devices.split(room.keys, room.mesh), *shared)
    latest = before_teaching(
      room.learner, teacher, room.pool, target=room.target, init=room.init, tolerance=room.tolerance
    )
    self._latest = devices.split(latest, room.mesh)

  def trace(self, steps: int) -> Any:
    """The program for so many steps, not compiled yet."""
    return self._advance.trace(*self._given, self._latest, steps=steps)

  def go_on(self, program: Any) -> last.Result:
    """Runs a compiled program to its end."""
    result, self._latest = jax.block_until_ready(program(*self._given, self._latest))
    return result


def teach_in_chunks(
  room: Classroom, teacher: last.teachers.Teacher, on_chunk: Callable[[int], None] = lambda steps: None
) -> Taught:
  """Teaches all students, exactly as one call of `teach_many` would.

  Args:
    room: whom, what and how long.
    teacher: who teaches.
    on_chunk: called with the number of steps just taken.
  """
  course = _Course(room, teacher)
  pieces: list[dict[str, Any]] = []
  compiling = running = 0.0
  whole, tail = divmod(room.steps, room.chunk)
  for steps, times in ((room.chunk, whole), (tail, int(tail > 0))):
    begin = time.perf_counter()
    program = course.trace(steps).lower().compile() if times else None
    compiling += time.perf_counter() - begin
    for _ in range(times):
      begin = time.perf_counter()
      result = course.go_on(program)
      running += time.perf_counter() - begin
      pieces.append(_on_host(result, first=not pieces))
      on_chunk(steps)
  joined = {name: np.concatenate([piece[name] for piece in pieces], int(name != "step")) for name in pieces[0]}
  hitting_time = None
  if result.hitting_time is not None:
    # The students who were there before the first step: going on from a result, the loop does not look for them.
    hitting_time = np.where(joined["distance"][:, 0] <= room.tolerance, 0, devices.gather(result.hitting_time))
  return Taught(
    step=joined["step"],
    metrics={metric: joined[metric] for metric in loop.METRICS if metric in joined},
    hitting_time=hitting_time,
    lessons={name: joined[name] for name in ("index", "label")} if room.lessons else None,
    compile_seconds=compiling,
    run_seconds=running,
  )


def _on_host(result: last.Result, first: bool) -> dict[str, np.ndarray]:
  """The records as numpy arrays. The first of a later chunk repeats the last of the one before, and is dropped."""
  kept = slice(0 if first else 1, None)
  names = ["step", *(metric for metric in loop.METRICS if getattr(result, metric) is not None)]
  piece = {name: values[:, kept] for name, values in devices.gather({n: getattr(result, n) for n in names}).items()}
  piece["step"] = piece["step"][0]  # The same for all students.
  if result.lessons is not None:
    piece["index"], piece["label"] = devices.gather(result.lessons)
  return piece
