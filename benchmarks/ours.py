"""Our side of teaching: the calls that are timed, and the results that others are checked by."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import last_jax as last
from benchmarks import harness
from benchmarks.cases import RADIUS, STRATEGIES, Case, Strategy

_CONSTRAINTS: dict[str, Callable[[], last.constraints.Constraint]] = {
  "none": last.constraints.none,
  "one_hot": last.constraints.one_hot,
  "simplex": last.constraints.simplex,
  "magnitude": lambda: last.constraints.magnitude(RADIUS),
}


def make_teacher(strategy: Strategy) -> last.Teacher:
  """Return the teacher of a strategy."""
  if strategy.labels == "truth":
    return last.teachers.imt() if strategy.best else last.teachers.sgd()
  constraint = _CONSTRAINTS[strategy.labels]()
  return last.teachers.mixed(constraint, joint=True) if strategy.best else last.teachers.greedy(constraint)


def make_learner(case: Case) -> Any:
  """Return the learner of a case."""
  features: int = case.x.shape[1]
  rates: Any = {"learning_rate": case.learning_rate, "weight_decay": case.weight_decay}
  if case.model == "mlp":
    return last.learners.mlp((features, case.sizes["hidden"], case.sizes["classes"]), **rates)
  if case.model == "logistic":
    return last.learners.logistic(features, **rates)
  return last.learners.softmax(features, case.target["weights"].shape[1], bias="bias" in case.target, **rates)


def teach(case: Case, teacher: last.Teacher, **settings: Any) -> Callable[[], last.Result]:
  """Return a call of `last.teach_many` as users write it: its checks and random proposals are timed with it.

  Args:
    case: the students.
    teacher: their teacher.
    **settings: of `last.teach_many`. Unless given, the distance is recorded at every step.
  """
  function, arguments = _prepare(case, teacher, settings)
  return lambda: function(*arguments)


def program(case: Case, teacher: last.Teacher) -> harness.Program:
  """Return the same as one compiled program, whose memory is known."""
  function, arguments = _prepare(case, teacher, {})
  return harness.Program(function, *arguments)


def outcome(case: Case, strategy: Strategy) -> dict[str, np.ndarray]:
  """Return distances `[S, steps + 1]` and parameters `[S, d + 1]` of logistic students, the bias last."""
  result = teach(case, make_teacher(strategy))()
  params = np.concatenate([result.params["weights"][..., 0], result.params["bias"]], 1)
  return {"distance": np.asarray(result.distance), "params": params}


def lessons(case: Case, teacher: last.Teacher) -> last.Lessons:
  """Return the curriculum of each student, `[S, steps, ...]`."""
  shown = teach(case, teacher, metrics=(), lessons=True)().lessons
  assert shown is not None, "lessons were asked for"
  return shown


def proposals(case: Case) -> np.ndarray:
  """Return the examples that `last.teach_many` proposes, `[steps, S]`: those that the random teacher shows."""
  return np.asarray(lessons(case, make_teacher(STRATEGIES["sgd"])).index[:, :, 0], np.int64).T.copy()


def _prepare(
  case: Case, teacher: last.Teacher, settings: dict[str, Any]
) -> tuple[Callable[..., last.Result], tuple[Any, ...]]:
  """Return a function of arrays and these arrays, already on the devices: students split, the rest on each."""
  mesh, sizes = last.devices.mesh(), case.sizes
  usual: dict[str, Any] = {
    "steps": sizes["steps"],
    "batch_size": sizes["batch_size"],
    "metrics": ("distance",),
    "mesh": mesh,
  }

  def run(learner: Any, pool: last.Pool, target: Any, keys: Any, init: Any) -> last.Result:
    return last.teach_many(keys, learner, teacher, pool, target=target, init=init, **usual | settings)

  keys = jax.random.split(jax.random.key(case.seed), sizes["students"])
  target, init = jax.tree.map(jnp.asarray, (case.target, case.init))
  shared = last.devices.copy_to_all((last.Pool(case.x, case.y), target), mesh)
  return run, (make_learner(case), *shared, *last.devices.split((keys, init), mesh))
