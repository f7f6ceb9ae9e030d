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


def take_literally(figure: Any) -> None:
  """Have all texts of a figure appear as they are, except the numbers along axes.

  Names of data sets, classes and methods may hold "$", which begins a formula in matplotlib, or stand for bytes that
  are not UTF-8, which it cannot draw.
  """
  from matplotlib.text import Text
  from matplotlib.ticker import FixedFormatter, FuncFormatter

  numbers = set()
  for place in figure.axes:
    for axis in (place.xaxis, place.yaxis):
      if isinstance(axis.get_major_formatter(), (FixedFormatter, FuncFormatter)):  # Names, given once and for all.
        axis.set_ticklabels([_printable(label.get_text()) for label in axis.get_ticklabels()])
      else:
        ticks = (*axis.get_major_ticks(), *axis.get_minor_ticks())
        numbers |= {label for tick in ticks for label in (tick.label1, tick.label2)} | {axis.get_offset_text()}
  for text in figure.findobj(Text):
    if text not in numbers:
      text.set_parse_math(False)
      text.set_text(_printable(text.get_text()))


def _printable(text: str) -> str:
  """Return the text with bytes that are not UTF-8 as escapes."""
  return text.encode(errors="backslashreplace").decode()


def as_png(figure: Any) -> bytes:
  """Return the content of the figure's PNG file."""
  take_literally(figure)
  stream = io.BytesIO()
  figure.savefig(stream, format="png")
  return stream.getvalue()


def write_png(path: FilePath, figure: Any) -> None:
  """Write the figure, or replace the file, whole."""
  take_literally(figure)
  with replaced(path) as temporary:
    figure.savefig(temporary, format="png")
