"""Our own side of teaching linear students: what is timed, and what others are checked by."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import last_jax as last
from benchmarks import harness
from benchmarks.problems import METHODS, RADIUS, Method, MlpProblem, Problem

_CONSTRAINTS: dict[str, Callable[[], last.constraints.Constraint]] = {
  "none": last.constraints.none,
  "one_hot": last.constraints.one_hot,
  "simplex": last.constraints.simplex,
  "magnitude": lambda: last.constraints.magnitude(RADIUS),
}


def teacher_of(method: Method) -> last.teachers.Teacher:
  """Who teaches so."""
  if method.labels == "truth":
    return last.teachers.imt() if method.best else last.teachers.sgd()
  constraint = _CONSTRAINTS[method.labels]()
  return last.teachers.mixed(constraint, joint=True) if method.best else last.teachers.greedy(constraint)


class OnDevices(NamedTuple):
  """What `last.teach_many` is given, where it is needed: students split over all devices, the rest on each."""

  keys: Any  # [S]
  init: Any
  pool: last.Pool
  target: Any
  mesh: Any

  def teach(self, learner: Any, teacher: last.teachers.Teacher, **settings: Any) -> last.Result:
    """`last.teach_many`, with the distance recorded at every step unless settings say otherwise."""
    given = {"init": self.init, "target": self.target, "mesh": self.mesh, "metrics": ("distance",)}
    return last.teach_many(self.keys, learner, teacher, self.pool, **given | settings)


def on_devices(problem: Problem | MlpProblem, target: Any, init: Any) -> OnDevices:
  """The students of a problem, with parameters as their learner has them."""
  mesh = last.devices.mesh()
  keys = jax.random.split(jax.random.key(problem.seed), problem.sizes.students)
  target, init = jax.tree.map(jnp.asarray, (target, init))
  pool = last.Pool(problem.x, problem.y)
  keys, init = last.devices.split((keys, init), mesh)
  pool, target = last.devices.copy_to_all((pool, target), mesh)
  return OnDevices(keys, init, pool, target, mesh)


def teach(problem: Problem, method: Method, **settings: Any) -> Callable[[], last.Result]:
  """`last.teach_many`, as a user calls it: its checks and its own random proposals are timed with it."""
  learner, given, settings = _given(problem, settings)
  teacher = teacher_of(method)
  return lambda: given.teach(learner, teacher, **settings)


def program(problem: Problem, method: Method) -> harness.Program:
  """The same as one compiled program, which knows what memory it needs."""
  learner, given, settings = _given(problem, {})
  teacher = teacher_of(method)

  def run(learner: Any, keys: Any, init: Any, pool: last.Pool, target: Any) -> last.Result:
    return OnDevices(keys, init, pool, target, given.mesh).teach(learner, teacher, **settings)

  return harness.Program(run, learner, *given[:-1])


def outcome(problem: Problem, method: Method) -> dict[str, np.ndarray]:
  """Distances `[S, steps + 1]` and parameters `[S, d + 1]` of logistic students, the bias last."""
  result = teach(problem, method)()
  params = np.concatenate([result.params["weights"][..., 0], result.params["bias"]], 1)
  return {"distance": np.asarray(result.distance), "params": params}


def lessons(problem: Problem, method: Method) -> last.Lessons:
  """What is shown, with a leading [students] axis."""
  shown = teach(problem, method, metrics=(), lessons=True)().lessons
  assert shown is not None, "lessons were asked for"
  return shown


def proposals(problem: Problem) -> np.ndarray:
  """The examples that `last.teach_many` proposes, `[steps, S]`: those that the random teacher shows."""
  return np.asarray(lessons(problem, METHODS["sgd"]).index[:, :, 0], np.int64).T.copy()


def _given(problem: Problem, settings: dict[str, Any]) -> tuple[Any, OnDevices, dict[str, Any]]:
  """The learner, the students, and the settings of `last.teach_many` with those of the problem's sizes."""
  sizes, outputs = problem.sizes, problem.target_bias.shape[0]
  softmax = functools.partial(last.learners.softmax, num_classes=outputs)
  make = last.learners.logistic if outputs == 1 else softmax
  learner = make(sizes.features, learning_rate=problem.learning_rate, weight_decay=problem.weight_decay)
  target = {"weights": problem.target_weights, "bias": problem.target_bias}
  init = {"weights": problem.init_weights, "bias": problem.init_bias}
  settings = {"steps": sizes.steps, "batch_size": sizes.batch_size} | settings
  return learner, on_devices(problem, target, init), settings
