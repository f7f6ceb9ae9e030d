"""fit_target against scikit-learn, least squares and its own gradient; the part of w - w* that no label reaches."""

import contextlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from sklearn.linear_model import LogisticRegression

import last_jax as last
from last_jax import fitting

COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


def blobs(classes, seed=0, size=200, features=5):
  draw = np.random.default_rng(seed)
  y = np.arange(size) % classes
  return last.Pool(draw.normal(size=(size, features)) + 1.5 * np.eye(classes, features)[y], y)


@contextlib.contextmanager
def compilations():
  """A list that gains an entry for every program that JAX compiles within the block."""
  seen = []

  def listen(event, seconds, **_):
    if event == COMPILE_EVENT:
      seen.append(seconds)

  jax.monitoring.register_event_duration_secs_listener(listen)
  try:
    yield seen
  finally:
    jax.monitoring.unregister_event_duration_listener(listen)


def test_least_squares_is_solved(x64):
  draw = np.random.default_rng(0)
  pool = last.Pool(draw.normal(size=(50, 4)), draw.normal(size=50))
  learner = last.learners.least_squares(4, learning_rate=0.1, weight_decay=0.3)
  target, fit = last.fit_target(learner, pool, with_fit=True)
  x = np.concatenate([pool.x, np.ones((50, 1))], 1)
  expected = np.linalg.solve(x.T @ x / 50 + 0.3 * np.diag([1, 1, 1, 1, 0]), x.T @ np.asarray(pool.y) / 50)
  np.testing.assert_allclose(np.append(target["weights"], target["bias"]), expected, rtol=1e-8)
  assert fit.converged
  assert fit.gradient_norm < 1e-9


# 121 features: 1,210 parameters, which are fitted without a Hessian.
@pytest.mark.parametrize(("classes", "features"), [(2, 5), (3, 5), (10, 121)])
@pytest.mark.slow
def test_classifiers_agree_with_scikit_learn(x64, classes, features):
  pool, decay = blobs(classes, features=features), 0.01
  if classes == 2:
    learner = last.learners.logistic(features, learning_rate=0.1, weight_decay=decay)
  else:
    learner = last.learners.softmax(features, classes, learning_rate=0.1, weight_decay=decay)
  target, fit = last.fit_target(learner, pool, with_fit=True)
  assert fit.converged
  # scikit-learn's objective is ours times n C.
  other = LogisticRegression(C=1 / (decay * len(pool)), tol=1e-10, max_iter=10_000).fit(pool.x, pool.y)
  np.testing.assert_allclose(target["weights"].T, other.coef_, atol=1e-5)
  bias = target["bias"] - (target["bias"].mean() if classes > 2 else 0)
  np.testing.assert_allclose(bias, other.intercept_ - (other.intercept_.mean() if classes > 2 else 0), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("bits", [32, 64])
def test_the_gradient_norm_reported_is_the_true_one(bits):
  with jax.enable_x64(bits == 64):
    pool = blobs(3)
    for learner in (
      last.learners.softmax(5, 3, learning_rate=0.1, weight_decay=1e-3),
      last.learners.mlp((5, 8, 3), activation="tanh", learning_rate=0.1, weight_decay=1e-2),
    ):
      target, fit = last.fit_target(learner, pool, with_fit=True, tolerance=1e-4)
      gradient = jax.grad(learner.objective)(target, pool.x, learner.encode(pool.x, pool.y))
      np.testing.assert_allclose(fit.gradient_norm, optax.tree.norm(gradient), rtol=0.1, atol=1e-6)
      assert fit.converged
      assert fit.steps > 0


SIZES = [1e-12, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e12, (1e-12, 1e-4, 1.0, 1e3, 1e12)]


@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_units_of_features_labels_and_rates_have_no_influence_on_least_squares(x64, decay):
  """Against the normal equations in units of each feature, refined with longer floats."""
  draw = np.random.default_rng(0)
  x, y = draw.normal(size=(100, 5)), draw.normal(size=100)
  for sizes in SIZES:
    units = np.broadcast_to(np.asarray(sizes), 5)
    for unit in (1e-12, 1.0, 1e12):  # Of labels.
      learner = last.learners.least_squares(5, learning_rate=1e-9 / unit, weight_decay=decay)
      target, fit = last.fit_target(learner, last.Pool(x * units, unit * y), with_fit=True)
      lengths = np.append(np.hypot(units, decay**0.5), 1).astype(np.longdouble)
      columns = np.append(x * units, np.ones((100, 1)), 1) / lengths
      matrix = columns.T @ columns / 100 + np.diag([*np.full(5, decay), 0]) / lengths**2
      goal, expected = columns.T @ (unit * y) / 100, np.zeros(6, np.longdouble)
      for _ in range(5):
        expected = expected + np.linalg.solve(matrix.astype(float), (goal - matrix @ expected).astype(float))
      found = np.append(target["weights"], target["bias"])
      np.testing.assert_allclose(found, (expected / lengths).astype(float), rtol=1e-5)
      assert fit.converged
      assert fit.steps <= 20


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.slow
def test_units_of_features_have_no_influence_on_classifiers(classes):
  """Pools in float32 too: against scikit-learn on features of size one, whose weights are divided by the units."""
  pool = blobs(classes)
  x, y = np.asarray(pool.x, np.float32), np.asarray(pool.y)
  other = LogisticRegression(C=np.inf, tol=1e-12, max_iter=10_000).fit(x.astype(float), y)
  for sizes in SIZES:
    for rate in (1e-9, 1e9):
      if classes == 2:
        learner = last.learners.logistic(5, learning_rate=rate)
      else:
        learner = last.learners.softmax(5, classes, learning_rate=rate)
      units = np.broadcast_to(np.float32(sizes), 5)
      target, fit = last.fit_target(learner, last.Pool(x * units, y), with_fit=True)
      assert fit.converged
      assert fit.steps <= 30
      weights = np.asarray(target["weights"], float) * units[:, None]
      np.testing.assert_allclose(weights.T - (weights.T.mean(0) if classes > 2 else 0), other.coef_, atol=1e-4)


def test_features_without_a_hessian_may_be_of_any_size():
  """1,210 parameters, by conjugate gradients."""
  pool = blobs(10, features=121)
  found = []
  for units in (1.0, np.resize([1e-12, 1.0, 1e12], 121)):
    learner = last.learners.softmax(121, 10, learning_rate=0.1, weight_decay=0.0)
    smooth = 0.8 * np.eye(10)[np.asarray(pool.y)] + 0.02  # So that there is a minimum.
    target, fit = last.fit_target(learner, last.Pool(np.asarray(pool.x) * units, smooth), with_fit=True)
    assert fit.converged
    found.append(np.asarray(target["weights"], float) * np.reshape(units, (-1, 1)))
  np.testing.assert_allclose(found[1], found[0], atol=1e-3)


@pytest.mark.slow
def test_networks_fit_inputs_and_labels_of_any_size(x64):
  """The same network, to powers of two: its random start is divided by the size of the inputs."""
  draw = np.random.default_rng(0)
  x = draw.normal(size=(60, 3))
  y = np.tanh(x[:, 0]) + 0.5 * x[:, 1]
  fits = {}
  for power in (0, -40, 40):
    learner = last.learners.mlp((3, 6, 1), activation="tanh", loss="squared_error", learning_rate=0.1)
    pool = last.Pool(x * 2.0**power, y[:, None])
    target, fit = last.fit_target(learner, pool, with_fit=True, tolerance=1e-5, max_steps=1000)
    assert fit.converged
    fits[power] = fit.objective
    np.testing.assert_allclose(learner.objective(target, pool.x, learner.encode(pool.x, pool.y)), fit.objective)
  assert max(fits.values()) < 1e-2 * np.var(y)  # By a constant it would be half of the variance.
  small = last.Pool(x, 1e-9 * y[:, None])
  _, fit = last.fit_target(learner, small, with_fit=True, tolerance=1e-4, max_steps=1000)
  assert fit.objective < 1e-2 * np.var(1e-9 * y)


@pytest.mark.slow
def test_a_target_that_is_not_reached_is_told():
  learner = last.learners.mlp((5, 8, 3), learning_rate=0.1)
  with pytest.warns(UserWarning, match=r"fit_target: gradient norm .* after 2 steps, but .* was asked for"):
    last.fit_target(learner, blobs(3), max_steps=2)


def test_fitting_again_does_not_compile_again():
  counts = []
  for seed in (0, 1):
    learner = last.learners.logistic(7, learning_rate=0.1 + seed, weight_decay=0.01 * (1 + seed))
    pool = blobs(2, seed, features=7)  # As no other test has.
    with compilations() as compiled:
      last.fit_target(learner, pool)
    counts.append(len(compiled))
  assert counts[0] > 0
  assert counts[1] == 0


@pytest.mark.slow
def test_a_hessian_assembled_in_chunks_is_whole():
  """100,000 examples: the 18 columns of the Hessian do not fit into one chunk."""
  learner, pool = last.learners.softmax(5, 3, learning_rate=0.1, weight_decay=1e-3), blobs(3, size=100_000)
  target, fit = last.fit_target(learner, pool, with_fit=True)
  assert fit.steps < 15  # Newton's method with a wrong Hessian takes more.
  x, y = np.asarray(pool.x, float), np.eye(3)[np.asarray(pool.y)]
  weights, bias = np.asarray(target["weights"], float), np.asarray(target["bias"], float)
  scores = np.exp(x @ weights + bias)
  error = scores / scores.sum(1, keepdims=True) - y
  np.testing.assert_allclose(x.T @ error / len(x) + 1e-3 * weights, 0, atol=1e-6)
  np.testing.assert_allclose(error.mean(0), 0, atol=1e-6)


@pytest.mark.parametrize(
  ("features", "megabytes"),
  [(99, 256), (784, 512)],  # With a Hessian, and without one: of 784 features it takes 105 GiB if assembled at once.
)
def test_memory_is_bounded_by_the_pools_not_by_the_hessians(features, megabytes):
  """Shapes of MNIST's 60,000 images; nothing is run."""

  def shape(*sizes, dtype=jnp.float64):
    return jax.ShapeDtypeStruct(sizes, dtype)

  with jax.enable_x64(True):
    learner = last.learners.softmax(features, 10, learning_rate=0.1, weight_decay=5e-5)
    params = {"weights": shape(features, 10), "bias": shape(10)}
    pool = shape(60_000, features), shape(60_000, 10)
    compiled = fitting.minimise.lower(learner, params, *pool, shape(), shape(dtype=jnp.int64)).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < megabytes * 2**20


@pytest.mark.slow
def test_no_compilation_gives_a_target_of_zero():
  """XLA miscompiles some programs that contain zeros: see miscompilation.py. It did in 2 to 8 of 100 compilations."""
  draw = np.random.default_rng(0)
  pool = last.Pool(draw.uniform(size=(1797, 101)), draw.integers(0, 10, 1797))
  learner = last.learners.softmax(101, 10, learning_rate=0.1)
  with jax.debug_nans(False), warnings.catch_warnings():
    warnings.simplefilter("ignore")  # One step is not enough.
    for _ in range(30):
      jax.clear_caches()
      _, fit = last.fit_target(learner, pool, with_fit=True, max_steps=1)
      assert fit.steps == 1


@pytest.mark.slow
def test_a_gradient_that_is_not_finite_gives_no_target(x64):
  pool = blobs(2)
  logistic = last.learners.logistic(5, learning_rate=0.1)
  assert last.fit_target(logistic, last.Pool(1e200 * pool.x, pool.y), with_fit=True)[1].converged  # As any other.
  least_squares = last.learners.least_squares(5, learning_rate=0.1)
  normalised = last.learners.from_apply(
    logistic.init, lambda w, x: x @ w["weights"] / jnp.linalg.norm(w["weights"]), "squared_error", learning_rate=0.1
  )
  network = last.learners.mlp((5, 4, 2), learning_rate=0.1)
  far = jax.tree.map(lambda leaf: leaf + 1e200, network.init(jax.random.key(0)))
  with jax.debug_nans(False):
    with pytest.raises(ValueError, match=r"gradient norm at zero parameters, .* is (inf|nan)"):
      last.fit_target(least_squares, last.Pool(1e200 * pool.x, 1e200 * pool.x[:, 0]))  # Products are beyond float64.
    with pytest.raises(ValueError, match=r"gradient norm at zero parameters, .* is nan"):
      last.fit_target(normalised, pool)
    with pytest.raises(ValueError, match=r"gradient norm (inf|nan) after .* steps, so there is no target"):
      last.fit_target(network, pool, init=far)


def test_bad_arguments_are_refused():
  learner = last.learners.logistic(5, learning_rate=0.1)
  with pytest.raises(ValueError, match="tolerance must be a positive number"):
    last.fit_target(learner, blobs(2), tolerance=-1.0)
  with pytest.raises(ValueError, match="max_steps must be a whole number"):
    last.fit_target(learner, blobs(2), max_steps=0)


X = np.random.default_rng(0).normal(size=(4, 5))
LOGISTIC = last.learners.logistic(5, learning_rate=0.1, weight_decay=0.1)
SOFTMAX = last.learners.softmax(5, 2, learning_rate=0.1, weight_decay=0.1)


@pytest.mark.parametrize(
  ("learner", "y"),
  [
    (LOGISTIC, np.ones(4, int)),
    (LOGISTIC, np.ones(4)),
    (LOGISTIC, np.full((4, 1), 0.3)),
    (SOFTMAX, np.zeros(4, int)),
    (SOFTMAX, np.tile([0.0, 1.0], (4, 1))),
    (SOFTMAX, np.tile([0.2, 0.8], (4, 1))),
  ],
)
def test_labels_that_are_all_equal_are_refused(learner, y):
  with pytest.raises(ValueError, match="pool holds one class only: every label is"):
    last.fit_target(learner, last.Pool(X, y))


@pytest.mark.parametrize(
  ("learner", "y"),
  [
    (LOGISTIC, np.array([0.6, 0.7, 0.8, 0.9])),
    (LOGISTIC, np.array([[0.6], [0.6], [0.6], [0.9]])),
    (SOFTMAX, np.array([[0.4, 0.6], [0.3, 0.7], [0.2, 0.8], [0.1, 0.9]])),
  ],
)
def test_soft_labels_may_favour_one_class(learner, y):
  target, fit = last.fit_target(learner, last.Pool(X, y), with_fit=True)
  assert fit.converged
  assert np.any(np.asarray(target["weights"]) != 0)


@pytest.mark.slow
def test_what_softmax_cannot_be_taught_is_reported(x64):
  """The mean over classes of w - w* never changes, and teaching ends at just that distance."""
  learner = last.learners.softmax(5, 3, learning_rate=0.2)
  pool = blobs(3)
  init, target = (learner.init(jax.random.key(i)) for i in (0, 1))
  out_of_reach = float(last.unreachable_distance(learner, init, target, pool.x))
  gap = jax.tree.map(lambda a, b: np.mean(a - b, -1), init, target)
  expected = np.sqrt(3 * sum(np.sum(np.square(leaf)) for leaf in jax.tree.leaves(gap)))
  assert out_of_reach == pytest.approx(expected, rel=1e-9)
  result = last.teach(
    jax.random.key(2),
    learner,
    last.teachers.greedy(last.constraints.none()),
    pool,
    target=target,
    init=init,
    steps=2000,
  )
  assert float(result.distance[-1]) == pytest.approx(out_of_reach, rel=1e-6)


def test_directions_outside_the_span_of_the_pool_are_out_of_reach(x64):
  learner = last.learners.least_squares(4, learning_rate=0.1, bias=False)
  draw = np.random.default_rng(0)
  x = jnp.asarray(draw.normal(size=(10, 2)) @ draw.normal(size=(2, 4)))
  params, target = {"weights": jnp.zeros((4, 1))}, {"weights": jnp.ones((4, 1))}
  basis = np.linalg.svd(x)[2][2:]
  found = last.unreachable_distance(learner, params, target, x)
  np.testing.assert_allclose(found, np.linalg.norm(basis @ np.ones(4)), rtol=1e-9)


def test_examples_that_are_no_numbers_are_refused():
  learner = last.learners.least_squares(2, learning_rate=0.1, bias=False)
  params = {"weights": jnp.zeros((2, 1))}
  with pytest.raises(ValueError, match="x holds NaN or infinite values"):
    last.unreachable_distance(learner, params, params, np.array([[1.0, np.nan]]))
