"""Sweep rates, radii and seeds, compiled once for each kind of teacher:  python examples/sweep.py [STEPS]"""

import sys

import jax

import last_jax as last
from last_jax.tools import plot_sweep

STEPS = int((sys.argv[1:] or [100])[0])
pool = last.data.half_moons().train
learners = {rate: last.learners.logistic(2, learning_rate=rate) for rate in (0.01, 0.03, 0.1, 0.3, 1.0)}
teachers = {"SGD": last.teachers.sgd()} | {
  f"LAST within {radius}": last.teachers.greedy(last.constraints.magnitude(radius)) for radius in (0.5, 1.0, 2.0)
}
target = last.fit_target(learners[0.1], pool)
keys = jax.random.split(jax.random.key(0), 20)

swept = last.sweep(keys, learners, teachers, pool, target=target, steps=STEPS, record_every=STEPS)
print(swept.table())
plot_sweep("sweep.png", swept, title=f"after {STEPS} steps")
