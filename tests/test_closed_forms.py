"""Closed forms for one example of a linear learner in float32: what rounding costs, and whether they say so.

All of it in float64 and in u: G(y) - min G = rate^2 ||x||^2 ||u(y) - best||^2, best = ⟨w - w*, x⟩ / (rate ||x||^2).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import linear, synthesis
from tests import label_ranges

FEATURES, COUNT = 6, 200
WIDTHS = {"least_squares": 3, "logistic": 1, "softmax": 10}


class Examples:
  """Problems of one example each, in float64: `products [n, d, K]` are the summands of outputs `[n, K]`."""

  def __init__(self, kind, problem):
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), problem)
    number = len(wide.x)
    rows = np.concatenate([wide.x[:, 0], np.ones((number, int("bias" in wide.params)))], 1)

    def stacked(tree):
      return np.concatenate([tree["weights"], *([tree["bias"][:, None]] if "bias" in tree else [])], 1)

    self.loss = label_ranges.LEARNERS[kind](FEATURES, WIDTHS[kind], 0.1).loss
    self.products = rows[..., None] * stacked(wide.params)
    self.target_products = rows[..., None] * stacked(wide.target)
    self.scale = wide.rate[:, None] * np.sum(rows**2, 1, keepdims=True)
    errors = np.einsum("nd,ndk->nk", rows, stacked(wide.params) - stacked(wide.target))
    self.best = errors / self.scale
    if kind == "softmax":  # Only differences between classes have an effect.
      self.best -= self.best.mean(1, keepdims=True)

  def gradients(self, labels, products=None):
    """Return u of labels `[n, 1, K]`: `[n, K]`."""
    outputs = np.sum(self.products if products is None else products, 1)
    return label_ranges.output_gradients(self.loss, outputs[:, None], np.asarray(labels, np.float64))[:, 0]

  def change(self, labels, truth):
    """Return (G(labels) - G(truth)) / (rate^2 ||x||^2), without the difference of large squares: `[n]`."""
    found, start = self.gradients(labels), self.gradients(truth)
    return np.sum((found - start) * ((found - self.best) + (start - self.best)), 1)


def near_the_target(kind, problem, draw):
  """Return the problems with students a few units in the last digit from w*, and with the outputs of w* as truth."""
  moved = {name: leaf * (1 + 2.0**-23 * draw.integers(-4, 5, leaf.shape)) for name, leaf in problem.target.items()}
  learner = label_ranges.LEARNERS[kind](FEATURES, WIDTHS[kind], 0.1)
  truth = jax.vmap(lambda w, x: learner.loss.predict_all(learner.apply(w, x)))(problem.target, problem.x)
  return problem._replace(
    params={name: leaf.astype(np.float32) for name, leaf in moved.items()}, truth=np.asarray(truth, np.float32)
  )


@pytest.mark.parametrize("near", [False, True])
@pytest.mark.parametrize(("kind", "name"), [("least_squares", "ball_1"), ("logistic", "none"), ("softmax", "simplex")])
def test_labels_are_worse_than_the_truth_by_rounding_at_most(kind, name, near):
  draw = np.random.default_rng(0)
  problem = label_ranges.random_problems(draw, kind, FEATURES, 1, WIDTHS[kind], COUNT)
  problem = near_the_target(kind, problem, draw) if near else problem
  labels, certificate, _ = label_ranges.solver(kind, FEATURES, WIDTHS[kind], name)(problem)
  examples = Examples(kind, problem)
  # What u loses: digits of labels and outputs, and those of ⟨w - w*, x⟩ over the size of the step.
  terms = np.sum(np.abs(examples.products) + np.abs(examples.target_products), 1)
  lost = 2.0**-21 * (1 + np.sum(np.abs(np.float64(labels)), 2) + terms * (1 + 1 / examples.scale))
  lost = np.linalg.norm(lost, axis=1)
  left = np.linalg.norm(examples.gradients(problem.truth) - examples.best, axis=1)
  assert (examples.change(labels, problem.truth) <= 4 * lost * (left + lost)).all()
  assert ((certificate.gap >= 0) & (certificate.gap <= 1)).all()


@pytest.mark.parametrize(
  ("kind", "name"),
  [
    ("least_squares", "none"),
    ("least_squares", "ball_1"),
    ("softmax", "none"),
    ("logistic", "simplex"),
    ("softmax", "simplex"),
  ],
)
def test_the_gap_is_what_rounding_costs(kind, name):
  """Against the loss where summands of outputs and labels are moved by random parts of their last digit."""
  draw, width = np.random.default_rng(1), WIDTHS[kind]
  problem = label_ranges.random_problems(draw, kind, FEATURES, 1, width, COUNT)
  # Examples of norm 1e-3 ... 1e3, outputs of size 1, classes of very different weights, steps of usual size.
  size = 10.0 ** draw.uniform(-3, 3, (COUNT, 1, 1))
  x = size * draw.normal(size=problem.x.shape)
  classes = 10.0 ** np.linspace(0, -3, width)

  def weights(share):
    spread = draw.normal(size=(COUNT, FEATURES, width)) * classes / size
    return {leaf: np.float32(share * (spread if leaf == "weights" else 0.0 * spread[:, 0])) for leaf in problem.params}

  rate = 0.5 / np.sum(x**2, (1, 2))
  problem = problem._replace(
    x=np.float32(x),
    params=weights(1.0),
    target=weights(1.0),
    rate=np.float32(rate),
    radius=np.full(COUNT, 0.3, np.float32),
  )
  labels, certificate, _ = label_ranges.solver(kind, FEATURES, width, name)(problem)
  examples, found = Examples(kind, problem), np.asarray(labels, np.float64)
  gained = -examples.change(found, problem.truth)
  losses = []
  for _ in range(100):
    products = examples.products * (1 + 2.0**-24 * draw.uniform(-1, 1, examples.products.shape))
    moved = examples.gradients(found * (1 + 2.0**-24 * draw.uniform(-1, 1, found.shape)), products)
    step = moved - examples.gradients(found)
    losses.append(np.sum(step * (step + 2 * (examples.gradients(found) - examples.best)), 1))
  gap = np.asarray(certificate.gap, np.float64)
  known = (gained > 1e-3) & (gap > 0)  # Elsewhere the truth is the best label, or nearly.
  assert known.sum() >= 0.2 * COUNT
  share = np.max(losses, 0)[known] / gained[known]
  assert (gap[known] >= 0.5 * share).all()
  assert 1 <= np.median(gap[known] / share) <= 300


def test_a_label_of_several_classes_that_has_no_digits_left_is_not_certified():
  """Softmax: the best label is 1e-9 from a corner, in all of the other classes but one."""
  learner = last.learners.softmax(1, 4, learning_rate=1.0, bias=False)
  weights = np.float32([[8.0, -8.0, -8.0, -9.0]])
  best = np.array([[1 - 2e-9, 1e-9, 1e-9, 0.0]])
  predicted = np.exp(weights.astype(np.float64)) / np.exp(weights.astype(np.float64)).sum()
  target = np.float32(weights - (predicted - best))
  one, truth = np.ones((1, 1), np.float32), np.eye(4, dtype=np.float32)[:1]
  _, certificate = last.synthesize_labels(
    learner, {"weights": weights}, {"weights": target}, one, truth, last.constraints.simplex(), with_certificate=True
  )
  assert certificate.road == "closed form"
  assert certificate.gap > 1e-3


def test_examples_of_zeros_change_no_label():
  learner = last.learners.least_squares(2, learning_rate=0.1, bias=False)
  params, target = {"weights": jnp.full((2, 1), 3.0)}, {"weights": jnp.full((2, 1), -1.0)}
  labels, certificate = last.synthesize_labels(
    learner, params, target, jnp.zeros((1, 2)), jnp.full((1, 1), 0.7), with_certificate=True
  )
  assert labels == 0.7
  assert certificate.gap == 0


@pytest.mark.parametrize("name", ["none", "ball_inf"])
def test_small_steps_near_the_target_say_what_differences_of_outputs_lose(name):
  """w - w* and the size of the step are 1e-4 ... 1e-6: the best label is the quotient of two small numbers."""
  draw = np.random.default_rng(0)
  problem = label_ranges.random_problems(draw, "least_squares", FEATURES, 1, 3, COUNT)
  small = 10.0 ** draw.uniform(-6, -4, (COUNT, 1, 1))
  weights = {leaf: draw.normal(size=value.shape) for leaf, value in problem.params.items()}
  target = {leaf: w + small.reshape(-1, *[1] * (w.ndim - 1)) * draw.normal(size=w.shape) for leaf, w in weights.items()}
  x = draw.normal(size=problem.x.shape)
  rate = small[:, 0, 0] / np.sum(x**2, (1, 2))
  given = jax.tree.map(np.float32, (weights, target, x, rate, np.full(COUNT, 3.0)))
  problem = problem._replace(**dict(zip(("params", "target", "x", "rate", "radius"), given, strict=True)))
  labels, certificate, _ = label_ranges.solver("least_squares", FEATURES, 3, name)(problem)
  with jax.enable_x64(True):
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), problem)
    best, _, _ = label_ranges.solver("least_squares", FEATURES, 3, name)(wide)
  examples = Examples("least_squares", problem)
  optimum = examples.change(best, problem.truth)
  share = (examples.change(labels, problem.truth) - optimum) / np.maximum(-optimum, 1e-30)
  gap = np.asarray(certificate.gap)
  missed = share > 1e-3
  assert missed.sum() >= (10 if name == "none" else 1)
  assert (gap[missed] >= 0.3 * share[missed]).all()
  assert np.median(gap) <= 0.1


@pytest.mark.parametrize("most", [0, linear.MOST_NUMBERS], ids=["products", "matrix"])
@pytest.mark.parametrize("momentum", [None, 0.9])
def test_the_quadratic_of_a_batch_is_the_squared_distance_after_the_step(x64, monkeypatch, most, momentum):
  """Whether its matrix is formed or only multiplied with."""
  monkeypatch.setattr(linear, "MOST_NUMBERS", most)
  learner = last.learners.softmax(FEATURES, 3, learning_rate=0.3, weight_decay=0.1, momentum=momentum)
  draw = np.random.default_rng(0)
  params, target = (learner.init(jax.random.key(seed)) for seed in (0, 1))
  params, target = (jax.tree.map(lambda leaf: leaf + draw.normal(size=leaf.shape), tree) for tree in (params, target))
  x, truth, labels = draw.normal(size=(5, FEATURES)), draw.dirichlet(np.ones(3), 5), draw.normal(size=(5, 3))
  student, outputs = learner.start(params), learner.apply(params, x)
  gradients = jax.vmap(learner.loss.output_gradient)(outputs, jnp.asarray(truth))
  slopes = jax.vmap(learner.loss.label_slope)(outputs, jnp.asarray(truth))
  known = linear.geometry(learner, target, jnp.asarray(x))
  quadratic = linear.quadratic_of_batch(
    learner, student, jnp.asarray(x), outputs, gradients, slopes, jnp.asarray(truth), known, coasting=False
  )

  def after(shown):
    reached = learner.step(student, x, shown).params
    return sum(np.sum((reached[name] - target[name]) ** 2) for name in target)

  np.testing.assert_allclose(quadratic.change(jnp.asarray(labels)), after(labels) - after(truth), rtol=1e-9)


@pytest.mark.parametrize(
  ("make", "constraint"),
  [
    (last.learners.softmax, last.constraints.none()),
    (last.learners.softmax, last.constraints.simplex()),
    (last.learners.least_squares, last.constraints.magnitude(1.0)),
  ],
)
def test_one_example_has_a_closed_form(make, constraint):
  learner = make(FEATURES, 3, learning_rate=0.3)
  params, target = (learner.init(jax.random.key(seed)) for seed in (0, 1))
  toward = last.targets.params(target)
  x, truth = jnp.ones((1, FEATURES)), jnp.array([[0.0, 1.0, 0.0]])
  _, certificate = synthesis.greedy_labels(learner, learner.start(params), toward, x, truth, constraint)
  assert certificate.road == "closed form"


@pytest.mark.parametrize("most", [0, linear.MOST_NUMBERS], ids=["products", "squares"])
def test_free_labels_of_a_batch_lead_to_the_target(x64, monkeypatch, most):
  """As many examples as parameters: one step reaches w*, with or without a matrix."""
  monkeypatch.setattr(linear, "MOST_NUMBERS", most)
  learner = last.learners.least_squares(FEATURES, 2, learning_rate=0.3, bias=False)
  draw = np.random.default_rng(0)
  params, target = ({"weights": jnp.asarray(draw.normal(size=(FEATURES, 2)))} for _ in range(2))
  x, truth = jnp.asarray(np.linalg.qr(draw.normal(size=(FEATURES, FEATURES)))[0]), jnp.zeros((FEATURES, 2))
  labels = last.synthesize_labels(learner, params, target, x, truth)
  reached = learner.step(learner.start(params), x, labels).params
  np.testing.assert_allclose(reached["weights"], target["weights"], atol=1e-6)
