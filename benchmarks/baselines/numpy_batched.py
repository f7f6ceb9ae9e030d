"""The same teaching in NumPy: all students are rows of one array, results are written into preallocated arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit

from benchmarks.baselines.base import Arrays, Teach, Trajectory, make_arrays
from benchmarks.cases import RADIUS, Case, Strategy

# From the best free label and the ground truth to the best label of the set.
_LABELS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
  "none": lambda free, truth: free,
  "one_hot": lambda free, truth: (free > 0.5).astype(free.dtype),
  "simplex": lambda free, truth: np.clip(free, 0.0, 1.0),
  "magnitude": lambda free, truth: truth + np.clip(free - truth, -RADIUS, RADIUS),
}


def variants(case: Case, strategy: Strategy, threads: int | None = None) -> dict[str, Teach]:
  """Return the teaching of this case. NumPy has threads for matrix products only, and decides itself."""
  del threads
  return {"": _prepare(case, strategy)}


def _prepare(case: Case, strategy: Strategy) -> Teach:
  task = make_arrays(case)
  rate, steps, students = case.learning_rate, case.sizes["steps"], case.sizes["students"]
  shrink = rate * case.weight_decay
  scales, target_outputs = rate * np.einsum("nd,nd->n", task.x, task.x), task.x @ task.target
  half_scales = 0.5 * scales
  columns = np.ascontiguousarray(task.x.T)
  generator = np.random.default_rng(case.seed)

  def lesson(outputs: np.ndarray, bias: np.ndarray, index: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the gradients in the outputs, and <e, x> with e = w - eta lambda w - w*; the bias does not decay."""
    errors = outputs * (1.0 - shrink) - target_outputs[index] + shrink * bias
    prediction, truth = expit(outputs), task.truth[index]
    if strategy.labels == "truth":
      return prediction - truth, errors
    return prediction - _LABELS[strategy.labels](prediction - errors / scales[index], truth), errors

  def choose(params: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each student's best example `[S]` and its gradient in the output `[S]`."""
    gradients, errors = lesson(params @ columns, params[:, -1:], slice(None))  # [S, n]
    # G up to a constant, over 2 eta: u (eta u ||x||^2 / 2 - <e, x>).
    best = (gradients * (gradients * half_scales - errors)).argmin(1)
    return best, np.take_along_axis(gradients, best[:, None], 1)[:, 0]

  def label(params: np.ndarray, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return the gradients in the outputs `[S]` of the examples shown."""
    outputs = np.einsum("sd,sd->s", params, x)
    if strategy.labels == "truth":  # Errors are not needed then.
      return expit(outputs) - task.truth[index]
    return lesson(outputs, params[:, -1], index)[0]

  def teach(proposals: np.ndarray | None) -> Trajectory:
    if proposals is None:
      proposals = generator.integers(len(task.x), size=(steps, students))
    params, distance = task.init.copy(), np.empty((steps + 1, students), task.x.dtype)
    x, difference = np.empty_like(params), np.empty_like(params)
    _record(params, task, difference, distance[0])
    for step in range(steps):
      index, gradients = choose(params) if strategy.best else (proposals[step], None)
      np.take(task.x, index, axis=0, out=x, mode="clip")  # Any other mode copies twice.
      if gradients is None:
        gradients = label(params, x, index)
      params *= task.keep
      x *= (rate * gradients)[:, None]
      params -= x
      _record(params, task, difference, distance[step + 1])
    return Trajectory(np.sqrt(distance).T, params)

  return teach


def _record(params: np.ndarray, task: Arrays, difference: np.ndarray, row: np.ndarray) -> None:
  """Write the squared distances `[S]` into `row`."""
  np.subtract(params, task.target, out=difference)
  np.einsum("sd,sd->s", difference, difference, out=row)
