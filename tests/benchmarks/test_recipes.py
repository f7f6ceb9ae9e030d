"""The comparison of recipes: paired by seed, and against the same student taught by hand."""

import jax
import numpy as np
import pytest
import scipy.stats

import last_jax as last
from benchmarks import recipes


def test_rows_are_means_and_paired_differences():
  random = np.random.default_rng(0)
  sgd, other = random.uniform(size=(2, 6, 3))
  rows = recipes.table({recipes.SGD: sgd, "other": other})
  assert len(rows) == 4
  gain = scipy.stats.ttest_rel(other[:, 1], sgd[:, 1])
  low, high = gain.confidence_interval()
  expected = f"{other[:, 1].mean():.3f} ({(low + high) / 2:+.3f} ± {(high - low) / 2:.3f})"
  assert rows[3].split(" | ")[2] == expected


@pytest.mark.slow
def test_a_recipe_is_what_teach_does(monkeypatch):
  random = np.random.default_rng(0)
  pool, test = (last.Pool(random.uniform(size=(40, 16)).astype(np.float32), np.arange(40) % 10) for _ in range(2))
  chosen = [recipe for recipe in recipes.RECIPES if recipe.name in (recipes.SGD, "other start, outputs, simplex")]
  assert len(chosen) == 2
  monkeypatch.setattr(recipes, "RECIPES", chosen)
  found = recipes.compare("mlp", pool, test, rate=0.1, momenta=[0.0, 0.5], batch=3, seeds=2, fit=5)
  assert found.keys() == {0.0, 0.5}
  found = found[0.5]
  assert found.keys() == {recipe.name for recipe in chosen}
  keys = jax.random.split(jax.random.key(1), 5)
  learner = last.learners.mlp((16, 64, 10), learning_rate=0.05, momentum=0.5)
  result = last.teach(
    keys[4], learner, last.teachers.sgd(), pool, init=learner.init(keys[0]), steps=300, batch_size=3, test=test
  )
  np.testing.assert_allclose(found[recipes.SGD][1], result.accuracy[np.array([30, 100, 300])], atol=1e-6)
