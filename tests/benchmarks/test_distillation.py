"""The comparison of fixed labels: rows of the table, and a small run against training by hand."""

import types

import jax
import numpy as np
import pytest
import scipy.stats

import last_jax as last
from benchmarks import distillation
from last_jax.data.mnist import stratified


def test_rows_are_means_with_intervals():
  random = np.random.default_rng(0)
  draws = [{"accuracy": {"a": random.uniform(size=6)}, "transfer": {"a": random.uniform(size=6)}} for _ in range(3)]
  row = distillation.table(draws, "cnn")[2]
  for part, cell in zip(("accuracy", "transfer"), row.split(" | ")[1:], strict=True):
    means = [100 * draw[part]["a"].mean() for draw in draws]
    low, high = scipy.stats.t.interval(0.95, 2, np.mean(means), scipy.stats.sem(means))
    assert cell.removesuffix(" |") == f"{np.mean(means):.1f} ± {(high - low) / 2:.1f}"
  one = distillation.table(draws[:1], "cnn")[2].split(" | ")[1]
  low, high = scipy.stats.t.interval(0.95, 5, 0, scipy.stats.sem(100 * draws[0]["accuracy"]["a"]))
  assert one.endswith(f"± {high:.1f}")


@pytest.mark.slow
@pytest.mark.parametrize("constraint", ["simplex", "none"])
def test_students_are_trained_on_the_labels(monkeypatch, constraint):
  random = np.random.default_rng(0)
  monkeypatch.setattr(distillation, "_TRAINED_ON", 50)
  monkeypatch.setattr(distillation, "_TRANSFER_STEPS", 3)
  train, test = ((random.normal(size=(150, 784)).astype(np.float32), np.arange(150) % 10) for _ in range(2))
  given = types.SimpleNamespace(
    images=10, network="mlp", width=8, loss="softmax_cross_entropy", constraint=constraint, head=0.5, steps=4,
    learning_rate=0.1, adam_rate=1e-3, solved_students=2, updates=2, rate=0.1, students=2, validation=40,
    validation_batch=8, fresh=2,
  )  # fmt: skip
  found = distillation.run_draw(0, train, test, given)
  names = {
    distillation.TRUE, distillation.SMOOTHED, distillation.PRETRAINED, distillation.SOLVED, distillation.SEARCHED,
  }  # fmt: skip
  assert found["accuracy"].keys() == found["transfer"].keys() == names
  labels = found["labels"][distillation.SEARCHED]
  assert np.abs(labels - found["labels"][distillation.SOLVED]).max() > 1e-3
  if constraint == "simplex":
    np.testing.assert_allclose(labels.sum(1), 1, atol=1e-5)
  # By hand.
  learner = last.learners.mlp((784, 8, 10), learning_rate=0.1)
  index = stratified(train[1], range(10), 1, 0)
  own = jax.random.split(jax.random.split(jax.random.key(0), 4)[1], 2)[1]
  params = learner.init(jax.random.split(own)[0])
  params["layer_1"] = jax.tree.map(lambda leaf: 0.5 * leaf, params["layer_1"])
  student = learner.start(params)
  for _ in range(4):
    student = learner.step(student, train[0][index], labels)
  right = np.argmax(learner.apply(student.params, test[0]), 1) == test[1]
  np.testing.assert_allclose(found["accuracy"][distillation.SEARCHED][1], right.mean(), atol=0.011)
