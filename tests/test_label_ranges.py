"""Labels in float32 at the ends of its range: in their set, never worse than the truth, and certified only if good."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import free, linear
from tests import label_ranges, problems

CASES = [
  ("least_squares", 3, 3, 1, "none"),
  ("logistic", 6, 8, 1, "none"),
  ("softmax", 24, 3, 5, "none"),
  ("mlp", 6, 3, 2, "none"),
  ("mlp", 6, 3, 5, "simplex"),
  ("least_squares", 6, 8, 3, "simplex_2"),
  ("softmax", 6, 1, 10, "simplex_inf"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("learner", "features", "batch", "width", "name"), CASES)
def test_labels_over_the_whole_range(learner, features, batch, width, name):
  count = 60
  problem = label_ranges.random_problems(np.random.default_rng(5), learner, features, batch, width, count)
  outcome = label_ranges.judge(learner, features, batch, width, name, problem)
  row = dict(zip(label_ranges.COLUMNS, label_ranges.counts(outcome), strict=True))
  assert row["outside"] == row["worse"] == row["silent"] == row["silently_lost"] == 0
  assert row["excess"] <= 0.05 * count
  assert row["unsure"] <= 0.4 * count


@pytest.mark.fuzz
@pytest.mark.parametrize(
  "shape", sorted({f"{learner}-{batch}-{width}" for learner, _, batch, width, _ in label_ranges.SHAPES})
)
def test_ten_thousand_problems(shape):
  """All sets and learners; the same problems for any choice of tests. docs/float32.md has the table."""
  outcomes = label_ranges.study(10_000, shapes=[shape], seed=0)
  for case, outcome in outcomes.items():
    row = dict(zip(label_ranges.COLUMNS, label_ranges.counts(outcome), strict=True))
    assert row["cases"] >= 150, case
    assert row["outside"] == row["worse"] == 0, case
    assert row["silent"] + row["silently_lost"] <= 2, case
    assert row["excess"] <= 0.04 * row["cases"], case


@pytest.mark.parametrize("size", [0.01, 1e-4])
def test_free_labels_of_small_features_with_a_bias(size):
  """The products of such examples are one number, except for the last digits of float32."""
  learner = last.learners.least_squares(3, learning_rate=0.1)
  for seed in range(3):
    draw = np.random.default_rng(seed)
    params, target = ({"weights": draw.normal(size=(3, 1)), "bias": draw.normal(size=1)} for _ in range(2))
    x, truth = size * draw.normal(size=(3, 3)), draw.normal(size=(3, 1))
    single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (params, target, x, truth))
    labels, certificate = last.synthesize_labels(learner, *single, with_certificate=True)
    params, target, x, truth = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), single)
    columns = np.concatenate([x, np.ones((3, 1))], 1).T
    error = np.concatenate([params["weights"] - target["weights"], (params["bias"] - target["bias"])[None]])[:, 0]
    outputs = (x @ params["weights"] + params["bias"])[:, 0]

    def distance(labels, error=error, columns=columns, outputs=outputs):
      return np.sum((error - 0.1 / 3 * columns @ (outputs - np.ravel(labels))) ** 2)

    left = np.linalg.lstsq(columns, error, rcond=None)[0]
    best = np.sum((error - columns @ left) ** 2)
    assert distance(np.asarray(labels, np.float64)) - best <= 1e-3 * (distance(truth) - best)
    assert certificate.gap <= 1e-3


def test_free_labels_say_what_float32_cannot_do():
  """Examples that differ by less than their last digit cannot be told apart."""
  learner = last.learners.least_squares(2, learning_rate=0.1)
  params, target = ({"weights": jnp.full((2, 1), value), "bias": jnp.full(1, -value)} for value in (1.0, -2.0))
  x, truth = np.array([[1e-8, 2e-8], [3e-8, -1e-8]], np.float32), np.zeros((2, 1), np.float32)
  labels, certificate = last.synthesize_labels(learner, params, target, x, truth, with_certificate=True)
  assert np.isfinite(labels).all()
  assert certificate.gap > 0.1


@pytest.mark.parametrize("scales", [(1.0, 1.0, 1.0, 1.0), (1e-3, 1.0, 30.0, 1e3)])
def test_of_equally_good_free_labels_those_nearest_to_the_truth(x64, scales):
  """More examples than features: against the shortest solution of NumPy's least squares."""
  learner = last.learners.least_squares(2, learning_rate=0.3, bias=False)
  draw = np.random.default_rng(0)
  params, target = ({"weights": draw.normal(size=(2, 1))} for _ in range(2))
  x, truth = np.array(scales)[:, None] * draw.normal(size=(4, 2)), draw.normal(size=(4, 1))
  problem = problems.Problem(params, target, x, truth)
  start, columns = problems.step_map_of(learner, problem)
  gap = problems.flatten(target) - start - columns @ truth.ravel()
  expected = truth.ravel() + np.linalg.lstsq(columns, gap, rcond=1e-12)[0]
  labels = last.synthesize_labels(learner, params, target, x, truth)
  np.testing.assert_allclose(labels.ravel(), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("p", [1, 2, np.inf])
@pytest.mark.parametrize("width", [2, 10, 100])
def test_far_labels_are_projected_into_a_ball_of_the_simplex(p, width):
  draw = np.random.default_rng(width)
  radii = 10 ** draw.uniform(-2.5, 0.4, size=300)
  corners, mixtures = np.eye(width)[draw.integers(width, size=150)], draw.dirichlet(np.ones(width), size=150)
  centers = np.concatenate([corners, mixtures]).astype(np.float32)
  labels = 10 ** draw.uniform(-2, 7, size=(300, 1)) * draw.normal(size=(300, width))
  constraint = last.constraints.simplex(1.0, p=p)
  project = jax.jit(jax.vmap(lambda *given: constraint.project(*given, jnp.eye(width))))
  found = project(labels.astype(np.float32), centers, radii.astype(np.float32))
  found = np.asarray(found, np.float64)
  assert found.min() >= 0
  assert np.abs(found.sum(1) - 1).max() <= 1e-6
  assert (np.linalg.norm(found - centers, ord=p, axis=1) - radii).max() <= 1e-6


@pytest.mark.parametrize(("output", "best", "known"), [(25.0, 1 - 5e-9, False), (-1.0, 0.3, True), (1.0, 1.5, True)])
def test_closed_forms_say_where_labels_have_no_digits_for_the_gain(output, best, known):
  """One example of one output, which is to be moved to where the label `best` leads; above 1 the truth is best."""
  learner = last.learners.logistic(1, learning_rate=2.0, bias=False)
  after = output - 2.0 * (1 / (1 + np.exp(-output)) - best)
  params, target = ({"weights": np.full((1, 1), value, np.float32)} for value in (output, after))
  one = np.ones((1, 1), np.float32)
  labels, certificate = last.synthesize_labels(
    learner, params, target, one, one, last.constraints.simplex(), with_certificate=True
  )
  np.testing.assert_allclose(labels, min(best, 1), rtol=1e-5)
  assert (certificate.gap <= 1e-3) == known


@pytest.mark.parametrize("distance", [1e-2, 1e-4])
@pytest.mark.slow
def test_labels_in_a_ball_that_hardly_move_have_all_their_digits(distance):
  """Softmax that is sure of a class, whose curvature differs a hundredfold: against the same step in float64."""
  learner = last.learners.softmax(4, 100, learning_rate=1.0, bias=False)
  draw = np.random.default_rng(0)
  x, truth = np.float32(draw.normal(size=(1, 4))), np.float32(np.eye(100)[:1])
  weights = np.float32(draw.normal(size=(4, 100)))
  weights[:, 0] += np.float32(200 * x[0] / np.sum(x**2))
  target = {"weights": np.float32(weights + distance * draw.normal(size=(4, 100)))}
  constraint = last.constraints.magnitude(1.0, p=np.inf)
  found = last.synthesize_labels(learner, {"weights": weights}, target, x, truth, constraint)
  with jax.enable_x64(True):
    wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), ({"weights": weights}, target, x, truth))
    best = np.asarray(last.synthesize_labels(learner, *wide, constraint))
  found = np.asarray(found)
  np.testing.assert_allclose((found - truth)[:, 1:], (best - truth)[:, 1:], atol=1e-2 * np.abs(best - truth).max())


@pytest.mark.slow
def test_the_squares_of_a_batch_are_its_quadratic(x64):
  learner = last.learners.softmax(3, 4, learning_rate=0.2, weight_decay=1e-2)
  draw = np.random.default_rng(0)
  params, target = (
    {"weights": jnp.asarray(draw.normal(size=(3, 4))), "bias": jnp.asarray(draw.normal(size=4))} for _ in range(2)
  )
  x, truth = jnp.asarray(draw.normal(size=(2, 3))), jnp.eye(4)[:2]
  student = learner.start(params)
  outputs = learner.apply(params, x)
  slopes = jax.vmap(learner.loss.label_slope)(outputs, truth)
  gradients = jax.vmap(learner.loss.output_gradient)(outputs, truth)
  known = linear.geometry(learner, target, x)
  quadratic = linear.quadratic_of_batch(learner, student, x, outputs, gradients, slopes, truth, known)
  drift, rate = learner.drift(student)
  error = jax.tree.map(jnp.subtract, drift, target)
  squares = linear.squares_of_batch(learner, x, gradients, slopes, error, rate, quadratic.scale)
  np.testing.assert_allclose(squares.columns.T @ squares.columns, quadratic.matrix.reshape(8, 8), atol=1e-12)
  np.testing.assert_allclose(squares.columns.T @ squares.error, quadratic.linear.ravel(), atol=1e-12)
  # Both solve the same problem.
  by_matrix, _ = free.minimise(quadratic)
  by_squares, _ = free.minimise(quadratic._replace(squares=squares))
  np.testing.assert_allclose(by_matrix, by_squares, rtol=1e-8, atol=1e-8)
