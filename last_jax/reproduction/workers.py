"""Figures in worker processes: all cores are used, and a crash of one figure does not touch the others."""

import contextlib
import ctypes
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from last_jax import compiler, devices
from last_jax.reproduction import storage
from last_jax.reproduction.config import Figure, Size

_PR_SET_PDEATHSIG = 1  # Of Linux: the signal that a process receives when its parent has ended.


class Finished(NamedTuple):
  """The end of a figure."""

  figure: Figure
  seconds: float
  failure: str  # A traceback or a sentence; its last line says what was wrong; "" after success.


class _Progress(NamedTuple):
  """A message of a worker: the arguments of `Tell`."""

  text: str
  share: float


class _Ended(NamedTuple):
  """The last message of a worker about a figure."""

  failure: str


class _Worker:
  """A process that makes one figure after the other.

  Each has a pipe of its own. A process that is killed can therefore damage nobody else's messages, and the end of the
  pipe comes after all messages that were sent before.
  """

  def __init__(self, context: Any, size: Size, out: pathlib.Path):
    self.connection, theirs = context.Pipe()
    self.process = context.Process(target=_work, args=(size, out, theirs), daemon=True)
    self.process.start()
    theirs.close()  # Otherwise the pipe would stay open when the process ends.
    self.figure: Figure | None = None
    self._begin = 0.0

  def make(self, figure: Figure | None) -> None:
    """Order a figure; None ends the process."""
    self.figure, self._begin = figure, time.perf_counter()
    with contextlib.suppress(OSError):  # The process has ended: `receive` will say so.
      self.connection.send(figure)

  def receive(self) -> _Progress | _Ended | None:
    """Return the next message; None if the process has ended and all messages were read."""
    try:
      return self.connection.recv()
    except (EOFError, OSError):
      return None

  def finish(self, failure: str) -> Finished:
    """Return the result of the current figure, and be idle."""
    assert self.figure is not None
    result = Finished(self.figure, time.perf_counter() - self._begin, failure)
    self.figure = None
    return result

  def end(self) -> None:
    """End the process at once."""
    self.process.terminate()
    self.process.join()
    self.connection.close()


def run_figures(
  figures: Sequence[Figure],
  size: Size,
  out: pathlib.Path,
  jobs: int,
  on_progress: Callable[[Figure, str, float], None],
  on_finished: Callable[[Finished], None],
) -> None:
  """Make every figure, each into a folder of its name, several at a time.

  An interrupt (Ctrl-C) ends all processes and is raised; finished figures stay.

  Args:
    figures: Which ones. Their `run` must be functions that another process can import.
    size: How large.
    out: The folder of their folders.
    jobs: The number of processes.
    on_progress: Called with a figure, a description of its current work, and the share that is done.
    on_finished: Called at the end of every figure, also of one that failed.
  """
  context = multiprocessing.get_context("spawn")  # A fork of a process that runs JAX can hang.
  waiting = sorted(figures, key=lambda figure: -figure.weight)  # Long ones first: none should run alone at the end.
  workers: list[_Worker] = []
  try:
    while waiting or any(worker.figure for worker in workers):
      workers += [_Worker(context, size, out) for _ in range(min(jobs - len(workers), len(waiting)))]
      for worker in workers:
        if worker.figure is None and waiting:
          figure = waiting.pop(0)
          worker.make(figure)
          on_progress(figure, "starting", 0.0)
      ready = multiprocessing.connection.wait([worker.connection for worker in workers])
      for worker in [each for each in workers if each.connection in ready]:
        message = worker.receive()
        if message is None:  # Killed, or crashed below Python: its figure is lost, the others are not.
          workers.remove(worker)
          worker.process.join()
          if worker.figure is not None:
            on_finished(worker.finish(_describe_end(worker.process.exitcode)))
          worker.end()
        elif isinstance(message, _Ended):
          on_finished(worker.finish(message.failure))
        elif worker.figure is not None:
          on_progress(worker.figure, *message)
    for worker in workers:
      worker.make(None)
      worker.process.join()
  finally:
    for worker in workers:
      worker.end()


def _describe_end(code: int) -> str:
  return f"its process ended with the status {code}" + (" (killed, perhaps for lack of memory)" if code == -9 else "")


def _end_with_parent() -> None:
  """Have this process end when its parent does, however that ends, and whatever is being computed here."""
  parent = multiprocessing.parent_process()
  if parent is None:
    return
  if sys.platform == "linux":  # The kernel does it, also while this process is stopped or holds Python's lock.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)

  def watch() -> None:
    multiprocessing.connection.wait([parent.sentinel])
    os._exit(1)

  # On other systems, and on Linux for a parent that has ended already.
  threading.Thread(target=watch, daemon=True).start()


def _work(size: Size, out: pathlib.Path, connection: Any) -> None:
  """Make the figures that arrive, until None does. This is the main function of a worker process."""
  _end_with_parent()
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the parent decides.
  if size.name != "full":
    # Compiling takes most of the time of a small figure; this level halves it and costs little speed.
    compiler.add_xla_flags({"--xla_backend_optimization_level": "1"})
  devices.prepare()
  devices.enable_compilation_cache()

  def tell(text: str, share: float) -> None:
    connection.send(_Progress(text, share))

  # Without the parent, sending raises an OSError and receiving an EOFError: the process ends.
  with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
    while (figure := connection.recv()) is not None:
      connection.send(_Ended(_make(figure, size, out, tell)))


def _make(figure: Figure, size: Size, out: pathlib.Path, tell: Callable[[str, float], None]) -> str:
  """Make a figure and write its files. Return the traceback of an error or what was not drawn; "" after success."""
  try:
    begin = time.perf_counter()
    outcome = figure.run(size, tell)
    tell("drawing", 0.98)
    return "; ".join(storage.save(out / figure.name, figure, size, outcome, time.perf_counter() - begin))
  except (BrokenPipeError, ConnectionResetError):
    raise
  except Exception:
    return traceback.format_exc()
