"""The cases that all sides are timed on, drawn with NumPy so that no library is favoured."""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

RADIUS = 0.5  # Of the set of labels called "magnitude".


class Strategy(NamedTuple):
  """The teaching of linear students, as all sides can do it: which examples, and with which labels."""

  best: bool  # Whether examples are the best of the pool for the next step, rather than random ones.
  labels: str  # "truth", or the set that the best label is chosen from: "none", "one_hot", "simplex", "magnitude".


STRATEGIES = {
  "sgd": Strategy(False, "truth"),
  "greedy": Strategy(False, "simplex"),
  "greedy_none": Strategy(False, "none"),
  "greedy_one_hot": Strategy(False, "one_hot"),
  "greedy_magnitude": Strategy(False, "magnitude"),
  "imt": Strategy(True, "truth"),
  "mixed": Strategy(True, "simplex"),
}


@dataclasses.dataclass(frozen=True)
class Case:
  """One problem of a certain size, in NumPy arrays.

  Attributes:
    model: of the students: "logistic", "softmax" or "mlp".
    sizes: the arguments of `draw_...`, stored with every measurement.
    seed: of the arrays, and of all that is random later.
    x: `[n, d]`.
    y: `[n]` class ids.
    target: w*, parameters as the learner of last_jax has them.
    init: the students' starts, with a leading [students] axis; None where they are drawn during training.
    learning_rate: of the students.
    weight_decay: likewise.
  """

  model: str
  sizes: Mapping[str, int]
  seed: int
  x: np.ndarray
  y: np.ndarray
  target: dict[str, Any]
  init: dict[str, Any] | None
  learning_rate: float
  weight_decay: float = 5e-5

  @property
  def work(self) -> int:
    """Student-steps: students times steps."""
    return self.sizes["students"] * self.sizes["steps"]

  def with_sizes(self, **sizes: int) -> "Case":
    """Return the same case with other entries in `sizes`."""
    return dataclasses.replace(self, sizes={**self.sizes, **sizes})

  def astype(self, dtype: type) -> "Case":
    """Return the same case with floats of another precision."""
    arrays = self.x, self.target, self.init
    x, target, init = jax.tree.map(lambda array: array.astype(dtype), arrays)
    return dataclasses.replace(self, x=x, target=target, init=init)

  def of_first(self, students: int | None) -> "Case":
    """Return the same case with at most this number of students; None for all."""
    first = self.with_sizes(students=min(students or self.sizes["students"], self.sizes["students"]))
    return dataclasses.replace(first, init=jax.tree.map(lambda leaf: leaf[:students], self.init))

  def about(self, description: str, more_sizes: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Return the facts to store with a measurement."""
    return {
      "description": description,
      "sizes": {**self.sizes, **(more_sizes or {})},
      "seed": self.seed,
      "learning_rate": self.learning_rate,
      "weight_decay": self.weight_decay,
      "dtype": str(self.x.dtype),
    }


def draw_linear(
  seed: int = 0,
  softmax: bool = False,
  /,
  *,
  students: int,
  steps: int,
  pool: int = 1000,
  features: int = 24,
  classes: int = 2,
  batch_size: int = 1,
) -> Case:
  """Draw a case of logistic students, or of softmax ones, in float32.

  With features of variance 1, the learning rate moves an output by about half of its error: greedy labels are then cut
  off at both ends of the simplex in some steps and lie inside it in others.
  """
  sizes = {
    "students": students, "steps": steps, "pool": pool, "features": features, "classes": classes,
    "batch_size": batch_size,
  }  # fmt: skip
  generator = np.random.default_rng(seed)
  outputs = classes if softmax else 1
  x = _normal(generator, pool, features)
  target = {"weights": _normal(generator, features, outputs), "bias": _normal(generator, outputs)}
  margins = x @ target["weights"] + target["bias"] + _normal(generator, pool, outputs)  # [n, K]
  # Split at the median: two classes are equally large for every seed.
  y = margins.argmax(1) if softmax else margins[:, 0] > np.median(margins)
  init = {name: leaf + _normal(generator, students, *leaf.shape) for name, leaf in target.items()}
  model = "softmax" if softmax else "logistic"
  return Case(model, sizes, seed, x, y.astype(np.int32), target, init, 0.5 / (features + 1))


def draw_mlp(
  seed: int = 0,
  *,
  students: int,
  steps: int,
  pool: int = 1000,
  features: int = 24,
  classes: int = 2,
  hidden: int = 32,
) -> Case:
  """Draw a case of networks with one hidden layer, in float32; they start around the target, a third of its size away.

  Layers have weights `[d, h], [h, K]` and biases, with ReLU between them.
  """
  sizes = {
    "students": students, "steps": steps, "pool": pool, "features": features, "classes": classes, "batch_size": 1,
    "hidden": hidden,
  }  # fmt: skip
  generator = np.random.default_rng(seed)
  target, init = {}, {}
  for i, (fan_in, fan_out) in enumerate(itertools.pairwise((features, hidden, classes))):
    scale = np.float32((2.0 / fan_in) ** 0.5)
    layer = {"weights": scale * _normal(generator, fan_in, fan_out), "bias": scale * _normal(generator, fan_out)}
    target[f"layer_{i}"] = layer
    init[f"layer_{i}"] = {
      name: leaf + scale / 3 * _normal(generator, students, *leaf.shape) for name, leaf in layer.items()
    }
  x = _normal(generator, pool, features)
  y = (np.arange(pool) % classes).astype(np.int32)
  return Case("mlp", sizes, seed, x, y, target, init, 0.02)


def draw_training(
  seed: int = 0, *, students: int = 10, horizon: int = 20, pool: int = 1000, features: int = 24, width: int = 128
) -> Case:
  """Draw a case of training a teacher, like the paper's, in float32.

  Students are softmax learners without a bias, of two classes; `width` is that of the policy's two hidden layers. Only
  the students' learning rate is larger than the paper's: within an episode the labels then move a student by about its
  distance from the target, so that an error in their gradient cannot pass for rounding.
  """
  sizes = {"students": students, "horizon": horizon, "pool": pool, "features": features, "width": width}
  generator = np.random.default_rng(seed)
  x, target = _normal(generator, pool, features), _normal(generator, features, 2)
  margins = x @ (target[:, 1] - target[:, 0]) + _normal(generator, pool)
  y = (margins > np.median(margins)).astype(np.int32)
  return Case("softmax", sizes, seed, x, y, {"weights": target}, None, 0.02)


def _normal(generator: np.random.Generator, *shape: int) -> np.ndarray:
  return generator.standard_normal(shape, np.float32)
