"""Small sets drawn from known distributions, the same for the same seed."""

import numpy as np

from last_jax.checks import check_count, check_not_negative
from last_jax.types import Dataset, Pool


def regression(
  seed: int = 0, *, num_examples: int = 800, num_features: int = 4, noise: float = 0.02, num_test: int | None = None
) -> Dataset:
  """Linear regression: y = <w, x> + b + noise * e, with x ~ N(0, I) and e ~ N(0, 1).

  The weights w `[num_features]` and the intercept b are drawn once from N(0, 1) and shared by both pools. They are not
  given as `Dataset.target`: the target of teaching is what a learner fits to the pool, weight decay and all.

  Args:
    seed: Everything is drawn from it.
    num_examples: Size of the training pool.
    num_features: Numbers per example.
    noise: Standard deviation of the noise on y.
    num_test: Size of the test pool; None for as large as the training pool.

  Returns:
    Train and test pools with x `[n, num_features]` and real targets y `[n]`.
  """
  check_count("seed", seed, least=0)
  check_count("num_features", num_features)
  check_not_negative("noise", noise)
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
    seed: Everything is drawn from it.
    per_class: Training examples of each class.
    num_features: Numbers per example.
    mean: Every coordinate of class 1's mean, at least 0.
    test_per_class: Test examples of each class; None for as many as in the training pool.

  Returns:
    Train and test pools, shuffled, with x `[n, num_features]` and class ids y `[n]`.
  """
  check_count("seed", seed, least=0)
  check_count("num_features", num_features)
  check_not_negative("mean", mean)
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
  """Two interleaving half circles in the plane, from scikit-learn's `make_moons`.

  The training pool is `make_moons((per_class, per_class), noise=noise, random_state=seed)`. Without noise the points
  lie on fixed places of the two arcs, so only then do the pools share points.

  Args:
    seed: The training pool's random_state; the test pool's is another, derived from it.
    per_class: Training examples of each class.
    noise: Standard deviation of the noise on both coordinates.
    test_per_class: Test examples of each class; None for as many as in the training pool.

  Returns:
    Train and test pools, shuffled, with x `[n, 2]` and class ids y `[n]`.
  """
  from sklearn.datasets import make_moons

  check_count("seed", seed, least=0)
  if seed >= 2**32:
    raise ValueError(f"seed must be below 2**32, where scikit-learn's random_state ends, but it is {seed}")
  check_not_negative("noise", noise)
  train_size, test_size = _sizes(("per_class", per_class), ("test_per_class", test_per_class))

  def draw(size: int, state: int) -> Pool:
    x, y = make_moons((size, size), noise=noise, random_state=state)
    return Pool(x, y.astype(np.int32))

  # Flipping the highest bit always gives a second seed, and one that counting seeds up from 0 does not reach.
  return Dataset(draw(train_size, int(seed)), draw(test_size, int(seed) ^ 2**31))


def _sizes(train: tuple[str, int], test: tuple[str, int | None]) -> tuple[int, int]:
  """The checked sizes of the two pools; a test size of None is the training size."""
  train_size, test_size = train[1], train[1] if test[1] is None else test[1]
  check_count(train[0], train_size)
  check_count(test[0], test_size)
  return train_size, test_size
