"""A function that is made again and cannot be compared by structure does not compile again silently."""

import functools
import gc
import warnings

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import last_jax as last
from last_jax.remade import warn_if_remade
from tests.compilations import counted

KEY = jax.random.key(0)
X = np.random.default_rng(0).normal(size=(20, 3)).astype("f4")
POOL = last.Pool(X, np.arange(20) % 2)


class Mutable:
  """An object that may change in place."""

  def __init__(self):
    self.scale = 1.0


def number(held):
  return held.scale if isinstance(held, Mutable) else held


def apply_holding(held):
  return lambda params, x: (x @ params) * number(held)


def init_fn(key):
  return jax.random.normal(key, (3, 2))


def from_apply(apply_fn=lambda params, x: x @ params, loss="softmax_cross_entropy", **settings):
  return last.learners.from_apply(init_fn, apply_fn, loss, **(settings or {"learning_rate": 0.1}))


def activation_of(held):
  return lambda x: number(held) * jnp.tanh(x)


class Linen(nn.Module):
  activation: object

  @nn.compact
  def __call__(self, x):
    return nn.Dense(2)(self.activation(nn.Dense(4)(x)))


class Nnx(nnx.Module):
  def __init__(self, activation, *, rngs):
    self.activation, self.layer = activation, nnx.Linear(3, 2, rngs=rngs)

  def __call__(self, x):
    return self.activation(self.layer(x))


class Equinox(eqx.Module):
  layer: eqx.nn.Linear
  activation: object = eqx.field(static=True)

  def __init__(self, activation, *, key):
    self.layer, self.activation = eqx.nn.Linear(3, 2, key=key), activation

  def __call__(self, x):
    return self.activation(self.layer(x))


def linen(activation):
  return last.learners.from_flax(Linen(activation), X[:1], loss="softmax_cross_entropy", learning_rate=0.1)


def from_nnx(activation):
  make = functools.partial(Nnx, activation)
  return last.learners.from_flax(make, X[:1], loss="softmax_cross_entropy", learning_rate=0.1)


def equinox(activation):
  make = functools.partial(Equinox, activation)
  return last.learners.from_equinox(make, loss="softmax_cross_entropy", learning_rate=0.1)


# Made twice they compile twice, and this is said; of what must be made once in the second column.
AGAIN = {
  "apply_fn": lambda held: from_apply(apply_holding(held)),
  "loss": lambda held: from_apply(loss=lambda z, y: number(held) * jnp.sum((z - y) ** 2)),
  "learning_rate": lambda held: from_apply(learning_rate=lambda count: 0.1 * number(held)),
  "optimizer": lambda held: from_apply(
    optimizer=optax.stateless(lambda g, w: jax.tree.map(lambda leaf: number(held) * leaf, g))
  ),
  "activation": lambda held: last.learners.mlp((3, 4, 2), learning_rate=0.1, activation=activation_of(held)),
  "module": lambda held: linen(activation_of(held)),
  "module of nnx": lambda held: from_nnx(activation_of(held)),
  "model": lambda held: equinox(activation_of(held)),
}


def teach(learner):
  return last.teach(KEY, learner, last.teachers.sgd(), POOL, steps=2)


@pytest.mark.parametrize("name", AGAIN)
def test_an_object_that_may_change_is_named_once(name):
  held = Mutable()
  teach(AGAIN[name](held))
  # Called again with the same object, a function is still another one; JAX compiles again.
  with pytest.warns(UserWarning, match=f"^{name.split()[0]} was made again and will be compiled again") as caught:
    learner = AGAIN[name](Mutable())
  assert [warning.filename for warning in caught] == [__file__]
  with counted() as programs:
    teach(learner)
  assert "jit(_teach)" in programs.names
  AGAIN[name](Mutable())  # Said once: warnings are errors here.


@pytest.mark.parametrize("name", [name for name in AGAIN if name != "model"])
def test_functions_made_again_are_silent_and_compile_nothing(name):
  teach(AGAIN[name](0.5))
  learner = AGAIN[name](0.5)
  with counted() as programs:
    teach(learner)
  assert not programs.names
  AGAIN[name](0.25)  # Another number is another function: nothing to warn of.


def test_functions_in_static_fields_of_equinox_modules_are_named():
  """JAX compares the trees of the parameters, which hold these fields."""
  equinox(activation_of(0.5))
  with pytest.warns(UserWarning, match="^model was made again .*: functions in its static fields"):
    equinox(activation_of(0.5))
  make = functools.partial(equinox, jnp.tanh)  # Made once.
  make()
  teach(make())


def test_large_arrays_are_named():
  def make(table):
    return from_apply(lambda params, x: x @ params + table[:1, :2])

  table = jnp.zeros((300, 300))
  teach(make(table))
  learner = make(table)
  with counted() as programs:
    teach(learner)
  assert not programs.names
  with pytest.warns(UserWarning, match=r"its part, a ArrayImpl of shape \[300, 300\], is compared by identity"):
    make(jnp.zeros((300, 300)))


def test_functions_of_libraries_and_tracers_are_silent():
  for activation in (jnp.tanh, jax.nn.relu, jnp.sin, nn.gelu, np.tanh, np.sin):
    last.learners.mlp((3, 4, 2), learning_rate=0.1, activation=activation)

  @jax.jit
  def traced(scale):
    return from_apply(lambda params, x: scale * (x @ params)).apply(jnp.ones((3, 2)), X)

  with warnings.catch_warnings():
    warnings.simplefilter("error")
    traced(1.0), jax.grad(lambda scale: traced(scale).sum())(2.0)


def test_jitted_functions_made_again_are_named():
  def make():
    return from_apply(jax.jit(lambda params, x: x @ params))

  make()
  with pytest.warns(UserWarning, match="^apply_fn was made again .*: it is compared by identity"):
    make()


def test_an_object_at_the_address_of_a_collected_one_is_named():
  """An id is that of another object once the first is gone."""
  first = Mutable()
  address = id(first)
  warn_if_remade("function", first)
  del first
  gc.collect()
  many = [Mutable() for _ in range(100_000)]  # One of them takes the place of the first.
  second = next(value for value in many if id(value) == address)
  with pytest.warns(UserWarning, match="^function was made again"):
    warn_if_remade("function", second)
