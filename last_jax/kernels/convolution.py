"""A convolution whose backward pass is as fast in a loop as outside.

XLA on the CPU (jaxlib 0.10) has a slow path, tens of times slower, for convolutions in the body of a loop whose kernel
has its input features last: such is the derivative that JAX gives in the input. Transposed beforehand, the kernel takes
the fast path.
"""

import functools
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
  return _convolve(equation, inputs, kernel), (inputs, kernel)


def _backward(equation: Any, saved: tuple[Array, Array], errors: Array) -> tuple[Array, Array]:
  inputs, kernel = saved

  def transposed(errors: Array, kernel: Array) -> Array:
    def linear(value: Array) -> Array:
      return equation.primitive.bind(value, kernel, **equation.params)

    return jax.linear_transpose(linear, jax.ShapeDtypeStruct(inputs.shape, inputs.dtype))(errors)[0]

  closed = jax.make_jaxpr(transposed)(errors, kernel)
  values: dict[Any, Any] = dict(zip(closed.jaxpr.constvars, closed.consts, strict=True))
  values.update(zip(closed.jaxpr.invars, (errors, kernel), strict=True))
  for step in closed.jaxpr.eqns:
    operands = [atom.val if isinstance(atom, core.Literal) else values[atom] for atom in step.invars]
    bind = _features_last if step.primitive.name == "conv_general_dilated" else step.primitive.bind
    values[step.outvars[0]] = bind(*operands, **step.params)
  _, pull = jax.vjp(lambda kernel: equation.primitive.bind(inputs, kernel, **equation.params), kernel)
  return values[closed.jaxpr.outvars[0]], pull(errors)[0]  # The second is not computed unless it is used.


def _features_last(inputs: Array, kernel: Array, **params: Any) -> Array:
  """The same convolution, of a kernel [*window, input features, output features]."""
  numbers = params["dimension_numbers"]
  outputs, features, *window = numbers.rhs_spec
  count = len(window)
  params["dimension_numbers"] = numbers._replace(rhs_spec=(count + 1, count, *range(count)))
  return lax.conv_general_dilated_p.bind(inputs, kernel.transpose(*window, features, outputs), **params)


_convolve.defvjp(_forward, _backward)
