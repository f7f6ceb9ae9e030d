"""Pictures of results, for notebooks: `last.plot`."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from last_jax.base import Records, Result
from last_jax.teaching import METRICS
from last_jax.tools.charts import Curves, metric_charts
from last_jax.tools.files import FilePath
from last_jax.tools.plots import draw_charts
from last_jax.tools.png import as_png, write_png

_Taught = Result | Records


def plot(
  results: _Taught | Mapping[str, _Taught], *, title: str = "", path: FilePath | None = None, x_log: bool = False
) -> Any:
  """Draw the metrics by iteration, as the commands do: means over students with 95 % confidence bands.

      last.plot({"SGD": last.teach_many(...), "LAST": last.teach_many(...)})

  Args:
    results: those of `teach` or `teach_many`, or the records of `run`; several by the names of their methods.
    title: above the panels.
    path: a PNG file to write too.
    x_log: whether the axis of iterations is logarithmic.

  Returns:
    A matplotlib figure, which notebooks show.
  """
  named = results if isinstance(results, Mapping) else {"": results}
  if not named:
    raise ValueError("results must not be empty: give a Result, or several by name")
  curves = [_curves(name, result, place) for place, (name, result) in enumerate(named.items())]
  figure = draw_charts(metric_charts(curves, x_log=x_log), title=title, who="students")
  if path is not None:
    write_png(path, figure)
  # Notebooks look for this name. They know figures themselves only once pyplot is imported.
  figure._repr_png_ = functools.partial(as_png, figure)
  return figure


def _curves(name: str, result: Any, place: int) -> Curves:
  records = result.records if isinstance(result, Result) else result
  if not isinstance(records, Records):
    raise TypeError(
      f"results must be what teach, teach_many or run return, or a dict of such by name, but {name or 'it'} is a "
      f"{type(result).__name__}"
    )
  step = np.asarray(records.step)
  if step.ndim > 2:
    raise ValueError(f"results of vmapped calls must be taken apart first, but step has shape {list(step.shape)}")
  named = {metric: getattr(records, metric) for metric in METRICS}
  metrics = {metric: np.atleast_2d(values) for metric, values in named.items() if values is not None}
  return Curves(name, {"iteration": np.atleast_2d(step)[0]}, metrics, "other", place)
