"""Greedy labels of softmax students on the simplex, against a general convex solver that is called in every step."""

import dataclasses
import functools

import jax
import numpy as np

import last_jax as last
from benchmarks import cases, equality, harness, ours
from benchmarks.baselines import cvxpy_student
from benchmarks.cases import Case
from benchmarks.harness import Job, Options
from benchmarks.jobs.teaching import UNIT
from benchmarks.records import Measurement

SOLVER = "cvxpy, one problem a step"
_SIZES, _TINY = {"steps": 200, "classes": 10}, {"steps": 6, "classes": 4, "pool": 20}
_SOLVED = equality.Tolerance(1e-6)  # A solver's own tolerance, after all steps.


@dataclasses.dataclass(frozen=True)
class SolverJob(Job):
  """This number of our students, against one that is taught by cvxpy.

  Attributes:
    students: how many of ours are taught at once.
  """

  students: int

  def measure(self, options: Options) -> list[Measurement]:
    """Time last_jax against the faster of cvxpy's solvers, if it is available."""
    students = min(self.students, 3) if options.tiny else self.students
    case = cases.draw_linear(options.seed, True, students=students, **(_TINY if options.tiny else _SIZES))
    mine = harness.Side("last_jax", ours.teach(case, _teacher()), units=case.work)
    baselines = [] if cvxpy_student.missing() else [make_baseline(case)]
    return [harness.measure(options, self, case, UNIT, mine, baselines)]


def make_baseline(case: Case) -> harness.Baseline:
  """Return the teaching of the case's first student by cvxpy, checked on the examples that ours is shown."""

  def side(solver: str, teach: cvxpy_student.Teach) -> harness.Side:
    run = functools.partial(teach, None)
    return harness.Side(f"cvxpy, {solver}", run, lambda: check(case, teach), case.of_first(1).work)

  return harness.Baseline(SOLVER, [side(*each) for each in cvxpy_student.variants(case).items()])


def check(case: Case, teach: cvxpy_student.Teach) -> dict[str, float]:
  """Return the largest differences of distances: as timed, in float32, and in float64, both on the same examples.

  Raises:
    ResultsDiffer: they are not those of the same labels.
  """
  differences: dict[str, float] = {}
  tolerances: dict[type, equality.Tolerance] = {np.float32: equality.FLOAT32, np.float64: _SOLVED}
  for dtype, tolerance in tolerances.items():
    with jax.enable_x64(dtype == np.float64):
      result = ours.teach(case.astype(dtype), _teacher(), lessons=True)()
      assert result.lessons is not None, "lessons were asked for"
      assert result.distance is not None, "distances are recorded"
      theirs = teach(np.asarray(result.lessons.index[0, :, 0]))
      name = f"distance ({np.dtype(dtype)})"
      differences |= equality.check_equal({name: result.distance[0]}, {name: theirs}, tolerance)
  return differences


def _teacher() -> last.Teacher:
  return last.teachers.greedy(last.constraints.simplex())


_WHAT = "greedy labels on the simplex of softmax students with ten classes, against a general convex solver"
JOBS: tuple[Job, ...] = (
  SolverJob("solver", f"{_WHAT}; a thousand students", 1000),
  SolverJob("solver_one", f"{_WHAT}; one student", 1),
)
