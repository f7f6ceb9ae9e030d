"""Killed before every few changes of its files and started again, each time to the end, a run ends in the same bits."""

import pathlib
import signal
import subprocess
import sys

import pytest

from tests.launch.running import ROOT

COMMANDS = {
  "distill": (
    "--examples=4", "--road=loop", "--updates=12", "--steps=3", "--students=2", "--fresh=2", "--checkpoint_seconds=0",
  ),
  "train_teacher": (
    "--dataset=half_moons", "--teacher_hidden=8", "--horizon=3", "--students=4", "--episodes=8", "--report_every=2",
    "--checkpoint_seconds=0",
  ),
}  # fmt: skip
RESULTS = {"distill": "labels.npz", "train_teacher": "policy.npz"}
STREAM = """
import pathlib
import sys
import last_jax as last
from tests import test_streaming

problem = test_streaming.make()
teacher, settings = test_streaming.GREEDY, test_streaming.SETTINGS
state = last.init(test_streaming.KEYS, problem, teacher)
last.stream(sys.argv[1], state, problem, teacher, steps=200, write_every=20, **settings)
"""


def end(code, *arguments, kill_at=None):
  """Run code in a process that is killed before its n-th change of a file below the first argument."""
  if kill_at is not None:
    code = f"from tests.launch import kill_points; kill_points.kill_at({kill_at}, {arguments[0]!r})\n{code}"
  done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300)
  assert done.returncode in (0, -signal.SIGKILL), done.stderr
  return done.returncode == 0


@pytest.mark.faults
@pytest.mark.parametrize("name", COMMANDS)
def test_commands(tmp_path, name):
  run = (
    "import runpy, sys; sys.argv[1] = '--out=' + sys.argv[1]\n"
    f"runpy.run_module('launch.{name}', run_name='__main__', alter_sys=True)"
  )
  whole, broken = str(tmp_path / "whole"), str(tmp_path / "broken")
  assert end(run, whole, *COMMANDS[name])
  kills = 0
  while not end(run, broken, *COMMANDS[name], "--resume", kill_at=6 + 13 * kills):
    kills += 1
  print(f"{name}: {kills} kills")
  assert kills >= 2
  one, two = (pathlib.Path(out, RESULTS[name]).read_bytes() for out in (whole, broken))
  assert one == two


@pytest.mark.faults
def test_stream(tmp_path):
  assert end(STREAM, str(tmp_path / "whole"))
  kills = 0
  while not end(STREAM, str(tmp_path / "broken"), kill_at=1 + 5 * kills):
    kills += 1
  print(f"stream: {kills} kills")
  assert kills >= 3
  for path in (tmp_path / "whole").iterdir():
    assert (tmp_path / "broken" / path.name).read_bytes() == path.read_bytes()
