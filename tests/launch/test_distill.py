"""`launch.distill`: its files hold what the library finds; stopped or killed, it resumes to the same labels."""

import json
import shlex
import signal
import time

import jax
import matplotlib.image
import numpy as np
import pytest

import last_jax as last
from last_jax import data
from last_jax.io import read_arrays
from last_jax.tools.pictures import draw_fixed_labels
from launch import distill
from tests.launch.running import run_process, start_process

FILES = {"config.json", "labels.npz", "labels.png", "summary.json"}
SMALL = ("--examples=6", "--steps=5", "--students=2", "--fresh=3", "--validation=50", "--seed=1")
LOOP = (*SMALL, "--road=loop", "--updates=12", "--batch_size=2", "--validation_batch=9")


def run(out, *flags):
  return distill.main(["distill", f"--out={out}", *flags])


@pytest.mark.slow
def test_solved_labels_are_those_of_the_library(tmp_path, capsys):
  assert run(tmp_path, *SMALL, "--constraint=simplex") == 0
  assert {path.name for path in tmp_path.iterdir()} == FILES
  found = read_arrays(tmp_path / "labels.npz")
  dataset = data.half_moons(1)
  learner = last.learners.logistic(2, learning_rate=0.3, weight_decay=5e-5)
  index = found["index"]
  np.testing.assert_array_equal(found["x"], dataset.train.x[index])
  np.testing.assert_array_equal(found["truth"][:, 0], dataset.train.y[index])
  assert sorted(found["truth"][:, 0]) == [0, 0, 0, 1, 1, 1]
  others = np.setdiff1d(np.arange(len(dataset.train)), index)
  chosen = np.random.default_rng([1, 1]).permutation(others)[:50]
  labels, log = last.distill_labels(
    jax.random.split(jax.random.key(1), 3)[1], learner, found["x"], dataset.train.y[index], steps=5, students=2,
    validation=last.Pool(dataset.train.x[chosen], dataset.train.y[chosen]), road="solved",
    constraint=last.constraints.simplex(),
  )  # fmt: skip
  np.testing.assert_array_equal(found["label"], labels)
  np.testing.assert_array_equal(found["objective"], log.objective)
  summary = json.loads((tmp_path / "summary.json").read_text())
  assert summary["results"]["distilled labels"].keys() == {"test loss", "test accuracy"}
  output = capsys.readouterr().out
  for name in FILES:
    assert str(tmp_path / name) in output


@pytest.mark.slow
@pytest.mark.parametrize("flags", [LOOP, ("--toward=target", "--dataset=regression", "--start_near=0.5", *LOOP[:-1])])
def test_a_run_that_is_stopped_resumes_to_the_same_labels(tmp_path, monkeypatch, flags):
  assert run(tmp_path / "whole", *flags) == 0
  assert run(tmp_path / "whole", *flags) == 0  # The same command may replace its own results.
  calls, search = [], last.distill_labels

  def stop(*arguments, **settings):
    calls.append(settings)
    if len(calls) == 7:
      raise KeyboardInterrupt
    return search(*arguments, **settings)

  with monkeypatch.context() as patch:
    patch.setattr(last, "distill_labels", stop)
    assert run(tmp_path / "cut", *flags) == 130
  assert json.loads((tmp_path / "cut" / "summary.json").read_text())["interrupted"]
  assert run(tmp_path / "cut", *flags) == 2  # Neither --resume nor --overwrite.
  assert run(tmp_path / "cut", "--resume", *flags) == 0
  whole, cut = (read_arrays(tmp_path / name / "labels.npz") for name in ("whole", "cut"))
  for name, values in whole.items():
    np.testing.assert_array_equal(values, cut[name], name)
  results = [json.loads((tmp_path / name / "summary.json").read_text())["results"] for name in ("whole", "cut")]
  assert results[0] == results[1]
  if "--toward=target" in flags:
    assert "distance" in results[0]["true labels"]


@pytest.mark.slow
def test_a_killed_process_resumes(tmp_path):
  flags = (*LOOP[:-3], "--updates=3000", "--checkpoint_seconds=0", f"--out={tmp_path}")
  process = start_process(flags, "launch.distill")
  path = tmp_path / "state" / "state.npz"
  deadline = time.monotonic() + 200
  while not path.exists() and time.monotonic() < deadline:
    time.sleep(0.1)
  process.send_signal(signal.SIGKILL)
  process.communicate()
  status, _, errors = run_process(*flags, "--resume", module="launch.distill")
  assert status == 0, errors
  assert len(read_arrays(tmp_path / "labels.npz")["objective"]) == 3000


@pytest.mark.slow
def test_the_command_in_the_configuration_repeats_the_run(tmp_path):
  assert run(tmp_path / "one", *SMALL) == 0
  words = shlex.split(json.loads((tmp_path / "one" / "config.json").read_text())["command"])
  assert words[:3] == ["python", "-m", "launch.distill"]
  repeated = [word for word in words[3:] if not word.startswith("--out=")]
  assert run(tmp_path / "two", *repeated) == 0
  one, two = (read_arrays(tmp_path / name / "labels.npz") for name in ("one", "two"))
  np.testing.assert_array_equal(one["label"], two["label"])


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (("--examples=7",), "--examples=7 must be a multiple of the 2 classes"),
    (("--constraint=round",), "--constraint=round: it must have one of the forms"),
    (("--learning_rate=1e6",), "--learning_rate: at this learning rate"),
    (("--road=loop", "--constraint=one_hot"), "--constraint 'one_hot' is no convex set"),
    (("--road=loop", "--validation_batch=51"), "--validation_batch=51: there are 50"),
    (("--road=loop", "--rate=-1"), "--rate must be a positive number"),
    (("--examples=4000", "--dataset=regression"), "--examples=4000: the pool has 800"),
  ],
)
def test_bad_flags_are_named(tmp_path, capsys, flags, message):
  assert run(tmp_path, *SMALL, *flags) == 2
  assert message in capsys.readouterr().err


def test_flags_without_effect_are_noted(tmp_path, capsys):
  assert run(tmp_path, *SMALL, "--rate=0.1", "--start_near=0.2") == 0
  output = capsys.readouterr().out
  assert "--rate has no effect here" in output
  assert "--start_near has no effect here" in output


@pytest.mark.parametrize(("width", "size"), [(1, 4), (10, 784), (3, 7)])
def test_pictures_of_labels(tmp_path, width, size):
  draw = np.random.default_rng(0)
  labels = draw.normal(size=(12, width))
  for name, shown in (("one", labels), ("other", -labels)):
    truth = np.eye(width)[np.arange(12) % width]
    draw_fixed_labels(tmp_path / f"{name}.png", "title", draw.uniform(size=(12, size)), truth, shown)
  one, other = (matplotlib.image.imread(tmp_path / f"{name}.png") for name in ("one", "other"))
  assert one.shape == other.shape
  assert (one != other).any()


@pytest.mark.slow
def test_names_of_classes_are_kept(tmp_path):
  table = "length,width,species\n" + "\n".join(f"{i % 7},{i % 5},{('setosa', 'new')[i % 2]}" for i in range(30))
  (tmp_path / "plants.csv").write_text(table)
  flags = (f"--dataset={tmp_path / 'plants.csv'}", "--examples=4", "--steps=3", "--students=2", "--fresh=2")
  assert run(tmp_path / "out", *flags) == 0
  assert read_arrays(tmp_path / "out" / "labels.npz")["classes"].tolist() == ["new", "setosa"]
  assert json.loads((tmp_path / "out" / "summary.json").read_text())["classes"] == ["new", "setosa"]
