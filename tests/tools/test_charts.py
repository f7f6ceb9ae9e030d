"""Charts from the metrics that methods recorded."""

import numpy as np
import pytest

from last_jax.tools import Curves, Level, metric_charts


def curves(name="SGD", family="sgd", **metrics):
  return Curves(name, {"iteration": np.arange(3)}, metrics, family)


def test_one_chart_for_each_recorded_metric():
  recorded = curves(distance=np.ones((2, 3)), accuracy=np.full((2, 3), 0.5))
  distance, accuracy = metric_charts([recorded, curves("IMT", "imt", distance=np.ones((2, 3)), accuracy=None)])
  assert [line.name for line in distance.lines] == ["SGD", "IMT"]
  assert [line.family for line in distance.lines] == ["sgd", "imt"]
  assert [line.name for line in accuracy.lines] == ["SGD"]
  np.testing.assert_array_equal(accuracy.lines[0].values, np.full((2, 3), 50.0))  # In per cent.
  assert accuracy.limits == (0, 100)


@pytest.mark.parametrize(
  ("metric", "values", "log"),
  [
    ("distance", [1.0, 1.0, 1.0], True),
    ("objective", [1.0, 0.5, 0.4], False),
    ("objective", [1.0, 0.1, 0.01], True),
    ("accuracy", [0.001, 0.5, 1.0], False),
  ],
)
def test_scales(metric, values, log):
  (chart,) = metric_charts([curves(**{metric: np.array([values, values])})], x_log=True)
  assert (chart.log, chart.x_log) == (log, True)


def test_levels_are_in_the_unit_of_their_metric():
  recorded = curves(distance=np.ones((2, 3)), accuracy=np.ones((2, 3)))
  floor = Level("rounding", 1e-7, floor=True)
  distance, accuracy = metric_charts([recorded], levels={"distance": [floor], "accuracy": [Level("target", 0.9)]})
  assert distance.levels == (floor,)
  assert accuracy.levels == (Level("target", 90.0),)


def test_nothing_recorded():
  with pytest.raises(ValueError, match="nothing to draw"):
    metric_charts([curves(distance=None)])
