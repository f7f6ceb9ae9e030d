"""Which black-box policies beat SGD: trained teachers that never see w*, in the paper's setting, over many seeds.

    python -m benchmarks.black_box_policies --seeds=10

Softmax 24 -> 2 on MNIST 3/5 (1,000 images), rate 1e-3, batches of 20; students start at w* + N(0, 0.05^2) and take 300
steps. Every seed trains a teacher of its own by each method and tries it on 20 students of its own, which SGD teaches
as well, with the same examples. Columns compare means over a seed's students, paired by seed: SGD's distance to w*,
reachable distance (without the part that no label changes) and excess loss on the pool, each over the teacher's (more
than 1: the teacher is ahead), and the teacher's test accuracy less SGD's. Intervals are 95 % (Student's t, over seeds).
"""

import functools
import json
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags
from flax import linen as nn

import last_jax as last
from last_jax import fitting, outputs, rewards, training
from last_jax.reproduction.black_box import Distiller, Hypernetwork, decaying, distiller, whitened_inputs
from last_jax.tools.statistics import mean_interval

STUDENTS, STEPS, BATCH = 20, 300, 20
VALUES = tuple(float(value) for value in np.linspace(-1, 2, 13))  # Of the first class, in labels to choose from.
METRICS = ("distance", "reachable", "excess loss", "accuracy")


class Problem(NamedTuple):
  """What is taught."""

  learner: last.learners.Learner
  pool: last.Pool
  test: last.Pool | None
  target: Any


class Method(NamedTuple):
  """A way to train a policy."""

  name: str
  settings: training.Settings
  episodes: int
  images: bool = False  # Whether the teacher sees images, rather than the 24 features that students see.


class Cnn(nn.Module):
  """Soft labels from the images of a batch: a convolution over 7 x 7 averages, beside all that others see."""

  @nn.compact
  def __call__(self, features: Mapping[str, jax.Array]) -> jax.Array:
    """`[m, 28, 28, 1]`, ... -> `[m, 2]`."""
    x = nn.relu(nn.Conv(8, (3, 3))(nn.avg_pool(features["x"], (4, 4), (4, 4))))
    x = jnp.concatenate([x.reshape(x.shape[0], -1), features["label"], features["prediction"]], -1)
    student = nn.Dense(64, use_bias=False)(features["params"][None])
    return nn.Dense(2, kernel_init=nn.initializers.normal(1e-3))(nn.relu(nn.Dense(64)(x) + student.repeat(len(x), 0)))


class Chooser(nn.Module):
  """Probabilities of labels (v, 1 - v) around those of a `Distiller`: Gaussian in v."""

  around: Distiller
  values: tuple[float, ...]  # v, [A]
  deviation: float = 0.5

  @nn.compact
  def __call__(self, features: Mapping[str, jax.Array]) -> jax.Array:
    """`[m, 24]`, ... -> `[m, A]`, logarithms of probabilities up to a constant."""
    center = (features["label"] + self.around(features))[:, :1]
    return -0.5 * ((jnp.array(self.values) - center) / self.deviation) ** 2


class Linear(nn.Module):
  """A shift of the label that is linear in the example, its label and the prediction: 27 weights."""

  @nn.compact
  def __call__(self, features: Mapping[str, jax.Array]) -> jax.Array:
    """`[m, 24]`, ... -> `[m, 2]`, whose sum is 0."""
    own = jnp.concatenate([features["x"], features["label"][:, :1], features["prediction"][:, :1]], -1)
    shift = nn.Dense(1, kernel_init=nn.initializers.zeros)(own)  # It begins at the truth.
    return jnp.concatenate([shift, -shift], -1)


def methods() -> list[Method]:
  """Return the methods, with their settings."""
  shared: dict[str, Any] = {"batch_size": BATCH}
  whitened: dict[str, Any] = {"prior": 0.0, "log_gain": 1.6, **whitened_inputs(make_problem(images=False).pool)}
  return [
    Method("unrolling, loss of 20 examples, last policy", training.Unrolled(
      reward=rewards.loss(20), evaluate_every=0, **shared), 500),
    Method("unrolling", training.Unrolled(**shared), 500),
    Method("unrolling, hypernetwork, free labels", training.Unrolled(
      policy=Hypernetwork(), output=outputs.free(), learning_rate=1e-2, **shared), 300),
    Method("unrolling, hypernetwork that sees parameters as they are", training.Unrolled(
      policy=Hypernetwork(), output=outputs.free(), standardize=False, learning_rate=3e-3, **shared), 300),
    Method("unrolling, distiller", training.Unrolled(
      optimizer=decaying(0.1, 300), **shared, **distiller()), 300),
    Method("unrolling, CNN on pixels", training.Unrolled(policy=Cnn(), **shared), 200, images=True),
    Method("policy gradient, linear, from the truth, groups of 8", training.Reinforce(
      actions=outputs.actions(outputs.BINARY, prior=4.0), hidden=(), features=("x", "label", "prediction"),
      students=64, group=8, horizon=20, reset=0.125, discount=1.0, optimizer=decaying(0.02, 200), **shared), 200),
    Method("policy gradient, distiller, 13 labels, groups of 8", training.Reinforce(
      policy=Chooser(Distiller(**whitened), VALUES), actions=[[value, 1 - value] for value in VALUES],
      features=("x", "label", "prediction"), standardize=False, students=64, group=8, horizon=20, reset=0.125,
      discount=1.0, optimizer=decaying(0.07, 200), **shared), 200),
    Method("policy gradient, the paper's (accuracy, b = -0.1)", training.Reinforce(
      actions=outputs.BINARY, reward=rewards.accuracy(), baseline=-0.1, **shared), 200),
    Method("evolution strategies, distiller", training.Evolution(
      students=200, horizon=20, reset=0.1, deviation=0.1, optimizer=decaying(0.07, 150), **shared,
      **distiller(**whitened)), 150),
    Method("evolution strategies, linear, free labels", training.Evolution(
      policy=Linear(), features=("x", "label", "prediction"), output=outputs.free(), students=200, horizon=20,
      reset=0.2, deviation=0.02, optimizer=decaying(0.005, 150), **shared), 150),
  ]  # fmt: skip


@functools.cache  # The matrix of the features is too large to be compared by value: it is made once.
def make_problem(images: bool) -> Problem:
  """Return the paper's problem; with images, that of the same students, whose features are a part of the learner."""
  data = last.data.mnist((3, 5), train_per_digit=500)
  learner = last.learners.softmax(24, 2, learning_rate=1e-3, weight_decay=5e-5, bias=False)
  target = last.fit_target(learner, data.train)
  if not images:
    return Problem(learner, data.train, data.test, target)
  pixels = last.data.mnist((3, 5), train_per_digit=500, num_features=None)
  matrix = jnp.asarray(last.data.random_features(np.eye(784), 24), jnp.float32)  # [784, 24]

  def apply(params: Any, x: jax.Array) -> jax.Array:
    return x.reshape(x.shape[0], -1) @ matrix @ params["weights"]

  loss = "softmax_cross_entropy"
  same = last.learners.from_apply(learner.init, apply, loss, learning_rate=1e-3, weight_decay=5e-5)
  return Problem(same, pixels.train, pixels.test, target)


def train(problem: Problem, method: Method, seeds: range) -> Any:
  """Return one trained policy for each seed, stacked."""
  init_fn = training.near(problem.target, 0.05)
  trainer = training.make_trainer(method.settings, problem.learner, problem.pool, init_fn=init_fn)

  def one(key: jax.Array) -> Any:
    return training.trainer.train(trainer, key, episodes=method.episodes)[0]

  # One after the other: on few cores that is faster than all at once.
  return jax.block_until_ready(jax.jit(lambda keys: jax.lax.map(one, keys))(seed_keys(0, seeds)))


def seed_keys(purpose: int, seeds: range) -> jax.Array:
  """Return keys `[seeds]`; a seed's key does not depend on the other seeds."""
  return jax.vmap(lambda seed: jax.random.fold_in(jax.random.key(purpose), seed))(jnp.arange(seeds.start, seeds.stop))


def teach(problem: Problem, policies: Any, seeds: range) -> dict[str, np.ndarray]:
  """Return the students' metrics after the last step, `[seeds]` means over a seed's students; policies None: SGD."""
  learner, pool, test, target = problem
  truth = learner.encode(pool.x, pool.y)
  least = learner.mean_loss(target, pool.x, truth)

  def one(key: jax.Array, policy: Any) -> dict[str, jax.Array]:
    start_key, lesson_key = jax.random.split(key)
    starts = jax.vmap(training.near(target, 0.05))(jax.random.split(start_key, STUDENTS))
    teacher = last.teachers.sgd() if policy is None else last.teachers.policy(policy)
    result = last.teach_many(
      jax.random.split(lesson_key, STUDENTS), learner, teacher, pool, target=target, test=test, init=starts,
      steps=STEPS, record_every=STEPS, batch_size=BATCH, metrics=("distance", "accuracy"),
    )  # fmt: skip
    fixed = jax.vmap(lambda params: fitting.unreachable_distance(learner, params, target, pool.x))(result.params)
    distance, accuracy = (jnp.asarray(values)[:, -1] for values in (result.distance, result.accuracy))
    reachable = jnp.sqrt(jnp.maximum(distance**2 - fixed**2, 0.0))
    loss = jax.vmap(lambda params: learner.mean_loss(params, pool.x, truth))(result.params) - least
    found = (distance, reachable, loss, accuracy)
    return {name: jnp.mean(values) for name, values in zip(METRICS, found, strict=True)}

  found = jax.jit(jax.vmap(one, (0, None if policies is None else 0)))(seed_keys(1, seeds), policies)
  return {name: np.asarray(values, np.float64) for name, values in found.items()}


def gains(found: Mapping[str, np.ndarray], sgd: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """Return by how much a teacher is ahead of SGD, `[seeds]`: ratios, and points of accuracy."""
  ratios = {name: sgd[name] / found[name] for name in METRICS[:-1]}
  return ratios | {"accuracy": 100 * (found["accuracy"] - sgd["accuracy"])}


def interval(values: np.ndarray) -> tuple[float, float, float]:
  """Return the mean and the 95 % interval."""
  half = mean_interval(values).half_width
  return float(values.mean()), float(values.mean() - half), float(values.mean() + half)


def table(rows: Mapping[str, Mapping[str, np.ndarray]]) -> list[str]:
  """Return a Markdown table of the gains of each teacher."""
  lines = ["| teacher | " + " | ".join(METRICS) + " |", "|---" * (1 + len(METRICS)) + "|"]
  for name, found in rows.items():
    cells = ["{:.3f} [{:.3f}, {:.3f}]".format(*interval(found[metric])) for metric in METRICS]
    lines.append(f"| {name} | " + " | ".join(cells) + " |")
  return lines


def compare(
  chosen: Sequence[Method], seeds: range, tell: Callable[[str], None] = print
) -> dict[str, dict[str, np.ndarray]]:
  """Return the gains of each method."""
  problems = {images: make_problem(images) for images in sorted({method.images for method in chosen})}
  baselines = {images: teach(problem, None, seeds) for images, problem in problems.items()}
  rows = {}
  for method in chosen:
    problem, began = problems[method.images], time.perf_counter()
    policies = train(problem, method, seeds)
    seconds = time.perf_counter() - began
    rows[method.name] = gains(teach(problem, policies, seeds), baselines[method.images])
    tell(f"{table({method.name: rows[method.name]})[-1]} {seconds / len(seeds):.0f} s a seed, with compiling")
  return rows


def define_flags() -> None:
  """Define the command's flags; not on import, for those of other commands have the same names."""
  flags.DEFINE_integer("seeds", 10, "Teachers trained by each method.", 2)
  flags.DEFINE_integer("first_seed", 0, "The first seed.", 0)
  flags.DEFINE_list("methods", None, "Only methods whose names contain one of these words.")
  flags.DEFINE_string("json", None, "Where to write all figures.")


def main(_: list[str]) -> None:
  """Measure and print."""
  given = flags.FLAGS
  words = given.methods
  chosen = [method for method in methods() if not words or any(word in method.name for word in words)]
  if not chosen:
    raise app.UsageError(f"--methods: none of {', '.join(method.name for method in methods())}")
  rows = compare(chosen, range(given.first_seed, given.first_seed + given.seeds), lambda text: print(text, flush=True))
  print("\n".join(["", *table(rows)]))
  if given.json:
    figures = {name: {metric: list(values) for metric, values in found.items()} for name, found in rows.items()}
    pathlib.Path(given.json).write_text(json.dumps(figures, indent=1), encoding="utf-8")


if __name__ == "__main__":
  define_flags()
  app.run(main)
