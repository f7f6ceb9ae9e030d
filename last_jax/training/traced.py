"""Episodes of all students, taught by the loop's own iteration, with a trace of all that passed through the network.

Nothing here is differentiated: `backward.py` finds gradients from the trace. What does not depend on the students is
computed for all steps at once: proposals, random numbers, and the share of such features in the first layer, which is
linear in its inputs. Of a network that is a module of the user's own, only the numbers that it returned are traced.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from last_jax import loop
from last_jax.base import Array, Key, Lesson, Params, State, Student, View
from last_jax.problem import Problem
from last_jax.teachers import features as features_
from last_jax.teachers.compose import compose
from last_jax.teachers.features import Columns, Inputs
from last_jax.teachers.policy import Policy, still_view


class Trace(NamedTuple):
  """What passed through the network."""

  inputs: Inputs | None  # [..., m, own], [..., shared] the features that depend on the student; None for modules.
  values: tuple[Array, ...]  # By layer, [..., m, width], what it returned; the last are the network's numbers.


class Steps(NamedTuple):
  """All steps of all students, `[T, N, ...]`."""

  students: Student  # Before the step.
  lessons: Lesson
  trace: Trace
  probe: Any  # After the step.


class Still(NamedTuple):
  """The features of an episode that do not depend on the students, which enter the network without being traced."""

  inputs: Inputs  # [T, N, m, own], [shared]
  columns: Columns  # Of these among all inputs.
  moving: Columns  # Those of the others.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _TracedLabels:
  """The labels of a policy in one step, with a trace in place of a certificate."""

  policy: Policy
  weights: Params  # Of the features that depend on the student.
  still: Array  # [m, width] the share of the others in what the first layer returns.
  noise: Array | None  # [m, A] where labels are chosen at random.

  def __call__(self, view: View, index: Array) -> tuple[Array, Trace]:
    policy = self.policy
    inputs = policy.inputs(view, index, moving_features(policy))
    first, *later = policy.network().layers()
    values = [first(self.weights, inputs) + self.still]
    for layer in later:
      values.append(layer(self.weights, values[-1]))
    return _make_labels(policy, view, index, values[-1], self.noise), Trace(inputs, tuple(values))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _ModuleLabels:
  """The same of a policy whose network is a module."""

  policy: Policy
  noise: Array | None  # [m, A]

  def __call__(self, view: View, index: Array) -> tuple[Array, Trace]:
    numbers = self.policy.numbers(view, index)
    return _make_labels(self.policy, view, index, numbers, self.noise), Trace(None, (numbers,))


def _make_labels(policy: Policy, view: View, index: Array, numbers: Array, noise: Array | None) -> Array:
  output: Any = policy.output
  if noise is None:
    return output.labels(view.learner, numbers, view.truth[index], index, None)
  return output.choose(numbers, view.truth[index], index, noise)


def moving_features(policy: Policy) -> tuple[str, ...]:
  """Return the names of the features that depend on the student."""
  return tuple(name for name in policy.features if name not in features_.STILL)


def _observe_still(problem: Problem, policy: Policy, params: Params, index: Array) -> Still:
  """Return the other features of the examples `index [..., m]`; `params` are those of any student."""
  names = tuple(name for name in policy.features if name in features_.STILL)
  own, shared = policy.inputs(still_view(problem, params), index.reshape(-1), names)
  inputs = Inputs(own.reshape(*index.shape, own.shape[1]), shared)
  return Still(inputs, policy.columns(problem, names), policy.columns(problem, moving_features(policy)))


def teach_all(
  problem: Problem,
  policy: Policy,
  students: Student,
  keys: Key,
  *,
  steps: int,
  batch_size: int,
  probe: Callable[[Key], Callable[[Params], Any]] | None = None,
  sample: bool = False,
  members: Array | None = None,
) -> tuple[Student, Steps, Still | None]:
  """Teach all students for one episode.

  Args:
    problem: what is taught.
    policy: the teacher.
    students: `[N, ...]`.
    keys: `[N]`, each for the lessons and the measure of one student.
    steps: T.
    batch_size: m.
    probe: from the key of a student's measure to a function of its parameters.
    sample: whether actions are drawn by their probabilities.
    members: `[N]`, where students share a key, a number that tells them apart: their actions are drawn independently.

  Returns:
    The students after the episode, all steps, and the features that are not in their trace (None for modules).
  """
  lesson_keys, measure_keys = split_keys(keys)
  index, step_keys = jax.vmap(lambda key: loop.draw(key, steps, batch_size, problem), out_axes=1)(lesson_keys)
  noise = None
  if sample:
    output: Any = policy.output
    shape = (batch_size, output.width(policy.num_outputs))
    if members is not None:
      step_keys = jax.vmap(jax.vmap(jax.random.fold_in), (0, None))(step_keys, members)
    noise = jax.vmap(jax.vmap(lambda key: output.noise(key, shape, problem.truth.dtype)))(step_keys)
  still, fixed = None, None
  if policy.module is None:
    still = _observe_still(problem, policy, jax.tree.map(lambda leaf: leaf[0], students.params), index)
    network = policy.network()
    weights = network.restrict(policy.weights, still.moving, bias=False)
    # Of all steps in one product.
    fixed = network.layers()[0](network.restrict(policy.weights, still.columns, bias=True), still.inputs)

  def labels_of(fixed: Array | None, noise: Array | None) -> Any:
    return _ModuleLabels(policy, noise) if fixed is None else _TracedLabels(policy, weights, fixed, noise)

  def teach(student: Student, key: Key, measure_key: Key, given: Any) -> tuple[Student, Steps]:
    measure = (lambda params: None) if probe is None else probe(measure_key)

    def body(student: Student, given: Any) -> tuple[Student, Steps]:
      index, fixed, noise = given
      teacher = compose("policy", labels_of(fixed, noise), needs_target=policy.needs_target)
      # No feature depends on the number of the step, and its random numbers are drawn.
      state = State(student, None, jnp.zeros((), int), key, None)
      state, info = loop.iterate(state, problem, teacher, index)
      return state.student, Steps(student, info.lesson, info.certificate, measure(state.student.params))

    return jax.lax.scan(body, student, given)

  given = (index, fixed, noise)
  students, taken = jax.vmap(teach, (0, 0, 0, 1), (0, 1))(students, lesson_keys, measure_keys, given)
  return students, taken, still


def split_keys(keys: Key) -> tuple[Key, Key]:
  """Return for each of the students' keys `[N]` that of its lessons and that of its measure."""
  both = jax.vmap(jax.random.split)(keys)
  return both[:, 0], both[:, 1]
