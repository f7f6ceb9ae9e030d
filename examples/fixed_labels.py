"""Labels that stay, ten images and a label for each:  python examples/fixed_labels.py [UPDATES]

Students with fresh starts learn by ordinary SGD, from nothing else, what 5,000 images taught the labels.
"""

import sys

import jax
import numpy as np

import last_jax as last

UPDATES = int((sys.argv[1:] or [150])[0])
STEPS = 30  # Of a student, on all ten images at once.
data = last.data.mnist(range(10), num_features=100, feature_scale=0.1)
learner = last.learners.softmax(num_features=100, num_classes=10, learning_rate=0.5)
first = np.unique(data.train.y, return_index=True)[1]  # The first image of each digit.
x, y = data.train.x[first], data.train.y[first]
search = {"validation": data.train, "validation_batch": 500, "students": 2, "updates": UPDATES}
labels, log = last.distill_labels(jax.random.key(0), learner, x, y, steps=STEPS, **search)

keys, accuracy = jax.random.split(jax.random.key(1), 20), {}
for name, shown in {"true labels": learner.encode(x, y), "labels that stay": labels}.items():
  pool, lessons = last.Pool(x, shown), {"steps": STEPS, "batch_size": 10, "record_every": STEPS}
  taught = last.teach_many(keys, learner, last.teachers.sgd(), pool, test=data.test, **lessons)
  accuracy[name] = float(taught.accuracy[:, -1].mean())
  print(f"{name}: test accuracy {accuracy[name]:.3f} from ten images")
