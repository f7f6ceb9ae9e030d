"""Policies whose network is a Flax module: against the built-in network, one of each kind trained, and files."""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import nnx

import last_jax as last
from last_jax import training
from tests.compilations import assert_compiled_once
from tests.problems import view_of

KEY = jax.random.key(0)


class Twin(nn.Module):
  """The built-in network with one hidden layer, written as a user would, with weights of the same names."""

  width: int

  @nn.compact
  def __call__(self, features):
    own = jnp.concatenate([features["x"], features["label"], features["prediction"]], -1)
    hidden = nn.Dense(8, name="own", param_dtype=own.dtype)(own)
    shared = nn.Dense(8, use_bias=False, name="shared", param_dtype=own.dtype)(features["params"][None])
    return nn.Dense(self.width, name="layer_1", param_dtype=own.dtype)(
      nn.relu(hidden + jnp.repeat(shared, len(own), 0))
    )


class Convolution(nn.Module):
  """A CNN over the images of the batch."""

  width: int
  activation: Callable = nn.relu

  @nn.compact
  def __call__(self, features, train=True):
    assert not train
    x = nn.avg_pool(self.activation(nn.Conv(4, (3, 3))(features["x"])), (2, 2), (2, 2))
    x = jnp.concatenate([x.reshape(x.shape[0], -1), features["label"]], -1)
    return nn.Dense(self.width)(x)


class Attention(nn.Module):
  """Attention over the batch: what an example is labelled depends on the others."""

  width: int

  @nn.compact
  def __call__(self, features):
    own = jnp.concatenate([features["x"].reshape(features["x"].shape[0], -1), features["label"]], -1)
    tokens = nn.Dense(8)(own)
    return nn.Dense(self.width)(tokens + nn.MultiHeadDotProductAttention(2)(tokens))


class Hypernetwork(nn.Module):
  """The student's parameters give the weights of a linear map of each example."""

  width: int

  @nn.compact
  def __call__(self, features):
    own = jnp.concatenate([features["x"].reshape(features["x"].shape[0], -1), features["label"]], -1)
    weights = nn.Dense(own.shape[1] * self.width)(nn.tanh(nn.Dense(4)(features["params"])))
    return own @ weights.reshape(own.shape[1], self.width)


class NnxConvolution(nnx.Module):
  """A CNN over the images of the batch, in nnx; its layers are in a list."""

  def __init__(self, width, *, rngs):
    self.layers = nnx.List([nnx.Conv(1, 4, (3, 3), rngs=rngs), nnx.Linear(4 * 9 + 2, width, rngs=rngs)])

  def __call__(self, features, train=True):
    assert not train
    x = nnx.avg_pool(nnx.relu(self.layers[0](features["x"])), (2, 2), (2, 2))
    return self.layers[1](jnp.concatenate([x.reshape(x.shape[0], -1), features["label"]], -1))


class NnxAttention(nnx.Module):
  """Attention over the batch, in nnx."""

  def __init__(self, width, *, rngs):
    self.first, self.last = nnx.Linear(36 + 2, 8, rngs=rngs), nnx.Linear(8, width, rngs=rngs)
    self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)

  def __call__(self, features):
    own = jnp.concatenate([features["x"].reshape(features["x"].shape[0], -1), features["label"]], -1)
    tokens = self.first(own)
    return self.last(tokens + self.attention(tokens))


class NnxHypernetwork(nnx.Module):
  """The student's parameters give the weights of a linear map of each example, in nnx."""

  def __init__(self, width, *, rngs):
    self.width = width
    self.first, self.last = nnx.Linear(72, 4, rngs=rngs), nnx.Linear(4, 38 * width, rngs=rngs)

  def __call__(self, features):
    own = jnp.concatenate([features["x"].reshape(features["x"].shape[0], -1), features["label"]], -1)
    return own @ self.last(nnx.tanh(self.first(features["params"]))).reshape(38, self.width)


def images(count=24):
  """Two classes of 6 x 6 images: bright above or below."""
  draw = np.random.default_rng(0)
  y = np.arange(count) % 2
  x = draw.normal(size=(count, 6, 6, 1)).astype(np.float32)
  x[y == 0, :3] += 1.0
  x[y == 1, 3:] += 1.0
  flat = last.learners.from_apply(
    lambda key: {"w": 0.1 * jax.random.normal(key, (36, 2))},
    lambda params, x: x.reshape(x.shape[0], -1) @ params["w"],
    "softmax_cross_entropy",
    learning_rate=0.02,
  )
  return flat, last.Pool(x, y)


EVOLUTION = {"students": 20, "horizon": 10, "deviation": 0.05}
REINFORCE = {"actions": [[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]], "students": 32, "group": 4, "horizon": 10}


def twins(method, **settings):
  """The gradient of an episode, of the built-in network and of the module with its weights."""
  data = last.data.half_moons()
  learner = last.learners.softmax(2, 2, learning_rate=0.3)
  found = []
  for more in ({"hidden": (8,)}, {"policy": Twin(5 if method is training.Reinforce else 2)}):
    chosen = method(horizon=4, batch_size=3, students=4, **settings, **more)
    trainer = training.make_trainer(chosen, learner, data.train)
    state = jax.jit(training.Trainer.init)(trainer, KEY)
    weights = found[0][0] if found else jax.tree.map(lambda w: 30 * w, state.policy.weights)
    policy = dataclasses.replace(state.policy, weights=weights)
    keys = jax.random.split(jax.random.key(3), 4)
    episode = jax.jit(type(trainer.method).episode)
    gradient, students, metrics = episode(trainer.method, trainer.problem, policy, state.students, keys)
    found.append((weights, gradient, students, metrics))
  return found


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unrolled", "reinforce", "evolution"])
def test_a_module_is_trained_as_the_built_in_network_is(x64, name):
  kinds = {
    "unrolled": (training.Unrolled, {}),
    "reinforce": (training.Reinforce, {"actions": last.outputs.BINARY}),
    "evolution": (training.Evolution, {}),
  }
  kind, settings = kinds[name]
  (_, *own), (_, *module) = twins(kind, **settings)
  if name == "evolution":  # Its noise follows the order of the weights, which is the same.
    assert jax.tree.structure(own[0]) == jax.tree.structure(module[0])
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-8, atol=1e-10), own, module)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("module", "method", "settings"),
  [
    (Convolution(2), last.train_unrolled, {}),
    (Attention(2), last.train_evolution, EVOLUTION),
    (Hypernetwork(3), last.train_reinforce, REINFORCE),
    (functools.partial(NnxConvolution, 2), last.train_unrolled, {}),
    (lambda rngs: NnxAttention(2, rngs=rngs), last.train_unrolled, {"evaluate_every": 1}),
    (functools.partial(NnxHypernetwork, 3), last.train_reinforce, REINFORCE),
  ],
  ids=["cnn", "attention", "hypernetwork", "nnx_cnn", "nnx_attention", "nnx_hypernetwork"],
)
def test_one_of_each_kind_learns(module, method, settings):
  learner, pool = images()
  settings = {"evaluate_every": 5, "evaluation_steps": 40, "learning_rate": 0.02, "batch_size": 4} | settings
  policy, log = method(KEY, learner, pool, policy=module, episodes=60, **settings)
  assert log.score[-1] > log.score[0] + 0.01
  result = last.teach(KEY, learner, last.teachers.policy(policy), pool, steps=40, batch_size=4, metrics="objective")
  assert result.objective[-1] < result.objective[0]


@pytest.mark.slow
def test_attention_sees_the_batch():
  learner, pool = images()
  problem = last.Problem(learner, pool)
  students = jax.vmap(learner.init)(jax.random.split(KEY, 8))
  for module, depends in ((Attention(2), True), (Convolution(2), False)):

    @jax.jit
    def labels(others, module=module):
      policy = last.teachers.make_policy(KEY, problem, students, module=module)
      view = view_of(problem, learner.start(learner.init(KEY)))
      return jax.vmap(lambda second: policy.labels(view, jnp.array([0, second]), None)[0])(others)

    one, other = labels(jnp.array([1, 2]))
    assert (np.abs(one - other).max() > 1e-4) == depends


@pytest.mark.slow
def test_an_nnx_module_is_applied_as_nnx_does():
  learner, pool = images()
  problem, params = last.Problem(learner, pool), learner.init(KEY)
  students = jax.tree.map(lambda leaf: leaf[None].repeat(2, 0), params)
  make = functools.partial(NnxConvolution, 2)
  first, second = (
    last.teachers.make_policy(key, problem, students, module=make, standardize=False) for key in jax.random.split(KEY)
  )
  assert jax.tree.structure(first) == jax.tree.structure(second)
  assert np.any(first.weights["layers"]["0"]["kernel"] != second.weights["layers"]["0"]["kernel"])
  module = make(rngs=nnx.Rngs(0))
  module.layers[0].kernel[...] = first.weights["layers"]["0"]["kernel"]
  module.layers[1].kernel[...] = first.weights["layers"]["1"]["kernel"]
  index = jnp.array([3, 8])
  found = first.numbers(view_of(problem, learner.start(params)), index)
  expected = module({"x": problem.pool.x[index], "label": problem.truth[index]}, train=False)
  np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("library", ["linen", "nnx"])
def test_a_module_made_again_does_not_compile_again(library):
  learner, pool = images()

  def train(seed):
    module = Convolution(2, activation=lambda x: jnp.maximum(x, 0.1 * x))
    if library == "nnx":
      module = lambda rngs: NnxConvolution(2, rngs=rngs)  # noqa: E731
    last.train_unrolled(jax.random.key(seed), learner, pool, policy=module, horizon=2, students=2, episodes=2)

  assert_compiled_once(train, [0, 1])


class TestFiles:
  def policy(self, module):
    learner, pool = images()
    students = jax.vmap(learner.init)(jax.random.split(KEY, 8))
    return last.teachers.make_policy(KEY, last.Problem(learner, pool), students, module=module)

  @pytest.mark.parametrize("module", [Convolution(2), functools.partial(NnxConvolution, 2)], ids=["linen", "nnx"])
  @pytest.mark.slow
  def test_weights_come_back_with_the_module(self, tmp_path, module):
    policy = self.policy(module)
    last.save_policy(tmp_path / "policy.npz", policy)
    for found in (
      last.load_policy(tmp_path / "policy.npz", module=module),
      last.load(tmp_path / "policy.npz", like=policy),
    ):
      assert jax.tree.structure(found) == jax.tree.structure(policy)
      jax.tree.map(np.testing.assert_array_equal, found, policy)

  @pytest.mark.slow
  def test_without_the_right_module_it_is_refused(self, tmp_path):
    path = tmp_path / "policy.npz"
    last.save_policy(path, self.policy(Convolution(2)))
    with pytest.raises(ValueError, match=r"policy\.npz .*Flax module Convolution, .*module=Convolution\(\.\.\.\)"):
      last.load_policy(path)
    with pytest.raises(ValueError, match=r"policy\.npz does not hold a Policy of this module: .*weights of the shapes"):
      last.load_policy(path, module=Attention(2))
    with pytest.raises(TypeError, match=r"module must be a linen module or a function of rngs"):
      last.load_policy(path, module="Convolution")
    learner, pool = images()
    students = jax.vmap(learner.init)(jax.random.split(KEY, 8))
    last.save_policy(path, last.teachers.make_policy(KEY, last.Problem(learner, pool), students, hidden=(4,)))
    with pytest.raises(ValueError, match="needs no module"):
      last.load_policy(path, module=Convolution(2))


class Normalized(nn.Module):
  """Has batch statistics."""

  @nn.compact
  def __call__(self, features):
    return nn.Dense(2)(nn.BatchNorm(use_running_average=True)(features["label"]))


class NnxDropout(nnx.Module):
  """Has random numbers."""

  def __init__(self, rngs):
    self.last, self.drop = nnx.Linear(2, 2, rngs=rngs), nnx.Dropout(0.1, rngs=rngs)

  def __call__(self, features):
    return self.last(self.drop(features["label"]))


@pytest.mark.parametrize(
  ("policy", "error", "message"),
  [
    (Convolution(3), ValueError, r"policy must return numbers of shape \[m, 2\] .* it returned \(1, 3\)"),
    (Convolution, TypeError, r"policy must be an instance, as Convolution\(\.\.\.\)"),
    (lambda features: features["x"], TypeError, "policy, as a function of rngs, must return an nnx module"),
    (3, TypeError, "policy must be a linen module or a function of rngs that makes an nnx module, but it is a int"),
    (NnxConvolution(2, rngs=nnx.Rngs(0)), TypeError, r"weights of its own, .*lambda rngs: NnxConvolution\("),
    (lambda rngs: NnxDropout(rngs), ValueError, "policy must have parameters only, but its nnx module also has .*drop"),
    (Normalized(), ValueError, "policy must have parameters only, but .* collection 'batch_stats'"),
  ],
)
def test_bad_modules_are_named(policy, error, message):
  learner, pool = images()
  with pytest.raises(error, match=message):
    last.train_unrolled(KEY, learner, pool, policy=policy)


def test_hidden_belongs_to_the_built_in_network():
  learner, pool = images()
  with pytest.raises(ValueError, match="hidden belongs to the built-in network"):
    last.train_unrolled(KEY, learner, pool, policy=Convolution(2), hidden=(8,))
