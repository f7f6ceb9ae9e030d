"""Gradients of the outputs of every example, as factors of the layers, found in one forward and one backward pass."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from last_jax.identity import Static
from last_jax.kernels import arrangement, factors, places, remainder, width
from last_jax.kernels.factors import Factor, Layer
from last_jax.kernels.places import Bias, Path, Place
from last_jax.kernels.remainder import Remainder

Array = jax.Array
Params = Any


class Formed(NamedTuple):
  """The gradients in a small leaf: gradients [n, R, size], and weight [], [size] or None."""

  gradients: Array
  weight: Array | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Gradients:
  """Gradients of n examples in all leaves, R for each example, from which every inner product follows.

  Attributes:
    layers: those in factored form.
    formed: those in small leaves, formed.
    remainder: the others, which are formed a few at a time when they are needed.
  """

  layers: tuple[Layer, ...]
  formed: tuple[Formed, ...]
  remainder: Remainder | None

  def inner_products(self, other: "Gradients | None" = None) -> Array:
    """Weighted inner products with the gradients of another batch (by default this one), [n, R, n2, R2]."""
    other = self if other is None else other
    parts = [factors.inner_products(*pair) for pair in zip(self.layers, other.layers, strict=True)]
    parts += [_formed_products("irp,jsp->irjs", *pair) for pair in zip(self.formed, other.formed, strict=True)]
    if self.remainder is not None and other.remainder is not None:
      parts.append(remainder.inner_products(self.remainder, other.remainder))
    return functools.reduce(jnp.add, parts)

  def own_inner_products(self) -> Array:
    """Weighted inner products of the gradients of each example with each other, [n, R, R]."""
    parts = [factors.own_inner_products(layer) for layer in self.layers]
    parts += [_formed_products("irp,isp->irs", formed, formed) for formed in self.formed]
    if self.remainder is not None:
      parts.append(remainder.own_inner_products(self.remainder))
    return functools.reduce(jnp.add, parts)


def _formed_products(subscripts: str, first: Formed, second: Formed) -> Array:
  left = first.gradients.astype(jnp.promote_types(first.gradients.dtype, jnp.float32))
  if first.weight is not None:
    left = left * (first.weight if first.weight.ndim == 0 else first.weight[None, None])
  return factors.sum_of_products(subscripts, left, second.gradients)


class Part(NamedTuple):
  """A leaf, or a part of it, in factored form.

  Attributes:
    leaf: its index.
    places: all places that use these entries, with whether they use them transposed.
    bias: the index of the leaf that is the bias, and how it is added; or None.
  """

  leaf: int
  places: list[tuple[Place, bool]]
  bias: tuple[int, Bias] | None = None


class Plan(NamedTuple):
  """How the gradient in each leaf is found.

  Attributes:
    closed: the jaxpr of the outputs [K] of one example.
    parts: leaves in factored form.
    formed: indices of the small leaves.
    remainder: indices of the leaves that are left.
    roads: for each leaf the name of the road.
  """

  closed: Any
  parts: list[Part]
  formed: list[int]
  remainder: list[int]
  roads: list[str]


def plan(apply_fn: Callable[[Params, Any], Array], params: Params, x: Any, rows: int | None = None) -> Plan:
  """Decide from shapes how the gradient in each leaf is found.

  Args:
    apply_fn: `(params, x [n, ...]) -> outputs [n, ...]`, each row a function of its own example.
    params: a pytree of arrays.
    x: arrays [n, ...].
    rows: the number of gradients, n K by default.
  """
  leaves, structure = jax.tree.flatten(params)
  examples, example_structure = jax.tree.flatten(x)

  def one(leaves: list[Array], example: list[Array]) -> Array:
    batch = jax.tree.unflatten(example_structure, [value[None] for value in example])
    outputs = apply_fn(jax.tree.unflatten(structure, leaves), batch)
    if outputs.ndim == 0 or outputs.shape[0] != 1:
      raise ValueError(f"apply_fn must return one row for each example, but for one it has shape {outputs.shape}")
    return outputs.reshape(-1)

  shapes = [jax.ShapeDtypeStruct(value.shape[1:], value.dtype) for value in examples]
  closed = jax.make_jaxpr(one)(leaves, shapes)
  rows = examples[0].shape[0] * closed.out_avals[0].size if rows is None else rows
  uses = places.find(closed, [*range(len(leaves)), *[None] * len(examples)])
  by_leaf: dict[int, list[Place]] = {}
  for place in uses.places.values():
    by_leaf.setdefault(place.leaf, []).append(place)
  roads, rest = ["none"] * len(leaves), []
  parts: list[Part] = []
  for index, leaf in enumerate(leaves):
    used, others = by_leaf.get(index, []), set(uses.others.get(index, ()))
    if not jnp.issubdtype(leaf.dtype, jnp.floating) or not (used or others):
      continue
    aligned = arrangement.align(used, leaf.shape) if used and not others else None
    if aligned is None:
      rest.append(index)
      roads[index] = "+".join(sorted(others)) if others <= {places.BIAS, places.SCALE} and not used else places.VJP
    else:
      parts += [Part(index, members) for members in aligned]
      roads[index] = "+".join(sorted({place.kind for place in used}))
  alone = {part.places[0][0].path: place for place, part in enumerate(parts) if len(part.places) == 1}
  for index in [index for index in rest if index in uses.biases and index not in by_leaf]:
    bias = uses.biases[index]
    part = alone.pop(bias.path, None)
    if part is not None and arrangement.is_row(parts[part].places[0][0], bias, leaves[index].shape):
      parts[part] = parts[part]._replace(bias=(index, bias))
      rest.remove(index)
  taps = sum(math.prod(place.tap.shape) for part in parts for place, _ in part.places)
  room = max(taps, remainder.FORMED // rows)
  formed = []
  for index in sorted(rest, key=lambda index: leaves[index].size):
    room -= leaves[index].size
    if room < 0:
      roads[index] = places.VJP
    else:
      formed.append(index)
  return Plan(closed, parts, formed, [index for index in rest if index not in formed], roads)


def factored_gradients(
  apply_fn: Callable[[Params, Any], Array],
  params: Params,
  x: Any,
  *,
  cotangents: Array | None = None,
  weights: Any = None,
) -> Gradients:
  """Find the gradients of the outputs of every example: one forward pass, and a backward pass with R rows.

  Args:
    apply_fn: `(params, x [n, ...]) -> outputs [n, ...]`, K for each example; each row a function of its own example.
    params: a pytree of arrays; those that are not floating point are constants.
    x: arrays [n, ...].
    cotangents: R combinations of the outputs, [R, K], or [n, R, K] where they differ between examples; by default the K
      outputs themselves.
    weights: factors of the leaves in inner products: a pytree like `params`, or a prefix of it, with scalars or arrays
      of the leaf's shape.
  """
  leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(params)]
  examples = [jnp.asarray(value) for value in jax.tree.leaves(x)]
  number = examples[0].shape[0]
  count = None if cotangents is None else number * cotangents.shape[-2]
  found = plan(apply_fn, jax.tree.unflatten(jax.tree.structure(params), leaves), x, count)
  chosen = {place.path: place for part in found.parts for place, _ in part.places}
  factor_of = leaf_weights(weights, params, leaves)
  size, dtype = found.closed.out_avals[0].size, found.closed.out_avals[0].dtype
  rows = jnp.eye(size, dtype=dtype) if cotangents is None else cotangents.astype(dtype)

  def one(example: list[Array], rows: Array) -> tuple[dict[Path, Array], dict[Path, Array], list[Array]]:
    def outputs(taps: dict[Path, Array], formed: list[Array]) -> tuple[Array, dict[Path, Array]]:
      arguments = list(leaves)
      for index, leaf in zip(found.formed, formed, strict=True):
        arguments[index] = leaf
      (value,), seen = places.evaluate(found.closed, [*arguments, *example], chosen, taps)
      return value, seen

    taps = {path: jnp.zeros(place.tap.shape, place.tap.dtype) for path, place in chosen.items()}
    _, pull, seen = jax.vjp(outputs, taps, [leaves[index] for index in found.formed], has_aux=True)
    errors, formed = jax.vmap(pull)(rows)
    inputs = {path: arrangement.arrange_inputs(place, seen[path]) for path, place in chosen.items()}
    errors = {
      path: jax.vmap(functools.partial(arrangement.arrange_errors, place))(errors[path])
      for path, place in chosen.items()
    }
    return inputs, errors, [value.reshape(value.shape[0], -1) for value in formed]

  inputs, errors, formed = jax.vmap(one, in_axes=(0, None if rows.ndim == 2 else 0))(examples, rows)
  layers = []
  for part in found.parts:
    parts = tuple(
      Factor(inputs[place.path], errors[place.path], arrangement.rows_and_columns(place)[0], transposed)
      for place, transposed in part.places
    )
    place, weight, bias_weight = part.places[0][0], factor_of[part.leaf], None
    if weight is not None and weight.ndim:
      weight = arrangement.arrange_leaf(place, weight)
    if part.bias is not None and (bias_weight := factor_of[part.bias[0]]) is not None and bias_weight.ndim:
      bias_weight = arrangement.arrange_bias(place, part.bias[1], bias_weight)[:, :1]
    layers.append(Layer(parts, weight, bias_weight, part.bias is not None))
  small = []
  for index, value in zip(found.formed, formed, strict=True):
    weight = factor_of[index]
    small.append(Formed(value, weight if weight is None or weight.ndim == 0 else weight.reshape(-1)))
  rest = None
  if found.remainder:
    rows = jnp.broadcast_to(rows, (number, *rows.shape[-2:]))
    params = jax.tree.unflatten(jax.tree.structure(params), leaves)
    params, x = width.in_float32(apply_fn, params, jax.tree.unflatten(jax.tree.structure(x), examples))
    rest = Remainder(
      tuple(jax.tree.leaves(params)), x, rows, tuple(factor_of[index] for index in found.remainder), Static(apply_fn),
      jax.tree.structure(params), tuple(found.remainder),
    )  # fmt: skip
  return Gradients(tuple(layers), tuple(small), rest)


def leaf_weights(weights: Any, params: Params, leaves: list[Array]) -> list[Array | None]:
  """A weight for each leaf, [] or of the leaf's shape, in the leaf's dtype or in float32 if that is wider."""
  if weights is None:
    return [None] * len(leaves)
  try:
    values = jax.tree.leaves(jax.tree.broadcast(weights, params))
  except ValueError as error:
    raise ValueError(f"weights must have the structure of params, or be a prefix of it: {error}") from error
  result: list[Array | None] = []
  for value, leaf in zip(values, leaves, strict=True):
    if np.shape(value) not in ((), leaf.shape):
      raise ValueError(f"weights must be scalars or have the shape of their leaf, {leaf.shape}, not {np.shape(value)}")
    floating = jnp.issubdtype(leaf.dtype, jnp.floating)
    result.append(jnp.asarray(value, jnp.promote_types(leaf.dtype, jnp.float32) if floating else None))
  return result
