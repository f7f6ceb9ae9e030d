"""Costs by XLA's own account: operations of a student-step, as docs/guides/devices.md says; memory of long runs."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import distances

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "guides" / "devices.md"
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
    label = last.synthesize_labels(
      learner, student.params, target, x, truth, last.constraints.simplex(), opt_state=student.opt_state
    )
    student = learner.step(student, x, label)
    return student, jnp.sqrt(distances.squared_distance(student.params, target))

  operations = jax.jit(step).lower(learner.start(target), pool.x[:1], truth[:1]).cost_analysis()["flops"]
  row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| {name} |"))
  _, parameters, _, written, *_ = (cell.strip() for cell in row.strip("| ").split("|"))
  assert int(parameters.replace(",", "")) == sum(leaf.size for leaf in jax.tree.leaves(target))
  number, unit = re.fullmatch(r"([\d.,]+) ?([kMG]?)", written).groups()
  assert operations == pytest.approx(float(number) * UNITS[unit], rel=0.05)


def bytes_of_step(learner, batch, greedy):
  """Arguments, results and temporaries of a step that is compiled and not run: of SGD, or toward a target."""
  params = learner.shapes()
  features, classes = params["layer_0"]["weights"].shape[0], jax.tree.leaves(params)[-1].shape[-1]
  x, truth = (jax.ShapeDtypeStruct((batch, size), jnp.float32) for size in (features, classes))

  def step(params, x, truth, target):
    simplex = last.constraints.simplex()
    label = last.synthesize_labels(learner, params, target, x, truth, simplex) if greedy else truth
    return learner.step(learner.start(params), x, label).params

  memory = jax.jit(step).lower(params, x, truth, params).compile().memory_analysis()
  return memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes


@pytest.mark.slow
def test_labels_of_a_wide_network_need_little_more_memory_than_sgd():
  learner = last.learners.mlp((784, 1000, 1000, 10), learning_rate=0.05)
  greedy, sgd = (bytes_of_step(learner, 32, each) for each in (True, False))
  assert greedy < sgd + 100 * 10**6


@pytest.mark.slow
def test_labels_of_ten_million_parameters_and_a_hundred_classes_fit_into_memory():
  learner = last.learners.mlp((784, 3000, 2400, 100), learning_rate=0.05)
  assert sum(leaf.size for leaf in jax.tree.leaves(learner.shapes())) > 9_500_000
  assert bytes_of_step(learner, 32, greedy=True) < 2 * 10**9


TEACHERS = {
  "sgd": last.teachers.sgd(),
  "greedy": last.teachers.greedy(last.constraints.simplex()),
  "imt": last.teachers.imt(),
}


def bytes_of_run(teacher, students, steps, record_every, batch_size=1):
  """Temporaries and outputs of the compiled program, which is not run."""
  learner = last.learners.logistic(24, **SETTINGS)
  draw = np.random.default_rng(0)
  pool = last.Pool(draw.normal(size=(1000, 24)).astype(np.float32), np.arange(1000) % 2)

  def teach(keys, learner, teacher, pool, target):
    settings = {"steps": steps, "record_every": record_every, "batch_size": batch_size}
    return last.teach_many(keys, learner, teacher, pool, target=target, test=pool, tolerance=0.1, **settings)

  keys = jax.ShapeDtypeStruct((students,), jax.random.key(0).dtype)
  target = jax.eval_shape(learner.init, jax.random.key(0))
  shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(jnp.shape(leaf), jnp.asarray(leaf).dtype), (learner, pool))
  memory = jax.jit(teach).lower(keys, shapes[0], teacher, shapes[1], target).compile().memory_analysis()
  return memory.temp_size_in_bytes + memory.output_size_in_bytes


@pytest.mark.parametrize("name", TEACHERS)
def test_a_thousand_students_for_a_million_steps_recorded_once_need_little_memory(name):
  assert bytes_of_run(TEACHERS[name], 1000, 10**6, 10**6) < 100 * 2**20


@pytest.mark.parametrize("name", TEACHERS)
def test_memory_does_not_grow_with_the_stride_of_records(name):
  often, seldom = (bytes_of_run(TEACHERS[name], 1000, 10**5, every) for every in (1000, 100_000))
  assert seldom < 1.2 * often
  assert often < 100 * 2**20


@pytest.mark.parametrize("every", [1021, 65_521, 99_991])
@pytest.mark.slow
def test_memory_stays_bounded_for_strides_that_no_blocks_of_equal_length_make_up(every):
  assert bytes_of_run(TEACHERS["greedy"], 1000, 10**5, every) < 40 * 2**20


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_steps():
  few, many = (bytes_of_run(TEACHERS["greedy"], 100, steps, steps, batch_size=16) for steps in (10**4, 10**6))
  assert many < 1.2 * few
