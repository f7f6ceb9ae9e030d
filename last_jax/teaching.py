"""Teaching as a state machine: `init`, `step` and `run` over one `State`. `teach` is `init` and `run`.

    state = init(key, problem, teacher)
    state, info = step(state, problem, teacher)                       one iteration
    state, records = run(state, problem, teacher, steps=1000)         a scan of `step`, with records along the way

All of them are pure. They compile themselves, once per shape, and can be jitted, vmapped, differentiated and sharded.
Given keys `[students]` in place of one key, `init` and `run` teach many students at once, each on its own.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from last_jax import advice, checks, devices, loop, programs, watching
from last_jax.base import Array, Info, Key, Lesson, Params, Pool, Records, Result, State, Teacher, is_concrete
from last_jax.checks import as_key
from last_jax.learners import Learner
from last_jax.loop import Plan, Probe
from last_jax.problem import Problem

METRICS = ("distance", "objective", "accuracy")

_MAX_STEPS = 2**31 - 1  # Steps are counted in 32 bits.


def init(key: Key, problem: Problem, teacher: Teacher, params: Params | None = None) -> State:
  """Return the state before the first iteration.

  Args:
    key: of `jax.random.key`; keys `[students]` for many students.
    problem: learner, pool, target.
    teacher: its `init` makes the teacher's state.
    params: the student's start, with a leading [students] axis for many; random unless given.
  """
  programs.make_room()
  check_teaches(teacher, problem)
  key = as_key(key)
  if key.ndim > 1:
    raise ValueError(f"key must be one key, or keys [students], but its shape is {key.shape}")
  if params is not None:
    checks.check_params(problem.learner, params, "params", students=key.shape[0] if key.ndim else None)
  return loop.init_all(key, problem, teacher, params)


def step(state: State, problem: Problem, teacher: Teacher, *, batch_size: int = 1) -> tuple[State, Info]:
  """Take one iteration: the loop proposes examples, the teacher answers with a lesson, the student learns.

  Returns:
    The next state, and an `Info` with the lesson and its certificate.
  """
  programs.make_room()
  check_teaches(teacher, problem)
  _check_state(state, problem)
  _check_one_student(state)
  batch_size = checks.check_count("batch_size", batch_size)
  return loop.step_one(state, problem, teacher, batch_size=batch_size)


def run(
  state: State,
  problem: Problem,
  teacher: Teacher,
  *,
  steps: int,
  batch_size: int = 1,
  record_every: int = 1,
  metrics: Sequence[str] | str | None = None,
  probe: Probe | None = None,
  lessons: bool = False,
  mesh: Mesh | None = None,
) -> tuple[State, Records]:
  """Take `steps` iterations: in one call or in several, with the same result to the bit.

  (On CPUs, a call with a single step may differ in the last bit: XLA inlines a loop of one iteration into the program
  around it, and contracts products and sums otherwise.)

  Args:
    state: of `init`, `run`, `load`; one student's, or with a leading [students] axis on every leaf.
    problem: as the state was made for.
    teacher: likewise.
    steps: number of iterations.
    batch_size: m, number of examples shown in each.
    record_every: a record is made after every `record_every` steps, and at the end.
    metrics: some of "distance", "objective", "accuracy"; unless given, all that the problem allows.
    probe: your own function of the parameters, recorded as `Records.probe`.
    lessons: whether to record the lessons and their certificates.
    mesh: devices to split many students over, `devices.mesh()`.

  Returns:
    The state after the last step, and `Records`.
  """
  programs.make_room()
  check_teaches(teacher, problem)
  _check_state(state, problem)
  devices.check_mesh(mesh)
  plan = make_plan(problem, steps, batch_size, record_every, metrics, probe, lessons)
  many = state.key.ndim > 0
  if is_concrete(state.step):
    _check_steps(state.step, steps)
  if not many:
    if mesh is not None:
      raise ValueError("mesh splits many students over devices, but this state is of one: give init keys [students]")
    watched = watching.is_on(state, problem, teacher)
    advance = _advance_one(problem, teacher)
    return watching.run(state, advance, plan) if watched else advance(state, plan)
  state, shared = devices.split(state, mesh), devices.copy_to_all((problem, teacher), mesh)
  watched, advance = watching.is_on(state, shared), _advance_many(shared, mesh)
  return watching.run(state, advance, plan) if watched else advance(state, plan)


def next_lesson(state: State, problem: Problem, teacher: Teacher, *, batch_size: int = 1) -> tuple[Lesson, State]:
  """Return the lesson to show a live student now, and the state in which it is expected afterwards.

  The student is not simulated here: report its parameters with `observe`. Without a report, it is taken to have learned
  as the learner would.
  """
  programs.make_room()
  check_teaches(teacher, problem)
  _check_state(state, problem)
  _check_one_student(state)
  batch_size = checks.check_count("batch_size", batch_size)
  state, info = loop.step_one(state, problem, teacher, batch_size=batch_size, live=True)
  return info.lesson, state


def observe(state: State, params: Params) -> State:
  """Return the state with the parameters that a live student reports."""
  if not isinstance(state, State):
    raise TypeError(f"state must be a State, of init, step or run, but it is a {type(state).__name__}")
  student = state.student
  found, wanted = checks.check_tree("params", params), jax.tree.structure(student.params)
  if found != wanted:
    raise ValueError(f"params must have the tree of the student's parameters, {wanted}, but it is {found}")

  def convert(path: Any, new: Any, old: Array) -> Array:
    if jnp.shape(new) != old.shape:
      where = jax.tree_util.keystr(path)
      raise ValueError(f"params{where} must have shape {old.shape}, but it has shape {jnp.shape(new)}")
    return jnp.asarray(new, old.dtype)

  params = jax.tree_util.tree_map_with_path(convert, params, student.params)
  return state._replace(student=student._replace(params=params), reported=jnp.ones_like(state.reported, bool))


def teach(
  key: Key,
  learner: Learner,
  teacher: Teacher,
  pool: Pool,
  *,
  target: Params | None = None,
  init: Params | None = None,
  steps: int = 1000,
  batch_size: int = 1,
  record_every: int = 1,
  test: Pool | None = None,
  lessons: bool = False,
  tolerance: Any = None,
  metrics: Sequence[str] | str | None = None,
  probe: Probe | None = None,
) -> Result:
  """Teach one student.

  Args:
    key: of `jax.random.key`. The examples proposed depend on the key and the number of the iteration alone.
    learner: the learner.
    teacher: the method of teaching.
    pool: the examples to teach from, with their ground truth.
    target: w*. Needed by omniscient teachers and for the distance.
    init: the student's start; random unless given.
    steps: number of iterations.
    batch_size: m, number of examples shown in each.
    record_every: metrics are computed at the start, after every `record_every` steps, and at the end.
    test: examples to measure the accuracy on.
    lessons: whether to record the curriculum, `Result.lessons`, and its certificates, `Result.certificate`.
    tolerance: if given, `Result.hitting_time` is the first iteration with distance <= tolerance.
    metrics: some of "distance", "objective", "accuracy"; unless given, all that are possible. The last two go over a
      whole pool for each record.
    probe: your own function of the parameters, recorded as `Result.probe`.

  Returns:
    A `Result`. To continue, pass its `state` to `run`.

  Warns if the student diverged: see `Result.diverged_at`. (`run` records that too, but does not warn: it does not wait
  for its records.)
  """
  programs.make_room()
  key = as_key(key)
  if key.ndim:
    raise ValueError(f"key must be one key, but its shape is {key.shape}: teach_many takes keys [students]")
  problem = Problem(learner, pool, target=target, test=test, tolerance=tolerance)
  check_teaches(teacher, problem)
  if init is not None:
    checks.check_params(learner, init, "init")
  plan = make_plan(problem, steps, batch_size, record_every, metrics, probe, lessons)
  if init is not None and teacher.needs_target:
    advice.warn_if_far(problem, init, batch_size)
  if watching.is_on(key, init, problem, teacher):
    state = loop.init_all(key, problem, teacher, init)
    result = watching.teach(state, problem, _advance_one(problem, teacher), plan)
  else:
    result = loop.teach_one(key, init, problem, teacher, plan=plan)
  advice.warn_if_diverged(result.records)
  return result


def teach_many(
  keys: Key,
  learner: Learner,
  teacher: Teacher,
  pool: Pool,
  *,
  target: Params | None = None,
  init: Params | None = None,
  steps: int = 1000,
  batch_size: int = 1,
  record_every: int = 1,
  test: Pool | None = None,
  lessons: bool = False,
  tolerance: Any = None,
  metrics: Sequence[str] | str | None = None,
  probe: Probe | None = None,
  mesh: Mesh | None = None,
) -> Result:
  """Teach many students, each on its own: results do not depend on the other students, nor on their number.

  Args:
    keys: `[students]`, one for each: `jax.random.split(key, students)`.
    init: parameters with a leading [students] axis; random unless given.
    mesh: devices to split the students over, of this process or of several: `devices.mesh()`. Unless given, the
      students are taught where the arguments are.

  The rest is as for `teach`.

  Returns:
    A `Result` whose leaves have a leading [students] axis.
  """
  programs.make_room()
  keys = as_key(keys, "keys")
  if keys.ndim != 1 or keys.shape[0] == 0:
    raise ValueError(f"keys must have shape [students], but it has shape {keys.shape}")
  devices.check_mesh(mesh)
  problem = Problem(learner, pool, target=target, test=test, tolerance=tolerance)
  check_teaches(teacher, problem)
  if init is not None:
    checks.check_params(learner, init, "init", students=keys.shape[0])
  plan = make_plan(problem, steps, batch_size, record_every, metrics, probe, lessons)
  students, shared = devices.split((keys, init), mesh), devices.copy_to_all((problem, teacher), mesh)
  if watching.is_on(students, shared):
    state = devices.split(loop.init_all(keys, problem, teacher, init), mesh)
    result = watching.teach(state, shared[0], _advance_many(shared, mesh), plan)
  else:
    result = loop.teach_many(students, shared, plan=plan, mesh=mesh)
  advice.warn_if_diverged(result.records)
  return result


def _advance_one(problem: Problem, teacher: Teacher) -> watching.Advance:
  return lambda state, plan: loop.run_one(state, problem, teacher, plan=plan)


def _advance_many(shared: tuple[Problem, Teacher], mesh: Mesh | None) -> watching.Advance:
  return lambda state, plan: loop.run_many(state, shared, plan=plan, mesh=mesh)


# --- Checks, before anything is traced.


def make_plan(
  problem: Problem,
  steps: int,
  batch_size: int = 1,
  record_every: int = 1,
  metrics: Sequence[str] | str | None = (),
  probe: Probe | None = None,
  lessons: bool = False,
) -> Plan:
  """Check the settings of a run."""
  steps, batch_size = checks.check_count("steps", steps), checks.check_count("batch_size", batch_size)
  record_every, lessons = checks.check_count("record_every", record_every), checks.check_flag("lessons", lessons)
  _check_steps(0, steps)
  classifies = problem.learner.loss.classification
  impossible = {} if problem.target is not None else {"distance": "it needs a target"}
  if not classifies:
    impossible["accuracy"] = f"the learner's loss {problem.learner.loss.name} is no classification loss"
  elif problem.test is None:
    impossible["accuracy"] = "it needs a test pool"
  if metrics is None:
    metrics = [metric for metric in METRICS if metric not in impossible]
  listed = f"a list of names, of {', '.join(METRICS)}"
  metrics = (metrics,) if isinstance(metrics, str) else checks.check_sequence("metrics", metrics, listed)
  for metric in metrics:
    checks.check_name("metrics", metric, METRICS)
    if metric in impossible:
      raise ValueError(f"metrics: {metric!r} cannot be recorded: {impossible[metric]}")
  if probe is not None and not callable(probe):
    raise TypeError(f"probe must be a function of the parameters, but it is a {type(probe).__name__}")
  ordered = tuple(metric for metric in METRICS if metric in metrics)
  return Plan(steps, batch_size, min(record_every, steps), ordered, probe, lessons)


def check_teaches(teacher: Teacher, problem: Problem) -> None:
  """Raise where a teacher and a problem do not fit together."""
  if not isinstance(teacher, Teacher):
    raise TypeError(f"teacher must be a Teacher, as teachers.greedy(...), but it is a {type(teacher).__name__}")
  if not isinstance(problem, Problem):
    raise TypeError(f"problem must be a Problem, but it is a {type(problem).__name__}")
  if teacher.needs_target and problem.target is None:
    raise ValueError(f"target is missing: the teacher {teacher.name} is omniscient and steers toward it")


def _check_state(state: Any, problem: Problem) -> None:
  """Raise unless it is a state of the problem's learner. Its students may have diverged."""
  if not isinstance(state, State):
    raise TypeError(f"state must be a State, of init, run or load, but it is a {type(state).__name__}")
  students = state.key.shape[0] if as_key(state.key, "state.key").ndim else None
  checks.check_params(problem.learner, state.params, "state.params", students=students, finite=False)


def _check_one_student(state: State) -> None:
  if state.key.ndim:
    raise ValueError(f"state is of {state.key.shape[0]} students, which `run` takes: for one step, jax.vmap over them")


def _check_steps(taken: Any, steps: int) -> None:
  most = int(jnp.max(taken)) if not isinstance(taken, int) else taken
  if most + steps > _MAX_STEPS:
    raise ValueError(f"steps={steps}: a run has at most {_MAX_STEPS} iterations in all, and {most} were taken")
  if not isinstance(taken, int) and int(jnp.min(taken)) != most:
    raise ValueError(f"state.step differs between students, from {int(jnp.min(taken))} to {most}: run them apart")
