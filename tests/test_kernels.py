"""Tangent kernels against Jacobians by `jax.jacrev`, for networks of every kind that the interpreter reads."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from last_jax import kernels
from last_jax.kernels import factors, remainder
from tests.networks import CASES, K, N, mlp, mlp_params, normal, shape

N2 = 3


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
  u = normal(7, *left[0].shape[:2])

  @jax.jit
  def everything(params, x, x2, u):
    first, second = (kernels.factored_gradients(apply_fn, params, batch) for batch in (x, x2))
    outputs = jax.eval_shape(apply_fn, params, x)
    norms = kernels.squared_gradient_norms(apply_fn, params, x, u.reshape(outputs.shape))
    return first.inner_products(), first.inner_products(second), first.own_inner_products(), norms

  own, mixed, blocks, norms = everything(params, x, x2, u)
  close(own, kernel_of(left, left), tolerance)
  close(mixed, kernel_of(left, right), tolerance)
  close(blocks, np.einsum("iris->irs", kernel_of(left, left)), tolerance)
  close(norms, sum(np.square(np.einsum("irp,ir->ip", leaf, u)).sum(1) for leaf in left), tolerance)
  if roads is not None:
    assert kernels.tangent_roads(apply_fn, params, x) == roads


QUICK = {
  "fully_connected", "batched_products", "convolution_same", "convolution_dilated", "convolution_groups", "attention",
  "residual_and_normalised", "slices_of_one_leaf", "embedding", "tied_embedding", "used_twice", "used_transposed",
  "scan_over_layers", "recurrent", "biases_of_every_kind", "custom_derivatives", "what_cannot_be_read",
  "linen_convolutional", "nnx_network",
}  # fmt: skip


@pytest.mark.parametrize(
  "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
@pytest.mark.slow
def test_kernel_in_float64(name, x64):
  check(*CASES[name]())


@pytest.mark.parametrize(
  "name",
  [
    name if name in ("fully_connected", "convolution_groups") else pytest.param(name, marks=pytest.mark.slow)
    for name in CASES
  ],
)
def test_kernel_in_float32(name):
  check(*CASES[name]())


@pytest.mark.slow
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
@pytest.mark.slow
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
  ("leaf", "message"),
  [
    ("text", "must be an array of numbers, but it is a str"),
    (None, "must hold at least one array"),
    (np.ma.masked_array(np.ones(3), [1, 0, 0]), "must be an array of numbers, but it is a MaskedArray"),
    (2**31, "must be an array of numbers, but it is a int"),
    (np.array(["text"]), "must hold numbers, but its dtype is"),
    (np.ones((0, 3)), "must have at least one example"),
    (np.ones(3, np.longdouble), "must hold numbers, but its dtype is"),
  ],
)
def test_what_is_no_array_of_numbers_is_named(leaf, message):
  with pytest.raises((TypeError, ValueError), match=f"^params.*{message}"):
    kernels.tangent_kernel(lambda params, x: x, {"w": leaf}, np.ones((2, 3)))


@pytest.mark.parametrize(
  ("rows", "message"),
  [
    (np.ones((2, 4)), "v must have shape"),
    (np.ones((2, 3), complex), "v must be an array of real numbers"),
    (3.0, "v must be an array of numbers"),
  ],
)
def test_rows_of_another_shape_are_named(rows, message):
  with pytest.raises((TypeError, ValueError), match=message):
    kernels.tangent_product(lambda params, x: x * params["w"][None], {"w": np.ones(3)}, np.ones((2, 3)), rows)


@pytest.mark.parametrize("weight", [True, 1j, np.nan, np.inf, 1e300])
def test_weights_that_are_no_finite_numbers_are_named(weight):
  with pytest.raises((TypeError, ValueError), match="weights"):
    kernels.tangent_kernel(
      lambda params, x: x * params["w"][None], {"w": np.ones(3)}, np.ones((2, 3)), weights={"w": weight}
    )


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


@pytest.mark.slow
def test_factors_serve_every_inner_product(x64):
  apply_fn, params, x, _ = CASES["attention"]()
  found = jax.jit(lambda params, x: kernels.factored_gradients(apply_fn, params, x))(params, x)
  whole = jacobian(apply_fn, params, x)
  close(found.inner_products(), kernel_of(whole, whole), 1e-10)
  close(found.own_inner_products(), np.einsum("iris->irs", kernel_of(whole, whole)), 1e-10)
  u = normal(3, N, 2, K)  # Two combinations of the outputs for each example.
  some = jax.jit(lambda params, x: kernels.factored_gradients(apply_fn, params, x, cotangents=u))(params, x)
  close(some.inner_products(found), np.einsum("irk,ikjs->irjs", u, kernel_of(whole, whole)), 1e-10)


def test_parameters_that_become_integers_have_no_gradient():
  params, x = {"w": 3 * normal(0, 4, K), "bias": normal(1, K)}, normal(2, N, 4)

  def apply_fn(params, x):
    return x @ params["w"].astype(int).astype(float) + params["bias"][None]

  check(apply_fn, params, x, {"w": "vjp", "bias": "bias"})


# --- Costs


def multiplications(closed, turns=1):
  """The number of multiplications in products of a jaxpr, loops included."""
  jaxpr = closed.jaxpr if isinstance(closed, core.ClosedJaxpr) else closed
  number = 0
  for equation in jaxpr.eqns:
    if equation.primitive.name == "dot_general":
      (contracted, _), _ = equation.params["dimension_numbers"]
      summed = math.prod(equation.invars[0].aval.shape[axis] for axis in contracted)
      number += turns * summed * math.prod(equation.outvars[0].aval.shape)
    inside = turns * equation.params["length"] if equation.primitive.name == "scan" else turns
    number += sum(multiplications(inner, inside) for inner in core.jaxprs_in_params(equation.params))
  return number


def layer_of(n, outputs, blocks, positions, rows, columns):
  inputs, errors = shape(n, blocks, positions, rows), shape(n, outputs, blocks, positions, columns)
  return factors.Layer((factors.Factor(inputs, errors, rows),))


# n, n2, outputs, blocks, positions, rows, columns: more positions than rows and columns, and the other way around.
SIZES = [
  (3, 4, 2, 1, 2, 50, 40),
  (3, 5, 2, 1, 60, 8, 6),
  (2, 9, 3, 4, 12, 10, 9),
  (9, 2, 1, 4, 9, 16, 5),
  (6, 6, 10, 2, 5, 7, 30),
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_way_over_positions_is_the_one_with_fewer_operations(sizes, monkeypatch):
  """An operation on pairs of positions counts twice; from the jaxprs of both, nothing is compiled."""
  n, n2, *rest = sizes
  first, second = layer_of(n, *rest), layer_of(n2, *rest)

  def count(preference):
    monkeypatch.setattr(factors, "_PAIRS", preference)
    return multiplications(jax.make_jaxpr(lambda *layers: factors.inner_products(*layers))(first, second))

  pairs, formed, chosen = count(0), count(1e9), count(2)
  assert pairs != formed
  assert chosen == (formed if formed <= 2 * pairs else pairs)


@pytest.mark.parametrize("preference", [0, 1e9], ids=["pairs", "formed"])
@pytest.mark.parametrize("sizes", [(2, 9, 3, 4, 12, 10, 9), (9, 2, 1, 4, 9, 16, 5)], ids=str)
def test_no_array_is_larger_than_the_factors_and_the_result(sizes, preference, monkeypatch):
  monkeypatch.setattr(factors, "_PAIRS", preference)
  n, n2, *rest = sizes
  first, second = layer_of(n, *rest), layer_of(n2, *rest)
  outputs, blocks, positions, _, columns = rest
  used = largest(jax.make_jaxpr(lambda *layers: factors.inner_products(*layers, small=1))(first, second))
  one_row = max(n, n2) * outputs * blocks * columns
  one_example = n2 * blocks * positions * max(outputs * columns, positions)
  known = max(n * outputs * n2 * outputs, *(leaf.size for layer in (first, second) for leaf in jax.tree.leaves(layer)))
  assert used <= max(known, one_row if preference else one_example)
