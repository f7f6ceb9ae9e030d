"""Networks of Flax (linen and nnx) and Equinox as learners: outputs, evaluation mode, starts, files, compilations."""

import functools

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import last_jax as last
from last_jax import distances
from tests.compilations import counted

KEY = jax.random.key(0)
DRAW = np.random.default_rng(0)
X = DRAW.normal(size=(30, 4)).astype("f4")
POOL = last.Pool(X, np.arange(30) % 3)
LOSS = "softmax_cross_entropy"


class Linen(nn.Module):
  width: int = 8
  activation: object = nn.tanh

  @nn.compact
  def __call__(self, x, train: bool):
    x = nn.BatchNorm(use_running_average=not train)(nn.Dense(self.width)(x))
    x = nn.Dropout(0.5, deterministic=not train)(self.activation(x))
    return nn.Dense(3)(x)


class Nnx(nnx.Module):
  def __init__(self, width=8, activation=nnx.tanh, *, rngs):
    self.first, self.last = nnx.Linear(4, width, rngs=rngs), nnx.Linear(width, 3, rngs=rngs)
    self.norm, self.dropout = nnx.BatchNorm(width, rngs=rngs), nnx.Dropout(0.5, rngs=rngs)
    self.activation = activation

  def __call__(self, x):
    return self.last(self.dropout(self.activation(self.norm(self.first(x)))))


class Equinox(eqx.Module):
  first: eqx.nn.Linear
  last: eqx.nn.Linear
  norm: eqx.nn.BatchNorm
  dropout: eqx.nn.Dropout
  activation: object
  order: jax.Array

  def __init__(self, width=8, activation=jnp.tanh, *, key):
    keys = jax.random.split(key)
    self.first, self.last = eqx.nn.Linear(4, width, key=keys[0]), eqx.nn.Linear(width, 3, key=keys[1])
    self.norm = eqx.nn.BatchNorm(width, axis_name="batch", mode="batch")
    self.dropout, self.activation = eqx.nn.Dropout(0.5), activation
    self.order = jnp.arange(width)[::-1]  # Integers are no parameters.

  def __call__(self, x, state, key):
    x, state = self.norm(self.first(x)[self.order], state)
    return self.last(self.dropout(self.activation(x), key=key)), state


class Plain(eqx.Module):
  layers: tuple
  activation: object = eqx.field(static=True)

  def __init__(self, activation, *, key):
    keys = jax.random.split(key)
    self.layers = (eqx.nn.Linear(4, 8, key=keys[0]), eqx.nn.Linear(8, 3, key=keys[1]))
    self.activation = activation

  def __call__(self, x):
    return self.layers[1](self.activation(self.layers[0](x)))


SETTINGS = {"loss": LOSS, "learning_rate": 0.2}
MAKERS = {
  "linen": lambda *arguments: last.learners.from_flax(Linen(*arguments), X[:1], **SETTINGS),
  "nnx": lambda *arguments: last.learners.from_flax(functools.partial(Nnx, *arguments), X[:1], **SETTINGS),
  "nnx_instance": lambda *arguments: last.learners.from_flax(Nnx(*arguments, rngs=nnx.Rngs(3)), X[:1], **SETTINGS),
  "equinox": lambda *arguments: last.learners.from_equinox(
    functools.partial(eqx.nn.make_with_state(Equinox), *arguments), **SETTINGS
  ),
  "equinox_instance": lambda *arguments: last.learners.from_equinox(
    eqx.nn.make_with_state(Equinox)(*arguments, key=jax.random.key(3)), X[:1], **SETTINGS
  ),
}


def start_and_target(learner):
  """A start, and a target near it."""
  start = learner.init(jax.random.key(1))
  leaves, structure = jax.tree.flatten(start)
  draw = np.random.default_rng(2)
  moved = [leaf + 0.1 * draw.normal(size=leaf.shape).astype("f4") for leaf in leaves]
  return start, jax.tree.unflatten(structure, moved)


# --- What is computed: against the libraries themselves.


def test_a_linen_module_is_evaluated_with_its_statistics():
  module = Linen()
  variables = module.init(KEY, X[:1], train=False)
  trained = jax.tree.map(lambda leaf: leaf + 0.5, variables["batch_stats"])
  learner = last.learners.from_flax(module, X[:1], variables={"batch_stats": trained}, **SETTINGS)
  params = learner.init(KEY)
  jax.tree.map(np.testing.assert_array_equal, params, variables["params"])
  expected = module.apply({"params": params, "batch_stats": trained}, X, train=False)
  np.testing.assert_allclose(learner.apply(params, X), expected, rtol=1e-6)
  initial = last.learners.from_flax(module, X[:1], **SETTINGS)
  assert np.max(np.abs(initial.apply(params, X) - expected)) > 1e-2
  np.testing.assert_allclose(initial.apply(params, X), module.apply(variables, X, train=False), rtol=1e-6)


def test_an_nnx_module_is_evaluated_with_its_statistics_and_not_changed():
  module = Nnx(rngs=nnx.Rngs(0))
  for _ in range(3):
    module(X)  # In training mode: the statistics move.
  learner = last.learners.from_flax(module, X[:1], **SETTINGS)
  assert not module.dropout.deterministic
  params = learner.init(jax.random.key(5))
  before = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(module))["norm"])
  result = last.teach(KEY, learner, last.teachers.sgd(), POOL, steps=3)
  jax.tree.map(np.testing.assert_array_equal, nnx.to_pure_dict(nnx.state(module))["norm"], before)
  trained = nnx.clone(module)
  module.eval()
  np.testing.assert_allclose(learner.apply(params, X), module(X), rtol=1e-6)
  nnx.update(trained, result.params)
  trained.eval()
  np.testing.assert_allclose(trained(X), learner.apply(result.params, X), rtol=1e-6)


@pytest.mark.slow
def test_an_equinox_module_is_evaluated_with_its_state():
  model, state = eqx.nn.make_with_state(Equinox)(key=KEY)
  noise = jax.random.split(KEY, len(X))
  outputs, state = jax.vmap(model, axis_name="batch", in_axes=(0, None, 0), out_axes=(0, None))(X, state, noise)
  learner = last.learners.from_equinox((model, state), **SETTINGS)
  params = learner.init(jax.random.key(5))
  jax.tree.map(np.testing.assert_array_equal, params, eqx.filter(model, eqx.is_inexact_array))
  evaluated = eqx.nn.inference_mode(model)
  expected = jax.vmap(lambda x: evaluated(x, state, None)[0])(X)
  np.testing.assert_allclose(learner.apply(params, X), expected, rtol=1e-6)
  assert np.max(np.abs(outputs - expected)) > 1e-2
  result = last.teach(KEY, learner, last.teachers.sgd(), POOL, steps=3)
  taught = eqx.combine(result.params, evaluated)
  np.testing.assert_allclose(
    jax.vmap(lambda x: taught(x, state, None)[0])(X), learner.apply(result.params, X), rtol=1e-6
  )


@pytest.mark.parametrize("kind", MAKERS)
def test_starts_are_random_unless_a_module_was_given(kind):
  learner = MAKERS[kind]()
  one, same, other = (learner.init(jax.random.key(seed)) for seed in (1, 1, 2))
  jax.tree.map(np.testing.assert_array_equal, one, same)
  assert (distances.squared_distance(one, other) == 0) == kind.endswith("instance")


# --- What is done with it.


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_labels_files_and_kernels(kind, tmp_path):
  learner = MAKERS[kind]()
  start, goal = start_and_target(learner)
  problem = last.Problem(learner, POOL, target=goal, test=POOL)
  teacher = last.teachers.greedy(last.constraints.simplex())
  state = last.init(KEY, problem, teacher, params=start)
  state, records = last.run(state, problem, teacher, steps=20, batch_size=2)
  assert records.distance[-1] < records.distance[0]
  last.save(tmp_path / "state", state)
  jax.tree.map(np.testing.assert_array_equal, last.load(tmp_path / "state", like=state).student, state.student)
  kernel = last.tangent_kernel(learner.apply, start, X[:3])
  jacobian = jax.tree.leaves(jax.jacrev(lambda params: learner.apply(params, X[:3]))(start))
  flat = np.concatenate([np.reshape(leaf, (9, -1)) for leaf in jacobian], 1)
  np.testing.assert_allclose(np.reshape(kernel, (9, 9)), flat @ flat.T, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKERS)
def test_targets_are_fitted(kind):
  learner = MAKERS[kind]()
  with pytest.warns(UserWarning, match="fit_target"):
    fitted, fit = last.fit_target(learner, POOL, max_steps=30, with_fit=True)
  assert fit.objective < learner.mean_loss(learner.init(KEY), X, learner.encode(X, POOL.y))
  last.teach(KEY, learner, last.teachers.imt(), POOL, target=fitted, steps=2)


# --- Made again, nothing is compiled.


def scaled(factor):
  return lambda x: factor * jnp.tanh(x)


@pytest.mark.parametrize("kind", MAKERS)
def test_a_module_made_again_compiles_nothing(kind):
  def teach(learner):
    return last.teach(KEY, learner, last.teachers.sgd(), POOL, steps=2).objective[-1]

  first = teach(MAKERS[kind](8, scaled(1.0)))
  again = MAKERS[kind](8, scaled(1.0))
  with counted() as programs:
    second = teach(again)
  assert not programs.names
  np.testing.assert_array_equal(first, second)
  other = MAKERS[kind](8, scaled(2.0))
  assert again.model == MAKERS[kind](8, scaled(1.0)).model != other.model
  assert np.abs(teach(other) - first) > 1e-4


def test_parameters_and_statistics_are_data():
  """Modules that differ in their arrays share compiled programs."""
  stats = Linen().init(KEY, X[:1], train=False)["batch_stats"]

  def linen(shift):
    variables = {"batch_stats": jax.tree.map(lambda leaf: leaf + shift, stats)}
    return last.learners.from_flax(Linen(), X[:1], variables=variables, **SETTINGS)

  def equinox(seed):
    return last.learners.from_equinox(Plain(jnp.tanh, key=jax.random.key(seed)), **SETTINGS)

  for make in (linen, equinox):
    one, other = make(0), make(1)
    first = last.teach(KEY, one, last.teachers.sgd(), POOL, steps=2).objective[-1]
    with counted() as programs:
      second = last.teach(KEY, other, last.teachers.sgd(), POOL, steps=2).objective[-1]
    assert not programs.names
    assert np.abs(first - second) > 1e-4


# --- What is refused.


class Bare(nnx.Module):
  def __call__(self, x):
    return x


class Twice(nn.Module):
  @nn.compact
  def __call__(self, x):
    x = nn.Dense(3)(x)
    return x, x


@pytest.mark.parametrize(
  ("make", "error", "message"),
  [
    (lambda: last.learners.from_flax(3, X[:1], **SETTINGS), TypeError, "module must be a linen or nnx module"),
    (lambda: last.learners.from_flax(Linen, X[:1], **SETTINGS), TypeError, r"module must be an instance, as Linen\("),
    (lambda: last.learners.from_flax(Linen(), None, **SETTINGS), TypeError, "x is missing"),
    (lambda: last.learners.from_flax(Linen(), "x", **SETTINGS), TypeError, "x must be a batch of inputs"),
    (lambda: last.learners.from_flax(lambda rngs: 3, X[:1], **SETTINGS), TypeError, "must return an nnx module"),
    (lambda: last.learners.from_flax(Bare(), X[:1], **SETTINGS), ValueError, "module has no parameters"),
    (lambda: last.learners.from_flax(Twice(), X[:1], **SETTINGS), TypeError, "module must return .* returned a tuple"),
    (lambda: last.learners.from_flax(Linen(), X[:1], variables={}, **SETTINGS), ValueError, "lack .* 'batch_stats'"),
    (
      lambda: last.learners.from_flax(Bare(), X[:1], variables={}, **SETTINGS),
      ValueError,
      "variables are for linen modules",
    ),
    (lambda: last.learners.from_flax(Linen(), X[:1], loss=LOSS), ValueError, "learning_rate is missing"),
    (lambda: last.learners.from_equinox(3, **SETTINGS), TypeError, "model must be an Equinox module"),
    (lambda: last.learners.from_equinox(lambda key: 3, **SETTINGS), TypeError, "model must be, or return, .* is int"),
    (
      lambda: last.learners.from_equinox(eqx.nn.Linear(4, 3, dtype=jnp.complex64, key=KEY), **SETTINGS),
      TypeError,
      "model must have parameters that are a tree of floating point arrays, but its leaf .weight is complex64",
    ),
  ],
)
def test_bad_modules_are_refused(make, error, message):
  with pytest.raises(error, match=message):
    make()


def test_optimizers_are_as_for_other_learners():
  learner = last.learners.from_flax(Linen(), X[:1], loss=LOSS, optimizer=optax.adam(0.1), weight_decay=0.1)
  assert learner.weight_decay == 0.1
  heavy = last.learners.from_equinox(
    lambda key: Plain(jnp.tanh, key=key), loss=LOSS, learning_rate=0.1, momentum=0.9, nesterov=True
  )
  assert (heavy.optimizer.momentum, heavy.optimizer.nesterov) == (0.9, True)
