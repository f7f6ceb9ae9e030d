"""The benchmarks of training: both sides compute the same, and one that does not is found out. Not how fast."""

import dataclasses
import importlib.util
import json

import pytest

from benchmarks import harness, run, torch_training, training_jobs
from launch.command import run_command

QUICK = training_jobs.Settings(repetitions=1, threads=1, tiny=True)

needs_torch = pytest.mark.skipif(
  importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: pip install '.[bench]'"
)


def altered(name, baseline):
  """The job with another baseline."""
  job = training_jobs.JOBS[name]
  return dataclasses.replace(job, measure=dataclasses.replace(job.measure, baseline=baseline))


@needs_torch
@pytest.mark.parametrize("name", ["unrolled", "reinforce"])
def test_both_sides_train_the_same(name):
  (result,) = training_jobs.JOBS[name].run(QUICK)
  assert max(result.largest_difference.values()) < 1e-12
  assert set(result.largest_difference) == {"loss", "gradient", "weights"}
  sizes = result.problem["sizes"]
  assert (sizes["episodes"], sizes["baseline_episodes"]) == (result.ours.units, result.baseline.units) == (4, 2)
  names = {timing.name for timing in (result.baseline, *result.other_baselines)}
  assert names == {"PyTorch, batched eager, 1 thread", "PyTorch, one student at a time, 1 thread"}
  json.dumps(result.to_json(), allow_nan=False)


# By a little, as a mistake would: Adam's step shows what a gradient of the same direction hides.
WRONG = {
  "discount": lambda setup: {"discount": 0.9999 * setup.discount},
  "students' weight decay": lambda setup: {"weight_decay": 1.01 * setup.weight_decay},
  "standardization": lambda setup: {"scale": 1.0001 * setup.scale},
}


@needs_torch
@pytest.mark.parametrize("name", ["unrolled", "reinforce"])
@pytest.mark.parametrize("change", WRONG)
def test_a_baseline_that_trains_otherwise_is_found_out(name, change):
  right = getattr(torch_training, name)

  def wrong(setup, *arguments):
    return right(dataclasses.replace(setup, **WRONG[change](setup)), *arguments)

  with pytest.raises(harness.ResultsDiffer):
    altered(name, wrong).run(QUICK)


@needs_torch
@pytest.mark.parametrize("name", ["unrolled", "reinforce"])
def test_a_baseline_shown_other_examples_is_found_out(name):
  right = getattr(torch_training, name)

  def wrong(setup, network, students, index, actions):
    return right(setup, network, students, index.flip(0), actions)

  with pytest.raises(harness.ResultsDiffer, match="loss differs"):
    altered(name, wrong).run(QUICK)


@needs_torch
def test_another_optimizer_is_found_out(monkeypatch):
  import torch

  # Weight decay beside Adam rather than in its gradient: the gradient is the same, the step is not.
  monkeypatch.setattr(torch.optim, "Adam", torch.optim.AdamW)
  with pytest.raises(harness.ResultsDiffer, match="weights differs"):
    training_jobs.JOBS["unrolled"].run(QUICK)


def test_without_torch_our_side_is_timed_all_the_same():
  (result,) = training_jobs.JOBS["unrolled"].run(dataclasses.replace(QUICK, against_torch=False))
  assert result.ours.median > 0
  assert result.ratio is None
  assert "baseline_episodes" not in result.problem["sizes"]


def test_seeds_and_segments_by_the_command(tmp_path, capsys):
  file = tmp_path / "results.json"
  arguments = ["run", "--tiny", "--suite=seeds,remat", "--repetitions=1", f"--json={file}"]
  assert run_command(run.main, run.define_flags(), run.__doc__, arguments) == 0
  assert "Temporary memory" in capsys.readouterr().out
  seeds, short, long = json.loads(file.read_text())["results"]
  assert (seeds["at_most"], seeds["target_ratio"], seeds["problem"]["sizes"]["seeds"]) == (True, 8.0, 3)
  assert [r["problem"]["sizes"][s] for r in (short, long) for s in ("horizon", "segment")] == [4, 2, 9, 3]
  assert all(size > 0 for r in (short, long) for size in r["problem"]["temporary_bytes"].values())
  assert max(r["largest_difference"]["gradient"] for r in (short, long)) < 1e-12


def test_growth_is_the_power_of_the_horizon():
  timing = harness.Timing("a", 0.0, 1.0, 1.0, 1.0, 1.0, (1.0,))

  def result(horizon, segments, kept):
    memory = {"segments": segments, "kept": kept}
    problem = {"sizes": {"horizon": horizon, "segment": 1}, "temporary_bytes": memory}
    return harness.Comparison("remat", problem, timing, dataclasses.replace(timing, median=0.5), ratio=0.5)

  table = run.make_memory_table([result(10, 1024, 2048), result(40, 2048, 8192)])
  cells = [list(column.cells) for column in table.columns]
  assert cells[2:6] == [["2", "8"], ["-", "1.00"], ["1", "2"], ["-", "0.50"]]
  assert cells[-1] == ["2.00", "2.00"]
