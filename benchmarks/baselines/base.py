"""Inputs and outputs of all baselines of teaching linear students."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cases import Case


class Arrays(NamedTuple):
  """A case of logistic students. The bias is one more weight, of a feature that is always 1.

  NumPy arrays, or those of the baseline's own library.
  """

  x: Any  # [n, d + 1], the last column 1.
  truth: Any  # [n]
  target: Any  # [d + 1]
  init: Any  # [S, d + 1]
  keep: Any  # [d + 1] factor of weight decay in a step; 1 for the bias.


class Trajectory(NamedTuple):
  """The students' distances to the target, and where they end."""

  distance: np.ndarray  # [S, steps + 1]; the first is the start's.
  params: np.ndarray  # [S, d + 1]


# (examples proposed [steps, S], or None to draw them) -> trajectory. Only this call is timed, not its preparation.
Teach = Callable[[np.ndarray | None], Trajectory]


def make_arrays(case: Case) -> Arrays:
  """Return the arrays of a case, copied."""
  assert case.sizes["batch_size"] == 1, "baselines show one example in a step"
  assert case.model == "logistic", "baselines teach logistic students"
  assert case.init is not None, "students have starts"
  target = np.append(case.target["weights"][:, 0], case.target["bias"])
  keep = np.full_like(target, 1.0 - case.learning_rate * case.weight_decay)
  keep[-1] = 1.0
  return Arrays(
    x=np.concatenate([case.x, np.ones_like(case.x[:, :1])], 1),
    truth=case.y.astype(case.x.dtype),
    target=target,
    init=np.concatenate([case.init["weights"][:, :, 0], case.init["bias"]], 1),
    keep=keep,
  )


def name_threads(count: int) -> str:
  """Return "2 threads"."""
  return f"{count} thread{'' if count == 1 else 's'}"
