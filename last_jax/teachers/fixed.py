"""Teachers without a target: ground truth, and the soft labels of practice, as policies in the paper's framework."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from last_jax import checks
from last_jax.learners import Learner
from last_jax.teachers.base import Teacher, Uniform, View
from last_jax.types import STATIC, Array, Params


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class GroundTruth:
  """The pool's own labels."""

  omniscient = False

  def prepare(self, learner: Learner, x: Array, truth: Array, target: Params | None) -> None:
    """Nothing to prepare."""

  def label(self, memory: None, view: View, index: Array) -> Array:
    """The ground truth, `[m, K]`."""
    return view.truth[index]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Smoothed:
  """mu truth + (1 - mu) times the mean of the class labels."""

  mu: Array | float
  omniscient = False

  def prepare(self, learner: Learner, x: Array, truth: Array, target: Params | None) -> Array:
    """The mean of the class labels, `[K]`: 1/K each, or the middle of the interval."""
    _check_classifier(learner, "label_smoothing")
    return jnp.mean(learner.loss.class_labels_like(truth), 0)

  def label(self, memory: Array, view: View, index: Array) -> Array:
    """Smoothed labels, `[m, K]`."""
    return self.mu * view.truth[index] + (1 - self.mu) * memory[None]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Distilled:
  """The prediction of another model at a temperature."""

  logits_fn: Callable[[Array], Array] = dataclasses.field(metadata=STATIC)
  temperature: Array | float
  omniscient = False

  def prepare(self, learner: Learner, x: Array, truth: Array, target: Params | None) -> Array:
    """The soft labels of the whole pool, `[n, K]`: they do not change, so one pass over it is enough."""
    logits = self.logits_fn(x)
    logits = logits[:, None] if logits.ndim == 1 else logits
    if logits.shape != truth.shape:
      raise ValueError(f"logits_fn must map the pool to shape {truth.shape}, but it gives shape {logits.shape}")
    return learner.loss.predict_all(logits / self.temperature).astype(truth.dtype)

  def label(self, memory: Array, view: View, index: Array) -> Array:
    """Soft labels, `[m, K]`."""
    return memory[index]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SelfLabelled:
  """What the student predicts now, as it is or as the class it stands for."""

  hard: bool = dataclasses.field(metadata=STATIC)
  omniscient = False

  def prepare(self, learner: Learner, x: Array, truth: Array, target: Params | None) -> None:
    """Nothing to prepare."""

  def label(self, memory: None, view: View, index: Array) -> Array:
    """Pseudo-labels, `[m, K]`."""
    loss = view.learner.loss
    predictions = loss.predict_all(view.learner.apply(view.student.params, view.x[index]))
    return loss.nearest_class_labels(predictions) if self.hard else predictions


def _check_classifier(learner: Learner, teacher: str) -> None:
  if not learner.loss.classification:
    raise ValueError(f"{teacher} is for classifiers, but the learner's loss is {learner.loss.name}")


def sgd() -> Teacher:
  """The random teacher: uniform examples with their ground truth."""
  return Teacher("SGD", Uniform(), GroundTruth())


def label_smoothing(mu: Any) -> Teacher:
  """Labels mu truth + (1 - mu) / K.

  Args:
    mu: between 0 (all classes alike) and 1 (the ground truth).
  """
  checks.check_between("mu", mu, 0.0, 1.0)
  return Teacher("label smoothing", Uniform(), Smoothed(mu))


def distillation(logits_fn: Callable[[Array], Array], temperature: Any = 1.0) -> Teacher:
  """Labels softmax(z / temperature) from a pretrained model (or sigmoid, for one output).

  Args:
    logits_fn: `x [n, ...] -> z [n, K]`. Pass the same function again to reuse what is compiled.
    temperature: a positive number; more is softer.
  """
  if not callable(logits_fn):
    raise TypeError(f"logits_fn must be a function of x, but it is a {type(logits_fn).__name__}")
  checks.check_positive("temperature", temperature)
  return Teacher("distillation", Uniform(), Distilled(logits_fn, temperature))


def self_training(hard: bool = False) -> Teacher:
  """Labels that the student itself predicts before the step; `hard`: their class."""
  return Teacher("self-training (hard)" if hard else "self-training", Uniform(), SelfLabelled(bool(hard)))
