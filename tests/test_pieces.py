"""Teaching in one call, in two pieces and in seven uneven ones: the same bits, with users' compiler settings too."""

import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

import last_jax as last
from tests import pieces

ROOT = pathlib.Path(__file__).parents[1]
QUICK = ("logistic/sgd", "logistic/greedy", "logistic/imt")


# This session compiles quickly (conftest.py), with little optimisation. A single step is then inlined into the program
# around it and may be rounded in another way; users' settings, below, give the same bits for single steps, too.
SESSION = {"cuts": (pieces.TWO, pieces.SEVEN_LONGER)}


@pytest.mark.parametrize(
  "case", [case if case in QUICK else pytest.param(case, marks=pytest.mark.slow) for case in pieces.CASES]
)
def test_pieces_give_the_same_bits(case):
  with jax.debug_nans(False):  # Students that start far away may diverge; NaNs have bits, too.
    assert not pieces.differences(*case.split("/"), **SESSION)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["logistic/sgd", "logistic/greedy", "least_squares/joint", "softmax/mixed"])
@pytest.mark.parametrize("settings", [{"batch_size": 3}, {"record_every": 7}])
def test_pieces_of_batches_and_with_seldom_records_give_the_same_bits(case, settings):
  with jax.debug_nans(False):
    assert not pieces.differences(*case.split("/"), **SESSION, **settings)


def run_apart(*command):
  """Run Python in a process of its own, without the compiler settings of this session."""
  environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
  done = subprocess.run(
    [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("case", pieces.CASES)
def test_pieces_give_the_same_bits_with_jaxs_own_compiler_settings(case):
  run_apart("-m", "tests.pieces", case)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["logistic/sgd", "logistic/greedy", "logistic/imt", "least_squares/joint", "mlp/sgd"])
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
  @pytest.mark.parametrize("case", ["logistic/sgd", "least_squares/joint"])
  def test_saved_and_loaded_between_pieces_the_bits_are_the_same(self, tmp_path, case):
    def through_a_file(state):
      last.save(tmp_path / "state.npz", state)
      return last.load(tmp_path / "state.npz", like=state)

    with jax.debug_nans(False):
      assert not pieces.differences(*case.split("/"), between=through_a_file, **SESSION)

  @pytest.mark.slow
  def test_in_a_new_process_for_every_piece_the_bits_are_the_same(self, tmp_path):
    whole, source = tmp_path / "whole.npz", ""
    run_apart("-c", LOAD_RUN_SAVE, "", str(whole), "18")
    for i, steps in enumerate((1, 5, 1, 11)):
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
