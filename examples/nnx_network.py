"""A network of Flax's nnx with batch statistics, taught toward parameters of its own start.

python examples/nnx_network.py [STEPS]
"""

import sys

import jax
from flax import nnx

import last_jax as last

STEPS = int((sys.argv[1:] or [200])[0])
data = last.data.half_moons()


class Network(nnx.Module):
  def __init__(self, rngs):
    self.hidden, self.norm = nnx.Linear(2, 16, rngs=rngs), nnx.BatchNorm(16, rngs=rngs)
    self.out = nnx.Linear(16, 2, rngs=rngs)

  def __call__(self, x):
    return self.out(jax.nn.tanh(self.norm(self.hidden(x))))


# A function that makes modules: students start at random. Batch statistics stay as they are, and dropout is off.
learner = last.learners.from_flax(Network, data.train.x[:1], loss="softmax_cross_entropy", learning_rate=0.1)
init = learner.init(jax.random.key(0))

# Parameters are a target for the start that they were trained from.
sgd = last.teachers.sgd()
target = last.teach(jax.random.key(1), learner, sgd, data.train, init=init, steps=5 * STEPS, batch_size=32).params
teachers = {"SGD": sgd, "LAST": last.teachers.greedy(last.constraints.magnitude(2.0))}
settings = {"target": target, "init": init, "steps": STEPS, "batch_size": 8, "test": data.test}
results = {
  name: last.teach(jax.random.key(2), learner, each, data.train, **settings) for name, each in teachers.items()
}
for name, result in results.items():
  print(f"{name}: {result.distance[-1]:.3f} from w*, test accuracy {result.accuracy[-1]:.3f}, after {STEPS} steps")
