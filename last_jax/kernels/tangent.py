"""Tangent kernels: inner products of the gradients of a network's outputs, without forming these gradients."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from last_jax.kernels import arguments, gradients, width

Array = jax.Array
Params = Any
Apply = Callable[[Params, Any], Array]


def tangent_kernel(
  apply_fn: Apply, params: Params, x: Any, x2: Any = None, *, weights: Any = None, diagonal: bool = False
) -> Array:
  """Inner products of the gradients of all outputs of all examples, J(x) W J(x2)ᵀ.

  Args:
    apply_fn: `(params, x [n, ...]) -> outputs [n, K]`, or [n, ...] with several axes in place of K. Examples must not
      influence each other (no batch statistics).
    params: a pytree of arrays; those that are not floating point are constants.
    x: examples, [n, ...]; or a pytree of such arrays.
    x2: examples, [n2, ...]; by default x.
    weights: W, factors of the leaves: a pytree like `params`, or a prefix of it, with scalars or arrays of the leaf's
      shape.
    diagonal: whether to return only the blocks of every example with itself; then x2 must be None.

  Returns:
    [n, K, n2, K]; with `diagonal`, [n, K, K]. In float32 or wider.
  """
  arguments.check_call(apply_fn, params, x)
  arguments.check_weights(weights)
  if not isinstance(diagonal, bool):
    raise TypeError(f"diagonal must be True or False, but it is a {type(diagonal).__name__}")
  if x2 is not None:
    arguments.check_call(apply_fn, params, x2, "x2")
  first = gradients.factored_gradients(apply_fn, params, x, weights=weights)
  if diagonal:
    if x2 is not None:
      raise ValueError("diagonal=True is for the blocks of every example of x with itself: x2 must be None")
    return first.own_inner_products()
  second = None if x2 is None else gradients.factored_gradients(apply_fn, params, x2)
  return first.inner_products(second)


def tangent_product(apply_fn: Apply, params: Params, x: Any, v: Array, x2: Any = None, *, weights: Any = None) -> Array:
  """Product of the tangent kernel with a vector, J(x) W J(x2)ᵀ v, by one VJP and one JVP.

  Args:
    apply_fn: see `tangent_kernel`; here examples may influence each other.
    params: a pytree of arrays.
    x: examples, [n, ...].
    v: [n2, K], or [n2, T, K]: the shape of the outputs.
    x2: examples, [n2, ...]; by default x.
    weights: see `tangent_kernel`.

  Returns:
    The shape of the outputs for x, [n, K] or [n, T, K], in float32 or wider.
  """
  shape = arguments.check_call(apply_fn, params, x)
  arguments.check_weights(weights)
  if x2 is not None:
    shape = arguments.check_call(apply_fn, params, x2, "x2")
  v = arguments.check_rows("v", v, shape)
  x2 = x if x2 is None else x2
  params, x, x2 = width.in_float32(apply_fn, params, x, x2)
  leaves, structure = jax.tree.flatten(params)
  floating = [index for index, leaf in enumerate(leaves) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]
  factors = gradients.leaf_weights(weights, params, [jnp.asarray(leaf) for leaf in leaves])

  def outputs(chosen: list[Array], x: Any) -> Array:
    every = list(leaves)
    for index, leaf in zip(floating, chosen, strict=True):
      every[index] = leaf
    return apply_fn(jax.tree.unflatten(structure, every), x)

  chosen = [jnp.asarray(leaves[index]) for index in floating]
  value, pull = jax.vjp(lambda chosen: outputs(chosen, x2), chosen)
  (direction,) = pull(v.astype(value.dtype))
  for place, index in enumerate(floating):
    if (weight := factors[index]) is not None:
      direction[place] = (weight * direction[place]).astype(direction[place].dtype)
  _, product = jax.jvp(lambda chosen: outputs(chosen, x), (chosen,), (direction,))
  return product.astype(jnp.promote_types(product.dtype, jnp.float32))


def squared_gradient_norms(
  apply_fn: Apply, params: Params, x: Any, cotangents: Array, *, weights: Any = None, batch_size: int | None = None
) -> Array:
  """Squared norms of single examples' gradients, ‖J_iᵀ u_i‖², for a whole pool.

  Args:
    apply_fn: see `tangent_kernel`.
    params: a pytree of arrays.
    x: examples, [n, ...].
    cotangents: u, gradients of a loss in the outputs, [n, K], or [n, T, K] where the outputs have that shape.
    weights: see `tangent_kernel`.
    batch_size: how many examples to pass through the network at once; by default as many as need a few megabytes.

  Returns:
    [n].
  """
  shape = arguments.check_call(apply_fn, params, x)
  arguments.check_weights(weights)
  cotangents = arguments.check_rows("cotangents", cotangents, shape)
  if batch_size is not None and (isinstance(batch_size, bool) or not isinstance(batch_size, (int, np.integer))):
    raise TypeError(f"batch_size must be a whole number, but it is a {type(batch_size).__name__}")
  if batch_size is not None and batch_size < 1:
    raise ValueError(f"batch_size must be a whole number of at least 1, but it is {batch_size}")

  def one(pair: tuple[Any, Array]) -> Array:
    alone, cotangent = pair
    batch = jax.tree.map(lambda value: value[None], alone)
    found = gradients.factored_gradients(
      apply_fn, params, batch, cotangents=cotangent.reshape(1, 1, -1), weights=weights
    )
    return found.own_inner_products()[0, 0, 0]

  if batch_size is None:
    found = gradients.plan(apply_fn, params, x, rows=1)
    taps = sum(math.prod(place.tap.shape) for part in found.parts for place, _ in part.places)
    batch_size = max(1, 2**20 // max(1, taps))
  number = cotangents.shape[0]
  if batch_size >= number:
    return jax.vmap(lambda *pair: one(pair))(x, cotangents)
  return lax.map(one, (x, cotangents), batch_size=batch_size)


def tangent_roads(apply_fn: Apply, params: Params, x: Any) -> Any:
  """Return, for each leaf, the name of the road by which `tangent_kernel` finds its part.

  Args:
    apply_fn: see `tangent_kernel`.
    params: a pytree of arrays or of `jax.ShapeDtypeStruct`.
    x: examples, [n, ...]: only shapes and dtypes matter.

  Returns:
    A pytree like `params`: "product", "convolution" or "embedding" (from the layer's inputs and back-propagated
    outputs; joined by "+" if the leaf is used in several ways); "bias" or "scale" (a small gradient for each example
    and output, in the same pass); "vjp" (its use cannot be read: gradients are formed by VJPs, a few at a time if there
    are many); "none" (no output depends on it).
  """
  arguments.check_call(apply_fn, params, x)
  found = gradients.plan(apply_fn, params, x)
  return jax.tree.unflatten(jax.tree.structure(params), found.roads)
