"""Errata of docs/errata.md that no other test shows, from the definitions; and the tests that the page names exist."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last

KEY = jax.random.key(0)
ROOT = pathlib.Path(__file__).parents[1]


def test_the_page_names_tests_that_exist():
  named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "docs" / "errata.md").read_text(encoding="utf-8"))
  assert len(named) > 10
  for path, name in named:
    assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), f"{path}::{name}"


# --- Section 3.1 and 3.2.


def test_algorithm_1_with_or_does_not_end_where_the_target_is_out_of_reach(x64):
  """The part of w - w* that is common to all classes never changes, so the distance stays above epsilon for ever."""
  learner = last.learners.softmax(3, 2, learning_rate=0.5, bias=False)
  x = jax.random.normal(KEY, (10, 3))
  pool, target = last.Pool(x, np.arange(10) % 2), learner.init(jax.random.key(1))
  start = {"weights": target["weights"] + 0.1}
  epsilon, steps, beyond = 0.1, 5, 25
  result = last.teach(
    KEY, learner, last.teachers.greedy(last.constraints.none()), pool, target=target, init=start, steps=beyond
  )
  far = np.asarray(result.distance) >= epsilon
  counts = np.arange(1, beyond + 2)
  assert (far | (counts <= steps)).all()
  assert np.argmin(far & (counts <= steps)) == steps


def test_the_quadratic_of_least_squares_has_a_square_on_the_prediction(x64):
  """G less the distance before, by taking the step, against both forms of its constant."""
  draw = np.random.default_rng(0)
  w, target, x, eta = draw.normal(size=3), draw.normal(size=3), draw.normal(size=3), 0.3
  z, size, e = w @ x, x @ x, (w - target) @ x
  gap = eta**2 * size * (z**2 - z)
  for y in draw.normal(size=5):
    after = w - eta * (z - y) * x
    taken = np.sum((after - target) ** 2) - np.sum((w - target) ** 2)
    in_y = eta**2 * size * y**2 + (2 * eta * e - 2 * eta**2 * size * z) * y
    assert taken == pytest.approx(in_y + eta**2 * size * z**2 - 2 * eta * z * e)
    assert taken - (in_y + eta**2 * size * z - 2 * eta * z * e) == pytest.approx(gap)
  assert abs(gap) > 1e-3


@pytest.mark.parametrize("rate", [0.02, 0.2])
def test_the_weight_of_the_optimal_label_exceeds_one_for_small_steps(x64, rate):
  """Then the label is no mixture of prediction and optimal label, but lies beyond the latter: 1 / (eta ||x||^2)."""
  learner = last.learners.least_squares(2, learning_rate=rate, bias=False)
  params, target = ({"weights": jnp.array(w)[:, None]} for w in ([0.2, -0.3], [1.0, 0.5]))
  x = jnp.array([[3.0, 1.0]])
  label = last.synthesize_labels(learner, params, target, x, jnp.zeros((1, 1)))
  easy, hard = (learner.apply(w, x) for w in (params, target))
  weight = float(((label - easy) / (hard - easy))[0, 0])
  assert weight == pytest.approx(1 / (rate * 10))
  assert (weight > 1) == (rate * 10 < 1)


# --- Proposition 1.


def test_greedy_labels_can_be_slower_than_sgd_in_expectation(x64):
  """Two unit vectors 30 degrees apart, no noise, rate 1.5: the mean over all sequences of eight examples.

  A greedy label projects onto the example's solutions. True labels step half as far again, and are farther from w*
  after one step, but nearer from the second on: like over-relaxation.
  """
  learner = last.learners.least_squares(2, learning_rate=1.5, bias=False)
  target = {"weights": jnp.array([[0.3], [-0.2]])}
  start = {"weights": target["weights"] + jnp.array([[0.0], [1.0]])}
  half = np.pi / 12
  pool = last.theory.interpolating_pool(learner, target, np.array([[np.cos(a), np.sin(a)] for a in (half, -half)]))
  steps = 8
  sequences = (np.arange(2**steps)[:, None] >> np.arange(steps)) & 1

  def path(indices, greedy):
    def step(params, i):
      x, y = pool.x[i][None], pool.y[i][None]
      labels = last.synthesize_labels(learner, params, target, x, y) if greedy else y
      after = learner.step(learner.start(params), x, labels).params
      return after, jnp.sum((after["weights"] - target["weights"]) ** 2)

    return jax.lax.scan(step, start, indices)[1]

  sgd, greedy = (
    np.asarray(jax.jit(jax.vmap(lambda s, way=way: path(s, way)))(jnp.asarray(sequences))).mean(0) for way in (0, 1)
  )
  assert greedy[0] < sgd[0]  # The first step, of which the proof begins: as it must be.
  assert np.all(greedy[1:] > sgd[1:])
  assert greedy[-1] > 1.2 * sgd[-1]
  # The same from the matrix of second moments, without the package.
  moments = {1.0: np.diag([0.0, 1.0]), 1.5: np.diag([0.0, 1.0])}
  for rate, found in ((1.0, greedy), (1.5, sgd)):
    for t in range(steps):
      maps = [np.eye(2) - rate * np.outer(x, x) for x in np.asarray(pool.x)]
      moments[rate] = sum(m @ moments[rate] @ m for m in maps) / 2
      assert found[t] == pytest.approx(np.trace(moments[rate]))


def test_the_premise_of_proposition_1_cannot_compare_mean_distances_that_are_not_squared():
  """Isotropic least squares, the best case: G depends on the distance alone, as a ||w - w*||^2 with 0 < a < 1.

  Two students at distances 0 and 2 are on average as near as one at 1, and their mean G is twice as large.
  """
  directions = np.stack([np.cos(np.arange(6) * np.pi / 6), np.sin(np.arange(6) * np.pi / 6)], 1)
  maps = [np.eye(2) - 0.4 * np.outer(x, x) for x in directions]
  mean_g = lambda e: np.mean([np.sum((m @ e) ** 2) for m in maps])  # noqa: E731
  draw = np.random.default_rng(0)
  for e in draw.normal(size=(5, 2)):
    assert mean_g(e) == pytest.approx(mean_g([1.0, 0.0]) * np.sum(e**2))
  spread, single = np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([[0.0, 1.0]])
  assert np.mean(np.linalg.norm(spread, axis=1)) <= np.mean(np.linalg.norm(single, axis=1))
  assert np.mean([mean_g(e) for e in spread]) == pytest.approx(2 * mean_g(single[0]))


# --- Theorem 1.


@pytest.mark.parametrize("lipschitz", [2.0, 3.0])
def test_the_stated_bound_of_theorem_1_is_exceeded_and_that_of_its_proof_is_met(lipschitz):
  """l_i = L |<x_i, w - w*>| with x_i all around the circle: sharp, with mu / 2 = 2 L / pi, and gradients of length L.

  Then E||e+||^2 = (1 - c mu + c^2 L^2) ||e||^2 exactly, for c = c1 eta.
  """
  angles = np.linspace(0, 2 * np.pi, 3600, endpoint=False)
  x = np.stack([np.cos(angles), np.sin(angles)], 1)
  mu, e = 4 * lipschitz / np.pi, np.array([0.3, 0.4])
  pace = mu / (2 * lipschitz**2)
  gradients = lipschitz * np.sign(x @ e)[:, None] * x
  after = e - pace * np.linalg.norm(e) * gradients
  measured = np.mean(np.sum(after**2, 1)) / np.sum(e**2)
  assert measured == pytest.approx(1 - pace * mu + (pace * lipschitz) ** 2, rel=1e-5)
  assert measured > 1.1 * (1 - pace * mu + pace**2 * lipschitz)


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0])
def test_no_loss_has_the_strong_convexity_that_theorem_1_assumes_at_its_minimum(power):
  """<grad f, e> >= f - f* + mu/2 ||e|| near w*, for f = ||e||^power: the largest mu vanishes, also for a sharp loss.

  It says that (f - f*) / ||e|| grows by mu/2 times log(||e||) at least, so that f would fall below f* near w*.
  """
  lengths = 10.0 ** -np.arange(0, 7)
  modulus = 2 * (power * lengths**power - lengths**power) / lengths  # From <grad f, e> = power ||e||^power.
  assert modulus[-1] <= 2e-3 * (power > 1)


# --- Theorem 3.


def test_theorem_3_does_not_follow_from_a_bound_of_the_inverse_hessian_by_mu():
  """f = sqrt(1 + w^2), for which Newton's step is -w^3: the paper's condition holds on [-1.1, 1.1], and it diverges."""
  w = np.linspace(-1.1, 1.1, 10_001)
  second, third = (1 + w**2) ** -1.5, np.abs(3 * w * (1 + w**2) ** -2.5)
  mu, lipschitz, delta = second.min(), third.max(), 1.1
  assert np.max(1 / second) == pytest.approx(1 / mu)
  assert np.max(1 / second) > mu
  assert lipschitz * mu * delta < 2 < lipschitz / mu * delta
  at = 1.05
  for _ in range(5):
    after = at - (at / np.sqrt(1 + at**2)) * (1 + at**2) ** 1.5
    assert after == pytest.approx(-(at**3))
    assert abs(after) > abs(at)
    at = after


def test_a_mean_of_hessians_is_no_hessian_of_a_sum():
  """f is a sum over n examples: with the mean Hessian of a subset, here of all, the step is n times too long."""
  draw = np.random.default_rng(0)
  x, e = draw.normal(size=(20, 3)), draw.normal(size=3)
  gradient = x.T @ (x @ e)
  mean = x.T @ x / 20
  np.testing.assert_allclose(e - np.linalg.solve(mean, gradient), (1 - 20) * e)
  np.testing.assert_allclose(e - np.linalg.solve(20 * mean, gradient), 0.0, atol=1e-12)


# --- Appendix E.


def margin_example(seed):
  draw = np.random.default_rng(seed)
  weights, x = draw.normal(size=(5, 4)), draw.normal(size=5)
  label = draw.dirichlet(np.ones(4))
  return weights, x, label, int(draw.integers(4))


@pytest.mark.parametrize("seed", range(4))
def test_the_surrogate_of_soft_labels_is_the_loss_itself(seed):
  """For labels that sum to one, cross-entropy is the surrogate with psi: Jensen's inequality is not needed."""
  weights, x, label, truth = margin_example(seed)
  logits = weights.T @ x
  log_shares = logits - np.log(np.sum(np.exp(logits)))
  norms = np.linalg.norm(weights, axis=0)
  cosines = logits / (norms * np.linalg.norm(x))
  psi = np.sum(label * norms / norms[truth] * cosines)
  surrogate = np.log(np.sum(np.exp(logits))) - norms[truth] * np.linalg.norm(x) * psi
  assert -np.sum(label * log_shares) == pytest.approx(surrogate)


@pytest.mark.parametrize("seed", range(4))
def test_soft_labels_raise_psi_above_the_cosine_only_of_examples_that_are_misclassified(seed):
  weights, x, _, _ = margin_example(seed)
  logits, norms = weights.T @ x, np.linalg.norm(weights, axis=0)
  draw = np.random.default_rng(seed)
  for truth in range(4):
    scale = norms[truth] * np.linalg.norm(x)
    above = [label @ logits / scale > logits[truth] / scale for label in draw.dirichlet(np.full(4, 0.3), size=200)]
    assert any(above) == (logits[truth] < logits.max())


def test_a_large_margin_comes_from_a_psi_below_the_cosine():
  """The loss asks for more of an example with a smaller psi: the angle at which it is as small as for psi = cos."""
  other = 0.3  # The other class's logit, with all norms 1.
  loss = lambda value: np.log1p(np.exp(other - value))  # noqa: E731
  angles = np.linspace(0, np.pi / 2, 1001)
  enough = loss(np.cos(1.0))  # What the plain loss reaches at an angle of 1.
  widest = lambda psi: angles[loss(psi(angles)) <= enough].max()  # noqa: E731
  assert widest(np.cos) == pytest.approx(1.0, abs=2e-3)
  assert widest(lambda a: np.cos(2 * a)) == pytest.approx(0.5, abs=2e-3)  # psi = cos(2 theta), below: compact classes.
  assert widest(lambda a: np.cos(a / 2)) == pytest.approx(np.pi / 2)  # Above: it asks for less.
