"""Small datasets drawn from known distributions; the same seed gives the same numbers."""

import numpy as np

from last_jax.base import Dataset, Pool
from last_jax.checks import check_count, check_not_negative


def regression(
  seed: int = 0, *, num_examples: int = 800, num_features: int = 4, noise: float = 0.02, num_test: int | None = None
) -> Dataset:
  """Linear regression: y = <w, x> + b + noise * e, with x ~ N(0, I) and e ~ N(0, 1).

  The weights w `[num_features]` and the intercept b are drawn once from N(0, 1) and shared by both pools. They are not
  `Dataset.target`: the target of teaching is the learner's own fit to the pool, which depends on its weight decay.

  Args:
    seed: seed of all numbers.
    num_examples: size of the training pool.
    num_features: numbers per example.
    noise: standard deviation of the noise on y.
    num_test: size of the test pool; that of the training pool by default.

  Returns:
    Train and test pools with x `[n, num_features]` and real targets y `[n]`.
  """
  seed = check_count("seed", seed, least=0, most=None)
  num_features = check_count("num_features", num_features)
  noise = check_not_negative("noise", noise)
  train_size, test_size = _sizes(("num_examples", num_examples), ("num_test", num_test))
  generator = np.random.default_rng(seed)
  weights, intercept = generator.standard_normal(num_features), generator.standard_normal()

  def draw(size: int) -> Pool:
    x = generator.standard_normal((size, num_features))
    return Pool(x, x @ weights + intercept + noise * generator.standard_normal(size))

  # The training pool comes first, so that it does not depend on the size of the test pool.
  train = draw(train_size)
  return Dataset(train, draw(test_size))


def gaussian(
  seed: int = 0,
  *,
  per_class: int = 400,
  num_features: int = 4,
  mean: float = 0.2,
  test_per_class: int | None = None,
) -> Dataset:
  """Two Gaussian clusters with identity covariance: class 0 around -mean, class 1 around +mean, in every coordinate.

  Args:
    seed: seed of all numbers.
    per_class: training examples of each class.
    num_features: numbers per example.
    mean: every coordinate of class 1's mean, at least 0.
    test_per_class: test examples of each class; as many as in the training pool by default.

  Returns:
    Shuffled train and test pools with x `[n, num_features]` and class ids y `[n]`.
  """
  seed = check_count("seed", seed, least=0, most=None)
  num_features = check_count("num_features", num_features)
  mean = check_not_negative("mean", mean)
  train_size, test_size = _sizes(("per_class", per_class), ("test_per_class", test_per_class))
  generator = np.random.default_rng(seed)

  def draw(size: int) -> Pool:
    y = generator.permutation(np.repeat(np.arange(2, dtype=np.int32), size))
    center = mean * (2 * y[:, None] - 1)
    return Pool(center + generator.standard_normal((2 * size, num_features)), y)

  train = draw(train_size)
  return Dataset(train, draw(test_size))


def half_moons(
  seed: int = 0, *, per_class: int = 400, noise: float = 0.2, test_per_class: int | None = None
) -> Dataset:
  """Two interleaving half circles in the plane, the points of scikit-learn's `make_moons`.

  The training pool is `make_moons((per_class, per_class), noise=noise, random_state=seed)`. Without noise the points
  are equally spaced on the two arcs, so that both pools hold the same points.

  Args:
    seed: random_state of the training pool, below 2**32; that of the test pool is derived from it.
    per_class: training examples of each class.
    noise: standard deviation of the noise on both coordinates.
    test_per_class: test examples of each class; as many as in the training pool by default.

  Returns:
    Shuffled train and test pools with x `[n, 2]` and class ids y `[n]`.
  """
  seed = check_count("seed", seed, least=0, most=None)
  if seed >= 2**32:
    raise ValueError(f"seed must be below 2**32, but it is {seed}")
  noise = check_not_negative("noise", noise)
  train_size, test_size = _sizes(("per_class", per_class), ("test_per_class", test_per_class))

  def draw(size: int, state: int) -> Pool:
    # Of the same kind as scikit-learn's, so that the points are the same.
    generator = np.random.RandomState(state)
    angle = np.linspace(0, np.pi, size)
    upper = np.stack([np.cos(angle), np.sin(angle)], 1)  # [size, 2]
    lower = np.stack([1 - np.cos(angle), 1 - np.sin(angle) - 0.5], 1)
    order = np.arange(2 * size)
    generator.shuffle(order)
    points = np.concatenate([upper, lower])[order]
    return Pool(points + generator.normal(scale=noise, size=points.shape), (order >= size).astype(np.int32))

  # Flipping the highest bit always gives a second seed, and one that counting seeds up from 0 does not reach.
  return Dataset(draw(train_size, int(seed)), draw(test_size, int(seed) ^ 2**31))


def _sizes(train: tuple[str, int], test: tuple[str, int | None]) -> tuple[int, int]:
  """Check and return the sizes of both pools; a test size of None is the training size."""
  train_size, test_size = train[1], train[1] if test[1] is None else test[1]
  return check_count(train[0], train_size), check_count(test[0], test_size)
