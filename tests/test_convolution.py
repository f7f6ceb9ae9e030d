"""Convolutions whose gradient is fast in loops: the same numbers as JAX's own."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from last_jax.kernels import fast_in_loops

# Shapes of inputs and kernel, and settings.
CASES = {
  "plain": ((2, 6, 7, 3), (3, 3, 3, 4), {"window_strides": (1, 1), "padding": "SAME"}),
  "stride": ((2, 6, 7, 3), (3, 2, 3, 4), {"window_strides": (2, 3), "padding": "VALID"}),
  "dilation": ((2, 8, 8, 3), (3, 3, 3, 4),
               {"window_strides": (1, 2), "padding": ((2, 1), (0, 3)), "rhs_dilation": (2, 1)}),
  "transposed": ((2, 4, 4, 3), (3, 3, 3, 2),
                 {"window_strides": (1, 1), "padding": ((2, 2), (1, 2)), "lhs_dilation": (2, 2)}),
  "channels first": ((2, 3, 6, 7), (4, 3, 3, 3),
                     {"window_strides": (1, 1), "padding": "SAME", "dimension_numbers": ("NCHW", "OIHW", "NCHW")}),
  "one dimension": ((2, 9, 3), (4, 3, 5),
                    {"window_strides": (2,), "padding": "SAME", "dimension_numbers": ("NWC", "WIO", "NWC")}),
  "groups": ((2, 6, 6, 4), (3, 3, 2, 4), {"window_strides": (1, 1), "padding": "SAME", "feature_group_count": 2}),
}  # fmt: skip


def draw(name):
  shape, window, settings = CASES[name]
  settings = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")} | settings
  random = np.random.default_rng(0)
  x, kernel, hidden = (jnp.asarray(random.normal(size=size)) for size in (shape, window, (5,)))

  def loss(params, x):
    outputs = jnp.tanh(lax.conv_general_dilated(x * params["scale"][0], params["kernel"], **settings))
    return {"value": jnp.sum(outputs**2) + jnp.sum(params["scale"] ** 2)}

  return loss, {"kernel": kernel, "scale": hidden}, x


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_jax(x64, name):
  loss, params, x = draw(name)
  fast = fast_in_loops(loss)
  np.testing.assert_allclose(fast(params, x)["value"], loss(params, x)["value"], rtol=1e-12)
  expected = jax.grad(lambda *both: loss(*both)["value"], argnums=(0, 1))(params, x)
  found = jax.grad(lambda *both: fast(*both)["value"], argnums=(0, 1))(params, x)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12), found, expected)


@pytest.mark.parametrize("name", ["plain", "channels first"])
@pytest.mark.slow
def test_gradients_have_derivatives_in_both_modes_and_batches(x64, name):
  """Teachers that plan differentiate through steps forwards, training backwards; students are vmapped."""
  loss, params, x = draw(name)

  def gradient(function, params):
    return jax.grad(lambda params: function(params, x)["value"])(params)

  def along(function):
    return jax.jvp(lambda params: gradient(function, params), (params,), (params,))[1]

  def twice(function):
    return jax.grad(lambda p: sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(gradient(function, p))))(params)

  def batched(function):
    return jax.vmap(lambda scale: gradient(function, params | {"scale": scale * params["scale"]}))(jnp.arange(3.0))

  for derive in (along, twice, batched):
    found, expected = derive(fast_in_loops(loss)), derive(loss)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-10), found, expected)


def test_functions_without_convolutions_are_left_alone():
  def loss(params):
    return jnp.sum(jnp.tanh(params) ** 2)

  params = jnp.arange(3.0)
  assert str(jax.make_jaxpr(fast_in_loops(loss))(params)) == str(jax.make_jaxpr(loss)(params))
