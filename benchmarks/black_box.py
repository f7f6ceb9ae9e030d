"""Greedy teaching without w*, `targets.loss`: against SGD, paired by seed.

    python -m benchmarks.black_box --data=paper          the paper's black box: softmax 24 -> 2 on MNIST's 3 and 5
    python -m benchmarks.black_box --data=digits         64-64-10 on scikit-learn's digits
    python -m benchmarks.black_box --data=noisy --mnist_folder=...    MNIST with 60 % of its labels drawn at random,
                                                                      and 1,000 clean examples for validation

Intervals are 95 % (Student's t) over seeds. Times are of one step of one student, relative to SGD.
"""

import json
import pathlib
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from jax.tree_util import Partial

import last_jax as last
from benchmarks import pools
from last_jax import constraints, targets, teachers, training
from last_jax.tools.statistics import mean_interval

SGD = "SGD on the pool's labels"
NOISE = 0.6
CLEAN, MIXED = "SGD on the clean examples", "SGD on the clean and the noisy examples"
TUNED = "SGD on the noisy examples, in the last third on the clean ones"
DIGITS_AT, NOISY_AT = (30, 100, 300), (30, 100, 300)  # Steps at which accuracy is compared.
Teachers = dict[str, last.Teacher]


def interval(values: np.ndarray) -> tuple[float, float]:
  """Return the mean and half the width of its interval."""
  half = mean_interval(values).half_width
  return float(values.mean()), float(half)


def pick(found: Teachers, only: list[str] | None) -> Teachers:
  """Return the teachers that were asked for."""
  return {name: each for name, each in found.items() if name == SGD or not only or any(part in name for part in only)}


def seconds_per_step(teach: Callable[[jax.Array], Any], steps: int) -> float:
  """Return the time of a step of one student, the least of three runs; `teach` compiles on its first call."""
  times = []
  for seed in range(4):
    begin = time.perf_counter()
    jax.block_until_ready(teach(jax.random.key(seed)))
    times.append(time.perf_counter() - begin)
  return min(times[1:]) / steps


# --- The paper's setting: distances, whole and as their reachable part, loss and accuracy.


def paper_teachers(pool: last.Pool) -> Teachers:
  """Return greedy teachers on the whole pool, on minibatches of it, and toward the Newton point."""
  free, simplex = constraints.none(), constraints.simplex()
  return {
    SGD: teachers.sgd(),
    "pool, free": teachers.greedy(free, targets.loss(pool)),
    "pool, free, no damping": teachers.greedy(free, targets.loss(pool, damping=0.0)),
    "pool, simplex": teachers.greedy(simplex, targets.loss(pool)),
    "200 fresh, free": teachers.greedy(free, targets.loss(pool, batch_size=200)),
    "20 fresh, free": teachers.greedy(free, targets.loss(pool, batch_size=20)),
    "Newton point of the pool, free": teachers.greedy(free, targets.loss(pool, form="newton_point")),
    "Newton point, free, no damping": teachers.greedy(free, targets.loss(pool, damping=0.0, form="newton_point")),
  }


def paper(
  rate: float, seeds: range, only: list[str] | None, folder: str | None, *, students: int = 20, steps: int = 300
) -> dict[str, Any]:
  """Return for each teacher distance, reachable distance, excess loss `[seeds, students]`, accuracy, and time."""
  images = last.data.mnist((3, 5), folder=folder, train_per_digit=500)
  pool, test = images.train, images.test
  learner = last.learners.softmax(24, 2, learning_rate=rate, weight_decay=5e-5, bias=False)
  target = last.fit_target(learner, pool)
  least = learner.objective(target, pool.x, learner.encode(pool.x, pool.y))
  init_fn = training.near(target, 0.05)
  keys = jax.vmap(lambda seed: jax.random.split(jax.random.key(seed), 2 * students))(jnp.asarray(seeds))
  keys = keys.reshape(-1, 2)
  init = jax.vmap(init_fn)(keys[:, 0])

  @jax.jit
  @jax.vmap
  def reachable(params: Any) -> jax.Array:
    return optax.tree.norm(
      optax.tree.sub(optax.tree.sub(params, target), last.unreachable_part(learner, params, target, pool.x))
    )

  found: dict[str, Any] = {}
  settings: Any = {"target": target, "test": test, "steps": steps, "batch_size": 20, "record_every": steps}
  for name, teacher in pick(paper_teachers(pool), only).items():
    result: Any = last.teach_many(keys[:, 1], learner, teacher, pool, init=init, **settings)

    @jax.jit
    def alone(key: jax.Array, teacher: last.Teacher = teacher) -> Any:
      start = jax.tree.map(lambda leaf: leaf[0], init)
      few: Any = {"steps": steps, "batch_size": 20, "record_every": steps, "metrics": ()}
      return last.teach(key, learner, teacher, pool, init=start, **few).params

    values = {
      "distance": np.asarray(result.distance[:, -1], np.float64),
      "reachable": np.asarray(reachable(result.params), np.float64),
      "excess": np.asarray(result.objective[:, -1] - least, np.float64),
      "accuracy": np.asarray(result.accuracy[:, -1], np.float64),
    }
    print(name, {key: float(value.mean()) for key, value in values.items()}, flush=True)
    found[name] = {key: value.reshape(len(seeds), students) for key, value in values.items()}
    found[name]["seconds"] = seconds_per_step(alone, steps)
  return found


def paper_table(found: dict[str, Any]) -> list[str]:
  """Return the rows of a Markdown table: SGD over teacher, so that more is better; accuracy in points."""
  rows = ["| teacher | distance | reachable | excess loss | accuracy (points) | time |", "|---" * 6 + "|"]
  sgd = found[SGD]
  for name, each in found.items():
    if name == SGD:
      continue
    if not np.isfinite(each["distance"]).all():
      rows.append(f"| {name} | diverges | | | | {each['seconds'] / sgd['seconds']:.1f} |")
      continue
    cells = []
    for key in ("distance", "reachable", "excess"):
      # The mean of the students first: of the excess loss, one may be anything near zero.
      center, half = interval(np.log(sgd[key].mean(1) / np.maximum(each[key].mean(1), 1e-9)))
      cells.append(f"{np.exp(center):.3g} [{np.exp(center - half):.3g}, {np.exp(center + half):.3g}]")
    center, half = interval(100 * (each["accuracy"] - sgd["accuracy"]).mean(1))
    cells += [f"{center:+.2f} ± {half:.2f}", f"{each['seconds'] / sgd['seconds']:.1f}"]
    rows.append(f"| {name} | " + " | ".join(cells) + " |")
  return rows


# --- Networks: accuracy at equal steps.


def digits_teachers(pool: last.Pool, logits: Callable[..., Any]) -> Teachers:
  """Return greedy teachers whose validation examples are fresh examples of the pool itself."""
  few = {size: targets.loss(pool, batch_size=size) for size in (20, 50, 200)}
  return {
    SGD: teachers.sgd(),
    "distillation (T = 2)": teachers.distillation(logits, 2.0),
    "200 fresh, free": teachers.greedy(constraints.none(), few[200]),
    "200 fresh, within 2 of the truth": teachers.greedy(constraints.magnitude(2.0), few[200]),
    "200 fresh, simplex": teachers.greedy(constraints.simplex(), few[200]),
    "200 fresh, simplex within 0.5": teachers.greedy(constraints.simplex(0.5), few[200]),
    "50 fresh, free": teachers.greedy(constraints.none(), few[50]),
    "20 fresh, free": teachers.greedy(constraints.none(), few[20]),
    "200 fresh, free, no damping": teachers.greedy(constraints.none(), targets.loss(pool, batch_size=200, damping=0.0)),
    "200 fixed, free": teachers.greedy(constraints.none(), targets.loss(last.Pool(pool.x[:200], pool.y[:200]))),
  }


def in_turn(labels: last.Teacher, is_clean: Callable[[jax.Array], Any], noisy: int, count: int) -> last.Teacher:
  """Show some of `noisy` examples with a teacher's labels or, in other steps, some of the others with their own.

  Args:
    labels: labels examples of its own proposal.
    is_clean: whether a step shows clean examples.
    noisy: number of the pool's first examples, which are noisy.
    count: number of all.
  """

  def step(labels: last.Teacher, teacher_state: Any, view: Any, proposal: jax.Array) -> Any:
    own = is_clean(view.step)
    low, high = jnp.where(own, noisy, 0), jnp.where(own, count, noisy)
    index = jax.random.randint(view.key, proposal.shape, low, high)
    lesson, _, _ = labels.step(None, view, index)
    return last.Lesson(index, jnp.where(own, view.truth[index], lesson.label)), teacher_state, None

  return last.Teacher(labels.name, step=Partial(step, labels), prepare=labels.prepare)


def mixed_teachers(clean: last.Pool, noisy: int) -> Teachers:
  """Return teachers for a pool of noisy examples followed by clean ones."""
  count, sgd = noisy + len(clean), teachers.sgd()
  toward, from_step = targets.loss(clean, batch_size=200, damping=1.0), 2 * NOISY_AT[-1] // 3
  return {
    MIXED: sgd,
    TUNED: in_turn(sgd, lambda step: step >= from_step, noisy, count),
    "200 fresh, free, damping 1, in turn with clean examples": in_turn(
      teachers.greedy(constraints.none(), toward), lambda step: step % 2 == 0, noisy, count
    ),
  }


def noisy_teachers(clean: last.Pool) -> Teachers:
  """Return greedy teachers that show noisy examples, and validate on the clean ones."""
  free, simplex = constraints.none(), constraints.simplex

  def toward(damping: float, size: int | None = 200) -> Any:
    return targets.loss(clean, batch_size=size, damping=damping)

  return {
    SGD: teachers.sgd(),
    "200 fresh, free, damping 1": teachers.greedy(free, toward(1.0)),
    "all, free, damping 1": teachers.greedy(free, toward(1.0, None)),
    "all, free, damping 10": teachers.greedy(free, toward(10.0, None)),
    "200 fresh, simplex, damping 1": teachers.greedy(simplex(), toward(1.0)),
    "200 fresh, simplex within 0.7, damping 0.1": teachers.greedy(simplex(0.7), toward(0.1)),
  }


def taught(
  learner: last.learners.Learner, found: Teachers, pool: last.Pool, test: last.Pool, seeds: range, at: tuple[int, ...],
  batch: int,
) -> dict[str, Any]:  # fmt: skip
  """Return the test accuracy of each teacher, `[seeds, len(at)]`, and the time of its step."""
  keys = jax.vmap(lambda seed: jax.random.split(jax.random.key(seed)))(jnp.asarray(seeds))
  init, every = jax.vmap(learner.init)(keys[:, 0]), int(np.gcd.reduce(at))
  settings: Any = {"steps": at[-1], "batch_size": batch}
  results: dict[str, Any] = {}
  for name, teacher in found.items():
    run = last.teach_many(
      keys[:, 1], learner, teacher, pool, init=init, test=test, record_every=every, metrics=("accuracy",), **settings
    )

    @jax.jit
    def alone(key: jax.Array, teacher: last.Teacher = teacher) -> Any:
      start = jax.tree.map(lambda leaf: leaf[0], init)
      few: Any = {"steps": at[0], "batch_size": batch, "record_every": at[0], "metrics": ()}
      return last.teach(key, learner, teacher, pool, init=start, **few).params

    accuracy: Any = run.accuracy
    results[name] = {"accuracy": np.asarray(accuracy)[:, np.array(at) // every]}
    results[name]["seconds"] = seconds_per_step(alone, at[0])
    print(name, results[name]["accuracy"].mean(0).round(3), flush=True)
  return results


def digits(rate: float, seeds: range, only: list[str] | None) -> dict[str, Any]:
  """Compare on scikit-learn's digits, batch 8; distillation is from one network of another start."""
  pool, test = pools.load("digits", "mlp")
  learner = last.learners.mlp((64, 64, 10), learning_rate=rate)
  trainer = last.learners.mlp((64, 64, 10), learning_rate=0.1)
  settings: Any = {"steps": 3000, "batch_size": 32, "record_every": 3000, "metrics": ()}
  trained = last.teach(jax.random.key(10**6), trainer, teachers.sgd(), pool, **settings).params
  found = pick(digits_teachers(pool, Partial(learner.apply, trained)), only)
  return taught(learner, found, pool, test, seeds, DIGITS_AT, 8)


def noisy(rate: float, seeds: range, only: list[str] | None, folder: str | None, batch: int = 8) -> dict[str, Any]:
  """Compare on 4,000 images of MNIST with labels of which 60 % are drawn at random, and 1,000 with their own."""
  images, test = pools.load("mnist", "mlp", folder)
  random = np.random.default_rng(1)
  x, y = np.asarray(images.x), np.asarray(images.y)
  mixed = np.where(random.uniform(size=4000) < NOISE, random.integers(0, 10, 4000), y[:4000])
  pool, clean = last.Pool(x[:4000], mixed.astype(np.int32)), last.Pool(x[4000:], y[4000:])
  learner = last.learners.mlp((784, 64, 10), learning_rate=rate)
  both = last.Pool(x, np.concatenate([pool.y, clean.y]))
  results = taught(learner, {CLEAN: teachers.sgd()}, clean, test, seeds, NOISY_AT, batch)
  results |= taught(learner, pick(noisy_teachers(clean), only), pool, test, seeds, NOISY_AT, batch)
  return results | taught(learner, pick(mixed_teachers(clean, len(pool)), only), both, test, seeds, NOISY_AT, batch)


def table(found: dict[str, Any], at: tuple[int, ...], against: str = SGD) -> list[str]:
  """Return the rows of a Markdown table: mean accuracy, and the difference from another teacher with its interval."""
  rows = ["| teacher | " + " | ".join(f"{step} steps" for step in at) + " | time |", "|---" * (2 + len(at)) + "|"]
  base = found[against]
  for name, each in found.items():
    cells = []
    for place in range(len(at)):
      center, half = interval(each["accuracy"][:, place] - base["accuracy"][:, place])
      shown = f"{each['accuracy'][:, place].mean():.3f}"
      cells.append(shown if name == against else f"{shown} ({center:+.3f} ± {half:.3f})")
    rows.append(f"| {name} | " + " | ".join([*cells, f"{each['seconds'] / found[SGD]['seconds']:.1f}"]) + " |")
  return rows


def define_flags() -> None:
  """Define the command's flags; not on import, for those of other commands have the same names."""
  flags.DEFINE_enum("data", "digits", ["paper", "digits", "noisy"], "Which comparison.")
  flags.DEFINE_float(
    "learning_rate", None, "Of the student; by default 0.5 for digits, 0.1 for noisy, 1e-3 for paper.", 0.0
  )
  flags.DEFINE_integer("seeds", 10, "Number of seeds.", 2)
  flags.DEFINE_integer("batch_size", 8, "Examples in a step, with --data=noisy.", 1)
  flags.DEFINE_integer("students", 20, "Of each seed, in the paper's setting.", 1)
  flags.DEFINE_integer("first_seed", 0, "The first of them.", 0)
  flags.DEFINE_multi_string("only", None, "Part of the names of teachers to run, besides SGD; may be repeated.")
  flags.DEFINE_string("mnist_folder", None, "The four IDX files; needed for --data=noisy.")
  flags.DEFINE_string("json", None, "Where to write all figures.")


def main(_: list[str]) -> None:
  """Measure and print."""
  chosen = flags.FLAGS
  seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
  if chosen.data == "paper":
    settings = (chosen.learning_rate or 1e-3, seeds, chosen.only, chosen.mnist_folder)
    found = paper(*settings, students=chosen.students)
    print("\n".join(paper_table(found)))
  elif chosen.data == "digits":
    found = digits(chosen.learning_rate or 0.5, seeds, chosen.only)
    print("\n".join(table(found, DIGITS_AT)))
  else:
    found = noisy(chosen.learning_rate or 0.1, seeds, chosen.only, chosen.mnist_folder, chosen.batch_size)
    for against in (SGD, CLEAN):
      print("\n".join(table(found, NOISY_AT, against)))
  if chosen.json:
    content = jax.tree.map(lambda leaf: leaf.tolist() if isinstance(leaf, np.ndarray) else leaf, found)
    pathlib.Path(chosen.json).write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
  define_flags()
  app.run(main)
