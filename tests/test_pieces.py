"""Teaching in one call, in three uneven pieces and in seven: the same bits, with the compiler settings of users.

The settings of the test session (conftest.py) let XLA compile the same loop differently in different programs.
"""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import last_jax as last
from tests import pieces

pytestmark = pytest.mark.sampled

ROOT = pathlib.Path(__file__).parents[1]
QUICK = ("logistic/imt",)


def run_apart(*command):
  """Run Python in a process of its own, without the compiler settings of this session."""
  environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
  done = subprocess.run(
    [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
  "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in pieces.CASES]
)
def test_pieces_give_the_same_bits(case):
  run_apart("-m", "tests.pieces", case)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["logistic/greedy", "logistic/imt", "least_squares/joint", "softmax/mixed"])
@pytest.mark.parametrize("flag", ["--seven", "--batch_size=3", "--record_every=7"])
def test_seven_pieces_and_pieces_of_batches_and_with_seldom_records_give_the_same_bits(case, flag):
  run_apart("-m", "tests.pieces", flag, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["logistic/sgd", "logistic/imt", "least_squares/joint"])
def test_pieces_give_the_same_bits_with_the_commands_compiler_settings(case):
  """Those that `devices.prepare` chooses for small steps."""
  run_apart("-m", "tests.pieces", "--prepare", case)


LOAD_RUN_SAVE = """
import sys
import last_jax as last
from tests import pieces

source, destination, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
problem = pieces.make_problem("least_squares")
teacher = pieces.TEACHERS["joint"](problem)
start = dict(pieces.states_of(problem, teacher))["many, far"]
state = last.load(source, like=start) if source else start
state, _ = last.run(state, problem, teacher, steps=steps)
last.save(destination, state)
"""


class TestFiles:
  @pytest.mark.slow
  def test_saved_and_loaded_between_pieces_the_bits_are_the_same(self):
    run_apart("-m", "tests.pieces", "--files", "logistic/sgd", "least_squares/joint")

  @pytest.mark.slow
  def test_in_a_new_process_for_every_piece_the_bits_are_the_same(self, tmp_path):
    whole, source = tmp_path / "whole.npz", ""
    run_apart("-c", LOAD_RUN_SAVE, "", str(whole), "18")
    for i, steps in enumerate((3, 5, 3, 7)):
      destination = str(tmp_path / f"{i}.npz")
      run_apart("-c", LOAD_RUN_SAVE, source, destination, str(steps))
      source = destination
    assert pathlib.Path(source).read_bytes() == whole.read_bytes()


def test_far_starts_are_far_and_are_taught():
  problem = pieces.make_problem("least_squares")
  teacher = pieces.TEACHERS["joint"](problem)
  start = dict(pieces.states_of(problem, teacher))["one, far"]
  assert np.all(np.abs(start.params["weights"]) == pieces.FAR)
  _, records = last.run(start, problem, teacher, steps=pieces.STEPS)
  assert records.distance[-1] < 1e-2 * records.distance[0]
