"""Tangent kernels against Jacobians by `jax.jacrev`, for networks of every kind that the interpreter reads."""

import functools
import itertools
import math

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.extend import core

from last_jax import kernels
from last_jax.kernels import factors, remainder

N, N2, K = 4, 3, 3


def normal(seed, *shape, dtype=None):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), dtype or float)


def shape(*sizes):
  return jax.ShapeDtypeStruct(sizes, float)


def draw(shapes, seed=1):
  """A pytree of normal arrays like a pytree of shapes; those of several axes are scaled as weights are."""
  leaves, structure = jax.tree.flatten(shapes)
  scales = [leaf.shape[-1] ** -0.5 if leaf.ndim > 1 else 1.0 for leaf in leaves]
  values = [normal((seed, index), *leaf.shape) * scales[index] for index, leaf in enumerate(leaves)]
  return jax.tree.unflatten(structure, values)


def jacobian(apply_fn, params, x):
  """For each leaf [n, K, size]."""
  leaves, structure = jax.tree.flatten(params)
  places = [index for index, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.floating)]

  def outputs(chosen, example):
    every = list(leaves)
    for place, leaf in zip(places, chosen, strict=True):
      every[place] = leaf
    return apply_fn(jax.tree.unflatten(structure, every), jax.tree.map(lambda value: value[None], example))[0].reshape(
      -1
    )

  chosen = [leaves[place] for place in places]
  found = jax.jit(jax.vmap(jax.jacrev(outputs), in_axes=(None, 0)))(chosen, x)
  return [np.asarray(leaf, np.float64).reshape(*leaf.shape[:2], -1) for leaf in found]


def kernel_of(left, right, weights=None):
  weights = [1.0] * len(left) if weights is None else [np.asarray(weight, np.float64).reshape(-1) for weight in weights]
  return sum(np.einsum("irp,jsp->irjs", a * weight, b) for a, b, weight in zip(left, right, weights, strict=True))


def close(found, expected, tolerance):
  np.testing.assert_allclose(np.asarray(found, np.float64), expected, rtol=0, atol=tolerance * np.abs(expected).max())


def check(apply_fn, params, x, roads=None):
  """Compare kernel, kernel of two batches, diagonal blocks and norms with the Jacobian; and the roads."""
  tolerance = 1e-10 if jax.config.jax_enable_x64 else 1e-5
  number = jax.tree.leaves(x)[0].shape[0]
  x2 = jax.tree.map(lambda value: value[: number - 1][::-1], x)
  left = jacobian(apply_fn, params, x)
  right = [leaf[: number - 1][::-1] for leaf in left]

  @jax.jit
  def everything(params, x, x2):
    first, second = (kernels.factored_gradients(apply_fn, params, batch) for batch in (x, x2))
    return first.inner_products(), first.inner_products(second), first.own_inner_products()

  own, mixed, blocks = everything(params, x, x2)
  close(own, kernel_of(left, left), tolerance)
  close(mixed, kernel_of(left, right), tolerance)
  close(blocks, np.einsum("iris->irs", kernel_of(left, left)), tolerance)
  if roads is not None:
    assert kernels.tangent_roads(apply_fn, params, x) == roads


def check_norms(apply_fn, params, x, _):
  whole = jacobian(apply_fn, params, x)
  u = normal(7, *whole[0].shape[:2])
  expected = sum(np.square(np.einsum("irp,ir->ip", leaf, u)).sum(1) for leaf in whole)
  tolerance = 1e-10 if jax.config.jax_enable_x64 else 1e-5
  close(
    jax.jit(lambda params, x: kernels.squared_gradient_norms(apply_fn, params, x, u))(params, x), expected, tolerance
  )


# --- Cases: name -> function that returns (apply_fn, params, x, roads).

CASES = {}


def case(function):
  CASES[function.__name__] = function
  return function


def mlp(params, x):
  *hidden, last = params["layers"]
  for layer in hidden:
    x = jax.nn.relu(x @ layer["w"] + layer["b"][None])
  return x @ last["w"] + last["b"][None]


def mlp_params(*widths):
  return draw({"layers": [{"w": shape(a, b), "b": shape(b)} for a, b in itertools.pairwise(widths)]})


@case
def fully_connected():
  return mlp, mlp_params(6, 5, 4, K), normal(0, N, 6), {"layers": [{"w": "product", "b": "bias"}] * 3}


@case
def nested_tuples():
  def apply_fn(params, x):
    (w, (b,)), v = params
    return jnp.einsum("oh,nh->no", v, jax.nn.gelu(x @ w + b))  # A scalar bias, and a weight on the left.

  return apply_fn, draw(((shape(5, 4), (shape(),)), shape(K, 4))), normal(0, N, 5), (("product", ("bias",)), "product")


@case
def transposed_reshaped_and_converted():
  def apply_fn(params, x):
    w = params["w"].T.reshape(3, 2, 4).astype(x.dtype)
    return jnp.tanh(jnp.einsum("nd,aod->nao", x, w)).reshape(-1, 6) @ params["v"][::-1]

  return apply_fn, draw({"w": shape(4, 6), "v": shape(6, K)}), normal(0, N, 4), {"w": "product", "v": "product"}


@case
def batched_products():
  def apply_fn(params, x):  # Experts with weights of their own.
    h = jnp.tanh(jnp.einsum("nd,edh->neh", x, params["in"]))
    return jnp.einsum("neh,ehk->nek", h, params["out"]).sum(1)

  return (
    apply_fn,
    draw({"in": shape(2, 4, 5), "out": shape(2, 5, K)}),
    normal(0, N, 4),
    {"in": "product", "out": "product"},
  )


CONVOLUTIONS = {
  "plain": {"padding": "VALID"},
  "same": {"padding": "SAME", "window_strides": (2, 1)},
  "dilated": {"padding": "SAME", "rhs_dilation": (1, 2)},
  "transposed": {"padding": [(2, 1), (1, 0)], "lhs_dilation": (2, 2), "window_strides": (3, 2)},
  "cropped": {"padding": [(-1, 2), (0, -1)]},
  "groups": {"padding": "SAME", "feature_group_count": 2},
  "depthwise": {"padding": "VALID", "feature_group_count": 4, "window_strides": (1, 2), "rhs_dilation": (2, 1)},
  "layout": {"padding": "SAME", "dimension_numbers": ("NHWC", "HWIO", "NWHC")},
}


def convolution(name):
  settings = {"window_strides": (1, 1), "dimension_numbers": ("NCHW", "OIHW", "NCHW"), **CONVOLUTIONS[name]}
  numbers = settings["dimension_numbers"]
  groups = settings.get("feature_group_count", 1)
  kernel = {"O": 4, "I": 4 // groups, "H": 3, "W": 2}

  def apply_fn(params, x):
    h = jax.lax.conv_general_dilated(x, params["kernel"], **settings)
    bias_shape = [4 if axis == "C" else 1 for axis in numbers[2]]
    h = jnp.tanh(h + params["bias"].reshape(bias_shape))
    return h.reshape(h.shape[0], -1) @ params["out"]

  sizes = {"N": N, "C": 4, "H": 6, "W": 5}
  x = normal(0, *(sizes[axis] for axis in numbers[0]))
  params = draw({"kernel": shape(*(kernel[axis] for axis in numbers[1])), "bias": shape(4)})
  features = jax.eval_shape(lambda x: jax.lax.conv_general_dilated(x, params["kernel"], **settings), x).size // N
  params["out"] = normal(3, features, K) / features**0.5
  return apply_fn, params, x, {"kernel": "convolution", "bias": "bias", "out": "product"}


for convolution_name in CONVOLUTIONS:
  CASES[f"convolution_{convolution_name}"] = functools.partial(convolution, convolution_name)


@case
def convolution_in_one_dimension_and_pooling():
  def apply_fn(params, x):
    h = jax.lax.conv_general_dilated(x, params["first"], (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC"))
    h = nn.max_pool(jax.nn.relu(h), (2,), strides=(2,))
    h = jax.lax.conv_general_dilated(h, params["second"], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))
    return h.mean(1)

  params = draw({"first": shape(3, 2, 4), "second": shape(2, 4, K)})
  return apply_fn, params, normal(0, N, 8, 2), {"first": "convolution", "second": "convolution"}


@case
def residual_and_normalised():
  def apply_fn(params, x):
    h = x @ params["in"]
    for layer in params["blocks"]:
      z = (h - h.mean(-1, keepdims=True)) / jnp.sqrt(h.var(-1, keepdims=True) + 1e-3)
      z = z * layer["scale"][None] + layer["shift"][None]
      h = h + jax.nn.silu(z @ layer["w"])
    return h @ params["out"]

  block = {"scale": shape(5), "shift": shape(5), "w": shape(5, 5)}
  params = draw({"in": shape(6, 5), "blocks": [block, block], "out": shape(5, K)})
  roads = {"in": "product", "blocks": [{"scale": "scale", "shift": "bias", "w": "product"}] * 2, "out": "product"}
  return apply_fn, params, normal(0, N, 6), roads


@case
def attention():
  def apply_fn(params, x):
    h = x + params["positions"][None]
    q, k, v = jnp.split(h @ params["qkv"], 3, axis=-1)
    weights = jax.nn.softmax(jnp.einsum("nqd,nkd->nqk", q, k) / 2)
    h = h + jnp.einsum("nqk,nkd->nqd", weights, v) @ params["out"]
    return h.mean(1) @ params["head"]

  params = draw({"positions": shape(5, 4), "qkv": shape(4, 12), "out": shape(4, 4), "head": shape(4, K)})
  roads = {"positions": "bias", "qkv": "product", "out": "product", "head": "product"}
  return apply_fn, params, normal(0, N, 5, 4), roads


@case
def biases_of_every_kind():
  """Sums that are the bias of a product, and sums that only look like it."""

  def apply_fn(params, x):
    h = x @ params["w"] + params["per_position"][None, :, None]  # Along the positions, not the columns.
    h = jax.jit(lambda z: jnp.tanh(z + params["twice"][None, None]) * z)(h @ params["v"])  # The product is used twice.
    z = h @ params["u"]
    h = jnp.tanh(z + params["shared"][None, None]) + jnp.tanh(
      h @ params["t"] + params["shared"][None, None]
    )  # The bias is used twice.
    h = h @ params["s"] + params["full"][None]  # One for each position and column.
    h = (h.transpose(0, 2, 1) @ params["q"]) + params["column"].reshape(1, 1, 4)[:, :, ::-1]
    return h.mean(1) @ params["p"] + params["scalar"]

  square = dict.fromkeys("vuts", shape(3, 3))
  biases = {"per_position": shape(2), "twice": shape(3), "shared": shape(3), "full": shape(2, 3), "column": shape(4)}
  params = draw({"w": shape(5, 3), **square, "q": shape(2, 4), "p": shape(4, K), **biases, "scalar": shape()})
  roads = {name: "bias" if name in biases or name == "scalar" else "product" for name in params}
  return apply_fn, params, normal(0, N, 2, 5), roads


@case
def slices_of_one_leaf():
  def apply_fn(params, x):
    query, key = jnp.split(params["w"], 2, axis=1)
    h = jnp.tanh(x @ query) * (x @ key)
    return jnp.tanh(h @ params["v"][0]) @ params["v"][1, :, :K]

  return apply_fn, draw({"w": shape(4, 8), "v": shape(2, 4, 4)}), normal(0, N, 4), {"w": "product", "v": "product"}


@case
def overlapping_slices():
  def apply_fn(params, x):
    return (x @ params["w"][:, : K + 1])[:, :K] * (x @ params["w"][:, 1 : K + 1])

  return apply_fn, draw({"w": shape(4, K + 2)}), normal(0, N, 4), {"w": "vjp"}


def tokens(number=N, length=6, vocabulary=7):
  return jnp.asarray(np.random.default_rng(0).integers(0, vocabulary, (number, length)))


@case
def embedding():
  def apply_fn(params, x):
    h = params["table"][x] + jnp.take(params["other"], x, axis=1, mode="clip").transpose(1, 2, 0)
    return jnp.tanh(h @ params["w"]).mean(1)

  params = draw({"table": shape(7, 4), "other": shape(4, 7), "w": shape(4, K)})
  return apply_fn, params, tokens(), {"table": "embedding", "other": "embedding", "w": "product"}


@case
def embedding_out_of_bounds():
  def apply_fn(params, x):
    filled = params["table"].at[x].get(mode="fill", fill_value=0.5)
    return jnp.tanh(filled + jnp.take(params["table"], x + 2, axis=0, mode="clip")).sum(1)

  return apply_fn, draw({"table": shape(7, K)}), tokens(vocabulary=10), {"table": "embedding"}


@case
def large_vocabulary():
  def apply_fn(params, x):
    return jnp.tanh(params["table"][x] @ params["w"]).mean(1)

  params = draw({"table": shape(500, 4), "w": shape(4, K)})
  return apply_fn, params, tokens(vocabulary=500), {"table": "embedding", "w": "product"}


@case
def tied_embedding():
  def apply_fn(params, x):
    h = jnp.tanh(params["table"][x].mean(1) @ params["w"])
    return h @ params["table"].T

  return (
    apply_fn,
    draw({"table": shape(7, 4), "w": shape(4, 4)}),
    tokens(),
    {"table": "embedding+product", "w": "product"},
  )


@case
def used_twice():
  def apply_fn(params, x):
    h = jnp.tanh(x @ params["w"])
    h = jnp.tanh(h @ params["w"] + params["b"][None])
    return h @ params["v"] + params["b"][None, :K]

  return (
    apply_fn,
    draw({"w": shape(4, 4), "b": shape(4), "v": shape(4, K)}),
    normal(0, N, 4),
    {"w": "product", "b": "bias", "v": "product"},
  )


@case
def used_transposed():
  def apply_fn(params, x):
    h = jnp.tanh(x @ params["w"])
    h = jnp.tanh(h @ params["w"].T)
    return jnp.tanh(h @ params["w"]) @ params["v"]

  return apply_fn, draw({"w": shape(5, 4), "v": shape(4, K)}), normal(0, N, 5), {"w": "product", "v": "product"}


@case
def used_in_product_and_otherwise():
  def apply_fn(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"] + 0.1 * jnp.sum(params["w"] ** 2)

  return apply_fn, draw({"w": shape(5, 4), "v": shape(4, K)}), normal(0, N, 5), {"w": "vjp", "v": "product"}


@case
def scan_over_layers():
  def body(h, layer):
    return jnp.tanh(h @ layer["w"].T + layer["b"][None]) * layer["s"], h.sum(1)

  def apply_fn(params, x):
    h, sums = jax.lax.scan(jax.checkpoint(body), x, params["layers"])
    h, _ = jax.lax.scan(body, h, params["layers"], reverse=True)  # The same weights again.
    return h @ params["out"] + sums.sum(0)[:, None]

  params = draw({"layers": {"w": shape(3, 4, 4), "b": shape(3, 4), "s": shape(3)}, "out": shape(4, K)})
  roads = {"layers": {"w": "product", "b": "bias", "s": "scale"}, "out": "product"}
  return apply_fn, params, normal(0, N, 4), roads


@case
def recurrent():
  def apply_fn(params, x):  # x [n, time, features]
    def body(h, now):
      h = jnp.tanh(now @ params["in"] + h @ params["w"] + params["b"][None])
      return h, None

    start = jnp.broadcast_to(params["start"][None], (x.shape[0], 4))
    return jax.lax.scan(body, start, x.transpose(1, 0, 2))[0] @ params["out"]

  params = draw({"in": shape(3, 4), "w": shape(4, 4), "b": shape(4), "start": shape(4), "out": shape(4, K)})
  roads = {"in": "product", "w": "product", "b": "bias", "start": "vjp", "out": "product"}
  return apply_fn, params, normal(0, N, 5, 3), roads


@case
def nested_scans():
  def apply_fn(params, x):  # Layers of a stack, each applied several times, with one matrix that all share.
    def layer(h, w):
      return jax.lax.scan(lambda h, _: (jnp.tanh(h @ w + h @ params["shared"]), None), h, None, length=2)[0], None

    def stack(h, weights):
      return jax.lax.scan(layer, h, weights)

    return jax.lax.scan(stack, x, params["w"])[0] @ params["out"]

  params = draw({"w": shape(2, 3, 4, 4), "shared": shape(4, 4), "out": shape(4, K)})
  return apply_fn, params, normal(0, N, 4), {"w": "product", "shared": "product", "out": "product"}


@case
def scan_with_convolution_and_embedding():
  def apply_fn(params, x):
    def body(h, layer):
      z = jax.lax.conv_general_dilated(h, layer["k"], (1,), "SAME", (1,), (2,), ("NWC", "WIO", "NWC"))
      return jnp.tanh(z + layer["table"][x]), None

    return jax.lax.scan(body, params["table"][x], params["layers"])[0].mean(1) @ params["out"]

  layers = {"k": shape(2, 3, 4, 4), "table": shape(2, 7, 4)}
  params = draw({"layers": layers, "table": shape(7, 4), "out": shape(4, K)})
  roads = {"layers": {"k": "convolution", "table": "embedding"}, "table": "embedding", "out": "product"}
  return apply_fn, params, tokens(), roads


@jax.custom_vjp
def odd_product(x, w):
  return x @ w


odd_product.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, g: (2 * g @ kept[1].T, 3 * kept[0].T @ g))


@jax.custom_jvp
def odd_tanh(x):
  return jnp.tanh(x)


odd_tanh.defjvp(lambda primals, tangents: (jnp.tanh(primals[0]), 0.5 * tangents[0]))


@case
def custom_derivatives():
  def apply_fn(params, x):
    h = jax.jit(lambda h, w: odd_tanh(h @ w))(x, params["w"])
    return odd_product(h, params["v"])

  return apply_fn, draw({"w": shape(5, 4), "v": shape(4, K)}), normal(0, N, 5), {"w": "product", "v": "vjp"}


@case
def what_cannot_be_read():
  def apply_fn(params, x):
    w = params["v"] * (params["g"] / jnp.linalg.norm(params["v"], axis=0))[None]  # Weight normalisation.
    h = jnp.tanh(x @ w) * jnp.exp(params["log_scale"])[None]
    h = h @ (params["low"] @ params["rank"] + params["full"])
    h = jax.lax.cond(params["count"][0] == 0, lambda h: h @ params["branch"], lambda h: h, h)
    h = jnp.concatenate([h, jnp.broadcast_to(params["token"][None], (x.shape[0], 2))], axis=1)
    return (h @ params["out"]) * (1 + params["scale"][None]) + jax.lax.stop_gradient(params["out"]).sum()

  params = draw({
    "v": shape(5, 4), "g": shape(4), "log_scale": shape(4), "low": shape(4, 2), "rank": shape(2, 4),
    "full": shape(4, 4), "branch": shape(4, 4), "token": shape(2), "out": shape(6, K), "scale": shape(K),
    "unused": shape(3),
  })  # fmt: skip
  params["count"] = jnp.arange(3)
  roads = dict.fromkeys(params, "vjp")
  roads |= {"log_scale": "scale", "scale": "scale", "out": "product", "unused": "none", "count": "none"}
  return apply_fn, params, normal(0, N, 5), roads


@case
def outputs_for_each_token():
  def apply_fn(params, x):
    return jnp.tanh(x @ params["w"]) @ params["v"]

  return apply_fn, draw({"w": shape(5, 4), "v": shape(4, K)}), normal(0, N, 2, 5), {"w": "product", "v": "product"}


@case
def several_inputs():
  def apply_fn(params, x):
    return jnp.tanh(x["dense"] @ params["w"] + params["table"][x["index"]])

  x = {"dense": normal(0, N, 5), "index": tokens(length=1)[:, 0]}
  return apply_fn, draw({"w": shape(5, K), "table": shape(7, K)}), x, {"w": "product", "table": "embedding"}


# --- Libraries


@case
def linen_convolutional():
  class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
      x = nn.Conv(4, (3, 3), strides=2)(x)
      x = nn.relu(nn.BatchNorm(use_running_average=True)(x))
      x = nn.relu(nn.ConvTranspose(3, (2, 2), strides=(2, 2))(x))
      return nn.Dense(K)(nn.GroupNorm(num_groups=None, group_size=3)(x).mean((1, 2)))

  net, x = Net(), normal(0, N, 6, 6, 2)
  variables = net.init(jax.random.key(0), x)
  params = jax.tree.map(lambda leaf: jnp.asarray(leaf, float) + 0.1, variables["params"])

  def apply_fn(params, x):
    return net.apply({"params": params, "batch_stats": variables["batch_stats"]}, x)

  roads = {
    "Conv_0": {"kernel": "convolution", "bias": "bias"},
    "BatchNorm_0": {"scale": "scale", "bias": "bias"},
    "ConvTranspose_0": {"kernel": "convolution", "bias": "bias"},
    "GroupNorm_0": {"scale": "scale", "bias": "bias"},
    "Dense_0": {"kernel": "product", "bias": "bias"},
  }
  return apply_fn, params, x, roads


@case
def linen_transformer():
  class Block(nn.Module):
    @nn.compact
    def __call__(self, x, _):
      x = x + nn.MultiHeadDotProductAttention(num_heads=2)(nn.LayerNorm()(x))
      return x + nn.Dense(4)(nn.gelu(nn.Dense(6)(nn.LayerNorm()(x)))), None

  class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
      x = nn.Embed(7, 4)(x)
      x, _ = nn.scan(nn.remat(Block), variable_axes={"params": 0}, split_rngs={"params": True}, length=2)()(x, None)
      return nn.Dense(K)(x.mean(1))

  net, x = Net(), tokens()
  params = jax.tree.map(lambda leaf: jnp.asarray(leaf, float) + 0.1, net.init(jax.random.key(0), x)["params"])
  dense, norm = {"kernel": "product", "bias": "bias"}, {"scale": "scale", "bias": "bias"}
  attention = {"query": dense, "key": dense, "value": dense, "out": dense}
  block = {"MultiHeadDotProductAttention_0": attention, "LayerNorm_0": norm, "LayerNorm_1": norm}
  block |= {"Dense_0": dense, "Dense_1": dense}
  roads = {"Embed_0": {"embedding": "embedding"}, "ScanCheckpointBlock_0": block, "Dense_0": dense}
  return lambda params, x: net.apply({"params": params}, x), params, x, roads


@case
def nnx_network():
  class Net(nnx.Module):
    def __init__(self, rngs):
      self.conv = nnx.Conv(2, 4, kernel_size=(2, 2), rngs=rngs)
      self.norm = nnx.LayerNorm(4, rngs=rngs)
      self.dense = nnx.Linear(4, K, rngs=rngs)

    def __call__(self, x):
      return self.dense(nnx.relu(self.norm(self.conv(x))).mean((1, 2)))

  graph, state = nnx.split(Net(nnx.Rngs(0)))
  params = jax.tree.map(lambda leaf: jnp.asarray(leaf, float) + 0.1, nnx.to_pure_dict(state))

  def apply_fn(params, x):
    merged = jax.tree.map(lambda leaf: leaf, state)
    nnx.replace_by_pure_dict(merged, params)
    return nnx.merge(graph, merged)(x)

  roads = {
    "conv": {"kernel": "convolution", "bias": "bias"},
    "norm": {"scale": "scale", "bias": "bias"},
    "dense": {"kernel": "product", "bias": "bias"},
  }
  return apply_fn, params, normal(0, N, 4, 4, 2), roads


QUICK = {
  "fully_connected", "batched_products", "convolution_same", "convolution_dilated", "convolution_groups", "attention",
  "residual_and_normalised", "slices_of_one_leaf", "embedding", "tied_embedding", "used_twice", "used_transposed",
  "scan_over_layers", "recurrent", "biases_of_every_kind", "custom_derivatives", "what_cannot_be_read",
  "linen_convolutional", "nnx_network",
}  # fmt: skip


@pytest.mark.parametrize(
  "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_kernel_in_float64(name, x64):
  check(*CASES[name]())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_kernel_in_float32(name):
  check(*CASES[name]())


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_norms_in_float32(name):
  check_norms(*CASES[name]())


@pytest.mark.parametrize("name", ["fully_connected", "convolution_groups"])
def test_quickly_in_float32(name):
  check(*CASES[name]())
  check_norms(*CASES[name]())


def test_equinox():
  import equinox as eqx

  class Net(eqx.Module):
    conv: eqx.nn.Conv1d
    norm: eqx.nn.LayerNorm
    mlp: eqx.nn.MLP

    def __init__(self, key):
      self.conv = eqx.nn.Conv1d(2, 4, 3, key=key)
      self.norm = eqx.nn.LayerNorm(4)
      self.mlp = eqx.nn.MLP(4, K, 5, 2, key=key)

    def __call__(self, x):
      return self.mlp(self.norm(self.conv(x).mean(1)))

  params, static = eqx.partition(Net(jax.random.key(0)), eqx.is_inexact_array)

  def apply_fn(params, x):
    return jax.vmap(eqx.combine(params, static))(x)

  check(apply_fn, params, normal(0, N, 2, 6))
  roads = kernels.tangent_roads(apply_fn, params, normal(0, N, 2, 6))
  assert (roads.conv.weight, roads.conv.bias) == ("convolution", "bias")
  assert (roads.norm.weight, roads.norm.bias) == ("scale", "bias")
  assert [(layer.weight, layer.bias) for layer in roads.mlp.layers] == [("product", "bias")] * 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_haiku():
  import haiku as hk

  def net(x):
    x = jax.nn.relu(hk.Conv2D(4, 3, stride=2)(x)).mean((1, 2))
    return hk.nets.MLP((5, K))(hk.LayerNorm(-1, True, True)(x))

  model, x = hk.without_apply_rng(hk.transform(net)), normal(0, N, 6, 6, 2)
  params = model.init(jax.random.key(0), x)
  roads = {
    "conv2_d": {"w": "convolution", "b": "bias"},
    "layer_norm": {"scale": "scale", "offset": "bias"},
    "mlp/~/linear_0": {"w": "product", "b": "bias"},
    "mlp/~/linear_1": {"w": "product", "b": "bias"},
  }
  check(model.apply, params, x, roads)


# --- Settings, transformations, precision


def slow_but(quick, names):
  return [name if name in quick else pytest.param(name, marks=pytest.mark.slow) for name in names]


POSITIONS = ["attention", "biases_of_every_kind", "embedding_out_of_bounds", "convolution_groups", "scan_over_layers"]


@pytest.mark.parametrize("preference", [0, 1e9], ids=["pairs", "formed"])
@pytest.mark.parametrize("name", slow_but({"embedding_out_of_bounds"}, POSITIONS))
def test_both_ways_over_positions(name, preference, monkeypatch, x64):
  monkeypatch.setattr(factors, "_PAIRS", preference)
  check(*CASES[name]())


@pytest.mark.parametrize("name", slow_but({"tied_embedding"}, [*POSITIONS, "tied_embedding", "used_transposed"]))
def test_a_few_rows_at_a_time(name, monkeypatch, x64):
  monkeypatch.setattr(factors, "_SMALL", 1)
  monkeypatch.setattr(factors, "_PAIRS", 1e9)
  check(*CASES[name]())


@pytest.mark.parametrize("room", [1, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
  "name", slow_but({"overlapping_slices"}, ["overlapping_slices", "what_cannot_be_read", "recurrent"])
)
def test_a_few_gradients_at_a_time(name, room, monkeypatch, x64):
  monkeypatch.setattr(remainder, "FORMED", room)
  check(*CASES[name]()[:3])
  check_norms(*CASES[name]())


@pytest.mark.parametrize(
  "name",
  slow_but(
    {"tied_embedding"},
    [
      "biases_of_every_kind",
      "convolution_groups",
      "tied_embedding",
      "scan_over_layers",
      "what_cannot_be_read",
      "attention",
    ],
  ),
)
@pytest.mark.parametrize("kind", ["scalars", "arrays"])
@pytest.mark.parametrize("room", [pytest.param(1, marks=pytest.mark.slow), 2**22])
def test_weights(name, kind, room, monkeypatch, x64):
  monkeypatch.setattr(remainder, "FORMED", room)
  apply_fn, params, x, _ = CASES[name]()
  leaves, structure = jax.tree.flatten(params)
  weights = [normal((9, index), *(leaf.shape if kind == "arrays" else ())) for index, leaf in enumerate(leaves)]
  floating = [weight for weight, leaf in zip(weights, leaves, strict=True) if jnp.issubdtype(leaf.dtype, jnp.floating)]
  weights = jax.tree.unflatten(structure, weights)
  whole = jacobian(apply_fn, params, x)
  expected = kernel_of(whole, whole, floating)
  v = normal(5, *expected.shape[:2])

  @jax.jit
  def everything(weights):
    kernel = kernels.tangent_kernel(apply_fn, params, x, weights=weights)
    product = kernels.tangent_product(apply_fn, params, x, v, weights=weights)
    return kernel, product, kernels.squared_gradient_norms(apply_fn, params, x, v, weights=weights, batch_size=3)

  kernel, product, norms = everything(weights)
  close(kernel, expected, 1e-10)
  close(product, np.einsum("irjs,js->ir", expected, v), 1e-10)
  close(norms, np.einsum("iris,ir,is->i", expected, v, v), 1e-10)


def test_weights_may_be_a_prefix_and_are_checked():
  params, x = mlp_params(6, 5, K), normal(0, N, 6)
  kernel = jax.jit(functools.partial(kernels.tangent_kernel, mlp, params, x), static_argnames="diagonal")
  close(kernel(weights=2.0), 2 * np.asarray(kernel()), 1e-6)
  close(kernel(weights={"layers": [0.0, 1.0]}), kernel(weights={"layers": [{"w": 0, "b": 0}, {"w": 1, "b": 1}]}), 1e-6)
  with pytest.raises(ValueError, match="weights must have the structure of params"):
    kernel(weights={"layer": 1.0})
  with pytest.raises(ValueError, match="weights must be scalars or have the shape"):
    kernel(weights={"layers": [jnp.ones(3), 1.0]})
  with pytest.raises(ValueError, match="x2 must be None"):
    kernel(x, diagonal=True)
  with pytest.raises(ValueError, match="one row for each example"):
    kernels.tangent_kernel(lambda params, x: mlp(params, x).sum(), params, x)


@pytest.mark.parametrize(
  "name",
  slow_but({"convolution_plain"}, ["fully_connected", "convolution_plain", "residual_and_normalised", "embedding"]),
)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_sums_are_in_float32(name, dtype):
  """Sixteen bits for parameters and activations: sums over 1000s of entries have the accuracy of the terms."""
  apply_fn, params, x, roads = CASES[name]()

  def convert(tree, dtype):
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree)

  params, x = convert((params, x), dtype)
  found = jax.jit(functools.partial(kernels.tangent_kernel, apply_fn))(params, x)
  assert found.dtype == jnp.float32
  assert kernels.tangent_roads(apply_fn, params, x) == roads
  whole = jacobian(apply_fn, *convert((params, x), float))
  close(found, kernel_of(whole, whole), 16 * float(jnp.finfo(dtype).eps))


def test_no_overflow_in_float16():
  params = {"layers": [{"w": jnp.ones((4096, K), jnp.float16), "b": jnp.ones(K, jnp.float16)}]}
  x = jnp.full((2, 4096), 12, jnp.float16)
  found = jax.jit(lambda x: kernels.tangent_kernel(lambda params, x: mlp(params, x / 4096), params, x))(x * 30)
  assert np.isfinite(found).all()


def test_vmap_over_parameters_and_derivatives(x64):
  params, x = mlp_params(4, 3, 2), normal(0, 3, 4)
  params = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf]), params)

  def kernel(params):
    return kernels.tangent_kernel(lambda p, x: jnp.tanh(mlp(p, x)), params, x)

  one = jax.tree.map(lambda leaf: leaf[1], params)
  close(jax.jit(jax.vmap(kernel))(params)[1], jax.jit(kernel)(one), 1e-12)

  def by_jacobian(params):
    found = jax.jacrev(lambda p: jnp.tanh(mlp(p, x)))(params)
    return sum(jnp.tensordot(leaf.reshape(6, -1), leaf.reshape(6, -1), (1, 1)) for leaf in jax.tree.leaves(found))

  found = jax.jit(jax.grad(lambda p: jnp.sum(jnp.sin(kernel(p)))))(one)
  expected = jax.jit(jax.grad(lambda p: jnp.sum(jnp.sin(by_jacobian(p)))))(one)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), found, expected)


def test_derivatives_through_convolutions(x64):
  apply_fn, params, x, _ = CASES["convolution_transposed"]()
  x = x[:2]
  v = normal(5, 2, K)

  def norm(params):
    return jnp.sum(jnp.square(kernels.squared_gradient_norms(apply_fn, params, x, v)))

  def norm_by_gradients(params):
    gradient = jax.vmap(lambda one, u: jax.grad(lambda p: apply_fn(p, one[None])[0] @ u)(params))(x, v)
    squares = sum(jnp.square(leaf).reshape(2, -1).sum(1) for leaf in jax.tree.leaves(gradient))
    return jnp.sum(jnp.square(squares))

  found, expected = jax.jit(jax.grad(norm))(params), jax.jit(jax.grad(norm_by_gradients))(params)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12), found, expected)


# --- Sizes


def largest(closed):
  """The number of entries of the largest array that a jaxpr computes, without its inputs."""
  jaxpr = closed.jaxpr if isinstance(closed, core.ClosedJaxpr) else closed
  sizes = [0]
  for equation in jaxpr.eqns:
    sizes += [math.prod(variable.aval.shape) for variable in equation.outvars]
    sizes += [largest(inner) for inner in core.jaxprs_in_params(equation.params)]
  return max(sizes)


def test_fully_connected_networks_form_nothing_larger_than_outputs_at_the_layers():
  params, n = mlp_params(784, 1000, 1000, 10), 8
  shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
  x = jax.ShapeDtypeStruct((n, 784), jnp.float32)
  assert largest(jax.make_jaxpr(functools.partial(kernels.tangent_kernel, mlp))(shapes, x)) == n * 10 * 1000
  diagonal = jax.make_jaxpr(functools.partial(kernels.tangent_kernel, mlp, diagonal=True))(shapes, x)
  assert largest(diagonal) == n * 10 * 1000
  u = jax.ShapeDtypeStruct((n, 10), jnp.float32)
  norms = jax.make_jaxpr(functools.partial(kernels.squared_gradient_norms, mlp))(shapes, x, u)
  assert largest(norms) <= n * 1000


@pytest.mark.parametrize("length", [2, 64])
def test_positions_form_nothing_larger_than_outputs_at_the_layers(length):
  def apply_fn(params, x):
    h = jnp.tanh(params["table"][x] @ params["in"])
    return jnp.tanh(h @ params["w"]).mean(1) @ params["out"]

  width, n = 128, 4
  shapes = {"table": shape(5000, width), "in": shape(width, width), "w": shape(width, width), "out": shape(width, 10)}
  x = jax.ShapeDtypeStruct((n, length), jnp.int32)
  size = largest(jax.make_jaxpr(functools.partial(kernels.tangent_kernel, apply_fn))(shapes, x))
  assert size <= max(factors._SMALL, n * 10 * length * width)
  assert size < n * 10 * width**2


def test_large_leaves_that_cannot_be_read_are_divided(monkeypatch):
  monkeypatch.setattr(remainder, "FORMED", 2**14)
  shapes, x = {"w": shape(64, 64), "out": shape(64, 10)}, jax.ShapeDtypeStruct((8, 64), jnp.float32)

  def apply_fn(params, x):
    return jnp.tanh(x @ jnp.tanh(params["w"])) @ params["out"]

  assert kernels.tangent_roads(apply_fn, shapes, x) == {"w": "vjp", "out": "product"}
  size = largest(jax.make_jaxpr(functools.partial(kernels.tangent_kernel, apply_fn))(shapes, x))
  assert size <= max(factors._SMALL, 4 * 8 * 10 * 64)
  assert size < 8 * 10 * 64 * 64


def test_factors_serve_every_inner_product(x64):
  apply_fn, params, x, _ = CASES["attention"]()
  found = jax.jit(lambda params, x: kernels.factored_gradients(apply_fn, params, x))(params, x)
  whole = jacobian(apply_fn, params, x)
  close(found.inner_products(), kernel_of(whole, whole), 1e-10)
  close(found.own_inner_products(), np.einsum("iris->irs", kernel_of(whole, whole)), 1e-10)
  u = normal(3, N, 2, K)  # Two combinations of the outputs for each example.
  some = jax.jit(lambda params, x: kernels.factored_gradients(apply_fn, params, x, cotangents=u))(params, x)
  close(some.inner_products(found), np.einsum("irk,ikjs->irjs", u, kernel_of(whole, whole)), 1e-10)
