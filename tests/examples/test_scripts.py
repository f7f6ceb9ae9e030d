"""The examples that need no lesson file, at a small size: they run, write what they say, and teach better than SGD."""

import pathlib
import runpy
import sys

import PIL.Image
import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "examples"
pytestmark = pytest.mark.slow


def run(monkeypatch, tmp_path, name, size):
  """Run `python examples/NAME.py SIZE` in this process and in a folder of its own; return its variables."""
  monkeypatch.chdir(tmp_path)
  monkeypatch.setenv("MPLBACKEND", "Agg")
  monkeypatch.setattr(sys, "argv", [name, str(size)])
  return runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


def test_half_moons_moves(monkeypatch, tmp_path):
  found = run(monkeypatch, tmp_path, "half_moons", 3)
  with PIL.Image.open(tmp_path / "half_moons.gif") as moving:
    assert moving.n_frames == 3
    first, last = (_pixels(moving, number) for number in (0, 2))
  assert first != last
  assert found["distance"]["LAST"][-1] < found["distance"]["SGD"][-1] < found["distance"]["SGD"][0]


def _pixels(moving, number):
  moving.seek(number)
  return moving.convert("RGB").tobytes()


def test_own_network_is_taught_better_than_by_sgd(monkeypatch, tmp_path):
  accuracy = run(monkeypatch, tmp_path, "own_network", 20)["accuracy"]
  assert accuracy["LAST"] > accuracy["SGD"] + 0.05


def test_black_box_teaches_better_than_sgd(monkeypatch, tmp_path):
  accuracy = run(monkeypatch, tmp_path, "black_box", 20)["accuracy"]
  assert accuracy["LAST"][-1] > accuracy["SGD"][-1]


def test_flashcards_are_remembered(monkeypatch, tmp_path):
  known = run(monkeypatch, tmp_path, "new_teacher", 400)["known"]
  assert known["flashcards"] > known["SGD"] + 0.02


def test_sweep_draws_and_has_every_pair(monkeypatch, tmp_path):
  found = run(monkeypatch, tmp_path, "sweep", 20)
  swept = found["swept"]
  for rate in found["learners"]:  # The farther labels may lie from the truth, the nearer to w*.
    ends = [swept[rate, name].distance[:, -1].mean() for name in found["teachers"]]
    assert ends == sorted(ends, reverse=True)
  assert (tmp_path / "sweep.png").stat().st_size > 10_000


def test_labels_that_stay_are_worth_more_than_true_ones(monkeypatch, tmp_path):
  accuracy = run(monkeypatch, tmp_path, "fixed_labels", 40)["accuracy"]
  assert accuracy["labels that stay"] > accuracy["true labels"] + 0.05


@pytest.mark.parametrize("name", ["equinox", "nnx"])
def test_networks_of_other_libraries_come_nearer_than_by_sgd(monkeypatch, tmp_path, name):
  results = run(monkeypatch, tmp_path, f"{name}_network", 40)["results"]
  assert results["LAST"].distance[-1] < results["SGD"].distance[-1] < results["SGD"].distance[0]
