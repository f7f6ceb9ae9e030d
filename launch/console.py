"""What a person sees of a command: lines, tables, and what it is doing, with the time left.

In a terminal, what the command does is a line at the bottom with a bar. Elsewhere, in a log or a pipe, it is a plain
line on stderr whenever `QUIET_SECONDS` have passed without another line, so that nobody takes a command that compiles
for one that hangs.
"""

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

QUIET_SECONDS = 10.0  # Between two lines, where the output is no terminal.
_LONGER = 0.2  # Share of its time that a part takes yet, if it has taken longer than expected.
_NOTICED = 0.5  # Where the output is no terminal, the longest time by which a line may come late.


Left = float | Callable[[], float | None] | None  # A number of seconds, or a function that knows it at any time.


class _Countdown:
  """The time left, as text: a number becomes less by itself."""

  def __init__(self, left: Left):
    self._left, self._begin = left, time.monotonic()

  def __str__(self) -> str:
    left = self._left() if callable(self._left) else self._left
    if left is not None and not callable(self._left):
      left -= time.monotonic() - self._begin
    return "" if left is None or left < 0 else f"about {clock(left)} left"


class Task:
  """Something that a command does, and how far it is."""

  def __init__(self, text: str, total: float | None):
    """Begin.

    Args:
      text: what it is.
      total: of `update`'s `done`; None where nobody knows.
    """
    self._text, self._total, self._done = text, total, 0.0
    self._begin, self._left, self._bar = time.monotonic(), _Countdown(None), None
    self._refresh: Callable[[], None] | None = None

  def now(self, text: str) -> None:
    """Say what is done now; its time is counted from here."""
    if text != self._text:
      self._text, self._begin = text, time.monotonic()
    self._changed()

  def update(self, done: float, text: str | None = None, left: Left = None) -> None:
    """Say how far it is; `left` is the number of seconds that it still takes, if somebody knows."""
    if text is not None and text != self._text:
      self._text, self._begin = text, time.monotonic()
    self._done, self._left = done, _Countdown(left)
    self._changed()

  def _changed(self) -> None:
    if self._refresh is not None:
      self._refresh()

  def describe(self) -> str:
    """Return it as a line without a bar."""
    share = f"{100 * self._done / self._total:.0f} %" if self._total and self._done else ""
    taken = f"{self._text} for {clock(time.monotonic() - self._begin)}"
    return ", ".join(part for part in (taken, share and f"{share} done", str(self._left)) if part)

  @property
  def fields(self) -> dict[str, Any]:
    """What a bar of `rich` shows."""
    return {"description": self._text, "completed": self._done, "total": self._total, "left": self._left}


class Console:
  """Where a command prints. One of several processes prints; the others are quiet."""

  def __init__(self, quiet: bool = False):
    """Find out whether it is a terminal; tables are not folded where it is none."""
    from rich.console import Console as RichConsole

    self._quiet = quiet
    # Names of data sets and classes are text as it is, though [x] or :x: are in them.
    plain: Any = {"highlight": False, "markup": False, "emoji": False, "quiet": quiet}
    console = RichConsole(**plain)
    self._rich = console if console.is_terminal else RichConsole(**plain, width=160)
    self._tasks: list[Task] = []
    self._bars: Any = None
    self._watch: threading.Thread | None = None
    self._ended = threading.Event()
    self._last_line = time.monotonic()

  @property
  def is_terminal(self) -> bool:
    """Whether somebody watches."""
    return self._rich.is_terminal

  def print(self, renderable: Any = "") -> None:
    """Print a table, or text."""
    self._rich.print(renderable)
    self._last_line = time.monotonic()

  def say(self, text: str) -> None:
    """Print a line without folding it."""
    self._rich.print(text, soft_wrap=True)
    self._last_line = time.monotonic()

  @contextlib.contextmanager
  def doing(self, text: str, total: float | None = None) -> Iterator[Task]:
    """Show inside the block what the command does. Blocks may be nested."""
    task = Task(text, total)
    self._begin(task)
    try:
      yield task
    finally:
      self._end(task)

  def _begin(self, task: Task) -> None:
    self._tasks.append(task)
    if self._rich.is_terminal and not self._quiet:
      if self._bars is None:
        self._bars = _make_bars(self._rich)
        self._bars.start()
      bars, number = self._bars, self._bars.add_task(**task.fields)
      task._bar, task._refresh = number, lambda: bars.update(number, **task.fields)
    elif self._watch is None and not self._quiet:
      self._ended = threading.Event()
      self._last_line = time.monotonic()
      self._watch = threading.Thread(target=self._report, args=(self._ended,), daemon=True)
      self._watch.start()

  def _end(self, task: Task) -> None:
    self._tasks.remove(task)
    if self._bars is not None:
      self._bars.remove_task(task._bar)
    if self._tasks:
      return
    if self._bars is not None:
      self._bars.stop()
      self._bars = None
    if self._watch is not None:
      self._ended.set()
      self._watch.join()
      self._watch = None

  def _report(self, ended: threading.Event) -> None:
    """Write a line whenever there was none for long, until the last task has ended."""
    while not ended.wait(min(_NOTICED, QUIET_SECONDS / 4)):
      if time.monotonic() - self._last_line < QUIET_SECONDS - _NOTICED:
        continue
      tasks = "; ".join(task.describe() for task in [*self._tasks])
      with contextlib.suppress(OSError, ValueError):  # Nobody reads them any more.
        print(f"... {tasks}", file=sys.stderr, flush=True)
      self._last_line = time.monotonic()


def _make_bars(console: Any) -> Any:
  from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

  words = TextColumn("{task.description}", markup=False)
  left = TextColumn("{task.fields[left]}", markup=False)
  return Progress(words, BarColumn(), TimeElapsedColumn(), left, console=console, transient=True)


def clock(seconds: float) -> str:
  """Return a time as people read it: 42 s, 3:05, 1:02:07."""
  minutes, rest = divmod(max(0, round(seconds)), 60)
  hours, minutes = divmod(minutes, 60)
  return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}" if minutes else f"{rest} s"


class Forecast:
  """How long the rest of a run takes, whose parts come one after the other: each compiles first, then takes its steps.

  What is not known of parts to come is taken to be as in those before, and in the one under way.
  """

  def __init__(self, parts: int, now: Callable[[], float] = time.perf_counter):
    """Begin.

    Args:
      parts: number of parts.
      now: the clock, in seconds.
    """
    self._now, self._parts = now, parts
    self._taken: list[float] = []  # By the parts that are finished.
    self._begin, self._first = now(), 0.0

  def begin(self, share: float = 0.0) -> None:
    """Take note that a part begins, of which a share is done already."""
    self._begin, self._first = self._now(), share

  def left(self, share: float, compiling: float) -> float | None:
    """Return the number of seconds that all the rest takes, or None where nothing is known yet.

    Args:
      share: of the part under way that is done.
      compiling: seconds that it has compiled for.
    """
    taken, known = self._now() - self._begin, [*self._taken]
    if share > self._first:
      rest = (taken - compiling) * (1 - share) / (share - self._first)
      known.append(taken + rest)
    elif known:
      rest = max(sum(known) / len(known) - taken, _LONGER * taken)
    else:
      return None
    to_come = self._parts - len(self._taken) - 1
    return rest + to_come * sum(known) / len(known)

  def end(self) -> None:
    """Take note that the part under way is finished."""
    self._taken.append(self._now() - self._begin)
