"""Sweeps of `launch.teach`: lists of numbers, one program for each kind of method, and only what is missing again."""

import json
import time

import jax
import numpy as np
import pytest

import last_jax as last
from last_jax import data, stacking
from last_jax.io import read_arrays
from launch import command, methods, sweep, teach
from tests.compilations import counted
from tests.launch.running import run, run_process, start_process

OTHERS = (
  "--teacher=sgd,greedy",
  "--constraint=simplex:0.3,simplex:0.6",
  "--students=3",
  "--steps=6",
  "--record_every=4",
  "--seed=1",
)
RUN = ("--learning_rate=0.1,0.3", *OTHERS)
METHODS = ["sgd", "greedy:simplex:0.3", "greedy:simplex:0.6"]


def files_of(out):
  return {str(path.relative_to(out / "settings")) for path in (out / "settings").rglob("*.npz")}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
  """A sweep in this process: its folder, and the names of the programs that were compiled."""
  out = tmp_path_factory.mktemp("sweep")
  with counted() as programs:
    assert run(out, *RUN, "--tolerance=5.0") == 0
  return out, programs.names


class TestFiles:
  def test_all_are_there(self, whole):
    out, _ = whole
    assert {path.name for path in out.iterdir()} == {*sweep.FILES, "settings"} - {"lessons.npz"}
    assert files_of(out) == {
      f"learning_rate={rate}/{method.replace(':', ',')}.npz" for rate in (0.1, 0.3) for method in METHODS
    }

  def test_settings_of_a_kind_share_a_program(self, whole):
    assert whole[1].count("jit(_teach_stacked)") == 2  # SGD, and greedy labels with both radii.

  @pytest.mark.slow
  def test_curves_are_those_of_a_run_with_one_number(self, whole, tmp_path):
    assert run(tmp_path, "--learning_rate=0.3", *OTHERS, "--tolerance=5.0") == 0
    swept, alone = read_arrays(whole[0] / "curves.npz"), read_arrays(tmp_path / "curves.npz")
    np.testing.assert_array_equal(swept["learning_rate"], [0.1, 0.3])
    np.testing.assert_array_equal(swept["step"], [0, 4, 6])
    assert set(alone) == set(swept) - {"learning_rate"}
    for name in set(alone) - {"step"}:
      np.testing.assert_allclose(swept[name][1], alone[name], rtol=1e-5, err_msg=name)
      assert name.endswith(("hitting_time", "accuracy")) or (swept[name][0, :, -1] != swept[name][1, :, -1]).all()

  def test_the_summary_has_every_setting(self, whole):
    summary = json.loads((whole[0] / "summary.json").read_text())
    curves = read_arrays(whole[0] / "curves.npz")
    assert [(each["numbers"]["learning_rate"], each["method"]) for each in summary["settings"]] == [
      (rate, method) for rate in (0.1, 0.3) for method in METHODS
    ]
    ends = curves["greedy:simplex:0.6/distance"][1, :, -1].astype(float)
    np.testing.assert_allclose(summary["settings"][-1]["distance"]["mean"], ends.mean(), rtol=1e-6)
    assert summary["settings"][-1]["reached"] == (curves["greedy:simplex:0.6/hitting_time"][1] >= 0).sum()
    config = json.loads((whole[0] / "config.json").read_text())
    assert "--learning_rate=0.1,0.3" in config["command"]

  @pytest.mark.slow
  def test_several_lists_and_lessons(self, tmp_path, capsys):
    lists = ("--learning_rate=0.1,0.3,1", "--weight_decay=0,0.01", "--momentum=0.5")
    assert run(tmp_path, *lists, *OTHERS, "--lessons") == 0
    curves, lessons = (read_arrays(tmp_path / name) for name in ("curves.npz", "lessons.npz"))
    np.testing.assert_array_equal(curves["weight_decay"], [0, 0.01] * 3)
    np.testing.assert_array_equal(curves["learning_rate"], np.repeat([0.1, 0.3, 1.0], 2))
    assert lessons["sgd/label"].shape == (6, 3, 6, 1, 1)
    # Students start alike; targets differ with the weight decay, and with nothing else.
    starts = curves["sgd/distance"][:, :, 0]
    assert (starts[::2] == starts[0]).all()
    assert (starts[1::2] == starts[1]).all()
    assert (starts[0] != starts[1]).all()
    assert "weight_decay" in capsys.readouterr().out

  @pytest.mark.slow
  def test_batch_sizes(self, tmp_path, capsys):
    assert run(tmp_path / "swept", "--batch_size=3,1", *OTHERS) == 0
    assert run(tmp_path / "alone", "--batch_size=3", *OTHERS) == 0
    swept, alone = (read_arrays(tmp_path / name / "curves.npz") for name in ("swept", "alone"))
    np.testing.assert_array_equal(swept["batch_size"], [3, 1])
    np.testing.assert_allclose(swept["sgd/distance"][0], alone["sgd/distance"], rtol=1e-5)
    assert (swept["sgd/distance"][1, :, -1] != swept["sgd/distance"][0, :, -1]).all()
    capsys.readouterr()
    assert run(tmp_path / "lessons", "--batch_size=3,1", *OTHERS, "--lessons") == 2
    assert "--lessons needs one --batch_size" in capsys.readouterr().err


class TestStopping:
  @pytest.mark.slow
  def test_only_what_is_missing_is_taught(self, whole, tmp_path, monkeypatch, capsys):
    save, taught = sweep._save, []

    def save_two(path, result):
      if len(taught) == 2:
        raise KeyboardInterrupt
      taught.append(path)
      save(path, result)

    monkeypatch.setattr(sweep, "_save", save_two)
    assert run(tmp_path, *RUN, "--tolerance=5.0") == 130
    assert "2 of 6 settings are finished; --resume continues" in capsys.readouterr().out
    assert len(files_of(tmp_path)) == 2
    monkeypatch.undo()

    assert run(tmp_path, *RUN, "--tolerance=5.0") == 2  # An unfinished run is not replaced by accident.
    assert "--resume" in capsys.readouterr().err
    assert run(tmp_path, "--learning_rate=0.1,0.2", *OTHERS, "--tolerance=5.0", "--resume") == 2
    assert "--learning_rate=0.1,0.3 instead of 0.1,0.2" in capsys.readouterr().err

    asked = []
    teach_settings = stacking.teach_settings

    def listed(keys, settings, **options):
      asked.extend(settings)
      return teach_settings(keys, settings, **options)

    monkeypatch.setattr(stacking, "teach_settings", listed)
    assert run(tmp_path, *RUN, "--tolerance=5.0", "--resume") == 0
    assert len(asked) == 4
    resumed, wanted = (read_arrays(out / "curves.npz") for out in (tmp_path, whole[0]))
    assert set(resumed) == set(wanted)
    for name, values in wanted.items():
      np.testing.assert_allclose(resumed[name], values, rtol=1e-6, err_msg=name)

  @pytest.mark.slow
  def test_killed_it_resumes(self, tmp_path):
    flags = ("--learning_rate=0.1,0.3", "--teacher=sgd,imt", "--students=20", "--steps=20000", "--record_every=400")
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    process, deadline = start_process([*flags, f"--out={broken}"]), time.monotonic() + 120
    while process.poll() is None and len(files_of(broken)) < 2:
      assert time.monotonic() < deadline
      time.sleep(0.02)
    process.kill()
    process.communicate()
    assert files_of(broken) == {f"learning_rate={rate}/sgd.npz" for rate in (0.1, 0.3)}
    for out, more in ((broken, ["--resume"]), (whole, [])):
      status, output, errors = run_process(*flags, f"--out={out}", *more)
      assert status == 0, errors
      assert ("2 settings in" in output) == (out == broken)
    assert (broken / "curves.npz").read_bytes() == (whole / "curves.npz").read_bytes()

  @pytest.mark.slow
  def test_a_setting_that_diverges_is_named(self, tmp_path, capsys):
    with jax.debug_nans(False):
      flags = ("--dataset=regression", "--teacher=sgd", "--students=2", "--steps=200")
      assert run(tmp_path, *flags, "--learning_rate=0.001,100") == command.DIVERGED
    assert "note: SGD at --learning_rate=100: 2 students diverged" in capsys.readouterr().out
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [each["diverged"] for each in summary["settings"]] == [0, 2]
    assert summary["settings"][0]["first_diverged_at"] is None
    assert 0 < summary["settings"][1]["first_diverged_at"] <= 200


class TestFlags:
  @pytest.mark.parametrize(
    ("flag", "message"),
    [
      ("--learning_rate=0.1,x", "must be a number, or several with commas between them"),
      ("--learning_rate=0.1,-1", "--learning_rate must be a positive number, but it is -1"),
      ("--weight_decay=0,-1", "--weight_decay must be zero or a positive number"),
      ("--momentum=0.5,2", "--momentum must lie between 0 and 1"),
      ("--learning_rate=0.1,", "must be a number, or several"),
      ("--batch_size=2,0.5", "must be a whole number, or several with commas between them, as 1,8"),
      ("--batch_size=2,0", "must be at least 1"),
    ],
  )
  def test_bad_lists_are_named(self, tmp_path, capsys, flag, message):
    assert run(tmp_path, *OTHERS, flag) == 2
    error = capsys.readouterr().err
    assert message in error
    assert flag.partition("=")[0].strip("-") in error

  def test_numbers_of_teachers_are_methods_of_their_own(self):
    values = teach.make_flags()
    values(["teach", "--teacher=label_smoothing,distillation", "--mu=0.7,0.9,0.7", "--temperature=2"])
    learner = last.learners.logistic(2, learning_rate=0.1)
    choice = methods.choose(values, learner, data.half_moons())
    built = methods.build(values, choice, learner, learner.init(jax.random.key(0)))
    assert {key: method.teacher.name for key, method in built.items()} == {
      "label_smoothing:0.7": "label smoothing (mu 0.7)",
      "label_smoothing:0.9": "label smoothing (mu 0.9)",
      "distillation": "distillation",
    }
    assert built["label_smoothing:0.7"].variant != built["label_smoothing:0.9"].variant
