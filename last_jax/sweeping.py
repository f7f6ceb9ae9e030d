"""Sweeps: every learner with every teacher, from the same seeds, in as few compiled programs as there are structures.

rates, radii = (1e-3, 1e-2, 1e-1), (0.5, 1.0)
learners = {rate: last.learners.logistic(24, learning_rate=rate) for rate in rates}
teachers = {radius: last.teachers.greedy(last.constraints.magnitude(radius)) for radius in radii}
swept = last.sweep(keys, learners, teachers, pool, target=target, steps=1000)
print(swept.table())
swept[1e-2, 0.5].distance                 # [seeds, records], as teach_many gives for this pair
swept.distance                            # [learners, teachers, seeds, records]
"""

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from last_jax import checks, devices, stacking
from last_jax.base import Key, Params, Pool, Result, Teacher, is_concrete
from last_jax.learners import Learner
from last_jax.loop import Probe
from last_jax.problem import Problem
from last_jax.stacking import Setting
from last_jax.teaching import METRICS, check_teaches, make_plan

Name = Hashable


@dataclasses.dataclass(frozen=True, repr=False)
class Sweep:
  """Results of a sweep, as NumPy arrays.

  Attributes:
    learners: their names, the first axis.
    teachers: their names, the second axis.
    results: by (learner, teacher), a `Result` as of `teach_many`: leaves have a leading [seeds] axis.
  """

  learners: tuple[Name, ...]
  teachers: tuple[Name, ...]
  results: Mapping[tuple[Name, Name], Result]

  def __getitem__(self, names: tuple[Name, Name]) -> Result:
    """Return the result of (learner, teacher)."""
    if names not in self.results:
      raise KeyError(f"{names!r} must be (learner, teacher), from {list(self.learners)} and {list(self.teachers)}")
    return self.results[names]

  def __repr__(self) -> str:
    seeds, records = self._first.step.shape
    return f"Sweep({len(self.learners)} learners x {len(self.teachers)} teachers x {seeds} seeds, {records} records)"

  @property
  def _first(self) -> Result:
    return next(iter(self.results.values()))

  @property
  def step(self) -> np.ndarray:
    """The iteration of each record, `[records]`."""
    return np.asarray(self._first.step)[0]

  @property
  def distance(self) -> np.ndarray | None:
    """||w - w*||, `[learners, teachers, seeds, records]`; None without a target."""
    return self.values("distance")

  @property
  def objective(self) -> np.ndarray | None:
    """Mean loss over the pool plus weight decay, `[learners, teachers, seeds, records]`; None if not recorded."""
    return self.values("objective")

  @property
  def accuracy(self) -> np.ndarray | None:
    """Share of the test pool, `[learners, teachers, seeds, records]`; None unless all have it."""
    return self.values("accuracy")

  @property
  def hitting_time(self) -> np.ndarray | None:
    """First iteration within the tolerance, `[learners, teachers, seeds]`, -1 for none; None without a tolerance."""
    return self.values("hitting_time")

  def values(self, metric: str) -> np.ndarray | None:
    """Return a metric with axes [learners, teachers, seeds, ...]; None unless all settings have it."""
    found = [[getattr(self.results[row, column], metric) for column in self.teachers] for row in self.learners]
    return None if any(each is None for row in found for each in row) else np.array(found)

  @property
  def diverged(self) -> dict[tuple[Name, Name], int]:
    """The settings in which students ended at numbers that are not finite, with how many did."""
    lost = {names: int(np.count_nonzero(_is_lost(result))) for names, result in self.results.items()}
    return {names: count for names, count in lost.items() if count}

  def best(self, metric: str = "distance") -> dict[Name, Name]:
    """Return for each teacher the learner whose mean is best at the end; diverged settings are left out."""
    ends = self._ends(metric).mean(-1)  # [learners, teachers]
    for row, column in self.diverged:
      ends[self.learners.index(row), self.teachers.index(column)] = np.nan
    ends = -ends if metric == "accuracy" else ends
    finite = {name: column for name, column in zip(self.teachers, ends.T, strict=True) if np.isfinite(column).any()}
    return {name: self.learners[int(np.nanargmin(column))] for name, column in finite.items()}

  def table(self, metric: str = "distance") -> str:
    """Return a metric at the end as text: a row for each learner, a column for each teacher."""
    ends, diverged = self._ends(metric), self.diverged
    seeds = ends.shape[-1]
    spread = ends.std(-1, ddof=1) / np.sqrt(seeds) if seeds > 1 else np.full(ends.shape[:-1], np.nan)

    def cell(row: int, column: int) -> str:
      lost = diverged.get((self.learners[row], self.teachers[column]))
      if lost:
        return f"diverged ({lost} of {seeds})"
      return f"{ends[row, column].mean():.3g} ± {spread[row, column]:.2g}"

    rows = [["", *map(str, self.teachers)]]
    rows += [[str(name), *(cell(row, i) for i in range(len(self.teachers)))] for row, name in enumerate(self.learners)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    title = f"{metric} after {self.step[-1]} steps: mean over {seeds} seeds ± its standard error"
    return "\n".join([title, *lines])

  def _ends(self, metric: str) -> np.ndarray:
    """Return the last record of a metric in float64, `[learners, teachers, seeds]`."""
    checks.check_name("metric", metric, METRICS)
    values = self.values(metric)
    if values is None:
      raise ValueError(f"metric={metric!r} was not recorded in every setting")
    return values[..., -1].astype(np.float64)


def sweep(
  keys: Key,
  learners: Mapping[Name, Learner] | Learner,
  teachers: Mapping[Name, Teacher] | Teacher,
  pool: Pool,
  *,
  target: Params | Callable[[Learner], Params] | None = None,
  init: Params | Callable[[Learner], Params] | None = None,
  steps: int = 1000,
  batch_size: int = 1,
  record_every: int = 1,
  test: Pool | None = None,
  lessons: bool = False,
  tolerance: Any = None,
  metrics: Sequence[str] | str | None = None,
  probe: Probe | None = None,
  mesh: Mesh | None = None,
  at_once: int = 4096,
) -> Sweep:
  """Teach with every pair of a learner and a teacher, each from the same keys.

  Pairs that differ in numbers only (rates, weight decay, radii, shares, ...) share a compiled program and are taught
  together; those of other structure (sizes, losses, kinds of teacher or of label set) have programs of their own. The
  result of a pair is that of `teach_many` with these keys: up to rounding, and to the bit where XLA compiles both
  alike, as it does for most linear learners on a CPU. A pair that diverges affects no other: see `Sweep.diverged`.

  Args:
    keys: `[seeds]`, one for each student of a pair.
    learners: by name, which may be a number: `{rate: learners.logistic(24, learning_rate=rate) for rate in rates}`.
    teachers: likewise.
    pool: the examples to teach from.
    target: w* of all learners, or a function that returns that of a learner.
    init: starts with a leading [seeds] axis, or a function of the learner that returns them. Random unless given, and
      equal for learners whose parameters are alike.
    mesh: devices to split the students over, all of a call together: `devices.mesh()`.
    at_once: the largest number of students in a call. It bounds the memory on the devices; results are kept on the
      host.

  The rest is as for `teach`.

  Returns:
    A `Sweep`, a table of results by name.
  """
  keys = check_keys(keys)
  at_once = checks.check_count("at_once", at_once)
  devices.check_mesh(mesh)
  shared = {"test": test, "tolerance": tolerance}
  plan: dict[str, Any] = {"steps": steps, "batch_size": batch_size, "record_every": record_every, "lessons": lessons}
  learners, teachers = _by_name("learners", learners, Learner), _by_name("teachers", teachers, Teacher)
  settings: dict[Any, Setting] = {}  # By (learner, teacher).
  for row, problem, start in _problems(learners, pool, target, init, keys.shape[0], shared):
    with _naming(f"learners[{row!r}]"):
      planned = make_plan(problem, metrics=metrics, probe=probe, **plan)
    for column, teacher in teachers.items():
      with _naming(f"learners[{row!r}], teachers[{column!r}]"):
        check_teaches(teacher, problem)
      settings[row, column] = Setting(problem, teacher, planned, start)
  found = dict(stacking.teach_settings(keys, settings, at_once=at_once, mesh=mesh))
  results = {names: found[names] for names in settings}
  return Sweep(tuple(learners), tuple(teachers), results)


def check_keys(keys: Any) -> Key:
  """Return typed keys `[seeds]`, or raise."""
  keys = checks.as_key(keys, "keys")
  if keys.ndim != 1 or keys.shape[0] == 0:
    raise ValueError(f"keys must have shape [seeds], as jax.random.split(key, seeds), but it has shape {keys.shape}")
  if not is_concrete(keys):
    raise TypeError("keys must not be traced: a sweep runs several programs and cannot be part of one; vmap `teach`")
  return keys


def _by_name(argument: str, values: Any, kind: type) -> dict[Name, Any]:
  if isinstance(values, kind):
    return {getattr(values, "name", "learner"): values}
  if not isinstance(values, Mapping):
    raise TypeError(
      f"{argument} must be a {kind.__name__} or a dict of them by name, but it is a {type(values).__name__}"
    )
  if not values:
    raise ValueError(f"{argument} is empty: give at least one")
  for name, value in values.items():
    if not isinstance(value, kind):
      raise TypeError(f"{argument}[{name!r}] must be a {kind.__name__}, but it is a {type(value).__name__}")
  return dict(values)


def _problems(
  learners: Mapping[Name, Learner], pool: Pool, target: Any, init: Any, seeds: int, shared: Mapping[str, Any]
) -> Iterator[tuple[Name, Problem, Params | None]]:
  """Yield name, problem and starts of each learner. Problems share all arrays that are equal."""
  known: dict[Any, Problem] = {}
  checked: dict[Any, Params] = {}
  for name, learner in learners.items():
    with _naming(f"learners[{name!r}]"):
      leaves, structure = jax.tree.flatten(learner)
      kind = (structure, tuple(map(np.shape, leaves)))
      if _is_function(target) or kind not in known:
        with checks.calling("target"):
          given = target(learner) if _is_function(target) else target
        problem = Problem(learner, pool, target=given, **shared)
        if kind in known:  # Labels depend on the structure alone.
          problem.truth, problem.test_truth = known[kind].truth, known[kind].test_truth
        known.setdefault(kind, problem)
      else:
        problem = copy.copy(known[kind])
        problem.learner = learner
      with checks.calling("init"):
        start = init(learner) if _is_function(init) else init
      if start is not None and (kind, id(start)) not in checked:
        checks.check_params(learner, start, "init", students=seeds)
        checked[kind, id(start)] = start
    yield name, problem, start


def _is_function(value: Any) -> bool:
  """Return whether a value is a function, and not parameters in a tree that can be called."""
  return callable(value) and jax.tree_util.all_leaves((value,))


@contextlib.contextmanager
def _naming(place: str) -> Iterator[None]:
  """Put the setting in front of the messages of errors that are raised inside."""
  try:
    yield
  except (ValueError, TypeError) as error:
    kind = ValueError if isinstance(error, ValueError) else TypeError
    named = kind(f"{place}: {error}")
    for note in getattr(error, "__notes__", ()):
      named.add_note(note)
    raise named from error


def _is_lost(result: Result) -> np.ndarray:
  """Return whether each student ended at numbers that are not finite, `[seeds]`."""
  ends = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(result.params)]
  ends += [values[:, -1:] for values in map(result.__getattribute__, METRICS) if values is not None]
  return ~np.all([np.isfinite(each).all(1) for each in ends], axis=0)
