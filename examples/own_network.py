"""A Flax network of one's own, taught better than by SGD:  python examples/own_network.py [STEPS]

Labels steer toward the outputs of a trained network, on 200 examples, and stay within 2 of the truth: the recipe that
docs/guides/networks.md has measured. Put your own x [n, ...] and y [n] into the pool, and any module into the learner.
"""

import sys

import flax.linen as nn
import jax

import last_jax as last

STEPS = int((sys.argv[1:] or [100])[0])
data = last.data.mnist(range(10), num_features=None)  # Images [n, 28, 28, 1].
pool = last.Pool(data.train.x, data.train.y)


class Network(nn.Module):
  @nn.compact
  def __call__(self, x):
    x = nn.avg_pool(x, (2, 2), (2, 2)).reshape(len(x), -1)
    return nn.Dense(10)(nn.relu(nn.Dense(64)(x)))


learner = last.learners.from_flax(Network(), pool.x[:1], loss="softmax_cross_entropy", learning_rate=0.1)
sgd = last.teachers.sgd()
trained = last.teach(jax.random.key(0), learner, sgd, pool, steps=10 * STEPS, batch_size=32, metrics=()).params
toward = last.targets.outputs(pool.x[:200], learner.apply(trained, pool.x[:200]), temperature=3.0)
teachers = {"SGD": sgd, "LAST": last.teachers.greedy(last.constraints.magnitude(2.0), toward)}

keys, accuracy = jax.random.split(jax.random.key(1), 5), {}  # Five students, each with a start of its own.
for name, teacher in teachers.items():
  taught = last.teach_many(keys, learner, teacher, pool, steps=STEPS, batch_size=8, record_every=STEPS, test=data.test)
  accuracy[name] = float(taught.accuracy[:, -1].mean())
  print(f"{name}: test accuracy {accuracy[name]:.3f} after {STEPS} steps of 8 examples")
