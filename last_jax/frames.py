"""Tables of other libraries: examples from them, and results to pandas. No such library is imported to read from it.

Examples are returned as x `[n, ...]`, y and the names of classes, or None: the arguments of `Pool`.
"""

import math
import numbers
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

Examples = tuple[Any, Any, Sequence[str] | None]


# --- Examples from tables.


def read_frame(frame: Any, label: Hashable, features: Sequence[Hashable] | None = None) -> Examples:
  """Return the examples of a data frame, of pandas or another library whose frames have `columns`."""
  if not hasattr(frame, "columns"):
    raise TypeError(f"frame must be a data frame, with columns, but it is a {type(frame).__name__}")
  names = list(frame.columns)
  twice = [name for place, name in enumerate(names) if name in names[:place]]
  if twice:
    raise ValueError(f"frame has two columns {twice[0]!r}: their names must differ")
  return read_columns({name: frame[name] for name in names}, label, features)


def read_columns(columns: Mapping[Any, Any], label: Hashable, features: Sequence[Hashable] | None = None) -> Examples:
  """Return the examples of columns `[n]` by name: `features` (all others, unless given) and the column `label`."""
  if isinstance(features, str):
    raise TypeError(f"features must be a list of columns, but it is {features!r}: write [{features!r}]")
  chosen = [name for name in columns if name != label] if features is None else list(features)
  for argument, name in [("label", label), *(("features", name) for name in chosen)]:
    if name not in columns:
      raise ValueError(f"{argument}: there is no column {name!r}, only {_list(columns)}")
  if label in chosen:
    raise ValueError(f"features must not hold the label column {label!r}")
  if not chosen:
    raise ValueError(f"features must hold at least one column beside the label column {label!r}")
  x = np.stack([_read_numbers(name, columns[name]) for name in chosen], 1)
  return x, *_read_labels(label, columns[label])


def read_bunch(bunch: Any) -> Examples:
  """Return the examples of a scikit-learn `Bunch`."""
  for name in ("data", "target"):
    if not hasattr(bunch, name):
      raise TypeError(f"bunch must be a Bunch with data and target, but this {type(bunch).__name__} has no {name}")
  x = bunch.data
  if hasattr(x, "columns"):
    x = np.stack([_read_numbers(name, x[name]) for name in x.columns], 1)
  elif hasattr(x, "toarray"):
    raise TypeError("bunch.data is a sparse matrix: give it as bunch.data.toarray()")
  y, classes = _read_labels("target", bunch.target)
  names = getattr(bunch, "target_names", None)
  # Of numbers, and of the sets of openml.org, these are names of columns.
  if names is not None and np.ndim(y) == 1 and y.dtype.kind in "iu" and y.max(initial=0) < len(names):
    classes = [str(name) for name in names]
  return x, y, classes


def read_dataset(dataset: Any) -> Examples:
  """Return the examples of a torch `TensorDataset`, or of another data set that holds pairs (x, y)."""
  if hasattr(dataset, "tensors"):
    pair = dataset.tensors
  elif hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
    items = [dataset[place] for place in range(len(dataset))]
    sizes = {len(item) if isinstance(item, (tuple, list)) else None for item in items}
    pair = [np.stack([_to_numpy(part) for part in parts]) for parts in zip(*items, strict=True)] if sizes == {2} else ()
  else:
    raise TypeError(f"dataset must be a data set of torch, but it is a {type(dataset).__name__}")
  if len(pair) != 2:
    raise ValueError("dataset must hold pairs (x, y), one for each example")
  return _to_numpy(pair[0]), _to_numpy(pair[1]), getattr(dataset, "classes", None)


def _to_numpy(value: Any) -> np.ndarray:
  return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _read_numbers(name: Hashable, column: Any) -> np.ndarray:
  _check_complete(name, column)
  values = _as_plain(column)
  if values.ndim != 1 or values.dtype.kind not in "biuf":
    raise TypeError(
      f"column {name!r} must hold numbers, but it holds {_show(values.flat[0])}: encode it as numbers, or name the "
      "columns to use in features"
    )
  return values


def _as_plain(column: Any) -> np.ndarray:
  """Return an array; one of objects that are numbers, as pandas has it where values may be missing, becomes plain."""
  values = np.asarray(column)
  for kind, dtype in ((numbers.Integral, int), (numbers.Real, float)):
    if values.dtype == object and all(isinstance(value, kind) for value in values.flat):
      return values.astype(dtype)
  return values


def _read_labels(name: Hashable, column: Any) -> tuple[np.ndarray, Sequence[str] | None]:
  """Return labels, which may be strings, and the names of their classes where the column knows them."""
  _check_complete(name, column)
  values = _as_plain(column)
  categories = getattr(getattr(column, "cat", None), "categories", None)  # In pandas, they have an order.
  if categories is not None:
    return np.array([str(value) for value in values]), [str(category) for category in categories]
  return values, None


def _check_complete(name: Hashable, column: Any) -> None:
  values = np.asarray(column)
  if hasattr(column, "isna"):
    missing = np.asarray(column.isna())
  else:
    missing = np.isnan(values) if values.dtype.kind == "f" else np.array([value is None for value in values.flat])
  if missing.any():
    rows = f"row {int(np.argmax(missing.reshape(len(values), -1).any(1)))}"
    raise ValueError(f"column {name!r} must be complete, but {int(missing.sum())} values are missing, first in {rows}")


def _list(columns: Mapping[Hashable, Any]) -> str:
  return ", ".join(str(name) for name in columns)


def _show(value: Any) -> str:
  return repr(value.item() if isinstance(value, np.generic) else value)


# --- Tables of results, in long form: one number in each row.


def records_to_frame(records: Any) -> Any:
  """Return `Records` as a pandas frame with the columns step, metric, value and, for many students, student first."""
  step = np.asarray(records.step)
  named = {name: getattr(records, name) for name in ("distance", "objective", "accuracy")}
  for path, leaf in jax.tree_util.tree_leaves_with_path({"probe": records.probe}):
    named[jax.tree_util.keystr(path, simple=True, separator="/")] = leaf
  metrics = {}
  for name, values in named.items():
    if values is not None:
      values = np.asarray(values, float)
      for place in np.ndindex(values.shape[step.ndim :]):  # Each number of a probe is a metric of its own.
        metrics[name + (f"[{','.join(map(str, place))}]" if place else "")] = values[..., *place]
  index = {"step": step} | _students("records", step, 1)
  values = np.stack([*metrics.values()], -1) if metrics else np.zeros((*step.shape, 0))
  return _stack(index, "metric", list(metrics), values)


def lessons_to_frame(lessons: Any, classes: Sequence[str] | None = None) -> Any:
  """Return `Lessons` as a pandas frame with the columns step, place, example, class, label; student first for many."""
  index, label = np.asarray(lessons.index), np.asarray(lessons.label)
  if label.ndim != index.ndim + 1:
    raise ValueError(f"lessons must have labels [steps, m, K] to become a table, but they are {list(label.shape)}")
  names = list(range(label.shape[-1])) if classes is None else list(classes)
  if len(names) != label.shape[-1]:
    raise ValueError(f"classes must hold {label.shape[-1]} names, as labels are long, but it holds {len(names)}")
  steps, places = np.indices(index.shape[-2:])
  columns = {"step": steps + np.zeros_like(index), "place": places + np.zeros_like(index), "example": index}
  return _stack(columns | _students("lessons", index, 2), "class", names, label, "label")


def _students(name: str, values: np.ndarray, ndim: int) -> dict[str, np.ndarray]:
  if values.ndim == ndim:
    return {}
  if values.ndim != ndim + 1:
    raise ValueError(f"{name} of vmapped calls must be taken apart first: jax.tree.map(lambda leaf: leaf[i], result)")
  return {"student": np.indices(values.shape)[0]}


def _stack(
  index: Mapping[str, np.ndarray], kind: str, names: Sequence[Any], values: np.ndarray, title: str = "value"
) -> Any:
  """Return a frame with a row for each of `values [..., names]`, all of a name together, the student first."""
  try:
    import pandas
  except ModuleNotFoundError as error:
    raise ModuleNotFoundError("to_frame needs pandas: pip install pandas", name="pandas") from error
  shape = values.shape[:-1]
  order = sorted(index, key=lambda name: name != "student")
  columns = {name: np.tile(index[name].reshape(-1), len(names)) for name in order}
  columns[kind] = np.repeat(np.array(names, object), math.prod(shape))
  return pandas.DataFrame(columns | {title: np.moveaxis(values, -1, 0).reshape(-1)})
