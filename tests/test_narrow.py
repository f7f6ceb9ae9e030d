"""Parameters, inputs and pools of 16 bits: sums are in float32, against the same computed in float64."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import last_jax as last
from last_jax import distances
from last_jax.kernels import remainder

pytestmark = pytest.mark.sampled

KEY = jax.random.key(0)
DTYPES = [jnp.bfloat16, jnp.float16]
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(24, 5)).astype("f4")
POOL = last.Pool(X, np.arange(24) % 3)
SIMPLEX = last.constraints.simplex()


def mlp(params, x):
  return jax.nn.tanh(x @ params["a"] + params["b"][None]) @ params["c"]


def mlp_params(seed, dtype=None):
  draw = np.random.default_rng(seed)
  params = {"a": draw.normal(size=(5, 6)) / 2, "b": draw.normal(size=6) / 2, "c": draw.normal(size=(6, 3)) / 2}
  return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), params)


def learner_of(dtype, **settings):
  settings = settings or {"learning_rate": 0.5}
  return last.learners.from_apply(lambda key: mlp_params(0, dtype), mlp, "softmax_cross_entropy", **settings)


def as_float64(tree):
  return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), tree)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_loss_slopes_distance_and_objective_are_those_of_float64(dtype):
  learner = learner_of(dtype, learning_rate=0.5, weight_decay=0.1)
  params, target = mlp_params(0, dtype), mlp_params(1, dtype)
  labels = learner.encode(X, POOL.y)
  assert labels.dtype == jnp.float32
  found = {
    "outputs": learner.apply(params, X),
    "loss": learner.mean_loss(params, X, labels),
    "objective": learner.objective(params, X, labels),
    "distance": distances.distance(params, target),
    "gradient": learner.gradient(params, X, labels),
    "kernel": last.tangent_kernel(learner.apply, params, X[:4]),
    "product": last.tangent_product(learner.apply, params, X[:4], labels[:4]),
  }
  with jax.enable_x64(True):
    wide = learner_of(jnp.float64, learning_rate=0.5, weight_decay=0.1)
    w, goal, x, y = map(as_float64, (params, target, X, labels))
    jacobian = [np.reshape(leaf, (12, -1)) for leaf in jax.tree.leaves(jax.jacrev(lambda p: wide.apply(p, x[:4]))(w))]
    kernel = sum(part @ part.T for part in jacobian)
    expected = {
      "outputs": wide.apply(w, x),
      "loss": wide.mean_loss(w, x, y),
      "objective": wide.objective(w, x, y),
      "distance": np.sqrt(sum(np.sum((w[name] - goal[name]) ** 2) for name in w)),
      "gradient": jax.grad(wide.mean_loss)(w, x, y),
      "kernel": kernel.reshape(4, 3, 4, 3),
      "product": (kernel @ y[:4].reshape(-1)).reshape(4, 3),
    }
    expected = as_float64(expected)
  for name, value in found.items():
    for one, other in zip(jax.tree.leaves(value), jax.tree.leaves(expected[name]), strict=True):
      assert one.dtype == jnp.float32, name
      np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_step_is_rounded_once_and_momentum_is_kept_in_float32(dtype):
  learner = learner_of(dtype, learning_rate=0.5, momentum=0.9, weight_decay=0.1)
  student = learner.start(mlp_params(0, dtype))
  labels = learner.encode(X, POOL.y)
  velocity = jax.tree.map(lambda leaf: np.zeros(leaf.shape), student.params)
  for _ in range(3):
    slope = as_float64(learner.gradient(student.params, X, labels))
    params = as_float64(student.params)
    for name, w in params.items():
      velocity[name] = 0.9 * velocity[name] + slope[name] + (0.1 * w if w.ndim > 1 else 0.0)
    student = learner.step(student, X, labels)
    for name, w in params.items():
      rounded = student.params[name]
      assert rounded.dtype == dtype
      wanted = w - 0.5 * velocity[name]
      # Half a unit of the last digit, and the error of float32 sums.
      bound = 0.5 * float(jnp.finfo(dtype).eps) * np.abs(wanted) * 1.01 + 1e-6
      assert np.all(np.abs(np.asarray(rounded, np.float64) - wanted) <= bound)
  assert {leaf.dtype for leaf in jax.tree.leaves(student.opt_state)} == {jnp.dtype(jnp.float32)}


@pytest.mark.parametrize("dtype", DTYPES)
def test_many_small_gradients_of_one_row_of_a_table_add_up(dtype):
  """In 16 bits, 1/n added n times ends at a small share of one."""
  count = 4096
  learner = last.learners.from_apply(
    lambda key: jnp.zeros((3, 1), dtype),
    lambda params, x: params[x[:, 0].astype(int)],
    "squared_error",
    learning_rate=1.0,
  )
  x = jnp.zeros((count, 1))
  after = learner.step(learner.start(learner.init(KEY)), x, jnp.ones((count, 1))).params
  np.testing.assert_allclose(np.asarray(after, "f4"), [[1.0], [0.0], [0.0]])


TEACHERS = {
  "sgd": last.teachers.sgd,
  "greedy": lambda: last.teachers.greedy(SIMPLEX),
  "imt": last.teachers.imt,
  "mixed": lambda: last.teachers.mixed(SIMPLEX, joint=True),
}


class Net(nn.Module):
  param_dtype: object
  dtype: object = None

  @nn.compact
  def __call__(self, x):
    x = nn.tanh(nn.Dense(8, param_dtype=self.param_dtype, dtype=self.dtype)(x))
    return nn.Dense(3, param_dtype=self.param_dtype, dtype=self.dtype)(x)


NETWORKS = {
  "functions": learner_of,
  "linen": lambda dtype: last.learners.from_flax(Net(dtype), X[:1], loss="softmax_cross_entropy", learning_rate=0.5),
  "linen_computing_in_16_bits": lambda dtype: last.learners.from_flax(
    Net(dtype, dtype), X[:1], loss="softmax_cross_entropy", learning_rate=0.5
  ),
}


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", TEACHERS)
@pytest.mark.parametrize("network", NETWORKS)
def test_networks_of_16_bits_are_taught(network, method, dtype):
  learner = NETWORKS[network](dtype)
  start = learner.init(KEY)
  draw = np.random.default_rng(3)
  target = jax.tree.map(lambda leaf: leaf + jnp.asarray(0.2 * draw.normal(size=leaf.shape), dtype), start)
  result = last.teach(
    KEY, learner, TEACHERS[method](), POOL, target=target, init=start, test=POOL, steps=12, lessons=True
  )
  assert {leaf.dtype for leaf in jax.tree.leaves(result.params)} == {jnp.dtype(dtype)}
  for leaf in (result.distance, result.objective, result.accuracy, result.lessons.label):
    assert leaf.dtype == jnp.float32
    assert np.isfinite(leaf).all()
  if method in ("greedy", "mixed"):
    assert result.distance[-1] < result.distance[0]
  if method == "imt":
    student = learner.start(start)
    after = [
      distances.distance(learner.step(student, X[i : i + 1], learner.encode(X, POOL.y)[i : i + 1]).params, target)
      for i in range(len(POOL))
    ]
    assert result.lessons.index[0, 0] == np.argmin(after)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_greedy_labels_are_those_of_the_same_parameters_in_float32(dtype):
  narrow, wide = learner_of(dtype), learner_of(jnp.float32)
  params, target = mlp_params(0, dtype), mlp_params(1, dtype)
  widened = [jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree) for tree in (params, target)]
  for constraint in (SIMPLEX, last.constraints.magnitude(0.3)):
    labels = last.synthesize_labels(narrow, params, target, X[:4], POOL.y[:4], constraint)
    expected = last.synthesize_labels(wide, *widened, X[:4], POOL.y[:4], constraint)
    np.testing.assert_allclose(labels, expected, atol=0.03)  # A step of theirs is rounded to 16 bits.


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("method", TEACHERS)
def test_pools_of_16_bits(method, dtype):
  """The same as a pool of the same numbers in float32, to rounding."""
  narrow = last.Pool(jnp.asarray(X, dtype), POOL.y)
  wide = last.Pool(jnp.asarray(X, dtype).astype(jnp.float32), POOL.y)
  assert narrow.x.dtype == dtype
  logistic = last.learners.softmax(5, 3, learning_rate=0.3)
  network = last.learners.mlp((5, 6, 3), learning_rate=0.3)
  for learner in (logistic, network):
    target = learner.init(jax.random.key(4))
    results = [
      last.teach(KEY, learner, TEACHERS[method](), pool, target=target, test=pool, steps=10, lessons=True)
      for pool in (narrow, wide)
    ]
    assert results[0].lessons.label.dtype == jnp.float32
    np.testing.assert_array_equal(results[0].lessons.index, results[1].lessons.index)
    np.testing.assert_allclose(results[0].distance, results[1].distance, rtol=1e-4)
  np.testing.assert_allclose(
    last.unreachable_distance(logistic, target_of(logistic, 0), target_of(logistic, 1), narrow.x),
    last.unreachable_distance(logistic, target_of(logistic, 0), target_of(logistic, 1), wide.x),
    rtol=1e-4,
  )


def target_of(learner, seed):
  return learner.init(jax.random.key(seed))


@pytest.mark.slow
def test_targets_are_fitted_in_float32():
  params, fit = last.fit_target(learner_of(jnp.bfloat16, learning_rate=0.1, weight_decay=0.05), POOL, with_fit=True)
  assert fit.converged
  assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype(jnp.bfloat16)}
  linear = last.fit_target(
    last.learners.softmax(5, 3, learning_rate=0.1, weight_decay=0.1), last.Pool(POOL.x.astype(jnp.float16), POOL.y)
  )
  assert linear["weights"].dtype == jnp.float32


@pytest.mark.slow
def test_functions_that_do_not_mix_numbers_are_given_what_they_take():
  """`lax` convolutions take one dtype: that of the function's own conversion, or float32 for all."""

  def strict(params, x):
    images = x.reshape(-1, 1, 1, 5).astype(jnp.bfloat16)
    return lax.conv_general_dilated(images, params, (1, 1), "VALID").reshape(-1, 3)

  def mixing(params, x):
    return lax.conv_general_dilated(x.reshape(-1, 1, 1, 5), params, (1, 1), "VALID").reshape(-1, 3)

  weights = jnp.asarray(DRAW.normal(size=(3, 1, 1, 5)), jnp.bfloat16)
  expected = X @ np.asarray(weights, "f4").reshape(3, 5).T
  for function in (strict, mixing):
    learner = last.learners.from_apply(lambda key: weights, function, "softmax_cross_entropy", learning_rate=0.1)
    outputs = learner.apply(weights, X)
    assert outputs.dtype == jnp.float32
    np.testing.assert_allclose(outputs, expected, atol=0.05 if function is strict else 1e-5)
    labels = learner.encode(X, POOL.y)
    slope = learner.gradient(weights, X, labels)
    error = (np.asarray(jax.nn.softmax(expected)) - np.asarray(labels)).T @ X / len(X)
    np.testing.assert_allclose(np.reshape(slope, (3, 5)), error, atol=0.01 if function is strict else 1e-5)
    assert last.teach(KEY, learner, last.teachers.sgd(), POOL, steps=2).objective.dtype == jnp.float32
    product = last.tangent_product(function, weights, X[:2].astype(jnp.bfloat16), labels[:2])
    kernel = np.kron(X[:2] @ X[:2].T, np.eye(3)).reshape(2, 3, 2, 3)
    np.testing.assert_allclose(product, np.einsum("ikjl,jl->ik", kernel, labels[:2]), rtol=0.05, atol=0.05)


def test_small_gradients_of_float16_survive():
  """Without a scale, what is divided by the size of the batch falls below the smallest number of float16."""
  count = 4096

  def strict(params, x):
    return lax.dot(x.astype(jnp.float16), params)

  learner = last.learners.from_apply(
    lambda key: jnp.zeros((1, 1), jnp.float16), strict, "squared_error", learning_rate=1.0
  )
  slope = learner.gradient(jnp.zeros((1, 1), jnp.float16), jnp.ones((count, 1)), jnp.full((count, 1), 1e-4))
  np.testing.assert_allclose(slope, [[-1e-4]], rtol=0.01)


@pytest.mark.slow
def test_equinox_parameters_of_16_bits():
  model = jax.tree.map(
    lambda leaf: leaf.astype(jnp.bfloat16) if eqx.is_inexact_array(leaf) else leaf, eqx.nn.MLP(5, 3, 8, 1, key=KEY)
  )
  learner = last.learners.from_equinox(model, loss="softmax_cross_entropy", optimizer=optax.adam(0.01))
  result = last.teach(KEY, learner, last.teachers.sgd(), POOL, test=POOL, steps=5)
  assert {leaf.dtype for leaf in jax.tree.leaves(result.params)} == {jnp.dtype(jnp.bfloat16)}
  assert np.isfinite(result.objective).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
def test_kernels_of_leaves_that_cannot_be_read(dtype, monkeypatch):
  """The VJP road, and products with vectors, against float64."""
  monkeypatch.setattr(remainder, "FORMED", 1)  # Gradients in small leaves would be formed with the others.

  def apply_fn(params, x):
    return jnp.tanh(x @ jnp.sort(params["w"], 0)) @ params["v"]

  params = {
    "w": jnp.asarray(DRAW.normal(size=(5, 4)), dtype),
    "v": jnp.asarray(DRAW.normal(size=(4, 3)), dtype),
  }
  fixed = params["v"].astype(jnp.float32)
  x, v = X[:3], DRAW.normal(size=(3, 3)).astype("f4")
  assert last.tangent_roads(apply_fn, params, x)["w"] == "vjp"
  found = {
    "kernel": last.tangent_kernel(apply_fn, params, x),
    "own": last.tangent_kernel(apply_fn, params, x, diagonal=True),
    "product": last.tangent_product(apply_fn, params, x, v),
    "weighted": last.tangent_product(apply_fn, params, x, v, weights={"w": 0.5, "v": 2.0}),
  }
  with jax.enable_x64(True):
    wide, inputs = as_float64(params), np.asarray(x, float)
    jacobian = jax.jacrev(lambda p: apply_fn(p, inputs))(wide)
    jacobian = {name: np.asarray(leaf).reshape(9, -1) for name, leaf in jacobian.items()}
  parts = {name: leaf @ leaf.T for name, leaf in jacobian.items()}
  kernel = sum(parts.values())
  expected = {
    "kernel": kernel.reshape(3, 3, 3, 3),
    "own": np.stack([kernel.reshape(3, 3, 3, 3)[i, :, i] for i in range(3)]),
    "product": (kernel @ v.reshape(-1)).reshape(3, 3),
    "weighted": ((0.5 * parts["w"] + 2.0 * parts["v"]) @ v.reshape(-1)).reshape(3, 3),
  }
  for name, value in found.items():
    assert value.dtype == jnp.float32
    # The kernel of `v`, a product, is a sum of products of activations of 16 bits.
    digits = 1e-5 if "product" in name or name == "weighted" else 4 * float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(value, expected[name], rtol=digits, atol=digits, err_msg=name)
  rows = last.tangent_kernel(lambda params, x: apply_fn({"w": params, "v": fixed}, x), params["w"], x)
  np.testing.assert_allclose(rows, parts["w"].reshape(3, 3, 3, 3), rtol=1e-4, atol=1e-5)
