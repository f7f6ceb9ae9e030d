"""Figures in processes of their own: all cores are used, and what happens to one figure the others do not feel."""

import multiprocessing
import os
import pathlib
import queue
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from last_jax import devices, experiments
from last_jax.experiments import FIGURES, Figure, Size

_PATIENCE = 0.2  # Seconds between looks at whether a process is still there.


class Finished(NamedTuple):
  """How making a figure ended."""

  figure: Figure
  seconds: float
  failure: str  # Why there is none, or "".

  @property
  def name(self) -> str:
    """The figure's."""
    return self.figure.name


class _Worker:
  """A process that makes one figure after the other, as it is told."""

  def __init__(self, context: Any, size: Size, out: pathlib.Path, messages: Any):
    self.orders = context.Queue()
    self.figure: Figure | None = None
    self.begin = 0.0
    self.process = context.Process(target=work, args=(size, out, self.orders, messages, os.getpid()), daemon=True)
    self.process.start()

  def make(self, figure: Figure | None) -> None:
    """Has it make this figure; None: end."""
    self.figure, self.begin = figure, time.perf_counter()
    self.orders.put(None if figure is None else figure.name)

  def finish(self, failure: str) -> Finished:
    """What became of its figure."""
    assert self.figure is not None
    result = Finished(self.figure, time.perf_counter() - self.begin, failure)
    self.figure = None
    return result


def run_figures(
  figures: Sequence[Figure],
  size: Size,
  out: pathlib.Path,
  jobs: int,
  on_progress: Callable[[Figure, str, float], None],
  on_finished: Callable[[Finished], None],
) -> None:
  """Makes every figure into a folder of its name, `jobs` at a time.

  Args:
    figures: which.
    size: how large.
    out: where.
    jobs: how many at the same time.
    on_progress: told what a figure is doing, and which share of it is done.
    on_finished: told of every figure that ended, well or not.

  Ctrl-C ends all processes; what is finished stays.
  """
  context = multiprocessing.get_context("spawn")  # A fork of a process that runs JAX may hang.
  messages = context.Queue()
  waiting = sorted(figures, key=lambda figure: -figure.weight)  # The long ones first, or one would end alone.
  workers = [_Worker(context, size, out, messages) for _ in range(min(jobs, len(waiting)))]
  try:
    while waiting or any(worker.figure for worker in workers):
      for place, worker in enumerate(workers):
        if not worker.process.is_alive():  # Killed, or crashed below Python: its figure is lost, the others are not.
          if worker.figure is not None:
            on_finished(worker.finish(_died(worker.process.exitcode)))
          workers[place] = worker = _Worker(context, size, out, messages)
        if worker.figure is None and waiting:
          figure = waiting.pop(0)
          worker.make(figure)
          on_progress(figure, "starting", 0.0)
      try:
        name, text, share = messages.get(timeout=_PATIENCE)
      except queue.Empty:
        continue
      worker = next(each for each in workers if each.figure is not None and each.figure.name == name)
      if share is None:
        on_finished(worker.finish(text))
      else:
        on_progress(FIGURES[name], text, share)
    for worker in workers:
      worker.make(None)
      worker.process.join()
  finally:
    for worker in workers:
      worker.process.terminate()
      worker.process.join()


def _died(code: int) -> str:
  return f"its process ended with the status {code}" + (" (killed, perhaps for want of memory)" if code == -9 else "")


def _compile_quickly(size: Size) -> None:
  """Most of the time of a small figure is compiling: optimise less, which takes half of it and costs little speed."""
  if size.name != "full":
    devices.add_xla_flags({"--xla_backend_optimization_level": "1"})


def work(size: Size, out: pathlib.Path, orders: Any, messages: Any, parent: int) -> None:
  """Makes the figures that are ordered, until None is: what a process of its own runs."""
  signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process; the parent decides.
  _compile_quickly(size)
  devices.prepare()
  devices.keep_compiled()
  while (name := orders.get()) is not None:

    def tell(text: str, share: float, name: str = name) -> None:
      if os.getppid() != parent:
        raise SystemExit(1)  # Nobody is waiting any more.
      messages.put((name, text, share))

    try:
      begin = time.perf_counter()
      outcome = FIGURES[name].run(size, tell)
      tell("drawing", 0.98)
      experiments.save(out / name, FIGURES[name], size, outcome, time.perf_counter() - begin)
      messages.put((name, "", None))
    except Exception:
      messages.put((name, traceback.format_exc(), None))
