"""The loop itself: one iteration, a scan of iterations with records, one student or many. `teaching.py` calls it."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from last_jax import checks, compiler, devices, distances
from last_jax.answers import check_answer, check_arrays
from last_jax.base import Array, Info, Key, Params, Records, Result, State, Student, Teacher, View
from last_jax.problem import Problem
from last_jax.proposals import propose

# Proposals are drawn for up to this many steps at a time: enough to vectorize, few enough for memory to stay bounded.
_BLOCK = 1024

Probe = Callable[[Params], Any]

_SMALL_FEATURES = 64  # Of linear learners: from here on, steps are as fast with the compiler's usual settings.


class Plan(NamedTuple):
  """The settings of a run that are static."""

  steps: int
  batch_size: int
  record_every: int
  metrics: tuple[str, ...]
  probe: Probe | None
  lessons: bool


def _init(key: Key, problem: Problem, teacher: Teacher, params: Params | None) -> State:
  learner, init_key = problem.learner, _split(key)[0]
  student = learner.start(learner.init(init_key) if params is None else params)
  teacher_state = None if teacher.init is None else teacher.init(_seen_by(teacher, problem))
  check_arrays(f"init of the teacher {teacher.name!r}", "teacher_state", teacher_state)
  hitting_time = None
  if problem.tolerance is not None:
    hitting_time = jnp.where(_is_near(problem, student), 0, -1)
  return State(student, teacher_state, jnp.zeros((), int), key, hitting_time, jnp.zeros((), bool))


def _split(key: Key) -> tuple[Key, Key, Key]:
  init_key, proposal_key, teacher_key = jax.random.split(key, 3)
  return init_key, proposal_key, teacher_key


def _seen_by(teacher: Teacher, problem: Problem) -> Problem:
  """A teacher that does not declare that it needs the target cannot reach it."""
  return problem if teacher.needs_target else problem.without_target()


def _is_near(problem: Problem, student: Student) -> Array:
  assert problem.tolerance is not None
  return distances.squared_distance(student.params, problem.target) <= jnp.square(problem.tolerance)


def _make_iteration(key: Key, problem: Problem, teacher: Teacher, *, live: bool = False) -> Callable[..., Any]:
  """Return one iteration as a function of the state and the proposal `[m]`, with all that is computed once.

  A `live` student counts as reported before and after it: nothing need be predicted.
  """
  _, proposal_key, teacher_key = _split(key)
  seen = _seen_by(teacher, problem)
  cache = None if teacher.prepare is None else teacher.prepare(seen)

  def iterate(state: State, proposal: Array) -> tuple[State, Info]:
    step_key = jax.random.fold_in(teacher_key, state.step)
    view = View(seen, state.student, state.step, step_key, proposal_key, cache, live or state.reported)
    answer = teacher.step(state.teacher_state, view, proposal)
    lesson, teacher_state, certificate = check_answer(teacher, problem, state, answer)
    student = problem.learner.step(state.student, problem.pool.x[lesson.index], lesson.label)
    hit = state.hitting_time
    if hit is not None:
      hit = jnp.where((hit < 0) & _is_near(problem, student), state.step + 1, hit)
    reported = jnp.full_like(state.reported, live)
    return State(student, teacher_state, state.step + 1, state.key, hit, reported), Info(lesson, certificate)

  return iterate


def iterate(state: State, problem: Problem, teacher: Teacher, proposal: Array) -> tuple[State, Info]:
  """Take one iteration of one student on the proposal `[m]`, to be called while something else is traced."""
  return _make_iteration(state.key, problem, teacher)(state, proposal)


def draw(key: Key, count: int, batch_size: int, problem: Problem) -> tuple[Array, Key]:
  """Return the first proposals of a run with this key, `[count, m]`, and the keys of its teacher, `[count]`."""
  _, proposal_key, teacher_key = _split(key)
  proposals = propose(proposal_key, jnp.zeros((), int), count, batch_size, len(problem.pool))
  return proposals, jax.vmap(lambda step: jax.random.fold_in(teacher_key, step))(jnp.arange(count))


def measure(problem: Problem, params: Params, plan: Plan) -> dict[str, Any]:
  """Compute the metrics of one record, and nothing that is not recorded, except whether the student diverged.

  That is known from the distance; without it, it takes a pass over the parameters. It is found for records and not for
  steps, which it would slow: parameters that are NaN or infinite stay so.
  """
  learner, values = problem.learner, {}
  if "distance" in plan.metrics:
    values["distance"] = distances.distance(params, problem.target)
  else:
    zeros = [jnp.sum(0 * jnp.ravel(leaf)) for leaf in jax.tree.leaves(params)]  # NaN where an entry is not finite.
    values["diverged"] = functools.reduce(jnp.add, zeros)
  if "objective" in plan.metrics:
    values["objective"] = learner.objective(params, problem.pool.x, problem.truth)
  if "accuracy" in plan.metrics:
    assert problem.test is not None, "checked by make_plan"
    assert problem.test_truth is not None
    values["accuracy"] = learner.accuracy(params, problem.test.x, problem.test_truth)
  if plan.probe is not None:
    with checks.calling("probe"):
      values["probe"] = plan.probe(params)
    check_arrays("probe", "what it returns", values["probe"])
  return values


def mark_diverged(values: dict[str, Any]) -> dict[str, Any]:
  """Return the metrics of `measure`, with `diverged`: whether a parameter was not finite."""
  # Of all records at once: in the scan, one more output would take as long as the distance.
  found = values["diverged"] if "diverged" in values else values["distance"]
  return values | {"diverged": ~jnp.isfinite(found)}


def run_inline(state: State, problem: Problem, teacher: Teacher, *, plan: Plan) -> tuple[State, Records]:
  """`run` for one student, unchecked and not compiled by itself: to be called while something else is traced."""
  iterate = _make_iteration(state.key, problem, teacher)
  proposal_key, first_step = _split(state.key)[1], state.step

  def draw(taken: Array, count: int) -> tuple[Array, Array]:
    """Return the numbers and the proposals of the next `count` iterations, `[count]` and `[count, m]`."""
    proposals = propose(proposal_key, first_step + taken, count, plan.batch_size, len(problem.pool))
    return first_step + taken + jnp.arange(count), proposals

  def advance(carry: State, drawn: tuple[Array, Array]) -> tuple[State, Info | None]:
    def body(carry: State, drawn: tuple[Array, Array]) -> tuple[State, Info | None]:
      step, proposal = drawn
      reported = state.reported & (step == first_step)
      after, info = iterate(carry._replace(step=step, key=state.key, reported=reported), proposal)
      return _mutable(after), info if plan.lessons else None

    return jax.lax.scan(body, carry, drawn)

  def advance_far(carry: State, taken: Array, count: int) -> tuple[State, Info | None]:
    """Take any number of iterations, with proposals in blocks."""
    length = _block_length(count, _BLOCK)
    whole, rest = divmod(count, length)
    carry, info = _repeat(lambda carry, i: advance(carry, draw(taken + i * length, length)), carry, whole)
    if rest:
      carry, last = advance(carry, draw(taken + whole * length, rest))
      info = _join([info, last])
    return carry, info

  def block(carry: State, taken: Array, records: int, stride: int) -> tuple[State, Any]:
    """Take `records` times `stride` iterations, with a record after each stride."""

    def stride_then_record(carry: State, inputs: Any) -> tuple[State, Any]:
      carry, info = advance_far(carry, inputs, stride) if records * stride > _BLOCK else advance(carry, inputs)
      return carry, (measure(problem, carry.student.params, plan), info)

    inputs: Any = taken + stride * jnp.arange(records)
    if records * stride <= _BLOCK:
      inputs = jax.tree.map(lambda leaf: leaf.reshape(records, stride, *leaf.shape[1:]), draw(taken, records * stride))
    carry, (recorded, info) = jax.lax.scan(stride_then_record, carry, inputs)
    return carry, (recorded, _flatten(info))

  stride = plan.record_every
  whole, rest = divmod(plan.steps, stride)
  per_block = _block_length(whole, max(1, _BLOCK // stride))
  blocks, left = divmod(whole, per_block)
  carry, length = _mutable(state), per_block * stride
  carry, piece = _repeat(lambda carry, i: block(carry, i * length, per_block, stride), carry, blocks)
  pieces = [piece]
  if left:
    carry, piece = block(carry, jnp.asarray(blocks * length), left, stride)
    pieces.append(piece)
  if rest:
    carry, piece = block(carry, jnp.asarray(whole * stride), 1, rest)
    pieces.append(piece)
  values, info = _join(pieces)
  numbers = stride * jnp.arange(1, whole + 1)
  numbers = jnp.concatenate([numbers, jnp.full(1, plan.steps)]) if rest else numbers
  lessons, certificate = (None, None) if info is None else info
  records = Records(step=first_step + numbers, **mark_diverged(values), lessons=lessons, certificate=certificate)
  reported = jnp.zeros_like(state.reported)
  return carry._replace(step=first_step + plan.steps, key=state.key, reported=reported), records


def _block_length(count: int, most: int) -> int:
  """Return the length, at most `most`, of the blocks that `count` is divided into, so that little or nothing is left.

  A shorter last block is a second loop in the program, with buffers of its own. One of a single iteration is avoided:
  XLA inlines it into the program around it, and may round it otherwise than the iterations of a loop.
  """

  def left(length: int) -> tuple[bool, int]:
    return count % length == 1, count % length

  return count if count <= most else min(range(most, most // 2, -1), key=left)


def _mutable(state: State) -> State:
  """Return the part of a state that iterations change; the loop knows the rest."""
  return state._replace(step=None, key=None, reported=None)  # type: ignore[arg-type]


def _repeat(function: Callable[[State, Array], tuple[State, Any]], carry: State, count: int) -> tuple[State, Any]:
  """Call `function(carry, i)` for i = 0..count - 1 and concatenate what it returns; None where `count` is 0."""
  if count == 0:
    return carry, None
  if count == 1:
    return function(carry, jnp.zeros((), int))
  carry, pieces = jax.lax.scan(function, carry, jnp.arange(count))
  return carry, _flatten(pieces)


def _flatten(tree: Any) -> Any:
  return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)


def _join(pieces: Sequence[Any]) -> Any:
  pieces = [piece for piece in pieces if piece is not None]
  return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *pieces) if pieces else None


def _teach(key: Key, params: Params | None, problem: Problem, teacher: Teacher, *, plan: Plan) -> Result:
  state = _init(key, problem, teacher, params)
  start = (state.step, mark_diverged(measure(problem, state.student.params, plan)))
  state, records = run_inline(state, problem, teacher, plan=plan)
  rest = (records.step, {name: getattr(records, name) for name in start[1]})
  step, values = _join([jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], start), rest])
  return Result(records._replace(step=step, **values), state)


# --- Many students.


def over_students(function: Callable[..., Any], students: Any, shared: Any, mesh: Mesh | None) -> Any:
  """Apply a function of (students, shared) to all students, or to each device's share of them."""
  if mesh is None:
    return function(students, shared)
  # Each device runs a program of its own, without collectives: a student whose labels take many iterations delays only
  # its own device.
  count = jax.tree.leaves(students)[0].shape[0]
  missing = -count % mesh.size
  if missing:  # Some are taught twice, so that the devices have equal shares.
    students = jax.tree.map(lambda leaf: leaf[jnp.arange(count + missing) % count], students)
  result = devices.over_students(function, mesh, (True, False), True)(students, shared)
  if missing:
    result = jax.tree.map(lambda leaf: leaf[:count], result)
  return jax.lax.with_sharding_constraint(result, devices.sharding_of(count, mesh))


def _teach_many(students: tuple[Key, Any], shared: tuple[Problem, Teacher], *, plan: Plan, mesh: Mesh | None) -> Result:
  def teach_all(students: tuple[Key, Any], shared: tuple[Problem, Teacher]) -> Result:
    return jax.vmap(lambda key, params: _teach(key, params, *shared, plan=plan))(*students)

  return over_students(teach_all, students, shared, mesh)


def _run_many(
  states: State, shared: tuple[Problem, Teacher], *, plan: Plan, mesh: Mesh | None
) -> tuple[State, Records]:
  def run_all(states: State, shared: tuple[Problem, Teacher]) -> tuple[State, Records]:
    # All students have taken the same number of steps. As one number it can decide what is computed; so can one flag.
    axes: Any = State(0, 0, None, 0, 0, None)  # type: ignore[arg-type]
    run_each = jax.vmap(lambda state: run_inline(state, *shared, plan=plan), (axes,))
    return run_each(states._replace(step=states.step[0], reported=jnp.any(states.reported)))

  return over_students(run_all, states, shared, mesh)


_teach_many_compiled = compiler.jit_for_small_steps(_teach_many, ("plan", "mesh"))
_run_many_compiled = compiler.jit_for_small_steps(_run_many, ("plan", "mesh"))


def teach_many(students: tuple[Key, Any], shared: tuple[Problem, Teacher], *, plan: Plan, mesh: Mesh | None) -> Result:
  """Teach students, (keys, starts) with a leading [students] axis, from their first step."""
  return _teach_many_compiled(has_small_steps(shared[0]), students, shared, plan=plan, mesh=mesh)


def run_many(states: State, shared: tuple[Problem, Teacher], *, plan: Plan, mesh: Mesh | None) -> tuple[State, Records]:
  """`run_inline` for many students, whose states have a leading [students] axis."""
  return _run_many_compiled(has_small_steps(shared[0]), states, shared, plan=plan, mesh=mesh)


def has_small_steps(problem: Problem) -> bool:
  """Return whether a student's step is a few dozen numbers: see `compiler.jit_for_small_steps`."""
  return problem.learner.is_linear and problem.pool.x.shape[-1] < _SMALL_FEATURES


@functools.partial(jax.jit, inline=True)
def init_all(key: Key, problem: Problem, teacher: Teacher, params: Params | None) -> State:
  """Return the state of one student, or of many for keys `[students]`."""
  if not key.ndim:
    return _init(key, problem, teacher, params)
  return jax.vmap(lambda key, params: _init(key, problem, teacher, params))(key, params)


@functools.partial(jax.jit, static_argnames=("batch_size", "live"), inline=True)
def step_one(
  state: State, problem: Problem, teacher: Teacher, *, batch_size: int, live: bool = False
) -> tuple[State, Info]:
  """Take one iteration of a simulated or of a live student."""
  iterate = _make_iteration(state.key, problem, teacher, live=live)
  proposal = propose(_split(state.key)[1], state.step, 1, batch_size, len(problem.pool))[0]
  return iterate(state, proposal)


run_one: jax.stages.Wrapped = jax.jit(run_inline, static_argnames="plan", inline=True)
teach_one: jax.stages.Wrapped = jax.jit(_teach, static_argnames="plan", inline=True)
