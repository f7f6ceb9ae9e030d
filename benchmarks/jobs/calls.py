"""The cost of a call once it is compiled, against an empty compiled function of the same arguments."""

import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import last_jax as last
from benchmarks import cases, harness, ours
from benchmarks.cases import STRATEGIES
from benchmarks.harness import Job, Options
from benchmarks.records import Limit, Measurement

EMPTY = "an empty compiled function"
THREAD = "calling thread, ms"
_SIZES = {"students": 1, "steps": 1, "pool": 1000}
_TINY = {"students": 1, "steps": 1, "pool": 50}


@dataclasses.dataclass(frozen=True)
class CallJob(Job):
  """A function that is called from Python again and again, for a logistic student with greedy labels.

  Attributes:
    prepare: `(case, seed) -> (function, arguments)`.
    most_thread_ms: bound of the time that a call takes of the calling thread, in milliseconds.
  """

  prepare: Callable[[cases.Case, int], tuple[Callable[..., Any], tuple[Any, ...]]]
  most_thread_ms: float | None = None

  def measure(self, options: Options) -> list[Measurement]:
    """Time calls one after the other; each has to wait for its result, as one does for a student's report."""
    case = cases.draw_linear(options.seed, **(_TINY if options.tiny else _SIZES))
    calls = 10 if options.tiny else 1000
    function, arguments = self.prepare(case, options.seed)
    empty = jax.jit(lambda *arguments: arguments[0])

    def repeat(call: Callable[..., Any]) -> Callable[[], Any]:
      def run() -> Any:
        for _ in range(calls):
          result = jax.block_until_ready(call(*arguments))
        return result

      return run

    mine = harness.Side("last_jax", repeat(function), units=calls)
    other = harness.Side(EMPTY, repeat(empty), units=calls)
    measured = harness.measure(options, self, case, "call", mine, [harness.Baseline(EMPTY, [other])])
    if self.most_thread_ms is None:
      return [measured]
    spent = 1e3 * statistics.median(_thread_seconds(function, arguments) for _ in range(calls))
    return [dataclasses.replace(measured, limits=(Limit(THREAD, spent, self.most_thread_ms),))]


def _thread_seconds(function: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
  """Return the processor's time for a call in this thread: other users of the machine do not count."""
  start = time.thread_time()
  jax.block_until_ready(function(*arguments))
  return time.thread_time() - start


def _lesson(case: cases.Case, seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
  problem, teacher = last.Problem(ours.make_learner(case), _pool(case), target=case.target), _teacher()
  return last.next_lesson, (last.init(jax.random.key(seed), problem, teacher), problem, teacher)


def _teach(case: cases.Case, seed: int) -> tuple[Callable[..., Any], tuple[Any, ...]]:
  def teach(key: Any, learner: Any, teacher: Any, pool: Any, target: Any, init: Any) -> Any:
    return last.teach(key, learner, teacher, pool, target=target, init=init, steps=case.sizes["steps"])

  target, init = jax.tree.map(jnp.asarray, (case.target, jax.tree.map(lambda leaf: leaf[0], case.init)))
  return teach, (jax.random.key(seed), ours.make_learner(case), _teacher(), _pool(case), target, init)


def _pool(case: cases.Case) -> last.Pool:
  return last.Pool(jnp.asarray(case.x), jnp.asarray(case.y))


def _teacher() -> last.Teacher:
  return ours.make_teacher(STRATEGIES["greedy"])


JOBS: tuple[Job, ...] = (
  CallJob("lesson", "a lesson for a live student, logistic, greedy labels on the simplex: the cost of a call", _lesson),
  CallJob("call", "a step by `teach`, logistic, greedy labels on the simplex: the cost of a call", _teach, 0.3),
)
