"""Teaching of linear students: last_jax against PyTorch, NumPy and C, on the same case with the same results."""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import numpy as np

from benchmarks import cases, equality, harness, ours
from benchmarks.baselines import BATCHED, C_LOOP, KINDS, PER_STUDENT, Kind
from benchmarks.baselines.base import Teach
from benchmarks.cases import STRATEGIES, Case, Strategy
from benchmarks.harness import Job, Options
from benchmarks.records import Measurement, Target

UNIT = "student-step"
_TINY = {"students": 8, "steps": 20, "pool": 50}


@dataclasses.dataclass(frozen=True)
class OwnBaseline:
  """Another strategy of last_jax to compare with, on the same case.

  Attributes:
    strategy: one of `cases.STRATEGIES`.
    target: the aim.
    shorten: divisor of the number of steps, where all would take too long.
  """

  strategy: str
  target: Target
  shorten: int = 1


@dataclasses.dataclass(frozen=True)
class TeachingJob(Job):
  """The strategy of the same name, one of `cases.STRATEGIES`, against every kind of baseline.

  Attributes:
    sizes: of the case.
    targets: the aims, by the kind of baseline.
    beside: other strategies of last_jax to compare with.
    float32: tolerance of the timed results.
  """

  sizes: Mapping[str, int]
  targets: Mapping[str, Target] = dataclasses.field(default_factory=dict)
  beside: tuple[OwnBaseline, ...] = ()
  float32: equality.Tolerance = equality.FLOAT32

  def measure(self, options: Options) -> list[Measurement]:
    """Time last_jax against every kind of baseline that this machine has."""
    case, strategy = cases.draw_linear(options.seed, **(_TINY if options.tiny else self.sizes)), STRATEGIES[self.name]
    checker = Checker(case, strategy, self.float32)
    baselines = [
      make_baseline(kind, checker, options, self.targets.get(kind.name))
      for kind in KINDS.values()
      if not kind.missing()
    ]
    baselines += [_own_baseline(case, other) for other in self.beside]
    mine = harness.Side("last_jax", ours.teach(case, ours.make_teacher(strategy)), units=case.work)
    return [harness.measure(options, self, case, UNIT, mine, baselines)]


class Checker:
  """Our results for a case in both precisions, to check others by; computed when first needed.

  Baselines are timed on examples that they draw, and checked on ours: only then is every step the same.
  """

  def __init__(self, case: Case, strategy: Strategy, float32: equality.Tolerance = equality.FLOAT32):
    self.case, self.strategy, self._float32 = case, strategy, float32

  @functools.cached_property
  def _proposals(self) -> np.ndarray:
    return ours.proposals(self.case)

  @functools.cached_property
  def _expected(self) -> dict[type, dict[str, np.ndarray]]:
    as_timed = ours.outcome(self.case, self.strategy)
    with jax.enable_x64(True):
      exact = ours.outcome(self.case.astype(np.float64), self.strategy)
    return {np.float32: as_timed, np.float64: exact}

  def check(self, dtype: type, teach: Teach, students: int) -> dict[str, float]:
    """Return the largest difference of each result of the first students, taught by `teach` in this precision."""
    theirs = teach(self._proposals[:, :students])._asdict()
    mine = {f"{name} ({np.dtype(dtype)})": values[:students] for name, values in self._expected[dtype].items()}
    theirs = {f"{name} ({np.dtype(dtype)})": values for name, values in theirs.items()}
    return equality.check_equal(mine, theirs, self._float32 if dtype == np.float32 else equality.FLOAT64)


def make_baseline(kind: Kind, checker: Checker, options: Options, target: Target | None = None) -> harness.Baseline:
  """Return a kind of baseline for a case, timed in float32 and checked in both precisions."""
  part = checker.case.of_first(kind.students)
  students = part.sizes["students"]

  def side(variant: str, teach: Teach) -> harness.Side:
    def check() -> dict[str, float]:
      exact = kind.variants(part.astype(np.float64), checker.strategy, options.threads)[variant]
      return checker.check(np.float32, teach, students) | checker.check(np.float64, exact, students)

    name = f"{kind.name}, {variant}" if variant else kind.name
    return harness.Side(name, functools.partial(teach, None), check, part.work)

  variants = kind.variants(part, checker.strategy, options.threads)
  return harness.Baseline(kind.name, [side(*each) for each in variants.items()], target)


def _own_baseline(case: Case, other: OwnBaseline) -> harness.Baseline:
  case = case.with_sizes(steps=max(1, case.sizes["steps"] // other.shorten))
  run, name = ours.teach(case, ours.make_teacher(STRATEGIES[other.strategy])), f"last_jax, {other.strategy.upper()}"
  return harness.Baseline(name, [harness.Side(name, run, units=case.work)], other.target)


_THOUSAND = {"students": 1000, "steps": 1000}
_WHOLE_POOL = {"students": 100, "steps": 200}
_EVERY_STEP = "logistic students, the distance recorded at every step"

JOBS: tuple[Job, ...] = (
  TeachingJob(
    "greedy",
    f"greedy labels on the simplex, {_EVERY_STEP}",
    _THOUSAND,
    {PER_STUDENT: Target(800.0), BATCHED: Target(10.0), C_LOOP: Target(0.8)},
    (OwnBaseline("sgd", Target(1.3, slower=True)), OwnBaseline("imt", Target(20.0), shorten=50)),
  ),
  TeachingJob("greedy_none", f"greedy labels without a constraint, {_EVERY_STEP}", _THOUSAND),
  TeachingJob(
    "greedy_one_hot", f"greedy labels of the classes, {_EVERY_STEP}", _THOUSAND, float32=equality.FLOAT32_WITH_TIES
  ),
  TeachingJob("greedy_magnitude", f"greedy labels around the truth, {_EVERY_STEP}", _THOUSAND),
  TeachingJob("sgd", f"random examples with their ground truth, {_EVERY_STEP}", _THOUSAND),
  TeachingJob(
    "imt",
    f"the best example of the pool at every step (IMT), {_EVERY_STEP}",
    _WHOLE_POOL,
    {BATCHED: Target(4.0), C_LOOP: Target(1.0)},
    float32=equality.FLOAT32_WITH_TIES,
  ),
  TeachingJob(
    "mixed",
    f"the best example of the pool and its best label on the simplex, chosen together, {_EVERY_STEP}",
    _WHOLE_POOL,
    float32=equality.FLOAT32_WITH_TIES,
  ),
)
