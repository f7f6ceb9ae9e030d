"""Labels that stay, on a few images of MNIST: test accuracy of fresh students, beside other labels of the same images.

    python -m benchmarks.distillation --mnist_folder=FOLDER --images=10

Each draw has its own base images, as many of each digit, and its own validation images from the rest of the training
set. Labels are found for students of one network, which train by SGD on all base images in every step; then fresh
students, with other starts, train on them for as long, and are tested on all 10,000 test images. Rows beside it: true
labels, label smoothing, and labels of a network that was trained on 20,000 images, all on the same base images and with
the same students, at the best of `_LENGTHS` times as many steps for each. Transfer: half as many students of the other
network learn by Adam from the same labels, without anything being tuned. Intervals are 95 % (Student's t): over draws
or, of a single one, over students.
"""

import functools
import json
import pathlib
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from flax import linen as nn

import last_jax as last
from last_jax.data.mnist import stratified
from last_jax.distilling import train_students
from last_jax.tools.statistics import mean_interval

_LENGTHS = (1, 10)  # Of the other rows' trainings, relative to that of the distilled labels.
_TRAINED_ON = 20000  # Images of the network whose labels are a row.
_TRANSFER_STEPS = 100
_SETTINGS = (
  "images", "draws", "network", "width", "loss", "constraint", "head", "steps", "learning_rate", "adam_rate",
  "solved_students", "updates", "rate", "students", "validation", "validation_batch", "fresh",
)  # fmt: skip
# Free labels that sum to one: the loss of softmax has the same weight for all examples.
_ONE = last.constraints.Constraint("sum to one", project=lambda y, *_: y + (1 - jnp.sum(y)) / y.shape[0])
_CONSTRAINTS = {"simplex": last.constraints.simplex(), "one": _ONE, "none": last.constraints.none()}
TRUE, SMOOTHED, PRETRAINED = "true labels", "label smoothing (0.9)", "labels of a trained network (T = 2)"
SOLVED, SEARCHED = "distilled, solved", "distilled, through the loop"


class _Cnn(nn.Module):
  """LeNet's convolutions, 5 x 5 with 6 and 16 features, and two dense layers.

  Windows are gathered before a dense layer: gradients of many steps of many students at once would otherwise be grouped
  convolutions, which are slow on a CPU.
  """

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = x.reshape(-1, 28, 28, 1)
    for width in (6, 16):
      size = x.shape[1] - 4
      windows = [x[:, i : i + size, j : j + size] for i in range(5) for j in range(5)]
      x = nn.avg_pool(nn.relu(nn.Dense(width)(jnp.concatenate(windows, -1))), (2, 2), (2, 2))
    return nn.Dense(10)(nn.relu(nn.Dense(84)(x.reshape(x.shape[0], -1))))


def make_learner(network: str, width: int, loss: str, **optimizer: Any) -> last.learners.Learner:
  """Return a student that takes pixels `[m, 784]`."""
  if network == "cnn":
    return last.learners.from_flax(_Cnn(), jnp.zeros((1, 784)), loss=loss, **optimizer)
  return last.learners.mlp((784, width, 10), loss=loss, **optimizer)


def load(folder: str) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
  """Return images `[n, 784]` and digits for training and for testing; each image has mean 0 and mean square 0.09."""

  def scaled(images: np.ndarray) -> np.ndarray:
    pixels = images.reshape(len(images), -1) / 255.0
    pixels = pixels - pixels.mean(1, keepdims=True)
    return (0.3 * pixels / np.sqrt(np.mean(pixels**2, 1, keepdims=True))).astype(np.float32)

  train, test = last.data.mnist_images(folder=folder)
  return tuple((scaled(each.images), each.digits.astype(np.int32)) for each in (train, test))  # type: ignore


@jax.jit
def _accuracies(learner: last.learners.Learner, params: Any, x: jax.Array, labels: jax.Array) -> jax.Array:
  return jax.lax.map(lambda w: learner.accuracy(w, x, labels), params)


def accuracies_of(learner: last.learners.Learner, params: Any, test: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
  """Return the accuracy of each student, `[students]`."""
  return np.asarray(_accuracies(learner, params, jnp.asarray(test[0]), jax.nn.one_hot(test[1], 10)))


def pretrained_labels(
  key: jax.Array, network: str, width: int, train: tuple[np.ndarray, np.ndarray], x: np.ndarray
) -> np.ndarray:
  """Return the soft labels, at temperature 2, of a network that was trained on other images."""
  learner = make_learner(network, width, "softmax_cross_entropy", optimizer=optax.adam(1e-3))
  settings: Any = {"steps": 2000, "batch_size": 64, "record_every": 2000, "metrics": ()}
  params = last.teach(key, learner, last.teachers.sgd(), last.Pool(*train), **settings).params
  return np.asarray(jax.nn.softmax(learner.apply(params, jnp.asarray(x)) / 2.0))


def run_draw(
  seed: int, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], given: Any
) -> dict[str, Any]:
  """Return accuracies by row, `[students]` each, those of transfer, and seconds, of one draw of base images."""
  x, y = train
  index = stratified(y, range(10), given.images // 10, seed)
  others = np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(len(y)), index))
  validation = last.Pool(x[others[: given.validation]], y[others[: given.validation]])
  keys = jax.random.split(jax.random.key(seed), 4)
  learner = make_learner(given.network, given.width, given.loss, learning_rate=given.learning_rate)
  truth = np.eye(10, dtype=np.float32)[y[index]]
  init_fn = functools.partial(_shrunk, learner, given.head)
  settings: Any = {"steps": given.steps, "validation": validation, "init_fn": init_fn}
  labels, seconds = {TRUE: truth, SMOOTHED: 0.9 * truth + 0.01}, {}
  rest = others[given.validation : given.validation + _TRAINED_ON]
  labels[PRETRAINED] = pretrained_labels(keys[2], given.network, given.width, (x[rest], y[rest]), x[index])
  settings["constraint"] = _CONSTRAINTS[given.constraint]
  if given.solved_students:
    begin = time.perf_counter()
    answer, _ = last.distill_labels(
      keys[0], learner, x[index], y[index], road="solved", students=given.solved_students, **settings
    )
    labels[SOLVED], seconds[SOLVED] = np.asarray(answer), time.perf_counter() - begin
  if given.updates:
    begin, state = time.perf_counter(), None
    softmax: Any = {"parametrization": "softmax"} if given.constraint == "simplex" else {}
    for share, rate in ((2 / 3, given.rate), (1 / 3, given.rate / 5)):  # Slower at the end: updates are noisy.
      answer, log = last.distill_labels(
        keys[0], learner, x[index], y[index], students=given.students, updates=max(1, round(share * given.updates)),
        rate=rate, validation_batch=given.validation_batch, state=state, **softmax, **settings,
      )  # fmt: skip
      state = log.state
    labels[SEARCHED], seconds[SEARCHED] = np.asarray(answer), time.perf_counter() - begin

  other = make_learner(
    "mlp" if given.network == "cnn" else "cnn", given.width, given.loss, optimizer=optax.adam(given.adam_rate)
  )

  def by_sgd(name: str, shown: jax.Array) -> np.ndarray:
    tried = []
    for length in (1,) if name in (SOLVED, SEARCHED) else _LENGTHS:
      training: Any = {"steps": length * given.steps, "students": given.fresh, "init_fn": init_fn}
      tried.append(accuracies_of(learner, train_students(keys[1], learner, x[index], shown, **training), test))
    return max(tried, key=np.mean)

  def by_adam(name: str, shown: jax.Array) -> np.ndarray:
    training: Any = {"steps": _TRANSFER_STEPS, "students": max(2, given.fresh // 2)}
    return accuracies_of(other, train_students(keys[3], other, x[index], shown, **training), test)

  found: dict[str, Any] = {"accuracy": {}, "transfer": {}}
  for part, measure in (("accuracy", by_sgd), ("transfer", by_adam)):
    for name, shown in labels.items():
      found[part][name] = measure(name, jnp.asarray(shown))
      print(f"draw {seed}, {part}, {name}: {100 * found[part][name].mean():.1f}", flush=True)
  largest = {name: float(np.abs(shown).max()) for name, shown in labels.items()}
  return found | {"seconds": seconds, "largest": largest, "labels": labels}


def _shrunk(learner: last.learners.Learner, share: float, key: jax.Array) -> Any:
  """Return the learner's own random start with its last layer multiplied by `share`."""
  params = learner.init(key)
  name = sorted(params)[-1]
  return {**params, name: jax.tree.map(lambda leaf: share * leaf, params[name])}


def table(draws: list[dict[str, Any]], network: str) -> list[str]:
  """Return the rows of a Markdown table: percent correct, with intervals."""
  other = "mlp" if network == "cnn" else "cnn"
  rows = [f"| labels | {network}, SGD | {other}, Adam |", "|---|---|---|"]
  for name in draws[0]["accuracy"]:
    cells = [_cell([draw[part][name] for draw in draws]) for part in ("accuracy", "transfer")]
    rows.append(f"| {name} | {cells[0]} | {cells[1]} |")
  return rows


def _cell(values: list[np.ndarray]) -> str:
  """Return mean and interval of accuracies `[students]` of some draws, in percent."""
  sample = np.array([each.mean() for each in values]) if len(values) > 1 else values[0]
  found = mean_interval(100 * sample)
  return f"{found.mean:.1f} ± {found.half_width:.1f}"


def define_flags() -> None:
  """Define the command's flags; not on import, for those of other commands have the same names."""
  flags.DEFINE_string("mnist_folder", None, "The four IDX files.", required=True)
  flags.DEFINE_integer("images", 10, "Base images, a multiple of 10.", 10)
  flags.DEFINE_integer("draws", 1, "Draws of base images.", 1)
  flags.DEFINE_enum("network", "mlp", ["mlp", "cnn"], "One hidden layer, or LeNet's convolutions.")
  flags.DEFINE_integer("width", 512, "Of the hidden layer of the mlp.", 1)
  flags.DEFINE_enum("loss", "softmax_cross_entropy", ["softmax_cross_entropy", "squared_error"], "Of the students.")
  flags.DEFINE_enum("constraint", "none", list(_CONSTRAINTS), "Labels: soft, of sum one, or any.")
  flags.DEFINE_float("head", 0.1, "Factor of the last layer of students' random starts.", 0.0)
  flags.DEFINE_integer("steps", 30, "Steps of a student.", 1)
  flags.DEFINE_float("learning_rate", 0.1, "Of the students' SGD.", 0.0)
  flags.DEFINE_float("adam_rate", 1e-3, "Of the students' Adam, in transfer.", 0.0)
  flags.DEFINE_integer("solved_students", 0, "Starts of the solved road; 0: it is left out.", 0)
  flags.DEFINE_integer("updates", 300, "Of the labels through the loop; 0: it is left out.", 0)
  flags.DEFINE_float("rate", 0.02, "Adam's rate for the labels.", 0.0)
  flags.DEFINE_integer("students", 4, "Students of an update.", 1)
  flags.DEFINE_integer("validation", 10000, "Validation images.", 1)
  flags.DEFINE_integer("validation_batch", 256, "Validation images of an update.", 1)
  flags.DEFINE_integer("fresh", 20, "Students that are tested.", 2)
  flags.DEFINE_string("json", None, "Where to write all figures and labels.")


def main(_: list[str]) -> None:
  """Measure and print."""
  given = flags.FLAGS
  train, test = load(given.mnist_folder)
  draws = []
  for seed in range(given.draws):
    draws.append(run_draw(seed, train, test, given))
    print(f"draw {seed}: seconds {draws[-1]['seconds']}, largest {draws[-1]['largest']}", flush=True)
    print("\n".join(["", *table(draws, given.network), ""]), flush=True)
    if given.json:  # After each draw: what is measured stays if the next one is stopped.
      content = {
        "settings": {name: getattr(given, name) for name in _SETTINGS},
        "draws": jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), draws),
      }
      pathlib.Path(given.json).write_text(json.dumps(content), encoding="utf-8")


if __name__ == "__main__":
  define_flags()
  app.run(main)
