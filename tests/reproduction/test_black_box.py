"""The policies of the black-box figure: their labels against formulas."""

import jax
import jax.numpy as jnp
import numpy as np

import last_jax as last
from last_jax.reproduction.black_box import Distiller, whitened_inputs


def sigmoid(z):
  return 1 / (1 + np.exp(-z))


def observed(count=5, size=3):
  draw = np.random.default_rng(0)
  share, truth = draw.uniform(size=(count, 1)), draw.integers(2, size=(count, 1))
  seen = {"x": draw.normal(size=(count, size)), "label": np.hstack([truth, 1 - truth])}
  return {
    name: jnp.asarray(value, float) for name, value in (seen | {"prediction": np.hstack([share, 1 - share])}).items()
  }


def test_a_distiller_leads_beyond_a_linear_teacher():
  seen, weights, basis = observed(), np.array([[1.0], [-2.0], [0.5]]), np.diag([1.0, 2.0, 3.0])
  params = {"Dense_0": {"kernel": weights, "bias": np.array([0.3])}, "trust": -1.0, "gain": np.log(2.0)}
  module = Distiller(prior=3.0, log_gain=np.log(3.0), center=0.25, basis=basis)
  shift = module.apply({"params": jax.tree.map(jnp.asarray, params)}, seen)
  x, truth, prediction = (np.asarray(seen[name]) for name in ("x", "label", "prediction"))
  teacher = sigmoid((x - 0.25) @ basis @ weights + 0.3 + 2.0 * (2 * truth[:, :1] - 1))
  expected = prediction[:, :1] + 6.0 * (teacher - prediction[:, :1])
  np.testing.assert_allclose((truth + shift)[:, :1], expected, rtol=1e-4)
  np.testing.assert_allclose(np.sum(shift, 1), 0.0, atol=1e-5)


def test_a_distiller_begins_at_the_truth_or_without_it():
  seen = observed()
  for prior, expected in ((4.0, sigmoid(8 * seen["label"] - 4)), (0.0, np.full((5, 2), 0.5))):
    module = Distiller(prior=prior)
    variables = module.init(jax.random.key(0), seen)
    assert ("trust" in variables["params"]) == (prior > 0)
    np.testing.assert_allclose(seen["label"] + module.apply(variables, seen), expected, rtol=1e-4)


def test_whitened_inputs_are_uncorrelated():
  draw = np.random.default_rng(1)
  pool = last.Pool(draw.normal(size=(50, 4)) @ draw.normal(size=(4, 4)) + 3.0, np.arange(50) % 2)
  found = whitened_inputs(pool)
  x = (np.asarray(pool.x) - found["center"]) @ found["basis"]
  np.testing.assert_allclose(x.mean(0), 0.0, atol=1e-5)
  np.testing.assert_allclose(np.cov(x.T), np.eye(4), atol=1e-4)
