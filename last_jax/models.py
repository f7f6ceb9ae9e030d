"""The functions f(w, x) that learners fit. A model is static: it initialises parameters and applies them."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from last_jax.base import Array, Key, Params
from last_jax.identity import Structural

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
  "relu": jax.nn.relu,
  "leaky_relu": lambda z: jax.nn.leaky_relu(z, 0.01),
  "tanh": jnp.tanh,
}


class Model(Protocol):
  """Outputs from parameters and a batch of inputs. Hashable: equal models share compiled programs."""

  @property
  def num_features(self) -> int | None:
    """The length of an input vector; None: inputs of any shape that `apply` accepts."""

  @property
  def num_outputs(self) -> int | None:
    """K; None: as `apply` returns."""

  def __hash__(self) -> int: ...

  def init(self, key: Key) -> Params:
    """Return random parameters."""

  def apply(self, params: Params, x: Array) -> Array:
    """Return outputs, `[m, ...] -> [m, K]`."""


def param_shapes(model: Model) -> Params:
  """Return the parameters' tree, with a `jax.ShapeDtypeStruct` in place of each array."""
  return _param_shapes(model, jax.dtypes.canonicalize_dtype(float))


@functools.lru_cache(maxsize=256)
def _param_shapes(model: Model, _: Any) -> Params:  # Keyed on the width of floats, which `init` follows.
  return jax.eval_shape(model.init, jax.random.key(0))


@functools.lru_cache(maxsize=256)
def count_outputs(model: Model, shape: tuple[int, ...], dtype: Any) -> int:
  """Return K, for inputs of this shape and dtype."""
  if model.num_outputs is not None:
    return model.num_outputs
  # Parameters in the dtype of the inputs: with float64 enabled, `init` may make float64 while the inputs are float32,
  # which some operations (convolutions) do not mix.
  params = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), param_shapes(model))
  return jax.eval_shape(model.apply, params, jax.ShapeDtypeStruct((1, *shape), dtype)).shape[1]


def check_returned(name: str, value: Any, *shapes: tuple[int | None, ...]) -> Any:
  """Return the value of a user's function. Raise unless it is a floating point array of one of these shapes.

  Args:
    name: of the function, for the message.
    value: what it returned.
    *shapes: those allowed; None is any length, K in the message.
  """
  allowed = " or ".join("[" + ", ".join("K" if size is None else str(size) for size in shape) + "]" for shape in shapes)
  wanted = f"{name} must return a floating point array of shape {allowed}"
  if not isinstance(value, (float, np.floating, np.ndarray, jax.Array)):
    raise TypeError(f"{wanted}, but it returned a {type(value).__name__}")
  found, dtype = jnp.shape(value), jnp.result_type(value)
  fits = any(
    len(found) == len(shape) and all(size in (None, length) for size, length in zip(shape, found, strict=True))
    for shape in shapes
  )
  if not fits or not jnp.issubdtype(dtype, jnp.floating):
    raise ValueError(f"{wanted}, but it returned {dtype} of shape {list(found)}")
  return value


@dataclasses.dataclass(frozen=True)
class Linear:
  """z = x W + b, with `params = {"weights": [d, K], "bias": [K]}` (no "bias" without one)."""

  num_features: int
  num_outputs: int
  bias: bool

  def init(self, key: Key) -> Params:
    """Return weights of variance 1/d, and a bias of zero."""
    scale = self.num_features**-0.5
    params = {"weights": scale * jax.random.normal(key, (self.num_features, self.num_outputs))}
    return params | {"bias": jnp.zeros(self.num_outputs)} if self.bias else params

  def apply(self, params: Params, x: Array) -> Array:
    """Return outputs, `[m, d] -> [m, K]`."""
    # x W, weights first: vmapped over students that is one product [students K, d] x [d, m], and nothing is transposed.
    outputs = (params["weights"].T @ x.T).T
    return outputs + params["bias"][None] if self.bias else outputs


@dataclasses.dataclass(frozen=True, eq=False)
class Mlp(Structural):
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
    """Return weights of variance 2 / fan-in, and biases of zero."""
    params = {}
    keys = jax.random.split(key, len(self.widths) - 1)
    for i, (fan_in, fan_out) in enumerate(zip(self.widths[:-1], self.widths[1:], strict=True)):
      layer = {"weights": (2.0 / fan_in) ** 0.5 * jax.random.normal(keys[i], (fan_in, fan_out))}
      params[f"layer_{i}"] = layer | {"bias": jnp.zeros(fan_out)} if self.bias else layer
    return params

  def apply(self, params: Params, x: Array) -> Array:
    """Return outputs, `[m, d] -> [m, K]`."""
    activation = ACTIVATIONS[self.activation] if isinstance(self.activation, str) else self.activation
    for i in range(len(self.widths) - 1):
      layer = params[f"layer_{i}"]
      x = x @ layer["weights"]
      x = x + layer["bias"][None] if self.bias else x
      x = check_returned("activation", activation(x), x.shape) if i < len(self.widths) - 2 else x
    return x


@dataclasses.dataclass(frozen=True, eq=False)
class Custom(Structural):
  """A user's own pair of functions."""

  init_fn: Callable[[Key], Params]
  apply_fn: Callable[[Params, Array], Array]

  num_features: ClassVar[None] = None
  num_outputs: ClassVar[None] = None

  def init(self, key: Key) -> Params:
    """Return the parameters that `init_fn` makes."""
    params = self.init_fn(key)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
      if not isinstance(leaf, (np.ndarray, jax.Array)) or not jnp.issubdtype(leaf.dtype, jnp.floating):
        kind = leaf.dtype if hasattr(leaf, "dtype") else f"a {type(leaf).__name__}"
        where = jax.tree_util.keystr(path)
        raise TypeError(f"init_fn must return a tree of floating point arrays, but its leaf {where} is {kind}")
    return params

  def apply(self, params: Params, x: Array) -> Array:
    """Return outputs, `[m, ...] -> [m, K]`; an `apply_fn` with one output may omit its axis."""
    outputs = check_returned("apply_fn", self.apply_fn(params, x), (x.shape[0],), (x.shape[0], None))
    return outputs[:, None] if outputs.ndim == 1 else outputs
