"""The functions f(w, x) that learners fit. A model is static: it says how to make parameters and how to use them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from last_jax.types import Array, Key, Params

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
  "relu": jax.nn.relu,
  "leaky_relu": lambda z: jax.nn.leaky_relu(z, 0.01),
  "tanh": jnp.tanh,
}


@functools.lru_cache(maxsize=256)
def param_shapes(model: "Model") -> Params:
  """The parameters' tree, with shapes in place of arrays."""
  return jax.eval_shape(model.init, jax.random.key(0))


@functools.lru_cache(maxsize=256)
def count_outputs(model: "Model", shape: tuple[int, ...], dtype: Any) -> int:
  """K, for inputs of this shape and dtype."""
  known = getattr(model, "num_outputs", None)
  if known is not None:
    return known
  # With parameters in the inputs' dtype, whatever `init` makes: the two may have been given in float32 while JAX has
  # float64 enabled, and some operations (convolutions) do not mix them.
  params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), param_shapes(model))
  return jax.eval_shape(model.apply, params, jax.ShapeDtypeStruct((1, *shape), dtype)).shape[1]


class Model(Protocol):
  """Outputs from parameters and a batch of inputs."""

  def __hash__(self) -> int:
    """Models are static: equal ones share what is compiled."""

  def init(self, key: Key) -> Params:
    """Random parameters."""

  def apply(self, params: Params, x: Array) -> Array:
    """Outputs, `[m, ...] -> [m, K]`."""


@dataclasses.dataclass(frozen=True)
class Linear:
  """z = x W + b, with `params = {"weights": [d, K], "bias": [K]}` (no "bias" without one)."""

  num_features: int
  num_outputs: int
  bias: bool

  def init(self, key: Key) -> Params:
    """Weights of variance 1/d, no bias."""
    scale = self.num_features**-0.5
    params = {"weights": scale * jax.random.normal(key, (self.num_features, self.num_outputs))}
    return params | {"bias": jnp.zeros(self.num_outputs)} if self.bias else params

  def apply(self, params: Params, x: Array) -> Array:
    """`[m, d] -> [m, K]`."""
    # x W, weights first: vmapped over students that is one product [students K, d] x [d, m], and nothing is transposed.
    outputs = (params["weights"].T @ x.T).T
    return outputs + params["bias"][None] if self.bias else outputs


@dataclasses.dataclass(frozen=True)
class Mlp:
  """Fully connected layers; `params = {"layer_0": {"weights": [24, 32], "bias": [32]}, "layer_1": ...}`."""

  widths: tuple[int, ...]
  activation: str | Callable[[Array], Array]
  bias: bool

  @property
  def num_features(self) -> int:
    """The width of the input."""
    return self.widths[0]

  @property
  def num_outputs(self) -> int:
    """The width of the output."""
    return self.widths[-1]

  def init(self, key: Key) -> Params:
    """Weights of variance 2 / fan-in, no biases."""
    params = {}
    keys = jax.random.split(key, len(self.widths) - 1)
    for i, (fan_in, fan_out) in enumerate(zip(self.widths[:-1], self.widths[1:], strict=True)):
      layer = {"weights": (2.0 / fan_in) ** 0.5 * jax.random.normal(keys[i], (fan_in, fan_out))}
      params[f"layer_{i}"] = layer | {"bias": jnp.zeros(fan_out)} if self.bias else layer
    return params

  def apply(self, params: Params, x: Array) -> Array:
    """`[m, d] -> [m, K]`."""
    activation = ACTIVATIONS[self.activation] if isinstance(self.activation, str) else self.activation
    for i in range(len(self.widths) - 1):
      layer = params[f"layer_{i}"]
      x = x @ layer["weights"]
      x = x + layer["bias"][None] if self.bias else x
      x = activation(x) if i < len(self.widths) - 2 else x
    return x


@dataclasses.dataclass(frozen=True)
class Custom:
  """A user's own pair of functions."""

  init_fn: Callable[[Key], Params]
  apply_fn: Callable[[Params, Array], Array]

  def init(self, key: Key) -> Params:
    """Whatever the user's function makes."""
    return self.init_fn(key)

  def apply(self, params: Params, x: Array) -> Any:
    """`[m, ...] -> [m, K]`; one output per example may come without its axis."""
    outputs = self.apply_fn(params, x)
    return outputs[:, None] if outputs.ndim == 1 else outputs
