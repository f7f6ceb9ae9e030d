"""Tangent kernels of networks from the inputs and back-propagated outputs of their layers."""

from last_jax.kernels.convolution import fast_in_loops
from last_jax.kernels.gradients import Gradients, factored_gradients
from last_jax.kernels.tangent import squared_gradient_norms, tangent_kernel, tangent_product, tangent_roads

__all__ = [
  "Gradients",
  "factored_gradients",
  "fast_in_loops",
  "squared_gradient_norms",
  "tangent_kernel",
  "tangent_product",
  "tangent_roads",
]
