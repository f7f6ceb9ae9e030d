"""Policy gradient: the label is an action, drawn by its probability, and good ones are made more probable.

    grad J  ~  (1/N) sum_i sum_t  grad log pi(a_t | s_t)  sum_{tau >= t} gamma^tau (r_tau - b)

where b is a constant, as in the paper, or by default the mean return of other students (leave-one-out). In groups that
share a start and examples (common random numbers), returns differ by the actions alone, and the baseline takes away
what the actions did not cause.

Students are taught by the package's own loop, without gradients. The states they visited and the labels they were shown
are recorded with all that passed through the network, and the probabilities of those labels are differentiated, all at
once.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from last_jax import checks
from last_jax.base import Array, Key, Params, Pool, Student
from last_jax.identity import register_dataclass
from last_jax.learners import Learner
from last_jax.problem import Problem
from last_jax.teachers import features as features_
from last_jax.teachers import outputs
from last_jax.teachers.outputs import Output
from last_jax.teachers.policy import Policy
from last_jax.training import backward, traced
from last_jax.training.settings import Settings, from_keywords, setting
from last_jax.training.traced import Steps, Still
from last_jax.training.trainer import Log, make_trainer, train


class Paths(NamedTuple):
  """An episode of all students."""

  steps: Steps  # [T, N, ...]
  still: Still | None  # Features that are not in the trace of the steps.
  rewards: Array  # [N, T] after each step.
  start_reward: Array  # [N] of the start itself; 0 where rewards are for the whole episode.


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Reinforce(Settings):
  """Settings of `train_reinforce`."""

  actions: Any = setting(
    None,
    "Labels to choose from, [A, K] (outputs.BINARY and outputs.BINARY_AUGMENTED are the paper's), or "
    "outputs.mixtures(...) for many classes.",
    static=False,
  )
  horizon: int = setting(100, "Number of steps of an episode.")
  discount: Array | float = setting(0.999, "gamma.", static=False)
  baseline: Array | float | None = setting(
    None,
    "b, subtracted from every reward; the paper's is -0.1. None: leave-one-out: rewards count from that of the "
    "student's start, and the mean return of the others of its group is subtracted, which has less variance and no "
    "bias either.",
    static=False,
  )
  group: int = setting(
    1,
    "Number of students that are taught from the same start with the same examples, and whose returns are each other's "
    "baseline; it must divide students. 1: each has its own, and the baseline is the mean return of all others.",
  )

  @property
  def label_output(self) -> Output:
    """The choice among actions."""
    return self.actions

  @property
  def inseparable(self) -> int:
    """Groups stay together: their returns are compared without collectives."""
    return self.group

  def filled_in(self, problem: Problem) -> "Reinforce":
    """Return the settings with defaults that depend on the problem, checked."""
    if self.actions is None:
      raise TypeError("train_reinforce() needs actions: labels [A, K], as outputs.BINARY, or outputs.mixtures(...)")
    actions = self.actions if outputs.is_choice(self.actions) else outputs.actions(self.actions)
    discount = checks.check_between("discount", self.discount, 0.0, 1.0)
    baseline = None if self.baseline is None else checks.check_number("baseline", self.baseline)
    group, students = checks.check_count("group", self.group), checks.check_count("students", self.students)
    if students % group:
      raise ValueError(f"students={students} cannot be divided into groups of group={group}")
    if baseline is None and students < 2:
      raise ValueError("students must be at least 2 where the others' returns are the baseline: or give baseline=")
    usual = features_.BLACK_BOX if problem.target is None else features_.REINFORCE
    features = usual if self.features is None else self.features
    settings = dataclasses.replace(
      self, actions=actions, features=features, discount=discount, baseline=baseline, group=group
    )
    return Settings.filled_in(settings, problem)

  def episode(
    self, problem: Problem, policy: Policy, students: Student, keys: Key, axis: str | None = None
  ) -> tuple[Params, Student, dict[str, Any]]:
    """Estimate the gradient of -J from one trajectory per student."""
    paths, students = self.teach(problem, policy, students, keys)
    steps = paths.steps
    returns = self.returns(paths.rewards, paths.start_reward, axis).T  # [T, N]
    index, shown = (leaf.reshape(-1, *leaf.shape[3:]) for leaf in steps.lessons)  # [T N m], [T N m, K]

    def surrogate(numbers: Array) -> Array:
      output: Any = policy.output
      logs = output.log_probabilities(numbers.reshape(index.shape[0], -1), problem.truth[index], index, shown)
      return -jnp.sum(logs.reshape(numbers.shape[:3]) * returns[:, :, None]) / returns.shape[1]

    error = jax.grad(surrogate)(steps.trace.values[-1])
    if paths.still is None:
      gradient = backward.module_gradient(problem, policy, steps, error)
    else:
      # The network was evaluated while the students were taught: only the way back is left, one product per layer.
      errors = backward.through_network(policy, steps.trace, error)
      gradient = backward.weight_gradient(policy, steps.trace, paths.still, errors)
    return gradient, students, {"loss": -jnp.mean(jnp.sum(paths.rewards, 1))}

  def returns(self, rewards: Array, before: Array, axis: str | None = None) -> Array:
    """Return the discounted rewards after each action, minus the baseline, `[N, T]`.

    Args:
      rewards: `[N, T]`, after steps 1..T.
      before: `[N]`, of the starts themselves.
      axis: as for `episode`.
    """
    factors = self.discount ** jnp.arange(1, rewards.shape[1] + 1, dtype=rewards.dtype)

    def sum_to_go(values: Array) -> Array:
      return jnp.cumsum((values * factors[None])[:, ::-1], 1)[:, ::-1]

    if self.baseline is not None:
      return sum_to_go(rewards - self.baseline)
    to_go = sum_to_go(rewards - before[:, None])
    groups = to_go.reshape(-1, self.group, to_go.shape[1]) if self.group > 1 else to_go[None]  # [groups, members, T]
    total, count = jnp.sum(groups, 1, keepdims=True), groups.shape[1]
    if axis is not None and self.group == 1:
      total, count = jax.lax.psum((total, count), axis)
    others = (total - groups) / (count - 1)
    return (groups - others).reshape(to_go.shape)  # No bias: others' returns do not depend on this student's actions.

  def teach(self, problem: Problem, policy: Policy, students: Student, keys: Key) -> tuple[Paths, Student]:
    """Teach all students for one episode; return their paths, and the students afterwards."""
    reward = self.reward
    assert reward is not None, "filled in"
    members = None
    if self.group > 1:
      members = jnp.arange(keys.shape[0]) % self.group
      # The first of each group stands for all: they continue from its state, with its examples and its measure.
      students, keys = jax.tree.map(lambda leaf: jnp.repeat(leaf[:: self.group], self.group, 0), (students, keys))
    measure_keys = traced.split_keys(keys)[1]

    def measure(key: Key, params: Params) -> Array:
      return reward.measure(problem, key)(params)

    def probe(key: Key) -> Callable[[Params], Any]:
      return reward.measure(problem, key) if reward.every_step else lambda params: None

    after, steps, still = traced.teach_all(
      problem,
      policy,
      students,
      keys,
      steps=self.horizon,
      batch_size=self.batch_size,
      probe=probe,
      sample=True,
      members=members,
    )
    if reward.every_step:
      measured = jnp.concatenate([jax.vmap(measure)(measure_keys, students.params)[None], steps.probe])
    else:
      measured = jax.vmap(measure)(measure_keys, after.params)[None]  # [1, N]
    paid = jax.vmap(lambda each: reward.rewards(each, self.horizon), 1)(measured)
    start_reward = -measured[0] if reward.smooth else jnp.zeros_like(paid[:, 0])
    return Paths(steps, still, paid, start_reward), after


def train_reinforce(
  key: Key,
  learner: Learner,
  pool: Pool,
  *,
  target: Params | None = None,
  validation: Pool | None = None,
  init_fn: Callable[[Key], Params] | None = None,
  episodes: int = 1000,
  mesh: Mesh | None = None,
  **settings: Any,
) -> tuple[Policy, Log]:
  """Train a policy network by policy gradient, to choose among labels.

  Can be vmapped over keys, for many teachers at once.

  Args:
    key: of everything random.
    learner: the learner to teach.
    pool: the examples to teach from.
    target: w*; None for a black-box teacher, which never sees it, neither in training nor in teaching.
    validation: examples on which a black box measures its students; the pool unless given.
    init_fn: `key -> params`, the students' starts: `training.near(target, 0.05)`; the learner's own unless given.
    episodes: number of steps that the policy's optimizer takes.
    mesh: devices to split the students over, `devices.mesh()`; their number must divide that of the students.
    **settings: fields of `training.Reinforce`: actions (needed), horizon, students, reward, ...

  Returns:
    The best policy, for `teachers.policy`, and a `Log`.
  """
  method = from_keywords(Reinforce, "train_reinforce", settings)
  trainer = make_trainer(method, learner, pool, target=target, validation=validation, init_fn=init_fn, mesh=mesh)
  return train(trainer, key, episodes=episodes)
