"""Settings of training, each spelled once: fields of a dataclass with its default and its meaning.

`train_unrolled` takes the fields of `unrolled.Unrolled` as keywords, `train_reinforce` those of `reinforce.Reinforce`,
`train_evolution` those of `evolution.Evolution`; the command's flags are made from the same fields. A settings object
is also the method: its `episode` computes the gradient. It is a pytree whose numbers are leaves, so that
they can be swept without compiling again.
"""

import dataclasses
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import jax
import optax

from last_jax import checks
from last_jax.base import Array, Key, Params, Student
from last_jax.learner import check_optimizer
from last_jax.problem import Problem
from last_jax.teachers import features as features_
from last_jax.teachers.outputs import Output, is_choice
from last_jax.teachers.policy import Policy
from last_jax.training import rewards
from last_jax.training.rewards import Reward

T = TypeVar("T", bound="Settings")

LEARNING_RATE = 1e-3
EVALUATE_EVERY = 20
HIDDEN = (128, 128)


def setting(default: Any, meaning: str, *, static: bool = True) -> Any:
  """Return a dataclass field with a default and a meaning, which is static unless said otherwise."""
  return dataclasses.field(default=default, metadata={"static": static, "help": meaning})


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  """The settings that all methods share."""

  horizon: int = setting(20, "Number of steps of an episode.")
  batch_size: int = setting(1, "Number of examples shown in a step.")
  students: int = setting(10, "Number of students that are taught at once.")
  reset: float | None = setting(None, "Share of the students that start again after an episode, all unless given.")
  reward: Reward | None = setting(
    None, "The policy's aim: rewards.distance() or, in a black box, loss(), accuracy(), steps(...).", static=False
  )
  features: Sequence[str] | None = setting(
    None, "Inputs of the network, of x, label, prediction, params, target and, with actions, progress."
  )
  hidden: Sequence[int] = setting(HIDDEN, "Widths of the network's hidden layers; none: linear in its inputs.")
  policy: Any = setting(
    None,
    "A linen module, or a function of rngs that makes an nnx module, in place of the network: from the features by "
    "name, `x [m, ...]`, `label [m, K]`, `params [P]`, to numbers `[m, K]` or, with actions, `[m, A]`.",
  )
  standardize: bool = setting(True, "Whether features are shifted and scaled to the same size.")
  learning_rate: Array | float | None = setting(None, f"Adam's learning rate, {LEARNING_RATE:g}.", static=False)
  weight_decay: Array | float | None = setting(None, "Weight decay, added to Adam's gradient.", static=False)
  optimizer: optax.GradientTransformation | None = setting(None, "Any optax transformation, in place of Adam.")
  evaluate_every: int | None = setting(
    None,
    "Episodes between two evaluations, on 20 students that are the same every time and by the most probable actions; "
    f"the best policy is returned. 0: the last is. None: {EVALUATE_EVERY}, but 0 for unrolling with a target.",
  )
  evaluation_steps: int = setting(300, "Number of steps of an evaluation.")

  # --- The method.

  @property
  def label_output(self) -> Output:
    """From the network's numbers to labels."""
    raise NotImplementedError

  def filled_in(self: T, problem: Problem) -> T:
    """Return the settings with defaults that depend on the problem, checked."""
    counts = {
      name: checks.check_count(name, getattr(self, name))
      for name in ("horizon", "batch_size", "students", "evaluation_steps")
    }
    evaluate_every = EVALUATE_EVERY if self.evaluate_every is None else self.evaluate_every
    evaluate_every = checks.check_count("evaluate_every", evaluate_every, least=0)
    standardize, students = checks.check_flag("standardize", self.standardize), counts["students"]
    reset = checks.check_between("reset", 1.0 if self.reset is None else self.reset, 0.0, 1.0)
    if isinstance(reset, jax.core.Tracer):
      raise TypeError("reset must not be traced: the number of students that start again is a size")
    if reset > 0 and round(float(reset) * students) == 0:
      raise ValueError(f"reset={reset} of {students} students is less than one: give 0 or at least {1 / students:g}")
    hidden = checks.check_sequence("hidden", self.hidden, "a list of whole numbers, such as (128, 128)")
    hidden = tuple(checks.check_count("hidden", width) for width in hidden)
    if self.policy is not None and hidden != HIDDEN:
      raise ValueError("hidden belongs to the built-in network: give either it or policy, which has its own layers")
    rate, decay = self.learning_rate, self.weight_decay
    if self.optimizer is not None:
      self._check_optimizer()
    else:
      rate = None if rate is None else checks.check_positive("learning_rate", rate)
      decay = None if decay is None else checks.check_not_negative("weight_decay", decay)
    reward = self.reward
    if reward is None:
      reward = rewards.loss() if problem.target is None else rewards.distance()
    rewards.check_reward("reward", reward)
    reward.check(problem)
    self.label_output.check(problem.learner, problem.truth)
    names = features_.check_features(
      self.features, actions=is_choice(self.label_output), omniscient=problem.target is not None
    )
    return dataclasses.replace(
      self, reset=reset, reward=reward, features=names, hidden=hidden, evaluate_every=evaluate_every,
      standardize=standardize, learning_rate=rate, weight_decay=decay, **counts,
    )  # fmt: skip

  def _check_optimizer(self) -> None:
    check_optimizer(self.optimizer)
    for name in ("learning_rate", "weight_decay"):
      if getattr(self, name) is not None:
        raise ValueError(f"{name} belongs to Adam: give either it or optimizer, which has its own")

  @property
  def num_reset(self) -> int:
    """Number of students that start again after an episode."""
    assert self.reset is not None, "filled in"
    return round(float(self.reset) * self.students)

  @property
  def inseparable(self) -> int:
    """Number of consecutive students that must be on one device."""
    return 1

  def build_optimizer(self) -> optax.GradientTransformation:
    """Return the optimizer of the policy's weights."""
    if self.optimizer is not None:
      return self.optimizer
    rate = LEARNING_RATE if self.learning_rate is None else self.learning_rate
    decay = 0.0 if self.weight_decay is None else self.weight_decay
    # Weight decay as a part of the gradient, which is what "Adam with weight decay" meant to the paper; not AdamW.
    return optax.chain(optax.add_decayed_weights(decay), optax.adam(rate, 0.9, 0.999))

  def carry(self, policy: Policy, student: Student) -> Any:
    """Return what is carried from episode to episode of a student that starts now: its `params` are its own."""
    del policy
    return student

  def episode(
    self, problem: Problem, policy: Policy, students: Any, keys: Key, axis: str | None = None
  ) -> tuple[Params, Any, dict[str, Any]]:
    """Teach all students for one episode.

    Args:
      problem: what is taught; rewards without a target are measured on its test pool.
      policy: the teacher.
      students: as `carry` returns them, with a leading [students] axis.
      keys: `[students]`.
      axis: where these are only a share of the students, the mesh axis along which the others are. Gradient and loss
        are means over this share; the caller averages them.

    Returns:
      The loss's gradient in the policy's weights, the students after the episode, and the loss.
    """
    raise NotImplementedError


def from_keywords(kind: type[T], function: str, keywords: Mapping[str, Any]) -> T:
  """Return settings from a function's keywords; an unknown one is an error that names the function and the nearest."""
  known = [field.name for field in dataclasses.fields(kind)]
  for name in keywords:
    if name not in known:
      near = difflib.get_close_matches(name, known, 1)
      hint = f"did you mean {near[0]}?" if near else f"it takes {', '.join(known)}"
      raise TypeError(f"{function}() got an unexpected keyword argument {name!r}: {hint}")
  return kind(**keywords)
