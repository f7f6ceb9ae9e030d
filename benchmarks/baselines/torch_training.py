"""The same training of a teacher in eager PyTorch, as one would write it with care: the baseline of those benchmarks.

There are two forms. In the one, all students are rows of one tensor. In the other, one student is taught after the
other, as is simplest to write. Both share the code below, and with it all care: students' gradients are
explicit formulas, so that autograd is for the policy only; what stays the same during an episode (the standardization
of features, the part of the first layer that belongs to the examples and the target) is computed for all steps at once,
distances too; where no gradient is needed none is recorded; Adam is fused.

PyTorch is imported when it is used: everything else works without it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.baselines.torch_tools import Tensor


@dataclasses.dataclass(frozen=True)
class Setup:
  """What is taught and how, as tensors and numbers. The students are softmax learners without a bias.

  The first layer's inputs are, in this order: for unrolling x, label, prediction, params and target; for policy
  gradient progress and params.
  """

  x: Tensor  # [n, d]
  truth: Tensor  # [n, K]
  target: Tensor  # [d, K]
  learning_rate: float  # Of the students.
  weight_decay: float
  center: Tensor  # [inputs] what features are shifted by
  scale: Tensor  # [inputs] and divided by.
  actions: Tensor | None  # [A, K], for policy gradient.
  discount: float  # Of the error after a step, backwards, for unrolling; of its reward for policy gradient.
  baseline: float  # Of rewards.
  policy_rate: float
  policy_decay: float
  spread: float  # How far around the target students start.
  num_reset: int  # How many of them start anew after an episode.


@dataclasses.dataclass(frozen=True)
class Episode:
  """What an episode gave."""

  loss: Tensor  # [] what the trainer records.
  surrogate: Tensor  # [] what is differentiated: for unrolling the same.
  students: Tensor  # [N, d, K] afterwards.


# (setup, the network's weights, students [N, d, K], examples [T, N], actions [T, N] or None to draw them) -> episode.
Method = Callable[[Setup, Sequence[Tensor], Tensor, Tensor, Tensor | None], Episode]


def unrolled(setup: Setup, network: Sequence[Tensor], students: Tensor, index: Tensor, actions: Any = None) -> Episode:
  """The gradient runs through the students' steps; labels are the softmax of the network's numbers."""
  import torch

  del actions
  horizon, count = index.shape
  params = students
  first, bias = _standardized(setup, network)
  num_shown, num_params = setup.x.shape[1] + setup.truth.shape[1], setup.target.numel()
  shown = torch.cat([setup.x, setup.truth], 1)[index]  # [T, N, d + K]
  # The part of the first layer that does not depend on the students.
  fixed = (shown @ first[:num_shown] + (bias + setup.target.reshape(-1) @ first[-num_params:])).unbind(0)
  dependent = first[num_shown:-num_params]
  x = setup.x[index]  # [T, N, d]
  rows, columns = x[:, :, None, :].unbind(0), x[:, :, :, None].unbind(0)
  visited = []
  for t in range(horizon):
    prediction = torch.softmax(torch.bmm(rows[t], params)[:, 0], 1)  # [N, K]
    seen = torch.cat([prediction, params.reshape(count, -1)], 1)
    label = torch.softmax(_after_first(network, torch.addmm(fixed[t], seen, dependent)), 1)
    params = _learn(setup, params, columns[t], prediction - label)  # The label sums to one.
    visited.append(params)
  errors = _errors(setup, torch.stack(visited))
  weights = setup.discount ** torch.arange(horizon - 1, -1, -1, dtype=errors.dtype)
  loss = (weights @ errors).mean()
  return Episode(loss, loss, params.detach())


def reinforce(setup: Setup, network: Sequence[Tensor], students: Tensor, index: Tensor, actions: Any = None) -> Episode:
  """Students are taught without gradients; then the probabilities of all actions are computed again, at once."""
  import torch

  assert setup.actions is not None, "policy gradient chooses among actions"
  horizon, count = index.shape
  with torch.no_grad():
    first, bias = _standardized(setup, network)
    x = setup.x[index]
    rows, columns = x[:, :, None, :].unbind(0), x[:, :, :, None].unbind(0)
    target_outputs = (x @ setup.target).unbind(0)
    sums, columns_of_actions = setup.actions.sum(1), setup.actions.t().contiguous()
    if actions is None:  # The largest of numbers plus Gumbel noise is drawn by its probability: all noise in one call.
      noise = x.new_empty(horizon, count, len(sums)).exponential_().log_().neg_().unbind(0)
    params, seen, taken, visited = students, [], [], []
    for t in range(horizon):
      outputs = torch.bmm(rows[t], params)[:, 0]  # [N, K]
      prediction = torch.softmax(outputs, 1)
      # <w* - w, gradient under each action>, [N, A]; the gradient in the outputs is (sum of y) p - y.
      way = target_outputs[t] - outputs
      progress = torch.addmm((way * prediction).sum(1, keepdim=True) * sums, way, columns_of_actions, alpha=-1)
      inputs = torch.cat([progress, params.reshape(count, -1)], 1)
      if actions is None:
        numbers = _after_first(network, torch.addmm(bias, inputs, first))
        chosen = (numbers + noise[t]).argmax(1)
      else:
        chosen = actions[t]
      gradient = prediction * sums[chosen][:, None] - setup.actions[chosen]
      params = _learn(setup, params, columns[t], gradient)
      seen.append(inputs)
      taken.append(chosen)
      visited.append(params)
    errors = _errors(setup, torch.stack(visited))  # [T, N]
    factors = setup.discount ** torch.arange(1, horizon + 1, dtype=errors.dtype)
    paid = (-errors - setup.baseline) * factors[:, None]
    returns = paid.flip(0).cumsum(0).flip(0)
  first, bias = _standardized(setup, network)
  logs = torch.log_softmax(_after_first(network, torch.addmm(bias, torch.cat(seen), first)), 1)
  logs = logs.gather(1, torch.cat(taken)[:, None]).reshape(horizon, count)
  return Episode(errors.sum(0).mean(), -(logs * returns).sum(0).mean(), params)


def one_at_a_time(method: Method) -> Method:
  """The same in a Python loop over the students."""
  import torch

  def episode(
    setup: Setup, network: Sequence[Tensor], students: Tensor, index: Tensor, actions: Tensor | None = None
  ) -> Episode:
    parts = [
      method(
        setup, network, students[i : i + 1], index[:, i : i + 1], None if actions is None else actions[:, i : i + 1]
      )
      for i in range(len(students))
    ]
    return Episode(
      torch.stack([part.loss for part in parts]).mean(),
      torch.stack([part.surrogate for part in parts]).mean(),
      torch.cat([part.students for part in parts]),
    )

  return episode


def _standardized(setup: Setup, network: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
  """The first layer with the shift and the scale of its inputs in it, so that they cost nothing in a step."""
  first = network[0] / setup.scale[:, None]
  return first, network[1] - setup.center @ first


def _after_first(network: Sequence[Tensor], z: Tensor) -> Tensor:
  """`[..., hidden] -> [..., width]`: from the first layer's outputs to the network's."""
  import torch

  for weights, bias in zip(network[2::2], network[3::2], strict=True):
    z = torch.addmm(bias, z.relu(), weights)
  return z


def _learn(setup: Setup, params: Tensor, columns: Tensor, gradient: Tensor) -> Tensor:
  """One step on an example each, `columns [N, d, 1]`, given the gradients in the outputs `[N, K]`."""
  import torch

  rate = setup.learning_rate
  return torch.baddbmm(params, columns, gradient[:, None], beta=1 - rate * setup.weight_decay, alpha=-rate)


def _errors(setup: Setup, visited: Tensor) -> Tensor:
  """||w - w*||^2, `[T, N]`, of `visited [T, N, d, K]`."""
  return (visited - setup.target).square().sum((2, 3))


class Training:
  """A policy network on its way, with its optimizer and its students."""

  def __init__(self, setup: Setup, method: Method, network: Sequence[np.ndarray], students: np.ndarray):
    """Begins.

    Args:
      setup: what is taught.
      method: `unrolled`, `reinforce`, or one of them by `one_at_a_time`.
      network: weights `[inputs, hidden]`, bias `[hidden]`, ... of the layers.
      students: `[N, d, K]`.
    """
    import torch

    self._setup, self._method = setup, method
    self.network = [torch.tensor(array, dtype=setup.x.dtype, requires_grad=True) for array in network]
    self._students = torch.tensor(students, dtype=setup.x.dtype)
    self._optimizer = torch.optim.Adam(
      self.network, setup.policy_rate, weight_decay=setup.policy_decay, fused=True
    )  # Its weight decay is a part of the gradient, as ours.

  def episode(self, index: Tensor, actions: Tensor | None = None) -> Episode:
    """One episode and one step of the policy, on the examples `[T, N]`; the gradient stays in the weights."""
    self._optimizer.zero_grad()
    result = self._method(self._setup, self.network, self._students, index, actions)
    result.surrogate.backward()
    self._optimizer.step()
    self._students = result.students
    return result

  def train(self, episodes: int, horizon: int) -> tuple[Tensor, Tensor]:
    """So many episodes, on random examples: losses and distances, `[episodes]` each, as ours are recorded."""
    import torch

    count, losses, distances = len(self._students), [], []
    for _ in range(episodes):
      result = self.episode(torch.randint(len(self._setup.x), (horizon, count)))
      with torch.no_grad():
        losses.append(result.loss.detach())
        distances.append(_errors(self._setup, self._students[None])[0].sqrt().mean())
        self._reset()
    return torch.stack(losses), torch.stack(distances)

  def _reset(self) -> None:
    import torch

    chosen = torch.randperm(len(self._students))[: self._setup.num_reset]
    target = self._setup.target
    self._students[chosen] = target + self._setup.spread * torch.randn(len(chosen), *target.shape, dtype=target.dtype)
