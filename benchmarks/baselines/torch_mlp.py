"""Greedy teaching of networks in batched eager PyTorch, with labels sought by gradient descent.

Nothing here knows that the label has an exact solution. It is otherwise written with care: all students are rows of the
same tensors, their steps are explicit formulas, and what does not depend on the label is computed once for all of the
descent. Autograd is for the label only.
"""

from typing import Any, NamedTuple

import numpy as np

from benchmarks.baselines.torch_tools import Tensor
from benchmarks.problems import MlpProblem

DESCENT_STEPS = 50
# Of Adam, on the numbers whose softmax is the label: enough to cross the simplex in those steps.
_DESCENT_RATE = 0.3


class Layers(NamedTuple):
  """Parameters of all students, with a leading [S]; of the target without."""

  weights_0: Tensor  # [S, d, h]
  bias_0: Tensor  # [S, h]
  weights_1: Tensor  # [S, h, K]
  bias_1: Tensor  # [S, K]


class Network:
  """The students of a problem, and how they learn."""

  def __init__(self, problem: MlpProblem):
    import torch

    self._problem = problem
    self._x = torch.tensor(problem.x)
    self._target = layers_of(problem.target)

  def teach(self, index: np.ndarray | None = None) -> Tensor:
    """All steps from the start, on the examples `index [steps, S]` or random ones: distances `[steps + 1, S]`."""
    import torch

    sizes = self._problem.sizes
    params = layers_of(self._problem.init)
    shape = (sizes.steps, sizes.students)
    shown = torch.randint(len(self._x), shape) if index is None else torch.tensor(index)
    distances = [self.distance(params)]
    for row in shown:
      params = self.learn(params, row, self.seek_labels(params, row))
      distances.append(self.distance(params))
    return torch.stack(distances)

  def seek_labels(self, params: Layers, index: Tensor) -> Tensor:
    """Labels `[S, K]` on the simplex for the examples `index [S]`, by descent on the distance after the step."""
    import torch

    with torch.no_grad():
      seen = self._look(params, index)
    numbers = torch.zeros_like(seen.prediction, requires_grad=True)
    descent = torch.optim.Adam([numbers], _DESCENT_RATE)
    for _ in range(DESCENT_STEPS):
      descent.zero_grad()
      after = self._step(params, seen, torch.softmax(numbers, 1))
      self._squared_distance(after).sum().backward()
      descent.step()
    return torch.softmax(numbers, 1).detach()

  def learn(self, params: Layers, index: Tensor, labels: Tensor) -> Layers:
    """One step of each student on an example of its own, `index [S]`, with `labels [S, K]`."""
    import torch

    with torch.no_grad():
      return self._step(params, self._look(params, index), labels)

  def distance(self, params: Layers) -> Tensor:
    """||w - w*||, `[S]`."""
    import torch

    with torch.no_grad():
      return self._squared_distance(params).sqrt()

  def _look(self, params: Layers, index: Tensor) -> "_Seen":
    import torch

    x = self._x[index]
    z = torch.baddbmm(params.bias_0[:, None], x[:, None], params.weights_0)[:, 0]
    hidden = z.relu()
    outputs = torch.baddbmm(params.bias_1[:, None], hidden[:, None], params.weights_1)[:, 0]
    return _Seen(x, (z > 0).to(z.dtype), hidden, torch.softmax(outputs, 1))

  def _step(self, params: Layers, seen: "_Seen", labels: Tensor) -> Layers:
    """The parameters after a step on labels that sum to one; weight decay is not for biases."""
    import torch

    rate = self._problem.learning_rate
    keep = 1.0 - rate * self._problem.weight_decay
    gradient = seen.prediction - labels  # In the outputs, [S, K].
    back = torch.bmm(params.weights_1, gradient[:, :, None])[:, :, 0] * seen.slope  # In the hidden layer, [S, h].
    return Layers(
      torch.baddbmm(params.weights_0, seen.x[:, :, None], back[:, None], beta=keep, alpha=-rate),
      params.bias_0 - rate * back,
      torch.baddbmm(params.weights_1, seen.hidden[:, :, None], gradient[:, None], beta=keep, alpha=-rate),
      params.bias_1 - rate * gradient,
    )

  def _squared_distance(self, params: Layers) -> Tensor:
    parts = zip(params, self._target, strict=True)
    return sum((leaf - goal).square().flatten(1).sum(1) for leaf, goal in parts)


class _Seen(NamedTuple):
  """What a step needs besides the label."""

  x: Tensor  # [S, d]
  slope: Tensor  # [S, h] of the hidden layer's activation.
  hidden: Tensor  # [S, h]
  prediction: Tensor  # [S, K]


def layers_of(params: Any) -> Layers:
  """Parameters as `last.learners.mlp` has them, as tensors."""
  import torch

  leaves = (params[layer][name] for layer in ("layer_0", "layer_1") for name in ("weights", "bias"))
  return Layers(*(torch.tensor(np.asarray(leaf)) for leaf in leaves))
