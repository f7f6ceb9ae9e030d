"""Every job runs, tiny; its sides compute the same, and one that does not is detected. Not the speed of anything."""

import dataclasses
import json
import sys

import jax
import numpy as np
import pytest

import last_jax as last
from benchmarks import cases, networks, plots
from benchmarks.baselines import BATCHED, C_LOOP, KINDS, PER_STUDENT, cvxpy_student, torch_mlp
from benchmarks.cases import STRATEGIES
from benchmarks.equality import ResultsDiffer
from benchmarks.jobs import JOBS, calls, mlp, selection, solver, sweeps, teaching, training, training_sweeps
from benchmarks.jobs import kernels as kernel_jobs
from benchmarks.jobs import networks as network_jobs
from benchmarks.records import Target
from tests.benchmarks.measuring import QUICK, needs_compiler, needs_torch

pytestmark = pytest.mark.sampled


def names_of(kind, quick=None):
  """Return the names of some jobs. If one is given as quick, the others are marked as slow."""
  names = [name for name, job in JOBS.items() if isinstance(job, kind)]
  marks = {name: [] if quick in (None, name) else [pytest.mark.slow] for name in names}
  return [pytest.param(name, marks=marks[name]) for name in names]


def measure(name):
  """Return a job's measurements, which can be written."""
  measured = JOBS[name].measure(QUICK)
  for each in measured:
    assert each.job == name
    assert each.problem["description"] == JOBS[name].description
    assert each.ours.median > 0
    json.dumps(each.to_json(), allow_nan=False)
  return measured


@pytest.mark.slow
@needs_torch
@needs_compiler
@pytest.mark.parametrize("name", names_of(teaching.TeachingJob, quick="greedy_magnitude"))
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


def test_a_lesson_is_compared_with_an_empty_call():
  (measured,) = measure("lesson")
  (empty,) = measured.against
  assert empty.kind == calls.EMPTY
  assert measured.unit == "call"
  assert measured.ours.units == empty.timing.units == 10
  assert not measured.limits


def test_a_call_of_teach_has_a_bound_in_time_of_its_thread():
  (measured,) = measure("call")
  (limit,) = measured.limits
  assert (limit.name, limit.most) == (calls.THREAD, 0.3)
  assert limit.value > 0


def test_a_sweep_is_compared_with_one_call_for_as_many_students():
  (measured,) = measure("sweep_call")
  (many,) = measured.against
  assert measured.ours.units == many.timing.units == 2 * 3 * 3 * 5  # Rates, radii, seeds, steps.
  assert many.largest_difference["distance"] < 1e-5
  assert (many.target.factor, many.target.slower) == (1.1, True)


@needs_torch
def test_targets():
  aims = {kind: target.factor for kind, target in JOBS["greedy"].targets.items()}
  assert aims == {PER_STUDENT: 800.0, BATCHED: 10.0, C_LOOP: 0.8}
  assert {(other.strategy, other.target.factor, other.target.slower) for other in JOBS["greedy"].beside} == {
    ("sgd", 1.3, True),
    ("imt", 20.0, False),
  }


@pytest.mark.parametrize(("name", "left"), [("sgd", ["NumPy"]), pytest.param("unrolled", [], marks=pytest.mark.slow)])
def test_without_torch_and_a_compiler_our_side_is_still_timed(monkeypatch, name, left):
  monkeypatch.setitem(sys.modules, "torch", None)  # Importing it fails.
  monkeypatch.setitem(KINDS, C_LOOP, KINDS[C_LOOP]._replace(missing=lambda: "none"))
  (measured,) = measure(name)
  assert [against.kind for against in measured.against] == left
  assert "baseline_episodes" not in measured.problem["sizes"]


# --- A general solver.


@pytest.mark.parametrize("name", names_of(solver.SolverJob, quick="solver"))
@pytest.mark.slow
def test_a_general_solver_finds_the_same_labels(name):
  (measured,) = measure(name)
  (against,) = measured.against
  assert against.kind == solver.SOLVER
  assert {against.timing.name, *(each.name for each in against.slower)} == {"cvxpy, Clarabel", "cvxpy, OSQP"}
  assert against.timing.units == 6
  assert measured.ours.units == 6 * measured.problem["sizes"]["students"]
  assert against.largest_difference["distance (float64)"] < 1e-6


def test_labels_of_another_problem_are_detected():
  case = cases.draw_linear(0, True, students=1, steps=6, classes=4, pool=20)
  (teach, _) = cvxpy_student.variants(dataclasses.replace(case, learning_rate=1.01 * case.learning_rate)).values()
  with pytest.raises(ResultsDiffer, match="distance"):
    solver.check(case, teach)


# --- Networks.


@pytest.mark.slow
@needs_torch
def test_exact_labels_are_nearer_than_sought_ones():
  (measured,) = measure("mlp")
  (against,) = measured.against
  differences = dict(against.largest_difference)
  assert differences.pop("distance after a step (float32)") < 1e-5
  assert max(differences.values()) < 1e-12
  assert {"distance (start)", "distance (end)", "weights_0 (end)"} <= set(differences)


@pytest.mark.slow
@pytest.mark.parametrize("name", names_of(network_jobs.NetworkJob))
def test_greedy_labels_are_compared_with_sgd(name):
  (measured,) = measure(name)
  (against,) = measured.against
  assert against.kind == network_jobs.SGD
  assert against.largest_difference["duality gap over gain"] < 1e-3
  residual, *memory = measured.limits
  assert residual.met
  assert 0 <= residual.value < 1e-4
  assert all(limit.met and limit.value > measured.ours.temporary_bytes for limit in memory)
  assert len(memory) == (name in ("network_wide", "network_large"))


def test_targets_of_networks():
  factors = {
    name: [point.target.factor for point in JOBS[name].points]
    for name in ("network_mlp", "network_wide", "network_cnn")
  }
  assert factors == {"network_mlp": [4.0, 6.0], "network_wide": [7.0], "network_cnn": [6.0, 6.0]}
  assert all(point.target.slower for name in factors for point in JOBS[name].points)
  assert JOBS["network_wide"].points[0].memory == (100 * 10**6, True)
  assert JOBS["network_large"].points[0].memory == (2 * 10**9, False)


@pytest.mark.slow
@pytest.mark.parametrize("change", ["truth", "worse", "outside"])
def test_labels_that_are_not_the_best_are_detected(monkeypatch, change):
  right = networks.teach

  def altered(network, case, teacher, **settings):
    result = right(network, case, teacher, **settings)()
    index, label = result.lessons
    truth = np.eye(network.classes)[case.y[np.asarray(index)]]
    wrong = {"truth": truth, "worse": 0.95 * label + 0.05 / network.classes, "outside": 1.1 * label - 0.1 * truth}
    lessons = last.Lesson(index, wrong[change])
    return lambda: result._replace(records=result.records._replace(lessons=lessons))

  network = networks.fully_connected(12, 6, 4)
  case = networks.draw(0, network, batch_size=3, steps=2, pool=20)
  networks.check_labels(network, case, search=True)
  monkeypatch.setattr(networks, "teach", altered)
  with pytest.raises(ResultsDiffer, match={"outside": "labels"}.get(change, "duality gap")):
    networks.check_labels(network, case, search=True)


def test_the_nearest_point_of_the_simplex():
  values = np.array([[0.2, 0.8], [2.0, 0.0], [0.5, 0.7], [-3.0, -3.0]])
  np.testing.assert_allclose(networks.project_to_simplex(values), [[0.2, 0.8], [1, 0], [0.4, 0.6], [0.5, 0.5]])


def test_the_tangent_kernel_is_that_of_the_jacobian():
  (measured,) = measure("tangent_kernel")
  (against,) = measured.against
  assert against.largest_difference["kernel (float64)"] < 1e-10
  assert measured.ours.units == 20


def test_another_kernel_is_detected(monkeypatch):
  right = kernel_jobs._kernel_by_examples
  monkeypatch.setattr(kernel_jobs, "_kernel_by_examples", lambda *arguments: 1.0001 * right(*arguments))
  with pytest.raises(ResultsDiffer, match="kernel"):
    JOBS["tangent_kernel"].measure(QUICK)


@pytest.mark.slow
def test_the_plain_caller_computes_the_same():
  narrow, usual = measure("plain")
  assert [each.problem["sizes"]["features"] for each in (narrow, usual)] == [3, 24]
  assert len(narrow.against) == 1
  assert all(against.largest_difference["distance"] < 1e-4 for against in (narrow.against[0], usual.against[0]))


_STAND_IN = """import pathlib, runpy, sys, types
import jax
# An environment with a library of this name, whose kernel is the product of Jacobians.
def empirical_ntk_fn(apply, trace_axes, vmap_axes, implementation):
  assert (trace_axes, vmap_axes, implementation) == ((), 0, "structured")
  def kernel(x, x2, params):
    rows = jax.jacrev(apply)(params, x)
    parts = [leaf.reshape(*leaf.shape[:2], -1) for leaf in jax.tree.leaves(rows)]
    return sum(jax.numpy.einsum("ikp,jlp->ijkl", part, part) for part in parts)
  return kernel
sys.modules["neural_tangents"] = types.SimpleNamespace(
  empirical_ntk_fn=empirical_ntk_fn, NtkImplementation=types.SimpleNamespace(STRUCTURED_DERIVATIVES="structured"))
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.slow
def test_neural_tangents_takes_part_from_an_environment_of_its_own(tmp_path):
  """The script and its protocol, with a stand-in for the library, which has no release for this JAX."""
  (tmp_path / "stand_in.py").write_text(_STAND_IN)
  interpreter = tmp_path / "python"
  interpreter.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{tmp_path}/stand_in.py" "$@"\n')
  interpreter.chmod(0o755)
  (measured,) = JOBS["tangent_kernel"].measure(dataclasses.replace(QUICK, neural_tangents=str(interpreter)))
  theirs = measured.against[1]
  assert theirs.target == Target(1.0)
  assert theirs.largest_difference["kernel"] < 1e-4  # Entries are as large as 80.


@pytest.mark.slow
def test_sweeps_of_networks_share_a_picture(tmp_path):
  names = ["network_parameters", "network_batch", "network_classes"]
  measured = [each for name in names for each in measure(name)]
  assert [each.axis for each in measured] == ["parameters"] * 2 + ["batch_size"] * 2 + ["classes"] * 2
  assert tmp_path / "over_sgd.png" in plots.write_plots(tmp_path, measured)
  panels = plots.draw_ratios([measured[:2], measured[2:4], measured[4:]]).axes
  assert [panel.get_xlabel() for panel in panels] == ["parameters", "examples shown in a step", "classes"]
  lines = {line.get_label(): line.get_ydata() for line in panels[0].get_lines()}
  assert lines["batch of 8"] == pytest.approx([1 / measured[0].against[0].ratio])


# --- Selection.


@pytest.mark.parametrize("name", names_of(selection.NetworkJob, quick="imt_mlp"))
@pytest.mark.slow
def test_all_ways_to_choose_examples_teach_the_same(name):
  (measured,) = measure(name)
  assert [against.kind for against in measured.against] == [selection.FORMED, selection.STEPS, selection.BEFORE]
  assert all(against.largest_difference["distance"] < 1e-3 for against in measured.against)


@pytest.mark.slow
def test_another_choice_is_detected(monkeypatch):
  right = selection._by_gradient
  monkeypatch.setattr(selection, "_by_gradient", lambda *arguments: -right(*arguments))
  with pytest.raises(ResultsDiffer, match="distance"):
    JOBS["imt_mlp"].measure(QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("name", names_of(selection.PoolJob))
def test_pools(name):
  assert [each.axis for each in measure(name)] == ["pool"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("name", names_of(selection.ShortlistJob))
def test_the_progress_of_a_shortlist_is_stored_and_drawn(name, tmp_path):
  measured = measure(name)
  (each,) = measured
  assert each.problem["work"] == 2 * 20 / 400
  assert 0 < each.problem["share_of_progress"]["shortlist"] <= 1 + 1e-3
  assert tmp_path / f"progress_{name}.png" in plots.write_plots(tmp_path, measured)


def test_progress_of_exact_selection_is_one():
  learner, case = JOBS["shortlist"].draw(QUICK)
  np.testing.assert_allclose(selection.progress(learner, case, last.teachers.imt()), 1.0, rtol=1e-3)


@pytest.mark.slow
@needs_torch
def test_a_network_that_learns_otherwise_is_detected(monkeypatch, x64):
  case = cases.draw_mlp(**mlp.TINY).astype(np.float64)
  right = torch_mlp.Network.learn

  def worse(network, params, index, labels):
    return right(network, params, index, 1.001 * labels)

  monkeypatch.setattr(torch_mlp.Network, "learn", worse)
  with pytest.raises(ResultsDiffer):
    mlp.check_step(case)


# --- Training.


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("name", names_of(training.TrainingJob))
def test_both_sides_train_the_same(name):
  (measured,) = measure(name)
  assert [against.kind for against in measured.against] == [BATCHED, PER_STUDENT]
  for against in measured.against:
    assert set(against.largest_difference) == {"loss", "gradient", "weights"}
    assert max(against.largest_difference.values()) < 1e-12
    assert against.timing.units == measured.problem["sizes"]["baseline_episodes"] == 2
  assert measured.ours.units == measured.problem["sizes"]["episodes"] == 4


# Small errors, as a mistake would make. Adam's step shows those that leave the gradient's direction.
WRONG = {
  "discount": lambda given: {"discount": 0.9999 * given.discount},
  "students' weight decay": lambda given: {"weight_decay": 1.01 * given.weight_decay},
  "standardization": lambda given: {"scale": 1.0001 * given.scale},
}


def check_training(name, episode_fn=None):
  """Check a way of training in PyTorch, the job's own unless given, against ours."""
  job = JOBS[name]
  job = job if episode_fn is None else dataclasses.replace(job, episode_fn=episode_fn)
  case = cases.draw_training(**training.TINY)
  for kind in job.baselines(case, jax.random.key(0), episodes=1, threads=1):
    for side in kind.variants:
      side.check()


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("name", names_of(training.TrainingJob))
@pytest.mark.parametrize("change", WRONG)
def test_a_baseline_that_trains_otherwise_is_detected(name, change):
  right = JOBS[name].episode_fn

  def wrong(given, *arguments):
    return right(dataclasses.replace(given, **WRONG[change](given)), *arguments)

  with pytest.raises(ResultsDiffer):
    check_training(name, wrong)


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("name", names_of(training.TrainingJob, quick="unrolled"))
def test_training_on_other_examples_is_detected(name):
  right = JOBS[name].episode_fn

  def wrong(given, network, students, index, actions):
    return right(given, network, students, index.flip(0), actions)

  with pytest.raises(ResultsDiffer, match="loss differs"):
    check_training(name, wrong)


@pytest.mark.slow
@needs_torch
def test_another_optimizer_is_detected(monkeypatch):
  import torch

  # Weight decay beside Adam rather than in its gradient: the gradient is the same, the step is not.
  monkeypatch.setattr(torch.optim, "Adam", torch.optim.AdamW)
  with pytest.raises(ResultsDiffer, match="weights differs"):
    check_training("unrolled")


# --- Along axes.


@pytest.mark.slow
@needs_torch
@pytest.mark.parametrize("name", names_of(sweeps.SweepJob, quick="features"))
def test_sweeps_go_along_their_axis(name):
  sweep, measured = JOBS[name], measure(name)
  assert [each.size for each in measured] == len(sweep.lines) * [sweep.tiny]
  assert all(each.axis == sweep.axis and each.unit == "student-step" for each in measured)
  assert all(each.ours.temporary_bytes > 0 for each in measured)
  assert all(each.ours.units == each.problem["sizes"]["students"] * each.problem["sizes"]["steps"] for each in measured)
  compared = [bool(each.against) for each in measured]
  assert compared == [line.batched for line in sweep.lines]


@pytest.mark.parametrize("name", names_of(sweeps.SweepJob))
def test_sweeps_cover_their_axis_within_memory(name):
  sweep, spans = JOBS[name], {"students": 1e5, "pool": 1e6, "features": 4096, "classes": 100, "batch_size": 128}
  assert max(place for line in sweep.lines for place in line.steps) == spans[sweep.axis]
  for line in sweep.lines:
    for sizes in sweep.sizes(line, tiny=False):
      students, full = sizes["students"], {"pool": 1000, "features": 24, "classes": 2} | sizes
      assert 4 * students * full["features"] * full["classes"] < 2**28  # Parameters, in bytes.
      assert 4 * students * full["steps"] < 2**28  # Distances.
      assert 4 * students * full["pool"] < 2**28 or not STRATEGIES[line.strategy].best  # Scores of the pool.


@pytest.mark.slow
def test_many_seeds_are_compared_with_one():
  (two,) = measure("seeds")
  assert (two.axis, two.size, two.unit) == ("seeds", 2, "training")
  assert two.against[0].kind == "last_jax, one seed"
  assert two.against[0].largest_difference["first losses"] < 1e-4
  assert JOBS["seeds"].counts[-1] == 256
  assert Target(40.0, slower=True) == training_sweeps.SEEDS_TARGET


@pytest.mark.slow
def test_segments_give_the_same_gradient():
  (measured,) = measure("horizon")
  assert [measured.problem["sizes"][name] for name in ("horizon", "segment")] == [9, 3]
  (stored,) = measured.against
  assert stored.largest_difference["gradient"] < 1e-12
  assert min(measured.ours.temporary_bytes, stored.timing.temporary_bytes) > 0
