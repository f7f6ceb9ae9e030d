"""Greedy teaching of networks in batched eager PyTorch, with labels sought by gradient descent.

The exact solution for the label is not used. Otherwise it is written with care: all students are rows of the same
tensors, their steps are explicit formulas, and all that does not depend on the label is computed once per descent.
Autograd is for the label only.
"""

from typing import Any, NamedTuple

import numpy as np

from benchmarks.baselines.torch_tools import Tensor
from benchmarks.cases import Case

DESCENT_STEPS = 50
# Of Adam, on the logits of the label: enough to cross the simplex in those steps.
_DESCENT_RATE = 0.3


class Layers(NamedTuple):
  """Parameters of all students, with a leading [S]; of the target without."""

  weights_0: Tensor  # [S, d, h]
  bias_0: Tensor  # [S, h]
  weights_1: Tensor  # [S, h, K]
  bias_1: Tensor  # [S, K]


class Network:
  """The students of a case."""

  def __init__(self, case: Case):
    import torch

    self._case = case
    self._x = torch.tensor(case.x)
    self._target = make_layers(case.target)

  def teach(self) -> Tensor:
    """Take all steps on random examples and return the distances `[steps + 1, S]`."""
    import torch

    params = make_layers(self._case.init)
    shape = (self._case.sizes["steps"], self._case.sizes["students"])
    distances = [self.distance(params)]
    for row in torch.randint(len(self._x), shape):
      params = self.learn(params, row, self.seek_labels(params, row))
      distances.append(self.distance(params))
    return torch.stack(distances)

  def seek_labels(self, params: Layers, index: Tensor) -> Tensor:
    """Return labels `[S, K]` on the simplex for the examples `index [S]`, by descent on the distance after the step."""
    import torch

    with torch.no_grad():
      seen = self._look(params, index)
    logits = torch.zeros_like(seen.prediction, requires_grad=True)
    descent = torch.optim.Adam([logits], _DESCENT_RATE)
    for _ in range(DESCENT_STEPS):
      descent.zero_grad()
      after = self._step(params, seen, torch.softmax(logits, 1))
      self._squared_distance(after).sum().backward()
      descent.step()
    return torch.softmax(logits, 1).detach()

  def learn(self, params: Layers, index: Tensor, labels: Tensor) -> Layers:
    """Take one step of each student on an example of its own, `index [S]`, with `labels [S, K]`."""
    import torch

    with torch.no_grad():
      return self._step(params, self._look(params, index), labels)

  def distance(self, params: Layers) -> Tensor:
    """Return ||w - w*||, `[S]`."""
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
    """Return the parameters after a step on labels that sum to one; biases do not decay."""
    import torch

    rate = self._case.learning_rate
    keep = 1.0 - rate * self._case.weight_decay
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
  """Everything that a step needs besides the label."""

  x: Tensor  # [S, d]
  slope: Tensor  # [S, h] of the hidden layer's activation.
  hidden: Tensor  # [S, h]
  prediction: Tensor  # [S, K]


def make_layers(params: Any) -> Layers:
  """Return the parameters of `last.learners.mlp` as tensors."""
  import torch

  leaves = (params[layer][name] for layer in ("layer_0", "layer_1") for name in ("weights", "bias"))
  return Layers(*(torch.tensor(np.asarray(leaf)) for leaf in leaves))
