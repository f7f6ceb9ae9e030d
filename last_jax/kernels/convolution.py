"""A convolution whose backward pass is as fast in a loop as outside.

XLA on the CPU (jaxlib 0.10) has a slow path, tens of times slower, for convolutions in the body of a loop unless their
arrays are [batch, *space, features] and their kernel [*window, inputs, outputs]. The derivatives that JAX gives are
not: transposed beforehand, they take the fast path.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.extend import core

Array = jax.Array


def convolve(equation: Any, inputs: Array, kernel: Array) -> Array:
  """Evaluate an equation that is a convolution."""
  return _convolve(equation, inputs, kernel)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _convolve(equation: Any, inputs: Array, kernel: Array) -> Array:
  return equation.primitive.bind(inputs, kernel, **equation.params)


def _forward(equation: Any, inputs: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
  # Not `_convolve`, which has no derivative in forward mode: so the gradient has one.
  return equation.primitive.bind(inputs, kernel, **equation.params), (inputs, kernel)


def _backward(equation: Any, saved: tuple[Array, Array], errors: Array) -> tuple[Array, Array]:
  inputs, kernel = saved

  def convolve_with(kernel: Array) -> Callable[[Array], Array]:
    return lambda inputs: equation.primitive.bind(inputs, kernel, **equation.params)

  def convolve_over(inputs: Array) -> Callable[[Array], Array]:
    return lambda kernel: equation.primitive.bind(inputs, kernel, **equation.params)

  # Whichever of the two is not used is not computed.
  return _transposed(convolve_with, kernel, inputs, errors), _transposed(convolve_over, inputs, kernel, errors)


def _transposed(
  linear_in: Callable[[Array], Callable[[Array], Array]], fixed: Array, like: Array, errors: Array
) -> Array:
  """Return the transpose of `linear_in(fixed)` applied to errors, an array as `like`, by canonical convolutions."""

  def transpose(errors: Array, fixed: Array) -> Array:
    return jax.linear_transpose(linear_in(fixed), jax.ShapeDtypeStruct(like.shape, like.dtype))(errors)[0]

  closed = jax.make_jaxpr(transpose)(errors, fixed)
  values: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
  values.update(zip(closed.jaxpr.invars, (errors, fixed), strict=True))
  for step in closed.jaxpr.eqns:
    operands = [atom.val if isinstance(atom, core.Literal) else values[atom] for atom in step.invars]
    canonical = step.primitive.name == "conv_general_dilated"
    outputs = [_canonical(*operands, **step.params)] if canonical else bind(step, operands)
    values.update(zip(step.outvars, outputs, strict=True))
  return values[closed.jaxpr.outvars[0]]


def _canonical(inputs: Array, kernel: Array, **params: Any) -> Array:
  """Return the same convolution, of arrays [batch, *space, features] with a kernel [*window, inputs, outputs]."""
  numbers = params["dimension_numbers"]
  (batch, features, *space), (outputs, channels, *window) = numbers.lhs_spec, numbers.rhs_spec
  last = len(space) + 1
  image = (0, last, *range(1, last))
  params["dimension_numbers"] = lax.ConvDimensionNumbers(image, (last, last - 1, *range(last - 1)), image)
  result = lax.conv_general_dilated_p.bind(
    inputs.transpose(batch, *space, features), kernel.transpose(*window, channels, outputs), **params
  )
  # From [batch, *space, features] to the places that the original has them in.
  places = (numbers.out_spec[0], *numbers.out_spec[2:], numbers.out_spec[1])
  return result.transpose([places.index(axis) for axis in range(last + 1)])


_convolve.defvjp(_forward, _backward)


def fast_in_loops(function: Callable[..., Any]) -> Callable[..., Any]:
  """Return the function with such convolutions, for its gradient in reverse mode. Without convolutions, itself.

  Those inside of inner loops and of functions with their own derivatives are left as they are.
  """

  def evaluate(*arguments: Any) -> Any:
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*arguments)
    if not any(map(_replaceable, closed.jaxpr.eqns)):
      return function(*arguments)
    values: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(closed.jaxpr.invars, jax.tree.leaves(arguments), strict=True))

    def read(atom: Any) -> Any:
      return atom.val if isinstance(atom, core.Literal) else values[atom]

    for equation in closed.jaxpr.eqns:
      operands = list(map(read, equation.invars))
      outputs = [convolve(equation, *operands)] if _replaceable(equation) else bind(equation, operands)
      values.update(zip(equation.outvars, outputs, strict=True))
    return jax.tree.unflatten(jax.tree.structure(shape), list(map(read, closed.jaxpr.outvars)))

  return evaluate


def _replaceable(equation: Any) -> bool:
  return equation.primitive.name == "conv_general_dilated" and equation.params["feature_group_count"] == 1


def bind(equation: Any, operands: list[Any]) -> list[Any]:
  """Evaluate an equation, as it is."""
  found = equation.primitive.get_bind_params(equation.params)
  functions, params = found if isinstance(found, tuple) else ((), found)  # Older versions of JAX return a pair.
  outputs = equation.primitive.bind(*functions, *operands, **params)
  return list(outputs) if equation.primitive.multiple_results else [outputs]
