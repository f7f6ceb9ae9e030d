"""A small form of the paper's problem for trained teachers, and the gain of a teacher over SGD in it."""

import jax
import numpy as np

import last_jax as last


def task():
  """A learner of MNIST 3/5, the pool, its target, and the students' `init_fn`."""
  data = last.data.mnist((3, 5), train_per_digit=200)
  learner = last.learners.softmax(24, 2, learning_rate=5e-4, weight_decay=5e-5, bias=False)
  target = last.fit_target(learner, data.train)
  return learner, data.train, target, last.training.near(target, 0.05)


def gains(policy, learner, pool, target, init_fn, *, steps, batch_size):
  """By how much nearer to the target than SGD the policy brings each of 20 students, with the same examples."""
  keys = jax.random.split(jax.random.key(1), 20)
  settings = {"target": target, "init": jax.vmap(init_fn)(keys), "steps": steps, "record_every": steps}

  def final(teacher):
    result = last.teach_many(keys, learner, teacher, pool, metrics="distance", batch_size=batch_size, **settings)
    return np.asarray(result.distance)[:, -1]

  return final(last.teachers.sgd()) - final(last.teachers.policy(policy))
