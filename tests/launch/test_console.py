"""What a person sees while a command works: a bar with the time left, or lines where there is no terminal."""

import json
import re
import time

import pytest

import last_jax as last
from last_jax.tools import write_json
from launch import command, console, datasets, distill, teach, train_teacher
from launch.console import Console, Forecast, clock
from launch.folder import make_config
from tests.launch.running import run


class TestForecast:
  """A clock of our own: seconds are what the test says."""

  def make(self, parts):
    self.time = 0.0
    return Forecast(parts, lambda: self.time)

  def test_methods_to_come_take_as_long_as_those_before_compiling_included(self):
    forecast = self.make(4)
    forecast.begin()
    self.time = 3.0
    assert forecast.left(0.0, compiling=0.0) is None  # Nothing is known.
    self.time = 10.0  # 4 of compiling, 6 for half of the steps: 6 are left, and 3 methods of 16.
    assert forecast.left(0.5, compiling=4.0) == pytest.approx(6 + 3 * 16)
    self.time = 16.0
    forecast.end()
    forecast.begin()
    assert forecast.left(0.0, compiling=0.0) == pytest.approx(3 * 16)
    self.time = 20.0
    assert forecast.left(0.0, compiling=0.0) == pytest.approx(12 + 2 * 16)
    self.time = 66.0  # It compiles for longer than the first took.
    assert forecast.left(0.0, compiling=0.0) > 2 * 16
    self.time = 76.0  # 50 of compiling, 10 for a quarter: 30 are left, and 2 methods of the mean of 16 and 90.
    assert forecast.left(0.25, compiling=50.0) == pytest.approx(30 + 2 * 53)

  def test_of_a_resumed_part_only_the_time_since_then_counts(self):
    forecast = self.make(1)
    forecast.begin(share=0.8)
    self.time = 5.0
    assert forecast.left(0.9, compiling=1.0) == pytest.approx(4.0)

  def test_clock(self):
    assert [clock(seconds) for seconds in (-1, 42.4, 185, 3727)] == ["0 s", "42 s", "3:05", "1:02:07"]


@pytest.fixture
def impatient(monkeypatch):
  monkeypatch.setattr(console, "QUIET_SECONDS", 0.2)
  monkeypatch.setattr(console, "_NOTICED", 0.02)


class TestWithoutTerminal:
  def test_a_line_says_what_is_done_whenever_there_was_none_for_long(self, impatient, capsys):
    shown = Console()
    with shown.doing("reading", total=4) as task:
      time.sleep(0.3)
      task.update(1, "compiling", left=65.0)
      time.sleep(0.3)
      for _ in range(20):
        shown.say("a line")
        time.sleep(0.02)
    time.sleep(0.3)  # Nothing is done, and nothing is said.
    out, err = capsys.readouterr()
    assert set(out.splitlines()) == {"a line"}
    first, *others = err.splitlines()
    assert first == "... reading for 0 s"
    assert others
    assert set(others) <= {"... compiling for 0 s, 25 % done, about 1:05 left"}

  def test_a_quiet_process_says_nothing(self, impatient, capsys):
    with Console(quiet=True).doing("reading"):
      time.sleep(0.3)
    assert capsys.readouterr() == ("", "")

  def test_reading_and_fitting_are_not_silent(self, impatient, tmp_path, monkeypatch, capsys):
    load = datasets.load

    def slowly(values):
      time.sleep(0.4)
      return load(values)

    def fit(*_, **__):
      time.sleep(0.4)
      raise ValueError("enough")

    monkeypatch.setattr(datasets, "load", slowly)
    monkeypatch.setattr(last, "fit_target", fit)
    for main, name in ((teach.main, "teach"), (train_teacher.main, "train_teacher"), (distill.main, "distill")):
      flags = ["--dataset=half_moons", "--learner=softmax"] + ["--toward=target"] * (name == "distill")
      assert main([name, f"--out={tmp_path}", *flags]) == command.USAGE_ERROR
      lines = capsys.readouterr().err.splitlines()
      assert any(line.startswith("... reading data for") for line in lines)
      assert any(line.startswith("... finding w* for") for line in lines)
      assert lines[-1] == "error: enough"

  @pytest.mark.slow
  def test_compiling_and_teaching_are_not_silent(self, impatient, tmp_path, capsys):
    assert run(tmp_path, "--teacher=sgd,greedy", "--constraint=simplex", "--students=2", "--steps=4") == 0
    text = capsys.readouterr().err
    assert re.search(r"^\.\.\. \[1/2\] SGD: compiling for \d+ s$", text, re.MULTILINE)
    both = r"^\.\.\. \[2/2\] LAST \(simplex\): compiling for \d+ s, 50 % done, about .* left$"
    assert re.search(both, text, re.MULTILINE)


class TestInATerminal:
  def test_a_bar_with_the_time_left(self, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    shown = Console()
    assert shown.is_terminal
    with shown.doing("teaching [x]", total=2) as task:
      task.update(1, left=125.0)
      with shown.doing("a part of it"):
        shown.say("a line [y]")
        time.sleep(0.2)
    out, err = capsys.readouterr()
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out)
    assert re.search(r"teaching \[x\] .* about 2:0[45] left", plain)
    assert "a part of it" in plain
    assert "a line [y]" in plain
    assert err == ""


COMMANDS = {"teach": teach, "train_teacher": train_teacher, "distill": distill}


class TestAnotherRunInTheFolder:
  """Flags that differ are named before data are read."""

  def prepare(self, monkeypatch, out, name, *flags):
    """Write what an unfinished run leaves, and refuse to read data from here on."""
    values = COMMANDS[name].make_flags()
    values([name, *flags])
    write_json(out / "config.json", make_config(f"launch.{name}", values, {"mu": None}, {"dataset": "hash"}))
    (out / "state").mkdir()
    (out / "state" / "saved").write_text("")
    monkeypatch.setattr(datasets, "load", lambda values: pytest.fail("data are read"))

  @pytest.mark.parametrize("name", COMMANDS)
  @pytest.mark.parametrize("resume", ["--resume", "--noresume"])
  def test_the_flag_is_named(self, tmp_path, monkeypatch, capsys, name, resume):
    self.prepare(monkeypatch, tmp_path, name, "--seed=1", "--students=7")
    before = (tmp_path / "config.json").read_bytes()
    for flags, difference in (
      (["--seed=2", "--students=7"], "--seed=1 instead of 2"),
      (["--seed=1"], "--students=7 instead of "),
      (["--seed=1", "--students=7", "--x64"], "--x64=False instead of True"),
    ):
      assert COMMANDS[name].main([name, f"--out={tmp_path}", resume, *flags]) == command.USAGE_ERROR
      error = capsys.readouterr().err
      assert f"has {difference}" in error
      assert error.count("\n") == 1
    assert (tmp_path / "config.json").read_bytes() == before

  def test_what_fits_the_data_is_compared_once_they_are_read(self, tmp_path, monkeypatch, capsys):
    """Chosen for the data, or without effect: as long as they are not given, they may be as they are in the file."""
    flags = ("--teacher=sgd,label_smoothing,greedy", "--learning_rate=0.5", "--constraint=one_hot", "--learner=softmax")
    self.prepare(monkeypatch, tmp_path, "teach", *flags)
    for same in ([], flags, ["--teacher=greedy"], ["--mu=0.3"]):
      with pytest.raises(pytest.fail.Exception, match="data are read"):
        run(tmp_path, "--resume", *same)
    for other in ("--teacher=imt", "--constraint=simplex", "--learning_rate=0.1", "--steps=5"):
      assert run(tmp_path, "--resume", other) == 2
      assert f"{other.split('=')[0]}=" in capsys.readouterr().err

  def test_a_file_that_cannot_be_read_is_left_to_the_later_check(self, tmp_path, monkeypatch):
    self.prepare(monkeypatch, tmp_path, "teach")
    for text in ("{", "[]", json.dumps({"command": "x", "flags": 3})):
      (tmp_path / "config.json").write_text(text)
      with pytest.raises(pytest.fail.Exception, match="data are read"):
        run(tmp_path, "--resume")
