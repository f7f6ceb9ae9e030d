"""The way back through traced episodes, and the gradient in a policy's weights from all steps at once.

The weights are the same in every step, so their gradient need not be added up step by step: it is enough to know what
entered every layer and the gradient in what left it, and one product over all steps does the rest. Likewise all that
the way back needs to know of a student's steps is computed for all steps at once, from the states that were visited:
only what passes from step to step is left for the scan.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from last_jax.base import Array, Params
from last_jax.problem import Problem
from last_jax.teachers.policy import Policy, still_view
from last_jax.training.traced import Steps, Still, Trace, moving_features

Errors = tuple[Array, ...]  # By layer, [..., m, width], the gradient in what it returned.


def through_network(policy: Policy, trace: Trace, error: Array) -> Errors:
  """Return the gradients in what every layer returned, from that in the network's numbers, `[..., m, width]`."""
  return _through_later(policy, _as_matrices(policy.weights), trace.values, error)


def _through_later(policy: Policy, weights: Params, values: tuple[Array, ...], error: Array) -> Errors:
  errors = [error]
  for layer, value in zip(reversed(policy.network().layers()[1:]), reversed(values[:-1]), strict=True):
    errors.append(jax.vjp(functools.partial(layer, weights), value)[1](errors[-1])[0])
  return tuple(reversed(errors))


def through_students(problem: Problem, policy: Policy, steps: Steps, still: Still, slopes: Params) -> Errors:
  """Return the gradients in what every layer returned in every step, where students depend on their labels.

  Args:
    problem: what was taught.
    policy: the teacher.
    steps: as `traced.teach_all` returns it, and
    still: likewise.
    slopes: `[T, N, ...]`, the objective's gradient in the parameters after each step, all others held fixed.
  """
  learner, names = problem.learner, moving_features(policy)
  weights = _as_matrices(policy.network().restrict(policy.weights, still.moving, bias=False))
  first = policy.network().layers()[0]
  leaves, structure = jax.tree.flatten(steps.students)
  smooth = [jnp.issubdtype(leaf.dtype, jnp.floating) for leaf in leaves]  # An optimizer may count its steps.

  def learn(floats: list[Array], numbers: Array, others: list[Array], index: Array) -> list[Array]:
    """Take a step of one student; its numbers, after and before, are `floats`."""
    rest, moving = iter(others), iter(floats)
    student = jax.tree.unflatten(structure, [next(moving if is_smooth else rest) for is_smooth in smooth])
    label = policy.output.labels(learner, numbers, problem.truth[index], index, None)
    after = jax.tree.leaves(learner.step(student, problem.pool.x[index], label))
    return [leaf for leaf, is_smooth in zip(after, smooth, strict=True) if is_smooth]

  def see(params: Params, index: Array) -> Any:
    return policy.inputs(still_view(problem, params), index, names)

  floats = [leaf for leaf, is_smooth in zip(leaves, smooth, strict=True) if is_smooth]
  others = [leaf for leaf, is_smooth in zip(leaves, smooth, strict=True) if not is_smooth]
  index, values = steps.lessons.index, steps.trace.values
  learning = _Pullbacks.of(learn, (floats, values[-1]), (others, index))
  seeing = _Pullbacks.of(see, (steps.students.params,), (index,))
  count = len(jax.tree.leaves(slopes))  # A student's leaves are its parameters and then those of its optimizer.

  def body(after: list[Array], given: Any) -> tuple[list[Array], Errors]:
    slopes, values, inputs, learned, seen = given
    after = [*map(jnp.add, after[:count], jax.tree.leaves(slopes)), *after[count:]]
    before, error = learning.pull(learned, after)
    errors = _through_later(policy, weights, values, error)
    (of_inputs,) = jax.vjp(functools.partial(first, weights), inputs)[1](errors[0])
    (of_params,) = seeing.pull(seen, of_inputs)
    before = [*map(jnp.add, before[:count], jax.tree.leaves(of_params)), *before[count:]]
    return before, errors

  start = [jnp.zeros_like(leaf[0]) for leaf in floats]
  given = (slopes, values, steps.trace.inputs, learning.kept, seeing.kept)
  return jax.lax.scan(body, start, given, reverse=True)[1]


def weight_gradient(policy: Policy, trace: Trace, still: Still, errors: Errors) -> Params:
  """Return the gradient in the policy's weights, from the gradients in what every layer returned in every step."""
  network = policy.network()
  entered = (trace.inputs, *trace.values[:-1])

  def all_layers(weights: Params) -> tuple[Array, ...]:
    moving = _as_matrices(network.restrict(weights, still.moving, bias=False))
    first, *later = (layer(moving, value) for layer, value in zip(network.layers(), entered, strict=True))
    fixed = _as_matrices(network.restrict(weights, still.columns, bias=True))
    return (first + network.layers()[0](fixed, still.inputs), *later)

  return jax.vjp(all_layers, policy.weights)[1](errors)[0]


def module_gradient(problem: Problem, policy: Policy, steps: Steps, error: Array) -> Params:
  """Return the gradient in the weights of a module, from that in the numbers it returned, `[T, N, m, width]`.

  The module is evaluated again, step by step: what it needs for the way back is kept for one step only.
  """

  def add(total: Params, given: Any) -> tuple[Params, None]:
    params, index, error = given  # [N, ...]

    def numbers(weights: Params) -> Array:
      current = dataclasses.replace(policy, weights=weights)
      return jax.vmap(lambda params, index: current.numbers(still_view(problem, params), index))(params, index)

    return jax.tree.map(jnp.add, total, jax.vjp(numbers, policy.weights)[1](error)[0]), None

  start = jax.tree.map(jnp.zeros_like, policy.weights)
  return jax.lax.scan(add, start, (steps.students.params, steps.lessons.index, error))[0]


# --- Vector-Jacobian products of many steps, linearized at once and taken one after the other.


@dataclasses.dataclass(frozen=True)
class _Pullbacks:
  """The vector-Jacobian products of a function in T steps of N students.

  Attributes:
    kept: what they need to know of each step, `[T, N, ...]`.
    shared: what is the same for all steps and students, by its place among all.
    structure: of both together.
  """

  kept: list[Array]
  shared: dict[int, Array]
  structure: Any

  @classmethod
  def of(cls, function: Callable[..., Any], smooth: tuple[Any, ...], others: tuple[Any, ...]) -> "_Pullbacks":
    """Linearize `function(*smooth, *others)` in its first arguments, all of them `[T, N, ...]`."""
    structures = []

    def linearize(smooth: tuple[Any, ...], others: tuple[Any, ...]) -> list[Array]:
      pull = jax.vjp(lambda *arguments: function(*arguments, *others), *smooth)[1]
      leaves, structure = jax.tree.flatten(pull)
      structures.append(structure)
      return leaves

    one = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[2:], leaf.dtype), (smooth, others))
    varies = _depend(jax.make_jaxpr(linearize)(*one))
    axes = [0 if varying else None for varying in varies]
    leaves = jax.vmap(jax.vmap(linearize, out_axes=axes), out_axes=axes)(smooth, others)
    kept = [leaf for leaf, varying in zip(leaves, varies, strict=True) if varying]
    shared = {i: leaf for i, (leaf, varying) in enumerate(zip(leaves, varies, strict=True)) if not varying}
    return cls(kept, shared, structures[-1])

  def pull(self, kept: list[Array], error: Any) -> Any:
    """Return the products with the errors `[N, ...]` of one step, from what was kept of it."""

    def one(kept: list[Array], error: Any) -> Any:
      rest = iter(kept)
      leaves = [self.shared[i] if i in self.shared else next(rest) for i in range(len(kept) + len(self.shared))]
      return jax.tree.unflatten(self.structure, leaves)(error)

    return jax.vmap(one)(kept, error)


def _depend(closed: Any) -> list[bool]:
  """Whether each of the outputs of a jaxpr depends on its inputs."""
  known = set(closed.jaxpr.invars)
  for equation in closed.jaxpr.eqns:
    if any(not isinstance(atom, core.Literal) and atom in known for atom in equation.invars):
      known.update(equation.outvars)
  return [not isinstance(atom, core.Literal) and atom in known for atom in closed.jaxpr.outvars]


# --- Products on the way back.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Matrix:
  """A matrix as the right operand of products `[..., rows] @ matrix`, and its transpose in memory."""

  value: Array  # [rows, columns]
  transposed: Array  # For the gradient in the left operand: laid out once, rather than in every step.

  def __rmatmul__(self, left: Array) -> Array:
    *lead, rows = left.shape
    flat = left.reshape(math.prod(lead), rows)
    return _product(flat, self.value, self.transposed).reshape(*lead, self.value.shape[1])


def _as_matrices(weights: Params) -> Params:
  def wrap(leaf: Array) -> Any:
    return _Matrix(leaf, jax.lax.optimization_barrier(jax.lax.stop_gradient(leaf).T)) if leaf.ndim == 2 else leaf

  return jax.tree.map(wrap, weights)


@jax.custom_vjp
def _product(left: Array, right: Array, transposed: Array) -> Array:
  del transposed
  return left @ right


def _product_forward(left: Array, right: Array, transposed: Array) -> tuple[Array, tuple[Array, Array]]:
  return left @ right, (left, transposed)


def _product_back(kept: tuple[Array, Array], error: Array) -> tuple[Array, Array, None]:
  left, transposed = kept
  # On a CPU, XLA is fast where the left operand is [few rows, contracted], and in this order in memory; otherwise it
  # divides the product among threads, which takes long if they are busy.
  barrier = jax.lax.optimization_barrier
  if error.shape[1] >= left.shape[1]:
    return error @ transposed, barrier(left.T) @ error, None
  return error @ transposed, barrier(barrier(error.T) @ left).T, None


_product.defvjp(_product_forward, _product_back)
