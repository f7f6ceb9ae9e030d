"""The opening of the page: what label synthesis is, shown on two students in the plane."""

import functools

import jax
import numpy as np

from last_jax import constraints, data, learners, teaching
from last_jax.base import Key, Params
from last_jax.constraints import Constraint
from last_jax.problem import Problem
from last_jax.reproduction import labels, methods, problems, seeds
from last_jax.tools.charts import Demonstration, Side

RATE, STEPS = 0.1, 110  # At the paper's rate of 1e-4 no single step could be seen.
TITLE = "What label synthesis is"
LEAD = (
  "Two students, the same start, the same random examples. For one of them a teacher chooses the label of each "
  "example; for the other it is the true label."
)
TEXT = (
  "The students learn to tell two half moons apart, an example in every iteration: the one in the ring. The student "
  "below SGD is shown it with its true label, as in stochastic gradient descent (SGD). For the other, a teacher who "
  "knows where the student is to end, at the dashed green line, takes another label: the one whose step brings the "
  "student nearest to the target. That is label synthesis teaching (LAST); here labels may be up to 1 away from the "
  "truth. (The learning rate is 0.1, so that single steps can be seen; the figures have the paper's 1e-4.)\n\n"
  "Every point has the colour of the label that it would be shown with now: blue for 0, orange for 1, a deeper blue "
  "below 0, red above 1. Labels go beyond the truth, or against it, while the student is far, and become soft when it "
  "arrives. Between its two thin lines a student is less than three quarters sure: SGD may have the direction of the "
  "target, but stays far from its certainty, and the distance counts both."
)


def make_problem(seed: int = 0) -> Problem:
  """Return the problem of the half moons, with the same target, at a learning rate that a step of can be seen."""
  learner = learners.logistic(2, learning_rate=RATE, weight_decay=problems.WEIGHT_DECAY)
  return problems.fit(learner, data.half_moons(seed))


def constraint() -> Constraint:
  """Return the set of labels: at most 1 from the truth."""
  return constraints.magnitude(1.0)


def start(problem: Problem, seed: int = 0) -> tuple[Key, Params]:
  """Return the key of the examples and the start, those of the figures' first student."""
  students = seeds.draw_students(problem.learner.init, range(seed, seed + 1))
  return students.keys[0, 0], jax.tree.map(lambda leaf: leaf[0, 0], students.params)


@functools.cache
def make_opening(seed: int = 0) -> Demonstration:
  """Teach both students, and return what is to be drawn. The same seed gives the same numbers."""
  problem = make_problem(seed)
  key, init = start(problem, seed)
  sides, params, shown = [], [], []
  ways = (methods.greedy(constraint()), "the teacher chooses the label"), (methods.sgd(), "the label is the true one")
  for name, (method, title) in zip(("LAST", "SGD"), ways, strict=True):
    result = teaching.teach(
      key, problem.learner, method.teacher, problem.pool, target=problem.target, init=init, steps=STEPS,
      metrics="distance", probe=_identity, lessons=True,
    )  # fmt: skip
    assert result.lessons is not None
    own = jax.tree.map(lambda leaf: leaf[:STEPS], result.probe)  # Before each step.
    params.append(own)
    shown.append(np.asarray(result.lessons.index)[:, 0])
    label = np.asarray(result.lessons.label, np.float64)[:, 0, 0]
    distance = np.asarray(result.distance, np.float64)[:STEPS]
    sides.append(Side(name, title, label, labels.boundary(own), distance))
  assert np.array_equal(shown[0], shown[1])  # Examples depend on the key alone.
  would_be = jax.jit(labels.label_pool)(problem, params[0], constraint())
  x, truth = np.asarray(problem.pool.x), np.asarray(problem.pool.y)
  optimal = labels.boundary(problem.target)
  return Demonstration(TITLE, LEAD, TEXT, x, truth, shown[0], np.asarray(would_be, np.float64), optimal, *sides)


def _identity(params: Params) -> Params:
  return params
