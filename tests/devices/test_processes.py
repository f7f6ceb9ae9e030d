"""Commands in several processes: the first one writes; a lost one ends the run, which resumes from its states."""

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
  """Start two processes, each with its own folder, so that a file of the second would be seen."""
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


@pytest.mark.slow
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
  # The states are whole: one process finds nothing left to do.
  curves = (two / "curves.npz").read_bytes()
  (two / "curves.npz").unlink()
  assert teach.main(["teach", f"--out={two}", *flags, "--resume"]) == 0
  assert (two / "curves.npz").read_bytes() == curves


@pytest.mark.slow
def test_teaching_by_two_resumes_where_one_was_stopped(tmp_path, monkeypatch):
  """One process begins, and fails after some chunks; two processes continue from its state."""
  flags = ("--students=4", "--steps=40", "--record_every=1", "--teacher=greedy", "--constraint=simplex")
  one, two, nothing = tmp_path / "one", tmp_path / "two", tmp_path / "nothing"
  assert teach.main(["teach", f"--out={one}", *flags]) == 0
  to_arrays, calls = teach.to_arrays, []

  def fail_later(*arguments):
    calls.append(arguments)
    if len(calls) > 5:
      raise RuntimeError("stop here")
    return to_arrays(*arguments)

  monkeypatch.setattr(teach, "to_arrays", fail_later)
  with pytest.raises(RuntimeError, match="stop here"):
    teach.main(["teach", f"--out={two}", *flags, "--checkpoint_seconds=0"])
  ((output, _), _) = finish(start_two("teach", (two, nothing), *flags, "--resume"))
  assert "resumed" in output
  with np.load(one / "curves.npz") as expected, np.load(two / "curves.npz") as found:
    assert expected.files == found.files
    for name in expected.files:
      np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def read_losses(out):
  lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
  return [line["episode"] for line in lines], [line["loss"] for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_lost_process_ends_the_run_which_resumes_from_its_checkpoint(tmp_path, victim):
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
  # It resumes, here with all students in one process, and ends where a run without an accident does.
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
    (jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 8589934592 bytes."), False),
    (jax.errors.JaxRuntimeError("INTERNAL: Generated function failed: CpuCallback error"), False),
    (ValueError("steps must be at least 1"), False),
  ],
)
def test_only_lost_connections_are_reported_as_a_lost_process(monkeypatch, capsys, error, lost):
  def leave(status):
    raise SystemExit(status)  # The real one would end the tests.

  def main(flag_values):
    raise error

  monkeypatch.setattr(os, "_exit", leave)
  run = functools.partial(command.run_command, main, documentation="", arguments=["run"])
  with pytest.raises(type(error)):  # A run of one process has none to lose.
    run(flag_values=FlagValues())
  monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
  with pytest.raises(SystemExit, match="1"):  # At once, and not after JAX has waited for the others.
    run(flag_values=FlagValues())
  shown = capsys.readouterr().err
  assert ("another process of this run was lost" in shown) == lost
  assert str(error).splitlines()[0] in shown
  assert ("Traceback" in shown) == (not lost)


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (("--coordinator=localhost:1", "--num_processes=2"), "--process_id must be given too"),
    (("--num_processes=2", "--process_id=0"), "--coordinator must be given too"),
    (("--coordinator=localhost:1", "--num_processes=2", "--process_id=2"), "--process_id must be from 0 to 1"),
    (("--coordinator=here", "--num_processes=2", "--process_id=0"), "--coordinator must be HOST:PORT"),
    (("--platform=abacus",), "should be one of <cpu|cuda|rocm|tpu>"),
    (("--devices=0",), "devices"),
    (("--devices=99",), "devices=99) comes too late: JAX has started with 1 device"),
  ],
)
def test_bad_flags_are_refused_by_name(tmp_path, capsys, flags, message):
  assert teach.main(["teach", f"--out={tmp_path}", *flags]) == 2
  assert message in capsys.readouterr().err
  assert not list(tmp_path.iterdir())
