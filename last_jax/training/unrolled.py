"""Unrolling: the policy's gradient through the students' own steps (equation 2 of the paper).

    minimise over theta   sum over k = 1..K of  decay^(K - k) ||w^k - w*||^2

Students are taught by the loop's own iteration; the gradient is found from the trace that it leaves (`backward.py`) or,
in segments or where the network is a module of the user's own, by JAX through the same loop. In the black box the
learner's loss on validation examples replaces the distance.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

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
from last_jax.teachers.policy import policy as policy_teacher
from last_jax.training import backward, rewards, traced
from last_jax.training.rewards import Reward
from last_jax.training.settings import Settings, from_keywords, setting
from last_jax.training.trainer import Log, make_trainer, teach_episode, train


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Unrolled(Settings):
  """Settings of `train_unrolled`."""

  reset: float | None = setting(
    None, "Share of the students that start again after an episode; 0.2, but at least one, unless given."
  )
  weight_decay: Array | float | None = setting(None, "Weight decay, added to Adam's gradient, 1e-4.", static=False)
  reward: Reward | None = setting(
    None, "The policy's aim, smooth: rewards.distance() or, in a black box, rewards.loss().", static=False
  )
  decay: Array | float = setting(0.95, "The reward after step k counts decay^(horizon - k) times.", static=False)
  output: Output | None = setting(
    None, "From the network's numbers to labels: outputs.simplex(), free() or residue(alpha).", static=False
  )
  segment: int | None = setting(
    None,
    "For long horizons: store the students only every `segment` steps for the backward pass and recompute the steps "
    "between. About the root of the horizon needs the least memory. None: store everything.",
  )

  @property
  def label_output(self) -> Output:
    """From the network's numbers to labels."""
    assert self.output is not None, "filled in"
    return self.output

  def filled_in(self, problem: Problem) -> "Unrolled":
    """Return the settings with defaults that depend on the problem, checked."""
    black_box = problem.target is None
    output = self.output
    if output is None:
      output = outputs.simplex() if problem.learner.loss.classification else outputs.free()
    outputs.check_output("output", output)
    if outputs.is_choice(output):
      raise ValueError("output chooses among labels, through which there is no gradient: use train_reinforce")
    if self.reward is not None:
      rewards.check_reward("reward", self.reward)
      if not self.reward.smooth:
        raise TypeError(f"reward must be rewards.distance() or loss(), which have gradients, but it is {self.reward!r}")
    decay = checks.check_between("decay", self.decay, 0.0, 1.0)
    segment = None if self.segment is None else checks.check_count("segment", self.segment)
    students = checks.check_count("students", self.students)
    features = (features_.BLACK_BOX if black_box else features_.UNROLLED) if self.features is None else self.features
    weight_decay = 1e-4 if self.weight_decay is None and self.optimizer is None else self.weight_decay
    reset = self.reset
    if reset is None:
      reset = 0.2 if round(0.2 * students) else 1 / students
    settings = dataclasses.replace(
      self, reset=reset, output=output, features=features, weight_decay=weight_decay, decay=decay, segment=segment
    )
    if self.evaluate_every is None and not black_box:  # The objective itself shows how well the policy teaches.
      settings = dataclasses.replace(settings, evaluate_every=0)
    return Settings.filled_in(settings, problem)

  def episode(
    self, problem: Problem, policy: Policy, students: Student, keys: Key, axis: str | None = None
  ) -> tuple[Params, Student, dict[str, Any]]:
    """Return the gradient of the objective's mean over students, the students after the episode, and the loss."""
    del axis  # A student's objective is its own.
    if policy.module is not None or (self.segment is not None and self.segment < self.horizon):
      return self._plain_episode(problem, policy, students, keys)
    reward = self.reward
    assert reward is not None, "filled in"

    def measure(key: Key, params: Params) -> tuple[Array, Params]:
      return jax.vmap(jax.value_and_grad(reward.measure(problem, key)))(params)

    horizon, batch_size = self.horizon, self.batch_size
    after, steps, still = traced.teach_all(problem, policy, students, keys, steps=horizon, batch_size=batch_size)
    visited = jax.tree.map(
      lambda leaf, end: jnp.concatenate([leaf[1:], end[None]]), steps.students.params, after.params
    )
    errors, slopes = jax.vmap(measure, (0, 1), 1)(traced.split_keys(keys)[1], visited)  # [T, N], [T, N, ...]
    factors = self.decay ** jnp.arange(self.horizon - 1, -1, -1) / errors.shape[1]  # [T]
    slopes = jax.tree.map(lambda leaf: leaf * factors.reshape(-1, *[1] * (leaf.ndim - 1)), slopes)
    assert still is not None, "of the built-in network"
    in_layers = backward.through_students(problem, policy, steps, still, slopes)
    gradient = backward.weight_gradient(policy, steps.trace, still, in_layers)
    return gradient, after, {"loss": jnp.sum(factors[:, None] * errors)}

  def _plain_episode(
    self, problem: Problem, policy: Policy, students: Student, keys: Key
  ) -> tuple[Params, Student, dict[str, Any]]:
    """`episode`, differentiated by JAX: for any network, and without the trace whose memory segments save."""

    def mean_objective(weights: Params) -> tuple[Array, Student]:
      current = dataclasses.replace(policy, weights=weights)
      losses, moved = jax.vmap(lambda student, key: self.objective(problem, current, student, key))(students, keys)
      return jnp.mean(losses), moved

    (loss, students), gradient = jax.value_and_grad(mean_objective, has_aux=True)(policy.weights)
    return gradient, students, {"loss": loss}

  def objective(self, problem: Problem, policy: Policy, student: Student, key: Key) -> tuple[Array, Student]:
    """Return the objective of one student `[]`, and the student after the episode."""
    lesson_key, measure_key = jax.random.split(key)
    assert self.reward is not None, "filled in"
    error = self.reward.measure(problem, measure_key)

    def chunk(student: Student, first_step: Array, steps: int) -> tuple[Student, Array]:
      state, records = teach_episode(
        problem,
        policy_teacher(policy),
        student,
        lesson_key,
        steps=steps,
        batch_size=self.batch_size,
        probe=error,
        first_step=first_step,
      )
      taken = first_step + jnp.arange(1, steps + 1)
      return state.student, jnp.sum(self.decay ** (self.horizon - taken) * records.probe)

    if self.segment is None or self.segment >= self.horizon:
      student, loss = chunk(student, jnp.zeros((), int), self.horizon)
      return loss, student
    # Only the students between segments are stored for the backward pass; the steps within are computed once more.
    length, (whole, tail) = self.segment, divmod(self.horizon, self.segment)
    segment = jax.checkpoint(lambda student, first_step: chunk(student, first_step, length))
    student, losses = jax.lax.scan(segment, student, length * jnp.arange(whole))
    loss = jnp.sum(losses)
    if tail:
      student, rest = chunk(student, jnp.asarray(whole * length), tail)
      loss = loss + rest
    return loss, student


def train_unrolled(
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
  """Train a policy network by gradients through the students' own steps.

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
    **settings: fields of `training.Unrolled`: horizon, students, output, ...

  Returns:
    The policy, for `teachers.policy`, and a `Log`.
  """
  method = from_keywords(Unrolled, "train_unrolled", settings)
  trainer = make_trainer(method, learner, pool, target=target, validation=validation, init_fn=init_fn, mesh=mesh)
  return train(trainer, key, episodes=episodes)
