"""Decide from its jaxpr whether a function is affine in one of its arguments, and diagonal: nothing is evaluated.

An abstract interpretation: every variable is constant in the argument, affine in it, or neither. Sums, and operations
that only move entries, carry the property on; products have it if all factors except one are constant. Everything else
that depends on the argument counts as not affine, so that a positive answer is a proof (up to rounding), and a negative
one may be too cautious: x * x / x is not recognised.
"""

import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from last_jax.identity import Static


class Kind(enum.IntEnum):
  """Dependence of a value on the argument. The kind of a sum is the largest of its terms."""

  CONSTANT = 0
  AFFINE = 1
  OTHER = 2


def is_affine(function: Callable[..., Any], argument: Any, *others: Any) -> bool:
  """Return whether every output of `function(argument, *others)` is affine in all leaves of `argument` jointly.

  Args:
    function: traceable by JAX, from pytrees to a pytree.
    argument: a pytree of arrays or of `jax.ShapeDtypeStruct`; only shapes and dtypes matter.
    *others: further arguments of the function, likewise; the answer holds for all of their values.
  """
  leaves, structure = jax.tree.flatten(jax.eval_shape(lambda *arguments: arguments, argument, *others))
  # The width of floats is part of the key: what is traced depends on it.
  return _is_affine(Static(function), structure, tuple(leaves), jax.dtypes.canonicalize_dtype(float))


def diagonal(function: Callable[..., Any], argument: Any, *others: Any) -> tuple[bool, ...] | None:
  """Return, where `function(argument, *others)` multiplies entries of `argument` and adds to them, what by.

  Args:
    function: as for `is_affine`, which holds for it; its result is a pytree like `argument`.
    argument: a pytree of arrays or of `jax.ShapeDtypeStruct`.
    *others: further arguments, likewise.

  Returns:
    For each leaf whether all of its entries are multiplied by the same number; None where an entry of the result
    depends on another entry than the one in its place.
  """
  leaves, structure = jax.tree.flatten(jax.eval_shape(lambda *arguments: arguments, argument, *others))
  return _diagonal(Static(function), structure, tuple(leaves), jax.dtypes.canonicalize_dtype(float))


class _Entries(NamedTuple):
  """Where the entries of a value come from.

  Attributes:
    leaves: of the argument, whose entries in the same place each depends on; _MOVED: on others, too.
    same: whether all entries have the same factor or, without leaves, are the same number.
  """

  leaves: frozenset[int]
  same: bool


@functools.lru_cache(maxsize=1024)
def _diagonal(function: Static, structure: Any, leaves: tuple[Any, ...], _: Any) -> tuple[bool, ...] | None:
  arguments = jax.tree.unflatten(structure, leaves)
  closed = jax.make_jaxpr(function.value)(*arguments)
  count = len(jax.tree.leaves(arguments[0]))
  if [value.shape for value in closed.out_avals] != [leaf.shape for leaf in leaves[:count]]:
    return None
  inputs = [
    _Entries(frozenset((place,)), True) if place < count else _Entries(frozenset(), leaf.shape == ())
    for place, leaf in enumerate(leaves)
  ]
  found = _entries(closed, inputs)
  if any(not each.leaves <= {place} for place, each in enumerate(found)):
    return None
  return tuple(each.same for each in found)


def _entries(closed: Any, inputs: Sequence[_Entries]) -> list[_Entries]:
  """Where the entries of the outputs of a jaxpr come from, from those of its inputs."""
  jaxpr = closed.jaxpr if isinstance(closed, core.ClosedJaxpr) else closed
  known = {variable: _Entries(frozenset(), variable.aval.shape == ()) for variable in jaxpr.constvars}
  known.update(zip(jaxpr.invars, inputs, strict=True))

  def read(atom: Any) -> _Entries:
    return _Entries(frozenset(), np.shape(atom.val) == ()) if isinstance(atom, core.Literal) else known[atom]

  for equation in jaxpr.eqns:
    found, name = list(map(read, equation.invars)), equation.primitive.name
    if name in _CALLS:
      outputs = _entries(equation.params[_CALLS[name]], found)
    else:
      leaves = frozenset().union(*(each.leaves for each in found))
      fixed = name in _SUMS or (name == "broadcast_in_dim" and not leaves)
      counting = [each.same for each in found if each.leaves or not leaves or name not in _SUMS]
      same = (fixed or name in _FACTORS) and all(counting)
      if leaves and name not in _SUMS | _FACTORS:
        leaves |= {_MOVED}
      outputs = [_Entries(leaves, same or output.aval.shape == ()) for output in equation.outvars]
    known.update(zip(equation.outvars, outputs, strict=True))
  return list(map(read, jaxpr.outvars))


_MOVED = -1
# Entry by entry: what is added does not count in the factor.
_SUMS = frozenset(
  ("add", "add_any", "sub", "neg", "integer_pow", "convert_element_type", "reduce_precision", "copy", "copy_p")
)
_FACTORS = frozenset(("mul", "div", "select_n"))
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr"}


@functools.lru_cache(maxsize=1024)
def _is_affine(function: Static, structure: Any, leaves: tuple[Any, ...], _: Any) -> bool:
  arguments = jax.tree.unflatten(structure, leaves)
  closed = jax.make_jaxpr(function.value)(*arguments)
  varying = len(jax.tree.leaves(arguments[0]))
  kinds = [_only_floats(leaf, Kind.AFFINE) for leaf in leaves[:varying]]
  kinds += [Kind.CONSTANT] * (len(leaves) - varying)
  return max(_outputs(closed, kinds), default=Kind.CONSTANT) <= Kind.AFFINE


def _outputs(closed: Any, inputs: Sequence[Kind]) -> list[Kind]:
  """The kinds of the outputs of a jaxpr, from those of its inputs."""
  jaxpr = closed.jaxpr if isinstance(closed, core.ClosedJaxpr) else closed  # Remat has an open one.
  known: dict[Any, Kind] = dict.fromkeys(jaxpr.constvars, Kind.CONSTANT)
  known.update(zip(jaxpr.invars, inputs, strict=True))

  def read(atom: Any) -> Kind:
    return Kind.CONSTANT if isinstance(atom, core.Literal) else known[atom]

  for equation in jaxpr.eqns:
    if equation.effects:  # It may write to a mutable reference, which is not among its outputs.
      return [Kind.OTHER] * len(jaxpr.outvars)
    kinds = list(map(read, equation.invars))
    if all(kind == Kind.CONSTANT for kind in kinds):
      found = [Kind.CONSTANT] * len(equation.outvars)
    else:
      rule = _RULES.get(equation.primitive.name, _other)
      found = rule(equation, kinds)
    for variable, kind in zip(equation.outvars, found, strict=True):
      known[variable] = _only_floats(variable.aval, kind)
  return list(map(read, jaxpr.outvars))


def _only_floats(value: Any, kind: Kind) -> Kind:
  """The kind; OTHER for integers, booleans and complex numbers that depend on the argument."""
  return kind if kind == Kind.CONSTANT or jnp.issubdtype(value.dtype, jnp.floating) else Kind.OTHER


# --- Rules: the kinds of an equation's outputs, from those of its inputs, of which at least one is not constant.

_Rule = Callable[[Any, list[Kind]], list[Kind]]


def _other(equation: Any, kinds: list[Kind]) -> list[Kind]:
  del kinds
  return [Kind.OTHER] * len(equation.outvars)


def _linear(equation: Any, kinds: list[Kind]) -> list[Kind]:
  """Linear in all operands jointly."""
  return [max(kinds)] * len(equation.outvars)


def _each(equation: Any, kinds: list[Kind]) -> list[Kind]:
  """Every output is the input in its place."""
  del equation
  return kinds


def _product(equation: Any, kinds: list[Kind]) -> list[Kind]:
  """Linear in every operand, given the others."""
  varying = sum(kind != Kind.CONSTANT for kind in kinds)
  return [max(kinds) if varying == 1 else Kind.OTHER] * len(equation.outvars)


def _linear_in(*operands: int) -> _Rule:
  """Linear in these operands jointly, if all others (indices, predicates, denominators) are constant."""

  def rule(equation: Any, kinds: list[Kind]) -> list[Kind]:
    fixed = all(kind == Kind.CONSTANT for place, kind in enumerate(kinds) if place not in operands)
    return [max(kinds) if fixed else Kind.OTHER] * len(equation.outvars)

  return rule


def _select(equation: Any, kinds: list[Kind]) -> list[Kind]:
  del equation
  return [max(kinds[1:]) if kinds[0] == Kind.CONSTANT else Kind.OTHER]


def _integer_pow(equation: Any, kinds: list[Kind]) -> list[Kind]:
  return kinds if equation.params["y"] == 1 else [Kind.OTHER]


def _call(name: str) -> _Rule:
  """Calls the jaxpr in this parameter."""
  return lambda equation, kinds: _outputs(equation.params[name], kinds)


def _cond(equation: Any, kinds: list[Kind]) -> list[Kind]:
  if kinds[0] != Kind.CONSTANT:
    return _other(equation, kinds)
  return _join(*(_outputs(branch, kinds[1:]) for branch in equation.params["branches"]))


def _scan(equation: Any, kinds: list[Kind]) -> list[Kind]:
  start = equation.params["num_consts"]
  end = start + equation.params["num_carry"]

  def step(carry: list[Kind]) -> list[Kind]:
    return _outputs(equation.params["jaxpr"], [*kinds[:start], *carry, *kinds[end:]])

  carry = _fixed_point(lambda carry: step(carry)[: end - start], kinds[start:end])
  return [*carry, *step(carry)[end - start :]]


def _while(equation: Any, kinds: list[Kind]) -> list[Kind]:
  params = equation.params
  start, end = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
  carry = _fixed_point(lambda carry: _outputs(params["body_jaxpr"], [*kinds[start:end], *carry]), kinds[end:])
  if _outputs(params["cond_jaxpr"], [*kinds[:start], *carry]) != [Kind.CONSTANT]:
    return _other(equation, kinds)  # The number of steps depends on the argument.
  return carry


def _fixed_point(step: Callable[[list[Kind]], list[Kind]], carry: list[Kind]) -> list[Kind]:
  """The least kinds of a carry that its step does not raise."""
  while (after := _join(carry, step(carry))) != carry:
    carry = after
  return carry


def _join(*rows: Sequence[Kind]) -> list[Kind]:
  return [max(column) for column in zip(*rows, strict=True)]


_RULES: dict[str, _Rule] = {
  **dict.fromkeys(
    (
      "add", "add_any", "sub", "neg", "reduce_sum", "cumsum", "reduce_window_sum", "broadcast_in_dim", "reshape",
      "transpose", "squeeze", "expand_dims", "concatenate", "stack", "unstack", "split", "slice", "tile", "pad", "rev",
      "convert_element_type", "reduce_precision", "copy", "copy_p", "stop_gradient", "sharding_constraint", "reshard",
      "name",
    ),
    _linear,
  ),
  **dict.fromkeys(("device_put", "optimization_barrier"), _each),
  **dict.fromkeys(("mul", "dot_general", "conv_general_dilated"), _product),
  "div": _linear_in(0),
  "triangular_solve": _linear_in(1),
  "dynamic_slice": _linear_in(0),
  "gather": _linear_in(0),
  "dynamic_update_slice": _linear_in(0, 1),
  "scatter": _linear_in(0, 2),
  "scatter-add": _linear_in(0, 2),
  "select_n": _select,
  "integer_pow": _integer_pow,
  "jit": _call("jaxpr"),
  "pjit": _call("jaxpr"),
  "checkpoint": _call("jaxpr"),
  "remat2": _call("jaxpr"),
  "closed_call": _call("call_jaxpr"),
  "call": _call("call_jaxpr"),
  "custom_jvp_call": _call("call_jaxpr"),
  "custom_vjp_call": _call("call_jaxpr"),
  "cond": _cond,
  "scan": _scan,
  "while": _while,
}  # fmt: skip
