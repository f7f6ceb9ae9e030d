"""Teach without w*, toward a lower loss on other examples:  python examples/black_box.py [STEPS]"""

import sys

import jax

import last_jax as last

STEPS = int((sys.argv[1:] or [100])[0])
data = last.data.half_moons()
learner = last.learners.mlp((2, 16, 2), learning_rate=0.1)
toward = last.targets.loss(data.train, batch_size=200)  # 200 fresh examples in each step.
teachers = {
  "SGD": last.teachers.sgd(),
  "LAST": last.teachers.greedy(last.constraints.magnitude(2.0), toward),  # Labels within 2 of the truth.
}

keys, accuracy = jax.random.split(jax.random.key(0), 10), {}
for name, teacher in teachers.items():
  taught = last.teach_many(keys, learner, teacher, data.train, steps=STEPS, batch_size=8, test=data.test)
  assert taught.distance is None  # There is no w* to measure from.
  accuracy[name] = taught.accuracy.mean(0)
  early, late = accuracy[name][STEPS // 5], accuracy[name][-1]
  print(f"{name}: test accuracy {early:.3f} after {STEPS // 5} steps, {late:.3f} after {STEPS}")
