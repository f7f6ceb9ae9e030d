"""Commands in several processes: the first one writes; a lost one ends the run, which resumes from its states."""

import functools
import json
import os
import signal
import time

import jax
import numpy as np
import pytest

from benchmarks.jobs.processes import free_address
from launch import command, teach, train_teacher
from launch.flags import Flags
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


def said(errors):
  """Return the lines that are not JAX's own log, nor say what is under way."""
  return [line for line in errors.splitlines() if line and not line.startswith(("[Gloo]", "I0", "W0", "E0", "... "))]


def has_checkpoint(folder):
  return folder.is_dir() and any(path.name.isdecimal() for path in folder.iterdir())


def wait_for(condition, processes):
  deadline = time.monotonic() + 200
  while not condition():
    assert time.monotonic() < deadline
    assert all(process.poll() is None for process in processes), [each.communicate() for each in processes]
    time.sleep(0.1)


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
  checkpoints = two / "checkpoints"
  wait_for(lambda: has_checkpoint(checkpoints), processes)
  processes[victim].kill()
  processes[victim].communicate()
  other = processes[1 - victim]
  _, errors = other.communicate(timeout=100)
  assert other.returncode == 1, errors
  assert said(errors) == [f"error: process {victim} of this run was lost; saved states stay"]
  # It resumes, here with all students in one process, and ends where a run without an accident does.
  reached = max(int(path.name) for path in checkpoints.iterdir() if path.name.isdecimal())
  episodes = reached + 20
  assert train_teacher.main(["train_teacher", f"--out={two}", *SMALL, f"--episodes={episodes}", "--resume"]) == 0
  assert train_teacher.main(["train_teacher", f"--out={one}", *SMALL, f"--episodes={episodes}"]) == 0
  (expected_episodes, expected), (found_episodes, found) = read_losses(one), read_losses(two)
  assert found_episodes == expected_episodes
  np.testing.assert_allclose(found[:4], expected[:4], rtol=1e-3)  # Rounding grows: training is not stable.
  assert not nothing.exists()


def stop(processes, asked, number=signal.SIGTERM):
  """Send a signal to some processes; return the exit status, the same of all, and what the first one printed."""
  for place in asked:
    processes[place].send_signal(number)
  ended = [process.communicate(timeout=60) for process in processes]
  for _, errors in ended:
    assert not said(errors)
  (status,) = {process.returncode for process in processes}
  return status, ended[0][0]


@pytest.mark.slow
@pytest.mark.parametrize("asked", [(1,), (0, 1)])
def test_a_signal_to_any_process_of_a_training_stops_all_at_one_checkpoint(tmp_path, asked):
  two, nothing = tmp_path / "two", tmp_path / "nothing"
  flags = (*SMALL, "--checkpoint_seconds=1000")  # No save is due but the last one.
  processes = start_two("train_teacher", (two, nothing), *flags, "--episodes=1000000")
  metrics = two / "metrics.jsonl"
  wait_for(lambda: metrics.is_file() and metrics.read_text().count("\n") >= 2, processes)
  status, output = stop(processes, asked)
  assert status == 128 + signal.SIGTERM
  (reached,) = [int(path.name) for path in (two / "checkpoints").iterdir() if path.name.isdecimal()]
  assert f"stopped after episode {reached}" in output
  # Two processes go on from there, and finish.
  (output, _), _ = finish(start_two("train_teacher", (two, nothing), *flags, f"--episodes={reached + 5}", "--resume"))
  assert f"resuming after episode {reached}" in output
  assert read_losses(two)[0] == list(range(5, reached + 6, 5))
  assert (two / "policy.npz").is_file()
  assert not nothing.exists()


@pytest.mark.slow
def test_a_signal_to_one_process_of_teaching_stops_both(tmp_path):
  two, nothing = tmp_path / "two", tmp_path / "nothing"
  flags = ("--students=4", "--steps=200000", "--record_every=1000", "--teacher=sgd,imt", "--checkpoint_seconds=0")
  processes = start_two("teach", (two, nothing), *flags)
  wait_for(lambda: list((two / "state").rglob("state.npz")), processes)
  status, output = stop(processes, [1], signal.SIGINT)
  assert status == 128 + signal.SIGINT
  assert "of 2 methods are finished; --resume continues" in output
  assert not nothing.exists()


@pytest.mark.slow
def test_processes_with_other_flags_end_at_the_start_and_name_the_flag(tmp_path):
  address = free_address()
  several = (f"--coordinator={address}", "--num_processes=2", "--devices=1")
  processes = [
    start_process([f"--out={tmp_path / str(i)}", *several, f"--process_id={i}", f"--seed={i}"]) for i in range(2)
  ]
  for process in processes:
    _, errors = process.communicate(timeout=100)
    assert process.returncode == 2
    assert said(errors) == [
      f"error: --coordinator={address}: all processes need the same settings, but --seed is 0 in process 0 and 1 in "
      "process 1"
    ]
  assert not list(tmp_path.iterdir())


@pytest.mark.faults
@pytest.mark.parametrize("victim", [0, 1])
def test_a_process_that_hangs_ends_the_other_within_two_minutes(tmp_path, victim):
  processes = start_two("train_teacher", (tmp_path / "two", tmp_path / "nothing"), *SMALL, "--episodes=1000000")
  wait_for(lambda: has_checkpoint(tmp_path / "two" / "checkpoints"), processes)
  processes[victim].send_signal(signal.SIGSTOP)
  expected = [f"error: process {victim} of this run was lost: it has been silent for 45 s; saved states stay"]
  _, errors = processes[1 - victim].communicate(timeout=100)
  assert processes[1 - victim].returncode == 1
  assert said(errors) == expected
  processes[victim].send_signal(signal.SIGCONT)
  _, errors = processes[victim].communicate(timeout=60)
  assert processes[victim].returncode == 1
  assert said(errors) == expected


@pytest.mark.faults
@pytest.mark.parametrize("number", [0, 1])
def test_a_process_that_is_left_alone_ends_within_two_minutes(tmp_path, number):
  alone = start_process(
    [f"--out={tmp_path}", f"--coordinator={free_address()}", "--num_processes=2", f"--process_id={number}"]
  )
  _, errors = alone.communicate(timeout=119)
  assert alone.returncode == 2
  (line,) = said(errors)
  assert ("process 1 of 2 did not come", "process 0 was not found")[number] in line


@pytest.mark.faults
@pytest.mark.parametrize("number", [0, 1])
def test_a_process_that_comes_twice_is_refused_and_disturbs_nobody(tmp_path, number):
  processes = start_two("train_teacher", (tmp_path / "two", tmp_path / "nothing"), *SMALL, "--episodes=1000000")
  wait_for(lambda: has_checkpoint(tmp_path / "two" / "checkpoints"), processes)
  words = [word for word in processes[number].args[3:] if not word.startswith("--out=")]
  again = start_process([*words, f"--out={tmp_path / 'again'}"], "launch.train_teacher")
  _, errors = again.communicate(timeout=100)
  assert again.returncode == 2
  (line,) = said(errors)
  assert ("cannot listen on port", "process 1 is in this run already")[number] in line
  status, _ = stop(processes, [0])
  assert status == 128 + signal.SIGTERM


@pytest.mark.faults
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("moment", range(8))
def test_killed_at_any_moment_the_other_ends_with_one_line(tmp_path, victim, moment):
  """Kills from the start of the processes on, before they have met too."""
  flags = ("--students=4", "--steps=100000", "--record_every=1000", "--teacher=greedy", "--constraint=simplex")
  processes = start_two("teach", (tmp_path / "two", tmp_path / "nothing"), *flags)
  time.sleep(1.0 + 2.5 * moment)
  if processes[victim].poll() is None:
    processes[victim].kill()
    processes[victim].communicate()
    other = processes[1 - victim]
    _, errors = other.communicate(timeout=119)
    assert other.returncode in (0, 1, 2), errors  # 0: it had finished.
    assert len(said(errors)) == (1 if other.returncode else 0), errors
  for process in processes:
    process.kill()
    process.communicate()


@pytest.mark.parametrize(
  ("error", "lost"),
  [
    (ValueError("UNKNOWN: Gloo all-reduce failed: Connection reset by peer"), True),
    (jax.errors.JaxRuntimeError("UNAVAILABLE: Socket closed"), True),
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
    run(flag_values=Flags())
  monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
  with pytest.raises(SystemExit, match="1"):  # At once, and not after JAX has waited for the others.
    run(flag_values=Flags())
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
