"""The cost of a call: a lesson for a live student, against an empty compiled function of the same arguments."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import last_jax as last
from benchmarks import cases, harness, ours
from benchmarks.cases import STRATEGIES
from benchmarks.harness import Job, Options
from benchmarks.records import Measurement

EMPTY = "an empty compiled function"
_SIZES = {"students": 1, "steps": 1, "pool": 1000}
_TINY = {"students": 1, "steps": 1, "pool": 50}


@dataclasses.dataclass(frozen=True)
class LessonJob(Job):
  """`last.next_lesson` for a logistic student, called from Python again and again."""

  def measure(self, options: Options) -> list[Measurement]:
    """Time calls one after the other; each has to wait for its result, as one does for a student's report."""
    case = cases.draw_linear(options.seed, **(_TINY if options.tiny else _SIZES))
    calls = 10 if options.tiny else 1000
    pool = last.Pool(jnp.asarray(case.x), jnp.asarray(case.y))
    problem = last.Problem(ours.make_learner(case), pool, target=case.target)
    teacher = ours.make_teacher(STRATEGIES["greedy"])
    state = last.init(jax.random.key(options.seed), problem, teacher)
    empty = jax.jit(lambda state, problem, teacher: state)

    def repeat(call: Callable[..., Any]) -> Callable[[], Any]:
      def run() -> Any:
        for _ in range(calls):
          result = jax.block_until_ready(call(state, problem, teacher))
        return result

      return run

    mine = harness.Side("last_jax", repeat(last.next_lesson), units=calls)
    other = harness.Side(EMPTY, repeat(empty), units=calls)
    return [harness.measure(options, self, case, "call", mine, [harness.Baseline(EMPTY, [other])])]


JOBS: tuple[Job, ...] = (
  LessonJob("lesson", "a lesson for a live student, logistic, greedy labels on the simplex: the cost of one call"),
)
