"""Ctrl-C and SIGTERM stop commands in order."""

import json
import os
import signal

import jax
import numpy as np
import pytest

from last_jax import devices
from launch import stopping
from tests.launch.running import start_process

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@pytest.fixture
def usual_handlers():
  """The handlers of a process that Python has just started."""
  before = {number: signal.getsignal(number) for number in SIGNALS}
  signal.signal(signal.SIGINT, signal.default_int_handler)
  signal.signal(signal.SIGTERM, signal.SIG_DFL)
  yield
  for number, handler in before.items():
    signal.signal(number, handler)


def send(number):
  os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_an_interrupt_with_an_exit_status_of_its_own(usual_handlers, number):
  with pytest.raises(KeyboardInterrupt) as stopped, stopping.by_signals(), stopping.together():
    send(number)
  assert stopping.status_of(stopped.value) == 128 + number
  assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_ignored_signals_stay_ignored(usual_handlers):
  signal.signal(signal.SIGTERM, signal.SIG_IGN)
  with stopping.by_signals():
    send(signal.SIGTERM)


def test_several_processes_take_note_and_stop_when_all_agree(usual_handlers, monkeypatch):
  monkeypatch.setattr(jax, "process_count", lambda: 3)
  others = np.array([[1, 0], [0, 0]])  # What the first and the second process say.
  monkeypatch.setattr(devices, "from_all", lambda mine: np.concatenate([others, mine[None]]))
  with stopping.by_signals(), stopping.together():
    assert stopping.agree(False) == (True, None)  # The first decides about saving.
    others[0, 0] = 0
    assert stopping.agree(True) == (False, None)
    send(signal.SIGTERM)  # Only this process gets it.
    save, stopped = stopping.agree(False)
    assert save
    assert stopping.status_of(stopped) == 143
    with pytest.raises(stopping.Stopped):  # The second does not wait.
      send(signal.SIGINT)
  others[1, 1] = signal.SIGINT  # Only another process gets it.
  _, stopped = stopping.agree(False)
  assert stopping.status_of(stopped) == 130


COMMANDS = {
  "teach": ("--teacher=sgd,imt", "--steps=100000", "--students=4", "--record_every=100"),
  "teach sweep": ("--teacher=sgd,imt", "--steps=20000", "--students=2", "--learning_rate=0.1,0.2", "--batch_size=1,2"),
  "train_teacher": (
    "--dataset=half_moons", "--teacher_hidden=8", "--horizon=3", "--students=4", "--report_every=5",
    "--episodes=1000000", "--checkpoint_seconds=1000",
  ),
  "distill": (
    "--dataset=half_moons", "--examples=4", "--road=loop", "--updates=1000000", "--steps=3", "--fresh=2",
    "--checkpoint_seconds=1000",
  ),
}  # fmt: skip
SAVED = {"teach": "state.npz", "teach sweep": "*.npz", "train_teacher": "checkpoints/*", "distill": "state*.npz"}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_sigterm_saves_and_ends_each_command(tmp_path, name):
  process = start_process([f"--out={tmp_path}", *COMMANDS[name]], f"launch.{name.split()[0]}")
  if name == "teach sweep":  # It saves what is finished: wait for that.
    while not list(tmp_path.rglob("*.npz")):
      assert process.poll() is None, process.communicate()
  elif name == "train_teacher":
    while not (tmp_path / "metrics.jsonl").is_file() or not (tmp_path / "metrics.jsonl").read_text():
      assert process.poll() is None, process.communicate()
  else:
    assert any("compiling" in line for line in process.stdout)
  process.send_signal(signal.SIGTERM)
  output, errors = process.communicate(timeout=100)
  assert process.returncode == 143, errors
  assert "Traceback" not in errors
  assert "stopped" in output
  assert (tmp_path / "config.json").is_file()
  if name in ("teach sweep", "train_teacher"):
    assert list(tmp_path.rglob(SAVED[name]))
  if name == "distill":
    assert json.loads((tmp_path / "summary.json").read_text())["interrupted"]
