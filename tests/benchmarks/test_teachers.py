"""The comparison of trained teachers with SGD: that every kind of setting runs, and what the command says."""

import json

import numpy as np
import pytest

from benchmarks import teachers
from launch.command import run_command


@pytest.mark.parametrize("name", ["mlp_free", "black_box_unroll_best", "black_box_reinforce"])
def test_settings_run(name):
  outcomes = teachers.measure(name, 2, tiny=True)
  black_box = name.startswith("black_box")
  assert [(o.batch_size, o.metric) for o in outcomes] == (
    [(20, "distance"), (20, "objective")] if black_box else [(1, "distance"), (128, "distance")]
  )
  for outcome in outcomes:
    assert outcome.sgd.shape == outcome.teacher.shape == (2,)
    assert np.isfinite(outcome.sgd).all()
    # One begins as SGD and, in two episodes, has learned nothing else yet.
    assert np.any(outcome.sgd != outcome.teacher) == (name != "black_box_reinforce")


def test_the_command_writes_what_it_shows(tmp_path, capsys):
  words = ["teachers", "--setting=unroll_20", "--seeds=2", "--tiny", f"--json={tmp_path / 'figures.json'}"]
  assert run_command(teachers.main, teachers.define_flags(), "", words) == 0
  shown = capsys.readouterr().out
  found = json.loads((tmp_path / "figures.json").read_text())
  assert [entry["batch_size"] for entry in found] == [1, 128]
  for entry in found:
    assert f"{np.mean(entry['teacher']):.4f}" in shown


def test_an_unknown_setting_is_named(capsys):
  assert run_command(teachers.main, teachers.define_flags(), "", ["teachers", "--setting=magic"]) == 2
  assert "--setting names magic" in capsys.readouterr().err
