"""Data, learner and target from flags that commands share, each error naming its flag."""

import hashlib
import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from absl import flags as absl_flags

import last_jax as last
from last_jax import checks, devices, report
from last_jax.data.params import params_from_arrays
from last_jax.models import param_shapes
from launch.learner import ACTIVATIONS, LEARNERS, build_learner

DATASETS = ("half_moons", "gaussian", "regression", "mnist")
# Rates at which the methods part within the default number of steps. The paper's are given in the help of the flag.
LEARNING_RATES = {"half_moons": 0.3, "gaussian": 0.03, "regression": 0.003, "mnist": 1e-3}
FILE_LEARNING_RATE = 0.01
# What `define_flags` defines.
FLAGS = (
  "dataset", "mnist_folder", "digits", "num_features", "per_digit", "feature_scale", "learner", "hidden", "activation",
  "bias", "momentum", "nesterov", "learning_rate", "weight_decay",
)  # fmt: skip


def define_flags(
  values: absl_flags.FlagValues, *, dataset: str, learner: str | None, bias: bool, learning_rate: str
) -> None:
  """Defines the flags that say what is taught to whom.

  Args:
    values: where to.
    dataset: the default of --dataset.
    learner: the default of --learner; None: what fits the data.
    bias: the default of --bias.
    learning_rate: how the help of --learning_rate explains its default.
  """

  def define(kind: Any, name: str, default: Any, explanation: str, **settings: Any) -> None:
    kind(name, default, help=explanation, flag_values=values, **settings)

  whole, real, text, several = (
    absl_flags.DEFINE_integer, absl_flags.DEFINE_float, absl_flags.DEFINE_string, absl_flags.DEFINE_list
  )  # fmt: skip
  switch, choice = absl_flags.DEFINE_boolean, absl_flags.DEFINE_enum
  define(
    text, "dataset", dataset,
    f"What is taught: {', '.join(DATASETS)}, or FILE.npz with x [n, ...] and y ([n] class ids or numbers, [n, K] "
    "label vectors), and optionally x_test and y_test, target and init (each one flat array, or one array per leaf "
    "of the parameters under target/LEAF).",
  )  # fmt: skip
  define(text, "mnist_folder", None, "Folder with the four original files of MNIST, in place of the subset shipped.")
  define(several, "digits", ["3", "5"], "MNIST: the digits to tell apart.")
  define(
    whole, "num_features", 24,
    "MNIST: how many random features stand for an image; 0 for the images themselves, [28, 28, 1], which need a "
    "learner of your own.", lower_bound=0,
  )  # fmt: skip
  define(
    whole, "per_digit", None, "MNIST: training images of each digit, chosen at random; all there are unless given.",
    lower_bound=1,
  )  # fmt: skip
  define(real, "feature_scale", 1.0, "MNIST: standard deviation of the entries of the feature matrix.")
  define(
    text, "learner", learner,
    f"Who is taught: {', '.join(LEARNERS)} (margin: logistic regression with labels -1 and +1, and any number between "
    "or beyond), or module:function for one of your own (see above)."
    + ("" if learner else " Unless given: logistic for two classes, softmax for more, least_squares for numbers."),
  )  # fmt: skip
  define(several, "hidden", ["32"], "mlp: widths of its hidden layers, as 64,32.")
  define(choice, "activation", "relu", "mlp: its nonlinearity.", enum_values=list(ACTIVATIONS))
  define(switch, "bias", bias, "Whether outputs have an intercept.")
  define(real, "momentum", None, "Momentum of the learner's SGD (heavy ball); none unless given.")
  define(switch, "nesterov", False, "Nesterov's kind of momentum.")
  define(real, "learning_rate", None, f"Step size of the learner. {learning_rate}")
  define(real, "weight_decay", 5e-5, "Lambda: the pull of the weights towards zero; biases have none.")


class Problem(NamedTuple):
  """What is taught to whom."""

  dataset: last.Dataset
  data_facts: dict[str, Any]
  learner_name: str
  learner: last.learners.Learner
  learning_rate: float

  @property
  def title(self) -> str:
    """For tables and pictures, without the dataset's name."""
    return f"{self.learner_name}, learning rate {self.learning_rate:g}"


def build(flags: Any, usual_rates: dict[str, float] | None = None) -> Problem:
  """Reads the data and makes the learner, checked against each other."""
  dataset, data_facts = _load(flags)
  learning_rate = flags.learning_rate
  if learning_rate is None:
    learning_rate = (usual_rates or LEARNING_RATES).get(flags.dataset, FILE_LEARNING_RATE)
  checks.check_positive("--learning_rate", learning_rate)
  checks.check_not_negative("--weight_decay", flags.weight_decay)
  learner_name, learner = build_learner(flags, dataset, learning_rate)
  for name, pool in (("x and y", dataset.train), ("x_test and y_test", dataset.test)):
    if pool is not None:
      _check_fits(learner_name, learner, pool, f"--dataset={flags.dataset} ({name})")
  return Problem(dataset, data_facts, learner_name, learner, learning_rate)


def idle_flags(flags: Any, learner_name: str) -> list[str]:
  """Those of the shared flags that nothing looks at, given the others."""
  needed = {
    ("mnist_folder", "digits", "num_features", "feature_scale", "per_digit"): flags.dataset == "mnist",
    ("bias", "momentum", "nesterov"): ":" not in learner_name,
    ("hidden", "activation"): learner_name == "mlp",
  }
  return [name for names, applies in needed.items() if not applies for name in names]


def check_out(folder: str) -> None:
  """Makes the folder of --out, or raises. Only the process that writes does."""
  if not devices.is_first():
    return
  try:
    report.check_writable(folder)
  except OSError as error:
    raise OSError(f"--out={folder} cannot be written to: {error}") from error


def check_mnist_folder(folder: str | None) -> None:
  """Raises unless the folder of --mnist_folder is there, if one was given."""
  if folder is not None and not pathlib.Path(folder).is_dir():
    raise FileNotFoundError(f"--mnist_folder={folder}: there is no such folder")


def _load(flags: Any) -> tuple[last.Dataset, dict[str, Any]]:
  name = flags.dataset
  if name == "mnist":
    check_mnist_folder(flags.mnist_folder)
    checks.check_positive("--feature_scale", flags.feature_scale)
    dataset = last.data.mnist(
      _whole_numbers("--digits", flags.digits),
      folder=flags.mnist_folder,
      num_features=flags.num_features or None,
      feature_scale=flags.feature_scale,
      train_per_digit=flags.per_digit,
    )
    return dataset, {}
  makers: dict[str, Callable[[int], last.Dataset]] = {
    "half_moons": last.data.half_moons,
    "gaussian": last.data.gaussian,
    "regression": last.data.regression,
  }
  if name in makers:
    return makers[name](flags.seed), {}
  if not name.endswith(".npz"):
    raise ValueError(f"--dataset={name!r} is not known: use one of {', '.join(DATASETS)}, or a file, FILE.npz")
  path = pathlib.Path(name)
  if not path.is_file():
    raise FileNotFoundError(f"--dataset={name}: there is no such file")
  return last.data.load_npz(path), {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _whole_numbers(flag: str, words: Sequence[str]) -> tuple[int, ...]:
  try:
    return tuple(int(word) for word in words)
  except ValueError:
    raise ValueError(f"{flag}={','.join(words)} must be whole numbers with commas between them") from None


def _check_fits(learner_name: str, learner: last.learners.Learner, pool: last.Pool, where: str) -> None:
  try:
    last.learners.check_learns_from(learner, pool)
  except (ValueError, TypeError) as error:
    raise ValueError(f"--learner={learner_name} cannot learn from {where}: {error}") from error


def find_target(
  learner: last.learners.Learner, dataset: last.Dataset, key: jax.Array, flags: Any
) -> tuple[Any, dict[str, Any], list[str]]:
  """The file's target or a fitted one, what is known about it, and what the user should know."""
  facts: dict[str, Any] = {"from": "file" if dataset.target is not None else "fitted to the pool"}
  notes = []
  if dataset.target is not None:
    target = params_from_arrays(param_shapes(learner.model), dataset.target, f"--dataset={flags.dataset}: target")
  else:
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter("always")
      target, fit = last.fit_target(learner, dataset.train, key=key, with_fit=True)
    notes = [str(warning.message) for warning in caught]
    facts |= {"gradient_norm": fit.gradient_norm, "converged": fit.converged}
  labels = learner.encode(dataset.train.x, dataset.train.y)
  facts["objective"] = float(learner.objective(target, dataset.train.x, labels))
  if dataset.test is not None and learner.loss.classification:
    test_labels = learner.encode(dataset.test.x, dataset.test.y)
    facts["accuracy"] = float(learner.accuracy(target, dataset.test.x, test_labels))
  return target, facts, notes
