"""Every job runs, tiny; its sides compute the same, and one that does not is found out. Not how fast anything is."""

import dataclasses
import json
import sys

import jax
import numpy as np
import pytest

from benchmarks import problems
from benchmarks.baselines import BATCHED, C_LOOP, KINDS, PER_STUDENT, torch_mlp
from benchmarks.equality import ResultsDiffer
from benchmarks.jobs import JOBS, mlp, sweeps, teaching, training
from benchmarks.problems import METHODS
from benchmarks.records import Target
from tests.benchmarks.measuring import QUICK, needs_compiler, needs_torch


def names_of(kind):
  return [name for name, job in JOBS.items() if isinstance(job, kind)]


def measure(name):
  """A job's figures; they can be written."""
  measured = JOBS[name].measure(QUICK)
  for each in measured:
    assert each.job == name
    assert each.problem["description"] == JOBS[name].description
    assert each.ours.median > 0
    json.dumps(each.to_json(), allow_nan=False)
  return measured


@needs_torch
@needs_compiler
@pytest.mark.parametrize("name", names_of(teaching.Teaching))
def test_all_sides_teach_the_same(name):
  (measured,) = measure(name)
  compared = {against.kind: against for against in measured.against}
  assert list(compared)[:4] == list(KINDS)
  for kind in KINDS:
    differences = compared[kind].largest_difference
    assert set(differences) == {
      f"{what} ({dtype})" for what in ("distance", "params") for dtype in ("float32", "float64")
    }
    assert max(differences.values()) < 1e-4
    assert max(value for what, value in differences.items() if "float64" in what) < 1e-12
  assert compared[PER_STUDENT].timing.units == 2 * 20  # Students times steps.
  assert measured.ours.units == compared[C_LOOP].timing.units == 8 * 20


@needs_torch
def test_targets_are_those_of_the_kinds():
  aims = {kind: target.factor for kind, target in JOBS["greedy"].targets.items()}
  assert aims == {PER_STUDENT: 800.0, BATCHED: 5.0, C_LOOP: 0.33}
  assert {(other.method, other.target.factor, other.target.slower) for other in JOBS["greedy"].beside} == {
    ("sgd", 1.3, True),
    ("imt", 20.0, False),
  }


@pytest.mark.parametrize(("name", "left"), [("sgd", ["NumPy"]), ("unrolled", [])])
def test_without_torch_and_a_compiler_our_side_is_timed_all_the_same(monkeypatch, name, left):
  monkeypatch.setitem(sys.modules, "torch", None)  # Importing it fails.
  monkeypatch.setitem(KINDS, C_LOOP, KINDS[C_LOOP]._replace(missing=lambda: "none"))
  (measured,) = measure(name)
  assert [against.kind for against in measured.against] == left
  assert "baseline_episodes" not in measured.problem["sizes"]


# --- Networks.


@needs_torch
def test_exact_labels_are_nearer_than_sought_ones():
  (measured,) = measure("mlp")
  (against,) = measured.against
  differences = dict(against.largest_difference)
  assert differences.pop("distance after a step (float32)") < 1e-5
  assert max(differences.values()) < 1e-12
  assert {"distance (start)", "distance (end)", "weights_0 (end)"} <= set(differences)


@needs_torch
def test_a_network_that_learns_otherwise_is_found_out(monkeypatch, x64):
  problem = problems.draw_mlp(mlp._TINY).astype(np.float64)
  right = torch_mlp.Network.learn

  def worse(network, params, index, labels):
    return right(network, params, index, 1.001 * labels)

  monkeypatch.setattr(torch_mlp.Network, "learn", worse)
  with pytest.raises(ResultsDiffer):
    mlp.check_step(problem, problem.init)


# --- Training.


@needs_torch
@pytest.mark.parametrize("name", names_of(training.Training))
def test_both_sides_train_the_same(name):
  (measured,) = measure(name)
  assert [against.kind for against in measured.against] == [BATCHED, PER_STUDENT]
  for against in measured.against:
    assert set(against.largest_difference) == {"loss", "gradient", "weights"}
    assert max(against.largest_difference.values()) < 1e-12
    assert against.timing.units == measured.problem["sizes"]["baseline_episodes"] == 2
  assert measured.ours.units == measured.problem["sizes"]["episodes"] == 4


# By a little, as a mistake would: Adam's step shows what a gradient of the same direction hides.
WRONG = {
  "discount": lambda setup: {"discount": 0.9999 * setup.discount},
  "students' weight decay": lambda setup: {"weight_decay": 1.01 * setup.weight_decay},
  "standardization": lambda setup: {"scale": 1.0001 * setup.scale},
}


def check_training(name, baseline=None):
  """Checks a way of training in PyTorch, unless given the job's own, against ours."""
  job = JOBS[name]
  job = job if baseline is None else dataclasses.replace(job, baseline=baseline)
  problem = problems.draw_training(training.TINY)
  for kind in job.baselines(problem, jax.random.key(0), episodes=1, threads=1):
    for side in kind.variants:
      side.check()


@needs_torch
@pytest.mark.parametrize("name", names_of(training.Training))
@pytest.mark.parametrize("change", WRONG)
def test_a_baseline_that_trains_otherwise_is_found_out(name, change):
  right = JOBS[name].baseline

  def wrong(setup, *arguments):
    return right(dataclasses.replace(setup, **WRONG[change](setup)), *arguments)

  with pytest.raises(ResultsDiffer):
    check_training(name, wrong)


@needs_torch
@pytest.mark.parametrize("name", names_of(training.Training))
def test_training_on_other_examples_is_found_out(name):
  right = JOBS[name].baseline

  def wrong(setup, network, students, index, actions):
    return right(setup, network, students, index.flip(0), actions)

  with pytest.raises(ResultsDiffer, match="loss differs"):
    check_training(name, wrong)


@needs_torch
def test_another_optimizer_is_found_out(monkeypatch):
  import torch

  # Weight decay beside Adam rather than in its gradient: the gradient is the same, the step is not.
  monkeypatch.setattr(torch.optim, "Adam", torch.optim.AdamW)
  with pytest.raises(ResultsDiffer, match="weights differs"):
    check_training("unrolled")


# --- Along axes.


@needs_torch
@pytest.mark.parametrize("name", names_of(sweeps.Sweep))
def test_sweeps_go_along_their_axis(name):
  sweep, measured = JOBS[name], measure(name)
  assert [each.size for each in measured] == len(sweep.lines) * [sweep.tiny]
  assert all(each.axis == sweep.axis and each.unit == "student-step" for each in measured)
  assert all(each.ours.temporary_bytes > 0 for each in measured)
  assert all(each.ours.units == each.problem["sizes"]["students"] * each.problem["sizes"]["steps"] for each in measured)
  compared = [bool(each.against) for each in measured]
  assert compared == [line.batched for line in sweep.lines]


@pytest.mark.parametrize("name", names_of(sweeps.Sweep))
def test_sweeps_cover_their_axis_within_memory(name):
  sweep, spans = JOBS[name], {"students": 1e5, "pool": 1e6, "features": 4096, "classes": 100, "batch_size": 128}
  assert max(place for line in sweep.lines for place in line.steps) == spans[sweep.axis]
  for line in sweep.lines:
    for sizes in sweep.sizes(line, tiny=False):
      assert 4 * sizes.students * sizes.features * sizes.classes < 2**28  # Parameters, in bytes.
      assert 4 * sizes.students * sizes.steps < 2**28  # Distances.
      assert 4 * sizes.students * sizes.pool < 2**28 or not METHODS[line.method].best  # Scores of the pool.


def test_many_seeds_are_compared_with_one():
  (two,) = measure("seeds")
  assert (two.axis, two.size, two.unit) == ("seeds", 2, "training")
  assert two.against[0].kind == "last_jax, one seed"
  assert two.against[0].largest_difference["first losses"] < 1e-4
  assert JOBS["seeds"].counts[-1] == 256
  assert JOBS["seeds"].target == Target(40.0, slower=True)


def test_segments_give_the_same_gradient():
  (measured,) = measure("horizon")
  assert [measured.problem["sizes"][name] for name in ("horizon", "segment")] == [9, 3]
  (kept,) = measured.against
  assert kept.largest_difference["gradient"] < 1e-12
  assert min(measured.ours.temporary_bytes, kept.timing.temporary_bytes) > 0
