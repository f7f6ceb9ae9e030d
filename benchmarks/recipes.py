"""Which teaching helps a network: test accuracy at equal steps, against SGD on true labels, over many seeds.

    python -m benchmarks.recipes --data=digits --network=mlp --momentum=0 --momentum=0.9

Every seed has its own start and its own trained networks: one from the student's own start ("same"), whose parameters
are a target, and one from another start ("other"), whose outputs are. They serve every momentum. Differences are paired
by seed; intervals are 95 % (Student's t).
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from absl import app, flags
from flax import linen as nn
from jax.tree_util import Partial

import last_jax as last
from benchmarks import pools
from last_jax import constraints, targets, teachers
from last_jax.tools.statistics import mean_interval

_AT = (30, 100, 300)  # Steps at which accuracy is compared.
_PIECE = 10  # Steps in a call.
_EVALUATED = 200  # Examples whose outputs are a target.


class _Cnn(nn.Module):
  """Two convolutions and a dense layer."""

  widths: tuple[int, int]

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    for width in self.widths:
      x = nn.avg_pool(nn.relu(nn.Conv(width, (3, 3))(x)), (2, 2), (2, 2))
    return nn.Dense(10)(x.reshape(x.shape[0], -1))


@dataclasses.dataclass(frozen=True)
class Recipe:
  """A way of teaching: a teacher and its target, from the two trained networks and what is needed to apply them."""

  name: str
  make: Callable[[Any, Any, Callable[..., Any], jax.Array], tuple[last.Teacher, Any]]


def _toward_params(constraint: last.constraints.Constraint) -> Callable[..., Any]:
  return lambda same, other, apply, x: (teachers.greedy(constraint), same)


def _toward_outputs(constraint: last.constraints.Constraint, temperature: float) -> Callable[..., Any]:
  def make(same: Any, other: Any, apply: Callable[..., Any], x: jax.Array) -> tuple[last.Teacher, None]:
    toward = targets.outputs(x, apply(other, x), temperature=temperature)
    return teachers.greedy(constraint, toward), None

  return make


def _plain(teacher: last.Teacher) -> Callable[..., Any]:
  return lambda same, other, apply, x: (teacher, None)


def _distillation(same: Any, other: Any, apply: Callable[..., Any], x: jax.Array) -> tuple[last.Teacher, None]:
  return teachers.distillation(Partial(apply, other), 2.0), None


def _toward_other_params(same: Any, other: Any, apply: Callable[..., Any], x: jax.Array) -> tuple[last.Teacher, Any]:
  return teachers.greedy(constraints.simplex()), other


SGD = "SGD on true labels"
RECIPES = [
  Recipe(SGD, _plain(teachers.sgd())),
  Recipe("label smoothing (0.9)", _plain(teachers.label_smoothing(0.9))),
  Recipe("distillation (T = 2)", _distillation),
  Recipe("same start, free", _toward_params(constraints.none())),
  Recipe("same start, simplex", _toward_params(constraints.simplex())),
  Recipe("same start, simplex within 0.5", _toward_params(constraints.simplex(0.5))),
  Recipe("other start, its parameters, simplex", _toward_other_params),
  Recipe("other start, outputs, within 2 of the truth", _toward_outputs(constraints.magnitude(2.0), 3.0)),
  Recipe("other start, outputs, simplex", _toward_outputs(constraints.simplex(), 10.0)),
  Recipe("other start, outputs, simplex within 0.3", _toward_outputs(constraints.simplex(0.3), 3.0)),
]  # fmt: skip


def make_learner(
  network: str, x: jax.Array, rate: float, momentum: float | None, times: int = 1
) -> last.learners.Learner:
  """Return the student, or a network that is some times as wide."""
  settings: Any = {"learning_rate": rate, "momentum": momentum}
  if network == "cnn":
    module = _Cnn((16 * times, 32 * times))
    return last.learners.from_flax(module, x[:1], loss="softmax_cross_entropy", **settings)
  return last.learners.mlp((x.shape[1], 64 * times, 10), **settings)


def compare(
  network: str,
  pool: last.Pool,
  test: last.Pool,
  *,
  rate: float,
  momenta: Sequence[float],
  batch: int,
  seeds: int,
  fit: int,
  wider: int = 1,
) -> dict[float, dict[str, np.ndarray]]:
  """Return the test accuracy of each recipe, `[seeds, len(_AT)]`, for each momentum.

  With `wider` the network of another start has that many times the student's units: its parameters are then no target.
  """
  trainer, other_trainer = (make_learner(network, pool.x, 0.1, None, times) for times in (1, wider))
  recipes = [recipe for recipe in RECIPES if wider == 1 or recipe.make is not _toward_other_params]
  evaluated = pool.x[:_EVALUATED]

  def trained(trainer: last.learners.Learner, key: jax.Array, start: Any) -> Any:
    settings: Any = {"steps": fit, "batch_size": 32, "record_every": fit, "metrics": ()}
    return last.teach(key, trainer, teachers.sgd(), pool, init=start, **settings).params

  def taught(recipe: Recipe, momentum: float, key: jax.Array, start: Any, same: Any, other: Any) -> list[float]:
    # Momentum is data, also where it is zero, and pieces of one length are one program: each recipe compiles once.
    learner = make_learner(network, pool.x, rate * (1 - momentum), momentum)
    teacher, target = recipe.make(same, other, other_trainer.apply, evaluated)
    problem = last.Problem(learner, pool, target=target)
    state, accuracy = last.init(key, problem, teacher, start), []
    for step in range(_PIECE, _AT[-1] + 1, _PIECE):
      state, _ = last.run(state, problem, teacher, steps=_PIECE, batch_size=batch, record_every=_PIECE, metrics=())
      if step in _AT:
        accuracy.append(float(measure(learner, state.params, test)))
    return accuracy

  accuracies: dict[float, dict[str, list[Any]]] = {
    momentum: {recipe.name: [] for recipe in recipes} for momentum in momenta
  }
  for seed in range(seeds):
    keys = jax.random.split(jax.random.key(seed), 5)
    start, another = trainer.init(keys[0]), other_trainer.init(keys[1])
    same, other = trained(trainer, keys[2], start), trained(other_trainer, keys[3], another)
    for momentum in momenta:
      for recipe in recipes:
        accuracies[momentum][recipe.name].append(taught(recipe, momentum, keys[4], start, same, other))
  return jax.tree.map(np.array, accuracies, is_leaf=lambda each: isinstance(each, list))


@jax.jit
def measure(learner: last.learners.Learner, params: Any, test: last.Pool) -> jax.Array:
  """Return the accuracy on test examples, `[]`."""
  return learner.accuracy(params, test.x, learner.encode(test.x, test.y))


def table(accuracies: dict[str, np.ndarray]) -> list[str]:
  """Return the rows of a Markdown table: mean accuracy, and the difference from SGD with its interval."""
  rows = ["| recipe | " + " | ".join(f"{step} steps" for step in _AT) + " |", "|---" * (1 + len(_AT)) + "|"]
  for name, values in accuracies.items():
    cells = []
    for place in range(len(_AT)):
      gains = values[:, place] - accuracies[SGD][:, place]
      half = mean_interval(gains).half_width
      shown = f"{values[:, place].mean():.3f}"
      cells.append(shown if name == SGD else f"{shown} ({gains.mean():+.3f} ± {half:.3f})")
    rows.append(f"| {name} | " + " | ".join(cells) + " |")
  return rows


def define_flags() -> None:
  """Define the command's flags; not on import, for those of other commands have the same names."""
  flags.DEFINE_enum("data", "digits", ["digits", "mnist"], "scikit-learn's digits, or MNIST (5,000 images).")
  flags.DEFINE_enum("network", "mlp", ["mlp", "cnn"], "One hidden layer of 64, or two convolutions.")
  flags.DEFINE_multi_float("momentum", [0.0], "Of the student's SGD, heavy ball; may be repeated.", 0.0, 0.99)
  flags.DEFINE_float("learning_rate", 0.1, "Of the student's SGD, times 1 - momentum.", 0.0)
  flags.DEFINE_integer("batch_size", 8, "Examples in a step.", 1)
  flags.DEFINE_integer("seeds", 20, "Students.", 2)
  flags.DEFINE_integer("fit_steps", 3000, "Steps of SGD (batch 32) that the trained networks take.", 1)
  flags.DEFINE_integer(
    "wider", 1, "Units of the network of another start, times the student's: 4 teaches from a larger.", 1
  )
  flags.DEFINE_string("mnist_folder", None, "The four IDX files; needed for --data=mnist.")
  flags.DEFINE_string("json", None, "Where to write all figures.")


def main(_: list[str]) -> None:
  """Measure and print."""
  given = flags.FLAGS
  pool, test = pools.load(given.data, given.network, given.mnist_folder)
  settings: Any = {"rate": given.learning_rate, "batch": given.batch_size, "seeds": given.seeds, "fit": given.fit_steps}
  settings["wider"] = given.wider
  accuracies = compare(given.network, pool, test, momenta=given.momentum, **settings)
  for momentum, found in accuracies.items():
    print("\n".join([f"Momentum {momentum:g}", "", *table(found), ""]))
  if given.json:
    shown = {f"{momentum:g}": jax.tree.map(np.ndarray.tolist, found) for momentum, found in accuracies.items()}
    content = {"data": given.data, "network": given.network, "steps": _AT, **settings, "accuracy": shown}
    pathlib.Path(given.json).write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
  define_flags()
  app.run(main)
