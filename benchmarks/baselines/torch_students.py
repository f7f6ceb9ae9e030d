"""The same teaching in eager PyTorch for one student after the other, as is simplest to write: the paper's formulas."""

import numpy as np

from benchmarks.baselines.base import Outcome, Teach, thread_word
from benchmarks.baselines.torch_tools import LABELS, Tensor, with_threads
from benchmarks.problems import Method, Problem


def variants(problem: Problem, method: Method, threads: int | None = None) -> dict[str, Teach]:
  """The teaching of this problem. Operations on one example are too small for more threads than one."""
  del threads
  return {thread_word(1): with_threads(1, _prepare(problem, method))}


def _prepare(problem: Problem, method: Method) -> Teach:
  import torch

  x, truth = torch.tensor(problem.x), torch.tensor(problem.y.astype(problem.x.dtype))
  target, target_bias = torch.tensor(problem.target_weights[:, 0]), torch.tensor(problem.target_bias[0])
  starts = torch.tensor(problem.init_weights[:, :, 0]), torch.tensor(problem.init_bias[:, 0])
  rate, decay, steps = problem.learning_rate, problem.weight_decay, problem.sizes.steps

  def lesson(w: Tensor, b: Tensor, x: Tensor, truth: Tensor, squared_norm: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient in the outputs and <e, x>, for one example `x [d]` or for many, `x [n, d]`."""
    prediction = torch.sigmoid(x @ w + b)
    error = x @ (w - rate * decay * w - target) + (b - target_bias)
    if method.labels == "truth":
      return prediction - truth, error
    label = LABELS[method.labels](prediction - error / (rate * squared_norm), truth)
    return prediction - label, error

  def teach_one(w: Tensor, b: Tensor, shown: list[int]) -> tuple[Tensor, Tensor]:
    squared_norms = (x**2).sum(1) + 1  # One more for the bias.
    distances = [_distance(w - target, b - target_bias)]
    for step in range(steps):
      if method.best:
        gradients, errors = lesson(w, b, x, truth, squared_norms)
        scores = rate**2 * gradients**2 * squared_norms - 2 * rate * gradients * errors
        i = torch.argmin(scores)
        gradient = gradients[i]
      else:
        i = shown[step]
        gradient, _ = lesson(w, b, x[i], truth[i], squared_norms[i])
      w = w - rate * (gradient * x[i] + decay * w)
      b = b - rate * gradient
      distances.append(_distance(w - target, b - target_bias))
    return torch.stack(distances), torch.cat([w, b[None]])

  def teach(proposals: np.ndarray | None) -> Outcome:
    shape = (steps, problem.sizes.students)
    with torch.inference_mode():
      shown = torch.randint(len(x), shape) if proposals is None else torch.tensor(proposals)
      taught = [teach_one(w, b, column.tolist()) for w, b, column in zip(*starts, shown.T, strict=True)]
      distance, params = (torch.stack(parts).numpy() for parts in zip(*taught, strict=True))
    return Outcome(distance, params)

  return teach


def _distance(weights: Tensor, bias: Tensor) -> Tensor:
  return ((weights**2).sum() + bias**2).sqrt()
