"""A live student, here in NumPy, is taught lesson by lesson:  python examples/live_student.py"""

import jax
import numpy as np

import last_jax as last

RATE, DECAY, STEPS, BATCH = 0.2, 1e-3, 300, 8


def learn(w, x, y):
  """Take the student's own step on examples x [m, d] with labels y [m, K]: softmax regression."""
  z = np.exp(x @ w["weights"] + w["bias"])
  u = (y.sum(1, keepdims=True) * z / z.sum(1, keepdims=True) - y) / len(x)
  return {"weights": w["weights"] - RATE * (x.T @ u + DECAY * w["weights"]), "bias": w["bias"] - RATE * u.sum(0)}


pool = last.data.half_moons().train
learner = last.learners.softmax(2, 2, learning_rate=RATE, weight_decay=DECAY)  # What the teacher knows of the student.
problem = last.Problem(learner, pool, target=last.fit_target(learner, pool))
teacher = last.teachers.greedy(last.constraints.magnitude(2.0))
x, truth = np.asarray(pool.x), np.asarray(problem.truth)
start = {"weights": np.zeros((2, 2), "f"), "bias": np.zeros(2, "f")}
begin = last.init(jax.random.key(2), problem, teacher, start)

taught, untaught, state = start, start, begin
for _ in range(STEPS):
  lesson, state = last.next_lesson(state, problem, teacher, batch_size=BATCH)
  index, label = np.asarray(lesson.index), np.asarray(lesson.label)
  taught, untaught = learn(taught, x[index], label), learn(untaught, x[index], truth[index])
  state = last.observe(state, taught)

simulated = last.run(begin, problem, teacher, steps=STEPS, batch_size=BATCH)[0].params
reached = {"lessons": taught, "true labels": untaught}
for source, w in reached.items():
  final, target = (sum(np.sum((w[k] - to[k]) ** 2) for k in w) ** 0.5 for to in (simulated, problem.target))
  print(f"{source}: {final:.1e} from where the simulated student ends, {target:.5f} from w*")
