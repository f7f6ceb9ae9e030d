"""Commands in several processes: the first one writes; a lost one ends the run, with a message and a checkpoint."""

import functools
import json
import os
import signal
import time

import jax
import numpy as np
import pytest
from absl.flags import FlagValues

from benchmarks.jobs.processes import free_address
from launch import command, teach, train_teacher
from tests.launch.running import start_process

SMALL = (
  "--dataset=half_moons", "--learning_rate=0.3", "--teacher_hidden=8", "--horizon=3", "--students=4",
  "--start_near=0.3", "--report_every=5", "--checkpoint_seconds=0",
)  # fmt: skip


def start_two(module, outs, *flags):
  """Two processes, each with a folder of its own: what the second does not write, cannot be there."""
  address = free_address()
  several = (f"--coordinator={address}", "--num_processes=2", "--devices=1")
  return [
    start_process([f"--out={out}", *flags, *several, f"--process_id={i}"], f"launch.{module}")
    for i, out in enumerate(outs)
  ]


def finish(processes):
  ended = [process.communicate(timeout=300) for process in processes]
  assert [process.returncode for process in processes] == [0] * len(processes), ended
  return ended


def test_teaching_by_two_is_teaching_by_one(tmp_path):
  flags = ("--students=5", "--steps=20", "--teacher=greedy", "--constraint=simplex", "--lessons", "--tolerance=0.1")
  one, two, nothing = tmp_path / "one", tmp_path / "two", tmp_path / "nothing"
  (_, errors), (silent, _) = finish(start_two("teach", (two, nothing), *flags))
  assert not nothing.exists()
  assert "LAST" not in silent
  assert teach.main(["teach", f"--out={one}", *flags]) == 0
  assert {path.name for path in one.iterdir()} == {path.name for path in two.iterdir()}, errors
  for file in ("curves.npz", "lessons.npz"):
    with np.load(one / file) as expected, np.load(two / file) as found:
      assert expected.files == found.files
      for name in expected.files:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def read_losses(out):
  lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
  return [line["episode"] for line in lines], [line["loss"] for line in lines]


@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_process_ends_the_run_which_goes_on_from_its_checkpoint(tmp_path, victim):
  one, two, nothing = tmp_path / "one", tmp_path / "two", tmp_path / "nothing"
  processes = start_two("train_teacher", (two, nothing), *SMALL, "--episodes=1000000")
  checkpoints, deadline = two / "checkpoints", time.monotonic() + 200
  while not (checkpoints.is_dir() and any(path.name.isdecimal() for path in checkpoints.iterdir())):
    assert time.monotonic() < deadline
    assert all(process.poll() is None for process in processes)
    time.sleep(0.1)
  processes[victim].kill()
  processes[victim].communicate()
  other = processes[1 - victim]
  _, errors = other.communicate(timeout=100)
  if victim == 0 and other.returncode == -signal.SIGABRT:  # JAX itself noticed first that its coordinator is gone.
    assert "another task died" in errors
  else:
    assert other.returncode == 1, errors
    assert "another process of this run was lost" in errors
  # It goes on, here with all students in one process, and ends where a run without an accident does.
  reached = max(int(path.name) for path in checkpoints.iterdir() if path.name.isdecimal())
  episodes = reached + 20
  assert train_teacher.main(["train_teacher", f"--out={two}", *SMALL, f"--episodes={episodes}", "--resume"]) == 0
  assert train_teacher.main(["train_teacher", f"--out={one}", *SMALL, f"--episodes={episodes}"]) == 0
  (expected_episodes, expected), (found_episodes, found) = read_losses(one), read_losses(two)
  assert found_episodes == expected_episodes
  np.testing.assert_allclose(found[:4], expected[:4], rtol=1e-3)  # Rounding grows: training is not stable.
  assert not nothing.exists()


@pytest.mark.parametrize(
  ("error", "lost"),
  [
    (ValueError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer"), True),
    (jax.errors.JaxRuntimeError("UNAVAILABLE: Socket closed"), True),
    (ValueError("steps must be at least 1"), False),
  ],
)
def test_only_what_tells_of_a_lost_process_is_taken_for_one(monkeypatch, capsys, error, lost):
  def leave(status):
    raise SystemExit(status)  # Where the real one would end the tests.

  def main(flag_values):
    raise error

  monkeypatch.setattr(os, "_exit", leave)
  run = functools.partial(command.run_command, main, documentation="", arguments=["run"])
  with pytest.raises(type(error)):  # A run of one process has none to lose.
    run(flag_values=FlagValues())
  monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
  with pytest.raises(SystemExit if lost else type(error)) as raised:
    run(flag_values=FlagValues())
  assert not lost or raised.value.code == 1
  assert ("another process of this run was lost" in capsys.readouterr().err) == lost


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (("--coordinator=localhost:1", "--num_processes=2"), "process_id must be given too"),
    (("--num_processes=2", "--process_id=0"), "coordinator must be given too"),
    (("--coordinator=localhost:1", "--num_processes=2", "--process_id=2"), "process_id must be from 0 to 1"),
    (("--coordinator=here", "--num_processes=2", "--process_id=0"), "coordinator must be HOST:PORT"),
    (("--platform=abacus",), "should be one of <cpu|cuda|rocm|tpu>"),
    (("--devices=0",), "devices"),
    (("--devices=99",), "devices=99, but there are 1"),
  ],
)
def test_flags_that_make_no_sense_are_refused(tmp_path, capsys, flags, message):
  assert teach.main(["teach", f"--out={tmp_path}", *flags]) == 2
  assert message in capsys.readouterr().err
  assert not list(tmp_path.iterdir())
