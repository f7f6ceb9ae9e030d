"""Data sets from the flags of commands: those of the package and of scikit-learn, tables and arrays of one's own."""

import contextlib
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

import last_jax as last
from last_jax import checks
from last_jax.io.files import opened, unpacked_limit
from last_jax.tools.catalogue import DATASETS, SKLEARN_SETS

from .command import naming, user_errors
from .flags import Flags

TABLES = (".csv", ".parquet")
FILE_ENDINGS = (".npz", *TABLES)


def check_mnist_folder(folder: str | None) -> None:
  """Raise unless the folder of --mnist_folder exists, if one was given."""
  if folder is not None and not os.path.isdir(folder):  # Unlike that of pathlib, it takes any text.
    raise FileNotFoundError(f"--mnist_folder={folder}: there is no such folder")


def load(values: Flags) -> last.Dataset:
  """Return the data set that the flags name. Errors name the flag."""
  name = values.dataset
  if name == "mnist":
    check_mnist_folder(values.mnist_folder)
    scale = checks.check_positive("--feature_scale", values.feature_scale)
    checks.check_positive("--feature_scale", np.float32(scale))  # Nor may it vanish.
    digits = [int(word) for word in values.digits if re.fullmatch(r"\s*[0-9]\s*", word)]
    if len(digits) < len(values.digits) or len(set(digits)) < len(digits) or len(digits) < 2:
      raise ValueError(f"--digits={','.join(values.digits)} must be at least two of 0 to 9, each once, as 3,5")
    with user_errors({"folder": "mnist_folder", "train_per_digit": "per_digit", "num_features": "num_features"}):
      return last.data.mnist(
        digits,
        folder=values.mnist_folder,
        num_features=values.num_features or None,
        feature_scale=values.feature_scale,
        train_per_digit=values.per_digit,
      )
  if name in DATASETS:
    return getattr(last.data, name)(values.seed)
  if name in SKLEARN_SETS:
    return _prepare(values, _load_from_sklearn(name))
  if not os.path.exists(name):
    beside = [str(each) for each in pathlib.Path(name).parent.glob(f"*{pathlib.Path(name).suffix}")]
    raise FileNotFoundError(f"--dataset={name}: there is no such file{checks.suggest(name, beside)}")
  with _naming_flags():
    return last.data.load_npz(name) if name.endswith(".npz") else _prepare(values, _read_table(values))


@contextlib.contextmanager
def _naming_flags() -> Iterator[None]:
  """Name the flag that is at fault in errors of the library, which name the file and the argument."""
  try:
    yield
  except (ValueError, TypeError, OSError) as error:
    message = str(error)
    for argument, flag in (("label", "--label"), ("features", "--columns")):
      message = re.sub(rf"(^|: ){argument}\b", rf"\1{flag}", message)
    if "must hold numbers" in message:
      message += " (--label names the column of labels, --columns those of inputs)"
    named = re.search(r"(?<!\S)--(label|columns|dataset|test_share)\b", message)
    raise ValueError(message if named else f"--dataset: {message}") from error


def _load_from_sklearn(name: str) -> last.Pool:
  with naming("dataset", name):
    try:
      import sklearn.datasets
    except ModuleNotFoundError as error:
      raise ValueError("this set comes with scikit-learn: pip install scikit-learn") from error
    return last.Pool.from_bunch(getattr(sklearn.datasets, f"load_{name}")())


def _read_table(values: Flags) -> last.Pool:
  path = values.dataset
  if path.endswith(".csv"):
    return last.data.load_csv(path, label=values.label, features=values.columns)
  with naming("dataset", path):
    try:
      import pandas

      with opened(path) as stream:
        _check_parquet(stream)
        frame = pandas.read_parquet(stream)
    except ImportError as error:  # Of pandas, or of what it reads parquet files with.
      raise ValueError("parquet files need pandas and pyarrow: pip install pandas pyarrow") from error
    except (ArithmeticError, LookupError, RuntimeError, MemoryError) as error:  # As damaged files raise them.
      raise ValueError(f"it is not a parquet file, or is damaged: {error}") from error
    label = list(frame.columns)[-1] if values.label is None else values.label
    return last.Pool.from_frame(frame, label=label, features=values.columns)


def _check_parquet(stream: Any) -> None:
  """Raise if the table is too large for its file: columns of one value take next to no space in it."""
  import pyarrow.parquet

  facts = pyarrow.parquet.read_metadata(stream)
  stream.seek(0)
  size, limit = 8 * facts.num_rows * facts.num_columns, unpacked_limit(stream)
  if size > limit:
    raise ValueError(f"its table takes {size} bytes, of which at most {limit} are allowed for the size of the file")


def _prepare(values: Flags, pool: last.Pool) -> last.Dataset:
  """Return the examples with a test part and inputs of equal scale, as the flags say."""
  checks.check_between("--test_share", values.test_share, 0.0, 0.9)
  dataset = last.data.split(pool, values.test_share, values.seed) if values.test_share else last.Dataset(pool)
  return last.data.standardize(dataset) if values.scale_inputs else dataset
