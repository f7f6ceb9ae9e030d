"""Where parameters enter a computation: places found in its jaxpr, and evaluation with taps there.

An abstract interpretation finds every use of a parameter leaf. Steps that only move or drop entries (transpose,
reshape, slice, a scan over stacked layers) keep the identity of the leaf; where its entries then meet a value that
depends on the example in a product, a convolution or a look-up, that equation is a place. `evaluate` adds a tap, a
zero, to the output of each chosen place and returns its other operand: the gradient in the leaf follows from this
operand and the gradient in the tap; so does that in a bias that is added to the output of a place. All other uses
(other sums, scales, everything unknown) are listed by kind, and are for automatic differentiation.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from last_jax.kernels.convolution import bind, convolve

Path = tuple[int, ...]  # The positions of an equation and of those around it, outermost first.

PRODUCT, CONVOLUTION, EMBEDDING, BIAS, SCALE, VJP = "product", "convolution", "embedding", "bias", "scale", "vjp"


class Step(NamedTuple):
  """A rearrangement of entries.

  Attributes:
    equation: it has one operand; or None: every turn of a scan takes a slice.
    output: which one of the equation's outputs; of a scan, the number of scans around it.
  """

  equation: Any
  output: int = 0

  @property
  def key(self) -> str:
    """The same for steps that do the same."""
    if self.equation is None:
      return "scan"
    return f"{self.equation.primitive.name} {self.equation.params} {self.output}"


class Fact(NamedTuple):
  """How a value depends on the arguments.

  Attributes:
    varies: whether it depends on the example; its dependence on parameters is then accounted for by their uses.
    leaves: indices of the leaves that it is computed from, if it does not vary.
    steps: if its entries are entries of one leaf: how they were taken from it. Otherwise None.
    distinct: whether they are distinct entries.
    place: the path of the place whose output it is, if that has no other use.
  """

  varies: bool = False
  leaves: frozenset[int] = frozenset()
  steps: tuple[Step, ...] | None = None
  distinct: bool = True
  place: Path | None = None


class Place(NamedTuple):
  """An equation that multiplies entries of one leaf with a value that depends on the example.

  Attributes:
    path: of the equation.
    kind: PRODUCT, CONVOLUTION or EMBEDDING.
    leaf: the index of the leaf.
    steps: how the operand was taken from the leaf.
    operand: the position of the leaf's entries among the operands; the other one is what `evaluate` returns.
    loops: the lengths of the scans around the equation, outermost first.
    sliced: for each of them, whether every turn has its own slice of the leaf; otherwise all turns share the entries.
    equation: the equation itself.
  """

  path: Path
  kind: str
  leaf: int
  steps: tuple[Step, ...]
  operand: int
  loops: tuple[int, ...]
  sliced: tuple[bool, ...]
  equation: Any

  @property
  def tap(self) -> jax.ShapeDtypeStruct:
    """Shape and dtype of the tap: the equation's output, for every turn of the loops."""
    output = self.equation.outvars[0].aval
    return jax.ShapeDtypeStruct((*self.loops, *output.shape), output.dtype)


class Bias(NamedTuple):
  """A leaf that is added to the output of the place with this path, and how the summand was taken from the leaf."""

  path: Path
  steps: tuple[Step, ...]


class Uses(NamedTuple):
  """All uses of all leaves.

  Attributes:
    places: by path.
    others: for each leaf the kinds of its other uses.
    biases: for some leaves that have one other use, a sum, what it is added to.
  """

  places: dict[Path, Place]
  others: dict[int, list[str]]
  biases: dict[int, Bias]


# --- Finding


def find(closed: Any, leaves: Sequence[int | None]) -> Uses:
  """Find the uses of parameters in a closed jaxpr.

  Args:
    closed: the jaxpr of a function of parameters and one example.
    leaves: for each of its inputs the index of the leaf, or None for a part of the example.
  """
  uses = Uses({}, {}, {})
  facts = [Fact(varies=True) if leaf is None else Fact(leaves=frozenset((leaf,)), steps=()) for leaf in leaves]
  outputs = _find(closed.jaxpr, facts, (), (), uses)
  _use(uses, outputs, VJP)
  for leaf in [leaf for leaf in uses.biases if len(uses.others[leaf]) > 1]:
    del uses.biases[leaf]
  return uses


def _use(uses: Uses, facts: Iterable[Fact], kind: str) -> None:
  for fact in facts:
    for leaf in fact.leaves:
      uses.others.setdefault(leaf, []).append(kind)


def _find(jaxpr: Any, inputs: Sequence[Fact], path: Path, loops: tuple[int, ...], uses: Uses) -> list[Fact]:
  """The facts of a jaxpr's outputs, from those of its inputs."""
  read = (*(atom for equation in jaxpr.eqns for atom in equation.invars), *jaxpr.outvars)
  times = collections.Counter(atom for atom in read if not isinstance(atom, core.Literal))
  known: dict[Any, Fact] = dict.fromkeys(jaxpr.constvars, Fact())

  def learn(variables: Sequence[Any], facts: Sequence[Fact]) -> None:
    for variable, fact in zip(variables, facts, strict=True):
      known[variable] = fact if times[variable] == 1 else fact._replace(place=None)

  learn(jaxpr.invars, inputs)
  for index, equation in enumerate(jaxpr.eqns):
    facts = [Fact() if isinstance(atom, core.Literal) else known[atom] for atom in equation.invars]
    if any(fact.leaves for fact in facts):
      found = _equation(equation, facts, (*path, index), loops, uses)
    else:
      found = [Fact(varies=any(fact.varies for fact in facts))] * len(equation.outvars)
    learn(equation.outvars, found)
  return [Fact() if isinstance(atom, core.Literal) else known[atom] for atom in jaxpr.outvars]


def _equation(equation: Any, facts: list[Fact], path: Path, loops: tuple[int, ...], uses: Uses) -> list[Fact]:
  """The facts of the outputs of an equation that has parameters among its operands."""
  name, count = equation.primitive.name, len(equation.outvars)
  if name in _CALLS:
    return _find(_inner(equation), facts, path, loops, uses)
  if name == "stop_gradient":
    return [Fact()] * count
  if name in _MOVES and facts[0].steps is not None and len(facts) == 1:
    distinct = facts[0].distinct and equation.invars[0].aval.size >= sum(out.aval.size for out in equation.outvars)
    steps = [(*facts[0].steps, Step(equation, output)) for output in range(count)]
    return [facts[0]._replace(steps=each, distinct=distinct) for each in steps]
  if name == "convert_element_type" and jnp.issubdtype(equation.params["new_dtype"], jnp.floating):
    return facts
  if not any(fact.varies for fact in facts):
    return [Fact(leaves=frozenset().union(*(fact.leaves for fact in facts)))] * count
  if name == "scan":
    return _scan(equation, facts, path, loops, uses)
  if (place := _place(equation, facts, path, loops)) is not None:
    uses.places[path] = place
    return [Fact(varies=True, place=path)]
  if name == "add" and equation.invars[0].aval.shape == equation.invars[1].aval.shape:  # A scalar may have none.
    summand, output = facts if facts[0].leaves else reversed(facts)
    if output.place is not None and summand.steps is not None:
      (leaf,) = summand.leaves
      uses.biases[leaf] = Bias(output.place, summand.steps)
  _use(uses, facts, _ELEMENTWISE.get(name, VJP))
  return [Fact(varies=True)] * count


def _scan(equation: Any, facts: list[Fact], path: Path, loops: tuple[int, ...], uses: Uses) -> list[Fact]:
  start = equation.params["num_consts"]
  end = start + equation.params["num_carry"]
  facts = [fact._replace(place=None) for fact in facts]  # Every turn uses it.
  _use(uses, facts[start:end], VJP)
  step = Step(None, len(loops))
  slices = [fact if fact.steps is None else fact._replace(steps=(*fact.steps, step)) for fact in facts[end:]]
  inputs = [*facts[:start], *[Fact(varies=True)] * (end - start), *slices]
  outputs = _find(_inner(equation), inputs, path, (*loops, equation.params["length"]), uses)
  _use(uses, outputs, VJP)
  return [Fact(varies=True)] * len(equation.outvars)


def _place(equation: Any, facts: list[Fact], path: Path, loops: tuple[int, ...]) -> Place | None:
  """The place that this equation is, if it is one: exactly one operand is a leaf's entries, and the other varies."""
  kind = _KINDS.get(equation.primitive.name)
  if kind is None or len(facts) != 2:
    return None
  operand = 0 if facts[0].leaves else 1
  parameter, other = facts[operand], facts[1 - operand]
  if parameter.steps is None or not parameter.distinct or not other.varies:
    return None
  if kind == CONVOLUTION and (operand == 0 or equation.params["batch_group_count"] != 1):
    return None
  if kind == EMBEDDING and (operand == 1 or not _looks_up_rows(equation)):
    return None
  (leaf,) = parameter.leaves
  slices = {step.output for step in parameter.steps if step.equation is None}
  sliced = tuple(depth in slices for depth in range(len(loops)))
  return Place(path, kind, leaf, parameter.steps, operand, loops, sliced, equation)


def _looks_up_rows(equation: Any) -> bool:
  """Whether a gather takes whole slices along one axis of its operand."""
  numbers, mode = equation.params["dimension_numbers"], equation.params["mode"]
  operand = equation.invars[0].aval.shape
  axis = numbers.start_index_map
  whole = tuple(1 if dimension in axis else size for dimension, size in enumerate(operand))
  return (
    len(axis) == 1
    and numbers.collapsed_slice_dims == axis
    and not numbers.operand_batching_dims
    and equation.params["slice_sizes"] == whole
    and mode
    in (lax.GatherScatterMode.CLIP, lax.GatherScatterMode.FILL_OR_DROP, lax.GatherScatterMode.PROMISE_IN_BOUNDS)
  )


def _inner(equation: Any) -> Any:
  """The open jaxpr that an equation calls."""
  inner = equation.params["call_jaxpr" if "call_jaxpr" in equation.params else "jaxpr"]
  return inner.jaxpr if isinstance(inner, core.ClosedJaxpr) else inner  # Remat has an open one.


_CALLS = frozenset(("jit", "pjit", "checkpoint", "remat2", "closed_call", "call"))
_MOVES = frozenset(
  ("transpose", "reshape", "squeeze", "expand_dims", "broadcast_in_dim", "rev", "slice", "split", "copy", "copy_p")
)
_KINDS = {"dot_general": PRODUCT, "conv_general_dilated": CONVOLUTION, "gather": EMBEDDING}
_ELEMENTWISE = {"add": BIAS, "add_any": BIAS, "sub": BIAS, "mul": SCALE, "div": SCALE}


# --- Evaluation


def evaluate(
  closed: Any, arguments: Sequence[Any], places: Mapping[Path, Place], taps: Mapping[Path, Any]
) -> tuple[list[Any], dict[Path, Any]]:
  """Evaluate a closed jaxpr with taps added to the outputs of places.

  Args:
    closed: the jaxpr in which the places were found.
    arguments: its inputs.
    places: by path, those that have taps.
    taps: by path, with shape and dtype of `Place.tap`.

  Returns:
    The outputs, and by path the other operand of each place, [*loops, *shape of the operand].
  """
  others = {path: 1 - place.operand for path, place in places.items()}
  return _evaluate(closed, arguments, (), others, taps)


def _evaluate(
  closed: Any, arguments: Sequence[Any], path: Path, others: Mapping[Path, int], taps: Mapping[Path, Any]
) -> Any:
  jaxpr, constants = (closed.jaxpr, closed.consts) if isinstance(closed, core.ClosedJaxpr) else (closed, ())
  values: dict[Any, Any] = dict(zip(jaxpr.constvars, constants, strict=True))
  values.update(zip(jaxpr.invars, arguments, strict=True))
  seen: dict[Path, Any] = {}
  for index, equation in enumerate(jaxpr.eqns):
    here = (*path, index)
    operands = [atom.val if isinstance(atom, core.Literal) else values[atom] for atom in equation.invars]
    inner = {place: tap for place, tap in taps.items() if place[: len(here)] == here}
    if here in inner:
      outputs = [_bind(equation, operands)[0] + inner[here]]
      seen[here] = operands[others[here]]
    elif not inner:
      outputs = _bind(equation, operands)
    else:
      run = _evaluate_scan if equation.primitive.name == "scan" else _evaluate_call
      outputs, more = run(equation, operands, here, others, inner)
      seen.update(more)
    values.update(zip(equation.outvars, outputs, strict=True))
  return [atom.val if isinstance(atom, core.Literal) else values[atom] for atom in jaxpr.outvars], seen


def _bind(equation: Any, operands: list[Any]) -> list[Any]:
  if equation.primitive.name == "conv_general_dilated" and equation.params["feature_group_count"] == 1:
    return [convolve(equation, *operands)]
  return bind(equation, operands)


def _evaluate_call(
  equation: Any, operands: list[Any], path: Path, others: Mapping[Path, int], taps: Mapping[Path, Any]
) -> Any:
  params = equation.params
  return _evaluate(params["call_jaxpr" if "call_jaxpr" in params else "jaxpr"], operands, path, others, taps)


def _evaluate_scan(
  equation: Any, operands: list[Any], path: Path, others: Mapping[Path, int], taps: Mapping[Path, Any]
) -> Any:
  params = equation.params
  start = params["num_consts"]
  end = start + params["num_carry"]

  def body(carry: Any, slices: Any) -> Any:
    arguments, taps_here = slices
    outputs, seen = _evaluate(params["jaxpr"], [*operands[:start], *carry, *arguments], path, others, taps_here)
    return outputs[: end - start], (outputs[end - start :], seen)

  loop = {name: params[name] for name in ("length", "reverse", "unroll")}
  carry, (outputs, seen) = lax.scan(body, operands[start:end], (operands[end:], dict(taps)), **loop)
  return [*carry, *outputs], seen
