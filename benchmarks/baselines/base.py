"""What all baselines of teaching linear students share: what they are given, and what they give."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.problems import Problem


class Arrays(NamedTuple):
  """A problem of logistic students with the bias as one more weight, of a feature that is always 1.

  Made with NumPy; a baseline may turn them into arrays of its own library.
  """

  x: Any  # [n, d + 1], the last column 1.
  truth: Any  # [n]
  target: Any  # [d + 1]
  init: Any  # [S, d + 1]
  keep: Any  # [d + 1] what weight decay leaves of each weight in a step; all of the bias.


class Outcome(NamedTuple):
  """What teaching gave."""

  distance: np.ndarray  # [S, steps + 1]; the first is the start's.
  params: np.ndarray  # [S, d + 1]


# (examples proposed [steps, S], or None: draw them) -> outcome. What is prepared is not timed; a call is.
Teach = Callable[[np.ndarray | None], Outcome]


def arrays_of(problem: Problem) -> Arrays:
  """The problem's arrays, copied."""
  assert problem.sizes.batch_size == 1, "baselines show one example in a step"
  assert problem.target_bias.shape == (1,), "baselines teach logistic students"
  target = np.append(problem.target_weights[:, 0], problem.target_bias)
  keep = np.full_like(target, 1.0 - problem.learning_rate * problem.weight_decay)
  keep[-1] = 1.0
  return Arrays(
    x=np.concatenate([problem.x, np.ones_like(problem.x[:, :1])], 1),
    truth=problem.y.astype(problem.x.dtype),
    target=target,
    init=np.concatenate([problem.init_weights[:, :, 0], problem.init_bias], 1),
    keep=keep,
  )


def thread_word(count: int) -> str:
  """As "2 threads"."""
  return f"{count} thread{'' if count == 1 else 's'}"
