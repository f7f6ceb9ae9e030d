"""Objects from text, as flags and configuration files hold it: learners, label sets, settings of training.

    constraint("magnitude:0.5:1")     reward("steps:0.9")     output("residue:0.5:free")

Text that cannot be read is a ValueError that says which forms there are; the caller adds where the text came from.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from last_jax import checks, constraints, learners, models
from last_jax.base import Dataset, Pool
from last_jax.constraints import Constraint
from last_jax.io import read_arrays
from last_jax.learners import Learner
from last_jax.teachers import outputs
from last_jax.teachers.outputs import Output
from last_jax.tools.catalogue import CONSTRAINTS, LEARNERS
from last_jax.tools.styles import Ball, Variant
from last_jax.training import rewards
from last_jax.training.rewards import Reward

ACTIVATIONS = tuple(models.ACTIVATIONS)
OUTPUTS = "simplex, simplex:PRIOR, free, residue:ALPHA, residue:ALPHA:free"
ACTIONS = "binary, binary_augmented, either:PRIOR, mixtures, mixtures:MU,MU,..., FILE.npz with the array actions [A, K]"
REWARDS = "distance, loss, accuracy, steps:ACCURACY"


# --- Learners.


def default_learner(pool: Pool) -> str:
  """Return the name of the linear learner that fits a pool's labels."""
  if pool.y.ndim == 2 and pool.y.shape[1] > 1:
    raise ValueError("y holds label vectors, which are of classes (softmax, mlp) or of numbers (least_squares)")
  if np.issubdtype(pool.y.dtype, np.floating):
    return "least_squares"
  return "logistic" if _count_classes(pool) <= 2 else "softmax"


def count_outputs(dataset: Dataset) -> int:
  """Return the length of label vectors, the number of classes, or 1 for real numbers."""
  y = dataset.train.y
  if y.ndim == 2:
    return y.shape[1]
  if np.issubdtype(y.dtype, np.floating):
    return 1
  pools = [dataset.train] if dataset.test is None else [dataset.train, dataset.test]
  return max(2, *map(_count_classes, pools))


def _count_classes(pool: Pool) -> int:
  return 1 + int(np.max(pool.y)) if pool.classes is None else len(pool.classes)


def check_learner(name: str) -> None:
  """Raise unless there is a learner of this name."""
  if name not in LEARNERS:
    raise ValueError(
      f"it is not known: use one of {', '.join(LEARNERS)}, or a function of yours, module:function"
      f"{checks.suggest(name, LEARNERS)}"
    )


def learner(
  name: str, dataset: Dataset, *, hidden: Sequence[int] = (32,), activation: str = "relu", **settings: Any
) -> Learner:
  """Return the learner of this name, with as many features and outputs as the data has.

  Args:
    name: one of `LEARNERS`; "margin" is logistic regression with labels -1 and +1.
    dataset: the data to learn from, x `[n, d]`.
    hidden: widths of the hidden layers of "mlp".
    activation: of "mlp", one of `ACTIVATIONS`.
    **settings: learning_rate, weight_decay, bias, momentum, nesterov.
  """
  x, y = dataset.train.x, dataset.train.y
  check_learner(name)
  if x.ndim != 2:
    raise ValueError(
      f"it takes examples of one dimension, but those of the data have shape {list(x.shape[1:])}: flatten them, or "
      "make a learner of your own with from_apply"
    )
  num_features, num_outputs = x.shape[1], count_outputs(dataset)
  if name == "least_squares":
    return learners.least_squares(num_features, y.shape[1] if y.ndim == 2 else 1, **settings)  # Class ids are numbers.
  if name in ("logistic", "margin"):
    low = -1 if name == "margin" else 0
    if np.issubdtype(y.dtype, np.floating) and (np.min(y) < low or np.max(y) > 1):
      raise ValueError(
        f"it separates two classes, with labels from {low} to 1, but y holds numbers from {np.min(y):g} to "
        f"{np.max(y):g}: use least_squares"
      )
    return learners.logistic(num_features, form="margin" if name == "margin" else "cross_entropy", **settings)
  if name == "mlp":
    widths, loss = (num_features, *hidden, num_outputs), "squared_error" if num_outputs == 1 else None
    return learners.mlp(widths, activation=activation, loss=loss, **settings)
  if num_outputs < 2:
    raise ValueError("it separates classes, but y holds real numbers: use least_squares")
  return learners.softmax(num_features, num_outputs, **settings)


# --- Sets of labels.


def constraint(text: str) -> Constraint:
  """Return the set of labels that a text names: one of the forms in `CONSTRAINTS`.

  P is 1, 2 or inf; AROUND, the center of the ball, is truth or prediction; K is a number of classes.
  """
  if text in _PLAIN_SETS:
    return _PLAIN_SETS[text]()
  if text.startswith(_SPARSE):
    return constraints.simplex(max_nonzero=_count(text.removeprefix(_SPARSE)))
  kind, ball = _read_ball(text)
  return _BALLS[kind](ball.radius, ball.p, ball.around)


def variant(text: str) -> Variant:
  """Return the look in pictures of methods that choose from the set that a text names."""
  if text.startswith(_SPARSE):
    return _count(text.removeprefix(_SPARSE))  # A position in the palette.
  return text if text in _PLAIN_SETS else _read_ball(text)[1]


_SPARSE = "simplex:max_nonzero="
_PLAIN_SETS: Mapping[str, Callable[[], Constraint]] = {
  "none": constraints.none,
  "one_hot": constraints.one_hot,
  "simplex": constraints.simplex,
}
_BALLS: Mapping[str, Callable[..., Constraint]] = {"simplex": constraints.simplex, "magnitude": constraints.magnitude}


def _read_ball(text: str) -> tuple[str, Ball]:
  kind, *parts = text.split(":")
  if kind not in _BALLS or not 1 <= len(parts) <= 3:
    near = checks.suggest(text, CONSTRAINTS) or checks.suggest(kind, ("none", "one_hot", *_BALLS))
    raise ValueError(f"it must have one of the forms {', '.join(CONSTRAINTS)}{near}")
  radius, p = _number(parts[0]), _number(parts[1]) if len(parts) > 1 else 2.0
  return kind, Ball(radius, p, parts[2] if len(parts) > 2 else "truth", simplex=kind == "simplex")


# --- Settings of training.


def output(text: str) -> Output:
  """Return how a policy's numbers become labels: one of the forms in `OUTPUTS`."""
  kind, *parts = text.split(":")
  plain: Mapping[str, Callable[[], Any]] = {"simplex": outputs.simplex, "free": outputs.free}
  if kind in plain and not parts:
    return plain[kind]()
  if kind == "simplex" and len(parts) == 1:
    return outputs.simplex(_number(parts[0]))
  inner = parts[1] if len(parts) == 2 else "simplex"
  if kind != "residue" or not 1 <= len(parts) <= 2 or inner not in plain:
    raise ValueError(f"it must have one of the forms {OUTPUTS}")
  return outputs.residue(_number(parts[0]), plain[inner]())


def actions(text: str) -> Output:
  """Return the labels that a policy chooses from: one of the forms in `ACTIONS`."""
  kind, _, rest = text.partition(":")
  binary = {"binary": outputs.BINARY, "binary_augmented": outputs.BINARY_AUGMENTED}
  if kind in binary:
    return outputs.actions(binary[kind], _number(rest) if rest else 0.0)
  if kind == "mixtures":
    return outputs.mixtures([_number(word) for word in rest.split(",")]) if rest else outputs.mixtures()
  if not text.endswith(".npz"):
    raise ValueError(f"it must have one of the forms {ACTIONS}")
  arrays = read_arrays(text)
  if "actions" not in arrays:
    raise ValueError(f"the file must hold the array actions [A, K], but it holds {', '.join(arrays) or 'nothing'}")
  return outputs.actions(arrays["actions"])


def reward(text: str) -> Reward:
  """Return the aim of a policy: one of the forms in `REWARDS`."""
  plain: Mapping[str, Callable[[], Any]] = {
    "distance": rewards.distance,
    "loss": rewards.loss,
    "accuracy": rewards.accuracy,
  }
  if text in plain:
    return plain[text]()
  kind, _, threshold = text.partition(":")
  if kind != "steps" or not threshold:
    raise ValueError(f"it must have one of the forms {REWARDS}")
  return rewards.steps(_number(threshold))


# --- Numbers.


def widths(words: Sequence[str]) -> tuple[int, ...]:
  """Return the widths of hidden layers."""
  words = [] if list(words) == [""] else words
  if not all(word.strip().isdecimal() and 1 <= int(word) < 2**31 for word in words):
    raise ValueError("it must be the widths of hidden layers, as 32 or 64,32, or nothing for none")
  return tuple(int(word) for word in words)


def _count(word: str) -> int:
  if not word.isdecimal() or not int(word):
    raise ValueError(f"{word!r} is not a whole number of at least 1")
  return int(word)


def _number(word: str) -> float:
  try:
    return float(word)
  except ValueError:
    raise ValueError(f"{word!r} is not a number") from None
