"""An Equinox network, taught toward parameters of its own start:  python examples/equinox_network.py [STEPS]"""

import sys

import equinox as eqx
import jax

import last_jax as last

STEPS = int((sys.argv[1:] or [200])[0])
data = last.data.half_moons()
model = eqx.nn.MLP(in_size=2, out_size=2, width_size=16, depth=1, activation=jax.nn.tanh, key=jax.random.key(0))
learner = last.learners.from_equinox(model, loss="softmax_cross_entropy", learning_rate=0.1)
init = learner.init(jax.random.key(0))  # The model starts as it is; a function of a key in its place, at random.

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
