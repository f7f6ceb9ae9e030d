"""Teach and train a small problem on the given devices, and write the results. Run by the tests, in processes.

python worker.py FILE.npz DEVICES [COORDINATOR NUM_PROCESSES PROCESS_ID]
"""

import sys

import jax
import numpy as np

import last_jax as last


def problem():
  generator = np.random.default_rng(0)
  x = generator.normal(size=(30, 4)).astype(np.float32)
  pool = last.Pool(x, (x @ generator.normal(size=4) > 0).astype(np.int32))
  learner = last.learners.softmax(4, 2, learning_rate=0.2, weight_decay=1e-2)
  return learner, pool, learner.init(jax.random.key(7))


def taught(mesh):
  """Results of a closed form, and of a solver whose number of iterations depends on the problem."""
  learner, pool, target = problem()
  settings = {"target": target, "test": pool, "tolerance": 0.5, "steps": 6, "mesh": mesh}

  def teach(students, constraint, **more):
    keys = jax.random.split(jax.random.key(1), students)
    return last.teach_many(keys, learner, last.teachers.greedy(constraint), pool, **settings, **more)

  result = teach(8, last.constraints.simplex(), lessons=True)
  yield "greedy", (result.records, result.student, result.hitting_time)
  ball = last.constraints.magnitude(0.3, p=1)
  half = teach(5, ball, batch_size=2)  # 5 cannot be divided among 2 or 8 devices.
  same = last.Problem(learner, pool, target=target, test=pool, tolerance=0.5)
  state, records = last.run(half.state, same, last.teachers.greedy(ball), steps=6, batch_size=2, mesh=mesh)
  yield "solver", (half.records, records, state.student, state.hitting_time)


def trained(mesh):
  learner, pool, target = problem()
  settings = {"target": target, "horizon": 3, "students": 8, "hidden": (8,), "episodes": 4, "mesh": mesh}
  methods = {
    "unrolled": (last.train_unrolled, {}),
    "reinforce": (last.train_reinforce, {"actions": last.outputs.BINARY, "evaluate_every": 2, "evaluation_steps": 3}),
    "evolution": (last.train_evolution, {"persistent": True, "reset": 0.5, "evaluate_every": 0}),
  }
  for name, (train, more) in methods.items():
    policy, log = train(jax.random.key(2), learner, pool, **settings, **more)
    yield name, (policy.weights, log)


def main(file, devices, coordinator=None, num_processes=None, process_id=None):
  numbers = [None if value is None else int(value) for value in (num_processes, process_id)]
  last.devices.prepare("cpu", int(devices), coordinator, *numbers)
  mesh = last.devices.mesh()
  split = mesh if mesh.size > 1 else None
  keys = last.devices.split(jax.random.split(jax.random.key(5), 8), split)
  results = last.devices.gather(dict([*taught(split), *trained(split)]))
  results["keys"] = np.asarray(jax.random.key_data(last.devices.gather(keys)))  # Keys stay keys.
  if last.devices.is_first():
    leaves = jax.tree_util.tree_leaves_with_path(results)
    np.savez(file, **{jax.tree_util.keystr(path): leaf for path, leaf in leaves})


if __name__ == "__main__":
  main(*sys.argv[1:])
