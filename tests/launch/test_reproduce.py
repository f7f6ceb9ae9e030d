"""The command that makes the paper again: it resumes, failures stay alone, and the page shows the files' numbers."""

import json
import os
import pathlib
import re
import signal
import time

import numpy as np
import pytest

from launch import command, reproduce
from tests.launch import running

FILES = {"index.html", "claims.json", "curves.npz", "summary.json", "config.json"}


def run(out, *flags):
  return reproduce.main(["reproduce", f"--out={out}", "--quick", *flags])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
  """A run of one figure."""
  out = tmp_path_factory.mktemp("reproduce")
  assert run(out, "--figure=theory") == 0
  return out


def page_data(out):
  text = (out / "index.html").read_text(encoding="utf-8")
  found = re.search(r'<script type="application/json" id="page-data">(.*?)</script>', text, re.DOTALL)
  return json.loads(found[1])


@pytest.mark.slow
def test_a_run_writes_the_page_and_all_files(finished):
  assert {path.name for path in finished.iterdir() if path.is_file()} == FILES
  assert (finished / "theory" / "curves.png").read_bytes().startswith(b"\x89PNG")
  claims = json.loads((finished / "claims.json").read_text(encoding="utf-8"))
  assert claims
  for claim in claims:
    assert claim["verdict"] in ("holds", "depends on the reading", "does not hold", "not resolved")
    assert claim["readings"][0]["name"] == "literal"
    assert claim["explanation"] or claim["verdict"] == "holds"
  config = json.loads((finished / "config.json").read_text(encoding="utf-8"))
  assert "--figure=theory" in config["command"]
  summary = json.loads((finished / "summary.json").read_text(encoding="utf-8"))
  assert sum(summary["verdicts"].values()) == len(claims)


@pytest.mark.slow
def test_numbers_in_the_page_are_those_of_curves_npz(finished):
  arrays = np.load(finished / "curves.npz")
  blocks = page_data(finished)["sections"]["figure-theory"]
  compared = 0
  for chart in blocks:
    for line in chart["lines"]:
      values = arrays[f"theory/{chart['title']}/{line['name']}/values"]
      mean = values.mean(0)
      drawn = np.array([np.nan if value is None else value for value in line["mean"]], float)
      np.testing.assert_allclose(drawn, mean, rtol=1e-5)
      np.testing.assert_allclose(line["axes"]["iteration"], arrays[f"theory/{chart['title']}/{line['name']}/iteration"])
      compared += 1
  assert compared >= 10


@pytest.mark.slow
def test_finished_figures_are_not_made_again(finished, capsys):
  before = (finished / "theory" / "figure.json").stat().st_mtime_ns
  assert run(finished, "--figure=theory") == 0
  assert (finished / "theory" / "figure.json").stat().st_mtime_ns == before
  assert "theory: already finished" in capsys.readouterr().out


@pytest.mark.slow
def test_a_figure_that_fails_leaves_the_others_alone(tmp_path, capsys):
  """The folder of MNIST is empty; half moons do not need it."""
  empty = tmp_path / "empty"
  empty.mkdir()
  out = tmp_path / "out"
  assert run(out, "--figure=examples_linear,labels_half_moons", f"--mnist_folder={empty}") == command.FAILED
  output = capsys.readouterr().out
  assert "examples_linear failed" in output
  assert "labels_half_moons: finished" in output
  text = (out / "index.html").read_text(encoding="utf-8")
  assert "labels_half_moons" in text
  assert json.loads((out / "summary.json").read_text(encoding="utf-8"))["failures"].keys() == {"examples_linear"}


@pytest.mark.slow
def test_finished_figures_stay_after_ctrl_c(tmp_path):
  process = running.start_process(
    [f"--out={tmp_path}", "--quick", "--figure=labels_half_moons,omniscient_linear", "--jobs=2"], "launch.reproduce"
  )
  deadline = time.monotonic() + 240
  while not (tmp_path / "labels_half_moons" / "figure.json").exists():
    assert process.poll() is None, process.communicate()
    assert time.monotonic() < deadline
    time.sleep(0.2)
  process.send_signal(signal.SIGINT)
  output, errors = process.communicate(timeout=120)
  assert process.returncode == 130, errors
  assert "finished figures stay" in output
  assert "Traceback" not in errors
  assert (tmp_path / "index.html").exists()
  assert not (tmp_path / "omniscient_linear" / "figure.json").exists()


@pytest.mark.slow
def test_a_killed_process_takes_one_figure_with_it(tmp_path):
  process = running.start_process(
    [f"--out={tmp_path}", "--quick", "--figure=action_space,labels_half_moons", "--jobs=1"], "launch.reproduce"
  )
  deadline = time.monotonic() + 120
  while not (victims := workers_of(process.pid)):
    assert time.monotonic() < deadline
    time.sleep(0.1)
  os.kill(victims[0], signal.SIGKILL)
  output, errors = process.communicate(timeout=240)
  assert process.returncode == command.FAILED, errors
  assert "action_space failed: its process ended with the status -9" in output
  assert "labels_half_moons: finished" in output


def workers_of(pid):
  """The ids of the worker processes."""
  children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
  return [int(c) for c in children if b"spawn_main" in pathlib.Path(f"/proc/{c}/cmdline").read_bytes()]


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (["--figure=nothing"], "--figure"),
    (["--full"], "--quick and --full"),
    (["--mnist_folder=/nowhere"], "--mnist_folder"),
    (["--seeds=0"], "seeds"),
    (["--jobs=0"], "jobs"),
    (["stray"], "stray"),
  ],
)
def test_bad_flags_are_named(tmp_path, capsys, flags, message):
  assert run(tmp_path / "out", *flags) == 2
  error = capsys.readouterr().err
  assert message in error
  assert error.startswith("error: ")


def test_help_teaches(capsys):
  assert reproduce.main(["reproduce", "--help"]) == 0
  text = capsys.readouterr().out
  for word in ("--figure", "--seeds", "--quick", "--full", "--mnist_folder", "--jobs", "--out", "index.html"):
    assert word in text
