"""Single examples' gradients along one direction, with their squared norms: all that G after a step needs.

Both come from the same forward and backward pass. At a place where a leaf enters as z = h W, an example's gradient is
the sum over positions t of h_t d_tᵀ, so its product with a direction E is the sum of h_tᵀ E d_t: a product of matrices.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from last_jax.kernels import gradients
from last_jax.kernels.factors import Factor, Layer, sum_of_products
from last_jax.kernels.gradients import Formed, Gradients
from last_jax.kernels.remainder import Remainder
from last_jax.kernels.tangent import Apply

Array = jax.Array
Params = Any


def norms_and_products(
  apply_fn: Apply, params: Params, x: Any, direction: Params, *, weights: Any = None
) -> tuple[Array, Array]:
  """Return squared norms ‖g_i‖² and products ⟨direction, g_i⟩ of the gradients of every example's only output.

  Args:
    apply_fn: `(params, x [n, ...]) -> outputs [n, 1]`, as losses; each row a function of its own example.
    params: a pytree of floating point arrays.
    x: arrays [n, ...].
    direction: a pytree like `params`. The weights do not count in products with it.
    weights: factors of the leaves in squared norms: see `tangent_kernel`.

  Returns:
    [n] and [n], in float32 or wider.
  """
  along = gradients.factored_gradients(apply_fn, params, x, weights=direction)
  # Forward and backward pass are the same: compiled once.
  own = _unweighted(along) if weights is None else gradients.factored_gradients(apply_fn, params, x, weights=weights)
  parts = [_product_of_layer(layer) for layer in along.layers]
  parts += [_product_of_formed(formed) for formed in along.formed]
  if along.remainder is not None:
    parts.append(_product_of_remainder(along.remainder))
  return own.own_inner_products()[:, 0, 0], functools.reduce(jnp.add, parts)


def entries_per_example(apply_fn: Apply, params: Params, x: Any) -> int:
  """Return the number of entries of the factors of one example, from shapes: what passes through memory for it."""
  one = jax.tree.map(lambda value: jax.ShapeDtypeStruct((1, *value.shape[1:]), value.dtype), x)
  found = jax.eval_shape(lambda params, x: gradients.factored_gradients(apply_fn, params, x), params, one)
  return max(1, sum(leaf.size for leaf in jax.tree.leaves((found.layers, found.formed))))


def _unweighted(found: Gradients) -> Gradients:
  layers = tuple(dataclasses.replace(layer, weight=None, bias_weight=None) for layer in found.layers)
  rest = found.remainder
  if rest is not None:
    rest = dataclasses.replace(rest, weights=(None,) * len(rest.weights))
  return Gradients(layers, tuple(Formed(formed.gradients, None) for formed in found.formed), rest)


def _product_of_layer(layer: Layer) -> Array:
  """Products with the layer's weight, [n]."""
  assert layer.weight is not None, "a direction has an entry for every leaf"
  total = functools.reduce(jnp.add, (_product_of_factor(factor, layer.weight) for factor in layer.factors))
  if layer.bias:
    assert layer.bias_weight is not None, "a direction has an entry for every leaf"
    errors = layer.factors[0].errors[:, 0]  # [n, L, T, columns]
    row = jnp.broadcast_to(layer.bias_weight, (errors.shape[1], 1, errors.shape[3]))[:, 0]
    total = total + _sum(errors * row[None, :, None])
  return total


def _product_of_factor(factor: Factor, direction: Array) -> Array:
  """Sum of h_tᵀ E d_t, with E [L, rows, columns] of W."""
  errors = factor.errors[:, 0]  # [n, L, T, columns]
  if factor.transposed:
    direction = direction.swapaxes(-1, -2) if direction.ndim else direction
  direction = jnp.broadcast_to(direction, (errors.shape[1], factor.rows, errors.shape[3]))
  if factor.is_lookup:
    rows = jax.vmap(lambda table, index: table[index], (0, 1), 1)(direction, jnp.maximum(factor.inputs, 0))
    return _sum(errors * jnp.where((factor.inputs >= 0)[..., None], rows, 0))
  if factor.inputs.shape[1] == 1:  # One block: a product of two matrices.
    moved = sum_of_products("nta,ab->ntb", factor.inputs[:, 0], direction[0])[:, None]
  else:
    moved = sum_of_products("nlta,lab->nltb", factor.inputs, direction)
  return _sum(moved * errors)


def _sum(values: Array) -> Array:
  """Sum over all but the first axis, in float32 or wider: on a CPU several times as fast as a product of rows."""
  return jnp.sum(values.astype(jnp.promote_types(values.dtype, jnp.float32)), axis=tuple(range(1, values.ndim)))


def _product_of_formed(formed: Formed) -> Array:
  assert formed.weight is not None, "a direction has an entry for every leaf"
  values = formed.gradients[:, 0]
  return sum_of_products("np,p->n", values, jnp.broadcast_to(formed.weight, values.shape[1:]))


def _product_of_remainder(rest: Remainder) -> Array:
  """By a JVP in the leaves that are left, [n]."""
  chosen = rest.chosen
  tangents = tuple(
    jnp.broadcast_to(weight, leaf.shape).astype(leaf.dtype)
    for leaf, weight in zip(chosen, rest.weights, strict=True)
    if weight is not None
  )
  _, change = jax.jvp(lambda chosen: rest.outputs(chosen, rest.x), (chosen,), (tangents,))
  return sum_of_products("nk,nk->n", change, rest.cotangents[:, 0])
