"""Examples from csv files, and what tables need before they are taught from: a test part, columns of equal scale."""

import csv
import io
import os
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from last_jax.base import Dataset, Pool
from last_jax.checks import check_between, check_count
from last_jax.frames import read_columns
from last_jax.io import opened

_DELIMITERS = ",;\t"


def load_csv(path: str | os.PathLike[str], *, label: str | None = None, features: Sequence[str] | None = None) -> Pool:
  """Read a csv file, with one row for each example.

  Args:
    path: the file; values are separated by commas, semicolons or tabs. The first row names the columns, unless it holds
      a number: they are then called "1", "2", ...
    label: the column of labels: class ids (whole numbers), real targets, or names of classes; the last unless given.
    features: the columns of inputs, all others unless given. They hold numbers.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: anything else is wrong; the message names the file, the column and the row.
  """
  columns = _read_columns(path)
  try:
    x, y, classes = read_columns(columns, list(columns)[-1] if label is None else label, features)
    return Pool(x, y, classes=classes)
  except (ValueError, TypeError) as error:
    raise ValueError(f"{path}: {error}") from error


def split(pool: Pool, share: float, seed: int = 0) -> Dataset:
  """Return a dataset whose test pool is a random share of the examples; both parts keep their order.

  Args:
    pool: all examples.
    share: the share of test examples, between 0 and 1. At least one example is on either side.
    seed: seed of the choice.
  """
  check_between("share", share, 0.0, 1.0)
  check_count("seed", seed, least=0)
  if len(pool) < 2:
    raise ValueError("pool must hold at least 2 examples to be split, but it holds 1")
  size = min(max(1, round(share * len(pool))), len(pool) - 1)
  order = np.random.default_rng(seed).permutation(len(pool))
  test, train = np.sort(order[:size]), np.sort(order[size:])
  return Dataset(*(jax.tree.map(lambda leaf, rows=rows: leaf[rows], pool) for rows in (train, test)))


def standardize(dataset: Dataset) -> Dataset:
  """Return the dataset with inputs whose mean is 0 and whose standard deviation is 1 over the training examples.

  Each entry of x is scaled by itself; where it is constant, it becomes 0. Test examples are scaled as the training
  examples are.
  """
  if dataset.target is not None or dataset.init is not None:
    raise ValueError("dataset must have no target and no init, which are parameters for inputs as they are")
  x = np.asarray(dataset.train.x, np.float64)
  mean, deviation = x.mean(0), x.std(0)
  is_constant = deviation <= 1e-7 * np.abs(x).max(0)  # To rounding in float32.

  def scale(pool: Pool) -> Pool:
    scaled = np.where(is_constant, 0.0, (np.asarray(pool.x, np.float64) - mean) / np.where(is_constant, 1.0, deviation))
    return Pool(scaled.astype(pool.x.dtype), pool.y, classes=pool.classes)

  return dataset._replace(train=scale(dataset.train), test=None if dataset.test is None else scale(dataset.test))


def _read_columns(path: str | os.PathLike[str]) -> Mapping[str, np.ndarray]:
  """Return the columns by name, each of whole numbers, of numbers or of strings."""
  with opened(path) as binary:
    stream = io.TextIOWrapper(binary, encoding="utf-8-sig", newline="")
    try:
      first = stream.readline()
      stream.seek(0)
      lines = csv.reader(stream, delimiter=max(_DELIMITERS, key=first.count), skipinitialspace=True)
      rows = [(lines.line_num, [cell.strip() for cell in row]) for row in lines if row not in ([], [""])]
    except (csv.Error, UnicodeDecodeError) as error:
      raise ValueError(f"{path} is not a csv file: {error}") from error
  if not rows:
    raise ValueError(f"{path} is empty")
  names = rows[0][1]
  if any(_is_number(cell) for cell in names):
    names = [str(place + 1) for place in range(len(names))]
  else:
    del rows[0]
  twice = [name for place, name in enumerate(names) if name in names[:place]]
  if twice:
    raise ValueError(f"{path} has two columns {twice[0]!r}: their names must differ")
  if not rows:
    raise ValueError(f"{path} holds names of columns, but no examples")
  for number, row in rows:
    if len(row) != len(names):
      raise ValueError(f"{path}, line {number}: there are {len(row)} values, but {len(names)} columns")
  return {
    name: _convert(path, name, [(number, row[place]) for number, row in rows]) for place, name in enumerate(names)
  }


def _convert(path: str | os.PathLike[str], name: str, cells: Sequence[tuple[int, str]]) -> np.ndarray:
  """Return a column's values. Where most are numbers, the others are faults."""
  for number, cell in cells:
    if cell == "":
      raise ValueError(f"{path}, line {number}: column {name!r} is empty, but every value is needed")
  values = [cell for _, cell in cells]
  faulty = [(number, cell) for number, cell in cells if not _is_number(cell)]
  if not faulty:
    is_whole = all(len(value) < 18 and value.lstrip("+-").isdecimal() for value in values)
    return np.array([int(value) if is_whole else float(value) for value in values])
  if len(faulty) < 0.5 * len(cells):
    number, cell = faulty[0]
    raise ValueError(f"{path}, line {number}: column {name!r} holds {cell!r} among numbers")
  return np.array(values)


def _is_number(cell: str) -> bool:
  try:
    float(cell)
  except ValueError:
    return False
  return True
