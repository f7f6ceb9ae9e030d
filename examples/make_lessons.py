"""Make a lesson file for the students beside this script.

python examples/make_lessons.py lessons.npz [softmax | logistic | least_squares | mlp]
"""

import sys

import jax

import last_jax as last

path, kind = sys.argv[1], (sys.argv[2:] or ["softmax"])[0]
data, batch_size = last.data.regression() if kind == "least_squares" else last.data.half_moons(), 1
if kind == "least_squares":
  learner = last.learners.least_squares(4, learning_rate=0.05, weight_decay=1e-3)
elif kind == "logistic":
  learner = last.learners.logistic(2, learning_rate=0.3, weight_decay=1e-3)
else:
  settings, batch_size = {"learning_rate": 0.2, "momentum": 0.5, "weight_decay": 1e-3}, 8
  learner = {
    "softmax": lambda: last.learners.softmax(2, 2, **settings),
    "mlp": lambda: last.learners.mlp((2, 8, 2), activation="tanh", **settings),
  }[kind]()
init = learner.init(jax.random.key(0))
if kind == "mlp":  # The target of a network must be one that its start leads to.
  sgd = last.teachers.sgd()
  target = last.teach(jax.random.key(1), learner, sgd, data.train, init=init, steps=200, batch_size=32).params
else:
  init = jax.tree.map(lambda leaf: 0 * leaf, init)
  target = last.fit_target(learner, data.train)

problem = last.Problem(learner, data.train, target=target)
teacher = last.teachers.greedy(last.constraints.magnitude(5.0))
state = last.init(jax.random.key(2), problem, teacher, init)
state, records = last.run(state, problem, teacher, steps=300, batch_size=batch_size, lessons=True)
about = {"init": init, "final": state.params, "target": target, "examples": True}
last.save(path, last.Curriculum(problem, records.lessons, inputs="as last_jax.data makes them", **about))
print(f"wrote {path}: {kind}, {records.distance[0]:.3f} from w* at the start, {records.distance[-1]:.5f} at the end")
