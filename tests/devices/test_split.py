"""Students split over eight devices of one process, and over those of two and of four processes: the same results."""

import pathlib
import subprocess
import sys
import unittest.mock

import jax
import numpy as np
import pytest

import last_jax as last
from benchmarks.jobs.processes import free_address

WORKER = pathlib.Path(__file__).parent / "worker.py"


def run(file, devices, processes=1):
  """Run workers; return their results by name."""
  address = free_address()
  several = [[address, str(processes), str(i)] if processes > 1 else [] for i in range(processes)]
  command = [sys.executable, str(WORKER), str(file), str(devices)]
  workers = [
    subprocess.Popen([*command, *more], cwd=WORKER.parents[2], stderr=subprocess.PIPE, text=True) for more in several
  ]
  errors = [worker.communicate(timeout=300)[1] for worker in workers]
  assert not any(worker.returncode for worker in workers), errors
  with np.load(file) as arrays:
    return dict(arrays)


@pytest.fixture(scope="module")
def on_one(tmp_path_factory):
  return run(tmp_path_factory.mktemp("one") / "results.npz", devices=1)


@pytest.mark.slow
@pytest.mark.parametrize(("devices", "processes"), [(8, 1), (1, 2), (1, 4)])
def test_results_do_not_depend_on_devices_and_processes(tmp_path, on_one, devices, processes):
  found = run(tmp_path / "results.npz", devices, processes)
  assert found.keys() == on_one.keys()
  for method in ("greedy", "solver", "unrolled", "reinforce", "evolution"):
    assert any(f"['{method}']" in name for name in found)
  for name, expected in on_one.items():  # Sums may be taken in another order.
    np.testing.assert_allclose(found[name], expected, rtol=2e-4, atol=1e-5, err_msg=name)


def test_students_that_cannot_be_split_evenly_are_refused_in_training():
  mesh = unittest.mock.Mock(size=3, axis_names=(last.devices.STUDENTS,))  # Of a size that this process does not have.
  mesh.__class__ = jax.sharding.Mesh
  learner = last.learners.softmax(4, 2, learning_rate=0.1)
  pool = last.Pool(np.eye(4), np.array([0, 1, 0, 1]))
  with pytest.raises(ValueError, match=r"students=10 cannot be split evenly over the 3 devices"):
    last.train_unrolled(jax.random.key(0), learner, pool, target=learner.init(jax.random.key(0)), mesh=mesh)


def test_more_devices_than_there_are_is_refused():
  with pytest.raises(ValueError, match="devices=999, but there are 1"):
    last.devices.mesh(999)


def test_one_device_makes_a_mesh_too():
  learner = last.learners.logistic(4, learning_rate=0.1)
  pool = last.Pool(np.eye(4), np.array([0, 1, 0, 1]))
  keys, target = jax.random.split(jax.random.key(0), 3), learner.init(jax.random.key(1))
  teacher = last.teachers.greedy(last.constraints.simplex())
  alone = last.teach_many(keys, learner, teacher, pool, target=target, steps=5)
  split = last.teach_many(keys, learner, teacher, pool, target=target, steps=5, mesh=last.devices.mesh(1))
  np.testing.assert_array_equal(alone.distance, split.distance)


def test_a_mesh_is_for_many_students():
  learner = last.learners.logistic(4, learning_rate=0.1)
  problem = last.Problem(learner, last.Pool(np.eye(4), np.array([0, 1, 0, 1])))
  state = last.init(jax.random.key(0), problem, last.teachers.sgd())
  with pytest.raises(ValueError, match=r"mesh splits many students over devices, but this state is of one"):
    last.run(state, problem, last.teachers.sgd(), steps=2, mesh=last.devices.mesh(1))
