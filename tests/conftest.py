"""A strict session: implicit rank promotion and NaNs raise, and (in pyproject.toml) warnings are errors."""

import atexit
import collections
import gc
import os
import pathlib
import re
import shutil
import tempfile
import zlib

# Programs that commands compile are cached for the processes that other tests start, apart from the user's own cache.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
  os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="last_jax_tests_")
  atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

import hypothesis
import jax
import pytest

from benchmarks import machine

machine.compile_quickly()  # Hundreds of small programs run once each.
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_debug_nans", True)
# JAX starts here, with one device: the first command to be tested would divide the CPU for all tests after it.
assert jax.device_count() == 1, "the tests need one device: unset JAX_NUM_CPU_DEVICES and XLA's flag for it"

hypothesis.settings.register_profile("last_jax", deadline=None, print_blob=True, derandomize=True, database=None)
hypothesis.settings.load_profile("last_jax")


_ON_REQUEST = ("fuzz", "faults", "nightly")  # Marks of tests that run only where `-m` names them.
_SHARE = 4  # The ordinary run has one in four of the middle cases of a test that is marked `sampled`.


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
  """Mark all cases of a parametrized test as slow, except the first and the last: the quick part has these.

  Of a test that is marked `sampled` the quick part has the first only, and most cases between these two are marked as
  nightly: which ones follows from their names, so that no axis of a product of parameters is left out. Deselect what
  runs on request only.
  """
  cases = collections.defaultdict(list)
  for item in items:
    cases[item.nodeid.partition("[")[0]].append(item)
  for several in cases.values():
    first, *others = several
    sampled = first.get_closest_marker("sampled")
    for item in others if sampled else others[:-1]:
      item.add_marker(pytest.mark.slow)
    for item in others[:-1] if sampled else ():
      if zlib.crc32(item.nodeid.encode()) % _SHARE:
        item.add_marker(pytest.mark.nightly)
  asked = re.findall(r"\w+", config.getoption("markexpr", "") or "")
  idle = [mark for mark in _ON_REQUEST if mark not in asked]
  left_out = [item for item in items if any(item.get_closest_marker(mark) for mark in idle)]
  if left_out:
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if not any(item.get_closest_marker(mark) for mark in idle)]


@pytest.fixture
def x64():
  """Float64 throughout the test."""
  with jax.enable_x64(True):
    yield


@pytest.fixture(autouse=True)
def _forget_compiled_programs():
  """Every compiled program holds pieces of memory, of which Linux allows a process 65,530: beyond that it crashes."""
  yield
  maps = pathlib.Path("/proc/self/maps")
  if maps.exists() and maps.read_bytes().count(b"\n") > 25_000:
    jax.clear_caches()
    gc.collect()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport():
  """Fail skipped tests in CI, where everything that the tests need is installed."""
  outcome = yield
  report = outcome.get_result()
  if os.environ.get("CI") and report.skipped and not hasattr(report, "wasxfail"):
    report.outcome = "failed"
    report.longrepr = f"skipped in CI: {report.longrepr}"
