"""The comparison of teachers without w*: paired by seed, and against the same student taught by hand."""

import jax
import numpy as np
import pytest
import scipy.stats

import last_jax as last
from benchmarks import black_box


def test_rows_are_means_and_paired_differences():
  random = np.random.default_rng(0)
  sgd, other = random.uniform(size=(2, 6, 2))
  found = {black_box.SGD: {"accuracy": sgd, "seconds": 2.0}, "other": {"accuracy": other, "seconds": 5.0}}
  rows = black_box.table(found, (10, 20))
  gain = scipy.stats.ttest_rel(other[:, 1], sgd[:, 1])
  low, high = gain.confidence_interval()
  expected = f"{other[:, 1].mean():.3f} ({(low + high) / 2:+.3f} ± {(high - low) / 2:.3f})"
  assert rows[3].split(" | ")[2:] == [expected, "2.5 |"]


def test_ratios_are_above_one_where_the_teacher_is_better():
  half = {key: np.full((3, 2), 0.5) + 1e-6 * np.arange(3)[:, None] for key in ("distance", "reachable", "excess")}
  whole = {key: 2 * value for key, value in half.items()}
  accuracy = np.array([[0.8, 0.9]] * 3)
  found = {
    black_box.SGD: {**whole, "accuracy": accuracy, "seconds": 1.0},
    "teacher": {**half, "accuracy": accuracy + 0.01, "seconds": 3.0},
  }
  row = black_box.paper_table(found)[2].split(" | ")
  assert row[1:] == ["2 [2, 2]", "2 [2, 2]", "2 [2, 2]", "+1.00 ± 0.00", "3.0 |"]


def test_clean_examples_keep_their_labels_and_take_turns_with_noisy_ones():
  pool = last.Pool(np.arange(20.0)[:, None], np.arange(20) % 2)
  learner = last.learners.softmax(1, 2, learning_rate=0.1)
  smoothing = black_box.in_turn(last.teachers.label_smoothing(0.5), lambda step: step % 2 == 0, 12, 20)
  index, label = last.teach(jax.random.key(0), learner, smoothing, pool, steps=8, batch_size=4, lessons=True).lessons[
    :2
  ]
  truth = np.eye(2)[np.arange(20) % 2][index]
  assert np.all(index[::2] >= 12)
  assert np.all(index[1::2] < 12)
  assert len(np.unique(index)) > 8
  np.testing.assert_allclose(label[::2], truth[::2])
  np.testing.assert_allclose(label[1::2], 0.5 * truth[1::2] + 0.25, rtol=1e-6)


@pytest.mark.slow
def test_a_teacher_is_what_teach_does():
  random = np.random.default_rng(0)
  pool, test = (last.Pool(random.uniform(size=(40, 6)).astype(np.float32), np.arange(40) % 3) for _ in range(2))
  learner = last.learners.mlp((6, 5, 3), learning_rate=0.1)
  teachers = {black_box.SGD: last.teachers.sgd(), "loss": last.teachers.greedy(
    last.constraints.none(), last.targets.loss(pool, batch_size=10))}  # fmt: skip
  found = black_box.taught(learner, teachers, pool, test, range(3, 5), (2, 6), 4)
  for name, teacher in teachers.items():
    keys = jax.random.split(jax.random.key(4))
    settings = {"init": learner.init(keys[0]), "steps": 6, "batch_size": 4, "test": test}
    result = last.teach(keys[1], learner, teacher, pool, **settings)
    np.testing.assert_allclose(found[name]["accuracy"][1], result.accuracy[np.array([2, 6])], atol=1e-6)


@pytest.mark.slow
def test_the_reachable_distance_is_what_labels_can_change():
  """The Newton point is reached as far as labels reach, and the common part of all classes stays."""
  found = black_box.paper(1e-3, range(2), ["Newton point of the pool"], None, students=1, steps=40)
  newton = found["Newton point of the pool, free"]
  assert np.all(newton["reachable"] < 0.2 * found[black_box.SGD]["reachable"])
  assert np.all(newton["distance"] > 0.1)
