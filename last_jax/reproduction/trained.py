"""Learned teachers: networks trained by unrolling and by policy gradient, and their evaluation.

Every seed trains a teacher of its own and evaluates it on students of its own, which SGD and the others teach as well.
The figures are in `omniscient.py` and `black_box.py`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from last_jax import teachers, training
from last_jax.base import Key, Records, Teacher
from last_jax.problem import Problem
from last_jax.reproduction import problems, seeds
from last_jax.reproduction.config import Method, Size, Tell
from last_jax.reproduction.problems import InitFn
from last_jax.reproduction.seeds import Students
from last_jax.teachers import outputs
from last_jax.training.trainer import train


class Recipe(NamedTuple):
  """Training settings of a learned teacher."""

  name: str
  variant: str
  settings: training.Settings
  episodes: int


def unrolled(episodes: int, horizon: int = 20, **settings: Any) -> Recipe:
  """Gradients through `horizon` steps."""
  method = training.Unrolled(horizon=horizon, **settings)
  return Recipe(f"unrolled, {horizon} steps", f"unrolled {horizon}", method, episodes)


def policy_gradient(episodes: int, *, five: bool = False, prior: float = 0.0, **settings: Any) -> Recipe:
  """Policy gradient over five labels and their doubles; with `five`, over the five alone; `prior` on the truth."""
  name = "policy gradient, five actions" if five else "policy gradient"
  actions = outputs.actions(outputs.BINARY if five else outputs.BINARY_AUGMENTED, prior)
  method = training.Reinforce(actions=actions, **settings)
  return Recipe(name, name, method, episodes)


def train_all(problem: Problem, init_fn: InitFn, recipes: Sequence[Recipe], size: Size, tell: Tell) -> list[Method]:
  """Train one teacher for each seed by each recipe: the leaves of a method's teacher have a leading [seeds] axis.

  Args:
    problem: without a target for black-box teachers.
    init_fn: `key -> params`, a pytree: the students' starts.
    recipes: how to train.
    size: seeds; at the quick size, networks and episodes are tiny.
    tell: receives the progress, up to a share of 0.8.
  """
  methods = []
  for place, recipe in enumerate(recipes):
    tell(f"compiling and training: {recipe.name}", 0.8 * place / len(recipes))
    teacher = _train(problem, init_fn, recipe, size)
    methods.append(Method(f"learned:{recipe.variant}", teacher, "learned", recipe.variant))
  return methods


def _train(problem: Problem, init_fn: InitFn, recipe: Recipe, size: Size) -> Teacher:
  settings = recipe.settings
  if size.name == "quick":
    hidden = settings.hidden if settings.policy is not None else (4,)
    settings = dataclasses.replace(settings, horizon=3, hidden=hidden, evaluation_steps=3)

  def train_seed(key: Key, problem: Problem, init_fn: InitFn) -> Teacher:
    trainer = training.make_trainer(settings, problem.learner, problem.pool, target=problem.target, init_fn=init_fn)
    policy, _ = train(trainer, key, episodes=recipe.episodes)
    return teachers.policy(policy, name=recipe.name)

  # Arrays that a program closes over are copied into it: they are arguments.
  program = jax.jit(jax.vmap(train_seed, (0, None, None)))
  return jax.block_until_ready(program(seeds.seed_keys(jax.random.key(2), size.numbers), problem, init_fn))


# --- The paper's evaluation.


def batch_sizes(size: Size) -> tuple[int, int]:
  """Return the small and the large batch size."""
  return 1, size.pick(4, 128, 128)


def num_steps(size: Size) -> int:
  """Return the number of steps."""
  return size.pick(6, 300, 300)


def draw_students(init_fn: InitFn, size: Size) -> Students:
  """Return the students that teachers are evaluated on."""
  return seeds.draw_students(init_fn, size.numbers, size.pick(2, 20, 20))


def evaluate(
  problem: Problem, students: Students, ways: Sequence[Method], size: Size, tell: Tell, share: float, **settings: Any
) -> tuple[dict[str, Records], dict[str, float]]:
  """Return records and seconds per step of each method; the progress is between `share` and 0.1 more."""
  schedule = [(num_steps(size), size.pick(1, 5, 5))]
  return seeds.teach_all(
    problem, students, ways, schedule, lambda text, part: tell(text, share + 0.1 * part), **settings
  )


def describe(problem: Problem, students: Students, size: Size, recipes: Sequence[Recipe]) -> dict[str, Any]:
  """Return the settings of a figure."""
  return problems.describe(problem, size, num_steps(size)) | {
    "students of each seed": students.keys.shape[1],
    "episodes of training": ", ".join(f"{each.name}: {each.episodes:,}" for each in recipes),
  }


def remark_on_training(size: Size) -> str:
  """Return the remark on claims about learned teachers."""
  return "" if size.name == "full" else "The teachers were trained for fewer episodes than the paper's (--full)."


def size_needed(size: Size) -> str:
  """Return `Claim.size` of claims about learned teachers: no verdict by teachers that were trained for less."""
  return "" if size.name == "full" else "full"
