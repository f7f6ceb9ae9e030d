"""Evolution strategies: a gradient from scores alone, for rewards that have none and for any output.

    grad E[F(theta + sigma e)]  ~  (1/N) sum_i  (F_i(theta + sigma e_i) - F_i(theta - sigma e_i)) / (2 sigma)  e_i

F is the score of an episode: minus the loss or the distance at its end, the accuracy, minus the steps to an accuracy.
Every student is taught twice, from the same start and with the same examples (an antithetic pair with common random
numbers): only the policies differ, by +sigma e_i and -sigma e_i with e_i ~ N(0, 1).

Persistent (PES, Vicol et al. 2021): both of a pair continue in the next episode where they are, under new noise, and
the score is multiplied by the sum of all noise since their start. The gradient is then that of all episodes of a
student together, without the bias of cutting them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
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
from last_jax.training.settings import Settings, from_keywords, setting
from last_jax.training.trainer import Log, make_trainer, teach_episode, train


class Pair(NamedTuple):
  """A student taught by two policies, between two episodes."""

  plus: Student
  minus: Student
  noise: Array  # [weights] the sum of sigma e over the episodes since its start.

  @property
  def params(self) -> Params:
    """The parameters of one of the two."""
    return self.plus.params


@register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Evolution(Settings):
  """Settings of `train_evolution`."""

  horizon: int = setting(100, "Number of steps of an episode.")
  output: Output | None = setting(
    None, "From the network's numbers to labels: any of outputs, also actions(...) and mixtures(...).", static=False
  )
  deviation: Array | float = setting(
    0.1, "sigma, the standard deviation of the noise on the policy's weights.", static=False
  )
  persistent: bool = setting(
    False, "Whether pairs that do not start again continue, with the sum of their noise (PES), rather than one of them."
  )

  @property
  def label_output(self) -> Output:
    """From the network's numbers to labels."""
    assert self.output is not None, "filled in"
    return self.output

  def filled_in(self, problem: Problem) -> "Evolution":
    """Return the settings with defaults that depend on the problem, checked."""
    output = self.output
    if output is None:
      output = outputs.simplex() if problem.learner.loss.classification else outputs.free()
    outputs.check_output("output", output)
    deviation, persistent = (
      checks.check_positive("deviation", self.deviation),
      checks.check_flag("persistent", self.persistent),
    )
    students = checks.check_count("students", self.students)
    usual = features_.BLACK_BOX if problem.target is None else features_.UNROLLED
    features = usual if self.features is None else self.features
    reset = self.reset
    if reset is None and persistent:
      reset = max(1, round(0.2 * students)) / students
    settings = dataclasses.replace(
      self, output=output, features=features, reset=reset, deviation=deviation, persistent=persistent
    )
    return Settings.filled_in(settings, problem)

  def carry(self, policy: Policy, student: Student) -> Any:
    """Return the student or, if pairs persist, a pair of it without noise."""
    if not self.persistent:
      return student
    return Pair(student, student, jnp.zeros_like(ravel_pytree(policy.weights)[0]))

  def episode(
    self, problem: Problem, policy: Policy, students: Any, keys: Key, axis: str | None = None
  ) -> tuple[Params, Any, dict[str, Any]]:
    """Estimate the gradient of minus the score, from one pair per student."""
    del axis  # A pair's estimate is its own.
    flat, unravel = ravel_pytree(policy.weights)

    def estimate(student: Any, key: Key) -> tuple[Array, Any, Array]:
      noise_key, lesson_key = jax.random.split(key)
      noise = self.deviation * jax.random.normal(noise_key, flat.shape, flat.dtype)
      pair = student if self.persistent else Pair(student, student, jnp.zeros_like(flat))

      def attempt(student: Student, weights: Array) -> tuple[Array, Student]:
        current = dataclasses.replace(policy, weights=unravel(weights))
        return self.score(problem, current, student, lesson_key)

      both = jax.tree.map(lambda plus, minus: jnp.stack([plus, minus]), pair.plus, pair.minus)
      scores, both = jax.vmap(attempt)(both, jnp.stack([flat + noise, flat - noise]))
      plus, minus = (jax.tree.map(lambda leaf, i=i: leaf[i], both) for i in range(2))
      total = pair.noise + noise
      slope = (scores[0] - scores[1]) / (2 * self.deviation**2)
      return -slope * total, Pair(plus, minus, total) if self.persistent else plus, jnp.mean(scores)

    gradients, students, scores = jax.vmap(estimate)(students, keys)
    return unravel(jnp.mean(gradients, 0)), students, {"loss": -jnp.mean(scores)}

  def score(self, problem: Problem, policy: Policy, student: Student, key: Key) -> tuple[Array, Student]:
    """Return the score `[]` of one student's episode, and the student after it."""
    reward = self.reward
    assert reward is not None, "filled in"
    lesson_key, measure_key = jax.random.split(key)
    measure = reward.measure(problem, measure_key)
    state, records = teach_episode(
      problem,
      policy_teacher(policy),
      student,
      lesson_key,
      steps=self.horizon,
      batch_size=self.batch_size,
      probe=measure if reward.score_every_step else None,
    )
    if not reward.score_every_step:
      return reward.score(measure(state.student.params)[None]), state.student
    return reward.score(jnp.concatenate([measure(student.params)[None], records.probe])), state.student


def train_evolution(
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
  """Train a policy network by evolution strategies: for rewards without gradients, and best for small networks.

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
    **settings: fields of `training.Evolution`: horizon, students (pairs), deviation, reward, hidden, ...

  Returns:
    The best policy, for `teachers.policy`, and a `Log`.
  """
  method = from_keywords(Evolution, "train_evolution", settings)
  trainer = make_trainer(method, learner, pool, target=target, validation=validation, init_fn=init_fn, mesh=mesh)
  return train(trainer, key, episodes=episodes)
