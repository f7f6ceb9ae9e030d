"""The same teaching in eager PyTorch for one student after the other, the simplest way: the paper's formulas."""

import numpy as np

from benchmarks.baselines.base import Teach, Trajectory, make_arrays, name_threads
from benchmarks.baselines.torch_tools import LABELS, Tensor, with_threads
from benchmarks.cases import Case, Strategy


def variants(case: Case, strategy: Strategy, threads: int | None = None) -> dict[str, Teach]:
  """Return the teaching of this case. Operations on one example are too small for more than one thread."""
  del threads
  return {name_threads(1): with_threads(1, _prepare(case, strategy))}


def _prepare(case: Case, strategy: Strategy) -> Teach:
  import torch

  arrays = make_arrays(case)
  x, truth = torch.tensor(case.x), torch.tensor(arrays.truth)
  target, target_bias = torch.tensor(arrays.target[:-1]), torch.tensor(arrays.target[-1])
  starts = torch.tensor(arrays.init[:, :-1]), torch.tensor(arrays.init[:, -1])
  rate, decay, steps = case.learning_rate, case.weight_decay, case.sizes["steps"]

  def lesson(w: Tensor, b: Tensor, x: Tensor, truth: Tensor, squared_norm: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient in the outputs and <e, x>, for one example `x [d]` or for many, `x [n, d]`."""
    prediction = torch.sigmoid(x @ w + b)
    error = x @ (w - rate * decay * w - target) + (b - target_bias)
    if strategy.labels == "truth":
      return prediction - truth, error
    label = LABELS[strategy.labels](prediction - error / (rate * squared_norm), truth)
    return prediction - label, error

  def teach_one(w: Tensor, b: Tensor, shown: list[int]) -> tuple[Tensor, Tensor]:
    squared_norms = (x**2).sum(1) + 1  # One more for the bias.
    distances = [_distance(w - target, b - target_bias)]
    for step in range(steps):
      if strategy.best:
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

  def teach(proposals: np.ndarray | None) -> Trajectory:
    shape = (steps, case.sizes["students"])
    with torch.inference_mode():
      shown = torch.randint(len(x), shape) if proposals is None else torch.tensor(proposals)
      taught = [teach_one(w, b, column.tolist()) for w, b, column in zip(*starts, shown.T, strict=True)]
      distance, params = (torch.stack(parts).numpy() for parts in zip(*taught, strict=True))
    return Trajectory(distance, params)

  return teach


def _distance(weights: Tensor, bias: Tensor) -> Tensor:
  return ((weights**2).sum() + bias**2).sqrt()
