"""Gradients in leaves whose use cannot be read: formed by VJPs, a few examples and outputs at a time."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from last_jax.identity import Static

Array = jax.Array
FORMED = 2**22  # Entries of gradients that are formed at once.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Remainder:
  """Everything that gradients in some leaves are computed from when they are needed.

  Attributes:
    leaves: all leaves of the parameters.
    x: the examples, arrays [n, ...].
    cotangents: R combinations of the outputs for each example, [n, R, K].
    weights: for each leaf of `indices` a factor of inner products, [] or of the leaf's shape, or None.
    apply_fn: `(params, x) -> outputs [n, ...]`, K for each example.
    structure: of the parameters.
    indices: of the leaves to differentiate in.
  """

  leaves: tuple[Array, ...]
  x: Any
  cotangents: Array
  weights: tuple[Array | None, ...]
  apply_fn: Static = dataclasses.field(metadata={"static": True})
  structure: Any = dataclasses.field(metadata={"static": True})
  indices: tuple[int, ...] = dataclasses.field(metadata={"static": True})

  @property
  def size(self) -> int:
    """The number of entries of one gradient."""
    return sum(math.prod(leaf.shape) for leaf in self.chosen)

  @property
  def chosen(self) -> tuple[Array, ...]:
    """The leaves to differentiate in."""
    return tuple(self.leaves[index] for index in self.indices)

  def outputs(self, chosen: tuple[Array, ...], x: Any) -> Array:
    """Outputs of a batch given the chosen leaves, [n, K]."""
    leaves = list(self.leaves)
    for index, leaf in zip(self.indices, chosen, strict=True):
      leaves[index] = leaf
    outputs = self.apply_fn(jax.tree.unflatten(self.structure, leaves), x)
    return outputs.reshape(outputs.shape[0], -1)

  def weighted(self, gradient: tuple[Array, ...]) -> tuple[Array, ...]:
    """A gradient times the weights."""
    pairs = zip(gradient, self.weights, strict=True)
    return tuple(leaf if weight is None else (weight * leaf).astype(leaf.dtype) for leaf, weight in pairs)


def inner_products(remainder: Remainder, other: Remainder) -> Array:
  """Inner products of gradients, [n, R, n2, R2]: of every gradient one VJP, then one JVP for the other batch."""
  n, outputs = remainder.cotangents.shape[:2]

  def row(index: Array) -> Array:  # -> [n2, R2]
    example, output = index // outputs, index % outputs
    x = jax.tree.map(lambda value: value[example][None], remainder.x)
    value, pull = jax.vjp(lambda chosen: remainder.outputs(chosen, x), remainder.chosen)
    (gradient,) = pull(remainder.cotangents[example, output][None].astype(value.dtype))
    direction = remainder.weighted(gradient)
    _, change = jax.jvp(lambda chosen: other.outputs(chosen, other.x), (other.chosen,), (direction,))
    return _dot(change, other.cotangents)

  rows = lax.map(row, jnp.arange(n * outputs), batch_size=max(1, FORMED // remainder.size))
  return rows.reshape(n, outputs, *rows.shape[1:])


def own_inner_products(remainder: Remainder) -> Array:
  """Inner products of the gradients of the outputs of each example, [n, R, R]."""
  outputs = remainder.cotangents.shape[1]

  def one(pair: tuple[Any, Array]) -> Array:  # -> [R, R]
    x, cotangents = jax.tree.map(lambda value: value[None], pair[0]), pair[1]
    value, pull = jax.vjp(lambda chosen: remainder.outputs(chosen, x)[0], remainder.chosen)

    def row(cotangent: Array) -> Array:
      direction = remainder.weighted(*pull(cotangent.astype(value.dtype)))
      _, change = jax.jvp(lambda chosen: remainder.outputs(chosen, x), (remainder.chosen,), (direction,))
      return _dot(change[0], cotangents)

    return lax.map(row, cotangents, batch_size=max(1, FORMED // remainder.size))

  size = max(1, FORMED // (remainder.size * outputs))
  return lax.map(one, (remainder.x, remainder.cotangents), batch_size=size)


def _dot(change: Array, cotangents: Array) -> Array:
  """Inner products of changes of the outputs [..., K] with cotangents [..., R, K] -> [..., R]."""
  dtype = jnp.promote_types(jnp.result_type(change, cotangents), jnp.float32)
  return jnp.einsum("...k,...rk->...r", change.astype(dtype), cotangents.astype(dtype), precision=lax.Precision.HIGHEST)
