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
  """Outputs from parameters and a batch of inputs. Hashable: equal models share compiled programs.

  A model may need arrays besides its parameters, as batch statistics: its `init` and `apply` take them as further
  arguments. They are kept by the learner, and the model knows their shapes (`constant_shapes`).
  """

  @property
  def num_features(self) -> int | None:
    """The length of an input vector; None: inputs of any shape that `apply` accepts."""

  @property
  def num_outputs(self) -> int | None:
    """K; None: as `apply` returns."""

  @property
  def constant_shapes(self) -> tuple[Any, ...]:
    """The further arguments of `init` and `apply`, with a `jax.ShapeDtypeStruct` in place of each array."""

  def __hash__(self) -> int: ...

  def init(self, key: Key, *constants: Any) -> Params:
    """Return random parameters."""

  def apply(self, params: Params, x: Array, *constants: Any) -> Array:
    """Return outputs, `[m, ...] -> [m, K]`, or `[m, T, K]` for models with an output for each token."""


def wide(tree: Any) -> Any:
  """Return the tree with arrays of 16 bits or fewer in float32, in which their sums are formed; others unchanged."""
  return jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if _is_narrow(leaf) else leaf, tree)


def is_narrow(tree: Any) -> bool:
  """Whether a leaf is a floating point array of 16 bits or fewer."""
  return any(map(_is_narrow, jax.tree.leaves(tree)))


def _is_narrow(leaf: Any) -> bool:
  return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating) and leaf.dtype.itemsize < 4


def label_dtype(x: Any) -> Any:
  """Return the dtype of the labels of inputs `x`: that of x, but no narrower than float32."""
  if not jnp.issubdtype(x.dtype, jnp.floating):
    return jax.dtypes.canonicalize_dtype(float)
  return jnp.dtype(jnp.float32) if _is_narrow(x) else x.dtype


def param_shapes(model: Model) -> Params:
  """Return the parameters' tree, with a `jax.ShapeDtypeStruct` in place of each array."""
  return _param_shapes(model, jax.dtypes.canonicalize_dtype(float))


@functools.lru_cache(maxsize=256)
def _param_shapes(model: Model, _: Any) -> Params:  # Keyed on the width of floats, which `init` follows.
  return jax.eval_shape(model.init, jax.random.key(0), *model.constant_shapes)


def apply(model: Model, params: Params, x: Array, constants: tuple[Any, ...]) -> Array:
  """Return outputs in float32 or wider, `[m, K]` or `[m, T, K]`. Numbers of 16 bits are computed with in float32.

  A model that converts to 16 bits itself (`dtype=` of Flax's layers) does so. One that takes no other numbers, because
  its operations do not mix them, is given what it takes.
  """
  if is_narrow((params, x)) and takes_wide(model, params, x, constants):
    params, x = wide((params, x))
  return wide(model.apply(params, x, *constants))


def takes_wide(model: Model, params: Params, x: Array, constants: tuple[Any, ...]) -> bool:
  """Whether the model can be applied to parameters and inputs in float32."""
  return _takes_wide(model, *_described((params, x, constants)))


def _described(tree: Any) -> tuple[Any, tuple[Any, ...]]:
  leaves, structure = jax.tree.flatten(tree)
  return structure, tuple((jnp.shape(leaf), jnp.result_type(leaf)) for leaf in leaves)


@functools.lru_cache(maxsize=256)
def _takes_wide(model: Model, structure: Any, leaves: tuple[Any, ...]) -> bool:
  params, x, constants = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
  try:
    jax.eval_shape(lambda params, x, constants: model.apply(*wide((params, x)), *constants), params, x, constants)
  except (TypeError, ValueError):
    return False
  return True


@functools.lru_cache(maxsize=256)
def output_shape(model: Model, shape: tuple[int, ...], dtype: Any) -> tuple[int, ...]:
  """Return the shape of one example's outputs, (K,) or (T, K), for inputs of this shape and dtype."""
  if model.num_outputs is not None:
    return (model.num_outputs,)

  def in_dtype(leaf: Any) -> jax.ShapeDtypeStruct:
    # With float64 enabled, `init` may make float64 while the inputs are float32, which some operations (convolutions)
    # do not mix: parameters in the dtype of the inputs, then.
    return jax.ShapeDtypeStruct(leaf.shape, dtype if leaf.dtype == jnp.float64 else leaf.dtype)

  params = jax.tree.map(in_dtype, param_shapes(model))
  x = jax.ShapeDtypeStruct((1, *shape), dtype)
  return jax.eval_shape(functools.partial(apply, model), params, x, model.constant_shapes).shape[1:]


def check_outputs(name: str, outputs: Any, batch: int) -> Array:
  """Return the outputs of a user's model, `[m, K]` or `[m, T, K]`, from what it returned; one output needs no axis.

  Args:
    name: of the argument that the model was given as.
    outputs: what it returned.
    batch: m.
  """
  outputs = check_returned(name, outputs, (batch,), (batch, None), (batch, None, None))
  return outputs[:, None] if outputs.ndim == 1 else outputs


def check_returned(name: str, value: Any, *shapes: tuple[int | None, ...]) -> Any:
  """Return the value of a user's function. Raise unless it is a floating point array of one of these shapes.

  Args:
    name: of the function, for the message.
    value: what it returned.
    *shapes: those allowed; None is any length: K in the message, or T before it.
  """
  allowed = " or ".join(map(_shape_text, shapes))
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


def _shape_text(shape: tuple[int | None, ...]) -> str:
  names = ["K" if axis == len(shape) - 1 else "T" for axis in range(len(shape))]
  sizes = [name if size is None else str(size) for name, size in zip(names, shape, strict=True)]
  return f"[{', '.join(sizes)}]"


@dataclasses.dataclass(frozen=True)
class Linear:
  """z = x W + b, with `params = {"weights": [d, K], "bias": [K]}` (no "bias" without one)."""

  num_features: int
  num_outputs: int
  bias: bool

  constant_shapes: ClassVar[tuple[Any, ...]] = ()

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

  constant_shapes: ClassVar[tuple[Any, ...]] = ()

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
  constant_shapes: ClassVar[tuple[Any, ...]] = ()

  def init(self, key: Key) -> Params:
    """Return the parameters that `init_fn` makes."""
    return check_floating("init_fn must return", self.init_fn(key))

  def apply(self, params: Params, x: Array) -> Array:
    """Return outputs, `[m, ...] -> [m, K]` or `[m, T, K]`; an `apply_fn` with one output may omit its axis."""
    return check_outputs("apply_fn", self.apply_fn(params, x), x.shape[0])


def describe(model: Model) -> str:
  """Return what a model is, for people: "linear 4 -> 1"."""
  if isinstance(model, Linear):
    return f"linear {model.num_features} -> {model.num_outputs}{'' if model.bias else ' without bias'}"
  return f"mlp {'-'.join(map(str, model.widths))}" if isinstance(model, Mlp) else f"{type(model).__name__} network"


def check_floating(wanted: str, params: Params) -> Params:
  """Return the parameters. Raise, in words that begin with `wanted`, unless all of them are floating point arrays."""
  for path, leaf in jax.tree_util.tree_leaves_with_path(params):
    if not isinstance(leaf, (np.ndarray, jax.Array)) or not jnp.issubdtype(leaf.dtype, jnp.floating):
      kind = leaf.dtype if hasattr(leaf, "dtype") else f"a {type(leaf).__name__}"
      where = jax.tree_util.keystr(path)
      raise TypeError(f"{wanted} a tree of floating point arrays, but its leaf {where} is {kind}")
  return params
