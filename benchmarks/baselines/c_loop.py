"""The same teaching in C, fused and threaded: about the limit of the machine. The loop itself is in c_loop.c."""

import concurrent.futures
import ctypes
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile

import numpy as np

from benchmarks.baselines.base import Teach, Trajectory, make_arrays, name_threads
from benchmarks.cases import RADIUS, Case, Strategy
from last_jax.devices import num_cores

_SOURCE = pathlib.Path(__file__).with_suffix(".c")
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-std=c11", "-O3", "-fPIC")
_FASTER = ("-march=native", "-ffast-math", "-fopenmp-simd")  # Not every compiler knows these.

# As in c_loop.c.
_LABELS = ("truth", "none", "one_hot", "simplex", "magnitude")
_CHUNK = 16
_USUAL_WIDTH = 25  # 24 features and a bias.
_ROW = 8  # The length of rows of weights is a multiple of this.


class _Task(ctypes.Structure):
  """As in c_loop.c."""

  _fields_ = (
    *((name, ctypes.c_int64) for name in ("pool", "chunks", "width", "steps")),
    *((name, ctypes.c_double) for name in ("rate", "shrink", "radius")),
    *((name, ctypes.c_void_p) for name in ("x", "columns", "truth", "target_outputs", "scales", "target", "keep")),
  )
  arrays: dict[str, np.ndarray]  # Keeps them alive: the fields hold only their addresses.


class _Unusable(Exception):
  """No C loop on this machine. The message is for the user."""


def missing() -> str | None:
  """Return why the loop is not available, or None."""
  try:
    _library(_row_length(_USUAL_WIDTH))
  except _Unusable as error:
    return str(error)
  return None


def variants(case: Case, strategy: Strategy, threads: int | None = None) -> dict[str, Teach]:
  """Return the teaching of this case, by one thread per core."""
  del threads  # Of PyTorch.
  count = num_cores()
  return {name_threads(count): _prepare(case, strategy, count)}


def _prepare(case: Case, strategy: Strategy, threads: int) -> Teach:
  task = make_arrays(case)
  (pool, width), students, steps = task.x.shape, case.sizes["students"], case.sizes["steps"]
  stride = _row_length(width)

  def padded(array: np.ndarray) -> np.ndarray:
    """Fill rows of weights up with zeros."""
    return np.ascontiguousarray(np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, stride - width)]))

  # Filled up with the first example: of equally good ones the first is chosen.
  index = np.append(np.arange(pool), np.zeros(-pool % _CHUNK, int))
  arrays = {
    "x": padded(task.x),
    "columns": np.ascontiguousarray(task.x[index].T),
    "truth": task.truth[index],
    "target_outputs": (task.x @ task.target)[index],
    "scales": (case.learning_rate * np.square(task.x).sum(1))[index],
    "target": padded(task.target),
    "keep": padded(task.keep),
  }
  given = _Task(
    pool, len(index) // _CHUNK, width, steps, case.learning_rate,
    case.learning_rate * case.weight_decay, RADIUS,
    *(array.ctypes.data for array in arrays.values()),
  )  # fmt: skip
  given.arrays = arrays
  init, labels = padded(task.init), _LABELS.index(strategy.labels)
  run = getattr(_library(stride), "teach_float" if task.x.dtype == np.float32 else "teach_double")
  ends = [students * share // threads for share in range(threads + 1)]

  def teach(proposals: np.ndarray | None) -> Trajectory:
    params, distance = init.copy(), np.empty((students, steps + 1), init.dtype)
    shown = None if proposals is None else np.ascontiguousarray(proposals.T, np.int32)  # [S, steps]

    def teach_share(begin: int, end: int) -> None:
      examples = None if shown is None else shown.ctypes.data
      results = params.ctypes.data, distance.ctypes.data
      run(given, strategy.best, labels, begin, end, examples, case.seed, *results)

    list(_workers(threads).map(teach_share, ends[:-1], ends[1:]))
    return Trajectory(distance, params[:, :width])

  return teach


def _row_length(width: int) -> int:
  return -width % _ROW + width


@functools.cache
def _workers(threads: int) -> concurrent.futures.ThreadPoolExecutor:
  """Threads of Python, which releases its lock while C runs."""
  return concurrent.futures.ThreadPoolExecutor(threads, "c_loop")


@functools.cache
def _library(stride: int) -> ctypes.CDLL:
  """Compile the loop with the machine's own compiler. The length of rows is a constant, for the inner loops."""
  compiler = next((path for name in _COMPILERS if (path := shutil.which(name))), None)
  if compiler is None:
    raise _Unusable(f"There is no C compiler ({', '.join(_COMPILERS)}), so nothing is compared with a loop in C.")
  with tempfile.TemporaryDirectory() as folder:
    part, library = os.path.join(folder, "c_loop.o"), os.path.join(folder, "c_loop.so")
    compile_ = (compiler, *_FLAGS, f"-DSTRIDE={stride}", "-c", str(_SOURCE), "-o", part)
    failure = _failure(*compile_, *_FASTER) and _failure(*compile_)
    # In two steps: a library that is linked with -ffast-math makes the whole process flush denormals to zero.
    failure = failure or _failure(compiler, "-shared", part, "-o", library, "-lm")
    if failure:
      raise _Unusable(f"The compiler fails, so nothing is compared with a loop in C: {failure}")
    loaded = ctypes.CDLL(library)  # It stays loaded after its file is deleted.
  whole, address = ctypes.c_int64, ctypes.c_void_p
  for function in (loaded.teach_float, loaded.teach_double):
    function.argtypes = (
      ctypes.POINTER(_Task), ctypes.c_int, ctypes.c_int, whole, whole, address, ctypes.c_uint64, address, address,
    )  # fmt: skip
    function.restype = None
  return loaded


def _failure(*words: str) -> str:
  """Run a command and return why it failed, in a line, or ""."""
  done = subprocess.run(words, capture_output=True, text=True, check=False)
  lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
  return lines[0] if done.returncode else ""
