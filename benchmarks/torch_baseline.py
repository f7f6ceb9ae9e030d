"""The same teaching in batched eager PyTorch, as one would write it with care: the baseline of the benchmarks.

All students are rows of one tensor. There is no Python loop but that over the steps, nothing is computed twice that
stays the same, results are written into tensors made ahead, and nothing is recorded for gradients. The bias is one more
weight, of a feature that is always 1, so that an example is one row and an output one product.

PyTorch is imported when it is used: everything else works without it.
"""

import dataclasses
import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from benchmarks.problems import Problem

Tensor = Any  # torch.Tensor, which is not imported here.
Returned = TypeVar("Returned")


def is_installed() -> bool:
  """Whether there is a PyTorch to compare with."""
  return importlib.util.find_spec("torch") is not None


@dataclasses.dataclass(frozen=True)
class Task:
  """A problem as tensors."""

  x: Tensor  # [n, d + 1], the last column 1.
  truth: Tensor  # [n]
  target: Tensor  # [d + 1]
  init: Tensor  # [S, d + 1]
  learning_rate: float
  weight_decay: float


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What teaching gave."""

  distance: Tensor  # [steps + 1, S]; the first is the start's.
  params: Tensor  # [S, d + 1]


# (task, examples proposed [steps, S]) -> outcome.
Teach = Callable[[Task, Tensor], Outcome]


def task_of(problem: Problem) -> Task:
  """The problem's arrays as tensors, copied."""
  import torch

  init = np.concatenate([problem.init_weights, problem.init_bias[:, None]], 1)
  return Task(
    x=torch.tensor(np.concatenate([problem.x, np.ones_like(problem.x[:, :1])], 1)),
    truth=torch.tensor(problem.y.astype(problem.x.dtype)),
    target=torch.tensor(np.append(problem.target_weights, problem.target_bias)),
    init=torch.tensor(init),
    learning_rate=problem.learning_rate,
    weight_decay=problem.weight_decay,
  )


def draw_proposals(task: Task, steps: int) -> Tensor:
  """Random examples for every step and student, `[steps, S]`, by PyTorch's own generator in one call."""
  import torch

  return torch.randint(task.x.shape[0], (steps, task.init.shape[0]))


def with_threads(count: int, run: Callable[[], Returned]) -> Callable[[], Returned]:
  """The same, by `count` threads, however many PyTorch uses otherwise."""
  import torch

  def run_with_threads() -> Returned:
    usual = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
      return run()
    finally:
      torch.set_num_threads(usual)

  return run_with_threads


def threads_to_try() -> list[int]:
  """As many threads as PyTorch uses by default, and one."""
  import torch

  return sorted({torch.get_num_threads(), 1}, reverse=True)


def greedy(task: Task, proposals: Tensor) -> Outcome:
  """Greedy labels in [0, 1] for the proposed examples: the best free label, cut off."""
  import torch

  with torch.inference_mode():
    rate, shrink = task.learning_rate, task.learning_rate * task.weight_decay
    steps = proposals.shape[0]
    scale = rate * task.x.square().sum(1)  # [n]
    # What a step needs of its examples besides x, looked up for all steps at once.
    target_outputs = (task.x @ task.target)[proposals].unbind(0)
    scales = scale[proposals].unbind(0)
    proposed = proposals.unbind(0)
    students = _Students(task, steps)
    x, product = torch.empty_like(students.params), torch.empty_like(students.params)
    for step in range(steps):
      torch.index_select(task.x, 0, proposed[step], out=x)
      outputs = torch.mul(students.params, x, out=product).sum(1)
      # <e, x> with e = w - eta lambda w - w*; the bias does not decay.
      errors = torch.add(outputs, outputs - students.bias, alpha=-shrink).sub_(target_outputs[step])
      prediction = outputs.sigmoid_()
      label = torch.sub(prediction, errors.div_(scales[step])).clamp_(0.0, 1.0)
      students.learn(x, prediction.sub_(label))
    return students.outcome()


def imt(task: Task, proposals: Tensor) -> Outcome:
  """The example of the pool that is best for the next step, with its ground truth; proposals say how many steps."""
  import torch

  with torch.inference_mode():
    rate, shrink = task.learning_rate, task.learning_rate * task.weight_decay
    steps = proposals.shape[0]
    columns = task.x.t().contiguous()  # [d + 1, n]
    scale = 0.5 * rate * task.x.square().sum(1)
    target_outputs = task.x @ task.target
    students = _Students(task, steps)
    outputs = task.x.new_empty(task.init.shape[0], task.x.shape[0])
    gradients, scores = torch.empty_like(outputs), torch.empty_like(outputs)
    for _ in range(steps):
      torch.mm(students.params, columns, out=outputs)
      torch.sigmoid(outputs, out=gradients).sub_(task.truth)
      # G up to what is the same for all examples, over 2 eta: u (eta u ||x||^2 / 2 - <e, x>), e as for greedy labels.
      # The products with x are at hand, so <e, x> costs no second matrix product.
      errors = outputs.mul_(1.0 - shrink).sub_(target_outputs).add_(students.bias[:, None], alpha=shrink)
      best = torch.mul(gradients, scale, out=scores).sub_(errors).mul_(gradients).argmin(1)
      students.learn(task.x.index_select(0, best), gradients.gather(1, best[:, None])[:, 0])
    return students.outcome()


def sgd(task: Task, proposals: Tensor) -> Outcome:
  """The proposed examples with their ground truth."""
  import torch

  with torch.inference_mode():
    steps = proposals.shape[0]
    truth, proposed = task.truth[proposals].unbind(0), proposals.unbind(0)
    students = _Students(task, steps)
    x, product = torch.empty_like(students.params), torch.empty_like(students.params)
    for step in range(steps):
      torch.index_select(task.x, 0, proposed[step], out=x)
      outputs = torch.mul(students.params, x, out=product).sum(1)
      students.learn(x, outputs.sigmoid_().sub_(truth[step]))
    return students.outcome()


class _Students:
  """Parameters `[S, d + 1]`, changed in place, and the distance after every step."""

  def __init__(self, task: Task, steps: int):
    import torch

    self._task = task
    self.params = task.init.clone()
    self.bias = self.params[:, -1]
    # Weight decay, but not of the bias.
    self._keep = torch.full_like(task.target, 1.0 - task.learning_rate * task.weight_decay)
    self._keep[-1] = 1.0
    self._difference = torch.empty_like(self.params)
    self._distance = task.x.new_empty(steps + 1, self.params.shape[0])
    self._rows = iter(self._distance.unbind(0))
    self._record()

  def learn(self, x: Tensor, gradient: Tensor) -> None:
    """One step on an example each, `x [S, d + 1]`, given the gradients in the outputs `[S]`."""
    self.params.mul_(self._keep).addcmul_(x, gradient[:, None], value=-self._task.learning_rate)
    self._record()

  def _record(self) -> None:
    import torch

    torch.sub(self.params, self._task.target, out=self._difference)
    torch.linalg.vector_norm(self._difference, dim=1, out=next(self._rows))

  def outcome(self) -> Outcome:
    return Outcome(self._distance, self.params)
