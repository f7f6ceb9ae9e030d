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


@pytest.mark.slow
def test_a_larger_network_can_be_the_one_of_another_start(monkeypatch):
  random = np.random.default_rng(0)
  pool, test = (last.Pool(random.uniform(size=(40, 16)).astype(np.float32), np.arange(40) % 10) for _ in range(2))
  monkeypatch.setattr(recipes, "_AT", (10,))
  names = ["other start, its parameters, simplex", "other start, outputs, simplex"]
  chosen = [recipe for recipe in recipes.RECIPES if recipe.name in names]
  assert len(chosen) == 2
  monkeypatch.setattr(recipes, "RECIPES", chosen)
  found = recipes.compare("mlp", pool, test, rate=0.1, momenta=[0.0], batch=3, seeds=1, fit=5, wider=3)[0.0]
  assert list(found) == names[1:]  # Its parameters are no target.
  keys = jax.random.split(jax.random.key(0), 5)
  larger = last.learners.mlp((16, 192, 10), learning_rate=0.1)
  trained = last.teach(
    keys[3], larger, last.teachers.sgd(), pool, init=larger.init(keys[1]), steps=5, batch_size=32, metrics=()
  ).params
  learner = last.learners.mlp((16, 64, 10), learning_rate=0.1, momentum=0.0)
  toward = last.targets.outputs(pool.x, larger.apply(trained, pool.x), temperature=10.0)
  teacher = last.teachers.greedy(last.constraints.simplex(), toward)
  result = last.teach(
    keys[4], learner, teacher, pool, init=learner.init(keys[0]), steps=10, batch_size=3, test=test, record_every=10
  )
  np.testing.assert_allclose(found[names[1]][0], result.accuracy[1:], atol=1e-6)
