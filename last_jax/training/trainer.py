"""What both ways of training a teacher share: students, episodes, Adam, the best policy so far.

An *episode* is a stretch of teaching by the policy as it is, after which the policy takes one step of its optimizer. A
`Method` says what an episode computes: see `unrolled.py` and `reinforce.py`. All of training is a pure function of a
`State`, so it can be cut anywhere, resumed, jitted and vmapped over seeds.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from last_jax import checks, loop, synthesis
from last_jax.learners import Learner, check_learns_from

from last_jax.teachers.features import check_features
from last_jax.teachers.policy import Policy, make_policy, policy as policy_teacher
from last_jax.training.rewards import Problem
from last_jax.training.starts import as_starts
from last_jax.types import STATIC, Array, Key, Params, Pool, Result, Student

_EVALUATION = 0xFFFFFFFF  # Folded into the key for the fixed students; episodes count up from 0.


class State(NamedTuple):
  """All that training needs to go on."""

  policy: Policy
  opt_state: Any
  students: Student  # With a leading [students] axis.
  key: Key
  episode: Array  # [] how many were taken.
  best: Policy  # Of the policies that were evaluated, the one with the highest score.
  best_score: Array  # [] -inf until one was.


class Log(NamedTuple):
  """How training went."""

  loss: Array  # [episodes] what was minimised, mean over students.
  distance: Array | None  # [episodes] ||w - w*|| at the end of the episode, mean over students.
  applied: Array  # [episodes] whether the policy took its step: not where the gradient was not finite.
  score: Array | None  # [evaluations] what policies kept were judged by: higher is better.


class Method(Protocol):
  """What an episode computes. A pytree: its numbers are leaves."""

  horizon: int
  batch_size: int

  def episode(self, problem: Problem, policy: Policy, students: Student, keys: Key) -> tuple[Params, Student, dict]:
    """One stretch of teaching: the loss's gradient in the policy's weights, the students after it, and what to log.

    Args:
      problem: what is taught.
      policy: who teaches.
      students: with a leading [students] axis.
      keys: `[students]`.
    """

  def score(self, problem: Problem, policy: Policy, student: Student, key: Key) -> Array:
    """How well the policy teaches one student: higher is better."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Trainer:
  """A problem, a method, and the settings that methods share."""

  problem: Problem
  method: Method
  learning_rate: Array | float
  weight_decay: Array | float
  output: Any
  num_students: int = dataclasses.field(metadata=STATIC)
  num_reset: int = dataclasses.field(metadata=STATIC)  # How many students start anew after each episode.
  evaluate_every: int | None = dataclasses.field(metadata=STATIC)  # In episodes; None: the last policy is kept.
  features: tuple[str, ...] = dataclasses.field(metadata=STATIC)
  hidden: tuple[int, ...] = dataclasses.field(metadata=STATIC)
  standardize: bool = dataclasses.field(metadata=STATIC)
  optimizer: optax.GradientTransformation | None = dataclasses.field(metadata=STATIC)

  def _optimizer(self) -> optax.GradientTransformation:
    if self.optimizer is not None:
      return self.optimizer
    # Weight decay as part of the gradient, as Adam's is in the paper's time and framework (not AdamW).
    return optax.chain(optax.add_decayed_weights(self.weight_decay), optax.adam(self.learning_rate, 0.9, 0.999))

  def _start_students(self, key: Key, count: int) -> Student:
    return jax.vmap(lambda k: self.problem.learner.start(self.problem.starts(k)))(jax.random.split(key, count))

  def start(self, key: Key) -> State:
    """Before the first episode."""
    problem = self.problem
    students_key, policy_key, key = jax.random.split(key, 3)
    students = self._start_students(students_key, self.num_students)
    policy = make_policy(
      policy_key,
      problem.learner,
      problem.pool,
      jax.vmap(problem.starts)(jax.random.split(policy_key, 256)),
      target=problem.target,
      output=self.output,
      features=self.features,
      hidden=self.hidden,
      standardize=self.standardize,
    )
    worst = jnp.full((), -jnp.inf, problem.pool.x.dtype)
    opt_state = self._optimizer().init(policy.weights)
    return State(policy, opt_state, students, key, jnp.zeros((), jnp.uint32), policy, worst)

  def advance(self, state: State, episodes: int) -> tuple[State, Log]:
    """So many episodes more and, unless the last policy is kept anyway, an evaluation of where they led."""
    state, metrics = jax.lax.scan(lambda state, _: self._episode(state), state, length=episodes)
    if self.evaluate_every is None:
      return state._replace(best=state.policy), Log(**metrics, score=None)
    score = self.evaluate(state)
    better = score > state.best_score
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), state.policy, state.best)
    state = state._replace(best=best, best_score=jnp.where(better, score, state.best_score))
    return state, Log(**metrics, score=score[None])

  def evaluate(self, state: State) -> Array:
    """The policy's mean score over students that are the same every time."""
    start_key, lesson_key = jax.random.split(jax.random.fold_in(state.key, _EVALUATION))
    students = self._start_students(start_key, self.num_students)
    keys = jax.random.split(lesson_key, self.num_students)
    return jnp.mean(jax.vmap(lambda s, k: self.method.score(self.problem, state.policy, s, k))(students, keys))

  def _episode(self, state: State) -> tuple[State, dict]:
    lesson_key, reset_key, start_key = jax.random.split(jax.random.fold_in(state.key, state.episode), 3)
    keys = jax.random.split(lesson_key, self.num_students)
    gradient, students, metrics = self.method.episode(self.problem, state.policy, state.students, keys)
    updates, opt_state = self._optimizer().update(gradient, state.opt_state, state.policy.weights)
    weights = optax.apply_updates(state.policy.weights, updates)
    # A student that diverged may spoil a gradient; it must not spoil the policy.
    good = jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(gradient)]))
    weights, opt_state = jax.tree.map(
      lambda new, old: jnp.where(good, new, old), (weights, opt_state), (state.policy.weights, state.opt_state)
    )
    policy = dataclasses.replace(state.policy, weights=weights)
    metrics |= {"distance": _mean_distance(self.problem, students), "applied": good}
    students = self._reset(students, reset_key, start_key)
    next_state = state._replace(policy=policy, opt_state=opt_state, students=students, episode=state.episode + 1)
    return next_state, metrics

  def _reset(self, students: Student, reset_key: Key, start_key: Key) -> Student:
    """A random share of the students start anew, and all that are lost."""
    order = jax.random.permutation(reset_key, self.num_students)
    lost = ~jax.vmap(lambda s: jnp.all(jnp.stack([jnp.all(jnp.isfinite(w)) for w in jax.tree.leaves(s.params)])))(students)
    chosen = (order < self.num_reset) | lost
    fresh = self._start_students(start_key, self.num_students)

    def pick(new: Array, old: Array) -> Array:
      return jnp.where(chosen.reshape(-1, *(1,) * (new.ndim - 1)), new, old)

    return jax.tree.map(pick, fresh, students)


def _train(trainer: Trainer, key: Key, *, episodes: int) -> tuple[Policy, Log]:
  state = trainer.start(key)
  every = trainer.evaluate_every or episodes
  whole, tail = divmod(episodes, every)
  logs = []
  if whole:
    state, log = jax.lax.scan(lambda state, _: trainer.advance(state, every), state, length=whole)
    logs.append(jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), log))
  if tail:
    state, log = trainer.advance(state, tail)
    logs.append(log)
  return state.best, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *logs)


# All of training in one call; compiled once per architecture, horizon and number of students.
train = jax.jit(_train, static_argnames="episodes")


def make_problem(
  learner: Any, pool: Any, target: Params | None, validation: Pool | None, starts: Any
) -> Problem:
  """Checked, with what was left out filled in."""
  if not isinstance(learner, Learner):
    raise TypeError(f"learner must come from last_jax.learners, but it is a {type(learner).__name__}")
  validation = pool if validation is None else validation
  for name, value in (("pool", pool), ("validation", validation)):
    if not isinstance(value, Pool):
      raise TypeError(f"{name} must be a last_jax.Pool, but it is a {type(value).__name__}")
    check_learns_from(learner, value, name)
  checks.check_two_classes(learner, pool.y, "pool")
  if target is not None:
    checks.check_params(learner, target, "target")
  return Problem(learner, pool, target, validation, as_starts(learner, starts))


def make_trainer(
  problem: Problem,
  method: Method,
  *,
  students: int,
  reset: Any,
  output: Any,
  features: Sequence[str],
  hidden: Sequence[int],
  standardize: bool,
  learning_rate: Any,
  weight_decay: Any,
  optimizer: optax.GradientTransformation | None,
  evaluate_every: int | None,
) -> Trainer:
  """From settings that both methods share, checked."""
  checks.check_count("students", students)
  checks.check_count("batch_size", method.batch_size)
  checks.check_between("reset", reset, 0.0, 1.0)
  if isinstance(reset, jax.core.Tracer):
    raise TypeError("reset must be a plain number: how many students start anew is fixed when training is compiled")
  checks.check_positive("learning_rate", learning_rate)
  checks.check_not_negative("weight_decay", weight_decay)
  if evaluate_every is not None:
    checks.check_count("evaluate_every", evaluate_every)
  if optimizer is not None and not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
    raise TypeError(f"optimizer must be an optax transformation, but it is a {type(optimizer).__name__}")
  hidden = tuple(hidden)
  for width in hidden:
    checks.check_count("hidden", width)
  names = check_features(features, actions=hasattr(output, "log_probabilities"), omniscient=problem.target is not None)
  shape = jax.ShapeDtypeStruct((len(problem.pool), problem.learner.num_outputs(problem.pool.x)), problem.pool.x.dtype)
  output.check(problem.learner, shape)
  return Trainer(
    problem, method, learning_rate, weight_decay, output, students, round(float(reset) * students), evaluate_every,
    names, hidden, bool(standardize), optimizer,
  )  # fmt: skip


def _mean_distance(problem: Problem, students: Student) -> Array | None:
  """||w - w*||, mean over students; None in a black box."""
  if problem.target is None:
    return None
  squares = jax.vmap(lambda params: synthesis.squared_distance(params, problem.target))(students.params)
  return jnp.mean(jnp.sqrt(squares))


def teach_episode(
  problem: Problem,
  policy: Policy,
  student: Student,
  key: Key,
  *,
  steps: int,
  batch_size: int,
  probe: Callable[[Params], Any] | None,
  sample: bool = False,
  lessons: bool = False,
  first_step: Any = 0,
) -> Result:
  """The package's own loop, for one student: what trains a policy is what runs it."""
  teacher = policy_teacher(policy, sample=sample)
  task = loop.Task(problem.pool, problem.target, None, None)
  plan = loop.Plan(steps, batch_size, 1, (), probe, lessons)
  latest = loop.go_on_from(student, jnp.asarray(first_step, int)[None])
  return loop.run_inline(key, problem.learner, teacher, task, None, latest, plan=plan)
