"""The comparison of black-box policies: paired by seed, on the same students, from images as from features."""

import jax
import numpy as np
import pytest
import scipy.stats

from benchmarks import black_box_policies as benchmark
from last_jax import training


def test_gains_are_ratios_and_points_with_intervals_over_seeds():
  draw = np.random.default_rng(0)
  sgd, other = ({name: draw.uniform(1, 2, 6) for name in benchmark.METRICS} for _ in range(2))
  found = benchmark.gains(other, sgd)
  np.testing.assert_allclose(found["distance"], sgd["distance"] / other["distance"])
  np.testing.assert_allclose(found["accuracy"], 100 * (other["accuracy"] - sgd["accuracy"]))
  expected = scipy.stats.ttest_1samp(found["distance"], 0).confidence_interval()
  np.testing.assert_allclose(benchmark.interval(found["distance"])[1:], expected)
  row = benchmark.table({"other": found})[-1].split(" | ")
  assert row[1] == f"{found['distance'].mean():.3f} [{expected[0]:.3f}, {expected[1]:.3f}]"


@pytest.mark.slow
def test_policies_of_images_teach_the_same_students(monkeypatch):
  monkeypatch.setattr(benchmark, "STUDENTS", 2)
  monkeypatch.setattr(benchmark, "STEPS", 5)
  from_features, from_images = (benchmark.make_problem(images) for images in (False, True))
  params = from_features.learner.init(jax.random.key(0))
  outputs = [problem.learner.apply(params, problem.pool.x[:5]) for problem in (from_features, from_images)]
  np.testing.assert_allclose(*outputs, rtol=1e-3, atol=1e-3)
  sgd = [benchmark.teach(problem, None, range(2)) for problem in (from_features, from_images)]
  for name in benchmark.METRICS:
    np.testing.assert_allclose(sgd[0][name], sgd[1][name], rtol=0.02)
  tiny = {"horizon": 2, "students": 2, "evaluation_steps": 2, "batch_size": 2}
  method = benchmark.Method("tiny", training.Unrolled(policy=benchmark.Cnn(), **tiny), 2, images=True)
  said = []
  rows = benchmark.compare([method], range(2), said.append)
  assert set(rows["tiny"]) == set(benchmark.METRICS)
  assert all(np.isfinite(values).all() and values.shape == (2,) for values in rows["tiny"].values())
  assert len(said) == 1
