"""The problem both sides are given: students, a pool, a target, drawn with NumPy so that no library is favoured."""

import dataclasses

import numpy as np


@dataclasses.dataclass(frozen=True)
class Sizes:
  """How large a problem is; kept with every figure. One example is shown to a student in a step."""

  students: int
  steps: int
  pool: int = 1000
  features: int = 24


@dataclasses.dataclass(frozen=True)
class Problem:
  """Logistic students on their way to a target; the classes are 0 and 1."""

  sizes: Sizes
  seed: int
  x: np.ndarray  # [n, d]
  y: np.ndarray  # [n] class ids.
  target_weights: np.ndarray  # [d]
  target_bias: np.ndarray  # []
  init_weights: np.ndarray  # [S, d]
  init_bias: np.ndarray  # [S]
  learning_rate: float
  weight_decay: float

  def astype(self, dtype: type) -> "Problem":
    """The same with floats of another precision."""
    names = ("x", "target_weights", "target_bias", "init_weights", "init_bias")
    return dataclasses.replace(self, **{name: getattr(self, name).astype(dtype) for name in names})


def draw(sizes: Sizes, seed: int = 0, learning_rate: float = 0.02, weight_decay: float = 5e-5) -> Problem:
  """A random problem, in float32.

  With 24 features of variance 1, the default rate moves an output by about half of what its gradient asks for: greedy
  labels are then cut off at both ends of the simplex in some steps and lie inside it in others.
  """
  generator = np.random.default_rng(seed)
  x = generator.normal(size=(sizes.pool, sizes.features))
  weights = generator.normal(size=sizes.features)
  bias = generator.normal()
  margins = x @ weights + bias + generator.normal(size=sizes.pool)
  y = (margins > np.median(margins)).astype(np.int32)  # Both classes, whatever the seed.
  init_weights = weights + generator.normal(size=(sizes.students, sizes.features))
  init_bias = bias + generator.normal(size=sizes.students)
  problem = Problem(sizes, seed, x, y, weights, np.asarray(bias), init_weights, init_bias, learning_rate, weight_decay)
  return problem.astype(np.float32)


@dataclasses.dataclass(frozen=True)
class TrainingSizes:
  """How large the training of a teacher is. One example is shown to a student in a step."""

  students: int = 10
  horizon: int = 20
  pool: int = 1000
  features: int = 24
  width: int = 128  # Of each of the policy network's two hidden layers.


@dataclasses.dataclass(frozen=True)
class TrainingProblem:
  """A teacher to be trained: softmax students without a bias, who start around a target; two classes."""

  sizes: TrainingSizes
  seed: int
  x: np.ndarray  # [n, d]
  y: np.ndarray  # [n] class ids.
  target: np.ndarray  # [d, 2]
  learning_rate: float = 0.02
  weight_decay: float = 5e-5
  spread: float = 0.05  # Standard deviation of where students start.

  def astype(self, dtype: type) -> "TrainingProblem":
    """The same with floats of another precision."""
    return dataclasses.replace(self, x=self.x.astype(dtype), target=self.target.astype(dtype))


def draw_training(sizes: TrainingSizes, seed: int = 0) -> TrainingProblem:
  """A random problem like the paper's, in float32.

  Only the students' learning rate is larger than the paper's: within an episode the labels then move a student by about
  as much as it is away from the target, and a mistake in their gradient cannot pass for rounding.
  """
  generator = np.random.default_rng(seed)
  x = generator.normal(size=(sizes.pool, sizes.features))
  target = generator.normal(size=(sizes.features, 2))
  margins = x @ (target[:, 1] - target[:, 0]) + generator.normal(size=sizes.pool)
  y = (margins > np.median(margins)).astype(np.int32)
  return TrainingProblem(sizes, seed, x, y, target).astype(np.float32)
