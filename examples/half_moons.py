"""Labels, student and target moving together, as half_moons.gif:  python examples/half_moons.py [FRAMES]"""

import sys

import jax
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.animation import FuncAnimation, PillowWriter

import last_jax as last

FRAMES, STEPS = int((sys.argv[1:] or [50])[0]), 2  # Steps from one frame to the next.
pool = last.data.half_moons(per_class=100).train
learner = last.learners.logistic(num_features=2, learning_rate=0.3)
problem = last.Problem(learner, pool, target=last.fit_target(learner, pool))
labels_within_2 = last.constraints.magnitude(2.0)
teachers = {"SGD": last.teachers.sgd(), "LAST": last.teachers.greedy(labels_within_2)}
states = {name: last.init(jax.random.key(1), problem, teacher) for name, teacher in teachers.items()}
synthesize = jax.jit(jax.vmap(last.synthesize_labels, (None, None, None, 0, 0, None)))  # Each example alone.

frames, distance = [], {name: [] for name in teachers}
for _ in range(FRAMES):
  frames.append({name: state.params for name, state in states.items()})
  for name, teacher in teachers.items():
    states[name], records = last.run(states[name], problem, teacher, steps=STEPS)
    distance[name].append(records.distance[0])

figure, (plane, curves) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
groups = [np.flatnonzero(pool.y == which) for which in (0, 1)]
look = {"s": 22, "cmap": "coolwarm", "vmin": -1, "vmax": 2}
points = [plane.scatter(*pool.x[rows].T, c=0.0 * rows, marker="o^"[i], **look) for i, rows in enumerate(groups)]
figure.colorbar(points[0], ax=plane, label="label that LAST would show (shape: the truth)")
styles = {"SGD": ("tab:gray", "-"), "LAST": ("black", "-"), "target w*": ("tab:green", "--")}
lines = {name: plane.plot([], [], style, c=color, label=name)[0] for name, (color, style) in styles.items()}
falls = {name: curves.semilogy([], [], c=styles[name][0], label=name)[0] for name in teachers}
plane.set(xlim=(-1.6, 2.6), ylim=(-1.2, 1.9))
curves.set(xlim=(0, STEPS * FRAMES), ylim=(min(distance["LAST"]) / 2, 10), xlabel="step", ylabel="||w - w*||")
plane.legend(loc="upper right")
curves.legend(loc="lower left")
figure.draw_without_rendering()
figure.set_layout_engine("none")  # The layout of the first frame serves all.


def draw(frame):
  shown = frames[frame] | {"target w*": problem.target}
  for name, params in shown.items():  # The line where the output is zero.
    (a, b), across = params["weights"].ravel(), np.array([-1.6, 2.6])
    lines[name].set_data(across, -(a * across + params["bias"][0]) / b)
  labels = synthesize(learner, shown["LAST"], problem.target, pool.x[:, None], problem.truth[:, None], labels_within_2)
  for dots, rows in zip(points, groups, strict=True):
    dots.set_array(labels[rows, 0, 0])
  for name, fall in falls.items():
    fall.set_data(STEPS * np.arange(frame + 1), distance[name][: frame + 1])


FuncAnimation(figure, draw, FRAMES).save("half_moons.gif", PillowWriter(fps=10), dpi=80)
