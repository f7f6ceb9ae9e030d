"""Starts processes as `workers.run_figures` does, prints their ids, and waits: for a test that kills this one."""

import multiprocessing
import pathlib
import signal
import sys
import tempfile
import time

from last_jax.reproduction import Figure, Size, workers


def hold(size, tell):
  """Compute for ever, and never say anything: a figure that does not notice that nobody listens."""
  tell("holding", 0.5)
  while True:
    sum(range(1000))


def watch_without_the_kernel():
  """End with the parent by the means of other systems."""
  sys.platform = "another"
  workers._end_with_parent()
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  time.sleep(600)


def main():
  def on_progress(figure, text, share):
    if text == "holding":
      children = multiprocessing.active_children()
      if len(children) == 3:
        print(*(child.pid for child in children), flush=True)

  multiprocessing.get_context("spawn").Process(target=watch_without_the_kernel, daemon=True).start()
  figures = [Figure(name, name, "Figure 1", "A test.", hold, 1.0) for name in ("one", "two")]
  with tempfile.TemporaryDirectory() as folder:
    workers.run_figures(figures, Size("quick", 2), pathlib.Path(folder), 2, on_progress, print)


if __name__ == "__main__":
  main()
