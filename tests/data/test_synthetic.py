"""The synthetic sets are drawn as their docstrings say."""

import os
import pathlib
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.datasets import make_moons

from last_jax import data

SETS = {"regression": data.regression, "gaussian": data.gaussian, "half_moons": data.half_moons}


def run_python(program, **environment):
  """Return the words that a new process prints."""
  done = subprocess.run(
    [sys.executable, "-c", program],
    cwd=pathlib.Path(__file__).resolve().parents[2],
    env={**os.environ, **environment},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stderr
  return done.stdout.split()


def rows(pool):
  return {row.tobytes() for row in np.asarray(pool.x)}


@pytest.mark.parametrize("make", SETS.values(), ids=SETS)
class TestEverySet:
  def test_has_the_papers_sizes_by_default(self, make):
    train, test, target, init = make()
    features = 2 if make is data.half_moons else 4
    assert train.x.shape == test.x.shape == (800, features)
    assert train.y.shape == test.y.shape == (800,)
    assert target is None
    assert init is None

  def test_is_the_same_for_the_same_seed_and_another_for_another(self, make):
    first, again, other = make(7), make(7), make(8)
    for pool, same, different in zip(first[:2], again[:2], other[:2], strict=True):
      np.testing.assert_array_equal(pool.x, same.x)
      np.testing.assert_array_equal(pool.y, same.y)
      assert not rows(pool) & rows(different)

  def test_pools_share_no_example(self, make):
    train, test, *_ = make(3)
    assert len(rows(train)) == len(rows(test)) == 800
    assert not rows(train) & rows(test)

  def test_training_pool_does_not_depend_on_the_test_size(self, make):
    name = "num_test" if make is data.regression else "test_per_class"
    usual, small = make(5), make(5, **{name: 10})
    np.testing.assert_array_equal(usual.train.x, small.train.x)
    np.testing.assert_array_equal(usual.train.y, small.train.y)
    assert len(small.test) == (10 if make is data.regression else 20)


NAN, INFINITY = float("nan"), float("inf")
BAD_VALUES = {
  data.regression: {
    "seed": (-1, 0.5, True),
    "num_examples": (0, -3, 2.5, True, None),
    "num_features": (0, "four"),
    "noise": (-0.1, NAN, INFINITY, "much"),
    "num_test": (0, 1.5),
  },
  data.gaussian: {
    "seed": (-1, 0.5),
    "per_class": (0, -3, 2.5, True, None),
    "num_features": (0, "four"),
    "mean": (-0.1, NAN, INFINITY, "far"),
    "test_per_class": (0, 1.5),
  },
  data.half_moons: {
    "seed": (-1, 0.5),
    "per_class": (0, -3, 2.5, True, None),
    "noise": (-0.1, NAN, INFINITY, "much"),
    "test_per_class": (0, 1.5),
  },
}


@pytest.mark.parametrize(
  ("make", "name", "value"),
  [(make, name, value) for make, names in BAD_VALUES.items() for name, values in names.items() for value in values],
)
def test_bad_argument_is_named(make, name, value):
  with pytest.raises((ValueError, TypeError), match=f"^{name} must be"):
    make(**{name: value})


class TestRegression:
  def test_inputs_are_standard_normal(self):
    x = np.asarray(data.regression(1, num_examples=20000, num_features=3).train.x, float)
    np.testing.assert_allclose(x.mean(0), 0, atol=0.03)
    np.testing.assert_allclose(np.cov(x.T), np.eye(3), atol=0.04)

  @pytest.mark.parametrize("noise", [0.02, 0.5])
  def test_least_squares_finds_one_law_for_both_pools_and_the_noise(self, noise):
    fits = []
    for pool in data.regression(2, num_examples=4000, noise=noise)[:2]:
      x = np.column_stack([np.asarray(pool.x, float), np.ones(len(pool))])
      y = np.asarray(pool.y, float)
      fits.append(np.linalg.lstsq(x, y, rcond=None)[0])
      residual = y - x @ fits[-1]
      np.testing.assert_allclose(residual.std(), noise, rtol=0.05)
      # Gaussian: the fourth moment is three times the squared second.
      np.testing.assert_allclose(np.mean(residual**4) / np.mean(residual**2) ** 2, 3, rtol=0.15)
    np.testing.assert_allclose(fits[0], fits[1], atol=6 * noise / np.sqrt(4000))

  def test_law_is_drawn_from_the_standard_normal(self):
    laws = []
    for seed in range(300):
      pool = data.regression(seed, num_examples=6, noise=0.0, num_test=1).train
      x = np.column_stack([np.asarray(pool.x, float), np.ones(6)])
      laws.append(np.linalg.lstsq(x, np.asarray(pool.y, float), rcond=None)[0])
    np.testing.assert_allclose(np.mean(laws, 0), 0, atol=0.25)
    np.testing.assert_allclose(np.std(laws, 0), 1, atol=0.2)

  def test_without_noise_the_law_is_exact(self):
    pool = data.regression(noise=0.0).train
    x = np.column_stack([np.asarray(pool.x, float), np.ones(len(pool))])
    residual = np.linalg.lstsq(x, np.asarray(pool.y, float), rcond=None)[1]
    assert residual[0] < 1e-9

  def test_targets_are_real(self):
    assert jnp.issubdtype(data.regression().train.y.dtype, jnp.floating)


class TestGaussian:
  def test_clusters_have_their_means_and_identity_covariance(self):
    for pool in data.gaussian(1, per_class=20000, num_features=3, mean=0.2)[:2]:
      x, y = np.asarray(pool.x, float), np.asarray(pool.y)
      for label, sign in ((0, -1), (1, 1)):
        np.testing.assert_allclose(x[y == label].mean(0), sign * 0.2, atol=0.03)
        np.testing.assert_allclose(np.cov(x[y == label].T), np.eye(3), atol=0.04)

  def test_classes_are_balanced_shuffled_integers(self):
    train, test, *_ = data.gaussian(0, per_class=30, test_per_class=50)
    assert jnp.issubdtype(train.y.dtype, jnp.integer)
    assert np.bincount(train.y).tolist() == [30, 30]
    assert np.bincount(test.y).tolist() == [50, 50]
    assert 0 < np.asarray(train.y)[:30].sum() < 30

  def test_mean_moves_the_clusters_apart_and_nothing_else(self):
    near, far = data.gaussian(4, mean=0.0).train, data.gaussian(4, mean=3.0).train
    np.testing.assert_array_equal(near.y, far.y)
    shift = 3.0 * (2 * np.asarray(near.y)[:, None] - 1)
    np.testing.assert_allclose(far.x - near.x, np.broadcast_to(shift, far.x.shape), atol=1e-5)


class TestHalfMoons:
  @pytest.mark.parametrize("seed", [0, 11, 2**32 - 1])
  @pytest.mark.parametrize(("size", "noise"), [(400, 0.2), (7, 0.0), (1, 0.5)])
  def test_points_are_scikit_learns_to_the_last_bit(self, x64, seed, size, noise):
    train, test, *_ = data.half_moons(seed, per_class=size, noise=noise)
    for pool, state in ((train, seed), (test, seed ^ 2**31)):
      x, y = make_moons((size, size), noise=noise, random_state=state)
      np.testing.assert_array_equal(pool.x, x)
      np.testing.assert_array_equal(pool.y, y)

  def test_points_scatter_around_the_arcs_by_the_noise(self):
    for pool in data.half_moons(0, per_class=5000, noise=0.05)[:2]:
      x, y = np.asarray(pool.x, float), np.asarray(pool.y)
      for label, center in ((0, (0, 0)), (1, (1, 0.5))):
        distance = np.linalg.norm(x[y == label] - center, axis=1) - 1
        np.testing.assert_allclose(distance.std(), 0.05, rtol=0.05)

  def test_classes_are_balanced_integers(self):
    train, test, *_ = data.half_moons(0, per_class=30, test_per_class=50)
    assert jnp.issubdtype(train.y.dtype, jnp.integer)
    assert np.bincount(train.y).tolist() == [30, 30]
    assert np.bincount(test.y).tolist() == [50, 50]

  def test_takes_the_highest_seed_and_no_higher(self):
    data.half_moons(2**32 - 1, per_class=2)
    data.half_moons(np.uint32(2**32 - 1), per_class=2)
    with pytest.raises(ValueError, match=r"seed must be below 2\*\*32"):
      data.half_moons(2**32)


def test_import_touches_no_device():
  # There is no such platform: whatever asks for a device fails.
  assert run_python("import last_jax.data; print('imported')", JAX_PLATFORMS="none_such") == ["imported"]


def test_scikit_learn_is_not_needed():
  program = """
import sys
sys.modules["sklearn"] = None  # Importing it is an error.
from last_jax import data
print(len(data.half_moons(per_class=3).train))
"""
  assert run_python(program) == ["6"]


def test_everything_is_in_double_precision_when_jax_is():
  program = """
import jax, numpy as np
from last_jax import data
sets = [data.regression(), data.gaussian(), data.half_moons(), data.mnist(), data.mnist(num_features=None)]
print(*{str(pool.x.dtype) for each in sets for pool in each[:2]}, data.regression().train.y.dtype)
"""
  assert run_python(program, JAX_ENABLE_X64="1", JAX_PLATFORMS="cpu") == ["float64", "float64"]


def test_only_the_promised_names_are_public():
  promised = (
    "gaussian half_moons load_csv load_npz mnist mnist_images random_features regression save_npz split standardize"
  )
  assert sorted(data.__all__) == promised.split()
  assert all(callable(getattr(data, name)) for name in data.__all__)
