"""Labels that stay, on a few images of MNIST: test accuracy of fresh students, beside other labels of the same images.

    python -m benchmarks.distillation --mnist_folder=FOLDER --images=10,100,500 --draws=3 --json=FILE --plot=FILE.png
    python -m benchmarks.distillation --read=FILE,FILE --plot=FILE.png

Each draw has its own base images, as many of each digit, and its own validation images from the rest of the training
set. Labels are found for students of one network, which train by SGD with momentum on all base images in every step;
then fresh students, with other starts, train on them for as long, and are tested on all 10,000 test images. Rows beside
it: true labels, label smoothing, and labels of a network that was trained on 20,000 images, all on the same base images
and with the same students, at the best of `_LENGTHS` times as many steps for each. Transfer: half as many students of
the other network learn by Adam from the same labels, without anything being tuned. Intervals are 95 % (Student's t)
over the students of a draw.
"""

import functools
import itertools
import json
import pathlib
import time
from collections.abc import Iterable
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
  "first_draw", "draws", "network", "width", "loss", "constraint", "head", "steps", "learning_rate", "momentum",
  "adam_rate", "start", "solved_students", "updates", "rate", "students", "validation", "validation_batch", "fresh",
)  # fmt: skip
# Updates, and Adam's rate for the labels, by number of images: found on draw 0 of 10, 100 and 500 images.
_SEARCHES = {10: (1500, 0.05), 100: (2000, 0.1), 500: (600, 0.05)}
# Free labels that sum to one: the loss of softmax has the same weight for all examples.
_ONE = last.constraints.Constraint("sum to one", project=lambda y, *_: y + (1 - jnp.sum(y)) / y.shape[0])
_CONSTRAINTS = {"simplex": last.constraints.simplex(), "one": _ONE, "none": last.constraints.none()}
TRUE, SMOOTHED, PRETRAINED = "true labels", "label smoothing (0.9)", "labels of a trained network (T = 2)"
# Test accuracy in percent, mean and deviation over students, by number of images, as published.
_PUBLISHED = {10: (60.9, 3.2), 100: (87.3, 0.7), 500: (93.3, 0.3)}
SOLVED, SEARCHED = "distilled, solved", "distilled, through the loop"
ROWS = (TRUE, SMOOTHED, PRETRAINED, SOLVED, SEARCHED)


class _Conv(nn.Module):
  """One convolution, 7 x 7 with stride 2, a mean over 2 x 2, and a dense layer.

  Little work in few large products of matrices: windows of the images depend on no parameter, so that no gradient goes
  through them.
  """

  width: int

  @nn.compact
  def __call__(self, x: jax.Array) -> jax.Array:
    x = jnp.pad(x.reshape(-1, 28, 28, 1), ((0, 0), (3, 3), (3, 3), (0, 0)))
    windows = [x[:, i : i + 27 : 2, j : j + 27 : 2] for i in range(7) for j in range(7)]
    x = nn.relu(nn.Dense(self.width, kernel_init=nn.initializers.he_normal())(jnp.concatenate(windows, -1)))
    return nn.Dense(10)(x.reshape(-1, 7, 2, 7, 2, self.width).mean((2, 4)).reshape(x.shape[0], -1))


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
    module = _Cnn() if network == "cnn" else _Conv(width)
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


def run_draw(
  seed: int, images: int, train: tuple[np.ndarray, np.ndarray], test: tuple[np.ndarray, np.ndarray], given: Any
) -> dict[str, Any]:
  """Return accuracies by row, `[students]` each, those of transfer, and seconds, of one draw of base images."""
  x, y = train
  updates, rate = _SEARCHES[min(_SEARCHES, key=lambda known: abs(known - images))]
  updates, rate = updates if given.updates is None else given.updates, given.rate or rate
  index = stratified(y, range(10), images // 10, seed)
  others = np.random.default_rng(seed).permutation(np.setdiff1d(np.arange(len(y)), index))
  validation = last.Pool(x[others[: given.validation]], y[others[: given.validation]])
  keys = jax.random.split(jax.random.key(seed), 4)
  learner = make_learner(
    given.network, given.width, given.loss,
    learning_rate=given.learning_rate, momentum=given.momentum or None, nesterov=given.momentum > 0,
  )  # fmt: skip
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
  if updates:
    begin, state = time.perf_counter(), None
    first = labels[PRETRAINED] if given.start == "trained" else None
    softmax: Any = {"parametrization": "softmax"} if given.constraint == "simplex" else {}
    for share, slower in ((3 / 4, 1), (1 / 4, 5)):  # Slower at the end: updates are noisy.
      answer, log = last.distill_labels(
        keys[0], learner, x[index], y[index], students=given.students, updates=max(1, round(share * updates)),
        rate=rate / slower, validation_batch=given.validation_batch, state=state,
        labels=first if state is None else None, **softmax, **settings,
      )  # fmt: skip
      state = log.state
    labels[SEARCHED], seconds[SEARCHED] = np.asarray(answer), time.perf_counter() - begin

  other = make_learner(_other(given.network), given.width, given.loss, optimizer=optax.adam(given.adam_rate))

  def best(name: str, key: jax.Array, student: last.learners.Learner, shown: jax.Array, **training: Any) -> np.ndarray:
    """Return accuracies after the given steps or, of labels that were not made for them, after the best of some."""
    steps, tried = training.pop("steps"), []
    for length in (1,) if name in (SOLVED, SEARCHED) else _LENGTHS:
      params = train_students(key, student, x[index], shown, steps=length * steps, **training)
      tried.append(accuracies_of(student, params, test))
    return max(tried, key=np.mean)

  def by_sgd(name: str, shown: jax.Array) -> np.ndarray:
    return best(name, keys[1], learner, shown, steps=given.steps, students=given.fresh, init_fn=init_fn)

  def by_adam(name: str, shown: jax.Array) -> np.ndarray:
    return best(name, keys[3], other, shown, steps=_TRANSFER_STEPS, students=max(2, given.fresh // 2))

  if not given.others:
    labels = {name: shown for name, shown in labels.items() if name in (SOLVED, SEARCHED)}
  found: dict[str, Any] = {"accuracy": {}, "transfer": {}}
  for part, measure in (("accuracy", by_sgd), ("transfer", by_adam)):
    for name, shown in labels.items():
      found[part][name] = measure(name, jnp.asarray(shown))
      print(f"{images} images, draw {seed}, {part}, {name}: {100 * found[part][name].mean():.1f}", flush=True)
  largest = {name: float(np.abs(shown).max()) for name, shown in labels.items()}
  return found | {"seconds": seconds, "largest": largest, "labels": labels}


def _shrunk(learner: last.learners.Learner, share: float, key: jax.Array) -> Any:
  """Return the learner's own random start with its last layer multiplied by `share`."""
  params = learner.init(key)
  name = sorted(params)[-1]
  return {**params, name: jax.tree.map(lambda leaf: share * leaf, params[name])}


def _other(network: str) -> str:
  return "mlp" if network == "cnn" else "cnn"


def _names(draws: dict[int, list[dict[str, Any]]]) -> list[str]:
  """Return the rows that were measured, in the order of `ROWS`."""
  measured = next(iter(draws.values()))[0]["accuracy"]
  return [name for name in ROWS if name in measured]


def table(draws: dict[int, list[dict[str, Any]]], network: str) -> list[str]:
  """Return the rows of a Markdown table: percent correct of each draw, with intervals, by number of images."""
  students = {"accuracy": f"{network}, SGD", "transfer": f"{_other(network)}, Adam"}
  head = [f"{images} images, {student}" for student in students.values() for images in draws]
  rows = [f"| labels | {' | '.join(head)} |", "|---" * (1 + len(head)) + "|"]
  for name in _names(draws):
    cells = [
      ", ".join(
        f"{found.mean:.1f} ± {found.half_width:.1f}" for found in (_interval(draw, part, name) for draw in several)
      )
      for part in students
      for several in draws.values()
    ]
    rows.append(f"| {name} | {' | '.join(cells)} |")
  return rows


def _interval(draw: dict[str, Any], part: str, name: str) -> Any:
  """Return mean and interval over the students of a draw, in percent."""
  return mean_interval(100 * np.asarray(draw[part][name]))


def draw_figure(path: str, draws: dict[int, list[dict[str, Any]]], network: str) -> None:
  """Write a PNG file: accuracy by number of images, a point with its interval for each draw, a line through means."""
  from matplotlib.figure import Figure

  figure = Figure(figsize=(10, 4.5), layout="constrained")
  axes = figure.subplots(1, 2, sharey=True)
  titles = (f"students: {network}, SGD", f"students: {_other(network)}, Adam (transfer)")
  for axis, part, title in zip(axes, ("accuracy", "transfer"), titles, strict=True):
    for place, name in enumerate(_names(draws)):
      sizes = [images * 1.04 ** (place - 1.5) for images in draws]  # Apart, so that no interval hides another.
      found = [[_interval(draw, part, name) for draw in several] for several in draws.values()]
      (line,) = axis.plot(sizes, [np.mean([each.mean for each in several]) for several in found], label=name)
      points = [
        (size, each.mean, each.half_width) for size, several in zip(sizes, found, strict=True) for each in several
      ]
      at, means, widths = zip(*points, strict=True)
      axis.errorbar(at, means, yerr=widths, color=line.get_color(), marker="o", markersize=3, linestyle="", capsize=2)
    if part == "accuracy":
      known, means, widths = zip(*((n, *figures) for n, figures in _PUBLISHED.items() if n in draws), strict=True)
      axis.errorbar(
        known, means, yerr=widths, color="gray", marker="x", linestyle=":", capsize=3,
        label="label distillation, Bohdal et al. (LeNet)",
      )  # fmt: skip
    axis.set(title=title, xscale="log", xlabel="base images")
    axis.set_xticks(list(draws), [str(images) for images in draws])
    axis.set_xticks([], minor=True)
    axis.grid(alpha=0.3)
  axes[0].set_ylabel("test accuracy (%)")
  axes[0].legend(loc="lower right", fontsize=8)
  figure.savefig(path, dpi=130)


def define_flags() -> None:
  """Define the command's flags; not on import, for those of other commands have the same names."""
  flags.DEFINE_string("mnist_folder", None, "The four IDX files.")
  flags.DEFINE_list("images", ["10"], "Numbers of base images, multiples of 10.")
  flags.DEFINE_integer("draws", 1, "Draws of base images.", 1)
  flags.DEFINE_integer("first_draw", 0, "Number of the first draw.", 0)
  flags.DEFINE_enum("network", "conv", ["conv", "mlp", "cnn"], "One convolution, one hidden layer, or LeNet.")
  flags.DEFINE_integer("width", 32, "Features of the convolution, or units of the hidden layer.", 1)
  flags.DEFINE_enum("loss", "softmax_cross_entropy", ["softmax_cross_entropy", "squared_error"], "Of the students.")
  flags.DEFINE_enum("constraint", "one", list(_CONSTRAINTS), "Labels: soft, of sum one, or any.")
  flags.DEFINE_float("head", 0.1, "Factor of the last layer of students' random starts.", 0.0)
  flags.DEFINE_integer("steps", 30, "Steps of a student.", 1)
  flags.DEFINE_float("learning_rate", 0.003, "Of the students' SGD.", 0.0)
  flags.DEFINE_float("momentum", 0.9, "Of the students' SGD, Nesterov's.", 0.0, 1.0)
  flags.DEFINE_float("adam_rate", 1e-3, "Of the students' Adam, in transfer.", 0.0)
  flags.DEFINE_integer("solved_students", 0, "Starts of the solved road; 0: it is left out.", 0)
  flags.DEFINE_integer("updates", None, "Of the labels through the loop; 0: it is left out. Default: by images.", 0)
  flags.DEFINE_float("rate", None, "Adam's rate for the labels. Default: by images.", 0.0)
  flags.DEFINE_integer("students", 1, "Students of an update.", 1)
  flags.DEFINE_integer("validation", 20000, "Validation images.", 1)
  flags.DEFINE_integer("validation_batch", 512, "Validation images of an update.", 1)
  flags.DEFINE_integer("fresh", 20, "Students that are tested.", 2)
  flags.DEFINE_enum("start", "truth", ["truth", "trained"], "Labels that the search starts from: a trained network's?")
  flags.DEFINE_boolean("others", True, "Whether to train students on other labels too.")
  flags.DEFINE_string("json", None, "Where to write all figures and labels.")
  flags.DEFINE_list("read", [], "Files of --json, to show what they hold in place of measuring.")
  flags.DEFINE_string("plot", None, "Where to write the picture, a PNG file.")


def read(paths: Iterable[str]) -> tuple[dict[str, Any], dict[int, list[dict[str, Any]]]]:
  """Return the settings and the draws by number of images of files that `--json` wrote."""
  draws: dict[int, list[dict[str, Any]]] = {}
  for path in paths:
    content = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    for size, several in content["draws"].items():
      draws.setdefault(int(size), []).extend(several)
  return content["settings"], dict(sorted(draws.items()))


def main(_: list[str]) -> None:
  """Measure, or read what was measured, and print."""
  given = flags.FLAGS
  sizes = [int(size) for size in given.images]
  if any(size < 10 or size % 10 for size in sizes):
    raise app.UsageError("--images must be multiples of 10, as 10,100")
  if not given.read and not given.mnist_folder:
    raise app.UsageError("--mnist_folder is needed: the folder of the four IDX files")
  draws: dict[int, list[dict[str, Any]]] = {}
  network = given.network
  if given.read:
    settings, draws = read(given.read)
    network = settings["network"]
    print("\n".join(table(draws, network)))
  else:
    train, test = load(given.mnist_folder)
    seeds = range(given.first_draw, given.first_draw + given.draws)
    for size, seed in itertools.product(sizes, seeds):
      draws.setdefault(size, []).append(run_draw(seed, size, train, test, given))
      last_draw = draws[size][-1]
      print(f"{size} images, draw {seed}: seconds {last_draw['seconds']}, largest {last_draw['largest']}", flush=True)
      print("\n".join(["", *table(draws, network), ""]), flush=True)
      if given.json:  # After each draw: what is measured stays if the next one is stopped.
        content = {
          "settings": {name: getattr(given, name) for name in _SETTINGS},
          "draws": jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), draws),
        }
        pathlib.Path(given.json).write_text(json.dumps(content), encoding="utf-8")
  if given.plot:
    draw_figure(given.plot, draws, network)


if __name__ == "__main__":
  define_flags()
  app.run(main)
