"""What is left of a run: records in files, means with their intervals, and pictures."""

from last_jax.report.plots import PANELS, needs_log, plot_charts, plot_curves, plot_training, rounding_floor
from last_jax.report.records import check_writable, versions, write_json, write_npz
from last_jax.report.statistics import Interval, mean_interval
from last_jax.report.styles import Style, method_style

__all__ = [
  "PANELS",
  "Interval",
  "Style",
  "check_writable",
  "mean_interval",
  "method_style",
  "needs_log",
  "plot_charts",
  "plot_curves",
  "plot_training",
  "rounding_floor",
  "versions",
  "write_json",
  "write_npz",
]
