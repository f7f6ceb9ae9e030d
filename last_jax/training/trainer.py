"""What both ways of training a teacher share: students, episodes, Adam, the best policy so far.

An *episode* is a stretch of teaching by the policy as it is, after which the policy takes one step of its optimizer. A
`Method` says what an episode computes: see `unrolled.py` and `reinforce.py`. Training is a pure function of a `State`:
it can be cut between any two calls of `advance`, resumed to the same bits, jitted, and vmapped over seeds. With a mesh
the students are split over devices; the policy is on each, and its gradient is averaged once an episode.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from last_jax import checks, devices, loop, synthesis
from last_jax.learners import check_learns_from
from last_jax.teachers.features import check_features
from last_jax.teachers.outputs import is_choice
from last_jax.teachers.policy import Policy, make_policy
from last_jax.teachers.policy import policy as policy_teacher
from last_jax.training.rewards import Problem, Reward
from last_jax.training.starts import as_starts
from last_jax.types import STATIC, Array, Key, Params, Pool, Result, Student

_EVALUATION = 0xFFFFFFFF  # Folded into the key for the fixed students; episodes count up from 0.
_EVALUATED = 20  # How many those are.
_MEASURED = 256  # How many students the size of features is measured on.


class State(NamedTuple):
  """All that training needs to go on."""

  policy: Policy
  opt_state: Any
  students: Student  # With a leading [students] axis.
  key: Key
  episode: Array  # [] how many were taken.
  best: Policy  # What training returns: of the policies that were evaluated the best, or else the last.
  best_score: Array  # [] -inf until one was evaluated.


class Log(NamedTuple):
  """How training went."""

  loss: Array  # [episodes] what is to become small, mean over students: the objective, or minus the sum of rewards.
  distance: Array | None  # [episodes] ||w - w*|| at the end of the episode, mean over students; None in a black box.
  applied: Array  # [episodes] whether the policy took its step: not where the gradient was not finite.
  score: Array | None  # [evaluations] mean over students that are the same every time: higher is better.


class Method(Protocol):
  """What an episode computes. A pytree: its numbers are leaves."""

  @property
  def reward(self) -> Reward:
    """What the policy is trained for."""

  @property
  def horizon(self) -> int:
    """How many steps an episode has."""

  @property
  def batch_size(self) -> int:
    """How many examples are shown in a step."""

  def episode(
    self, problem: Problem, policy: Policy, students: Student, keys: Key, axis: str | None = None
  ) -> tuple[Params, Student, dict[str, Any]]:
    """One stretch of teaching: the loss's gradient in the policy's weights, the students after it, and the loss.

    Args:
      problem: what is taught.
      policy: who teaches.
      students: with a leading [students] axis.
      keys: `[students]`.
      axis: where these are only a share of the students, the mesh's axis along which the others are. Gradient and loss
        are means over this share; who calls averages them.
    """


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
  evaluation_steps: int = dataclasses.field(metadata=STATIC)
  features: tuple[str, ...] = dataclasses.field(metadata=STATIC)
  hidden: tuple[int, ...] = dataclasses.field(metadata=STATIC)
  standardize: bool = dataclasses.field(metadata=STATIC)
  optimizer: optax.GradientTransformation | None = dataclasses.field(metadata=STATIC)
  mesh: Mesh | None = dataclasses.field(default=None, metadata=STATIC)

  def start(self, key: Key) -> State:
    """Before the first episode."""
    problem = self.problem
    students_key, policy_key, measure_key, key = jax.random.split(key, 4)
    policy = make_policy(
      policy_key,
      problem.learner,
      problem.pool,
      self._start_students(measure_key, _MEASURED).params,
      target=problem.target,
      output=self.output,
      features=self.features,
      hidden=self.hidden,
      standardize=self.standardize,
    )
    state = State(
      policy=policy,
      opt_state=self.build_optimizer().init(policy.weights),
      students=self._start_students(students_key, self.num_students),
      key=key,
      episode=jnp.zeros((), jnp.uint32),
      best=policy,
      best_score=jnp.full((), -jnp.inf, problem.pool.x.dtype),
    )
    return self._placed(state)

  def advance(self, state: State, episodes: int) -> tuple[State, Log]:
    """So many episodes more and then, unless the last policy is kept anyway, an evaluation."""
    state, metrics = jax.lax.scan(lambda state, _: self._episode(state), state, length=episodes)
    if self.evaluate_every is None:
      return self._placed(state._replace(best=state.policy)), Log(**metrics, score=None)
    score = self.evaluate(state)
    better = score > state.best_score
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), state.policy, state.best)
    state = state._replace(best=best, best_score=jnp.where(better, score, state.best_score))
    return self._placed(state), Log(**metrics, score=score[None])

  def evaluate(self, state: State) -> Array:
    """The policy's mean score over students that are the same every time. Where there is a choice, it does not draw."""
    problem, reward = self.problem, self.method.reward
    start_key, lesson_key = jax.random.split(jax.random.fold_in(state.key, _EVALUATION))
    measure = reward.measure(problem, None)

    def score(student: Student, key: Key) -> Array:
      probe = measure if reward.score_every_step else None
      size = self.method.batch_size
      result = teach_episode(
        problem, state.policy, student, key, steps=self.evaluation_steps, batch_size=size, probe=probe
      )
      return reward.score(result.probe if reward.score_every_step else measure(result.params)[None])

    students = self._start_students(start_key, _EVALUATED)
    return jnp.mean(jax.vmap(score)(students, jax.random.split(lesson_key, _EVALUATED)))

  def _episode(self, state: State) -> tuple[State, dict[str, Any]]:
    lesson_key, reset_key, start_key = jax.random.split(jax.random.fold_in(state.key, state.episode), 3)
    keys = jax.random.split(lesson_key, self.num_students)
    old = (state.policy.weights, state.opt_state)
    gradient, students, metrics = self._teach(state.policy, state.students, keys)
    updates, opt_state = self.build_optimizer().update(gradient, state.opt_state, state.policy.weights)
    new = (optax.apply_updates(state.policy.weights, updates), opt_state)
    # A student that diverged spoils this gradient; it must not spoil the policy.
    finite = _is_finite(gradient)
    weights, opt_state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old)
    metrics |= {"distance": _mean_distance(self.problem, students), "applied": finite}
    next_state = state._replace(
      policy=dataclasses.replace(state.policy, weights=weights),
      opt_state=opt_state,
      students=self._reset(students, reset_key, start_key),
      episode=state.episode + 1,
    )
    return next_state, metrics

  def _teach(self, policy: Policy, students: Student, keys: Key) -> tuple[Params, Student, dict[str, Any]]:
    """An episode of all students, on all devices."""
    if self.mesh is None:
      return self.method.episode(self.problem, policy, students, keys)

    def teach_share(method: Method, problem: Problem, policy: Policy, students: Student, keys: Key) -> Any:
      gradient, students, metrics = method.episode(problem, policy, students, keys, devices.STUDENTS)
      gradient, metrics = jax.lax.pmean((gradient, metrics), devices.STUDENTS)
      return gradient, students, metrics

    teach = devices.over_students(teach_share, self.mesh, (False, False, False, True, True), (False, True, False))
    return teach(self.method, self.problem, policy, students, keys)

  def _placed(self, state: State) -> State:
    """The same, with every part where it belongs: students split, all else on every device."""
    if self.mesh is None:
      return state
    everywhere, split = NamedSharding(self.mesh, PartitionSpec()), devices.sharding_of(self.num_students, self.mesh)
    where: Any = {name: split if name == "students" else everywhere for name in State._fields}
    return State(**jax.lax.with_sharding_constraint(state._asdict(), where))

  def _reset(self, students: Student, reset_key: Key, start_key: Key) -> Student:
    """A random share of the students start anew, and all that diverged."""
    order = jax.random.permutation(reset_key, self.num_students)
    chosen = (order < self.num_reset) | ~jax.vmap(_is_finite)(students.params)
    fresh = self._start_students(start_key, self.num_students)
    return jax.tree.map(
      lambda new, old: jnp.where(chosen.reshape(-1, *[1] * (new.ndim - 1)), new, old), fresh, students
    )

  def _start_students(self, key: Key, count: int) -> Student:
    return jax.vmap(lambda k: self.problem.learner.start(self.problem.starts(k)))(jax.random.split(key, count))

  def build_optimizer(self) -> optax.GradientTransformation:
    """Of the policy's weights."""
    if self.optimizer is not None:
      return self.optimizer
    # Weight decay as a part of the gradient, which is what "Adam with weight decay" meant to the paper; not AdamW.
    return optax.chain(optax.add_decayed_weights(self.weight_decay), optax.adam(self.learning_rate, 0.9, 0.999))


def _is_finite(tree: Any) -> Array:
  return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def _mean_distance(problem: Problem, students: Student) -> Array | None:
  if problem.target is None:
    return None
  squares = jax.vmap(lambda params: synthesis.squared_distance(params, problem.target))(students.params)
  return jnp.mean(jnp.sqrt(squares))


def train(trainer: Trainer, key: Key, *, episodes: int) -> tuple[Policy, Log]:
  """All of training in one call; compiled once per architecture, horizon and number of students."""
  return run(*devices.copy_to_all((trainer, key), trainer.mesh), episodes=episodes)


def _train(trainer: Trainer, key: Key, *, episodes: int) -> tuple[Policy, Log]:
  state = trainer.start(key)
  every = min(trainer.evaluate_every or episodes, episodes)
  whole, tail = divmod(episodes, every)
  state, log = jax.lax.scan(lambda state, _: trainer.advance(state, every), state, length=whole)
  logs = [jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), log)]
  if tail:
    state, log = trainer.advance(state, tail)
    logs.append(log)
  return state.best, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *logs)


run = jax.jit(_train, static_argnames="episodes")


def make_problem(learner: Any, pool: Any, target: Params | None, validation: Pool | None, starts: Any) -> Problem:
  """Checked, and with what was left out filled in."""
  validation = pool if validation is None else validation
  check_learns_from(learner, pool)
  check_learns_from(learner, validation, "validation")
  checks.check_two_classes(learner, pool.y, "pool")
  if target is not None:
    checks.check_params(learner, target, "target")
  return Problem(learner, pool, target, validation, as_starts(learner, starts))


def make_trainer(
  problem: Problem,
  method: Method,
  *,
  students: int,
  reset: float,
  output: Any,
  features: Sequence[str],
  hidden: Sequence[int],
  standardize: bool,
  learning_rate: Any,
  weight_decay: Any,
  optimizer: optax.GradientTransformation | None,
  evaluate_every: int | None,
  evaluation_steps: int,
  mesh: Mesh | None,
) -> Trainer:
  """From the settings that both methods share, checked."""
  checks.check_count("horizon", method.horizon)
  checks.check_count("batch_size", method.batch_size)
  checks.check_count("students", students)
  checks.check_between("reset", reset, 0.0, 1.0)
  checks.check_positive("learning_rate", learning_rate)
  checks.check_not_negative("weight_decay", weight_decay)
  checks.check_count("evaluation_steps", evaluation_steps)
  if evaluate_every is not None:
    checks.check_count("evaluate_every", evaluate_every)
  if mesh is not None and students % mesh.size:
    raise ValueError(f"students={students} cannot be split evenly over the {mesh.size} devices of the mesh")
  if optimizer is not None and not (hasattr(optimizer, "init") and hasattr(optimizer, "update")):
    raise TypeError(f"optimizer must be an optax transformation, but it is a {type(optimizer).__name__}")
  hidden = tuple(hidden)
  for width in hidden:
    checks.check_count("hidden", width)
  names = check_features(features, actions=is_choice(output), omniscient=problem.target is not None)
  x = problem.pool.x
  output.check(problem.learner, jax.ShapeDtypeStruct((len(problem.pool), problem.learner.num_outputs(x)), x.dtype))
  return Trainer(
    problem,
    method,
    learning_rate,
    weight_decay,
    output,
    num_students=students,
    num_reset=round(float(reset) * students),
    evaluate_every=evaluate_every,
    evaluation_steps=evaluation_steps,
    features=names,
    hidden=hidden,
    standardize=bool(standardize),
    optimizer=optimizer,
    mesh=mesh,
  )


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
