"""Showing results: files of a run folder, means with intervals, charts as data, PNG pictures and the HTML page.

matplotlib, plotly and scipy are imported by the functions that need them.
"""

from last_jax.tools.charts import PANELS, Chart, Curves, Gallery, LabelFrames, Level, Line, Picture, metric_charts
from last_jax.tools.files import check_writable, package_versions, versions, write_json
from last_jax.tools.plots import draw_charts, plot_charts, plot_training
from last_jax.tools.results import plot
from last_jax.tools.statistics import Interval, interval_ends, mean_interval, rounding_floor, spans_decades
from last_jax.tools.styles import FAMILIES, Ball, Family, Style, Variant, method_style
from last_jax.tools.sweeps import plot_sweep

__all__ = [
  "FAMILIES",
  "PANELS",
  "Ball",
  "Chart",
  "Curves",
  "Family",
  "Gallery",
  "Interval",
  "LabelFrames",
  "Level",
  "Line",
  "Picture",
  "Style",
  "Variant",
  "check_writable",
  "draw_charts",
  "interval_ends",
  "mean_interval",
  "method_style",
  "metric_charts",
  "package_versions",
  "plot",
  "plot_charts",
  "plot_sweep",
  "plot_training",
  "rounding_floor",
  "spans_decades",
  "versions",
  "write_json",
]
