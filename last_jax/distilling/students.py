"""Students that train on fixed labels by the learner's own SGD: the package's `run`, cut into segments for memory."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import Partial

from last_jax import checks, teachers, teaching
from last_jax.base import Array, Key, Lesson, Params, Pool, Teacher, View
from last_jax.functions import as_pure_function
from last_jax.learners import Learner, check_learns_from
from last_jax.problem import Problem

InitFn = Callable[[Key], Params]


class Training(NamedTuple):
  """How a student trains; static."""

  steps: int
  batch_size: int | None  # None: all examples in every step.
  segment: int  # Steps whose inputs are kept at a time while gradients are computed.


def _show_all(teacher_state: None, view: View, proposal: Array) -> tuple[Lesson, None, None]:
  del teacher_state, proposal
  return Lesson(jnp.arange(view.x.shape[0]), view.truth), None, None


_ALL = Teacher("all examples", step=_show_all)


def final_params(key: Key, learner: Learner, x: Array, labels: Array, init_fn: InitFn, training: Training) -> Params:
  """Return one student's parameters after training on `x [n, ...]`, `labels [n, K]`; differentiable in the labels.

  Backward, each segment runs once more: memory is for `steps / segment` students and the steps of one segment.
  """
  start_key, lesson_key = jax.random.split(key)
  problem = Problem(learner, Pool(x, labels))
  teacher = _ALL if training.batch_size is None else teachers.sgd()

  @functools.partial(jax.checkpoint, static_argnums=1)
  def advance(state: Any, steps: int) -> Any:
    # One step of the teacher that shows everything ignores its proposal: of one example, then.
    return teaching.run(
      state, problem, teacher, steps=steps, batch_size=training.batch_size or 1, record_every=steps, metrics=()
    )[0]

  state = teaching.init(lesson_key, problem, teacher, init_fn(start_key))
  whole, rest = divmod(training.steps, training.segment)
  state, _ = jax.lax.scan(lambda state, _: (advance(state, training.segment), None), state, length=whole)
  return (advance(state, rest) if rest else state).params


@functools.partial(jax.jit, static_argnames="training")
def _train(keys: Key, learner: Learner, x: Array, labels: Array, init_fn: InitFn, training: Training) -> Params:
  return jax.lax.map(lambda key: final_params(key, learner, x, labels, init_fn, training), keys)


def train_students(
  key: Key,
  learner: Learner,
  x: Array,
  labels: Array,
  *,
  steps: int,
  batch_size: int | None = None,
  students: int = 20,
  init_fn: InitFn | None = None,
) -> Params:
  """Return the parameters of students that were trained on fixed labels, with a leading [students] axis.

  Args:
    key: of `jax.random.key`; every student has its own start and its own examples in every step.
    learner: the learner, of any optimizer.
    x: `[n, ...]` examples.
    labels: `[n, K]`, or `[n, T, K]` for learners with outputs for each token; or class ids `[n]`.
    steps: T, steps of the learner that each student takes.
    batch_size: number of random examples in each step; all of them unless given.
    students: number of students.
    init_fn: `key -> params`, their starts; the learner's own unless given.
  """
  pool = Pool(x, labels)
  check_learns_from(learner, pool)
  training = make_training(steps, batch_size, None)
  students = checks.check_count("students", students)
  keys = jax.random.split(checks.as_key(key), students)
  init_fn = as_init_fn(learner, init_fn)
  return _train(keys, learner, pool.x, learner.encode(pool.x, pool.y), init_fn, training)


def make_training(steps: Any, batch_size: Any, segment: Any) -> Training:
  """Return the settings, checked; segments of about the root of `steps` unless given."""
  steps = checks.check_count("steps", steps)
  if batch_size is not None:
    batch_size = checks.check_count("batch_size", batch_size)
  segment = max(1, round(steps**0.5)) if segment is None else min(checks.check_count("segment", segment), steps)
  return Training(steps, batch_size, segment)


def as_init_fn(learner: Learner, init_fn: InitFn | None) -> Any:
  """Return the starts of students as a pytree, checked; the learner's own unless given."""
  if init_fn is None:
    return Partial(Learner.init, learner)
  init_fn = as_pure_function("init_fn", init_fn, ("key",))
  with checks.calling("init_fn"):
    shapes = jax.eval_shape(init_fn, jax.random.key(0))
  checks.check_params(learner, shapes, "init_fn(key)", abstract=True)
  return init_fn
