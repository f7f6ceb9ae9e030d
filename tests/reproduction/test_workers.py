"""Figures in worker processes: results, failures, and processes that die."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from last_jax.reproduction import Claim, Comparison, Figure, Outcome, Size, storage, workers
from tests.launch.running import start_process

QUICK = Size("quick", 2)
MESSAGES = 50


def good(size, tell):
  tell("half", 0.5)
  return Outcome({}, (), (Claim("it holds", [Comparison("a against b", np.ones(size.seeds))]),))


def bad(size, tell):
  raise ValueError("this figure fails")


def killed_with_messages_queued(size, tell):
  """Sends messages, which the parent is slow to read (see `Log`), and is killed."""
  for number in range(MESSAGES):
    tell(f"message {number}", number / MESSAGES)
  os.kill(os.getpid(), signal.SIGKILL)


def killed_between_figures(size, tell):
  """The process dies after this figure is finished, before or after the next one is ordered."""
  import threading

  threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGKILL)).start()
  return good(size, tell)


def slow(size, tell):
  time.sleep(60)
  raise AssertionError("the process should have died before")


def figure(name, run, weight=1.0):
  return Figure(name, name.title(), "Figure 1", "A test.", run, weight)


class Log:
  """Records the callbacks, and pauses at the first message."""

  def __init__(self, pause=0.0):
    self.pause, self.progress, self.finished = pause, [], []

  def on_progress(self, figure, text, share):
    assert 0 <= share <= 1
    if text == "message 0":
      time.sleep(self.pause)
    self.progress.append((figure.name, text))

  def on_finished(self, result):
    self.finished.append(result)

  @property
  def failures(self):
    return {each.figure.name: each.failure for each in self.finished}


def run(figures, out, jobs=1, pause=0.0):
  log = Log(pause)
  workers.run_figures(figures, QUICK, out, jobs, log.on_progress, log.on_finished)
  assert sorted(each.figure.name for each in log.finished) == sorted(each.name for each in figures)
  return log


@pytest.mark.slow
def test_figures_are_made_and_failures_reported(tmp_path):
  figures = [figure("light", good), figure("failing", bad, 2.0), figure("heavy", good, 3.0)]
  log = run(figures, tmp_path)
  assert [each.figure.name for each in log.finished] == ["heavy", "failing", "light"]  # Long ones first.
  assert "ValueError: this figure fails" in log.failures["failing"]
  assert log.failures["light"] == log.failures["heavy"] == ""
  assert ("light", "half") in log.progress
  for each in (figures[0], figures[2]):
    assert storage.load(tmp_path / each.name, each, QUICK) is not None
  assert not (tmp_path / "failing").exists()


@pytest.mark.slow
def test_a_process_that_dies_with_messages_queued_takes_one_figure_with_it(tmp_path):
  figures = [figure("killed", killed_with_messages_queued, 2.0), figure("next", good)]
  log = run(figures, tmp_path, pause=1.0)
  assert "ended with the status -9" in log.failures["killed"]
  assert log.failures["next"] == ""
  # All that it said before it died was heard.
  assert [text for name, text in log.progress if name == "killed"][1:] == [f"message {n}" for n in range(MESSAGES)]


@pytest.mark.slow
def test_a_finished_figure_stays_when_its_process_dies_later(tmp_path):
  log = run([figure("first", killed_between_figures, 2.0), figure("second", slow)], tmp_path)
  assert log.failures["first"] == ""
  assert "ended with the status -9" in log.failures["second"]


@pytest.mark.slow
def test_no_process_outlives_the_run(tmp_path):
  import multiprocessing

  class Stop(Exception):
    pass

  def stop(*_):
    raise Stop

  with pytest.raises(Stop):
    workers.run_figures([figure("one", good), figure("two", slow)], QUICK, tmp_path, 2, lambda *_: None, stop)
  assert multiprocessing.active_children() == []


@pytest.mark.slow
def test_processes_end_with_a_parent_that_is_killed():
  root = pathlib.Path(__file__).parents[2]
  with subprocess.Popen(
    [sys.executable, "-m", "tests.reproduction.orphans"], cwd=root, stdout=subprocess.PIPE, text=True
  ) as parent:
    children = [int(word) for word in parent.stdout.readline().split()]
    time.sleep(0.5)
    parent.kill()
  assert len(children) == 3
  deadline = time.monotonic() + 10
  while running := [child for child in children if is_running(child)]:
    assert time.monotonic() < deadline, running
    time.sleep(0.05)


def is_running(process):
  try:
    os.kill(process, 0)
  except ProcessLookupError:
    return False
  status = pathlib.Path(f"/proc/{process}/stat")  # A process that nobody has waited for is there, but does not run.
  return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.faults
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("moment", range(8))
def test_a_reproduction_that_is_killed_leaves_no_process(tmp_path, moment, number):
  process = start_process([f"--out={tmp_path}", "--quick", "--jobs=2", "--seeds=2"], "launch.reproduce")
  children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children")
  if not children.exists():
    process.kill()
    pytest.skip("the system does not list the children of a process")
  time.sleep(4.0 + 3 * moment)
  started = [int(word) for word in children.read_text().split()]
  process.send_signal(number)
  process.communicate(timeout=60)
  assert process.returncode in (0, -number, 128 + number)
  time.sleep(2)
  assert not [child for child in started if is_running(child)]
