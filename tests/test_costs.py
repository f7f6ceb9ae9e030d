"""What a student-step costs, as the README's table has it, by XLA's own count of operations."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import synthesis

README = pathlib.Path(__file__).parents[1] / "README.md"
SETTINGS = {"learning_rate": 0.1, "weight_decay": 1e-4}
LEARNERS = {
  "logistic, 24 features, LAST": (last.learners.logistic(24, **SETTINGS), 24, 2),
  "softmax, 784 → 10, LAST": (last.learners.softmax(784, 10, **SETTINGS), 784, 10),
  "network, 24 → 32 → 2, LAST": (last.learners.mlp((24, 32, 2), learning_rate=0.1), 24, 2),
  "network, 784 → 128 → 10, LAST": (last.learners.mlp((784, 128, 10), learning_rate=0.1), 784, 10),
}
UNITS = {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}


@pytest.mark.parametrize("name", LEARNERS)
def test_the_table_agrees_with_the_programs(name):
  learner, num_features, num_classes = LEARNERS[name]
  pool = last.Pool(np.ones((2, num_features), np.float32), np.array([0, num_classes - 1]))
  target = learner.init(jax.random.key(0))
  truth = learner.encode(pool.x, pool.y)

  def step(student, x, truth):
    label = synthesis.greedy_labels(learner, student, target, x, truth, last.constraints.simplex())
    student = learner.step(student, x, label)
    return student, jnp.sqrt(synthesis.squared_distance(student.params, target))

  operations = jax.jit(step).lower(learner.start(target), pool.x[:1], truth[:1]).cost_analysis()["flops"]
  row = next(line for line in README.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {name} |"))
  _, parameters, _, written, *_ = (cell.strip() for cell in row.strip("| ").split("|"))
  assert int(parameters.replace(",", "")) == sum(leaf.size for leaf in jax.tree.leaves(target))
  number, unit = re.fullmatch(r"([\d.,]+) ?([kMG]?)", written).groups()
  assert operations == pytest.approx(float(number) * UNITS[unit], rel=0.05)
