"""The CNN of the black-box figure: its layers against Flax's own, its labels against a formula, and its students."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from last_jax.reproduction import Size, pixels, problems

QUICK = Size("quick", 2)


def observed(count=5):
  draw = np.random.default_rng(0)
  share, truth = draw.uniform(size=(count, 1)), draw.integers(2, size=(count, 1))
  x = draw.normal(size=(count, 24 + 14 * 14))
  seen = {"x": x, "label": np.hstack([truth, 1 - truth]), "prediction": np.hstack([share, 1 - share])}
  return {name: jnp.asarray(value, float) for name, value in seen.items()}


@pytest.mark.parametrize(("side", "channels"), [(14, 1), (7, 3)])
def test_patches_times_weights_are_a_convolution(side, channels):
  draw = np.random.default_rng(1)
  x, kernel = draw.normal(size=(2, side, side, channels)), draw.normal(size=(3, 3, channels, 4))
  found = pixels.patches(jnp.asarray(x)) @ kernel.reshape(-1, 4)
  convolution = nn.Conv(4, (3, 3), 2, padding=1, use_bias=False)
  expected = convolution.apply({"params": {"kernel": jnp.asarray(kernel)}}, jnp.asarray(x))
  np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def sigmoid(z):
  return 1 / (1 + np.exp(-z))


@pytest.mark.slow
def test_it_begins_at_the_truth_and_leads_beyond_its_own_prediction():
  seen, module = observed(), pixels.Cnn(prior=3.0)
  params = module.init(jax.random.key(0), seen)["params"]
  truth, prediction = (np.asarray(seen[name])[:, 0] for name in ("label", "prediction"))
  np.testing.assert_allclose(truth + module.apply({"params": params}, seen)[:, 0], sigmoid(6 * truth - 3), rtol=1e-4)
  head = params["Dense_2"] | {"bias": jnp.array([0.7])}  # Evidence for the first class, in all images.
  params = params | {"trust": jnp.array(-1.0), "gain": jnp.log(2.0), "Dense_2": head}
  shift = module.apply({"params": params}, seen)
  expected = prediction + 2 * (sigmoid(0.7 + 2 * (2 * truth - 1)) - prediction)
  np.testing.assert_allclose(truth + shift[:, 0], expected, rtol=1e-4)
  np.testing.assert_allclose(np.sum(shift, 1), 0.0, atol=1e-6)
  head = params["Dense_2"] | {"kernel": 0.01 * jnp.ones_like(head["kernel"])}
  other = seen | {"x": seen["x"].at[:, 24:].add(1.0)}
  labels = [module.apply({"params": params | {"Dense_2": head}}, each) for each in (seen, other)]
  assert np.abs(labels[0] - labels[1]).max() > 1e-3  # It looks at the pixels.


@pytest.mark.slow
def test_students_do_not_see_pixels():
  problem, init_fn = problems.softmax_on_two_digits(QUICK, 1e-3)
  wide = pixels.with_pixels(problem, QUICK, 1e-3)
  params, draw = init_fn(jax.random.key(0)), np.random.default_rng(2)
  x = np.array(wide.pool.x)
  assert x.shape[1] == 24 + 14 * 14
  assert 0 <= x[:, 24:].min() < x[:, 24:].max() <= 1
  x[:, 24:] = draw.normal(size=x[:, 24:].shape)
  np.testing.assert_allclose(
    wide.learner.apply(params, jnp.asarray(x)), problem.learner.apply(params, problem.pool.x), rtol=1e-4, atol=1e-5
  )
  labels = jax.nn.one_hot(problem.pool.y, 2)
  own, theirs = (
    learner.step(learner.start(params), examples, labels).params["weights"]
    for learner, examples in ((wide.learner, wide.pool.x), (problem.learner, problem.pool.x))
  )
  np.testing.assert_allclose(own, theirs, rtol=1e-5, atol=1e-7)
