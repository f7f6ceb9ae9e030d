"""Processes that do the work of a side of a comparison, on command: a line on their standard input for each time."""

import contextlib
import pathlib
import subprocess
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

_END_SECONDS = 120  # For a process to end.


class Workers:
  """Processes that work together on command."""

  def __init__(self, processes: list[subprocess.Popen[str]], file: pathlib.Path):
    self._processes, self._file = processes, file

  def work(self) -> None:
    """Have the work done once; return when all are done."""
    self._command("work")

  def result(self) -> np.ndarray:
    """Have the work done once and return its result."""
    self._command("save")
    return np.load(self._file)

  def _command(self, word: str) -> None:
    for process in self._processes:
      assert process.stdin is not None, "it was opened as a pipe"
      process.stdin.write(f"{word}\n")
      process.stdin.flush()
    for process in self._processes:
      assert process.stdout is not None, "it was opened as a pipe"
      while (line := process.stdout.readline()) != "done\n":  # Libraries may print as well.
        if not line:
          raise RuntimeError(f"a process of the benchmark ended with the status {process.wait()}")


@contextlib.contextmanager
def start(
  commands: Sequence[Sequence[str]], file: pathlib.Path, environment: Mapping[str, str] | None = None
) -> Iterator[Workers]:
  """Start a process for each command.

  Args:
    commands: each starts a process that prints "done" after every line that it reads, and ends with its input.
    file: what they write at the line "save", an `.npy`.
    environment: theirs, if it is not ours.
  """
  processes = [
    subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    for command in commands
  ]
  try:
    yield Workers(processes, file)
  finally:
    for process in processes:
      assert process.stdin is not None, "it was opened as a pipe"
      process.stdin.close()  # The process ends with its input.
    for process in processes:
      process.wait(_END_SECONDS)
      assert process.stdout is not None, "it was opened as a pipe"
      process.stdout.close()
