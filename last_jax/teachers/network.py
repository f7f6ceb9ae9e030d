"""The policy network, in Flax. Imported when a policy is made: nothing else needs Flax."""

import functools

import flax.linen as nn
import jax

from last_jax.base import Array
from last_jax.teachers.features import Inputs


class Network(nn.Module):
  """input - hidden... - output, with ReLU.

  The first layer is one layer over own and shared features together, but shared ones, of which there may be thousands,
  pass through it once for all examples of a batch.
  """

  hidden: tuple[int, ...]
  width: int

  @nn.compact
  def __call__(self, inputs: Inputs) -> Array:
    """`[m, own], [shared] -> [m, width]`."""
    own, shared = inputs
    widths = (*self.hidden, self.width)
    last = len(widths) - 1

    def dense(i: int, fan_in: int, name: str, bias: bool = True) -> nn.Dense:
      # The last layer starts small: a new policy is about uniform, and a free label about the truth.
      scale = (0.01 if i == last else 1.0) * fan_in**-0.5
      init = nn.initializers.normal(scale)
      return nn.Dense(widths[i], use_bias=bias, kernel_init=init, param_dtype=own.dtype, name=name)

    first = functools.partial(dense, 0, own.shape[-1] + shared.shape[-1])
    z = first("own")(own)
    if shared.shape[-1]:
      z = z + first("shared", bias=False)(shared)[None]
    for i in range(1, len(widths)):
      z = dense(i, widths[i - 1], f"layer_{i}")(jax.nn.relu(z))
    return z
