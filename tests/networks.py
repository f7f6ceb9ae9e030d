"""Networks of every kind that tangent kernels are tested on, with the road of each leaf."""

import functools
import itertools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

N, K = 4, 3


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
