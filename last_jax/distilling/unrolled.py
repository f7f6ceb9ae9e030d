"""Labels through the loop: Adam on the labels, with gradients of whole runs of students.

Every update draws fresh students and, if asked, a minibatch of validation examples. Labels stay in their set: they are
projected after each update, or are the softmax of free numbers. All randomness follows from the key and the number of
the update, so that a search that is cut and resumed ends at the same bits.

Students are vmapped. On a CPU, convolutions whose kernels differ between students are slow: a dense layer over windows
of the input, as in benchmarks/distillation.py, is not.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from last_jax import distances, fields, solvers
from last_jax.base import Array, Key, Params
from last_jax.constraints import Constraint
from last_jax.distilling.students import Training, final_params
from last_jax.learners import Learner


@fields.documented
class DistillState(NamedTuple):
  """Everything between two updates: `last.save` it, `last.load` it with a state of zero updates as `like`.

  Attributes:
    values: the labels, `[n, K]`; with parametrization="softmax" the numbers whose softmax they are.
    opt_state: of the optimizer that moves them.
    update: `[]` number of updates so far.
    key: all randomness of the updates follows from it.
  """

  values: Array
  opt_state: Any
  update: Array
  key: Key


class Goal(NamedTuple):
  """What students should reach: a target, or a low loss on validation examples with labels `[v, K]`."""

  target: Params | None
  x: Array | None
  labels: Array | None


class Search(NamedTuple):
  """Settings of the search; static."""

  training: Training
  students: int
  validation_batch: int | None  # None: all of them.
  softmax: bool


def to_labels(values: Array, softmax: bool) -> Array:
  """Return labels from the numbers that Adam moves, `[n, K]`."""
  return jax.nn.softmax(values) if softmax else values


def from_labels(labels: Array, softmax: bool) -> Array:
  """Return numbers for labels of the set; zeros of a softmax become a thousandth of the sum."""
  return jnp.log(jnp.maximum(labels, 1e-3)) if softmax else labels


def start(key: Key, labels: Array, softmax: bool, rate: Any) -> DistillState:
  """Return the state before the first update, from labels of the set."""
  values = from_labels(labels, softmax)
  return DistillState(values, optax.adam(rate).init(values), jnp.zeros((), int), key)


def mean_goal(
  keys: Key, learner: Learner, x: Array, labels: Array, init_fn: Any, training: Training, goal: Goal
) -> Array:
  """Return the mean over students of the squared distance to the target, or of the validation loss: `[]`."""

  def one(key: Key) -> Array:
    params = final_params(key, learner, x, labels, init_fn, training)
    if goal.target is not None:
      return distances.squared_distance(params, goal.target)
    assert goal.x is not None
    assert goal.labels is not None
    return learner.mean_loss(params, goal.x, goal.labels)

  return jnp.mean(jax.vmap(one)(keys))


@functools.partial(jax.jit, static_argnames=("search", "updates"))
def advance(
  state: DistillState,
  learner: Learner,
  x: Array,
  truth: Array,
  init_fn: Any,
  goal: Goal,
  constraint: Constraint,
  rate: Any,
  count: Any,
  *,
  search: Search,
  updates: int,
) -> tuple[DistillState, Array]:
  """Return the state after `count = updates` updates, and the goal before each of them, `[updates]`.

  The count is data too: a loop of one known iteration would be compiled, and rounded, otherwise than longer ones.
  """
  optimizer = optax.adam(rate)
  project = constraint.projection(learner.loss, truth, truth)

  def value(values: Array, keys: Key, goal: Goal) -> Array:
    labels = to_labels(values, search.softmax).reshape(-1, *learner.output_shape(x))
    return mean_goal(keys, learner, x, labels, init_fn, search.training, goal)

  def update(state: DistillState) -> tuple[DistillState, Array]:
    student_key, validation_key = jax.random.split(jax.random.fold_in(state.key, state.update))
    drawn = _draw(validation_key, goal, search.validation_batch)
    found, slope = jax.value_and_grad(value)(state.values, jax.random.split(student_key, search.students), drawn)
    if not search.softmax:
      slope = solvers.within(project, state.values, slope, rate)
    moves, opt_state = optimizer.update(slope, state.opt_state)
    values = optax.apply_updates(state.values, moves)
    values = values if search.softmax else project(values)
    return DistillState(values, opt_state, state.update + 1, state.key), found

  def body(i: Array, carry: tuple[DistillState, Array]) -> tuple[DistillState, Array]:
    after, found = update(carry[0])
    return after, carry[1].at[i].set(found)

  return jax.lax.fori_loop(0, count, body, (state, jnp.zeros(updates, truth.dtype)))


def _draw(key: Key, goal: Goal, count: int | None) -> Goal:
  """Return the goal on some random validation examples."""
  if goal.x is None or count is None:
    return goal
  assert goal.labels is not None
  chosen = jax.random.choice(key, goal.x.shape[0], (count,), replace=False)
  return Goal(None, goal.x[chosen], goal.labels[chosen])
