"""The command: flags, tables, plots and files, also of runs that fail or are stopped."""

import dataclasses
import json
import pathlib
import subprocess
import sys

import pytest

from benchmarks import plots, run, tables
from benchmarks.baselines import BATCHED, KINDS
from benchmarks.equality import ResultsDiffer
from benchmarks.harness import Job
from benchmarks.jobs import JOBS, sweeps
from benchmarks.records import Limit, Measurement, Target
from launch.command import UsageError
from launch.console import Console
from tests.benchmarks.measuring import against, measurement, needs_torch, timing

ROOT = pathlib.Path(__file__).parents[2]


def command(*arguments):
  return run.command(["run", *arguments])


@dataclasses.dataclass(frozen=True)
class Fake(Job):
  """A job that returns a measurement, or raises an error."""

  description: str = "nothing"
  error: BaseException | None = None

  def measure(self, settings):
    del settings
    if self.error is not None:
      raise self.error
    return [measurement(self.name)]


@pytest.fixture
def fakes(monkeypatch):
  """Jobs of the names good, wrong, broken and stopped."""
  errors = {"wrong": ResultsDiffer("by far"), "broken": MemoryError("none left"), "stopped": KeyboardInterrupt()}
  for name, error in {"good": None, **errors}.items():
    monkeypatch.setitem(JOBS, name, Fake(name, error=error))


# --- Flags.


def test_an_unknown_job_is_named():
  words = [sys.executable, "-m", "benchmarks.run", "--suite=greedy,gready"]
  done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
  assert done.returncode == 2
  assert done.stderr == f"error: --suite names 'gready', but the jobs are {', '.join(JOBS)}; did you mean 'greedy'?\n"


@pytest.mark.parametrize("flag", ["--repetitions=0", "--torch_threads=0", "--suite="])
def test_bad_flags_are_refused(flag, tmp_path):
  assert command(flag, f"--out={tmp_path}") == 2


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_timed(tmp_path, capsys):
  assert command(f"--out={tmp_path}", f"--json={tmp_path}") == 2
  (tmp_path / "file").write_text("")
  assert command(f"--out={tmp_path}", f"--json={tmp_path}/file/results.json") == 2
  assert command(f"--out={tmp_path}/file") == 2
  assert "cannot write" in capsys.readouterr().err


def test_jobs_are_run_once_each_in_their_order():
  assert [job.name for job in run.choose_jobs([" imt", "greedy", "imt"])] == ["imt", "greedy"]
  with pytest.raises(UsageError):
    run.choose_jobs([])


def test_the_list_names_every_job(capsys):
  assert command("--list") == 0
  printed = capsys.readouterr().out
  assert all(job.name in printed for job in JOBS.values())


# --- Results.


@pytest.mark.slow
@needs_torch
def test_the_command_prints_tables_draws_and_writes(tmp_path, capsys):
  file = tmp_path / "more" / "results.json"
  assert command("--tiny", "--suite=imt,students", "--repetitions=2", f"--json={file}", f"--out={tmp_path}/out") == 0
  printed = " ".join(capsys.readouterr().out.split())
  assert "students 8, steps 20, pool 50" in printed
  assert "mean nothing" in printed
  assert {path.name for path in (tmp_path / "out").iterdir()} == {"benchmarks.json", "scaling_students.png"}
  report = json.loads(file.read_text())
  assert report == json.loads((tmp_path / "out" / "benchmarks.json").read_text())
  assert report["settings"] == {"seed": 0, "repetitions": 2, "tiny": True}
  assert report["machine"]["cores"] >= 1
  assert report["machine"]["versions"]["torch"]
  assert (report["failed"], report["interrupted"]) == ({}, False)
  imt, *sweep = report["measurements"]
  assert (imt["job"], imt["axis"], imt["unit"]) == ("imt", None, "student-step")
  (batched,) = [each for each in imt["against"] if each["kind"] == BATCHED]
  assert batched["target"] == {"factor": 4.0, "slower": False}
  assert len(imt["ours"]["seconds"]) == len(batched["timing"]["seconds"]) == 2
  assert batched["ratio"] == pytest.approx(batched["timing"]["median"] / imt["ours"]["median"])
  assert [each["problem"]["sizes"]["students"] for each in sweep] == [3, 3]


def test_missing_baselines_are_named(monkeypatch, fakes, tmp_path, capsys):
  monkeypatch.setitem(sys.modules, "torch", None)
  monkeypatch.setitem(KINDS, "C loop", KINDS["C loop"]._replace(missing=lambda: "There is no C compiler."))
  assert command("--suite=good", f"--out={tmp_path}") == 0
  lines = capsys.readouterr().out.splitlines()
  assert lines[:2] == [
    "PyTorch is not installed, so nothing is compared with it: pip install '.[bench]'",
    "There is no C compiler.",
  ]


def test_a_job_that_fails_is_reported_and_others_are_saved(fakes, tmp_path, capsys):
  assert command("--suite=wrong,broken,good", f"--out={tmp_path}") == 1
  told = capsys.readouterr().err
  assert "wrong: two sides do not compute the same: by far" in told
  assert "MemoryError: none left" in told
  report = json.loads((tmp_path / "benchmarks.json").read_text())
  assert report["failed"] == {"wrong": "by far", "broken": "MemoryError: none left"}
  assert [each["job"] for each in report["measurements"]] == ["good"]


def test_ctrl_c_saves_the_finished_jobs(fakes, tmp_path, capsys):
  assert command("--suite=good,stopped,wrong", f"--out={tmp_path}") == 130
  assert "finished jobs are saved" in capsys.readouterr().out
  report = json.loads((tmp_path / "benchmarks.json").read_text())
  assert report["interrupted"] is True
  assert report["measurements"] == json.loads(json.dumps([measurement("good").to_json()]))


def test_every_job_is_written_when_it_is_finished(fakes, tmp_path, monkeypatch):
  seen = []

  @dataclasses.dataclass(frozen=True)
  class Looking(Fake):
    """Reads the file that was written after the job before it."""

    def measure(self, settings):
      report = json.loads((tmp_path / "benchmarks.json").read_text())
      seen.append(([each["job"] for each in report["measurements"]], report["interrupted"]))
      return super().measure(settings)

  monkeypatch.setitem(JOBS, "looking", Looking("looking"))
  assert command("--suite=good,looking", f"--out={tmp_path}") == 0
  assert seen == [(["good"], True)]
  assert json.loads((tmp_path / "benchmarks.json").read_text())["interrupted"] is False


def test_ctrl_c_at_once_leaves_nothing(fakes, tmp_path):
  assert command("--suite=stopped", f"--out={tmp_path}") == 130
  assert list(tmp_path.iterdir()) == []


# --- Tables and plots.


def cells(table):
  return list(zip(*(column.cells for column in table.columns), strict=True))


def test_a_table_has_a_row_for_every_case_and_baseline():
  fast = against("C loop", 1e-6, 0.5, Target(0.33), temporary_bytes=44)
  slow = against("last_jax, SGD", 1.6e-6, 0.8, Target(1.2, slower=True))
  along = timing("in segments", 0.25, temporary_bytes=3 * 2**19)
  measured = [measurement(sizes={"long_name": 2000}, compared=[fast, slow]), measurement(axis="students", ours=along)]
  first, second, third, fourth = cells(tables.make_table(measured))
  assert first == ("job", "long name 2,000: per student-step", "2.00 [2.00, 2.00] µs", "0.00 ns", "", "", "")
  assert second[1:3] == ("C loop, 1 thread", "1.00 [1.00, 1.00] µs")
  assert second[4:] == ("44.0 B", "0.50 × as fast [0.50, 1.00]", "≥ 0.33, reached")
  assert third[4:] == ("", "1.25 × as long [0.62, 1.25]", "≤ 1.2, missed")
  assert fourth[1:3] == ("in segments, students 2: per student-step", "250 [250, 250] ms")
  assert fourth[4] == "1.50 MiB"


def test_limits_are_rows_of_the_table_and_are_read_again():
  limits = Limit("memory", 3 * 2**19, 2**20, "B"), Limit("residual", 2e-5, 1e-4), Limit("gap", float("nan"), 1.0)
  measured = dataclasses.replace(measurement(), limits=limits[:2])
  _, memory, residual = cells(tables.make_table([measured]))
  assert memory[1:] == ("memory", "", "", "1.50 MiB", "", "≤ 1.00 MiB, missed")
  assert residual[1:] == ("residual", "", "", "", "2e-05", "≤ 0.0001, reached")
  assert not limits[2].met
  stored = json.loads(json.dumps(measured.to_json()))
  assert Measurement.from_json(stored) == measured
  del stored["limits"]  # As earlier versions wrote it.
  assert Measurement.from_json(stored) == measurement()


def test_brackets_are_printed(capsys):
  Console().print(tables.make_table([measurement()]))
  assert "2.00 [2.00, 2.00] µs" in capsys.readouterr().out


def test_plots_have_labelled_axes_with_units(tmp_path):
  measured = [
    measurement("students", {"students": size}, "students", timing(name, 1e-4 / size, temporary_bytes=memory), [
      against(BATCHED, 1e-3 / size, 10.0)
    ])
    for name, memory in (("LAST (simplex)", 1000), ("IMT", 0))
    for size in (1, 10, 100)
  ]  # fmt: skip
  time, memory = plots.draw(measured).axes
  assert (time.get_xlabel(), time.get_ylabel()) == ("students", "time per student-step (ms)")
  assert memory.get_ylabel() == "temporary memory of a device (MiB)"
  assert (time.get_xscale(), time.get_yscale()) == ("log", "log")
  lines = {line.get_label(): line for line in time.get_lines()}
  assert set(lines) == {
    "LAST (simplex)", "IMT", f"LAST (simplex), {BATCHED}", f"IMT, {BATCHED}", "in proportion"
  }  # fmt: skip
  assert lines["IMT"].get_ydata() == pytest.approx([0.1, 0.01, 0.001])
  (x, other_x), (y, other_y) = lines["in proportion"].get_data()
  assert other_y / y == pytest.approx(other_x / x)
  assert [text.get_text() for text in time.get_xticklabels()] == ["1", "10", "100"]
  assert len(memory.get_lines()) == 2  # One that needs memory, and the proportion.
  files = plots.write_plots(tmp_path, [measurement("greedy"), *measured])
  assert [file.name for file in files] == ["scaling_students.png"]
  assert files[0].read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("axis", sorted({"seeds", "horizon", *(job.axis for job in sweeps.JOBS)}))
def test_every_axis_has_a_label(axis):
  figure = plots.draw([measurement(sizes={axis: 3}, axis=axis)])
  assert figure.axes[0].get_xlabel()
  assert len(figure.axes) == 1  # Memory is not known.
