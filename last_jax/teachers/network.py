"""The policy network: a chain of layers, each a function of the weights and of what the layer before it returned.

Who keeps what every layer returned needs no second pass through the network for a gradient: `training/deferred.py`.
Another architecture is another chain. Imported when a policy is made: nothing else needs Flax.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from last_jax.base import Array, Key, Params
from last_jax.teachers.features import Columns, Inputs

# (weights, Inputs or what the layer before returned) -> [..., m, width], each row a function of its own.
Layer = Callable[[Params, Any], Array]


class _Weights(nn.Module):
  """The weights of `Network`: Flax names them, and draws them by their names."""

  widths: tuple[int, ...]
  num_own: int
  num_shared: int
  dtype: Any

  @nn.compact
  def __call__(self) -> None:
    """Declare all weights."""
    fans_in = (self.num_own + self.num_shared, *self.widths)
    last = len(self.widths) - 1

    def declare(i: int, name: str, rows: int, bias: bool = True) -> None:
      # The last layer starts small: a new policy is about uniform, and a free label about the truth.
      init = nn.initializers.normal((0.01 if i == last else 1.0) * fans_in[i] ** -0.5)
      dense = nn.Dense(self.widths[i], use_bias=bias, kernel_init=init, param_dtype=self.dtype, name=name)
      dense(jnp.zeros((1, rows), self.dtype))

    declare(0, "own", self.num_own)
    if self.num_shared:
      declare(0, "shared", self.num_shared, bias=False)
    for i in range(1, len(self.widths)):
      declare(i, f"layer_{i}", self.widths[i - 1])


@dataclasses.dataclass(frozen=True)
class Network:
  """input - hidden... - output, with ReLU.

  The first layer is one layer over own and shared features together, but shared ones, of which there may be thousands,
  pass through it once for all examples of a batch.
  """

  hidden: tuple[int, ...]
  width: int

  @property
  def widths(self) -> tuple[int, ...]:
    """The length of what every layer returns."""
    return (*self.hidden, self.width)

  def init(self, key: Key, num_own: int, num_shared: int, dtype: Any) -> Params:
    """Return random weights for this many own and shared inputs."""
    return _Weights(self.widths, num_own, num_shared, dtype).init(key)["params"]

  def layers(self) -> tuple[Layer, ...]:
    """Return the layers; the last one returns `[..., m, width]`."""
    return (_first, *(functools.partial(_later, name=f"layer_{i}") for i in range(1, len(self.hidden) + 1)))

  def restrict(self, weights: Params, columns: Columns, *, bias: bool) -> Params:
    """Return weights for some columns of the inputs: in these the first layer is linear.

    Args:
      weights: for all.
      columns: of own and of shared inputs.
      bias: whether the first layer has a bias; otherwise it is zero.
    """

    def rows(kernel: Array, slices: Sequence[slice]) -> Array:
      return jnp.concatenate([kernel[:0], *(kernel[rows] for rows in slices)])

    first = dict(weights["own"], kernel=rows(weights["own"]["kernel"], columns.own))
    if not bias:
      first["bias"] = jnp.zeros_like(first["bias"])
    restricted = {**weights, "own": first}
    if "shared" in weights:
      restricted["shared"] = {"kernel": rows(weights["shared"]["kernel"], columns.shared)}
    return restricted

  def apply(self, weights: Params, inputs: Inputs) -> Array:
    """`[..., m, own], [..., shared] -> [..., m, width]`."""
    value: Any = inputs
    for layer in self.layers():
      value = layer(weights, value)
    return value


def _first(weights: Params, inputs: Inputs) -> Array:
  own, shared = inputs
  z = _add(own @ weights["own"]["kernel"], weights["own"]["bias"])
  return _add(z, (shared @ weights["shared"]["kernel"])[..., None, :]) if shared.shape[-1] else z


def _later(weights: Params, z: Array, *, name: str) -> Array:
  return _add(jax.nn.relu(z) @ weights[name]["kernel"], weights[name]["bias"])


def _add(z: Array, more: Array) -> Array:
  """Add what is the same along leading axes."""
  return z + more[(None,) * (z.ndim - more.ndim)]
