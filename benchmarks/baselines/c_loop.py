"""The same teaching in C, fused and by several threads: a practical limit. The loop itself is in c_loop.c."""

import concurrent.futures
import ctypes
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile

import numpy as np

from benchmarks.baselines.base import Outcome, Teach, arrays_of, thread_word
from benchmarks.problems import RADIUS, Method, Problem, Sizes
from last_jax.devices import num_cores

_SOURCE = pathlib.Path(__file__).with_suffix(".c")
_COMPILERS = ("cc", "gcc", "clang")
_FLAGS = ("-std=c11", "-O3", "-fPIC")
_FASTER = ("-march=native", "-ffast-math", "-fopenmp-simd")  # Not known to every compiler.

# As in c_loop.c.
_LABELS = ("truth", "none", "one_hot", "simplex", "magnitude")
_CHUNK = 16
_ROW = 8  # Rows of weights are a multiple of so many numbers long.


class _Task(ctypes.Structure):
  """As in c_loop.c."""

  _fields_ = (
    *((name, ctypes.c_int64) for name in ("pool", "chunks", "width", "steps")),
    *((name, ctypes.c_double) for name in ("rate", "shrink", "radius")),
    *((name, ctypes.c_void_p) for name in ("x", "columns", "truth", "target_outputs", "scales", "target", "keep")),
  )
  arrays: dict[str, np.ndarray]  # Kept alive by this: the fields hold their addresses only.


class _Unusable(Exception):
  """There is no C loop on this machine. The message is for the user."""


def missing() -> str | None:
  """Why there is nothing to compare with, if so."""
  try:
    _library(_row_of(Sizes.features + 1))
  except _Unusable as error:
    return str(error)
  return None


def variants(problem: Problem, method: Method, threads: int | None = None) -> dict[str, Teach]:
  """The teaching of this problem, by as many threads as there are cores."""
  del threads  # That is how many PyTorch is to have.
  count = num_cores()
  return {thread_word(count): _prepare(problem, method, count)}


def _prepare(problem: Problem, method: Method, threads: int) -> Teach:
  task = arrays_of(problem)
  (pool, width), students, steps = task.x.shape, problem.sizes.students, problem.sizes.steps
  stride = _row_of(width)

  def padded(array: np.ndarray) -> np.ndarray:
    """Rows of weights, filled up with zeros."""
    return np.ascontiguousarray(np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, stride - width)]))

  # Filled up with the first example: where a later one is as good, the first is chosen.
  index = np.append(np.arange(pool), np.zeros(-pool % _CHUNK, int))
  arrays = {
    "x": padded(task.x),
    "columns": np.ascontiguousarray(task.x[index].T),
    "truth": task.truth[index],
    "target_outputs": (task.x @ task.target)[index],
    "scales": (problem.learning_rate * np.square(task.x).sum(1))[index],
    "target": padded(task.target),
    "keep": padded(task.keep),
  }
  given = _Task(
    pool, len(index) // _CHUNK, width, steps, problem.learning_rate,
    problem.learning_rate * problem.weight_decay, RADIUS,
    *(array.ctypes.data for array in arrays.values()),
  )  # fmt: skip
  given.arrays = arrays
  init, labels = padded(task.init), _LABELS.index(method.labels)
  run = getattr(_library(stride), "teach_float" if task.x.dtype == np.float32 else "teach_double")
  ends = [students * share // threads for share in range(threads + 1)]

  def teach(proposals: np.ndarray | None) -> Outcome:
    params, distance = init.copy(), np.empty((students, steps + 1), init.dtype)
    shown = None if proposals is None else np.ascontiguousarray(proposals.T, np.int32)  # [S, steps]

    def teach_share(begin: int, end: int) -> None:
      examples = None if shown is None else shown.ctypes.data
      results = params.ctypes.data, distance.ctypes.data
      run(given, method.best, labels, begin, end, examples, problem.seed, *results)

    list(_workers(threads).map(teach_share, ends[:-1], ends[1:]))
    return Outcome(distance, params[:, :width])

  return teach


def _row_of(width: int) -> int:
  return -width % _ROW + width


@functools.cache
def _workers(threads: int) -> concurrent.futures.ThreadPoolExecutor:
  """Threads of Python serve: it lets go of its lock while C runs. They sleep when there is nothing to do."""
  return concurrent.futures.ThreadPoolExecutor(threads, "c_loop")


@functools.cache
def _library(stride: int) -> ctypes.CDLL:
  """The loop, compiled by the machine's own compiler, for rows of this length: inner loops then know where they end."""
  compiler = next((path for name in _COMPILERS if (path := shutil.which(name))), None)
  if compiler is None:
    raise _Unusable(f"There is no C compiler ({', '.join(_COMPILERS)}), so nothing is compared with a loop in C.")
  with tempfile.TemporaryDirectory() as folder:
    part, library = os.path.join(folder, "c_loop.o"), os.path.join(folder, "c_loop.so")
    compile_ = (compiler, *_FLAGS, f"-DSTRIDE={stride}", "-c", str(_SOURCE), "-o", part)
    failure = _failure(*compile_, *_FASTER) and _failure(*compile_)
    # In two steps: linked with -ffast-math, a library makes the whole process take tiny numbers for zero.
    failure = failure or _failure(compiler, "-shared", part, "-o", library, "-lm")
    if failure:
      raise _Unusable(f"The compiler fails, so nothing is compared with a loop in C: {failure}")
    loaded = ctypes.CDLL(library)  # It stays when its file is gone.
  whole, address = ctypes.c_int64, ctypes.c_void_p
  for function in (loaded.teach_float, loaded.teach_double):
    function.argtypes = (
      ctypes.POINTER(_Task), ctypes.c_int, ctypes.c_int, whole, whole, address, ctypes.c_uint64, address, address,
    )  # fmt: skip
    function.restype = None
  return loaded


def _failure(*words: str) -> str:
  """Why a command failed, in a line, or "" if it did not."""
  done = subprocess.run(words, capture_output=True, text=True, check=False)
  lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
  return lines[0] if done.returncode else ""
