"""Figures as tables."""

from collections.abc import Iterable, Sequence

from rich.table import Table

from benchmarks.records import Against, Measurement, Target, Timing

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_BYTES = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


def make_table(measurements: Iterable[Measurement]) -> Table:
  """A row for our time of each job, and one for each kind of baseline. In brackets: quartiles."""
  table = Table(title="last_jax and what it is compared with: medians, with quartiles in brackets")
  for column in ("job", "sizes, and what against"):
    table.add_column(column)
  for column in ("time", "compiling", "last_jax is", "target"):
    table.add_column(column, justify="right")
  for measured in measurements:
    ours = measured.ours
    table.add_row(measured.job, _sizes(measured), spread(ours), seconds(ours.compile_seconds), "", "")
    for against in measured.against:
      table.add_row("", against.timing.name, spread(against.timing), "", _ratio(against), _target(against))
    table.add_section()
  return table


def make_scaling_table(measurements: Iterable[Measurement]) -> Table:
  """A row for every place on an axis."""
  table = Table(title="How times and memory grow")
  for column in ("job", "size", "what"):
    table.add_column(column, justify="right" if column == "size" else "left")
  for column in ("time", "compiling", "temporary memory", "compared with"):
    table.add_column(column, justify="right")
  for measured in measurements:
    ours = measured.ours
    table.add_row(
      measured.job,
      f"{measured.size:,}",
      f"{ours.name}, per {measured.unit}",
      spread(ours),
      seconds(ours.compile_seconds),
      memory(ours),
      "\n".join(map(_in_a_line, measured.against)),
    )
  return table


def seconds(value: float) -> str:
  """As "38.1 ns"."""
  size, unit = unit_of(value)
  return f"{_digits(value / size)} {unit}"


def unit_of(value: float) -> tuple[float, str]:
  """The unit that so many seconds are best said in: how many seconds it has, and its name."""
  return next((pair for pair in _SECONDS if value >= pair[0]), _SECONDS[-1])


def spread(timing: Timing) -> str:
  """The median and, in brackets, the quartiles."""
  size, unit = unit_of(timing.median)
  median, lower, upper = (
    _digits(value / size) for value in (timing.median, timing.lower_quartile, timing.upper_quartile)
  )
  return rf"{median} \[{lower}, {upper}] {unit}"  # Escaped: rich takes brackets for markup.


def memory(timing: Timing) -> str:
  """As "1.40 MiB"."""
  if timing.temporary_bytes is None:
    return "-"
  size, unit = next((pair for pair in _BYTES if timing.temporary_bytes >= pair[0]), _BYTES[-1])
  return f"{_digits(timing.temporary_bytes / size)} {unit}"


def _digits(value: float) -> str:
  """Three of them, or all before the point."""
  return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _sizes(measured: Measurement) -> str:
  sizes = ", ".join(f"{name.replace('_', ' ')} {size:,}" for name, size in measured.problem["sizes"].items())
  return f"{sizes}: per {measured.unit}"


def _ratio(against: Against) -> str:
  """How many times as fast we are or, where the target is about that, how many times as long we take."""
  values: Sequence[float] = (against.ratio, against.ratio_lower_quartile, against.ratio_upper_quartile)
  longer = against.target is not None and against.target.slower
  if longer:
    values = [1 / against.ratio, 1 / against.ratio_upper_quartile, 1 / against.ratio_lower_quartile]
  ratio, lower, upper = map(_digits, values)
  return rf"{ratio} × as {'long' if longer else 'fast'} \[{lower}, {upper}]"


def _target(against: Against) -> str:
  return "" if against.target is None else f"{_aim(against.target)}, {'reached' if against.met else 'missed'}"


def _aim(target: Target) -> str:
  return f"{'≤' if target.slower else '≥'} {target.factor:g}"


def _in_a_line(against: Against) -> str:
  needs = "" if against.timing.temporary_bytes is None else f", {memory(against.timing)}"
  target = "" if against.target is None else f" ({_target(against)})"
  return f"{against.kind}{needs}: {_ratio(against)}{target}"
