"""Unrolling: the policy's gradient through the students' own steps (equation 2 of the paper).

    minimise over theta   sum over k = 1..K of  decay^(K - k) ||w^k - w*||^2

The gradient runs through `lax.scan` over the same loop that teaches. In the black box the learner's loss on a batch of
validation examples takes the place of the distance.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh

from last_jax import checks
from last_jax.teachers import features as features_
from last_jax.teachers import outputs
from last_jax.teachers.policy import Policy
from last_jax.training import rewards
from last_jax.training import trainer as trainer_
from last_jax.training.rewards import Problem, Reward
from last_jax.training.trainer import Log, Trainer
from last_jax.types import STATIC, Array, Key, Params, Pool, Student


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Unrolled:
  """Settings of the method; see `train_unrolled`."""

  reward: Reward  # Smooth: what is minimised is its measure.
  decay: Array | float
  horizon: int = dataclasses.field(metadata=STATIC)
  batch_size: int = dataclasses.field(metadata=STATIC)
  segment: int | None = dataclasses.field(metadata=STATIC)

  def episode(
    self, problem: Problem, policy: Policy, students: Student, keys: Key, axis: str | None = None
  ) -> tuple[Params, Student, dict]:
    """The gradient of the objective's mean over students."""
    del axis  # A student's objective is its own.

    def mean_objective(weights: Params) -> tuple[Array, Student]:
      current = dataclasses.replace(policy, weights=weights)
      losses, moved = jax.vmap(lambda student, key: self.objective(problem, current, student, key))(students, keys)
      return jnp.mean(losses), moved

    (loss, students), gradient = jax.value_and_grad(mean_objective, has_aux=True)(policy.weights)
    return gradient, students, {"loss": loss}

  def objective(self, problem: Problem, policy: Policy, student: Student, key: Key) -> tuple[Array, Student]:
    """What is minimised, for one student, and the student afterwards."""
    lesson_key, measure_key = jax.random.split(key)
    error = self.reward.measure(problem, measure_key)

    def stretch(student: Student, first_step: Array, steps: int) -> tuple[Student, Array]:
      result = trainer_.teach_episode(
        problem,
        policy,
        student,
        lesson_key,
        steps=steps,
        batch_size=self.batch_size,
        probe=error,
        first_step=first_step,
      )
      taken = first_step + jnp.arange(1, steps + 1)
      return result.student, jnp.sum(self.decay ** (self.horizon - taken) * result.probe[1:])

    if self.segment is None or self.segment >= self.horizon:
      student, loss = stretch(student, jnp.zeros((), int), self.horizon)
      return loss, student
    # Only the students at the seams are kept for the way back; what lies between is computed once more.
    length, (whole, tail) = self.segment, divmod(self.horizon, self.segment)
    segment = jax.checkpoint(lambda student, first_step: stretch(student, first_step, length))
    student, losses = jax.lax.scan(segment, student, length * jnp.arange(whole))
    loss = jnp.sum(losses)
    if tail:
      student, rest = stretch(student, jnp.asarray(whole * length), tail)
      loss = loss + rest
    return loss, student


def make_unrolled(
  learner: Any,
  pool: Pool,
  *,
  target: Params | None = None,
  validation: Pool | None = None,
  starts: Any = None,
  horizon: int = 20,
  batch_size: int = 1,
  students: int = 10,
  reset: float = 0.2,
  error: Any = None,
  decay: Any = 0.95,
  output: Any = None,
  features: Sequence[str] | None = None,
  hidden: Sequence[int] = (128, 128),
  standardize: bool = True,
  learning_rate: Any = 1e-3,
  weight_decay: Any = 1e-4,
  optimizer: optax.GradientTransformation | None = None,
  segment: int | None = None,
  evaluate_every: int | None = None,
  evaluation_steps: int = 300,
  mesh: Mesh | None = None,
) -> Trainer:
  """The trainer of `train_unrolled`, with all its settings: for who wants to train in pieces.

  Args:
    learner: whom to teach.
    pool: what from.
    target: w*; None for a black-box teacher, which never sees it, neither in training nor in teaching.
    validation: examples to judge students by in a black box; the pool unless given.
    starts: `key -> params`, where students start: `training.near(target, 0.05)`; random as the learner's own unless
      given.
    horizon: K, the steps of an episode, through all of which gradients run.
    batch_size: examples shown in a step.
    students: how many are taught at once.
    reset: share of the students who start anew after an episode; the others go on where they are.
    error: what is minimised: `rewards.distance()` or, in a black box, `rewards.loss()`.
    decay: the error after step k counts decay^(K - k) times.
    output: how labels come out of the network: `outputs.simplex()`, `free()` or `residue(alpha)`. Unless given: the
      first for classifiers, the second for others.
    features: what the network looks at (see `teachers/features.py`). Unless given: "x", "label", "params", "prediction"
      and, with a target, "target".
    hidden: widths of its hidden layers.
    standardize: whether features are brought to the same size first.
    learning_rate: of Adam.
    weight_decay: likewise.
    optimizer: any optax transformation, in place of Adam.
    segment: for long horizons: keep the students only every so many steps for the way back, and compute the steps
      between once more. About the root of the horizon needs the least memory. None: keep everything.
    evaluate_every: if given, every so many episodes the policy is tried on 20 students that are the same every time,
      and that with the smallest error in the end is returned; otherwise the last.
    evaluation_steps: for how long they are taught.
    mesh: devices to split the students over, `last_jax.devices.mesh()`; their number must divide that of the students.
  """
  problem = trainer_.make_problem(learner, pool, target, validation, starts)
  if output is None:
    output = outputs.simplex() if learner.loss.classification else outputs.free()
  outputs.check_output("output", output)
  if outputs.is_choice(output):
    raise ValueError("output chooses among labels, through which there is no gradient: use train_reinforce")
  if error is None:
    error = rewards.loss() if target is None else rewards.distance()
  if not getattr(error, "smooth", False):
    raise TypeError(f"error must be rewards.distance() or rewards.loss(), which have gradients, but it is {error!r}")
  error.check(problem)
  checks.check_between("decay", decay, 0.0, 1.0)
  if segment is not None:
    checks.check_count("segment", segment)
  usual = features_.BLACK_BOX if target is None else features_.UNROLLED
  return trainer_.make_trainer(
    problem,
    Unrolled(error, decay, horizon, batch_size, segment),
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


def train_unrolled(
  key: Key, learner: Any, pool: Pool, *, target: Params | None = None, episodes: int = 1000, **settings: Any
) -> tuple[Policy, Log]:
  """Trains a policy network by gradients through the students' own steps.

  Can be vmapped over keys, for many teachers at once.

  Args:
    key: of everything random.
    learner: whom to teach.
    pool: what from.
    target: w*; None for a black-box teacher.
    episodes: how many steps the policy takes.
    **settings: as in `training.make_unrolled`: horizon, starts, students, output, ...

  Returns:
    The policy, for `teachers.policy`, and a `Log`.
  """
  checks.check_count("episodes", episodes)
  return trainer_.train(make_unrolled(learner, pool, target=target, **settings), key, episodes=episodes)
