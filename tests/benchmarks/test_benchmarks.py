"""The benchmarks themselves: what they time is right, and what they say of it is right. Not how fast anything is."""

import dataclasses
import importlib.util
import json
import pathlib
import subprocess
import sys
import time

import numpy as np
import pytest

from benchmarks import harness, jobs, problems, run, torch_baseline
from launch.command import UsageError, run_command

ROOT = pathlib.Path(__file__).parents[2]
TINY = problems.Sizes(students=8, steps=20, pool=50)
EXACT = harness.Tolerance(relative=0.0, absolute=0.0)

needs_torch = pytest.mark.skipif(
  importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: pip install '.[bench]'"
)


class Clock:
  """Time that passes only where it is told to."""

  def __init__(self):
    self.now = 0.0

  def __call__(self):
    return self.now

  def takes(self, *durations):
    """A function that takes these durations, one a call."""
    left = iter(durations)

    def run():
      self.now += next(left)

    return run


def side(run, name="side", outcome=None):
  return harness.Side(name, run, lambda: {"value": np.ones(3)} if outcome is None else outcome)


def measure(run, repetitions=1, warmups=1, timer=time.perf_counter):
  """The timing of one side alone."""
  settings = {"repetitions": repetitions, "warmups": warmups, "timer": timer}
  return harness.compare("job", {}, side(run, "ours"), [], {}, **settings).ours


# --- Arithmetic of the harness.


def test_compiling_is_told_apart_from_running():
  clock = Clock()
  timing = measure(clock.takes(12.0, 7.0, 2.0, 1.0, 4.0, 3.0, 5.0), 5, warmups=1, timer=clock)
  assert timing.seconds == (2.0, 1.0, 4.0, 3.0, 5.0)  # Neither the first call nor the warm-up.
  assert timing.median == 3.0
  assert (timing.lower_quartile, timing.upper_quartile, timing.fastest) == (2.0, 4.0, 1.0)
  assert timing.compile_seconds == 12.0 - 3.0


def test_compile_time_is_never_negative():
  clock = Clock()
  assert measure(clock.takes(1.0, 2.0, 2.0), 1, warmups=1, timer=clock).compile_seconds == 0.0


def test_a_single_repetition_is_its_own_quartiles():
  clock = Clock()
  timing = measure(clock.takes(1.0, 2.0), 1, warmups=0, timer=clock)
  assert timing.lower_quartile == timing.median == timing.upper_quartile == 2.0


def test_the_ratio_is_that_of_the_medians_and_its_spread_that_of_the_repetitions():
  clock = Clock()
  ours = side(clock.takes(9.0, 1.0, 1.0, 2.0, 4.0), "ours")
  baseline = side(clock.takes(8.0, 8.0, 8.0, 6.0, 4.0), "baseline")
  result = harness.compare(
    "job", {"sizes": 3}, ours, [baseline], {"value": EXACT}, repetitions=3, target_ratio=3.0, timer=clock
  )
  assert result.ours.seconds == (1.0, 2.0, 4.0)
  assert result.baseline.seconds == (8.0, 6.0, 4.0)
  assert result.ratio == 6.0 / 2.0
  assert (result.ratio_lower_quartile, result.ratio_upper_quartile) == (2.0, 5.5)  # Of 8, 3 and 1.
  assert result.ratio_of_fastest == 4.0 / 1.0
  assert result.ours.compile_seconds == 9.0 - 2.0
  assert (result.problem, result.target_ratio, result.largest_difference) == ({"sizes": 3}, 3.0, {"value": 0.0})
  assert json.loads(json.dumps(result.to_json()))["baseline"]["name"] == "baseline"


def test_the_sides_take_turns():
  order = []
  ours, baseline = side(lambda: order.append("ours")), side(lambda: order.append("baseline"))
  harness.compare("job", {}, ours, [baseline], {"value": EXACT}, repetitions=3, warmups=0)
  assert order[2:] == ["ours", "baseline", "baseline", "ours", "ours", "baseline"]


def test_of_several_baselines_the_fastest_counts():
  clock = Clock()
  slow, fast = (side(clock.takes(*(3 * [duration])), name) for duration, name in ((9.0, "slow"), (4.0, "fast")))
  ours = side(clock.takes(2.0, 2.0, 2.0))
  result = harness.compare("job", {}, ours, [slow, fast], {"value": EXACT}, repetitions=2, warmups=0, timer=clock)
  assert (result.baseline.name, result.ratio) == ("fast", 2.0)
  assert [timing.name for timing in result.other_baselines] == ["slow"]


def test_sides_that_do_different_amounts_are_compared_by_the_unit():
  clock = Clock()
  ours = dataclasses.replace(side(clock.takes(25.0, 20.0, 10.0, 30.0)), units=10)
  baseline = dataclasses.replace(side(clock.takes(12.0, 12.0, 8.0, 16.0)), units=2)
  result = harness.compare(
    "job", {}, ours, [baseline], {"value": EXACT}, repetitions=3, warmups=0, at_most=True, timer=clock
  )
  assert result.ours.seconds == (2.0, 1.0, 3.0)
  assert (result.ours.median, result.ours.fastest, result.ours.units) == (2.0, 1.0, 10)
  assert result.ours.compile_seconds == 25.0 - 20.0  # Of the call, not of the unit.
  assert (result.ratio, result.ratio_of_fastest) == (3.0, 4.0)
  assert (result.ratio_lower_quartile, result.ratio_upper_quartile) == pytest.approx((17 / 6, 3.5))  # Of 3, 4 and 8/3.
  assert result.at_most


def test_every_baseline_is_checked():
  good, bad = side(lambda: None), side(lambda: None, outcome={"value": np.zeros(3)})
  with pytest.raises(harness.ResultsDiffer):
    harness.compare("job", {}, good, [good, bad], {"value": EXACT}, repetitions=1)


def test_results_are_waited_for():
  class Pending:
    waited = 0

    def block_until_ready(self):
      Pending.waited += 1
      return self

  measure(Pending, repetitions=3, warmups=1)
  assert Pending.waited == 5


@pytest.mark.parametrize(("settings", "message"), [({"repetitions": 0}, "repetitions"), ({"warmups": -1}, "warmups")])
def test_counts_are_checked(settings, message):
  with pytest.raises(ValueError, match=message):
    measure(lambda: None, **settings)


# --- Equality.


@pytest.mark.parametrize(
  ("ours", "message"),
  [
    ({"value": np.array([1.0, 2.5])}, r"value differs at 1 of 2 places, most at \(1,\): 2.5 against 2.0"),
    ({"value": np.array([1.0, np.nan])}, "differs at 1 of 2"),
    ({"value": np.ones(3)}, "shape"),
    ({"other": np.ones(2)}, "our results are other"),
  ],
)
def test_results_that_differ_are_not_compared(ours, message):
  baseline = {"value": np.array([1.0, 2.0])}
  with pytest.raises(harness.ResultsDiffer, match=message):
    harness.check_equal(ours, baseline, {"value": harness.Tolerance(relative=0.1, absolute=0.1)})


def test_tolerance_is_relative_absolute_and_of_a_share():
  ours, baseline = {"value": np.array([0.01, 11.0, 1.0, 3.0])}, {"value": np.array([0.0, 10.0, 1.0, 1.0])}
  allowed = harness.Tolerance(relative=0.1, absolute=0.01, share=0.75)
  assert harness.check_equal(ours, baseline, {"value": allowed}) == {"value": 2.0}
  with pytest.raises(harness.ResultsDiffer):
    harness.check_equal(ours, baseline, {"value": dataclasses.replace(allowed, share=0.76)})


# --- The jobs.


@needs_torch
@pytest.mark.parametrize("name", jobs.JOBS)
def test_both_sides_teach_the_same(name):
  result = jobs.run(jobs.JOBS[name], TINY, seed=3, repetitions=1, threads=1)
  assert result.problem["sizes"] == dataclasses.asdict(TINY)
  assert max(result.largest_difference.values()) < 1e-4
  assert max(result.largest_difference[f"{value} (float64)"] for value in ("distance", "params")) < 1e-12
  assert result.ratio > 0
  json.dumps(result.to_json(), allow_nan=False)


@needs_torch
def test_a_baseline_that_teaches_otherwise_is_found_out():
  def altered(task, proposals):
    return torch_baseline.greedy(dataclasses.replace(task, weight_decay=1.001 * task.weight_decay), proposals)

  job = dataclasses.replace(jobs.JOBS["greedy"], baseline=altered)
  with pytest.raises(harness.ResultsDiffer, match="float64"):  # In float32, that would pass for rounding.
    jobs.run(job, TINY, repetitions=1, threads=1)


@needs_torch
def test_a_baseline_shown_other_examples_is_found_out():
  job = dataclasses.replace(jobs.JOBS["sgd"], baseline=lambda task, shown: torch_baseline.sgd(task, shown.flip(0)))
  with pytest.raises(harness.ResultsDiffer, match=r"^distance differs"):
    jobs.run(job, TINY, repetitions=1, threads=1)


@needs_torch
def test_greedy_labels_of_the_problem_are_cut_off_in_some_steps_and_not_in_others():
  # Otherwise the job would be easier than what it stands for.
  problem = problems.draw(problems.Sizes(students=1, steps=200, pool=50))
  lessons = jobs.our_lessons(jobs.JOBS["greedy"], problem)
  label = np.asarray(lessons.label)
  assert {True, False} == set(np.unique((label > 0) & (label < 1)))
  assert label.min() == 0
  assert label.max() == 1


@needs_torch
def test_threads_are_put_back():
  import torch

  before = torch.get_num_threads()
  seen = []
  torch_baseline.with_threads(before + 1, lambda: seen.append(torch.get_num_threads()))()
  assert (seen, torch.get_num_threads()) == ([before + 1], before)
  assert torch_baseline.threads_to_try() == sorted({before, 1}, reverse=True)


def test_problems_are_the_same_for_a_seed_and_have_both_classes():
  one, same, other = (problems.draw(TINY, seed) for seed in (1, 1, 2))
  assert (one.x == same.x).all()
  assert (one.x != other.x).any()
  assert set(one.y) == {0, 1}
  assert one.x.dtype == one.target_bias.dtype == np.float32
  assert one.astype(np.float64).init_bias.dtype == np.float64


# --- The command.


def command(*arguments):
  return run_command(run.main, run.define_flags(), run.__doc__, ["run", *arguments])


def test_a_job_that_is_not_known_is_named():
  words = [sys.executable, "-m", "benchmarks.run", "--suite=greedy,gready"]
  done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT)
  assert done.returncode == 2
  assert done.stderr == f"error: --suite names 'gready', but the jobs are {', '.join(run.known_jobs())}\n"


@pytest.mark.parametrize("flag", ["--repetitions=0", "--torch_threads=0", "--suite="])
def test_bad_flags_are_refused(flag):
  assert command(flag) == 2


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_timed(tmp_path, capsys):
  assert command(f"--json={tmp_path}") == 2
  (tmp_path / "file").write_text("")
  assert command(f"--json={tmp_path}/file/results.json") == 2
  assert "cannot write" in capsys.readouterr().err


def test_jobs_are_run_once_each_in_their_order():
  assert [job.name for job in run.chosen_jobs([" imt", "greedy", "imt"])] == ["imt", "greedy"]
  with pytest.raises(UsageError):
    run.chosen_jobs([])


def test_without_torch_our_side_is_timed_all_the_same(monkeypatch, tmp_path, capsys):
  monkeypatch.setitem(sys.modules, "torch", None)  # Importing it fails.
  assert command("--tiny", "--suite=sgd", "--repetitions=1", f"--out={tmp_path}/new") == 0
  printed = capsys.readouterr().out
  assert "PyTorch is not installed" in printed
  assert "pip install '.[bench]'" in printed
  (result,) = json.loads((tmp_path / "new" / "benchmarks.json").read_text())["results"]
  assert result["ours"]["median"] > 0
  assert result["baseline"] is result["ratio"] is None


@needs_torch
def test_sides_that_differ_end_the_command(monkeypatch, tmp_path, capsys):
  job = dataclasses.replace(jobs.JOBS["sgd"], baseline=torch_baseline.greedy)
  monkeypatch.setitem(jobs.JOBS, "sgd", job)
  assert command("--tiny", "--suite=sgd", "--repetitions=1", f"--json={tmp_path}/results.json") == 1
  assert "sgd: both sides do not teach the same" in capsys.readouterr().err
  assert list(tmp_path.iterdir()) == []


@needs_torch
def test_the_command_prints_a_table_and_writes_json(tmp_path, capsys):
  file = tmp_path / "results.json"
  file.write_text("of an earlier run")
  assert command("--tiny", "--suite=imt", "--repetitions=2", f"--json={file}") == 0
  assert "8 students, 20 steps, 50 pool" in capsys.readouterr().out
  report = json.loads(file.read_text())
  assert list(tmp_path.iterdir()) == [file]
  assert report["tiny"] is True
  assert report["machine"]["cores"] >= 1
  assert report["machine"]["versions"]["torch"]
  (result,) = report["results"]
  assert result["job"] == "imt"
  assert result["target_ratio"] == 3.0
  assert len(result["ours"]["seconds"]) == len(result["baseline"]["seconds"]) == 2
  assert result["ratio"] == pytest.approx(result["baseline"]["median"] / result["ours"]["median"])


def test_a_table_shows_quartiles_and_what_is_missing():
  clock = Clock()
  timing = measure(clock.takes(1.0, 0.5), 1, warmups=0, timer=clock)
  table = run.make_table([harness.Comparison("job", {"sizes": {"students": 2}}, timing)])
  cells = [list(column.cells) for column in table.columns]
  assert cells == [["job"], ["2 students"], [r"500.0 \[500.0, 500.0]"], ["0.50"], ["-"], ["-"], ["-"]]


def test_a_table_shows_slower_baselines_and_upper_bounds():
  ours, fast, slow = (
    harness.Timing(name, 0.0, t, t, t, t, (t,)) for name, t in (("a", 1e-3), ("b", 2e-3), ("c", 4e-3))
  )
  quartiles = {"ratio": 2.0, "ratio_lower_quartile": 2.0, "ratio_upper_quartile": 2.0}
  settings = {"target_ratio": 8.0, "at_most": True}
  result = harness.Comparison("job", {"sizes": {"long_name": 2}}, ours, fast, (slow,), **quartiles, **settings)
  first, second = zip(*(column.cells for column in run.make_table([result]).columns), strict=True)
  assert first[1] == "2 long name\nagainst b"
  assert first[4:] == (r"2.000 \[2.000, 2.000]", r"2.00 \[2.00, 2.00]", "< 8")
  assert second == ("", "against c", "", "", r"4.000 \[4.000, 4.000]", "4.00", "")


def test_json_is_written_whole_or_not_at_all(tmp_path):
  file = tmp_path / "results.json"
  run.write_json(file, {"a": 1})
  with pytest.raises(ValueError, match="JSON compliant"):
    run.write_json(file, {"a": float("nan")})
  assert json.loads(file.read_text()) == {"a": 1}
  assert list(tmp_path.iterdir()) == [file]
