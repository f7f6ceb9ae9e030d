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
    for limit in measured.limits:
      # Bytes belong into the column of memory, numbers beside the ratios.
      value, most = (in_bytes(each) if limit.unit == "B" else f"{each:.2g}" for each in (limit.value, limit.most))
      places = (value, "") if limit.unit == "B" else ("", value)
      table.add_row("", limit.name, "", "", *places, f"≤ {most}, {'reached' if limit.met else 'missed'}")
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
  """Return the temporary memory, "1.40 MiB", or nothing where it is not known."""
  return "" if timing.temporary_bytes is None else in_bytes(timing.temporary_bytes)


def in_bytes(value: float) -> str:
  """Return "1.40 MiB"."""
  size, unit = next((pair for pair in _BYTES if value >= pair[0]), _BYTES[-1])
  return f"{digits(value / size)} {unit}"


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
