"""The same teaching in batched eager PyTorch, written with care.

All students are rows of one tensor. The only Python loop is over the steps, constants are computed once, results are
written into preallocated tensors, and nothing is recorded for gradients.
"""

import numpy as np

from benchmarks.baselines.base import Arrays, Teach, Trajectory, make_arrays, name_threads
from benchmarks.baselines.torch_tools import LABELS, Tensor, threads_to_try, with_threads
from benchmarks.cases import Case, Strategy


def variants(case: Case, strategy: Strategy, threads: int | None = None) -> dict[str, Teach]:
  """Return the teaching of this case, by the number of threads."""
  teach = _prepare(case, strategy)
  return {name_threads(count): with_threads(count, teach) for count in threads_to_try(threads)}


def _prepare(case: Case, strategy: Strategy) -> Teach:
  import torch

  task = Arrays(*map(torch.tensor, make_arrays(case)))
  rate, steps = case.learning_rate, case.sizes["steps"]
  shrink = rate * case.weight_decay

  def teach(proposals: np.ndarray | None) -> Trajectory:
    with torch.inference_mode():
      students = _Students(task, steps, rate)
      if strategy.best:
        _show_best(task, students, strategy.labels, rate, shrink)
      else:
        shape = (steps, case.sizes["students"])
        shown = torch.randint(len(task.x), shape) if proposals is None else torch.tensor(proposals)
        _show(task, students, shown, strategy.labels, rate, shrink)
      return students.trajectory()

  return teach


def _show(task: Arrays, students: "_Students", shown: Tensor, labels: str, rate: float, shrink: float) -> None:
  """Show the examples `shown [steps, S]` with their ground truth, or with their best labels."""
  import torch

  x, product = torch.empty_like(students.params), torch.empty_like(students.params)
  index = shown.unbind(0)
  # Everything else that a step needs of its examples, looked up for all steps at once.
  truth = task.truth[shown].unbind(0)
  if labels != "truth":
    target_outputs = (task.x @ task.target)[shown].unbind(0)
    scales = (rate * task.x.square().sum(1))[shown].unbind(0)
  for step in range(len(index)):
    torch.index_select(task.x, 0, index[step], out=x)
    outputs = torch.mul(students.params, x, out=product).sum(1)
    if labels == "truth":
      students.learn(x, outputs.sigmoid_().sub_(truth[step]))
      continue
    # <e, x> with e = w - eta lambda w - w*; the bias does not decay.
    errors = torch.add(outputs, outputs - students.bias, alpha=-shrink).sub_(target_outputs[step])
    prediction = outputs.sigmoid_()
    label = LABELS[labels](torch.sub(prediction, errors.div_(scales[step])), truth[step])
    students.learn(x, prediction.sub_(label))


def _show_best(task: Arrays, students: "_Students", labels: str, rate: float, shrink: float) -> None:
  """Show the example of the pool that is best for the next step, with its ground truth or its best label."""
  import torch

  columns = task.x.t().contiguous()  # [d + 1, n]
  scale = rate * task.x.square().sum(1)
  half_scale, target_outputs = 0.5 * scale, task.x @ task.target
  outputs = task.x.new_empty(len(task.init), len(task.x))
  gradients, scores = torch.empty_like(outputs), torch.empty_like(outputs)
  for _ in range(students.steps):
    torch.mm(students.params, columns, out=outputs)
    torch.sigmoid(outputs, out=gradients)
    # <e, x> from the products with x: no second matrix product.
    errors = outputs.mul_(1.0 - shrink).sub_(target_outputs).add_(students.bias[:, None], alpha=shrink)
    if labels == "truth":
      gradients.sub_(task.truth)
    else:
      free = torch.div(errors, scale, out=scores).neg_().add_(gradients)
      gradients.sub_(LABELS[labels](free, task.truth))
    # G up to a constant, over 2 eta: u (eta u ||x||^2 / 2 - <e, x>).
    best = torch.mul(gradients, half_scale, out=scores).sub_(errors).mul_(gradients).argmin(1)
    students.learn(task.x.index_select(0, best), gradients.gather(1, best[:, None])[:, 0])


class _Students:
  """Parameters `[S, d + 1]`, changed in place, and the distance after every step."""

  def __init__(self, task: Arrays, steps: int, rate: float):
    import torch

    self._task, self._rate, self.steps = task, rate, steps
    self.params: Tensor = torch.clone(task.init)
    self.bias = self.params[:, -1]
    self._difference = torch.empty_like(self.params)
    self._distance = self.params.new_empty(steps + 1, len(self.params))
    self._rows = iter(self._distance.unbind(0))
    self._record()

  def learn(self, x: Tensor, gradient: Tensor) -> None:
    """Take one step on an example each, `x [S, d + 1]`, given the gradients in the outputs `[S]`."""
    self.params.mul_(self._task.keep).addcmul_(x, gradient[:, None], value=-self._rate)
    self._record()

  def _record(self) -> None:
    import torch

    torch.sub(self.params, self._task.target, out=self._difference)
    torch.linalg.vector_norm(self._difference, dim=1, out=next(self._rows))

  def trajectory(self) -> Trajectory:
    return Trajectory(self._distance.numpy().T, self.params.numpy())
