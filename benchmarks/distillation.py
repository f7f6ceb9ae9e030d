"""Labels that stay, on a few images of MNIST: test accuracy of fresh students, beside other labels of the same images.

    python -m benchmarks.distillation --mnist_folder=FOLDER --images=10,100,500 --draws=3 --json=FILE --plot=FILE.png
    python -m benchmarks.distillation --read=FILE,FILE --plot=FILE.png

Each draw has its own base images, as many of each digit, and its own validation images from the rest of the training
set. Labels are found for students of one network, which train by SGD with momentum; then fresh students, with other
starts, train on them for as long, and are tested on all 10,000 test images. Rows beside it: true labels, label
smoothing, and labels of a network that was trained on 20,000 images, all on the same base images and with the same
students, at the best of some multiples of that length for each. Transfer: half as many students of the other network
learn by Adam from the same labels, without anything being tuned. Intervals are 95 % (Student's t) over the students of
a draw. `RECIPES` holds the two kinds of labels, each with its students; 500 images have the second unless asked.
"""

import functools
import itertools
import json
import pathlib
import time
import types
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from flax import linen as nn

import last_jax as last
from benchmarks import distillation_report as report
from last_jax.data.mnist import stratified
from last_jax.distilling import train_students

_TRAINED_ON = 20000  # Images of the network whose labels are a row.


class Recipe(NamedTuple):
  """A kind of labels and the students that they are made for; flags of the same names override."""

  network: str
  width: int
  steps: int
  batch_size: int | None  # None: all base images in every step.
  learning_rate: float
  constraint: str
  searches: dict[int, tuple[int, float]]  # Updates, and Adam's rate for the labels, by number of base images.
  lengths: tuple[int, ...]  # Trainings of fresh students, relative to `steps`; free labels have the first only.
  transfer: tuple[int, ...]  # Steps of students of transfer, likewise.


# Found on draw 0 of each size. Probabilities start from the labels of the trained network, free labels from the truth.
RECIPES = {
  "free": Recipe("conv", 32, 30, None, 0.003, "one", {10: (1500, 0.05), 100: (2000, 0.1)}, (1, 10), (100, 1000)),
  "probabilities": Recipe("conv2", 16, 300, 25, 0.03, "simplex", {500: (40, 0.1)}, (3,), (1000,)),
}
# Free labels that sum to one: the loss of softmax has the same weight for all examples.
_ONE = last.constraints.Constraint("sum to one", project=lambda y, *_: y + (1 - jnp.sum(y)) / y.shape[0])
_SETTINGS = (
  "first_draw", "draws", "recipe", "network", "width", "loss", "constraint", "head", "steps", "batch_size",
  "learning_rate", "momentum", "adam_rate", "solved_students", "updates", "rate", "students", "validation",
  "validation_batch", "fresh", "others",
)  # fmt: skip
_CONSTRAINTS = {"simplex": last.constraints.simplex(), "one": _ONE, "none": last.constraints.none()}


class _Conv(nn.Module):
  """One convolution, 7 x 7 with stride 2, a mean over 2 x 2, a second convolution, 3 x 3, if asked, and a dense layer.

  Little work in few large products of matrices: windows of the images depend on no parameter, so that no gradient goes
  through them.
  """

  width: int
  second: int = 0  # Features of the second convolution.

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = jnp.pad(x.reshape(-1, 28, 28, 1), ((0, 0), (3, 3), (3, 3), (0, 0)))
    windows = [x[:, i : i + 27 : 2, j : j + 27 : 2] for i in range(7) for j in range(7)]
    x = nn.relu(nn.Dense(self.width, kernel_init=nn.initializers.he_normal())(jnp.concatenate(windows, -1)))
    x = x.reshape(-1, 7, 2, 7, 2, self.width).mean((2, 4))
    if self.second:
      x = jnp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
      windows = [x[:, i : i + 7, j : j + 7] for i in range(3) for j in range(3)]
      x = nn.relu(nn.Dense(self.second, kernel_init=nn.initializers.he_normal())(jnp.concatenate(windows, -1)))
    return nn.Dense(10)(x.reshape(x.shape[0], -1))


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
    x = nn.relu(nn.Dense(84)(x.reshape(x.shape[0], -1)))  # By itself: layers are named in the order they are made.
    return nn.Dense(10)(x)


def make_learner(network: str, width: int, loss: str, **optimizer: Any) -> last.learners.Learner:
  """Return a student that takes pixels `[m, 784]`."""
  if network != "mlp":
    module = _Cnn() if network == "cnn" else _Conv(width, 2 * width if network == "conv2" else 0)
    return last.learners.from_flax(module, jnp.zeros((1, 784)), loss=loss, **optimizer)
  return last.learners.mlp((784, width, 10), loss=loss, **optimizer)


def load(folder: str) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
  """Return images `[n, 784]` and digits for training and for testing; each image has mean 0 and mean square 1."""

  def scaled(images: np.ndarray) -> np.ndarray:
    pixels = images.reshape(len(images), -1) / 255.0
    pixels = pixels - pixels.mean(1, keepdims=True)
    return (pixels / np.sqrt(np.mean(pixels**2, 1, keepdims=True))).astype(np.float32)

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


def settings_for(images: int, given: Any) -> types.SimpleNamespace:
  """Return all settings for a number of base images: those of its recipe where no flag says otherwise."""
  name = given.recipe or ("free" if images <= 100 else "probabilities")
  recipe = RECIPES[name]
  updates, rate = recipe.searches[min(recipe.searches, key=lambda known: abs(known - images))]
  values = recipe._asdict() | {"updates": updates, "rate": rate}
  values |= {flag: getattr(given, flag) for flag in _SETTINGS if getattr(given, flag) is not None}
  return types.SimpleNamespace(**values | {"recipe": name})


def run_draw(
  seed: int, images: int, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], given: Any
) -> dict[str, Any]:
  """Return accuracies by row, `[students]` each, those of transfer, and seconds, of one draw of base images."""
  given = settings_for(images, given)
  index, labels, seconds = find_labels(seed, images, train, given)
  if not given.others:
    labels = {name: shown for name, shown in labels.items() if name in (report.SOLVED, report.SEARCHED)}
  found: dict[str, Any] = {"images": images, "draw": seed, "recipe": given.recipe, "network": given.network}
  for part in ("accuracy", "transfer"):
    found[part] = {}
    for name, shown in labels.items():
      found[part][name] = measure(part, name, seed, train[0][index], shown, test, given)
      print(f"{images} images, draw {seed}, {part}, {name}: {100 * found[part][name].mean():.1f}", flush=True)
  largest = {name: float(np.abs(shown).max()) for name, shown in labels.items()}
  return found | {"seconds": seconds, "largest": largest, "labels": labels}


def _make_student(given: Any) -> tuple[last.learners.Learner, Any]:
  """Return the learner that labels are made for, and its random starts."""
  learner = make_learner(
    given.network, given.width, given.loss,
    learning_rate=given.learning_rate, momentum=given.momentum or None, nesterov=given.momentum > 0,
  )  # fmt: skip
  return learner, functools.partial(_shrunk, learner, given.head)


def _keys_of(seed: int) -> jax.Array:
  """Return keys of the search, the fresh students, the trained network, and the students of transfer."""
  return jax.random.split(jax.random.key(seed), 4)


def find_labels(
  seed: int, images: int, train: tuple[np.ndarray, np.ndarray], given: Any
) -> tuple[np.ndarray, dict[str, np.ndarray], dict[str, float]]:
  """Return the places of the base images in the training set, all labels by row, and the seconds of searches."""
  x, y = train
  index = stratified(y, range(10), images // 10, seed)
  others = np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(len(y)), index))
  validation = last.Pool(x[others[: given.validation]], y[others[: given.validation]])
  rest = others[given.validation : given.validation + _TRAINED_ON]
  search_key, _, pretraining_key, _ = _keys_of(seed)
  learner, init_fn = _make_student(given)
  truth = np.eye(10, dtype=np.float32)[y[index]]
  soft = pretrained_labels(pretraining_key, given.network, given.width, (x[rest], y[rest]), x[index])
  labels, seconds = {report.TRUE: truth, report.SMOOTHED: 0.9 * truth + 0.01, report.PRETRAINED: soft}, {}
  settings: Any = {
    "steps": given.steps, "validation": validation, "init_fn": init_fn, "constraint": _CONSTRAINTS[given.constraint],
  }  # fmt: skip
  if given.solved_students:
    begin = time.perf_counter()
    answer, _ = last.distill_labels(
      search_key, learner, x[index], y[index], road="solved", students=given.solved_students, **settings
    )
    labels[report.SOLVED], seconds[report.SOLVED] = np.asarray(answer), time.perf_counter() - begin
  if given.updates:
    begin, state = time.perf_counter(), None
    settings |= {"parametrization": "softmax"} if given.constraint == "simplex" else {}
    first = jnp.asarray(soft if given.constraint == "simplex" else truth)
    for share, slower in ((3 / 4, 1), (1 / 4, 5)):  # Slower at the end: updates are noisy.
      answer, log = last.distill_labels(
        search_key, learner, x[index], y[index], batch_size=given.batch_size, students=given.students,
        updates=max(1, round(share * given.updates)), rate=given.rate / slower, state=state,
        validation_batch=given.validation_batch, labels=first if state is None else None, **settings,
      )  # fmt: skip
      state = log.state
    labels[report.SEARCHED], seconds[report.SEARCHED] = np.asarray(answer), time.perf_counter() - begin
  return index, labels, seconds


def measure(
  part: str, name: str, seed: int, x: np.ndarray, shown: np.ndarray, test: tuple[np.ndarray, np.ndarray], given: Any
) -> np.ndarray:
  """Return accuracies of fresh students after the best of some numbers of steps, `[students]`.

  Free labels are made for one number of steps, and tried with that only.
  """
  students: int = given.fresh
  settings: dict[str, Any] = {}
  if part == "accuracy":
    key, steps = _keys_of(seed)[1], [length * given.steps for length in given.lengths]
    learner, settings["init_fn"] = _make_student(given)
  else:
    key, steps, students = _keys_of(seed)[3], list(given.transfer), max(2, given.fresh // 2)
    learner = make_learner(
      report.transferred_to(given.network), given.width, given.loss, optimizer=optax.adam(given.adam_rate)
    )
  if name in (report.SOLVED, report.SEARCHED) and given.constraint != "simplex":
    steps = steps[:1]
  examples, labels, tried = jnp.asarray(x), jnp.asarray(shown), []
  settings |= {"students": students, "batch_size": given.batch_size}
  for count in steps:
    params = train_students(key, learner, examples, labels, steps=count, **settings)
    tried.append(accuracies_of(learner, params, test))
  return max(tried, key=np.mean)


def _shrunk(learner: last.learners.Learner, share: float, key: jax.Array) -> Any:
  """Return the learner's own random start with its last layer multiplied by `share`."""
  params = learner.init(key)
  name = sorted(params)[-1]
  return {**params, name: jax.tree.map(lambda leaf: share * leaf, params[name])}


def define_flags() -> None:
  """Define the command's flags; not on import, for those of other commands have the same names."""
  flags.DEFINE_string("mnist_folder", None, "The four IDX files.")
  flags.DEFINE_list("images", ["10"], "Numbers of base images, multiples of 10.")
  flags.DEFINE_integer("draws", 1, "Draws of base images.", 1)
  flags.DEFINE_integer("first_draw", 0, "Number of the first draw.", 0)
  flags.DEFINE_enum("recipe", None, list(RECIPES), "Labels and their students. Default: free up to 100 images.")
  flags.DEFINE_enum("network", None, ["conv", "conv2", "mlp", "cnn"], "1 or 2 convolutions, 1 hidden layer, or LeNet.")
  flags.DEFINE_integer("width", None, "Features of the first convolution, or units of the hidden layer.", 1)
  flags.DEFINE_enum("loss", "softmax_cross_entropy", ["softmax_cross_entropy", "squared_error"], "Of the students.")
  flags.DEFINE_enum("constraint", None, list(_CONSTRAINTS), "Labels: soft, of sum one, or any.")
  flags.DEFINE_float("head", 0.1, "Factor of the last layer of students' random starts.", 0.0)
  flags.DEFINE_integer("steps", None, "Steps of a student.", 1)
  flags.DEFINE_integer("batch_size", None, "Random base images in a step.", 1)
  flags.DEFINE_float("learning_rate", None, "Of the students' SGD.", 0.0)
  flags.DEFINE_float("momentum", 0.9, "Of the students' SGD, Nesterov's.", 0.0, 1.0)
  flags.DEFINE_float("adam_rate", 1e-3, "Of the students' Adam, in transfer.", 0.0)
  flags.DEFINE_integer("solved_students", 0, "Starts of the solved road; 0: it is left out.", 0)
  flags.DEFINE_integer("updates", None, "Of the labels through the loop; 0: it is left out.", 0)
  flags.DEFINE_float("rate", None, "Adam's rate for the labels.", 0.0)
  flags.DEFINE_integer("students", 1, "Students of an update.", 1)
  flags.DEFINE_integer("validation", 20000, "Validation images.", 1)
  flags.DEFINE_integer("validation_batch", 512, "Validation images of an update.", 1)
  flags.DEFINE_integer("fresh", 20, "Students that are tested.", 2)
  flags.DEFINE_boolean("others", True, "Whether to train students on other labels too.")
  flags.DEFINE_string("json", None, "Where to write all figures and labels.")
  flags.DEFINE_list("read", [], "Files of --json, to show what they hold in place of measuring.")
  flags.DEFINE_string("plot", None, "Where to write the picture, a PNG file.")


def main(_: list[str]) -> None:
  """Measure, or read what was measured, and print."""
  given = flags.FLAGS
  sizes = [int(size) for size in given.images]
  if any(size < 10 or size % 10 for size in sizes):
    raise app.UsageError("--images must be multiples of 10, as 10,100")
  if not given.read and not given.mnist_folder:
    raise app.UsageError("--mnist_folder is needed: the folder of the four IDX files")
  draws = report.read(given.read)
  if given.read:
    print("\n".join(report.table(draws)))
  else:
    train, test = load(given.mnist_folder)
    seeds = range(given.first_draw, given.first_draw + given.draws)
    for size, seed in itertools.product(sizes, seeds):
      draws.append(run_draw(seed, size, train, test, given))
      seconds, largest = draws[-1]["seconds"], draws[-1]["largest"]
      print(f"{size} images, draw {seed}: seconds {seconds}, largest {largest}", flush=True)
      print("\n".join([*report.table(draws), ""]), flush=True)
      if given.json:  # After each draw: what is measured stays if the next one is stopped.
        content = {
          "settings": {name: getattr(given, name) for name in _SETTINGS},
          "draws": jax.tree.map(lambda leaf: leaf.tolist() if isinstance(leaf, np.ndarray) else leaf, draws),
        }
        pathlib.Path(given.json).write_text(json.dumps(content), encoding="utf-8")
  if given.plot:
    report.draw_figure(given.plot, draws)


if __name__ == "__main__":
  define_flags()
  app.run(main)
