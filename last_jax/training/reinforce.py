"""Policy gradient: the label is an action, drawn by its probability, and good ones are made more probable.

    grad J  ~  (1/N) sum_i sum_t  grad log pi(a_t | s_t)  sum_{tau >= t} gamma^tau (r_tau - b)

Students are taught by the package's own loop, without gradients. The states they went through and the labels they were
shown are kept, and the probabilities of those labels are computed again, all at once, to be differentiated.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from last_jax import checks
from last_jax.teachers import features as features_
from last_jax.teachers import outputs
from last_jax.teachers.base import OmniscientView, View
from last_jax.teachers.policy import Policy
from last_jax.training import rewards
from last_jax.training import trainer as trainer_
from last_jax.training.rewards import Problem, Reward
from last_jax.training.trainer import Log, Trainer
from last_jax.types import STATIC, Array, Key, Lessons, Params, Pool, Student


class Path(NamedTuple):
  """What one student went through in an episode."""

  params: Params  # [T, ...] before each step.
  lessons: Lessons  # [T, m]
  rewards: Array  # [T] after each step.
  paid_before: Array  # [] what its start would have been paid; 0 where rewards are for the whole.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Reinforce:
  """Settings of the method; see `train_reinforce`."""

  reward: Reward
  discount: Array | float
  baseline: Array | float | None  # None: the mean of the other students' returns.
  horizon: int = dataclasses.field(metadata=STATIC)
  batch_size: int = dataclasses.field(metadata=STATIC)

  def episode(
    self, problem: Problem, policy: Policy, students: Student, keys: Key, axis: str | None = None
  ) -> tuple[Params, Student, dict]:
    """The estimate of the gradient of -J, from one trajectory per student."""
    paths, students = jax.vmap(lambda s, k: self._teach(problem, policy, s, k))(students, keys)
    returns = self.returns(paths.rewards, paths.paid_before, axis)  # [N, T]
    truth = problem.learner.encode(problem.pool.x, problem.pool.y)
    # All states of all students side by side: one product per layer.
    visited = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), (paths.params, paths.lessons))  # [N T, ...]

    def surrogate(weights: Params) -> Array:
      current = dataclasses.replace(policy, weights=weights)

      def log_probability(params: Params, lesson: Lessons) -> Array:
        # No feature looks at the step or the key.
        view = View(problem.learner, Student(params, None), problem.pool.x, truth, jnp.zeros((), int), keys[0])
        seen = OmniscientView(*view, target=problem.target) if policy.omniscient else view
        return jnp.sum(current.log_probabilities(seen, lesson.index, lesson.label))

      return -jnp.sum(jax.vmap(log_probability)(*visited) * jnp.ravel(returns)) / returns.shape[0]

    loss = -jnp.mean(jnp.sum(paths.rewards, 1))
    return jax.grad(surrogate)(policy.weights), students, {"loss": loss}

  def returns(self, rewards: Array, before: Array, axis: str | None = None) -> Array:
    """What followed each action, less the baseline, `[N, T]`.

    Args:
      rewards: `[N, T]`, after steps 1..T.
      before: `[N]`, what the starts would have been paid.
      axis: where these are a share of the students only: see `Method.episode`.
    """
    factors = self.discount ** jnp.arange(1, rewards.shape[1] + 1, dtype=rewards.dtype)

    def sum_to_go(values: Array) -> Array:
      return jnp.cumsum((values * factors[None])[:, ::-1], 1)[:, ::-1]

    if self.baseline is not None:
      return sum_to_go(rewards - self.baseline)
    to_go = sum_to_go(rewards - before[:, None])
    total, count = jnp.sum(to_go, 0, keepdims=True), rewards.shape[0]
    if axis is not None:
      total, count = jax.lax.psum((total, count), axis)
    others = (total - to_go) / (count - 1)
    return to_go - others  # No bias: the others' returns do not depend on this student's actions.

  def _teach(self, problem: Problem, policy: Policy, student: Student, key: Key) -> tuple[Path, Student]:
    lesson_key, measure_key = jax.random.split(key)
    measure = self.reward.measure(problem, measure_key)
    result = trainer_.teach_episode(
      problem,
      policy,
      student,
      lesson_key,
      steps=self.horizon,
      batch_size=self.batch_size,
      probe=lambda w: (w, measure(w) if self.reward.every_step else None),
      sample=True,
      lessons=True,
    )
    assert result.lessons is not None, "lessons were asked for"
    params, measured = result.probe
    measured = measured if self.reward.every_step else measure(result.params)[None]
    before = jax.tree.map(lambda leaf: leaf[:-1], params)
    paid = self.reward.rewards(measured, self.horizon)
    paid_before = -measured[0] if self.reward.smooth else jnp.zeros_like(paid[0])
    return Path(before, result.lessons, paid, paid_before), result.student


def make_reinforce(
  learner: Any,
  pool: Pool,
  *,
  actions: Any,
  target: Params | None = None,
  validation: Pool | None = None,
  starts: Any = None,
  horizon: int = 100,
  batch_size: int = 1,
  students: int = 10,
  reset: float = 1.0,
  reward: Any = None,
  discount: Any = 0.999,
  baseline: Any = None,
  features: Sequence[str] | None = None,
  hidden: Sequence[int] = (128, 128),
  standardize: bool = True,
  learning_rate: Any = 1e-3,
  weight_decay: Any = 0.0,
  optimizer: optax.GradientTransformation | None = None,
  evaluate_every: int | None = 20,
  evaluation_steps: int = 300,
  mesh: Mesh | None = None,
) -> Trainer:
  """The trainer of `train_reinforce`, with all its settings: for who wants to train in pieces.

  Args:
    learner: whom to teach.
    pool: what from.
    actions: the labels to choose from, `[A, K]` (`outputs.BINARY` and `outputs.BINARY_AUGMENTED` are the paper's), or
      `outputs.mixtures(...)` for many classes.
    target: w*; None for a black-box teacher, which never sees it, neither in training nor in teaching.
    validation: examples to judge students by in a black box; the pool unless given.
    starts: as in `make_unrolled`.
    horizon: T, the steps of an episode.
    batch_size: examples shown in a step, each with an action of its own.
    students: N, how many trajectories there are in an episode.
    reset: share of the students who start anew after an episode.
    reward: `rewards.distance()`; in a black box `rewards.loss()`, `accuracy()` or `steps(threshold)`.
    discount: gamma.
    baseline: b, a number that is taken off every reward; the paper's is -0.1. None: rewards count from that of the
      student's start, and the mean of the other students' returns is taken off, which varies far less and has no bias
      either.
    features: as in `make_unrolled`. Unless given: "params" and "progress"; in a black box "x", "label", "params" and
      "prediction".
    hidden: as in `make_unrolled`.
    standardize: likewise.
    learning_rate: of Adam.
    weight_decay: likewise.
    optimizer: any optax transformation, in place of Adam.
    evaluate_every: every so many episodes the policy, taking its most probable actions, is tried on 20 students that
      are the same every time, and the one that did best in the end is returned. None: the last is returned.
    evaluation_steps: for how long they are taught.
    mesh: devices to split the students over, `last_jax.devices.mesh()`; their number must divide that of the students.
  """
  problem = trainer_.make_problem(learner, pool, target, validation, starts)
  if reward is None:
    reward = rewards.loss() if target is None else rewards.distance()
  if not hasattr(reward, "rewards"):
    raise TypeError(f"reward must come from last_jax.rewards, as accuracy(), but it is {reward!r}")
  reward.check(problem)
  output = actions if outputs.is_choice(actions) else outputs.actions(actions)
  checks.check_between("discount", discount, 0.0, 1.0)
  if baseline is not None:
    checks.check_number("baseline", baseline)
  elif isinstance(students, int) and students < 2:
    raise ValueError("students must be at least 2 where the others' returns are the baseline: or give baseline=")
  usual = features_.BLACK_BOX if target is None else features_.REINFORCE
  return trainer_.make_trainer(
    problem,
    Reinforce(reward, discount, baseline, horizon, batch_size),
    students=students,
    reset=reset,
    output=output,
    features=usual if features is None else features,
    hidden=hidden,
    standardize=standardize,
    learning_rate=learning_rate,
    weight_decay=weight_decay,
    optimizer=optimizer,
    evaluate_every=evaluate_every,
    evaluation_steps=evaluation_steps,
    mesh=mesh,
  )


def train_reinforce(
  key: Key,
  learner: Any,
  pool: Pool,
  *,
  actions: Any,
  target: Params | None = None,
  episodes: int = 1000,
  **settings: Any,
) -> tuple[Policy, Log]:
  """Trains a policy network by policy gradient, to choose among labels.

  Can be vmapped over keys, for many teachers at once.

  Args:
    key: of everything random.
    learner: whom to teach.
    pool: what from.
    actions: the labels to choose from, `[A, K]`, or `outputs.mixtures(...)`.
    target: w*; None for a black-box teacher.
    episodes: how many steps the policy takes.
    **settings: as in `training.make_reinforce`: horizon, starts, students, reward, ...

  Returns:
    The best policy, for `teachers.policy`, and a `Log`.
  """
  checks.check_count("episodes", episodes)
  trainer = make_reinforce(learner, pool, actions=actions, target=target, **settings)
  return trainer_.train(trainer, key, episodes=episodes)
