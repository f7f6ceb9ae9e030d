"""What tests of the benchmarks share."""

import importlib.util

import pytest

from benchmarks.baselines import c_loop
from benchmarks.jobs import Settings
from benchmarks.records import Timing

QUICK = Settings(repetitions=1, threads=1, tiny=True)

needs_torch = pytest.mark.skipif(
  importlib.util.find_spec("torch") is None, reason="PyTorch is not installed: pip install '.[bench]'"
)
needs_compiler = pytest.mark.skipif(c_loop.missing() is not None, reason="there is no C compiler that works")


def timing(name, median, **more):
  """That of a single repetition."""
  return Timing(name, 0.0, median, median, median, median, (median,), **more)
