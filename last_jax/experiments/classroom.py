"""Teaching all seeds and students by one method in one compiled call; every method gets the same."""

import time
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import loop, students
from last_jax.learners import Learner
from last_jax.report import rounding_floor
from last_jax.target import fit_target
from last_jax.teachers import Teacher
from last_jax.types import Dataset, Pool, Result

MOST_RECORDS = 160  # Of a curve as it is kept and drawn; more than that nobody sees.
_TIMED_RUNS = 9


class Room(NamedTuple):
  """Everything but the teacher.

  Attributes:
    learner: who is taught.
    pool, test, target: what from, and whereto; with a leading [seeds] axis if `own_data`.
    keys: `[seeds, students]`.
    init: parameters with leading axes [seeds, students].
    own_data: whether each seed has its own pool, test pool and target.
  """

  learner: Learner
  pool: Pool
  test: Pool | None
  target: Any
  keys: jax.Array
  init: Any
  own_data: bool

  @property
  def seeds(self) -> int:
    """How many there are."""
    return self.keys.shape[0]

  @property
  def students(self) -> int:
    """How many each seed has."""
    return self.keys.shape[1]

  @property
  def rounding_floor(self) -> float:
    """How near to the target numbers can tell, mean over seeds."""
    targets = jax.tree.map(lambda leaf: leaf if self.own_data else leaf[None], self.target)
    count = jax.tree.leaves(targets)[0].shape[0]
    return float(np.mean([rounding_floor(jax.tree.map(lambda leaf, i=i: leaf[i], targets)) for i in range(count)]))

  def first(self, seeds: int, students: int) -> "Room":
    """The same with the first of them only."""
    init = jax.tree.map(lambda leaf: leaf[:seeds, :students], self.init)
    data = (self.pool, self.test, self.target)
    if self.own_data:
      data = jax.tree.map(lambda leaf: leaf[:seeds], data)
    return Room(self.learner, *data, self.keys[:seeds, :students], init, self.own_data)


class Taught(NamedTuple):
  """What one method did."""

  step: np.ndarray  # [records]
  metrics: dict[str, np.ndarray]  # By name, [seeds, records], mean over each seed's students.
  seconds: np.ndarray  # [records] of wall time, all seeds and students at once, compiling not counted.
  floor: float  # Distances below this are rounding.
  lessons: Any  # Lessons with leading axes [seeds, students], if asked for.


def make_room(
  learner: Learner, data: Sequence[Dataset] | Dataset, targets: Any, starts: Any, seeds: range, students: int = 1
) -> Room:
  """Students of every seed, with starts and examples of their own.

  Args:
    learner: who is taught.
    data: one dataset for all seeds, or one for each.
    targets: their target, or targets with a leading [seeds] axis.
    starts: `key -> params`.
    seeds: which.
    students: how many of each seed.
  """
  own = not isinstance(data, Dataset)
  sets: list[Dataset] = [data] if isinstance(data, Dataset) else list(data)
  pool: Any = stack([each.train for each in sets]) if own else sets[0].train
  test: Any = None
  if sets[0].test is not None:
    test = stack([each.test for each in sets]) if own else sets[0].test
  start_key, lesson_key = jax.random.split(jax.random.key(0))
  init = jax.jit(jax.vmap(jax.vmap(starts)))(_keys(start_key, seeds, students))
  return Room(learner, pool, test, targets, _keys(lesson_key, seeds, students), init, own)


def fit_room(learner: Learner, sets: Sequence[Dataset], seeds: range) -> Room:
  """A room where each seed has a dataset of its own, the target fitted to it, and a random start."""
  targets = stack([fit_target(learner, each.train) for each in sets])
  return make_room(learner, sets, targets, learner.init, seeds)


def seed_keys(key: jax.Array, seeds: range) -> jax.Array:
  """`[seeds]`; a seed's key does not depend on which others there are."""
  return jax.vmap(lambda seed: jax.random.fold_in(key, seed))(jnp.arange(seeds.start, seeds.stop))


def _keys(key: jax.Array, seeds: range, students: int) -> jax.Array:
  """`[seeds, students]`."""
  return jax.vmap(lambda key: jax.random.split(key, students))(seed_keys(key, seeds))


def stack(trees: Sequence[Any]) -> Any:
  """One tree whose leaves have a leading axis."""
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)


def teach_all(
  room: Room,
  teacher: Teacher,
  schedule: Sequence[tuple[int, int]],
  *,
  batch_size: int = 1,
  metrics: Sequence[str] = loop.METRICS,
  own_teacher: bool = False,
  lessons: bool = False,
  runs: int = 1,
) -> Taught:
  """Teaches all seeds and students in one call.

  Args:
    room: whom, from what, whereto.
    teacher: who teaches; with a leading [seeds] axis on its leaves if `own_teacher`.
    schedule: (steps, record_every), one after the other.
    batch_size: examples shown in a step.
    metrics: what to record.
    own_teacher: whether each seed has its own.
    lessons: whether to keep what was shown.
    runs: how often to do it, for a time that can be trusted: the median is kept.
  """
  program, given = _compile(room, teacher, schedule, batch_size, metrics, own_teacher, lessons)
  timed = []
  for _ in range(runs):
    begin = time.perf_counter()
    parts = jax.block_until_ready(program(*given))
    timed.append(time.perf_counter() - begin)
  seconds = float(np.median(timed))
  kept = [slice(0 if place == 0 else 1, None) for place in range(len(parts))]  # A part begins where the last one ended.
  step = np.concatenate([np.asarray(part.step)[0, 0, k] for part, k in zip(parts, kept, strict=True)])
  recorded = {
    name: np.concatenate([np.asarray(getattr(part, name))[:, :, k] for part, k in zip(parts, kept, strict=True)], 2)
    for name in metrics
    if getattr(parts[0], name) is not None
  }
  chosen = thin_out(step)
  return Taught(
    step[chosen],
    {name: values[:, :, chosen].mean(1, dtype=np.float64) for name, values in recorded.items()},
    seconds * step[chosen] / step[-1],
    room.rounding_floor,
    parts[-1].lessons,
  )


def _compile(
  room: Room,
  teacher: Teacher,
  schedule: Sequence[tuple[int, int]],
  batch_size: int,
  metrics: Sequence[str],
  own_teacher: bool,
  lessons: bool,
) -> tuple[Any, tuple[Any, ...]]:
  data_axis = 0 if room.own_data else None

  def one_seed(keys: Any, teacher: Teacher, pool: Pool, test: Any, target: Any, init: Any) -> tuple[Result, ...]:
    parts: list[Result] = []
    for steps, every in schedule:
      latest = parts[-1] if parts else None
      parts.append(
        students.teach_many(
          keys,
          room.learner,
          teacher,
          pool,
          target=target,
          test=test,
          init=init,
          steps=steps,
          record_every=every,
          batch_size=batch_size,
          metrics=metrics,
          lessons=lessons,
          resume=latest,
        )
      )
    # With their students, or XLA would leave out what nothing depends on where nothing is recorded.
    return tuple(parts)

  all_seeds = jax.jit(jax.vmap(one_seed, (0, 0 if own_teacher else None, data_axis, data_axis, data_axis, 0)))
  given = (room.keys, teacher, room.pool, room.test, room.target, room.init)
  return all_seeds.lower(*given).compile(), given


def thin_out(step: np.ndarray) -> np.ndarray:
  """Which of the records `step [records]` to keep, so that none is missed on a linear axis nor on a logarithmic one."""
  if len(step) <= MOST_RECORDS:
    return np.arange(len(step))
  half = MOST_RECORDS // 2
  evenly = np.linspace(0, len(step) - 1, half)
  by_decades = np.searchsorted(step, np.geomspace(max(step[1], 1), step[-1], half))
  return np.unique(np.concatenate([evenly.round(), by_decades]).astype(int).clip(0, len(step) - 1))


def time_steps(
  rooms: Iterable[Room], teachers: dict[str, Teacher], steps: int, batch_size: int = 1
) -> list[dict[str, np.ndarray]]:
  """Seconds per step of each teacher, `[runs]`, for each of the rooms; once compiled, in turns, nothing recorded.

  Args:
    rooms: for instance one student, and many.
    teachers: by name. All seeds of a room have the same.
    steps: of one run.
    batch_size: examples shown in a step.
  """
  timed = []
  for room in rooms:
    schedule = [(steps, steps)]
    programs = {n: _compile(room, t, schedule, batch_size, (), False, False) for n, t in teachers.items()}
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for program, given in programs.values():
      jax.block_until_ready(program(*given))
    for _ in range(_TIMED_RUNS):
      for name, (program, given) in programs.items():
        begin = time.perf_counter()
        jax.block_until_ready(program(*given))
        seconds[name].append((time.perf_counter() - begin) / steps)
    timed.append({name: np.array(values) for name, values in seconds.items()})
  return timed
