"""Baselines compute the same as last_jax, and one that does not is detected."""

import dataclasses
import functools
import shutil

import numpy as np
import pytest

from benchmarks import baselines, cases, ours
from benchmarks.baselines import C_LOOP, KINDS, NUMPY, c_loop, torch_tools
from benchmarks.cases import STRATEGIES
from benchmarks.equality import ResultsDiffer
from benchmarks.jobs import teaching
from tests.benchmarks.measuring import QUICK, needs_compiler, needs_torch

SMALL = {"students": 5, "steps": 12, "pool": 21}


@pytest.fixture(scope="module")
def checker():
  """Our results, computed once for all tests."""
  return teaching.Checker(cases.draw_linear(3, **SMALL), STRATEGIES["greedy"])


@pytest.fixture
def fresh_library(monkeypatch):
  """No C loop compiled yet; afterwards the cache of other tests is back."""
  monkeypatch.setattr(c_loop, "_library", functools.cache(c_loop._library.__wrapped__))


def kinds():
  marks = {C_LOOP: [needs_compiler], NUMPY: []}
  return [pytest.param(kind, id=name, marks=marks.get(name, [needs_torch])) for name, kind in KINDS.items()]


def check_altered(kind, checker, **changes):
  """Check a kind that is given a case with changes."""

  def variants(case, strategy, threads):
    return kind.variants(dataclasses.replace(case, **changes), strategy, threads)

  (side,) = teaching.make_baseline(kind._replace(variants=variants), checker, QUICK).variants
  return side.check()


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds())
def test_a_baseline_that_teaches_otherwise_is_detected(kind, checker):
  case = checker.case
  assert max(check_altered(kind, checker).values()) < 1e-5
  with pytest.raises(ResultsDiffer, match="float64"):  # In float32, that would pass for rounding.
    check_altered(kind, checker, weight_decay=1.001 * case.weight_decay)
  with pytest.raises(ResultsDiffer, match="float32"):
    check_altered(kind, checker, y=1 - case.y, target=case.target | {"bias": case.target["bias"] + 0.1})


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds())
def test_a_baseline_shown_other_examples_is_detected(kind, checker):
  (teach,) = kind.variants(checker.case, checker.strategy, 1).values()
  with pytest.raises(ResultsDiffer, match="distance"):
    checker.check(np.float32, lambda proposals: teach(proposals[::-1].copy()), SMALL["students"])


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize("strategy", ["greedy", "imt"])
def test_baselines_draw_examples_of_their_own(kind, strategy):
  case = cases.draw_linear(1, **SMALL | {"steps": 60})
  (teach,) = kind.variants(case, STRATEGIES[strategy], 1).values()
  outcome = teach(None)
  assert outcome.distance.shape == (5, 61)
  assert outcome.params.shape == (5, 25)
  assert outcome.distance.dtype == outcome.params.dtype == np.float32
  assert (outcome.distance[:, -1] < outcome.distance[:, 0]).all()
  assert len(np.unique(outcome.distance[:, -1])) == 5  # Each student has its own.


@needs_compiler
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("students", "pool"), [(1, 2), (13, 33)])
def test_lanes_and_pools_of_any_number(strategy, students, pool):
  case = cases.draw_linear(**SMALL | {"students": students, "pool": pool}).astype(np.float64)
  shown = np.random.default_rng(0).integers(pool, size=(SMALL["steps"], students))
  c, numpy = (
    next(iter(KINDS[name].variants(case, STRATEGIES[strategy], None).values()))(shown) for name in (C_LOOP, NUMPY)
  )
  np.testing.assert_allclose(c.distance, numpy.distance, rtol=1e-12)
  np.testing.assert_allclose(c.params, numpy.params, rtol=1e-12, atol=1e-12)


@needs_compiler
def test_the_c_loop_leaves_denormals_alone():
  assert c_loop.missing() is None
  assert np.float32(1e-40) * np.float32(0.5) > 0


def test_a_missing_compiler_is_reported(monkeypatch, fresh_library):
  monkeypatch.setattr(shutil, "which", lambda name: None)
  assert any("no C compiler (cc, gcc, clang)" in word for word in baselines.missing())


def test_a_compiler_that_fails_is_quoted(monkeypatch, fresh_library, tmp_path):
  compiler = write_script(tmp_path, "echo 'out of luck' >&2\nexit 1")
  monkeypatch.setattr(shutil, "which", lambda name: compiler)
  assert c_loop.missing() == "The compiler fails, so nothing is compared with a loop in C: out of luck"


@pytest.mark.slow
@needs_compiler
def test_a_compiler_that_does_not_know_a_flag_serves(monkeypatch, fresh_library, tmp_path, checker):
  real = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
  compiler = write_script(tmp_path, f'case "$*" in *-march=native*) exit 1;; esac\nexec {real} "$@"')
  monkeypatch.setattr(shutil, "which", lambda name: compiler)
  assert c_loop.missing() is None
  assert max(check_altered(KINDS[C_LOOP], checker).values()) < 1e-5


def write_script(folder, lines):
  path = folder / "compiler"
  path.write_text(f"#!/bin/sh\n{lines}\n")
  path.chmod(0o755)
  return str(path)


@pytest.mark.slow
@needs_torch
def test_threads_are_restored():
  import torch

  before = torch.get_num_threads()
  seen = []
  torch_tools.with_threads(before + 1, lambda: seen.append(torch.get_num_threads()))()
  assert (seen, torch.get_num_threads()) == ([before + 1], before)
  assert torch_tools.threads_to_try(None) == sorted({before, 1}, reverse=True)
  assert torch_tools.threads_to_try(3) == [3]


def test_greedy_labels_of_the_case_are_cut_off_in_some_steps_and_not_in_others():
  # Otherwise the job would be easier than the problem it represents.
  case = cases.draw_linear(students=1, steps=200, pool=50)
  label = np.asarray(ours.lessons(case, ours.make_teacher(STRATEGIES["greedy"])).label)
  assert {True, False} == set(np.unique((label > 0) & (label < 1)))
  assert label.min() == 0
  assert label.max() == 1


def test_cases_depend_on_the_seed_alone_and_have_both_classes():
  one, same, other = (cases.draw_linear(seed, **SMALL) for seed in (1, 1, 2))
  assert (one.x == same.x).all()
  assert (one.x != other.x).any()
  assert set(one.y) == {0, 1}
  assert one.x.dtype == one.target["bias"].dtype == one.init["weights"].dtype == np.float32
  assert one.astype(np.float64).init["bias"].dtype == np.float64
  few = one.of_first(2)
  assert (few.sizes["students"], len(few.init["weights"]), len(few.init["bias"])) == (2, 2, 2)
  assert one.of_first(None).sizes == one.of_first(99).sizes == one.sizes
  assert cases.draw_linear(0, True, **SMALL, classes=4).init["weights"].shape == (5, 24, 4)
  assert cases.draw_training(1).astype(np.float64).init is None
