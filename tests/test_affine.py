"""Affine or not, decided from the jaxpr: operations, control flow, losses, optimizers, and random compositions."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import last_jax as last
from last_jax.affine import is_affine

VECTOR = jax.ShapeDtypeStruct((4,), jnp.float32)
MATRIX = np.random.default_rng(0).normal(size=(4, 4))
MASK = np.array([True, False, True, True])


def scan(step):
  return lambda x: jax.lax.scan(step, x, jnp.arange(3.0))


def with_rule(function):
  """The function with a derivative of its own."""
  custom = jax.custom_jvp(function)
  custom.defjvp(lambda primals, tangents: (function(*primals), tangents[0]))
  return custom


def with_reverse_rule(function):
  custom = jax.custom_vjp(function)
  custom.defvjp(lambda x: (function(x), None), lambda _, cotangent: (cotangent,))
  return custom


def through_reference(x):
  """A square that passes through a mutable array."""
  cell = jax.new_ref(jnp.zeros(4))
  cell[...] = x * x
  return cell[...]


# Functions of a vector [4] to a vector [4].
AFFINE = {
  "negative": lambda x: -x,
  "shift": lambda x: x + 3.0,
  "from": lambda x: 1.0 - x,
  "scale": lambda x: 0.5 * x,
  "quotient": lambda x: x / 2.5,
  "matrix": lambda x: jnp.asarray(MATRIX, x.dtype) @ x,
  "convolution": lambda x: jnp.convolve(x, jnp.array([0.5, -1.0, 2.0], x.dtype), mode="same"),
  "mean": lambda x: jnp.full_like(x, 1.0) * jnp.mean(x),
  "cumsum": jnp.cumsum,
  "reverse": lambda x: x[::-1],
  "roll": lambda x: jnp.roll(x, 1),
  "gather": lambda x: x[jnp.array([2, 0, 0, 3])],
  "dynamic_slice": lambda x: jax.lax.dynamic_slice(jnp.concatenate([x, x]), (2,), (4,)),
  "update": lambda x: x.at[1].set(7.0),
  "scatter": lambda x: x.at[jnp.array([0, 0, 2])].add(x[:3]),
  "pad": lambda x: jnp.pad(x[:2], 1, constant_values=2.0),
  "reshape": lambda x: x.reshape(2, 2).T.reshape(4),
  "stack": lambda x: jnp.stack([x, 2 * x], 1).sum(1),
  "where": lambda x: jnp.where(MASK, x, -x),
  "select_constant": lambda x: jnp.where(MASK, x, 1.0),
  "jit": jax.jit(lambda x: 2 * x),
  "remat": jax.checkpoint(lambda x: 2 * x),
  "vmap": jax.vmap(lambda each: 3 * each),
  "custom_jvp": with_rule(lambda x: 2 * x),
  "custom_vjp": with_reverse_rule(lambda x: 2 * x),
  "first_power": lambda x: x**1,
  "gradient": jax.grad(lambda x: jnp.sum((x - 1.0) ** 2)),
  "stop_gradient": jax.lax.stop_gradient,
  "narrow": lambda x: x.astype(jnp.bfloat16).astype(x.dtype),
  "cond": lambda x: jax.lax.cond(True, lambda v: 2 * v, lambda v: v - 1, x),
  "switch": lambda x: jax.lax.switch(jnp.argmax(jnp.array([1, 2])), [lambda v: v, jnp.cumsum], x),
  "scan_carry": lambda x: scan(lambda carry, t: (0.5 * carry + t, None))(x)[0],
  "scan_outputs": lambda x: scan(lambda carry, t: (carry + 1, t * carry))(x)[1].sum(0),
  "scan_over": lambda x: jax.lax.scan(lambda carry, each: (carry + each, carry), 0.0, x)[1],
  "fori": lambda x: jax.lax.fori_loop(0, 3, lambda i, v: v + i * v[::-1], x),
  "while": lambda x: jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, 2 * c[1]), (0, x))[1],
  "constant": lambda x: jnp.ones_like(x),
  "label_free": lambda x: jnp.sin(jnp.arange(4.0)) * x,
}
OTHER = {
  "square": lambda x: x * x,
  "power": lambda x: x**2,
  "reciprocal": lambda x: 1.0 / x,
  "abs": jnp.abs,
  "relu": jax.nn.relu,
  "clip_far_away": lambda x: jnp.clip(x, -1e6, 1e6),
  "max": lambda x: jnp.maximum(x, -1e30),
  "tanh": jnp.tanh,
  "sign": jnp.sign,
  "sort": jnp.sort,
  "max_entry": lambda x: x - jnp.max(x),
  "norm": lambda x: x / jnp.linalg.norm(x),
  "dot": lambda x: x * (x @ x),
  "where_positive": lambda x: jnp.where(x > 0, x, 2 * x),
  "where_never": lambda x: jnp.where(x > 1e9, 0.0, x),
  "rounded": jnp.round,
  "integers": lambda x: x.astype(int).astype(x.dtype),
  "index": lambda x: jnp.arange(4.0)[jnp.argmax(x)] + x,
  "cond": lambda x: jax.lax.cond(x[0] > 0, lambda v: v, lambda v: -v, x),
  "cond_branch": lambda x: jax.lax.cond(True, lambda v: v, lambda v: v * v, x),
  "scan_carry": lambda x: scan(lambda carry, t: (carry * carry + t, None))(x)[0],
  "scan_two": lambda x: jax.lax.scan(lambda c, _: ((c[1], c[0] * c[1]), None), (x, x), length=1)[0][1],
  "while_count": lambda x: jax.lax.while_loop(lambda v: v[0] < 3, lambda v: v + 1, x),
  "callback": lambda x: jax.pure_callback(lambda v: v, VECTOR, x),
  "jit": jax.jit(lambda x: x * x),
  "reference": through_reference,
  "custom_jvp": with_rule(jnp.sin),
  "custom_vjp": with_reverse_rule(jnp.sin),
}


@pytest.mark.parametrize("name", AFFINE)
def test_affine_functions_are_recognised(name):
  assert is_affine(AFFINE[name], VECTOR)


@pytest.mark.parametrize("name", OTHER)
def test_other_functions_are_not(name):
  assert not is_affine(OTHER[name], VECTOR)


def test_other_arguments_may_enter_in_any_way():
  assert is_affine(lambda x, a: jnp.tanh(a) * x + jnp.sort(a), VECTOR, VECTOR)
  assert not is_affine(lambda x, a: jnp.tanh(x) * a, VECTOR, VECTOR)


def test_all_leaves_of_the_argument_vary_at_once():
  both = {"a": VECTOR, "b": VECTOR}
  assert is_affine(lambda tree: tree["a"] + 2 * tree["b"], both)
  assert not is_affine(lambda tree: tree["a"] * tree["b"], both)
  assert is_affine(lambda tree: {"sum": tree["a"] - tree["b"], "first": tree["a"]}, both)
  assert not is_affine(lambda tree: {"sum": tree["a"] - tree["b"], "first": jnp.abs(tree["a"])}, both)


def test_nothing_is_evaluated():
  huge = jax.ShapeDtypeStruct((10**6, 10**6), jnp.float32)  # 4 TB.
  assert is_affine(lambda x: 2 * x.T + 1, huge)


def test_the_width_of_floats_is_part_of_the_question():
  def by_width(x):
    return x if jnp.result_type(float) == jnp.float32 else x * x

  assert is_affine(by_width, VECTOR)
  with jax.enable_x64(True):
    assert not is_affine(by_width, VECTOR)
  assert is_affine(by_width, VECTOR)


def constant(draw, size):
  return np.random.default_rng(draw).normal(size=size)


LINEAR_STEPS = {
  "add": lambda a, b, c: a + b + constant(c, 4),
  "sub": lambda a, b, c: a - b,
  "scale": lambda a, b, c: constant(c, 4) * a,
  "divide": lambda a, b, c: a / (2 + np.abs(constant(c, 4))),
  "matrix": lambda a, b, c: constant(c, (4, 4)) @ a,
  "einsum": lambda a, b, c: jnp.einsum("ijk,k->ij", constant(c, (4, 2, 4)), a).sum(1),
  "gather": lambda a, b, c: a[np.random.default_rng(c).integers(4, size=4)],
  "mixed": lambda a, b, c: jnp.where(constant(c, 4) > 0, a, b),
  "halves": lambda a, b, c: jnp.concatenate([a[2:], b[:2]]),
  "cumsum": lambda a, b, c: jnp.cumsum(a) - jnp.mean(b),
  "scatter": lambda a, b, c: a.at[np.array([0, 3])].add(b[1:3]),
  "scan": lambda a, b, c: jax.lax.scan(lambda v, t: (0.5 * v + t * b, None), a, constant(c, 3))[0],
  "call": lambda a, b, c: jax.jit(lambda v: v[::-1] - 1)(a),
}
OTHER_STEPS = {
  "product": lambda a, b, c: a * b,
  "tanh": lambda a, b, c: jnp.tanh(a),
  "relu": lambda a, b, c: jax.nn.relu(a),
  "select": lambda a, b, c: jnp.where(a > b, a, b),
  "sort": lambda a, b, c: jnp.sort(a),
  "loop": lambda a, b, c: jax.lax.fori_loop(0, 2, lambda i, v: jnp.abs(v) + b, a),
}
ALL_STEPS = LINEAR_STEPS | OTHER_STEPS


def programs(steps):
  """Lists of (name, two earlier values, seed of a constant)."""
  step = st.tuples(st.sampled_from(sorted(steps)), st.integers(0, 9), st.integers(0, 9), st.integers(0, 99))
  return st.lists(step, min_size=1, max_size=6)


def build(program):
  def function(x):
    values = [x]
    for name, one, other, seed in program:
      values.append(ALL_STEPS[name](values[one % len(values)], values[other % len(values)], seed))
    return values[-1]

  return function


@pytest.mark.slow
@hypothesis.settings(max_examples=40)
@hypothesis.given(programs(ALL_STEPS), st.integers(0, 2**31))
def test_random_compositions_that_are_judged_affine_are(program, seed):
  with jax.enable_x64(True):
    function = build(program)
    if not is_affine(function, jax.ShapeDtypeStruct((4,), jnp.float64)):
      return
    draw = np.random.default_rng(seed)
    one, other = (jnp.asarray(10 * draw.normal(size=4)) for _ in range(2))
    ends = np.asarray(function(one)), np.asarray(function(other))
    middle = np.asarray(function((one + other) / 2))
    np.testing.assert_allclose(middle, (ends[0] + ends[1]) / 2, rtol=1e-9, atol=1e-9 * (1 + np.abs(ends).max()))


@hypothesis.settings(max_examples=25)
@hypothesis.given(programs(LINEAR_STEPS))
@pytest.mark.slow
def test_random_compositions_of_affine_steps_are_recognised(program):
  with jax.enable_x64(True):
    assert is_affine(build(program), jax.ShapeDtypeStruct((4,), jnp.float64))


# --- Losses, in the label.


def hinge(outputs, label):
  return jnp.sum(jnp.maximum(0.0, 1.0 - label * outputs))


AFFINE_LOSSES = {
  "squared_error": last.losses.squared_error.value,
  "sigmoid_cross_entropy": last.losses.sigmoid_cross_entropy.value,
  "softmax_cross_entropy": last.losses.softmax_cross_entropy.value,
  "optax_softmax": lambda z, y: optax.softmax_cross_entropy(z, y),
  "optax_sigmoid": optax.sigmoid_binary_cross_entropy,
  "optax_l2": optax.l2_loss,
  "optax_squared": optax.squared_error,
  "smoothed": lambda z, y: optax.softmax_cross_entropy(z, optax.smooth_labels(y, 0.1)),
  "poisson": lambda z, y: jnp.exp(z) - y * z,
}
OTHER_LOSSES = {
  "hinge": hinge,
  "huber": functools.partial(optax.huber_loss, delta=30.0),
  "log_cosh": optax.log_cosh,
  "margin": last.losses.margin_logistic.value,
  "quartic": lambda z, y: (z - y) ** 4,
  "absolute": lambda z, y: jnp.abs(z - y),
}


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("name", [*AFFINE_LOSSES, *OTHER_LOSSES])
def test_losses_are_classified(name, width):
  loss = last.losses.as_loss((AFFINE_LOSSES | OTHER_LOSSES)[name])
  assert loss.affine is None
  assert loss.is_affine(width) == (name in AFFINE_LOSSES)


def test_a_loss_that_states_it_is_believed():
  stated = last.losses.Loss("stated", hinge, affine=True)
  assert stated.is_affine(1)


# --- Optimizers, in the gradient.


PARAMS = {"weights": jnp.ones((3, 2)), "layers": [(jnp.ones(2), jnp.ones((2, 2)))]}
KINDS = {"weights": "plain", "layers": [("heavy", "heavy")]}
AFFINE_OPTIMIZERS = {
  "sgd": lambda: optax.sgd(0.1),
  "momentum": lambda: optax.sgd(0.1, momentum=0.9),
  "nesterov": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
  "accumulator": lambda: optax.sgd(0.1, momentum=0.9, accumulator_dtype=jnp.bfloat16),
  "schedule": lambda: optax.sgd(optax.warmup_cosine_decay_schedule(0.0, 0.1, 5, 50), momentum=0.5),
  "decayed": lambda: optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)),
  "masked": lambda: optax.chain(
    optax.masked(optax.add_decayed_weights(0.1), {"weights": True, "layers": [(False, True)]}), optax.sgd(0.1)
  ),
  "multi": lambda: optax.multi_transform({"plain": optax.sgd(0.1), "heavy": optax.sgd(0.2, momentum=0.9)}, KINDS),
  "injected": lambda: optax.inject_hyperparams(optax.sgd)(learning_rate=0.1),
  "ema": lambda: optax.chain(optax.ema(0.9), optax.scale(-0.1)),
  "centralized": lambda: optax.chain(optax.centralize(), optax.sgd(0.1)),
}
OTHER_OPTIMIZERS = {
  "clip": lambda: optax.chain(optax.clip(1e4), optax.sgd(0.1)),
  "global_norm": lambda: optax.chain(optax.clip_by_global_norm(1e5), optax.sgd(0.1)),
  "adam": lambda: optax.adam(0.1),
  "adamw": lambda: optax.adamw(0.1),
  "rmsprop": lambda: optax.rmsprop(0.1),
  "adagrad": lambda: optax.adagrad(0.1),
  "lion": lambda: optax.lion(0.1),
  "sign": lambda: optax.sign_sgd(0.1),
  "normalized": lambda: optax.chain(optax.normalize_by_update_norm(), optax.sgd(0.1)),
  "multi": lambda: optax.multi_transform({"plain": optax.sgd(0.1), "heavy": optax.adam(0.2)}, KINDS),
}


@pytest.mark.parametrize("name", AFFINE_OPTIMIZERS)
def test_affine_optimizers_are_recognised(name):
  transformation = AFFINE_OPTIMIZERS[name]()
  assert last.optimizers.Optax(transformation).is_affine(PARAMS)
  # By taking steps: the update of the mean gradient is the mean of the updates.
  draw = np.random.default_rng(0)
  _, state = transformation.update(PARAMS, transformation.init(PARAMS), PARAMS)
  one, other = (jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape), "f4"), PARAMS) for _ in range(2))
  mean = jax.tree.map(lambda a, b: (a + b) / 2, one, other)
  updates = [transformation.update(gradient, state, PARAMS)[0] for gradient in (one, other, mean)]
  jax.tree.map(lambda a, b, c: np.testing.assert_allclose(c, (a + b) / 2, atol=1e-6), *updates)


@pytest.mark.parametrize("name", OTHER_OPTIMIZERS)
def test_other_optimizers_are_not(name):
  optimizer = last.optimizers.Optax(OTHER_OPTIMIZERS[name]())
  assert not optimizer.is_affine(PARAMS)
  assert not optimizer.is_diagonal(PARAMS)


def swapped(updates, params):
  """Each layer's gradient moves the other."""
  first, second = updates["layers"][0]
  return updates | {"layers": [(second[0], jnp.stack([first, first]))]}


MIXING = {
  "centralized": AFFINE_OPTIMIZERS["centralized"],
  "swapped": lambda: optax.stateless(swapped),
  "reversed": lambda: optax.stateless(lambda updates, params: jax.tree.map(lambda leaf: leaf[::-1], updates)),
  "summed": lambda: optax.stateless(lambda updates, params: jax.tree.map(lambda leaf: leaf + jnp.sum(leaf), updates)),
}


def each_entry(updates, params):
  """The first leaf has a rate for each entry, the others one for all."""
  return updates | {"weights": updates["weights"] * jnp.arange(1.0, 7.0).reshape(3, 2)}


UNEQUAL = {
  "each entry": lambda: optax.chain(optax.stateless(each_entry), optax.sgd(0.1, momentum=0.9)),
  "by parameters": lambda: optax.chain(
    optax.stateless(lambda updates, params: updates | {"weights": updates["weights"] * (1 + params["weights"] ** 2)}),
    optax.sgd(0.1),
  ),
  "chosen": lambda: optax.stateless(
    lambda updates, params: updates | {"weights": jnp.where(jnp.eye(3, 2) > 0, updates["weights"], 0.0)}
  ),
}


@pytest.mark.parametrize("name", [*AFFINE_OPTIMIZERS, *UNEQUAL, *MIXING])
def test_optimizers_are_diagonal_where_their_jacobian_is(name):
  transformation = (AFFINE_OPTIMIZERS | UNEQUAL | MIXING)[name]()
  optimizer = last.optimizers.Optax(transformation)
  assert optimizer.is_affine(PARAMS)
  _, state = transformation.update(PARAMS, transformation.init(PARAMS), PARAMS)  # Rates may begin at zero.
  draw = np.random.default_rng(0)
  params = jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape), "f4"), PARAMS)
  flat, unravel = ravel_pytree(PARAMS)

  def updates(gradient):
    return ravel_pytree(transformation.update(unravel(gradient), state, params)[0])[0]

  jacobian = np.asarray(jax.jacfwd(updates)(flat))
  assert np.any(jacobian)
  factors = optimizer.factors(PARAMS)
  assert (factors is not None) == np.array_equal(jacobian, np.diag(np.diag(jacobian))) == (name not in MIXING)
  if factors is not None:
    leaves = jax.tree.leaves(unravel(jnp.diag(jacobian)))
    assert factors == tuple(bool(np.ptp(leaf) <= 1e-7) for leaf in leaves)


def test_only_shapes_of_parameters_matter():
  """Also inside a compiled function, where there are no values."""
  optimizer = last.optimizers.Optax(optax.chain(optax.add_decayed_weights(0.1), optax.sgd(0.1)))
  answers = []
  jax.jit(lambda params: answers.append(optimizer.is_affine(params)))(PARAMS)
  assert answers == [True]
