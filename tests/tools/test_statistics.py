"""Intervals by hand and by simulation, spans, and the limit of rounding."""

import jax.numpy as jnp
import numpy as np
import pytest

from last_jax import tools
from last_jax.tools import interval_ends, mean_interval, spans_decades


class TestMeanInterval:
  def test_students_t(self):
    # By hand: mean 2, standard deviation 1, t(2 degrees, 97.5 %) = 4.302653.
    mean, half_width = mean_interval([[1.0], [2.0], [3.0]])
    np.testing.assert_allclose(mean, [2.0])
    np.testing.assert_allclose(half_width, [4.302653 / np.sqrt(3)], rtol=1e-6)

  def test_coverage(self):
    samples = np.random.default_rng(0).normal(3.0, 2.0, (5, 20_000))
    mean, half_width = mean_interval(samples, confidence=0.9)
    assert np.mean(np.abs(mean - 3.0) <= half_width) == pytest.approx(0.9, abs=0.01)

  def test_one_student_has_no_width(self):
    mean, half_width = mean_interval([[1.0, 2.0]])
    np.testing.assert_array_equal(mean, [1, 2])
    assert np.isnan(half_width).all()

  def test_a_diverged_student(self):
    mean, half_width = mean_interval([[1.0, np.inf], [1.0, 2.0]])
    assert mean[0] == 1
    assert np.isnan([mean[1], half_width[1]]).all()

  @pytest.mark.parametrize(("values", "confidence"), [(1.0, 0.95), (np.zeros((0, 3)), 0.95), ([1.0], 1.0)])
  def test_bad_arguments(self, values, confidence):
    with pytest.raises(ValueError, match=r"values|confidence"):
      mean_interval(values, confidence)


class TestIntervalEnds:
  def test_narrow_bands_agree_on_both_axes(self):
    mean, half_width = np.array([2.0]), np.array([0.002])
    low, high = interval_ends(mean, half_width, log=True)
    np.testing.assert_allclose([low, high], interval_ends(mean, half_width, log=False), rtol=1e-6)

  def test_wide_bands_stay_positive_on_a_log_axis(self):
    low, high = interval_ends(np.array([1.0]), np.array([3.0]), log=True)
    assert 0 < low < 1 < high


@pytest.mark.parametrize(
  ("values", "expected"),
  [([1.0, 60.0], True), ([1.0, 40.0], False), ([0.0, 60.0], False), ([-1.0, 60.0], False), ([], False),
   ([np.nan, 1.0, 1e9, np.inf], True), ([np.nan], False)],
)  # fmt: skip
def test_spans_decades(values, expected):
  assert spans_decades(values) is expected


def test_rounding_floor():
  # Half a unit in the last place of 1 is 2**-24 in float32, of 4 it is four times as much.
  floor = tools.rounding_floor({"a": jnp.array([1.0, 4.0], jnp.float32), "b": jnp.array([[-1.0]], jnp.float32)})
  assert floor == pytest.approx(2.0**-24 * np.sqrt(1 + 16 + 1))
