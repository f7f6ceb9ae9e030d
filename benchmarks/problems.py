"""The problems that all sides are given, drawn with NumPy so that no library is favoured."""

import dataclasses
import itertools
from typing import Any, NamedTuple

import numpy as np

RADIUS = 0.5  # Of the set of labels called "magnitude".


class Method(NamedTuple):
  """A way to teach linear students, as all sides can: which examples, and with which labels."""

  best: bool  # Whether examples are the best of the pool for the next step, rather than random ones.
  labels: str  # "truth", or the set that the best label is chosen from: "none", "one_hot", "simplex", "magnitude".


METHODS = {
  "sgd": Method(False, "truth"),
  "greedy": Method(False, "simplex"),
  "greedy_none": Method(False, "none"),
  "greedy_one_hot": Method(False, "one_hot"),
  "greedy_magnitude": Method(False, "magnitude"),
  "imt": Method(True, "truth"),
  "mixed": Method(True, "simplex"),
}


@dataclasses.dataclass(frozen=True)
class Sizes:
  """How large a problem is; kept with every figure."""

  students: int
  steps: int
  pool: int = 1000
  features: int = 24
  classes: int = 2
  batch_size: int = 1

  @property
  def work(self) -> int:
    """Students times steps."""
    return self.students * self.steps


@dataclasses.dataclass(frozen=True)
class Problem:
  """Linear students on their way to a target: logistic with one output (K = 1), or softmax with one for each class."""

  sizes: Sizes
  seed: int
  x: np.ndarray  # [n, d]
  y: np.ndarray  # [n] class ids.
  target_weights: np.ndarray  # [d, K]
  target_bias: np.ndarray  # [K]
  init_weights: np.ndarray  # [S, d, K]
  init_bias: np.ndarray  # [S, K]
  learning_rate: float
  weight_decay: float = 5e-5

  def astype(self, dtype: type) -> "Problem":
    """The same with floats of another precision."""
    names = ("x", "target_weights", "target_bias", "init_weights", "init_bias")
    return dataclasses.replace(self, **{name: getattr(self, name).astype(dtype) for name in names})

  def of_first(self, students: int | None) -> "Problem":
    """The same for the first students only, if there are more; None: for all."""
    count = min(students or self.sizes.students, self.sizes.students)
    return dataclasses.replace(
      self,
      sizes=dataclasses.replace(self.sizes, students=count),
      init_weights=self.init_weights[:count],
      init_bias=self.init_bias[:count],
    )


def draw(sizes: Sizes, seed: int = 0, *, softmax: bool = False) -> Problem:
  """A random problem, in float32, for logistic students or softmax ones.

  With features of variance 1, the rate moves an output by about half of what its gradient asks for: greedy labels are
  then cut off at both ends of the simplex in some steps and lie inside it in others.
  """
  generator = np.random.default_rng(seed)
  outputs = sizes.classes if softmax else 1
  x = _normal(generator, sizes.pool, sizes.features)
  weights, bias = _normal(generator, sizes.features, outputs), _normal(generator, outputs)
  margins = x @ weights + bias + _normal(generator, sizes.pool, outputs)  # [n, K]
  # Two classes are as large as each other, whatever the seed.
  y = margins.argmax(1) if softmax else margins[:, 0] > np.median(margins)
  init_weights = weights + _normal(generator, sizes.students, sizes.features, outputs)
  init_bias = bias + _normal(generator, sizes.students, outputs)
  rate = 0.5 / (sizes.features + 1)
  return Problem(sizes, seed, x, y.astype(np.int32), weights, bias, init_weights, init_bias, rate)


@dataclasses.dataclass(frozen=True)
class MlpSizes(Sizes):
  """The same of teaching networks with one hidden layer."""

  hidden: int = 32


@dataclasses.dataclass(frozen=True)
class MlpProblem:
  """Networks on their way to a target: layers of weights `[d, h], [h, K]` and biases, ReLU between them."""

  sizes: MlpSizes
  seed: int
  x: np.ndarray  # [n, d]
  y: np.ndarray  # [n] class ids.
  target: dict[str, dict[str, np.ndarray]]  # As `last.learners.mlp` has its parameters.
  init: dict[str, dict[str, np.ndarray]]  # The same with a leading [S].
  learning_rate: float = 0.02
  weight_decay: float = 5e-5

  def astype(self, dtype: type) -> "MlpProblem":
    """The same with floats of another precision."""

    def cast(tree: Any) -> Any:
      return {name: cast(leaf) for name, leaf in tree.items()} if isinstance(tree, dict) else tree.astype(dtype)

    return dataclasses.replace(self, x=cast(self.x), target=cast(self.target), init=cast(self.init))


def draw_mlp(sizes: MlpSizes, seed: int = 0) -> MlpProblem:
  """A random problem, in float32: students start around the target, by as much as a third of its size."""
  generator = np.random.default_rng(seed)
  widths = (sizes.features, sizes.hidden, sizes.classes)
  target, init = {}, {}
  for i, (fan_in, fan_out) in enumerate(itertools.pairwise(widths)):
    scale = np.float32((2.0 / fan_in) ** 0.5)
    layer = {"weights": scale * _normal(generator, fan_in, fan_out), "bias": scale * _normal(generator, fan_out)}
    target[f"layer_{i}"] = layer
    init[f"layer_{i}"] = {
      name: leaf + scale / 3 * _normal(generator, sizes.students, *leaf.shape) for name, leaf in layer.items()
    }
  x = _normal(generator, sizes.pool, sizes.features)
  y = (np.arange(sizes.pool) % sizes.classes).astype(np.int32)
  return MlpProblem(sizes, seed, x, y, target, init)


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
  x, target = _normal(generator, sizes.pool, sizes.features), _normal(generator, sizes.features, 2)
  margins = x @ (target[:, 1] - target[:, 0]) + _normal(generator, sizes.pool)
  y = (margins > np.median(margins)).astype(np.int32)
  return TrainingProblem(sizes, seed, x, y, target)


def about(problem: Problem | MlpProblem | TrainingProblem, description: str, **more_sizes: int) -> dict[str, Any]:
  """What to keep with figures."""
  return {
    "description": description,
    "sizes": dataclasses.asdict(problem.sizes) | more_sizes,
    "seed": problem.seed,
    "learning_rate": problem.learning_rate,
    "weight_decay": problem.weight_decay,
    "dtype": str(problem.x.dtype),
  }


def _normal(generator: np.random.Generator, *shape: int) -> np.ndarray:
  return generator.standard_normal(shape, np.float32)
