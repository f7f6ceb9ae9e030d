"""Greedy labels on the simplex by a general convex solver: cvxpy, for one softmax student in float64, once in a step.

The problem is stated once, with parameters, so that cvxpy does not compile it again; and it is stated in the label
alone, after the weights have been eliminated on paper, which leaves the solver as little to do as possible.
"""

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import softmax

from benchmarks.cases import Case

# Solvers that come with cvxpy, and their settings: as exact as the comparison with our labels asks for.
SOLVERS: dict[str, dict[str, Any]] = {"Clarabel": {}, "OSQP": {"eps_abs": 1e-9, "eps_rel": 1e-9, "max_iter": 100_000}}

# Examples shown [steps], or None to draw them -> distances to the target [steps + 1].
Teach = Callable[[np.ndarray | None], np.ndarray]


def missing() -> str | None:
  """Return why cvxpy is not available, or None."""
  if importlib.util.find_spec("cvxpy") is not None:
    return None
  return "cvxpy is not installed, so nothing is compared with a general solver: pip install '.[bench]'"


def variants(case: Case) -> dict[str, Teach]:
  """Return the teaching of the case's first student, by the name of the solver."""
  return {name: _prepare(case, name, settings) for name, settings in SOLVERS.items()}


def _prepare(case: Case, solver: str, settings: dict[str, Any]) -> Teach:
  import cvxpy

  assert case.model == "softmax", "the student is a softmax learner"
  assert case.init is not None, "students have starts"
  x = np.concatenate([case.x, np.ones_like(case.x[:, :1])], 1).astype(float)  # [n, d + 1]
  target = np.concatenate([case.target["weights"], case.target["bias"][None]]).astype(float)  # [d + 1, K]
  start = np.concatenate([case.init["weights"][0], case.init["bias"][:1]]).astype(float)
  rate, steps, classes = case.learning_rate, case.sizes["steps"], target.shape[1]
  keep = np.full((len(target), 1), 1 - rate * case.weight_decay)
  keep[-1] = 1.0  # The bias does not decay.
  generator = np.random.default_rng(case.seed)
  free, label = cvxpy.Parameter(classes), cvxpy.Variable(classes)
  problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(label - free)), [label >= 0, cvxpy.sum(label) == 1])

  def teach(shown: np.ndarray | None) -> np.ndarray:
    params = start
    distance = [np.linalg.norm(params - target)]
    for index in generator.integers(len(x), size=steps) if shown is None else shown:
      example = x[index]
      prediction = softmax(example @ params)
      # ||keep w - eta x (p - y)' - w*||^2 = eta^2 ||x||^2 ||y - free||^2 + a constant.
      error = keep * params - target
      free.value = prediction - example @ error / (rate * example @ example)
      problem.solve(solver=solver.upper(), **settings)
      params = keep * params - rate * np.outer(example, prediction - label.value)
      distance.append(np.linalg.norm(params - target))
    return np.array(distance)

  return teach
