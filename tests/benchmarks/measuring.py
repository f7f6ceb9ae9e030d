"""Helpers of the benchmarks' tests."""

import importlib.util

import pytest

from benchmarks.baselines import c_loop
from benchmarks.harness import Options
from benchmarks.records import BaselineResult, Measurement, Timing

QUICK = Options(repetitions=1, threads=1, tiny=True, rest=0.0)

needs_torch = pytest.mark.skipif(
  importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: pip install '.[bench]'"
)
needs_compiler = pytest.mark.skipif(c_loop.missing() is not None, reason="there is no C compiler that works")


def timing(name, *seconds, **more):
  """A timing whose quartiles are the second and the second to last of sorted repetitions, where there are several."""
  low, *_, high = sorted(seconds)[len(seconds) > 2 : -1 if len(seconds) > 2 else None] * 2
  median = sorted(seconds)[len(seconds) // 2]
  return Timing(name, 0.0, median, low, high, min(seconds), seconds, **more)


def against(kind, median, ratio, target=None, **more):
  met = None if target is None else target.is_met(ratio)
  part = timing(f"{kind}, 1 thread", median, **more)
  return BaselineResult(kind, part, (), ratio, ratio, 2 * ratio, ratio, {}, target, met)


def measurement(job="job", sizes=None, axis=None, ours=None, compared=()):
  problem = {"description": "a job", "sizes": {"students": 2} if sizes is None else sizes}
  return Measurement(job, problem, "student-step", ours or timing("LAST (simplex)", 2e-6), tuple(compared), axis)
