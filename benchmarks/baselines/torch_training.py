"""The same training of a teacher in eager PyTorch, written with care.

All students are rows of one tensor or, by `one_at_a_time`, they are taught one after the other. Students' gradients are
explicit formulas, so that autograd is for the policy only. The parts that stay the same during an episode (the
standardization of features, the share of examples and target in the first layer) are computed for all steps at once,
and so are distances. Nothing is recorded where no gradient is needed; Adam is fused.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.baselines.torch_tools import Tensor


@dataclasses.dataclass(frozen=True)
class TrainingInputs:
  """A case and the settings of training, as tensors and numbers. The students are softmax learners without a bias.

  The first layer's inputs are, in this order: for unrolling x, label, prediction, params and target; for policy
  gradient progress and params.
  """

  x: Tensor  # [n, d]
  truth: Tensor  # [n, K]
  target: Tensor  # [d, K]
  learning_rate: float  # Of the students.
  weight_decay: float
  center: Tensor  # [inputs] subtracted from features.
  scale: Tensor  # [inputs] by which they are then divided.
  actions: Tensor | None  # [A, K], for policy gradient.
  discount: float  # Of the error after a step, backwards, for unrolling; of its reward for policy gradient.
  baseline: float  # Of rewards.
  policy_rate: float
  policy_decay: float
  spread: float  # Standard deviation of the students' starts around the target.
  num_reset: int  # Number of students that start again after an episode.


@dataclasses.dataclass(frozen=True)
class Episode:
  """The results of an episode."""

  loss: Tensor  # [] recorded.
  surrogate: Tensor  # [] differentiated: for unrolling the same.
  students: Tensor  # [N, d, K] afterwards.


# (inputs, the network's weights, students [N, d, K], examples [T, N], actions [T, N] or None to draw them) -> episode.
EpisodeFn = Callable[[TrainingInputs, Sequence[Tensor], Tensor, Tensor, Tensor | None], Episode]


def unrolled(
  given: TrainingInputs, network: Sequence[Tensor], students: Tensor, index: Tensor, actions: Any = None
) -> Episode:
  """Unroll the students' steps; labels are the softmax of the network's outputs."""
  import torch

  del actions
  horizon, count = index.shape
  params = students
  first, bias = _standardized(given, network)
  num_shown, num_params = given.x.shape[1] + given.truth.shape[1], given.target.numel()
  shown = torch.cat([given.x, given.truth], 1)[index]  # [T, N, d + K]
  # The part of the first layer that does not depend on the students.
  fixed = (shown @ first[:num_shown] + (bias + given.target.reshape(-1) @ first[-num_params:])).unbind(0)
  dependent = first[num_shown:-num_params]
  x = given.x[index]  # [T, N, d]
  rows, columns = x[:, :, None, :].unbind(0), x[:, :, :, None].unbind(0)
  visited = []
  for t in range(horizon):
    prediction = torch.softmax(torch.bmm(rows[t], params)[:, 0], 1)  # [N, K]
    seen = torch.cat([prediction, params.reshape(count, -1)], 1)
    label = torch.softmax(_after_first(network, torch.addmm(fixed[t], seen, dependent)), 1)
    params = _learn(given, params, columns[t], prediction - label)  # The label sums to one.
    visited.append(params)
  errors = _errors(given, torch.stack(visited))
  weights = given.discount ** torch.arange(horizon - 1, -1, -1, dtype=errors.dtype)
  loss = (weights @ errors).mean()
  return Episode(loss, loss, params.detach())


def reinforce(
  given: TrainingInputs, network: Sequence[Tensor], students: Tensor, index: Tensor, actions: Any = None
) -> Episode:
  """Teach without gradients; then compute the probabilities of all actions again, at once."""
  import torch

  assert given.actions is not None, "policy gradient chooses among actions"
  horizon, count = index.shape
  with torch.no_grad():
    first, bias = _standardized(given, network)
    x = given.x[index]
    rows, columns = x[:, :, None, :].unbind(0), x[:, :, :, None].unbind(0)
    target_outputs = (x @ given.target).unbind(0)
    sums, columns_of_actions = given.actions.sum(1), given.actions.t().contiguous()
    if actions is None:  # The largest logit plus Gumbel noise is a draw from the softmax: all noise in one call.
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
        logits = _after_first(network, torch.addmm(bias, inputs, first))
        chosen = (logits + noise[t]).argmax(1)
      else:
        chosen = actions[t]
      gradient = prediction * sums[chosen][:, None] - given.actions[chosen]
      params = _learn(given, params, columns[t], gradient)
      seen.append(inputs)
      taken.append(chosen)
      visited.append(params)
    errors = _errors(given, torch.stack(visited))  # [T, N]
    factors = given.discount ** torch.arange(1, horizon + 1, dtype=errors.dtype)
    paid = (-errors - given.baseline) * factors[:, None]
    returns = paid.flip(0).cumsum(0).flip(0)
  first, bias = _standardized(given, network)
  logs = torch.log_softmax(_after_first(network, torch.addmm(bias, torch.cat(seen), first)), 1)
  logs = logs.gather(1, torch.cat(taken)[:, None]).reshape(horizon, count)
  return Episode(errors.sum(0).mean(), -(logs * returns).sum(0).mean(), params)


def one_at_a_time(episode_fn: EpisodeFn) -> EpisodeFn:
  """Return the same in a Python loop over the students."""
  import torch

  def episode(
    given: TrainingInputs, network: Sequence[Tensor], students: Tensor, index: Tensor, actions: Tensor | None = None
  ) -> Episode:
    parts = [
      episode_fn(
        given, network, students[i : i + 1], index[:, i : i + 1], None if actions is None else actions[:, i : i + 1]
      )
      for i in range(len(students))
    ]
    return Episode(
      torch.stack([part.loss for part in parts]).mean(),
      torch.stack([part.surrogate for part in parts]).mean(),
      torch.cat([part.students for part in parts]),
    )

  return episode


def _standardized(given: TrainingInputs, network: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
  """Fold the shift and the scale of the inputs into the first layer, so that they cost nothing in a step."""
  first = network[0] / given.scale[:, None]
  return first, network[1] - given.center @ first


def _after_first(network: Sequence[Tensor], z: Tensor) -> Tensor:
  """Apply the later layers to the first layer's outputs: `[..., hidden] -> [..., width]`."""
  import torch

  for weights, bias in zip(network[2::2], network[3::2], strict=True):
    z = torch.addmm(bias, z.relu(), weights)
  return z


def _learn(given: TrainingInputs, params: Tensor, columns: Tensor, gradient: Tensor) -> Tensor:
  """Take one step on an example each, `columns [N, d, 1]`, given the gradients in the outputs `[N, K]`."""
  import torch

  rate = given.learning_rate
  return torch.baddbmm(params, columns, gradient[:, None], beta=1 - rate * given.weight_decay, alpha=-rate)


def _errors(given: TrainingInputs, visited: Tensor) -> Tensor:
  """Return ||w - w*||^2, `[T, N]`, of `visited [T, N, d, K]`."""
  return (visited - given.target).square().sum((2, 3))


class TorchTrainer:
  """A policy network with its optimizer and its students."""

  def __init__(self, given: TrainingInputs, episode_fn: EpisodeFn, network: Sequence[np.ndarray], students: np.ndarray):
    """Make the network, its optimizer and the students.

    Args:
      given: the case and the settings.
      episode_fn: `unrolled`, `reinforce`, or one of them by `one_at_a_time`.
      network: weights `[inputs, hidden]`, bias `[hidden]`, ... of the layers.
      students: `[N, d, K]`.
    """
    import torch

    self._given, self._episode_fn = given, episode_fn
    self.network = [torch.tensor(array, dtype=given.x.dtype, requires_grad=True) for array in network]
    self._students = torch.tensor(students, dtype=given.x.dtype)
    self._optimizer = torch.optim.Adam(
      self.network, given.policy_rate, weight_decay=given.policy_decay, fused=True
    )  # Its weight decay is part of the gradient, like ours.

  def episode(self, index: Tensor, actions: Tensor | None = None) -> Episode:
    """Take an episode on the examples `[T, N]` and a step of the policy; the gradient stays in `network[i].grad`."""
    self._optimizer.zero_grad()
    result = self._episode_fn(self._given, self.network, self._students, index, actions)
    result.surrogate.backward()
    self._optimizer.step()
    self._students = result.students
    return result

  def train(self, episodes: int, horizon: int) -> tuple[Tensor, Tensor]:
    """Take some episodes on random examples: losses and distances, `[episodes]` each, as ours are recorded."""
    import torch

    count, losses, distances = len(self._students), [], []
    for _ in range(episodes):
      result = self.episode(torch.randint(len(self._given.x), (horizon, count)))
      with torch.no_grad():
        losses.append(result.loss.detach())
        distances.append(_errors(self._given, self._students[None])[0].sqrt().mean())
        self._reset()
    return torch.stack(losses), torch.stack(distances)

  def _reset(self) -> None:
    import torch

    chosen = torch.randperm(len(self._students))[: self._given.num_reset]
    target = self._given.target
    self._students[chosen] = target + self._given.spread * torch.randn(len(chosen), *target.shape, dtype=target.dtype)
