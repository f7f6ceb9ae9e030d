"""Data, learner and target from the flags that commands share. Errors name their flag."""

import hashlib
import importlib
import inspect
import itertools
import os
import pathlib
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import last_jax as last
from last_jax import advice, checks
from last_jax.data.params import params_from_arrays
from last_jax.models import param_shapes
from last_jax.pool import shorten
from last_jax.tools import specs
from last_jax.tools.catalogue import DATASETS, LEARNERS, SKLEARN_SETS

from . import datasets
from .command import naming
from .datasets import FILE_ENDINGS, TABLES
from .flags import Flags, several

# Rates at which methods separate within the default number of steps. The help of the flag has the paper's.
LEARNING_RATES = {"half_moons": 0.3, "gaussian": 0.03, "regression": 0.003, "mnist": 1e-3}
FILE_LEARNING_RATE = 0.01
# The flags that take lists where a sweep is possible.
SWEPT = ("learning_rate", "weight_decay", "momentum", "batch_size")
# The flags that `define_flags` defines.
FLAGS = (
  "dataset", "label", "columns", "test_share", "scale_inputs",
  "mnist_folder", "digits", "num_features", "per_digit", "feature_scale", "learner", "hidden", "activation",
  "bias", "momentum", "nesterov", "learning_rate", "weight_decay",
)  # fmt: skip


def define_flags(
  values: Flags, *, dataset: str, learner: str | None, bias: bool, learning_rate: str, lists: bool = False
) -> None:
  """Define the flags of data and learner.

  Args:
    values: where to.
    dataset: the default of --dataset.
    learner: the default of --learner; None: the one that fits the data.
    bias: the default of --bias.
    learning_rate: explains the default of --learning_rate in the help.
    lists: whether those of them that are in `SWEPT` take lists too.
  """
  values.group("Data", "--dataset=plants.csv --label=species --columns=length,width")
  values.text(
    "dataset", dataset,
    f"Examples to teach from: {', '.join(DATASETS)}; a set that comes with scikit-learn: {', '.join(SKLEARN_SETS)}; a "
    "table, FILE.csv or FILE.parquet, with a row for each example; or FILE.npz with x [n, ...] and y ([n] class ids, "
    "names of classes or numbers, [n, K] label vectors), and optionally x_test and y_test, classes (their names by "
    "id), target and init (each one flat array, or one array per leaf of the parameters under target/LEAF).",
  )  # fmt: skip
  values.text("label", None, "Table: the column of labels: class ids, names of classes, or numbers. Default: the last.")
  values.several("columns", None, "Table: the columns of inputs, which hold numbers. Default: all others.")
  values.real("test_share", 0.2, "Table or scikit-learn's set: the share of examples held out for testing.")
  values.switch("scale_inputs", True, "Table or scikit-learn's set: give each input mean 0 and standard deviation 1.")
  values.text("mnist_folder", None, "Folder with the four original files of MNIST, in place of the included subset.")
  values.several("digits", ["3", "5"], "MNIST: the digits to classify.")
  values.whole(
    "num_features", 24,
    "MNIST: number of random features of an image; 0 for the images themselves, [28, 28, 1], which need a learner of "
    "your own.", least=0,
  )  # fmt: skip
  values.whole("per_digit", None, "MNIST: number of training images of each digit, chosen at random. Default: all.")
  values.real("feature_scale", 1.0, "MNIST: standard deviation of the entries of the feature matrix.")
  values.group("Learner", "--learner=mlp --hidden=64,32 --learning_rate=0.05 --momentum=0.9")
  values.text(
    "learner", learner,
    f"The learner: {', '.join(LEARNERS)}; or module:function for one of your own: the function is called with those of "
    "num_features, num_outputs, learning_rate and weight_decay that it takes as keywords, and returns a learner, as "
    "last_jax.learners.from_apply, from_flax and from_equinox make them."
    + ("" if learner else " Default: logistic for two classes, softmax for more, least_squares for numbers."),
  )  # fmt: skip
  values.several("hidden", ["32"], "mlp: widths of its hidden layers, as 64,32.")
  values.choice("activation", "relu", specs.ACTIVATIONS, "mlp: its nonlinearity.")
  values.switch("bias", bias, "Whether outputs have an intercept.")
  real, also = (values.reals, " A list sweeps over it.") if lists else (values.real, "")
  real("momentum", None, f"Momentum of the learner's SGD (heavy ball). Default: none.{also}")
  values.switch("nesterov", False, "Nesterov's kind of momentum.")
  real("learning_rate", None, f"Step size of the learner. {learning_rate}{also}")
  real("weight_decay", 5e-5, f"Lambda, the weight decay of the learner; biases have none.{also}")


class Given(NamedTuple):
  """Data and learner as the flags give them."""

  dataset: last.Dataset
  learner_name: str
  learner: last.learners.Learner
  learning_rate: float

  @property
  def digest(self) -> str:
    """A hash of all arrays of the data."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(self.dataset):
      array = np.asarray(leaf)
      digest.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return digest.hexdigest()

  def words(self, values: Flags) -> dict[str, str]:
    """Return what a file of lessons says of the inputs and, in place of what it cannot describe, of the learner."""
    inputs = f"--dataset={pathlib.Path(values.dataset).name}"
    if values.dataset == "mnist":
      inputs += f" --digits={','.join(values.digits)}: pixels in [0, 1]"
      if values.num_features:
        inputs += f", times a fixed matrix of {values.num_features} columns of N(0, {values.feature_scale:g}^2) entries"
    elif values.dataset in DATASETS:
      inputs += f" --seed={values.seed}"
    own = f"as {self.learner_name} makes it" if ":" in self.learner_name else ""
    return {"inputs": inputs} | {part: own for part in ("model", "loss", "optimizer") if own}

  def title(self, values: Flags) -> str:
    """Return the title of tables and pictures."""
    names = self.dataset.train.classes
    classes = "" if names is None else f", classes {shorten(names)}"
    return f"{pathlib.Path(values.dataset).name}{classes}, {self.learner_name}, learning rate {self.learning_rate:g}"


def read(
  values: Flags,
  rates: Mapping[str, float] = LEARNING_RATES,
  *,
  numbers: Mapping[str, float | None] | None = None,
  dataset: last.Dataset | None = None,
) -> Given:
  """Return data and learner, checked against each other.

  Args:
    values: the command's flags.
    rates: the default learning rates.
    numbers: of the flags in `SWEPT`, where they are lists: one of `settings_of`.
    dataset: the data, if it was read before.
  """
  check_names(values)
  numbers = numbers or settings_of(values)[0]
  dataset = datasets.load(values) if dataset is None else dataset
  rate = numbers["learning_rate"]
  rate = rates.get(values.dataset, FILE_LEARNING_RATE) if rate is None else rate
  checks.check_positive("--learning_rate", rate)
  checks.check_not_negative("--weight_decay", numbers["weight_decay"])
  try:
    name = specs.default_learner(dataset.train) if values.learner is None else values.learner
  except ValueError as error:
    raise ValueError(f"--learner is missing: {error}") from error
  settings: dict[str, Any] = {"learning_rate": rate, "weight_decay": numbers["weight_decay"]}
  settings |= {} if ":" in name else _read_settings(values, numbers["momentum"])
  with naming("learner", name):
    learner = _from_module(name, dataset, settings) if ":" in name else specs.learner(name, dataset, **settings)
    for arrays, pool in (("x and y", dataset.train), ("x_test and y_test", dataset.test)):
      if pool is not None:
        try:
          last.learners.check_learns_from(learner, pool)
        except (ValueError, TypeError) as error:
          raise ValueError(f"it cannot learn from --dataset={values.dataset} ({arrays}): {error}") from error
  return Given(dataset, name, learner, rate)


def settings_of(values: Flags) -> list[dict[str, Any]]:
  """Return all combinations of the numbers of the flags in `SWEPT`; one where none is a list."""
  numbers = [several(values[name].value) for name in SWEPT]
  return [dict(zip(SWEPT, combination, strict=True)) for combination in itertools.product(*numbers)]


def find_idle(values: Flags, given: Given) -> list[str]:
  """Return the flags of this module that have no effect, given the others."""
  is_table = values.dataset.endswith(TABLES)
  needed = {
    ("label", "columns"): is_table,
    ("test_share", "scale_inputs"): is_table or values.dataset in SKLEARN_SETS,
    ("mnist_folder", "digits", "num_features", "feature_scale", "per_digit"): values.dataset == "mnist",
    ("bias", "momentum", "nesterov"): ":" not in given.learner_name,
    ("hidden", "activation"): given.learner_name == "mlp",
  }
  return [name for names, applies in needed.items() if not applies for name in names]


def note_idle(values: Flags, idle: Sequence[str]) -> list[str]:
  """Return a note for each flag that was given and has no effect."""
  return [f"--{name} has no effect here" for name in idle if values[name].present]


def check_names(values: Flags) -> None:
  """Raise where a data set or a learner has a name that does not exist. Nothing is read."""
  name = values.dataset
  if not name.endswith(FILE_ENDINGS) and name not in DATASETS and name not in SKLEARN_SETS:
    known = ", ".join((*DATASETS, *SKLEARN_SETS))
    raise ValueError(
      f"--dataset={name} is not known: use one of {known}, or a file, FILE.npz, FILE.csv or FILE.parquet"
      f"{checks.suggest(name, (*DATASETS, *SKLEARN_SETS))}"
    )
  if values.learner and ":" not in values.learner:
    with naming("learner", values.learner):
      specs.check_learner(values.learner)


def _read_settings(values: Flags, momentum: float | None) -> dict[str, Any]:
  """Return the settings of a learner that has a name."""
  if values.nesterov and momentum is None:
    raise ValueError("--nesterov needs --momentum, a number between 0 and 1")
  if momentum is not None:
    checks.check_between("--momentum", momentum, 0.0, 1.0)
  with naming("hidden", ",".join(values.hidden)):
    hidden = specs.widths(values.hidden)
  plain = {name: values[name].value for name in ("activation", "bias", "nesterov")}
  return {"hidden": hidden, "momentum": momentum} | plain


def _from_module(name: str, dataset: last.Dataset, settings: dict[str, Any]) -> last.learners.Learner:
  """Import the user's function and call it with those of the offered keywords that it takes."""
  module_name, _, function_name = name.partition(":")
  if os.getcwd() not in sys.path:  # `python -m` has the current folder in the path, an installed command has not.
    sys.path.insert(0, os.getcwd())
  try:
    function = getattr(importlib.import_module(module_name), function_name)
    parameters = inspect.signature(function).parameters.values()
  except (Exception, SystemExit) as error:  # Importing runs the user's code, which may raise anything.
    raise ValueError(f"cannot import it: {type(error).__name__}: {error}") from error
  shape = dataset.train.x.shape[1:]
  offered = {
    "num_features": shape[0] if len(shape) == 1 else tuple(shape),
    "num_outputs": specs.count_outputs(dataset),
    **settings,
  }
  takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
  given = {key: value for key, value in offered.items() if takes_all or any(p.name == key for p in parameters)}
  try:
    learner = function(**given)
  except (Exception, SystemExit) as error:
    raise ValueError(
      f"calling it with {', '.join(given) or 'no arguments'} raised {type(error).__name__}: {error}"
    ) from error
  if not isinstance(learner, last.learners.Learner):
    raise TypeError(f"it must return a Learner of last_jax.learners, but it returned a {type(learner).__name__}")
  return learner


def read_params(values: Flags, given: Given, name: str) -> Any:
  """Return the parameters "target" or "init" of the file of --dataset, or None where it has none."""
  arrays = getattr(given.dataset, name)
  if arrays is None:
    return None
  return params_from_arrays(param_shapes(given.learner.model), arrays, f"--dataset={values.dataset}: {name}")


def find_target(values: Flags, given: Given, key: jax.Array) -> tuple[Any, dict[str, Any], list[str]]:
  """Return the target (the file's, or fitted), facts about it for the summary, and notes for the user."""
  target = read_params(values, given, "target")
  if target is not None:
    return target, {"from": "file"}, []
  with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    target, fit = last.fit_target(given.learner, given.dataset.train, key=key, with_fit=True)
  facts = {"from": "fitted to the pool", "gradient_norm": fit.gradient_norm, "converged": fit.converged}
  return target, facts, [str(warning.message) for warning in caught]


def note_far(given: Given, target: Any, params: Any) -> list[str]:
  """Return a note where a network's target is of another start than the first of the students `params [students]`."""
  if not advice.is_far(given.learner, jax.tree.map(lambda leaf: leaf[0], params), target):
    return []
  return [
    "the parameters of the target are those of another start than the students': labels lead a network there slowly, "
    "and its accuracy is lost on the way. --toward=loss and --toward=outputs do better"
  ]


def check_starts(values: Flags) -> None:
  """Check the flags of the students' starts, and of how exact a run is."""
  for name in ("init_scale", "start_near", "checkpoint_seconds"):
    if values[name].value is not None:
      checks.check_not_negative(f"--{name}", values[name].value)
  if values.tolerance is not None:
    checks.check_positive("--tolerance", values.tolerance)


def start(values: Flags, given: Given, target: Any, key: jax.Array) -> Any:
  """Return the students' starts, with a leading [students] axis."""
  init = read_params(values, given, "init")
  if init is not None:
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (values.students, *leaf.shape)), init)
  keys = jax.random.split(key, values.students)
  if values.start_near is not None:
    return jax.vmap(last.training.near(target, values.start_near))(keys)
  return jax.tree.map(lambda leaf: values.init_scale * leaf, jax.vmap(given.learner.init)(keys))
