"""Gradients of single examples in factored form, and their inner products.

At a place where a leaf enters as z = h W, the gradient of an output in W is the sum over positions t of h_t d_tᵀ, with
d the gradient of that output in z. Gradients of all examples and outputs are kept as these factors. Inner products
follow from them: for one position as (h hᵀ) ⊙ (d dᵀ); for many from pairs of positions, or by forming gradients a few
rows of W at a time, whichever takes fewer operations. No array is larger than the factors and the result. A bias,
z = h W + b, is a row of W whose input is 1.

Sizes: n examples, R outputs, L blocks, T positions, W [L, rows, columns]; see `arrangement`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Array = jax.Array
_SMALL = 2**19  # Arrays of this many entries are not divided: 2 MiB in float32.
_PAIRS = 2  # Time of an operation on pairs of positions, relative to one of a large product of matrices.


def _static(**settings: Any) -> Any:
  return dataclasses.field(metadata={"static": True}, **settings)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Factor:
  """The gradients of n examples' R outputs in one operand: the sum over positions of inputs ⊗ errors.

  Attributes:
    inputs: the other operand, [n, L, T, rows]; or integers [n, L, T], for rows of an identity matrix (-1: a zero row).
    errors: gradients in the equation's output, [n, R, L, T, columns].
    rows: the number of rows.
    transposed: whether the operand is Wᵀ; then rows and columns are those of Wᵀ.
  """

  inputs: Array
  errors: Array
  rows: int = _static()
  transposed: bool = _static(default=False)

  @property
  def is_lookup(self) -> bool:
    """Whether inputs are indices of rows."""
    return self.inputs.ndim == 3


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Layer:
  """The gradients in one leaf, or in a part of it: the sum of its factors.

  Attributes:
    factors: those of W, and of Wᵀ.
    weight: a factor of inner products, [], or one for each entry, [L, rows, columns]; None: 1.
    bias_weight: the like for the bias, [] or [L, 1, columns].
    bias: whether there is a bias; then there is one factor.
  """

  factors: tuple[Factor, ...]
  weight: Array | None = None
  bias_weight: Array | None = None
  bias: bool = _static(default=False)


def inner_products(layer: Layer, other: Layer, small: int = _SMALL) -> Array:
  """Inner products of the gradients of all examples and outputs of two batches.

  Args:
    layer: gradients of n examples and R outputs; its weight is the one that counts.
    other: gradients in the same leaf, of n2 examples and R2 outputs; may be `layer` itself.
    small: arrays of this many entries are not divided.

  Returns:
    [n, R, n2, R2], in float32 or wider.
  """
  own = other is layer
  layer = _joined(layer)
  other = layer if own else _joined(other)
  if len(layer.factors) > 1 or any(
    weight is not None and weight.size > 1 for weight in (layer.weight, layer.bias_weight)
  ):
    return _formed(layer, other, small)
  first, second = layer.factors[0], other.factors[0]
  n, outputs, blocks, positions, columns = first.errors.shape
  n2, outputs2, _, positions2, _ = second.errors.shape
  if blocks == positions == positions2 == 1 and not first.is_lookup:
    return _one_position(layer, second)
  size = blocks * first.rows * columns
  formed = size * (n * outputs * positions + n2 * outputs2 * positions2 + n * outputs * n2 * outputs2)
  matching = positions2 * ((1 if first.is_lookup else first.rows) + outputs2 * columns)
  pairs = n * n2 * blocks * positions * (matching + outputs * outputs2 * columns)
  return _formed(layer, other, small) if formed <= _PAIRS * pairs else _pairs(layer, second, small)


def own_inner_products(layer: Layer) -> Array:
  """Inner products of the gradients of the outputs of each example, [n, R, R]."""
  small = max(1, _SMALL // layer.factors[0].errors.shape[0])

  def one(factors: tuple[Factor, ...]) -> Array:
    alone = dataclasses.replace(layer, factors=jax.tree.map(lambda value: value[None], factors))
    return inner_products(alone, alone, small)[0, :, 0]

  return jax.vmap(one)(layer.factors)


def _joined(layer: Layer) -> Layer:
  """The same layer with one factor, over the positions of all, if all are inputs to the same product."""
  if len(layer.factors) == 1 or any(factor.transposed or factor.is_lookup for factor in layer.factors):
    return layer
  inputs = jnp.concatenate([factor.inputs for factor in layer.factors], axis=2)
  errors = jnp.concatenate([factor.errors for factor in layer.factors], axis=3)
  return dataclasses.replace(layer, factors=(Factor(inputs, errors, layer.factors[0].rows),))


def sum_of_products(subscripts: str, *operands: Array) -> Array:
  """A sum of products, accumulated in float32 or wider."""
  dtype = functools.reduce(jnp.promote_types, (operand.dtype for operand in operands), jnp.float32)
  return jnp.einsum(subscripts, *(operand.astype(dtype) for operand in operands), precision=lax.Precision.HIGHEST)


def _matched(layer: Layer, products: Array) -> Array:
  """Inner products of inputs with their weight, and the bias's part."""
  if layer.weight is not None:
    products = layer.weight.reshape(()) * products
  if layer.bias:
    products = products + (1 if layer.bias_weight is None else layer.bias_weight.reshape(()))
  return products


def _one_position(layer: Layer, second: Factor) -> Array:
  """(h hᵀ) ⊙ (d dᵀ): one block, one position."""
  first = layer.factors[0]
  inputs = _matched(layer, sum_of_products("ia,ja->ij", first.inputs[:, 0, 0], second.inputs[:, 0, 0]))
  errors = sum_of_products("irb,jsb->irjs", first.errors[:, :, 0, 0], second.errors[:, :, 0, 0])
  return inputs[:, None, :, None] * errors


def _pairs(layer: Layer, second: Factor, small: int) -> Array:
  """Sum over all pairs of positions, for a few examples of the first batch at a time."""
  first = layer.factors[0]
  dtype = jnp.promote_types(jnp.result_type(first.errors, second.errors), jnp.float32)
  by_columns = second.errors.swapaxes(3, 4)  # Positions last: no product below has to be transposed.

  def one(inputs: Array, errors: Array) -> Array:  # [L, T, rows] or [L, T]; [R, L, columns, T]
    if first.is_lookup:
      same = second.inputs[:, :, :, None] == inputs[None, :, None, :]
      products = (same & (inputs >= 0)[None, :, None, :]).astype(dtype)
    else:
      products = sum_of_products("jlua,lta->jlut", second.inputs, inputs)
    matched = sum_of_products("jslbu,jlut->jslbt", by_columns, _matched(layer, products))
    return sum_of_products("rlbt,jslbt->rjs", errors, matched)

  *_, blocks, positions, columns = first.errors.shape
  n2, outputs2, _, positions2, _ = second.errors.shape
  most = max(small, first.errors.size, second.errors.size, second.inputs.size)
  each = n2 * blocks * positions * max(outputs2 * columns, positions2)
  pairs = (first.inputs, first.errors.swapaxes(3, 4))
  return lax.map(lambda pair: one(*pair), pairs, batch_size=max(1, most // each))


def _formed(layer: Layer, other: Layer, small: int) -> Array:
  """Form gradients, as many rows of W at a time as the sizes of the factors and of the result allow."""
  own = other is layer
  layer = _with_bias_as_row(layer)
  other = layer if own else _with_bias_as_row(other)
  n, outputs, blocks = layer.factors[0].errors.shape[:3]
  n2, outputs2 = other.factors[0].errors.shape[:2]
  rows, columns = layer.factors[0].rows, layer.factors[0].errors.shape[-1]
  most = max(small, n * outputs * n2 * outputs2, *(f.errors.size for f in (*layer.factors, *other.factors)))
  each = max(n * outputs, n2 * outputs2) * blocks * columns
  chunks = math.ceil(rows / max(1, most // each))
  size = math.ceil(rows / chunks)
  gradients = _rows_of_gradients(layer, chunks * size, size)
  others = gradients if own else _rows_of_gradients(other, chunks * size, size)
  weight = layer.weight
  each_entry = None if weight is None or weight.size == 1 else _padded(weight, 1, chunks * size)

  def part(chunk: Any) -> Array:
    left = gradients(chunk)
    right = left if own else others(chunk)
    if each_entry is not None:
      factor = lax.dynamic_slice_in_dim(each_entry, chunk * size, size, axis=1)
      left = left * factor.swapaxes(1, 2)[None, None]
    flat = sum_of_products("ip,jp->ij", left.reshape(n * outputs, -1), right.reshape(n2 * outputs2, -1))
    return flat.reshape(n, outputs, n2, outputs2)

  if chunks == 1:
    block = part(0)
  else:
    zeros = jnp.zeros_like(jax.eval_shape(part, 0))
    block, _ = lax.scan(lambda total, chunk: (total + part(chunk), None), zeros, jnp.arange(chunks))
  return block if weight is None or each_entry is not None else weight.reshape(()) * block


def _with_bias_as_row(layer: Layer) -> Layer:
  """The same layer, with the bias as the last row of W, and a weight for each row if any is given."""
  if not layer.bias:
    return layer
  (factor,) = layer.factors
  ones = jnp.ones((*factor.inputs.shape[:3], 1), factor.inputs.dtype)
  factor = Factor(jnp.concatenate([factor.inputs, ones], axis=3), factor.errors, factor.rows + 1)
  weight = layer.weight
  if weight is not None or layer.bias_weight is not None:
    parts = [jnp.ones(()) if part is None else part for part in (weight, layer.bias_weight)]
    parts = [part if part.ndim else part.reshape(1, 1, 1) for part in parts]
    blocks, columns = (max(part.shape[axis] for part in parts) for axis in (0, 2))
    rows = (factor.rows - 1, 1)
    parts = [jnp.broadcast_to(part, (blocks, size, columns)) for part, size in zip(parts, rows, strict=True)]
    weight = jnp.concatenate(parts, axis=1)
  return Layer((factor,), weight)


def _rows_of_gradients(layer: Layer, rows: int, size: int) -> Callable[[Any], Array]:
  """A function from the index of a chunk of `size` rows to gradients, [n, R, L, columns, size]."""
  padded = []
  for factor in layer.factors:
    inputs, errors = factor.inputs, factor.errors
    if factor.transposed:
      errors = _padded(errors, 4, rows)
    elif not factor.is_lookup:
      inputs = _padded(inputs, 3, rows)
    padded.append((factor, inputs, errors.swapaxes(3, 4)))  # Positions last: the products are not transposed.

  def gradients(chunk: Any) -> Array:
    parts = []
    for factor, inputs, errors in padded:
      if factor.transposed:
        errors = lax.dynamic_slice_in_dim(errors, chunk * size, size, axis=3)
        parts.append(sum_of_products("nrlat,nltb->nrlba", errors, inputs))
      elif factor.is_lookup:
        hot = jax.nn.one_hot(inputs - chunk * size, size, dtype=errors.dtype)
        # A zero row stays one: its index, -1, is that of a row in the chunk before the first.
        parts.append(sum_of_products("nrlbt,nlta->nrlba", errors, hot * (inputs >= 0)[..., None]))
      else:
        inputs = lax.dynamic_slice_in_dim(inputs, chunk * size, size, axis=3)
        parts.append(sum_of_products("nrlbt,nlta->nrlba", errors, inputs))
    return functools.reduce(jnp.add, parts)

  return gradients


def _padded(value: Array, axis: int, size: int) -> Array:
  """Zeros appended along an axis, up to a size."""
  edges = [(0, 0)] * value.ndim
  edges[axis] = (0, size - value.shape[axis])
  return jnp.pad(value, edges) if edges[axis][1] else value
