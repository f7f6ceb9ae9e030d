"""How far float32 drifts from float64 in long runs.

    python -m benchmarks.drift --steps=1000000 --students=4

The same students are taught in both precisions, from the same starts and with the same examples. For each learner and
teacher the table has at some steps, as means over the students: the distance to the target in float64; how far the
float32 student is from the float64 one (drift); and the distance in float32.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags, logging

import last_jax as last
from last_jax import data

CONSTRAINTS: dict[str, Callable[[], last.constraints.Constraint]] = {
  "simplex": last.constraints.simplex,
  "none": last.constraints.none,
}
CASES: list[tuple[str, str, str | None]] = [
  ("least_squares", "sgd", None),
  ("least_squares", "greedy", "none"),
  ("logistic", "sgd", None),
  ("logistic", "greedy", "simplex"),
  ("logistic", "greedy", "none"),
  ("softmax", "greedy", "none"),
]
HEADER = f"{'learner':16}{'teacher':18}{'step':>10}{'distance':>12}{'drift':>12}{'in float32':>12}"


def make_problem(name: str, rate: float) -> tuple[last.learners.Learner, np.ndarray, np.ndarray]:
  """Return a learner, a pool and a target near which the pool's own minimum lies, as NumPy arrays in float64."""
  dataset = data.gaussian(0, per_class=400)
  x = np.asarray(dataset.train.x, np.float64)
  draw = np.random.default_rng(0)
  if name == "least_squares":
    learner, y = last.learners.least_squares(4, learning_rate=rate, weight_decay=5e-5), x @ draw.normal(size=4)
  elif name == "logistic":
    learner = last.learners.logistic(4, learning_rate=rate, weight_decay=5e-5)
    y = np.asarray(dataset.train.y)
  else:
    learner = last.learners.softmax(4, 2, learning_rate=rate, weight_decay=5e-5)
    y = np.asarray(dataset.train.y)
  return learner, x, y


def teach(
  name: str, teacher: str, constraint: str | None, wide: bool, keys: jax.Array, steps: int, records: int, rate: float
) -> tuple[np.ndarray, ...]:
  """Return steps `[records]`, parameters `[students, records, P]` and distances `[students, records]`."""
  with jax.enable_x64(True):  # Keys, examples and starts are those of float64, rounded.
    learner, x, y = make_problem(name, rate)
    target = last.fit_target(learner, last.Pool(x, y))
    draw = np.random.default_rng(1)
    noise = jax.tree.map(lambda leaf: draw.normal(size=(len(keys), *leaf.shape)), target)
    starts = jax.tree.map(lambda leaf, add: np.float32(leaf[None] + 0.5 * add), target, noise)
    target = jax.tree.map(np.float32, target)
  with jax.enable_x64(wide):
    dtype = jnp.float64 if wide else jnp.float32
    pool = last.Pool(
      jnp.asarray(np.float32(x), dtype), y if name != "least_squares" else jnp.asarray(np.float32(y), dtype)
    )
    target, starts = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), (target, starts))
    method = last.teachers.sgd() if teacher == "sgd" else last.teachers.greedy(CONSTRAINTS[str(constraint)]())
    result = last.teach_many(
      keys, learner, method, pool, target=target, init=starts, steps=steps, record_every=steps // records,
      metrics="distance", probe=lambda params: jnp.concatenate([jnp.ravel(w) for w in jax.tree.leaves(params)]),
    )  # fmt: skip
    return tuple(np.asarray(part, np.float64) for part in (result.step[0], result.probe, result.distance))


STEPS = flags.DEFINE_integer("steps", 1_000_000, "number of iterations")
STUDENTS = flags.DEFINE_integer("students", 4, "number of students")
RECORDS = flags.DEFINE_integer("records", 100, "records of a run")
RATE = flags.DEFINE_float("rate", 1e-3, "learning rate")


def main(_: Any) -> None:
  """Print the table."""
  begin = time.time()
  logging.set_verbosity(logging.ERROR)
  keys = jax.random.split(jax.random.key(0), STUDENTS.value)
  print(HEADER)
  for name, teacher, constraint in CASES:
    wide = teach(name, teacher, constraint, True, keys, STEPS.value, RECORDS.value, RATE.value)
    narrow = teach(name, teacher, constraint, False, keys, STEPS.value, RECORDS.value, RATE.value)
    drift = np.linalg.norm(narrow[1] - wide[1], axis=-1).mean(0)
    for place in (RECORDS.value // 100, RECORDS.value // 10, RECORDS.value):
      row = [wide[2].mean(0)[place], drift[place], narrow[2].mean(0)[place]]
      title = f"{name:16}{teacher + (f' {constraint}' if constraint else ''):18}{int(wide[0][place]):>10}"
      print(title + "".join(f"{number:>12.3g}" for number in row), flush=True)
  print(f"{time.time() - begin:.0f} s")


if __name__ == "__main__":
  app.run(main)
