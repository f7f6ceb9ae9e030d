"""The training loop of all methods: students, episodes, the policy's optimizer, the best policy so far.

In an *episode* the current policy teaches all students and then takes one step of its optimizer along the gradient that
the method computes (`unrolled.py`, `reinforce.py`, `evolution.py`). Training is a pure function of a `TrainingState`:
it can be cut between any two calls of `advance`, resumed to the same bits, jitted, and vmapped over seeds. With a mesh
the students are sharded over devices; the policy is replicated, and its gradient is averaged once an episode.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.tree_util import Partial

from last_jax import checks, devices, distances, fields, loop, programs, teaching, watching
from last_jax.base import STATIC, Array, Key, Params, Pool, Records, State, Student, Teacher
from last_jax.functions import as_pure_function
from last_jax.learners import Learner, check_learns_from
from last_jax.problem import Problem
from last_jax.teachers.policy import Policy, make_policy
from last_jax.teachers.policy import policy as policy_teacher
from last_jax.training.settings import Settings

_EVALUATION = 0xFFFFFFFF  # Folded into the key for the evaluation's students; episodes count up from 0.
_NUM_EVALUATED = 20
_NUM_MEASURED = 256  # Students on which the size of features is measured.


@fields.documented
class TrainingState(NamedTuple):
  """Everything between two episodes.

  Attributes:
    policy: the network as it is.
    opt_state: of the policy's optimizer.
    students: what the method carries of each, with a leading [students] axis: the student, unless it needs more.
    key: all randomness of training follows from it.
    episode: `[]` number of episodes taken.
    best: what training returns: the best of the policies that were evaluated, or else the last.
    best_score: `[]` -inf until one was evaluated.
  """

  policy: Policy
  opt_state: Any
  students: Any
  key: Key
  episode: Array
  best: Policy
  best_score: Array


@fields.documented
class Log(NamedTuple):
  """Records of training.

  Attributes:
    loss: `[episodes]` mean over students: the objective, or minus the sum of rewards.
    distance: `[episodes]` ||w - w*|| at the end of the episode, mean over students; None in a black box.
    applied: `[episodes]` whether the policy took its step: not where the gradient was not finite.
    score: `[evaluations]` mean over students that are the same every time: higher is better.
  """

  loss: Array
  distance: Array | None
  applied: Array
  score: Array | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Trainer:
  """A problem, the students' starts, and a method with its settings."""

  problem: Problem  # Rewards without a target are measured on its test pool.
  init_fn: Callable[[Key], Params]  # A pytree.
  method: Settings
  mesh: Mesh | None = dataclasses.field(default=None, metadata=STATIC)

  def init(self, key: Key) -> TrainingState:
    """Return the state before the first episode."""
    problem, method = self.problem, self.method
    students_key, policy_key, measure_key, key = jax.random.split(key, 4)
    policy = make_policy(
      policy_key,
      problem,
      self._init_students(measure_key, _NUM_MEASURED).params,
      module=method.policy,
      output=method.label_output,
      features=method.features,
      hidden=method.hidden,
      standardize=method.standardize,
    )
    state = TrainingState(
      policy=policy,
      opt_state=method.build_optimizer().init(policy.weights),
      students=self._begin(policy, students_key),
      key=key,
      episode=jnp.zeros((), jnp.uint32),
      best=policy,
      best_score=jnp.full((), -jnp.inf, problem.pool.x.dtype),
    )
    return self._place(state)

  def advance(self, state: TrainingState, episodes: int) -> tuple[TrainingState, Log]:
    """Take some episodes and then, if the method evaluates, an evaluation."""
    state, metrics = jax.lax.scan(lambda state, _: self._episode(state), state, length=episodes)
    if not self.method.evaluate_every:
      return self._place(state._replace(best=state.policy)), Log(**metrics, score=None)
    score = self.evaluate(state)
    # Until a score is finite, the last policy is the best known.
    better = (score > state.best_score) | ~jnp.isfinite(state.best_score)
    best = jax.tree.map(lambda new, old: jnp.where(better, new, old), state.policy, state.best)
    best_score = jnp.where(better & jnp.isfinite(score), score, state.best_score)
    return self._place(state._replace(best=best, best_score=best_score)), Log(**metrics, score=score[None])

  def evaluate(self, state: TrainingState) -> Array:
    """Return the policy's mean score over students that are the same every time; it takes its best actions."""
    problem, reward = self.problem, self.method.reward
    assert reward is not None, "filled in"
    start_key, lesson_key = jax.random.split(jax.random.fold_in(state.key, _EVALUATION))
    measure = reward.measure(problem, None)

    def score(student: Student, key: Key) -> Array:
      after, records = teach_episode(
        problem,
        policy_teacher(state.policy),
        student,
        key,
        steps=self.method.evaluation_steps,
        batch_size=self.method.batch_size,
        probe=measure if reward.score_every_step else None,
      )
      if not reward.score_every_step:
        return reward.score(measure(after.student.params)[None])
      return reward.score(jnp.concatenate([measure(student.params)[None], records.probe]))

    students = self._init_students(start_key, _NUM_EVALUATED)
    return jnp.mean(jax.vmap(score)(students, jax.random.split(lesson_key, _NUM_EVALUATED)))

  def _episode(self, state: TrainingState) -> tuple[TrainingState, dict[str, Any]]:
    lesson_key, reset_key, start_key = jax.random.split(jax.random.fold_in(state.key, state.episode), 3)
    keys = jax.random.split(lesson_key, self.method.students)
    old = (state.policy.weights, state.opt_state)
    gradient, students, metrics = self._teach(state.policy, state.students, keys)
    updates, opt_state = self.method.build_optimizer().update(gradient, state.opt_state, state.policy.weights)
    new = (optax.apply_updates(state.policy.weights, updates), opt_state)
    # A student that diverged spoils this gradient; it must not spoil the policy.
    finite = _is_finite(gradient)
    weights, opt_state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), new, old)
    metrics |= {"distance": _mean_distance(self.problem, students), "applied": finite}
    next_state = state._replace(
      policy=dataclasses.replace(state.policy, weights=weights),
      opt_state=opt_state,
      students=self._reset(state.policy, students, reset_key, start_key),
      episode=state.episode + 1,
    )
    return next_state, metrics

  def _teach(self, policy: Policy, students: Any, keys: Key) -> tuple[Params, Any, dict[str, Any]]:
    """Take an episode of all students, on all devices."""
    if self.mesh is None:
      return self.method.episode(self.problem, policy, students, keys)

    def teach_share(method: Settings, problem: Problem, policy: Policy, students: Any, keys: Key) -> Any:
      gradient, students, metrics = method.episode(problem, policy, students, keys, devices.STUDENTS)
      gradient, metrics = jax.lax.pmean((gradient, metrics), devices.STUDENTS)
      return gradient, students, metrics

    teach = devices.over_students(teach_share, self.mesh, (False, False, False, True, True), (False, True, False))
    return teach(self.method, self.problem, policy, students, keys)

  def _place(self, state: TrainingState) -> TrainingState:
    """Shard the students, replicate everything else."""
    if self.mesh is None:
      return state
    replicated = NamedSharding(self.mesh, PartitionSpec())
    sharded = devices.sharding_of(self.method.students, self.mesh)
    where: Any = {name: sharded if name == "students" else replicated for name in TrainingState._fields}
    return TrainingState(**jax.lax.with_sharding_constraint(state._asdict(), where))

  def _reset(self, policy: Policy, students: Any, reset_key: Key, start_key: Key) -> Any:
    """Start a random share of the students again, and all that diverged."""
    count = self.method.students
    order = jax.random.permutation(reset_key, count)
    chosen = (order < self.method.num_reset) | ~jax.vmap(_is_finite)(students)
    fresh = self._begin(policy, start_key)
    return jax.tree.map(
      lambda new, old: jnp.where(chosen.reshape(-1, *[1] * (new.ndim - 1)), new, old), fresh, students
    )

  def _begin(self, policy: Policy, key: Key) -> Any:
    return jax.vmap(lambda student: self.method.carry(policy, student))(self._init_students(key, self.method.students))

  def _init_students(self, key: Key, count: int) -> Student:
    return jax.vmap(lambda k: self.problem.learner.start(self.init_fn(k)))(jax.random.split(key, count))


def _is_finite(tree: Any) -> Array:
  return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))


def _mean_distance(problem: Problem, students: Any) -> Array | None:
  if problem.target is None:
    return None
  return jnp.mean(jax.vmap(lambda params: distances.distance(params, problem.target))(students.params))


def make_trainer(
  method: Settings,
  learner: Learner,
  pool: Pool,
  *,
  target: Params | None = None,
  validation: Pool | None = None,
  init_fn: Callable[[Key], Params] | None = None,
  mesh: Mesh | None = None,
) -> Trainer:
  """Return the trainer of `train_unrolled`, `train_reinforce` or `train_evolution`, for training in pieces.

  Args:
    method: settings, `Unrolled(...)`, `Reinforce(...)` or `Evolution(...)`.

  The rest is as for `train_unrolled`.
  """
  devices.check_mesh(mesh)
  if validation is not None:
    check_learns_from(learner, validation, "validation")
  problem = Problem(learner, pool, target=target, test=pool if validation is None else validation)
  if init_fn is None:
    init_fn = Partial(Learner.init, learner)
  else:
    init_fn = as_pure_function("init_fn", init_fn, ("key",))
    with checks.calling("init_fn"):
      shapes = jax.eval_shape(init_fn, jax.random.key(0))
    checks.check_params(learner, shapes, "init_fn(key)", abstract=True)
  method = method.filled_in(problem)
  if mesh is not None and method.students % (mesh.size * method.inseparable):
    whole = f", in whole groups of {method.inseparable}" if method.inseparable > 1 else ""
    raise ValueError(
      f"students={method.students} cannot be split evenly over the {mesh.size} devices of the mesh{whole}"
    )
  return Trainer(problem, init_fn, method, mesh)


def train(trainer: Trainer, key: Key, *, episodes: int) -> tuple[Policy, Log]:
  """Train from the first episode to the last; compiled once per architecture, horizon and number of students."""
  programs.make_room()
  episodes = checks.check_count("episodes", episodes)
  trainer, key = devices.copy_to_all((trainer, checks.as_one_key(key)), trainer.mesh)
  if watching.is_on(trainer, key):
    return _train_in_chunks(trainer, key, episodes)
  return run(trainer, key, episodes=episodes)


def _train(trainer: Trainer, key: Key, *, episodes: int) -> tuple[Policy, Log]:
  state = trainer.init(key)
  every = min(trainer.method.evaluate_every or episodes, episodes)
  whole, tail = divmod(episodes, every)
  state, log = jax.lax.scan(lambda state, _: trainer.advance(state, every), state, length=whole)
  logs = [jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), log)]
  if tail:
    state, log = trainer.advance(state, tail)
    logs.append(log)
  return state.best, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *logs)


run: jax.stages.Wrapped = jax.jit(_train, static_argnames="episodes")
_init = jax.jit(Trainer.init)
_advance = jax.jit(Trainer.advance, static_argnames="episodes")


def _train_in_chunks(trainer: Trainer, key: Key, episodes: int) -> tuple[Policy, Log]:
  """Train as `run` does, in several calls, and show progress between them."""
  every = min(trainer.method.evaluate_every or max(2, watching.chunk_length(episodes, 1)), episodes)
  watch, state, logs = watching.current(), _init(trainer, key), []
  with watch.line(episodes, "episodes") as line:
    for before in range(0, episodes, every):
      after = min(before + every, episodes)
      state, log = jax.block_until_ready(_advance(trainer, state, episodes=after - before))
      logs.append(log)
      line.update(after)
      watch.hand_over({"step": jnp.arange(before + 1, after), **_rows(log, slice(-1))}, 0)
      watch.hand_over({"step": jnp.full(1, after), **_rows(log, slice(-1, None)), "score": log.score}, 0)
  return state.best, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *logs)


def _rows(log: Log, rows: slice) -> dict[str, Any]:
  return {name: None if leaf is None else leaf[rows] for name, leaf in log._asdict().items() if name != "score"}


def teach_episode(
  problem: Problem,
  teacher: Teacher,
  student: Student,
  key: Key,
  *,
  steps: int,
  batch_size: int,
  probe: Callable[[Params], Any] | None,
  lessons: bool = False,
  first_step: Array | None = None,
) -> tuple[State, Records]:
  """Teach one student with the package's own loop; a policy is trained by the program that runs it."""
  step = jnp.zeros((), int) if first_step is None else first_step
  plan = teaching.make_plan(problem, steps, batch_size, probe=probe, lessons=lessons)
  return loop.run_inline(State(student, None, step, key, None), problem, teacher, plan=plan)
