"""Operands of a place in one form: inputs [L, T, rows], errors [L, T, columns], parameters [L, rows, columns].

L blocks never meet (slices of a stacked leaf, groups of a convolution), all T positions share the parameters of a
block. In this form the gradient in the parameters is the sum over positions of inputs ⊗ errors, for products,
convolutions and look-ups alike.
"""

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from last_jax.kernels.places import CONVOLUTION, EMBEDDING, PRODUCT, Bias, Place, Step

Array = jax.Array


def arrange_inputs(place: Place, value: Array) -> Array:
  """Arrange the other operand of a place, [*loops, ...], as [L, T, rows], or for a look-up as indices [L, T]."""
  return _merge_loops(place, _over(place.loops, lambda operand: _inputs(place, operand))(value))


def arrange_errors(place: Place, value: Array) -> Array:
  """Arrange gradients in the tap of a place, [*loops, ...], as [L, T, columns]."""
  return _merge_loops(place, _over(place.loops, lambda tap: _errors(place, tap))(value))


def arrange_leaf(place: Place, leaf: Any) -> Any:
  """Arrange the entries of a leaf that a place uses, as [L, rows, columns]; NumPy arrays stay NumPy arrays."""
  arranged = _follow(place.steps, leaf, lambda value: _parameters(place, value))
  return arranged.reshape(-1, *arranged.shape[-2:])


def arrange_bias(place: Place, bias: Bias, leaf: Any) -> Any:
  """Arrange a leaf that is added to the output of a place, as [L, T, columns], without loops that share it."""
  arranged = _follow(bias.steps, leaf, lambda value: _errors(place, value))
  return arranged.reshape(-1, *arranged.shape[-2:])


def is_row(place: Place, bias: Bias, shape: tuple[int, ...]) -> bool:
  """Whether a bias is one more row of the parameters: the same at all positions, and every entry in one column."""
  slices = {step.output for step in bias.steps if step.equation is None}
  if place.kind == EMBEDDING or slices != {depth for depth, sliced in enumerate(place.sliced) if sliced}:
    return False
  entries = arrange_bias(place, bias, np.arange(math.prod(shape)).reshape(shape))
  return bool((entries == entries[:, :1]).all()) and np.unique(entries[:, 0]).size == entries[:, 0].size


def _follow(steps: Sequence[Step], value: Any, last: Callable[[Any], Any]) -> Any:
  """Take the steps and then the last one, for all slices of scans at once: [*scans, ...]."""
  for index, step in enumerate(steps):
    if step.equation is None:
      rest = functools.partial(_follow, steps[index + 1 :], last=last)
      return np.stack([rest(part) for part in value]) if isinstance(value, np.ndarray) else jax.vmap(rest)(value)
    value = _move(step, value)
  return last(value)


def _move(step: Step, value: Any) -> Any:
  """Take one step; with NumPy where values are, so that finding alignments compiles nothing."""
  equation = step.equation
  if not isinstance(value, np.ndarray):
    outputs = equation.primitive.bind(value, **equation.params)
    return outputs[step.output] if equation.primitive.multiple_results else outputs
  name, params = equation.primitive.name, equation.params
  if name == "transpose":
    return value.transpose(params["permutation"])
  if name == "rev":
    return np.flip(value, params["dimensions"])
  if name == "slice":
    strides = params["strides"] or (1,) * value.ndim
    return value[tuple(map(slice, params["start_indices"], params["limit_indices"], strides))]
  if name == "split":
    return np.split(value, np.cumsum(params["sizes"])[:-1], params["axis"])[step.output]
  if name == "broadcast_in_dim":
    sizes = [1] * len(params["shape"])
    for axis, size in zip(params["broadcast_dimensions"], value.shape, strict=True):
      sizes[axis] = size
    return np.broadcast_to(value.reshape(sizes), params["shape"])
  return value.reshape(equation.outvars[step.output].aval.shape)


def rows_and_columns(place: Place) -> tuple[int, int]:
  """Rows and columns of the parameter at a place."""
  operand = place.equation.invars[place.operand].aval
  _, rows, columns = jax.eval_shape(lambda value: _parameters(place, value), operand).shape
  return rows, columns


def _over(loops: Sequence[int], function: Callable[[Array], Array]) -> Callable[[Array], Array]:
  for _ in loops:
    function = jax.vmap(function)
  return function


def _merge_loops(place: Place, value: Array) -> Array:
  """Join loops that slice the leaf with the blocks, and those that share it with the positions."""
  count = len(place.loops)
  sliced = [axis for axis in range(count) if place.sliced[axis]]
  shared = [axis for axis in range(count) if not place.sliced[axis]]
  rest = tuple(range(count + 2, value.ndim))
  return _grouped(value, (*sliced, count), (*shared, count + 1), rest)[... if rest else (..., 0)]


def _grouped(value: Any, *groups: Sequence[int]) -> Any:
  """Transpose and reshape to one axis for each group of axes."""
  sizes = [math.prod(value.shape[axis] for axis in group) for group in groups]
  return value.transpose(tuple(itertools.chain(*groups))).reshape(sizes)


def _product_axes(place: Place) -> tuple[Sequence[Sequence[int]], ...]:
  """The axes that are (blocks, positions, rows), (blocks, positions, columns), (blocks, rows, columns)."""
  contracted, blocks = place.equation.params["dimension_numbers"]
  other = 1 - place.operand
  free = []
  for side, atom in enumerate(place.equation.invars):
    used = {*contracted[side], *blocks[side]}
    free.append([axis for axis in range(atom.aval.ndim) if axis not in used])
  count = len(blocks[0])
  left = list(range(count, count + len(free[0])))
  right = list(range(count + len(free[0]), count + len(free[0]) + len(free[1])))
  positions, columns = (right, left) if place.operand == 0 else (left, right)
  inputs = (blocks[other], free[other], contracted[other])
  parameters = (blocks[place.operand], contracted[place.operand], free[place.operand])
  return inputs, (range(count), positions, columns), parameters


def _inputs(place: Place, value: Array) -> Array:
  if place.kind == PRODUCT:
    return _grouped(value, *_product_axes(place)[0])
  if place.kind == CONVOLUTION:
    return _patches(place.equation, value)
  rows, mode = place.equation.invars[0].aval.shape[_row_axis(place)], place.equation.params["mode"]
  index = value.reshape(1, -1).astype(jnp.int32)
  if mode == lax.GatherScatterMode.CLIP:
    return jnp.clip(index, 0, rows - 1)
  return jnp.where((index >= 0) & (index < rows), index, -1)


def _errors(place: Place, value: Any) -> Any:
  if place.kind == PRODUCT:
    return _grouped(value, *_product_axes(place)[1])
  if place.kind == CONVOLUTION:
    batch, feature, *spatial = place.equation.params["dimension_numbers"].out_spec
    value = _grouped(value, (batch, *spatial), (feature,))
    groups = place.equation.params["feature_group_count"]
    return value.reshape(value.shape[0], groups, -1).swapaxes(0, 1)
  columns = place.equation.params["dimension_numbers"].offset_dims
  positions = [axis for axis in range(value.ndim) if axis not in columns]
  return _grouped(value, (), positions, columns)


def _parameters(place: Place, value: Any) -> Any:
  if place.kind == PRODUCT:
    return _grouped(value, *_product_axes(place)[2])
  if place.kind == CONVOLUTION:
    outputs, inputs, *window = place.equation.params["dimension_numbers"].rhs_spec
    value = _grouped(value, (*window, inputs), (outputs,))
    groups = place.equation.params["feature_group_count"]
    return value.reshape(value.shape[0], groups, -1).swapaxes(0, 1)
  axis = _row_axis(place)
  return _grouped(value, (), (axis,), [other for other in range(value.ndim) if other != axis])


def _row_axis(place: Place) -> int:
  (axis,) = place.equation.params["dimension_numbers"].start_index_map
  return axis


def _patches(equation: Any, value: Array) -> Array:
  """The entries under the window of a convolution at every position, [groups, positions, window * features]."""
  params, groups = equation.params, equation.params["feature_group_count"]
  numbers = params["dimension_numbers"]
  batch, feature, *spatial = numbers.lhs_spec
  value = jnp.transpose(value, (batch, *spatial, feature))
  edges = [(low, high, inner - 1) for (low, high), inner in zip(params["padding"], params["lhs_dilation"], strict=True)]
  value = lax.pad(value, jnp.zeros((), value.dtype), [(0, 0, 0), *edges, (0, 0, 0)])
  for axis in range(len(spatial)):
    window = equation.invars[1].aval.shape[numbers.rhs_spec[2 + axis]]
    count = equation.outvars[0].aval.shape[numbers.out_spec[2 + axis]]
    stride, dilation = params["window_strides"][axis], params["rhs_dilation"][axis]
    starts = [offset * dilation for offset in range(window)]
    parts = [lax.slice_in_dim(value, at, at + (count - 1) * stride + 1, stride, axis + 1) for at in starts]
    value = jnp.stack(parts, axis=-2)  # [batch, positions..., offsets so far..., features]
  value = value.reshape(*value.shape[:-1], groups, -1)
  positions, last = range(1 + len(spatial)), value.ndim - 1
  return _grouped(value, (last - 1,), positions, (*range(len(positions), last - 1), last))


# --- Alignment: places of one leaf whose gradients may be added.


def align(places: Sequence[Place], shape: tuple[int, ...]) -> list[list[tuple[Place, bool]]] | None:
  """Sort the places of a leaf into parts that share no entry, each with whether it uses its part transposed.

  Args:
    places: all of one leaf.
    shape: of the leaf.

  Returns:
    None if two places share some entries, and not all in the same arrangement or its transpose.
  """
  if len({_key(place) for place in places}) == 1:
    return [[(place, False) for place in places]]
  places = sorted(places, key=lambda place: place.kind != EMBEDDING)  # Look-ups first: their rows are those of W.
  entries = np.arange(math.prod(shape)).reshape(shape)
  maps = [arrange_leaf(place, entries) for place in places]
  parts: list[tuple[np.ndarray, list[tuple[Place, bool]]]] = []
  for place, entries_used in zip(places, maps, strict=True):
    for first, members in parts:
      if np.array_equal(entries_used, first):
        members.append((place, False))
        break
      if place.kind != EMBEDDING and np.array_equal(entries_used.swapaxes(1, 2), first):
        members.append((place, True))
        break
      if np.intersect1d(entries_used, first).size:
        return None
    else:
      parts.append((entries_used, [(place, False)]))
  return [members for _, members in parts]


def _key(place: Place) -> tuple[Any, ...]:
  """The same for places that arrange a leaf in the same way."""
  params = place.equation.params
  how: Any = None
  if place.kind == PRODUCT:
    how = _product_axes(place)[2]
  elif place.kind == CONVOLUTION:
    how = (params["dimension_numbers"].rhs_spec, params["feature_group_count"])
  elif place.kind == EMBEDDING:
    how = _row_axis(place)
  return tuple(step.key for step in place.steps), place.kind, str(how)
