"""The figure without w*: its noise and its comparisons, on data whose answer is known."""

import numpy as np

import last_jax as last
from last_jax.reproduction import methods, results, validation

ONE, OTHER = methods.imt(), methods.sgd()


def test_images_are_averaged_over_squares():
  x = np.zeros((2, 28, 28, 1))
  x[1, 4:8, 24:28] = 0.5  # The second row, the last column.
  x[1, 27, 0] = 0.8
  found = validation.shrunk(x).reshape(2, 7, 7)
  expected = np.zeros((2, 7, 7))
  expected[1, 1, 6], expected[1, 6, 0] = 0.5, 0.8 / 16
  np.testing.assert_allclose(found, expected)


def test_noise_draws_among_all_classes():
  y = np.arange(50_000) % 10
  noisy = validation.with_noise(y)
  assert abs(np.mean(noisy == y) - (0.4 + 0.6 / 10)) < 0.01
  wrong = noisy[noisy != y]
  np.testing.assert_allclose(np.bincount(wrong, minlength=10) / len(wrong), 0.1, atol=0.01)
  np.testing.assert_array_equal(noisy, validation.with_noise(y))


def test_labels_are_right_where_their_largest_number_is():
  label = np.array([[[0.2, 0.5, 0.3], [2.0, -1.0, 0.0]], [[0.0, 0.0, 1.0], [0.1, 0.1, 0.8]]])[None, None]
  index = np.array([[3, 0], [1, 2]])[None, None]
  truth = np.array([0, 1, 2, 1])  # Right, right; wrong, right.
  records = last.Records(np.arange(3), lessons=last.Lesson(index, label))
  assert validation.share_right(records, truth) == 75.0


def test_accuracies_are_compared_over_the_run_and_at_the_end():
  accuracy = {ONE.key: [[0.1, 0.5, 0.8], [0.1, 0.6, 0.9]], OTHER.key: [[0.1, 0.3, 0.9], [0.1, 0.4, 0.7]]}
  records = {key: last.Records(np.array([0, 5, 10]), accuracy=np.array(each)) for key, each in accuracy.items()}
  run, end = results.more_accurate(records, ONE, OTHER)
  np.testing.assert_allclose(run.values, [5.0, 20.0])
  np.testing.assert_allclose(end.values, [-10.0, 20.0])
  assert (run.part, end.part) == ("run", "end")


def test_equal_time_is_the_time_that_both_have():
  """The one gains a point in each of ten steps, the other half: but its steps take a quarter of the time."""
  step = np.arange(11)
  records = {
    key: last.Records(step, accuracy=0.01 * rate * step[None].repeat(2, 0))
    for key, rate in ((ONE.key, 1.0), (OTHER.key, 0.5))
  }
  found = validation.at_equal_time(records, {ONE.key: 4.0, OTHER.key: 1.0}, ONE, OTHER)
  # Until second 10: a quarter of a point a second against half of one.
  np.testing.assert_allclose(found.values, -0.25 * np.mean(10 * np.arange(1, 61) / 60))
