"""The problems of the figures: one for all seeds, or one for each, stacked along a leading [seeds] axis."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import data, learners, tools, training
from last_jax.base import Dataset, Key, Params
from last_jax.fitting import fit_target
from last_jax.learners import Learner
from last_jax.problem import Problem
from last_jax.reproduction.config import Size

WEIGHT_DECAY = 5e-5

InitFn = Callable[[Key], Params]


def fit(learner: Learner, dataset: Dataset, **settings: Any) -> Problem:
  """Return a problem whose target is fitted to the dataset, with settings of `fit_target`."""
  target = fit_target(learner, dataset.train, **settings)
  return Problem(learner, dataset.train, target=target, test=dataset.test)


def fit_each(learner: Learner, datasets: Sequence[Dataset]) -> Problem:
  """Return the problems of all datasets, one for each seed, as one: every leaf has a leading [seeds] axis."""
  return stack([fit(learner, each) for each in datasets])


def stack(each_seed: Sequence[Problem]) -> Problem:
  """Return the problems of all seeds as one: every leaf has a leading [seeds] axis."""
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each_seed)


def is_per_seed(problem: Problem) -> bool:
  """Return whether every leaf has a leading [seeds] axis."""
  return problem.truth.ndim == 3


def split(problem: Problem) -> list[Problem]:
  """Return the problem of each seed, or the one that they share."""
  if not is_per_seed(problem):
    return [problem]
  return [jax.tree.map(lambda leaf, seed=seed: leaf[seed], problem) for seed in range(problem.truth.shape[0])]


def rounding_floor(problem: Problem) -> float:
  """Return the distance to the target below which differences are rounding, mean over seeds."""
  return float(np.mean([tools.rounding_floor(each.target) for each in split(problem)]))


def lowest_objective(problem: Problem) -> np.ndarray:
  """Return the objective of the target, `[seeds]`, or `[1]` where the seeds share a problem."""
  return np.array([float(each.learner.objective(each.target, each.pool.x, each.truth)) for each in split(problem)])


def describe(problem: Problem, size: Size, steps: int) -> dict[str, Any]:
  """Return the settings that all figures share."""
  optimizer: Any = problem.learner.optimizer
  owner = "different for each seed" if is_per_seed(problem) else "the same for all seeds"
  return {
    "seeds": size.seeds,
    "steps": steps,
    "learning rate": f"{np.ravel(optimizer.learning_rate)[0]:g}",
    "weight decay": WEIGHT_DECAY,
    "pool": f"{problem.truth.shape[-2]} examples, {owner}",
  }


# --- MNIST, with students that start around the target.


def network_on_two_digits(digits: Sequence[int], per_digit: int, folder: str | None) -> tuple[Problem, InitFn]:
  """24–32–1, ReLU, on two digits; students start at w* + N(0, 0.1²)."""
  learner = learners.mlp((24, 32, 1), activation="relu", learning_rate=1e-3, weight_decay=WEIGHT_DECAY)
  problem = fit(learner, data.mnist(digits, folder=folder, train_per_digit=per_digit), tolerance=1e-3)
  return problem, training.near(problem.target, 0.1)


def network_on_five_digits(size: Size) -> tuple[Problem, InitFn]:
  """24–32–5, leaky ReLU, without biases, on 1 to 5; students start at w* + N(0, 0.1²)."""
  images = data.mnist((1, 2, 3, 4, 5), folder=size.mnist_folder, train_per_digit=size.pick(10, 200, 200))
  learner = learners.mlp(
    (24, 32, 5), activation="leaky_relu", learning_rate=5e-4, weight_decay=WEIGHT_DECAY, bias=False
  )
  problem = fit(learner, images, tolerance=1e-3)
  return problem, training.near(problem.target, 0.1)


def softmax_on_two_digits(
  size: Size, learning_rate: float = 5e-4, per_digit: int | None = 500
) -> tuple[Problem, InitFn]:
  """Softmax 24 -> 2 without bias, on 3 and 5; students start at w* + N(0, 0.05²).

  Args:
    size: at the quick size there are 20 images of each digit, unless there are to be all.
    learning_rate: of the students.
    per_digit: images of each digit; None: all.
  """
  per_digit = None if per_digit is None else size.pick(20, per_digit, per_digit)
  images = data.mnist((3, 5), folder=size.mnist_folder, train_per_digit=per_digit)
  problem = fit(learners.softmax(24, 2, learning_rate=learning_rate, weight_decay=WEIGHT_DECAY, bias=False), images)
  return problem, training.near(problem.target, 0.05)
