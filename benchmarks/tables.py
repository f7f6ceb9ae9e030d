"""Measurements as tables."""

from collections.abc import Iterable

from rich.table import Table

from benchmarks.records import BaselineResult, Measurement, Timing

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def make_table(measurements: Iterable[Measurement]) -> Table:
  """Return a table with a row for our time of each case, and one for each of its baselines."""
  table = Table(title="last_jax and its baselines: medians, with quartiles in brackets")
  for column in ("job", "case, and baselines"):
    table.add_column(column)
  for column in ("time", "compiling", "memory", "last_jax is", "target"):
    table.add_column(column, justify="right")
  for measured in measurements:
    ours = measured.ours
    row = spread(ours), seconds(ours.compile_seconds), memory(ours)
    table.add_row(measured.job, f"{case_name(measured)}: per {measured.unit}", *row)
    for against in measured.against:
      timing = against.timing
      table.add_row("", timing.name, spread(timing), "", memory(timing), _ratio(against), _target(against))
    table.add_section()
  return table


def case_name(measured: Measurement) -> str:
  """Return the side and its size along the axis or, where there is no axis, all sizes."""
  sizes = {measured.axis: measured.size} if measured.axis else measured.problem["sizes"]
  named = ", ".join(f"{name.replace('_', ' ')} {size:,}" for name, size in sizes.items())
  return f"{measured.ours.name}, {named}" if measured.axis else named


def seconds(value: float) -> str:
  """Return "38.1 ns"."""
  size, unit = unit_of(value)
  return f"{digits(value / size)} {unit}"


def unit_of(value: float) -> tuple[float, str]:
  """Return the unit for a time in seconds: its length in seconds, and its name."""
  return next((pair for pair in _SECONDS if value >= pair[0]), _SECONDS[-1])


def spread(timing: Timing) -> str:
  """Return the median and, in brackets, the quartiles."""
  size, unit = unit_of(timing.median)
  median, lower, upper = (
    digits(value / size) for value in (timing.median, timing.lower_quartile, timing.upper_quartile)
  )
  return f"{median} [{lower}, {upper}] {unit}"


def memory(timing: Timing) -> str:
  """Return "1.40 MiB"."""
  if timing.temporary_bytes is None:
    return ""
  size, unit = next((pair for pair in _BYTES if timing.temporary_bytes >= pair[0]), _BYTES[-1])
  return f"{digits(timing.temporary_bytes / size)} {unit}"


def digits(value: float) -> str:
  """Return three significant digits, or all before the point."""
  return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _ratio(against: BaselineResult) -> str:
  """Return the factor by which last_jax is faster or, where the target says so, takes longer."""
  ratios = (against.ratio, against.ratio_lower_quartile, against.ratio_upper_quartile)
  longer = against.target is not None and against.target.slower
  if longer:
    ratios = (1 / against.ratio, 1 / against.ratio_upper_quartile, 1 / against.ratio_lower_quartile)
  ratio, lower, upper = map(digits, ratios)
  return f"{ratio} × as {'long' if longer else 'fast'} [{lower}, {upper}]"


def _target(against: BaselineResult) -> str:
  if against.target is None:
    return ""
  return f"{'≤' if against.target.slower else '≥'} {against.target.factor:g}, {'reached' if against.met else 'missed'}"
