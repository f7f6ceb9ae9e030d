"""The learner that --learner names, or that a function of the user's makes."""

import importlib
import inspect
import os
import sys
from typing import Any

import numpy as np

import last_jax as last
from last_jax import checks, models

LEARNERS = ("logistic", "margin", "softmax", "least_squares", "mlp")
OFFERED = ("num_features", "num_outputs", "learning_rate", "weight_decay")
ACTIVATIONS = tuple(models.ACTIVATIONS)


def build_learner(flags: Any, dataset: last.Dataset, learning_rate: float) -> tuple[str, last.learners.Learner]:
  """The learner, and its name."""
  name = flags.learner or _usual_learner(dataset.train)
  shape = dataset.train.x.shape[1:]
  num_features: Any = shape[0] if len(shape) == 1 else tuple(shape)
  num_outputs = _count_outputs(dataset)
  offered = dict(zip(OFFERED, (num_features, num_outputs, learning_rate, flags.weight_decay), strict=True))
  if ":" in name:
    return name, _from_module(name, offered)
  if name not in LEARNERS:
    allowed = ", ".join(LEARNERS)
    raise ValueError(f"--learner={name!r} is not known: use one of {allowed}, or a function of yours, module:function")
  if len(shape) != 1:
    raise ValueError(
      f"--learner={name} takes examples of one dimension, but those of --dataset={flags.dataset} have shape "
      f"{list(shape)}: flatten them, or give a learner of your own as --learner=module:function"
    )
  if flags.nesterov and flags.momentum is None:
    raise ValueError("--nesterov needs --momentum, a number between 0 and 1")
  if flags.momentum is not None:
    checks.check_between("--momentum", flags.momentum, 0.0, 1.0)
  settings = {
    "learning_rate": learning_rate,
    "weight_decay": flags.weight_decay,
    "bias": flags.bias,
    "momentum": flags.momentum,
    "nesterov": flags.nesterov,
  }
  if name == "least_squares":
    return name, last.learners.least_squares(num_features, _least_squares_outputs(dataset.train), **settings)
  if name in ("logistic", "margin"):
    _check_binary(name, dataset.train.y)
    form = "margin" if name == "margin" else "cross_entropy"
    return name, last.learners.logistic(num_features, form=form, **settings)
  if num_outputs < 2 and name == "softmax":
    raise ValueError("--learner=softmax tells classes apart, but y holds real numbers: use least_squares")
  if name == "softmax":
    return name, last.learners.softmax(num_features, num_outputs, **settings)
  widths = (num_features, *parse_widths("--hidden", flags.hidden), num_outputs)
  loss = "squared_error" if num_outputs == 1 else None
  return name, last.learners.mlp(widths, activation=flags.activation, loss=loss, **settings)


def _check_binary(name: str, y: Any) -> None:
  low = -1 if name == "margin" else 0
  if np.issubdtype(y.dtype, np.floating) and (np.min(y) < low or np.max(y) > 1):
    raise ValueError(
      f"--learner={name} tells two classes apart, with labels from {low} to 1, "
      f"but y holds numbers from {np.min(y):g} to {np.max(y):g}: use least_squares"
    )


def parse_widths(flag: str, words: list[str]) -> tuple[int, ...]:
  """The widths of hidden layers, from the words of a flag."""
  if not all(word.strip().isdigit() and int(word) for word in words):
    raise ValueError(f"{flag}={','.join(words)} must be the widths of the hidden layers, as 32 or 64,32")
  return tuple(int(word) for word in words)


def _usual_learner(pool: last.Pool) -> str:
  if pool.y.ndim == 2 and pool.y.shape[1] > 1:
    raise ValueError(
      "--learner is missing: y holds label vectors, which may stand for classes (softmax, mlp) "
      "or for numbers (least_squares)"
    )
  if np.issubdtype(pool.y.dtype, np.floating):
    return "least_squares"
  return "logistic" if int(np.max(pool.y)) < 2 else "softmax"


def _count_outputs(dataset: last.Dataset) -> int:
  """The length of label vectors, the number of classes, or 1 for real numbers."""
  y = dataset.train.y
  if y.ndim == 2:
    return y.shape[1]
  if np.issubdtype(y.dtype, np.floating):
    return 1
  pools = [dataset.train] if dataset.test is None else [dataset.train, dataset.test]
  return max(2, 1 + max(int(np.max(pool.y)) for pool in pools))


def _least_squares_outputs(pool: last.Pool) -> int:
  return pool.y.shape[1] if pool.y.ndim == 2 else 1  # Class ids are numbers to it.


def _from_module(name: str, offered: dict[str, Any]) -> last.learners.Learner:
  """Imports and calls the user's function with those of the offered keywords that it takes."""
  flag = f"--learner={name}"
  module_name, _, function_name = name.partition(":")
  if os.getcwd() not in sys.path:  # An installed command does not look where the user is; `python -m` does.
    sys.path.insert(0, os.getcwd())
  try:
    function = getattr(importlib.import_module(module_name), function_name)
    parameters = inspect.signature(function).parameters.values()
  except Exception as error:  # Importing runs the user's code, which may raise anything.
    raise ValueError(f"{flag}: cannot import it: {type(error).__name__}: {error}") from error
  takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
  given = {key: value for key, value in offered.items() if takes_all or any(p.name == key for p in parameters)}
  try:
    learner = function(**given)
  except Exception as error:
    raise ValueError(
      f"{flag}: calling it with {', '.join(given) or 'no arguments'} raised {type(error).__name__}: {error}"
    ) from error
  if not isinstance(learner, last.learners.Learner):
    raise TypeError(f"{flag} must return a Learner of last_jax.learners, but it returned a {type(learner).__name__}")
  return learner
