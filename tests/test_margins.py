"""The margin that labels induce: angles in NumPy, and the loss that psi stands for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import theory


@pytest.mark.parametrize("bias", [False, True])
def test_psi_and_cosine_are_those_of_the_angles(x64, bias):
  draw = np.random.default_rng(0)
  learner = last.learners.softmax(3, 4, learning_rate=0.1, bias=bias)
  params = jax.tree.map(lambda s: draw.normal(size=s.shape), learner.shapes())
  x, labels, truth = draw.normal(size=(6, 3)), draw.dirichlet(np.ones(4), size=6), np.eye(4)[draw.integers(4, size=6)]
  found = theory.induced_margin(learner, params, *map(jnp.asarray, (x, labels, truth)))
  for i in range(6):
    c = int(np.argmax(truth[i]))
    at = np.append(x[i], 1.0) if bias else x[i]
    weights = np.vstack([params["weights"], params["bias"]]) if bias else params["weights"]
    norms = np.linalg.norm(weights, axis=0)
    cosines = [at @ weights[:, k] / (norms[k] * np.linalg.norm(at)) for k in range(4)]
    assert found.cosine[i] == pytest.approx(cosines[c])
    psi = labels[i, c] * cosines[c] + sum(norms[k] / norms[c] * labels[i, k] * cosines[k] for k in range(4) if k != c)
    assert found.psi[i] == pytest.approx(psi)
    z = at @ weights
    assert learner.loss(z, labels[i]) == pytest.approx(np.log(np.exp(z).sum()) - norms[c] * np.linalg.norm(at) * psi)


@pytest.mark.slow
def test_the_truth_has_no_margin_and_smoothing_has_one_where_the_class_is_right():
  learner = last.learners.softmax(2, 3, learning_rate=0.1, bias=False)
  params = {"weights": jnp.array([[2.0, 0.0, -1.0], [0.0, 1.0, -1.0]])}
  x, truth = jnp.array([[1.0, 0.5], [-1.0, -1.0]]), jnp.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
  plain = theory.induced_margin(learner, params, x, truth, truth)
  np.testing.assert_allclose(plain.psi, plain.cosine, rtol=1e-6)
  assert plain.psi.dtype == jnp.float32
  smoothed = theory.induced_margin(learner, params, x, 0.9 * truth + 0.1 / 3, truth)
  assert smoothed.psi[0] < smoothed.cosine[0]  # Classified correctly: it asks for more.
  assert smoothed.psi[1] > smoothed.cosine[1]  # Wrongly: for less.


@pytest.mark.slow
def test_labels_with_another_sum_count_as_those_with_the_same_gradient(x64):
  draw = np.random.default_rng(1)
  learner = last.learners.softmax(3, 4, learning_rate=0.1, bias=False)
  params, x = {"weights": jnp.asarray(draw.normal(size=(3, 4)))}, jnp.asarray(draw.normal(size=(1, 3)))
  one, truth = jnp.asarray(draw.dirichlet(np.ones(4)))[None], jnp.eye(4)[:1]
  other = one + 0.7 * jax.nn.softmax(learner.apply(params, x))
  gradients = [learner.gradient(params, x, labels)["weights"] for labels in (one, other)]
  np.testing.assert_allclose(*gradients, atol=1e-12)
  psi = [theory.induced_margin(learner, params, x, labels, truth).psi for labels in (one, other)]
  np.testing.assert_allclose(*psi, atol=1e-12)


def test_other_learners_are_refused():
  learner = last.learners.least_squares(2, 3, learning_rate=0.1)
  params, x, y = learner.init(jax.random.key(0)), jnp.ones((1, 2)), jnp.ones((1, 3))
  with pytest.raises(ValueError, match="learner must be linear with softmax cross-entropy"):
    theory.induced_margin(learner, params, x, y, y)
