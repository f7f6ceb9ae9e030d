"""The progress bar of commands."""

from typing import Any


def make_progress(console: Any) -> Any:
  """A bar with the time left; it shows nothing unless it is watched."""
  from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

  place = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
  return Progress(
    *place, TimeRemainingColumn(), TextColumn("left"), console=console, transient=True, disable=not console.is_terminal
  )
