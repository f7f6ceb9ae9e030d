"""A teacher with state, as flashcards are learned:  python examples/new_teacher.py [STEPS]

Each example lies in a box. One that the student gets right moves up a box and returns after twice as many steps; one
that it gets wrong returns at once. Labels stay the true ones: what is chosen are examples.
"""

import sys

import jax
import jax.numpy as jnp

import last_jax as last

STEPS = int((sys.argv[1:] or [400])[0])


def init(problem):
  boxes = jnp.zeros(len(problem.pool), int)
  return boxes, boxes  # For each example its box, and the step in which it is due.


def step(state, view, proposal):
  box, due = state
  lots = jax.random.uniform(view.key, due.shape)  # Among examples that are due in the same step.
  index = jax.lax.top_k(lots - due, len(proposal))[1]
  outputs = view.learner.apply(view.student.params, view.x[index])
  is_right = outputs.argmax(1) == view.truth[index].argmax(1)
  box = box.at[index].set(jnp.where(is_right, box[index] + 1, 0))
  due = due.at[index].set(view.step + 2 ** box[index])
  return last.Lesson(index, view.truth[index]), (box, due), None


pool = last.data.mnist(range(10), num_features=100, train_per_digit=30).train  # 300 cards.
learner = last.learners.softmax(num_features=100, num_classes=10, learning_rate=0.002)
teachers = {"SGD": last.teachers.sgd(), "flashcards": last.Teacher("flashcards", init=init, step=step)}

keys, known = jax.random.split(jax.random.key(0), 10), {}
for name, teacher in teachers.items():
  taught = last.teach_many(keys, learner, teacher, pool, steps=STEPS, batch_size=8, test=pool, record_every=STEPS)
  known[name] = float(taught.accuracy[:, -1].mean())
  print(f"{name}: students know {100 * known[name]:.1f} % of the cards after {STEPS} steps of 8")
