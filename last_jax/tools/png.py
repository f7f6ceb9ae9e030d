"""PNG files by matplotlib, without a display and without its global state."""

import io
from typing import Any

from last_jax.io import replaced
from last_jax.tools.files import FilePath


def make_figure(width: float, height: float) -> Any:
  """Return an empty matplotlib figure of this size in inches."""
  from matplotlib.backends.backend_agg import FigureCanvasAgg
  from matplotlib.figure import Figure

  figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
  FigureCanvasAgg(figure)
  return figure


def as_png(figure: Any) -> bytes:
  """Return the content of the figure's PNG file."""
  stream = io.BytesIO()
  figure.savefig(stream, format="png")
  return stream.getvalue()


def write_png(path: FilePath, figure: Any) -> None:
  """Write the figure, or replace the file, whole."""
  with replaced(path) as temporary:
    figure.savefig(temporary, format="png")
