"""Learned teachers: networks trained by unrolling and by policy gradient, and how they are tried out.

Every seed trains a teacher of its own and tries it on students of its own, whom SGD and the others teach as well. The
figures are in `omniscient.py` and `black_box.py`.
"""

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax

from last_jax import data, learners, target, teachers, training
from last_jax.experiments.claims import Comparison
from last_jax.experiments.classroom import Room, Taught, make_room, seed_keys, teach_all
from last_jax.experiments.config import Size, Tell
from last_jax.experiments.greedy import WEIGHT_DECAY, nearer, nearer_at_end
from last_jax.learners import Learner
from last_jax.report.page import Chart, Line
from last_jax.teachers import Teacher
from last_jax.types import Dataset, Pool

STUDENTS, STEPS = 20, 300  # Of the paper's evaluation.
UNROLL_20, UNROLL_100 = "unrolled, 20 steps", "unrolled, 100 steps"
TEN_ACTIONS, FIVE_ACTIONS = "policy gradient", "policy gradient, five actions"


class Task(NamedTuple):
  """What is taught to whom, as in the experimental details of the paper."""

  learner: Learner
  data: Dataset
  target: Any
  starts: Any  # `key -> params`, a pytree.
  learning_rate: float


class Way(NamedTuple):
  """A way of training."""

  train: Callable[..., Any]
  episodes: int
  settings: Mapping[str, Any]


def unrolled(episodes: int, **settings: Any) -> Way:
  """By gradients through 20 steps unless given, 20 % of the students reset."""
  return Way(training.train_unrolled, episodes, settings)


def policy_gradient(episodes: int, actions: Any, **settings: Any) -> Way:
  """By policy gradient over these labels."""
  return Way(training.train_reinforce, episodes, {"actions": actions, **settings})


def linear_task(size: Size, learning_rate: float = 5e-4) -> Task:
  """Softmax 24 -> 2 without bias on MNIST 3/5, students around w*."""
  images = data.mnist((3, 5), folder=size.mnist_folder, train_per_digit=size.pick(20, 500, 500))
  learner = learners.softmax(24, 2, learning_rate=learning_rate, weight_decay=WEIGHT_DECAY, bias=False)
  fitted = target.fit_target(learner, images.train)
  return Task(learner, images, fitted, training.near(fitted, 0.05), learning_rate)


def network_task(size: Size) -> Task:
  """24 -> 32 -> 5 without biases on MNIST 1/2/3/4/5."""
  images = data.mnist((1, 2, 3, 4, 5), folder=size.mnist_folder, train_per_digit=size.pick(10, 200, 200))
  learner = learners.mlp(
    (24, 32, 5), activation="leaky_relu", learning_rate=5e-4, weight_decay=WEIGHT_DECAY, bias=False
  )
  fitted = target.fit_target(learner, images.train, tolerance=1e-3)
  return Task(learner, images, fitted, training.near(fitted, 0.1), 5e-4)


def train_all(
  task: Task, ways: Mapping[str, Way], size: Size, tell: Tell, *, black_box: bool = False
) -> dict[str, Teacher]:
  """By name, one teacher for each seed, trained in one call: a Teacher whose leaves have a leading [seeds] axis."""
  trained = {}
  for place, (name, way) in enumerate(ways.items()):
    tell(f"compiling and training: {name}", 0.8 * place / len(ways))
    trained[name] = _train(task, way, size, black_box)
  return trained


def _train(task: Task, way: Way, size: Size, black_box: bool) -> Teacher:
  settings = dict(way.settings)
  if size.name == "quick":
    settings |= {"horizon": 3, "hidden": (4,), "evaluation_steps": 3}

  def train(key: jax.Array, learner: Learner, pool: Pool, goal: Any, starts: Any) -> Teacher:
    policy, _ = way.train(key, learner, pool, target=goal, starts=starts, episodes=way.episodes, **settings)
    return teachers.policy(policy)

  # All that is large is an argument: what a program closes over is copied into it.
  given = (task.learner, task.data.train, None if black_box else task.target, task.starts)
  program = jax.jit(jax.vmap(train, (0, None, None, None, None)))
  return jax.block_until_ready(program(seed_keys(jax.random.key(2), size.numbers), *given))


def batch_sizes(size: Size) -> tuple[int, int]:
  """Of the evaluation: small and large."""
  return 1, size.pick(4, 128, 128)


def make_classroom(task: Task, size: Size) -> Room:
  """The students that teachers are tried on."""
  students = size.pick(2, STUDENTS, STUDENTS)
  return make_room(task.learner, task.data, task.target, task.starts, size.numbers, students)


def _schedule(size: Size) -> list[tuple[int, int]]:
  return [(size.pick(6, STEPS, STEPS), size.pick(1, 5, 5))]


def try_out(
  room: Room,
  trained: Mapping[str, Teacher],
  others: Sequence[Teacher],
  size: Size,
  batch_size: int,
  metrics: Any,
  runs: int = 1,
) -> dict[str, Taught]:
  """All teachers on the same students and examples. IMT shows one example in each step, as in the paper."""
  taught = {}
  for teacher in others:
    batch = 1 if teacher.name == "IMT" else batch_size
    taught[teacher.name] = teach_all(room, teacher, _schedule(size), batch_size=batch, metrics=metrics, runs=runs)
  for name, teacher in trained.items():
    taught[name] = teach_all(
      room, teacher, _schedule(size), batch_size=batch_size, metrics=metrics, own_teacher=True, runs=runs
    )
  return taught


def chart_of(
  title: str,
  taught: Mapping[str, Taught],
  axes: Mapping[str, Any] = types.MappingProxyType({}),
  metric: str = "distance",
  levels: Mapping[str, float] = types.MappingProxyType({}),
) -> Chart:
  """By iteration, and by seconds where seconds per step are known, by axis and method."""
  label = "‖w − w*‖" if metric == "distance" else "mean loss over the pool + weight decay"
  lines = tuple(
    Line(
      name,
      each.metrics[metric],
      {"iteration": each.step} | {axis: seconds[name] * each.step for axis, seconds in axes.items()},
    )
    for name, each in taught.items()
  )
  return Chart(title, label, lines, True, False, levels)


def describe(task: Task, size: Size, ways: Mapping[str, Way]) -> dict[str, Any]:
  """The settings of a figure."""
  return {
    "seeds": size.seeds,
    "students of each seed": size.pick(2, STUDENTS, STUDENTS),
    "steps": _schedule(size)[0][0],
    "learning rate": task.learning_rate,
    "weight decay": WEIGHT_DECAY,
    "pool": f"{len(task.data.train)} images",
    "episodes of training": ", ".join(f"{name}: {way.episodes:,}" for name, way in ways.items()),
  }


def remark_on_training(size: Size) -> str:
  """What is to be said of claims about learned teachers."""
  return "" if size.name == "full" else "The teachers were trained for fewer episodes than the paper's (--full)."


def beats(taught: Mapping[str, Taught], winner: str, loser: str) -> list[Comparison]:
  """Nearer on average over the run, and after the last step as well."""
  return [nearer(taught, winner, loser), nearer_at_end(taught, winner, loser)]
