"""`distill_labels`: the front of this folder, which checks its arguments and takes one of three roads."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from last_jax import argmin, checks, fields, programs, targets, watching
from last_jax.base import Array, Certificate, Key, Params, Pool, is_concrete
from last_jax.constraints import Constraint, none
from last_jax.distilling import linearized, unrolled
from last_jax.distilling.students import InitFn, Training, as_init_fn, make_training
from last_jax.distilling.unrolled import DistillState, Goal, Search
from last_jax.learners import Learner, check_learns_from
from last_jax.optimizers import Sgd
from last_jax.quadratic import Quadratic

ROADS = ("loop", "solved", "trajectory")
MOST_NUMBERS = 8192  # Of labels that are solved for: their matrix takes 256 MiB in float32.
_DIVERGED = 1e3  # Growth of rounding over all steps.


@fields.documented
class DistillLog(NamedTuple):
  """How the labels were found.

  Attributes:
    objective: road "loop": before each update, the mean over its students of ||w - w*||^2 or of the loss on its
      validation examples, `[updates]`. Else `[2]`, of the ground truth and of the labels: the same as the linear model
      has it, or the sum over the trajectory.
    certificate: how well the label problem was solved; None for "loop".
    state: from which "loop" resumes; None else.
  """

  objective: Array
  certificate: Certificate | None = None
  state: DistillState | None = None


def distill_labels(
  key: Key,
  learner: Learner,
  x: Array,
  y: Array,
  *,
  target: Any = None,
  validation: Pool | None = None,
  steps: int,
  road: str = "loop",
  constraint: Constraint | None = None,
  batch_size: int | None = None,
  students: int = 8,
  init_fn: InitFn | None = None,
  updates: int | None = None,
  rate: Any = None,
  parametrization: str | None = None,
  validation_batch: int | None = None,
  segment: int | None = None,
  labels: Array | None = None,
  state: DistillState | None = None,
) -> tuple[Array, DistillLog]:
  """Return one label per example, the same in every step, for students that train on them by themselves.

  Students start at random, take `steps` steps of the learner on `(x, labels)`, and should end near to `target`, or with
  a low loss on `validation`, on average. Three roads:

  - "loop": Adam on the labels, with gradients of whole runs of the package's own `run`. Any learner, loss and
    optimizer, any convex set; slow, and resumable.
  - "solved": students are taken to be linear around their starts, through their tangent kernel, and their loss to be
    its expansion to second order there; the labels are then one linear or constrained solve, to rounding. Exact for
    linear learners with squared error. For softmax it is a regression of labels that are centred over the classes,
    which does not know that probabilities saturate: for a few steps only, or for students with squared error.
    For SGD without momentum that sees all examples in each step, losses affine in the label, and up to 8,192 numbers.
  - "trajectory": labels that minimise the sum of one-step errors along a stored trajectory,
    `target=targets.trajectory(params)` with parameters `[steps + 1]`, the start first. One convex quadratic, exact for
    any network; learners as for "solved".

  Args:
    key: of `jax.random.key`.
    learner: the learner of the students; its tangent kernel and its gradients are used.
    x: `[n, ...]` examples.
    y: their ground truth: `[n]` class ids or real targets, or `[n, K]` label vectors. Of labels with the same effect,
      solved ones are nearest to it.
    target: w*, parameters; or, for "trajectory", `targets.trajectory(params)`.
    validation: examples whose mean loss is to be low, in place of a target.
    steps: T, steps that students take.
    road: "loop", "solved" or "trajectory".
    constraint: the set of labels; `constraints.none()` unless given. Not around predictions, which change. One-hot and
      sparse labels are searched for on the other two roads only.
    batch_size: number of random examples in a student's step; all of them unless given ("loop" only).
    students: number of random starts: of each update, or of which the solved problem is the mean. (A trajectory has
      its own start, and neither uses this nor `init_fn`.)
    init_fn: `key -> params`, the students' starts, as `training.near(target, 0.05)`; the learner's own unless given.
    updates: number of updates of "loop" in this call, 200 unless given. 0: only the state.
    rate: of Adam, 0.02 unless given.
    parametrization: "projection": Adam moves the labels, which are projected; "softmax": it moves numbers whose softmax
      they are, for `constraints.simplex()` of two classes and more.
    validation_batch: number of validation examples that an update draws; all unless given.
    segment: steps whose inputs are in memory at once while gradients are computed; about the root of `steps`.
    labels: `[n, K]`, where "loop" starts, as the solved ones; the ground truth unless given.
    state: `log.state` of an earlier call with the same arguments, to continue there.

  Returns:
    Labels `[n, K]` (`[n, T, K]` for learners with outputs for each token), and a `DistillLog`.

  Raises:
    ValueError, TypeError: an argument is wrong, or the linear student diverges.
  """
  programs.make_room()
  key = checks.as_one_key(key)
  pool = Pool(x, y)
  _check_examples(learner, pool)
  if validation is not None:
    check_learns_from(learner, validation, "validation")
  truth = learner.encode(pool.x, pool.y)
  rows = truth.reshape(-1, truth.shape[-1])
  checks.check_name("road", road, ROADS)
  students = checks.check_count("students", students)
  training = make_training(steps, batch_size, segment)
  constraint = none() if constraint is None else constraint
  _check_constraint(constraint, road)
  goal = _make_goal(learner, target, validation, road, training.steps)
  starts = as_init_fn(learner, init_fn)
  own = {
    "updates": updates, "rate": rate, "parametrization": parametrization, "validation_batch": validation_batch,
    "segment": segment, "labels": labels, "state": state,
  }  # fmt: skip
  if road != "loop":
    for name, value in own.items():
      if value is not None:
        raise ValueError(f"{name} is a setting of road='loop', but road={road!r}")
    _check_linearizable(learner, rows, training)
    log, found = _solve(key, learner, pool.x, rows, starts, goal, target, constraint, students, training, road)
    return found.reshape(truth.shape), log
  # --- The loop.
  updates = 200 if updates is None else updates
  rate = 0.02 if rate is None else rate
  updates, rate = checks.check_count("updates", updates, least=0), checks.check_positive("rate", rate)
  softmax = _is_softmax(parametrization, constraint, rows)
  if validation_batch is not None:
    validation_batch = checks.check_count("validation_batch", validation_batch)
    if validation is None or validation_batch > len(validation):
      raise ValueError(f"validation_batch={validation_batch} needs at least as many validation examples")
  state = _start(key, learner, pool.x, truth, labels, constraint, softmax, rate) if state is None else state
  if not isinstance(state, DistillState):
    raise TypeError(f"state must be log.state of an earlier call, but it is a {type(state).__name__}")
  if jnp.shape(state.values) != rows.shape:
    raise ValueError(f"state is of labels {list(jnp.shape(state.values))}, but these are {list(rows.shape)}")
  search = Search(training, int(students), validation_batch, softmax)
  objective = jnp.zeros(0, truth.dtype)
  if updates:
    state, objective = _search(state, (learner, pool.x, rows, starts, goal, constraint, rate), search, int(updates))
  return unrolled.to_labels(state.values, softmax).reshape(truth.shape), DistillLog(objective, None, state)


def _search(state: DistillState, given: Any, search: Search, updates: int) -> tuple[DistillState, Array]:
  """Return the state after the updates and the goal before each, `[updates]`; in chunks where progress is shown."""
  if not watching.is_on(state, given):
    return unrolled.advance(state, *given, updates, search=search, updates=updates)
  watch, length, pieces = watching.current(), watching.chunk_length(updates, 1), []
  with watch.line(updates, "updates") as line:
    for before in range(0, updates, length):
      count = min(length, updates - before)
      state, found = jax.block_until_ready(unrolled.advance(state, *given, count, search=search, updates=length))
      pieces.append(found[:count])
      line.update(before + count)
      watch.hand_over({"step": jnp.arange(before, before + count), "objective": pieces[-1]}, 0)
  return state, jnp.concatenate(pieces)


def _start(
  key: Key, learner: Learner, x: Array, truth: Array, labels: Any, constraint: Constraint, softmax: bool, rate: Any
) -> DistillState:
  """Return the state before the first update, from the caller's labels or the ground truth."""
  given = truth if labels is None else jnp.asarray(checks.check_array("labels", labels), truth.dtype)
  if given.shape != truth.shape:
    raise ValueError(f"labels must have shape {list(truth.shape)}, but they have shape {list(given.shape)}")
  checks.check_finite("labels", given)
  truth, given = (values.reshape(-1, values.shape[-1]) for values in (truth, given))
  return unrolled.start(key, constraint.projection(learner.loss, truth, truth)(given), softmax, rate)


# --- The two roads that solve.


def _solve(
  key: Key, learner: Learner, x: Array, truth: Array, init_fn: Any, goal: Goal, target: Any, constraint: Constraint,
  students: int, training: Training, road: str,
) -> tuple[DistillLog, Array]:  # fmt: skip
  """Return the log and the labels `[n, K]` of the roads that solve one quadratic."""
  if road == "trajectory":
    before = jax.tree.map(lambda leaf: leaf[:-1], target.params)
    after = Goal(jax.tree.map(lambda leaf: leaf[1:], target.params), None, None)
    labels, log, _ = _solve_mean(learner, x, truth, before, after, constraint, steps=1, many=True)
    return log._replace(objective=training.steps * log.objective), labels
  starts = jax.vmap(init_fn)(jax.random.split(key, students))
  labels, log, growth = _solve_mean(learner, x, truth, starts, goal, constraint, steps=training.steps, many=False)
  if is_concrete(growth) and not float(growth) <= _DIVERGED ** (1 / training.steps):
    raise ValueError(
      f"learner: at this learning rate the student that is linear around its start grows by {float(growth):.4g} in a "
      "step: give a smaller rate and as much larger steps, or road='loop'"
    )
  return log, labels


@functools.partial(jax.jit, static_argnames=("steps", "many"))
def _solve_mean(
  learner: Learner,
  x: Array,
  truth: Array,
  starts: Params,
  goal: Goal,
  constraint: Constraint,
  *,
  steps: int,
  many: bool,
) -> tuple[Array, DistillLog, Array]:
  """Return the labels that are best on average over starts with a leading axis, the log, and the linear growth.

  With `many`, each start has a target of its own.
  """

  def expand(pair: tuple[Params, Any]) -> linearized.Model:
    start, own = pair
    if goal.target is not None:
      return linearized.to_params(learner, start, x, truth, steps, own if many else goal.target)
    assert goal.x is not None
    assert goal.labels is not None
    return linearized.to_loss(learner, start, x, truth, steps, (goal.x, goal.labels))

  def add(total: Any, pair: tuple[Params, Any]) -> tuple[Any, Array]:
    model = expand(pair)
    return jax.tree.map(jnp.add, total, (model.quadratic.matrix, model.quadratic.linear, model.value)), model.growth

  pairs = (starts, goal.target if many else None)
  count = jax.tree.leaves(starts)[0].shape[0]
  zero = (jnp.zeros(truth.shape * 2, truth.dtype), jnp.zeros_like(truth), jnp.zeros((), truth.dtype))
  total, growth = jax.lax.scan(add, zero, pairs)
  matrix, linear, value = (part / count for part in total)
  quadratic = Quadratic(truth, matrix, linear)
  labels, certificate = argmin.best_labels(learner.loss, constraint, quadratic, truth, truth)
  first = constraint.projection(learner.loss, truth, truth)(truth)
  objective = value + jnp.stack([quadratic.change(first), quadratic.change(labels)])
  return labels, DistillLog(objective, certificate), jnp.max(growth)


# --- Checks.


def _check_examples(learner: Any, pool: Pool) -> None:
  if not isinstance(learner, Learner):
    raise TypeError(f"learner must come from last_jax.learners, but it is a {type(learner).__name__}")
  checks.check_inputs(learner, pool.x, "x")
  checks.check_labels(learner, pool.x, pool.y, "y")


def _check_constraint(constraint: Any, road: str) -> None:
  if not isinstance(constraint, Constraint):
    raise TypeError(f"constraint must come from last_jax.constraints, but it is a {type(constraint).__name__}")
  if constraint.around == "prediction":
    raise ValueError("constraint: fixed labels cannot lie around predictions, which change: use around='truth'")
  if road == "loop" and (constraint.discrete or constraint.max_nonzero is not None):
    raise ValueError(f"constraint {constraint.name!r} is no convex set, which road='loop' needs: use another road")


def _make_goal(learner: Learner, target: Any, validation: Any, road: str, steps: int) -> Goal:
  if (target is None) == (validation is None):
    raise ValueError("give either target= or validation=: what the students should reach")
  if road == "trajectory":
    if not isinstance(target, targets.ToTrajectory):
      raise ValueError("target must be targets.trajectory(params) for road='trajectory'")
    target.check(learner)
    if target.layer_weights is not None:
      raise ValueError("target: layer_weights have no effect here: leave them out")
    length = jax.tree.leaves(target.params)[0].shape[0]
    if length != steps + 1:
      raise ValueError(f"target holds {length} parameters, but steps={steps} needs {steps + 1}, the start first")
    return Goal(None, None, None)
  if target is not None:
    checks.check_params(learner, target, "target")
    return Goal(jax.tree.map(jnp.asarray, target), None, None)
  check_learns_from(learner, validation, "validation")
  return Goal(None, validation.x, learner.encode(validation.x, validation.y))


def _check_linearizable(learner: Learner, truth: Array, training: Training) -> None:
  optimizer = learner.optimizer
  if not isinstance(optimizer, Sgd) or optimizer.momentum is not None or optimizer.learning_rate is None:
    raise ValueError("learner: this road needs SGD of one learning rate, without momentum: use road='loop'")
  if not learner.loss.is_affine(truth.shape[-1]):
    raise ValueError(f"learner: the loss {learner.loss.name} is not affine in the label: use road='loop'")
  if training.batch_size is not None:
    raise ValueError("batch_size: this road is for students that see all examples in each step: use road='loop'")
  if truth.size > MOST_NUMBERS:
    raise ValueError(f"x: labels of {truth.size} numbers are too many to solve for, {MOST_NUMBERS}: use road='loop'")


def _is_softmax(parametrization: str | None, constraint: Constraint, truth: Array) -> bool:
  if parametrization is not None:
    checks.check_name("parametrization", parametrization, ("projection", "softmax"))
  softmax = parametrization == "softmax"
  if softmax and not (constraint.hull and constraint.radius is None and truth.shape[-1] > 1):
    raise ValueError("parametrization='softmax' is for constraints.simplex() of two classes and more")
  return softmax
