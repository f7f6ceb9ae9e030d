"""Teaching of linear students: ours against PyTorch, NumPy and C, on the same problem with the same results."""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import numpy as np

from benchmarks import equality, harness, ours, problems
from benchmarks.baselines import BATCHED, C_LOOP, KINDS, PER_STUDENT, Kind
from benchmarks.baselines.base import Teach
from benchmarks.jobs.base import Job, Settings
from benchmarks.problems import METHODS, Method, Problem, Sizes
from benchmarks.records import Measurement, Target

UNIT = "student-step"
_TINY = Sizes(students=8, steps=20, pool=50)


@dataclasses.dataclass(frozen=True)
class Beside:
  """Another method of ours to compare with, on the same problem.

  Attributes:
    method: one of `problems.METHODS`.
    target: what is aimed at.
    steps: it is timed for steps one in so many, where all would take too long.
  """

  method: str
  target: Target
  steps: int = 1


@dataclasses.dataclass(frozen=True)
class Teaching:
  """One of `problems.METHODS`, which it has its name from.

  Attributes:
    name: which.
    description: one line.
    sizes: what it is timed at.
    targets: what is aimed at, by the kind of baseline.
    beside: other methods of ours to compare with.
    float32: how far the timed results may be apart.
  """

  name: str
  description: str
  sizes: Sizes
  targets: Mapping[str, Target] = dataclasses.field(default_factory=dict)
  beside: tuple[Beside, ...] = ()
  float32: equality.Tolerance = equality.FLOAT32

  def measure(self, settings: Settings) -> list[Measurement]:
    """Ours against every kind of baseline that this machine has."""
    problem = problems.draw(_TINY if settings.tiny else self.sizes, settings.seed)
    check = Check(problem, METHODS[self.name], self.float32)
    baselines = [
      baseline_of(kind, check, settings, self.targets.get(kind.name)) for kind in KINDS.values() if not kind.missing()
    ]
    baselines += [_beside(problem, other) for other in self.beside]
    mine = harness.Side("last_jax", ours.teach(problem, METHODS[self.name]), units=problem.sizes.work)
    return [settings.measure(self.name, problems.about(problem, self.description), UNIT, mine, baselines)]


class Check:
  """Our results for a problem, in both precisions, to check others by; computed when first asked for.

  Baselines are timed drawing their own examples, and checked on ours: only then is every step the same.
  """

  def __init__(self, problem: Problem, method: Method, float32: equality.Tolerance = equality.FLOAT32):
    self.problem, self.method, self._float32 = problem, method, float32

  @functools.cached_property
  def _proposals(self) -> np.ndarray:
    return ours.proposals(self.problem)

  @functools.cached_property
  def _expected(self) -> dict[type, dict[str, np.ndarray]]:
    as_timed = ours.outcome(self.problem, self.method)
    with jax.enable_x64(True):
      exact = ours.outcome(self.problem.astype(np.float64), self.method)
    return {np.float32: as_timed, np.float64: exact}

  def __call__(self, dtype: type, teach: Teach, students: int) -> dict[str, float]:
    """The largest difference of each result of the first students, as this teaches them in this precision."""
    theirs = teach(self._proposals[:, :students])._asdict()
    mine = {name: values[:students] for name, values in self._expected[dtype].items()}
    tolerance = dict.fromkeys(mine, self._float32 if dtype == np.float32 else equality.FLOAT64)
    return equality.check_equal(*(_named(side, dtype) for side in (mine, theirs, tolerance)))


def _named(results: Mapping, dtype: type) -> dict:
  return {f"{name} ({np.dtype(dtype)})": value for name, value in results.items()}


def baseline_of(kind: Kind, check: Check, settings: Settings, target: Target | None = None) -> harness.Baseline:
  """A kind of baseline for a problem, timed in float32 and checked in both precisions."""
  part = check.problem.of_first(kind.students)
  students = part.sizes.students

  def side(variant: str, teach: Teach) -> harness.Side:
    def check_both() -> dict[str, float]:
      exact = kind.variants(part.astype(np.float64), check.method, settings.threads)[variant]
      return check(np.float32, teach, students) | check(np.float64, exact, students)

    name = f"{kind.name}, {variant}" if variant else kind.name
    return harness.Side(name, functools.partial(teach, None), check_both, part.sizes.work)

  variants = kind.variants(part, check.method, settings.threads)
  return harness.Baseline(kind.name, [side(*each) for each in variants.items()], target)


def _beside(problem: Problem, other: Beside) -> harness.Baseline:
  sizes = dataclasses.replace(problem.sizes, steps=max(1, problem.sizes.steps // other.steps))
  method = METHODS[other.method]
  run = ours.teach(dataclasses.replace(problem, sizes=sizes), method)
  name = f"last_jax, {ours.teacher_of(method).name}"
  return harness.Baseline(name, [harness.Side(name, run, units=sizes.work)], other.target)


_THOUSAND = Sizes(students=1000, steps=1000)
_WHOLE_POOL = Sizes(students=100, steps=200)
_EVERY_STEP = "logistic students, the distance recorded at every step"

JOBS: tuple[Job, ...] = (
  Teaching(
    "greedy",
    f"greedy labels on the simplex, {_EVERY_STEP}",
    _THOUSAND,
    {PER_STUDENT: Target(800.0), BATCHED: Target(5.0), C_LOOP: Target(0.33)},
    (Beside("sgd", Target(1.3, slower=True)), Beside("imt", Target(20.0), steps=50)),
  ),
  Teaching("greedy_none", f"greedy labels without a constraint, {_EVERY_STEP}", _THOUSAND),
  Teaching(
    "greedy_one_hot", f"greedy labels of the classes, {_EVERY_STEP}", _THOUSAND, float32=equality.FLOAT32_BUT_TIES
  ),
  Teaching("greedy_magnitude", f"greedy labels around the truth, {_EVERY_STEP}", _THOUSAND),
  Teaching("sgd", f"random examples with their ground truth, {_EVERY_STEP}", _THOUSAND),
  Teaching(
    "imt",
    f"the best example of the pool at every step (IMT), {_EVERY_STEP}",
    _WHOLE_POOL,
    {BATCHED: Target(4.0), C_LOOP: Target(1.0)},
    float32=equality.FLOAT32_BUT_TIES,
  ),
  Teaching(
    "mixed",
    f"the best example of the pool and its best label on the simplex, chosen together, {_EVERY_STEP}",
    _WHOLE_POOL,
    float32=equality.FLOAT32_BUT_TIES,
  ),
)
