"""Teachers without a target: ground truth, and the soft labels of practice, as policies in the paper's framework."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax.tree_util import Partial

from last_jax import checks
from last_jax.base import Array, Teacher, View
from last_jax.functions import as_pure_function
from last_jax.optimizers import as_float
from last_jax.problem import Problem
from last_jax.teachers.compose import compose


def _ground_truth(view: View, index: Array) -> tuple[Array, None]:
  return view.truth[index], None


def _smoothed(mu: Any, view: View, index: Array) -> tuple[Array, None]:
  truth = view.truth[index]
  return mu * truth + (1 - mu) * jnp.broadcast_to(view.cache, truth.shape), None


def _mean_class_label(problem: Problem) -> Array:
  """Return 1/K for each class or, for one output, the middle of the interval: `[K]`."""
  loss = problem.learner.loss
  if not loss.classification:
    raise ValueError(f"label_smoothing is for classifiers, but the learner's loss is {loss.name}")
  return jnp.mean(loss.class_labels_like(problem.truth), 0)


def _soft_labels(logits_fn: Any, temperature: Any, problem: Problem) -> Array:
  """Compute the soft labels of the whole pool, `[n, K]` or `[n, T, K]`: they never change."""
  logits, truth = logits_fn(problem.pool.x), problem.truth
  logits = logits[:, None] if logits.ndim == 1 else logits
  if logits.shape != truth.shape:
    raise ValueError(f"logits_fn must map the pool to shape {truth.shape}, but it returns shape {logits.shape}")
  return problem.learner.loss.predict_all(logits.astype(truth.dtype) / temperature)


def _from_cache(view: View, index: Array) -> tuple[Array, None]:
  return view.cache[index], None


def _predicted(view: View, index: Array) -> tuple[Array, None]:
  outputs = view.learner.apply(view.student.params, view.x[index])
  return view.learner.loss.predict_all(outputs), None


def _predicted_class(view: View, index: Array) -> tuple[Array, None]:
  return view.learner.loss.nearest_class_labels(_predicted(view, index)[0]), None


def sgd() -> Teacher:
  """The random teacher: random examples with their ground truth."""
  return compose("SGD", _ground_truth)


def label_smoothing(mu: Any) -> Teacher:
  """Labels mu truth + (1 - mu) / K.

  Args:
    mu: between 0 (all classes alike) and 1 (the ground truth).
  """
  mu = checks.check_between("mu", mu, 0.0, 1.0)
  return compose("label smoothing", Partial(_smoothed, mu), prepare=_mean_class_label)


def distillation(logits_fn: Callable[[Array], Array], temperature: Any = 1.0) -> Teacher:
  """Labels softmax(z / temperature) of a pretrained model (sigmoid for one output).

  Args:
    logits_fn: `x [n, ...] -> z [n, K]` or, for tokens, `[n, T, K]`. A function, or a `jax.tree_util.Partial` whose
      weights are leaves: `Partial(learner.apply, weights)`.
    temperature: a positive number; more is softer.
  """
  if not callable(logits_fn):
    raise TypeError(f"logits_fn must be a function of x, but it is a {type(logits_fn).__name__}")
  temperature = checks.check_positive("temperature", temperature)
  function = as_pure_function("logits_fn", logits_fn, ("x",))
  return compose("distillation", _from_cache, prepare=Partial(_soft_labels, function, as_float(temperature)))


def self_training(hard: bool = False) -> Teacher:
  """Labels that the student itself predicts before the step; `hard`: their class."""
  hard = checks.check_flag("hard", hard)
  return compose("self-training (hard)", _predicted_class) if hard else compose("self-training", _predicted)
