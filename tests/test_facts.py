"""What files say of learners, held against what learners compute."""

import hashlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import last_jax as last
from last_jax import facts, losses

LOSSES = (
  losses.squared_error,
  losses.sigmoid_cross_entropy,
  losses.softmax_cross_entropy,
  losses.margin_logistic,
  losses.hinge,
)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
@pytest.mark.parametrize("width", [1, 4])
def test_formulas_are_those_of_the_losses(x64, loss, width):
  draw = np.random.default_rng(0)
  words = {name: getattr(np, name) for name in ("sum", "log", "exp", "maximum", "max", "eye", "argmax")} | {"len": len}
  for _ in range(20):
    z, y = draw.normal(size=(2, width))
    value = eval(loss.formula, words, {"z": z, "y": y})
    np.testing.assert_allclose(value, loss(jnp.asarray(z), jnp.asarray(y)), rtol=1e-12)
    gradient = eval(loss.gradient, words, {"z": z, "y": y})
    np.testing.assert_allclose(gradient, loss.output_gradient(jnp.asarray(z), jnp.asarray(y)), rtol=1e-9, atol=1e-12)


def test_formulas_take_no_part_in_the_identity_of_a_loss():
  assert losses.Loss("a", losses.hinge.value, formula="1") == losses.Loss("a", losses.hinge.value, formula="2")


@pytest.mark.parametrize("momentum", [{}, {"momentum": 0.7}, {"momentum": 0.7, "nesterov": True}])
def test_the_formula_of_the_step_is_that_of_the_optimizer(x64, momentum):
  learner = last.learners.least_squares(3, 2, learning_rate=0.1, weight_decay=0.3, **momentum)
  told = facts.describe_optimizer(learner, "")
  assert (told["momentum"], told["nesterov"]) == (momentum.get("momentum", 0.0), "nesterov" in momentum)
  draw = np.random.default_rng(0)
  params = {"weights": draw.normal(size=(3, 2)), "bias": draw.normal(size=2)}
  student = learner.start(jax.tree.map(jnp.asarray, params))
  values = {name: {"w": leaf, "v": 0.0, "rate": 0.1} | told for name, leaf in params.items()}
  for _ in range(3):
    gradient = {"weights": draw.normal(size=(3, 2)), "bias": draw.normal(size=2)}
    student = learner.update(student, jax.tree.map(jnp.asarray, gradient))
    for name, value in values.items():
      value["g"] = gradient[name]
      if name in told["decayed"]:
        exec(told["decay"].partition(",")[0], {}, value)
      exec(told["formula"], {}, value)
  assert told["decayed"] == ["weights"]
  for name, value in values.items():
    np.testing.assert_allclose(student.params[name], value["w"], rtol=1e-12)


def test_learning_rates_of_a_schedule_are_those_of_its_steps():
  schedule = optax.exponential_decay(0.1, 2, 0.5)
  given = last.learners.least_squares(1, learning_rate=schedule, momentum=0.5).optimizer.learning_rates(5)
  np.testing.assert_allclose(given, 0.1 * 0.5 ** (np.arange(5) / 2), rtol=1e-6)
  np.testing.assert_array_equal(
    last.learners.least_squares(1, learning_rate=0.1).optimizer.learning_rates(2), np.float32([0.1, 0.1])
  )


def test_models_and_inputs():
  linear = last.learners.softmax(3, 2, learning_rate=0.1, bias=False)
  assert facts.describe_model(linear, "")["formula"] == "z = x @ weights"
  assert facts.describe_model(linear, "")["parameters"] == {"weights": [3, 2]}
  assert facts.describe_model(linear, "")["layers"] == [{"weights": "weights", "bias": None}]
  network = last.learners.mlp((3, 4, 2), learning_rate=0.1, activation="tanh")
  told = facts.describe_model(network, "mine")
  assert (told["name"], told["activation"], told["words"]) == ("mlp", "tanh", "mine")
  assert told["parameters"]["layer_0/weights"] == [3, 4]
  deep = facts.describe_model(last.learners.mlp((2,) * 13, learning_rate=0.1), "")  # Leaves are in another order.
  assert [layer["bias"] for layer in deep["layers"]] == [f"layer_{i}/bias" for i in range(12)]
  assert {layer["bias"] for layer in deep["layers"]} <= set(deep["parameters"])
  x = np.arange(12.0).reshape(4, 3)
  inputs = facts.describe_inputs(network, last.Pool(x, [0, 1, 0, 1]), "counted")
  assert (inputs["least"], inputs["greatest"], inputs["mean"], inputs["words"]) == (0.0, 11.0, 5.5, "counted")
  assert inputs["deviation"] == pytest.approx(x.std())
  json.dumps((told, inputs), allow_nan=False)


def test_hashes_are_those_of_little_endian_bytes_in_order():
  x = np.arange(6, dtype=np.float32).reshape(2, 3)
  expected = hashlib.sha256(x.astype("<f4").tobytes()).hexdigest()
  assert facts.sha256(x) == facts.sha256(x.astype(">f4")) == facts.sha256(np.asfortranarray(x)) == expected
  assert facts.sha256(x[::-1]) != expected


def test_rates_of_many_learners_are_refused():
  learner = jax.vmap(lambda rate: last.learners.least_squares(1, learning_rate=rate))(jnp.array([0.1, 0.2]))
  with pytest.raises(ValueError, match=r"the learner's learning_rate must be one number, but it has shape \(2,\)"):
    facts.describe_optimizer(learner, "")
