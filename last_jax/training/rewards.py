"""Aims of training: a student's error after each step, or how well it did in the end.

Unrolling minimises a smooth measure (`distance`, `loss`), policy gradient maximises rewards made of any of them, and
evolution strategies maximise the score of the whole episode.
Measures without a target are taken on the problem's test pool.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp

from last_jax import checks, distances
from last_jax.base import STATIC, Array, Key, Params
from last_jax.problem import Problem


@runtime_checkable
class Reward(Protocol):
  """The teacher's aim. A pytree: its numbers are leaves."""

  every_step: bool  # Whether rewards need the measure at the start and after every step, or only at the end.
  score_every_step: bool  # The same of the score.
  smooth: bool  # Whether the measure can be minimised by gradients.

  def check(self, problem: Problem) -> None:
    """Raise unless it can be measured."""

  def measure(self, problem: Problem, key: Key | None) -> Callable[[Params], Array]:
    """Return a function of a student's parameters. The key is the episode's and student's own; None: nothing random."""

  def rewards(self, measured: Array, horizon: int) -> Array:
    """Return the rewards after steps 1..horizon, `[T]`, from measurements `[T + 1]`, or one at the end, `[1]`."""

  def score(self, measured: Array) -> Array:
    """Return a score of the whole episode from the same measurements: higher is better."""


def _validation(problem: Problem) -> tuple[Array, Array]:
  assert problem.test is not None, "make_trainer gives the problem a test pool"
  assert problem.test_truth is not None
  return problem.test.x, problem.test_truth


def check_reward(name: str, reward: Any) -> None:
  """Raise unless it comes from this module, or has all its parts."""
  if not isinstance(reward, Reward):
    raise TypeError(f"{name} must come from last_jax.rewards, as rewards.accuracy(), but it is {reward!r}")


class _Smooth:
  every_step = True
  score_every_step = False
  smooth = True

  def rewards(self, measured: Array, horizon: int) -> Array:
    """Minus the measure after each step."""
    return -measured[1:]

  def score(self, measured: Array) -> Array:
    """Minus the measure in the end."""
    return -measured[-1]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Distance(_Smooth):
  """||w - w*||^2."""

  def check(self, problem: Problem) -> None:
    """Needs a target."""
    if problem.target is None:
      raise ValueError("reward: the distance needs a target; in a black box use rewards.loss(), accuracy() or steps()")

  def measure(self, problem: Problem, key: Key | None) -> Callable[[Params], Array]:
    """The squared distance."""
    return lambda params: distances.squared_distance(params, problem.target)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ValidationLoss(_Smooth):
  """The learner's loss on validation examples: all or, of more than `size`, that many for every student and episode."""

  size: int = dataclasses.field(metadata=STATIC)

  def check(self, problem: Problem) -> None:
    """Always possible."""

  def measure(self, problem: Problem, key: Key | None) -> Callable[[Params], Array]:
    """The mean loss on at most `size` examples; without a key, on all."""
    x, y = _validation(problem)
    if key is not None and self.size < x.shape[0]:
      index = jax.random.randint(key, (self.size,), 0, x.shape[0])
      x, y = x[index], y[index]
    return lambda params: problem.learner.mean_loss(params, x, y)


class _Accuracy:
  smooth = False

  def check(self, problem: Problem) -> None:
    """Only classifiers have an accuracy."""
    if not problem.learner.loss.classification:
      raise ValueError(f"reward: accuracy is for classifiers, but the learner's loss is {problem.learner.loss.name}")

  def measure(self, problem: Problem, key: Key | None) -> Callable[[Params], Array]:
    """The accuracy on the whole validation pool."""
    x, y = _validation(problem)
    return lambda params: problem.learner.accuracy(params, x, y).astype(x.dtype)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class FinalAccuracy(_Accuracy):
  """Accuracy on the validation pool after the last step."""

  every_step = False
  score_every_step = False

  def rewards(self, measured: Array, horizon: int) -> Array:
    """Nothing until the last step."""
    return jnp.concatenate([jnp.zeros(horizon - 1, measured.dtype), measured])

  def score(self, measured: Array) -> Array:
    """The accuracy in the end."""
    return measured[-1]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class StepsToAccuracy(_Accuracy):
  """Minus the number of steps until the accuracy on the validation pool is reached; minus all of them if it is not."""

  threshold: Array | float
  every_step = True
  score_every_step = True

  def rewards(self, measured: Array, horizon: int) -> Array:
    """Return -1 for every step that begins before the accuracy was reached: their sum is the terminal reward.

    Given step by step, an action is not charged for the steps before it.
    """
    reached = jnp.cumsum((measured >= self.threshold).astype(int))[:-1] > 0
    return jnp.where(reached, 0.0, -1.0).astype(measured.dtype)

  def score(self, measured: Array) -> Array:
    """Minus the number of steps."""
    return jnp.sum(self.rewards(measured, measured.shape[0] - 1))


def distance() -> Distance:
  """-||w - w*||^2 after every step: the omniscient teacher's."""
  return Distance()


def loss(size: int = 1000) -> ValidationLoss:
  """Minus the learner's loss after every step, on all validation examples or, if there are more, on `size` random ones.

  Few examples mislead: with 20, a policy learns to overfit them, and its students end worse than by SGD.
  """
  return ValidationLoss(checks.check_count("size", size))


def accuracy() -> FinalAccuracy:
  """Terminal: the accuracy on the validation pool."""
  return FinalAccuracy()


def steps(threshold: Any) -> StepsToAccuracy:
  """Terminal: minus the number of steps to reach the accuracy `threshold` on the validation pool."""
  return StepsToAccuracy(checks.check_between("threshold", threshold, 0.0, 1.0))
