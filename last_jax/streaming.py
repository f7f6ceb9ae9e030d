"""Long runs: records and lessons go to disk in chunks, and memory holds one chunk whatever the length of the run.

    state = last.init(keys, problem, teacher)
    state = last.stream("long", state, problem, teacher, steps=1_000_000, record_every=1000, lessons=True)
    for records in last.streamed("long"):
      ...                                       # `Records` of one chunk after the other, as NumPy arrays

The folder holds `records-N.npz` for each chunk, N the steps taken before it, and `state.npz`, the state after the last
one. Each file is written whole or not at all, the records before the state that they lead to: a process that is killed
leaves a folder from which the same call continues, and at most one file that it then replaces.
"""

import hashlib
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from last_jax import checks, devices, io, teaching, watching
from last_jax.base import Certificate, Lesson, Records, State, Teacher
from last_jax.loop import Plan, Probe
from last_jax.problem import Problem

_VERSION = 1
_BYTES = 2**25  # Of the records and lessons of a chunk, about.
_STATE = "state.npz"
_METRICS = ("distance", "objective", "accuracy")


def stream(
  folder: str | os.PathLike[str],
  state: State,
  problem: Problem,
  teacher: Teacher,
  *,
  steps: int,
  batch_size: int = 1,
  record_every: int = 1,
  metrics: Sequence[str] | str | None = None,
  probe: Probe | None = None,
  lessons: bool = False,
  write_every: int | None = None,
  mesh: Mesh | None = None,
) -> State:
  """Take `steps` iterations, as `run` does and to the same bits, with records and lessons on disk instead of in memory.

  Called again after it was interrupted or killed, with the same arguments, it continues after the last chunk that was
  written. With more steps it adds the others; their records are counted from the end of the earlier ones.

  Args:
    folder: where to write; made if it does not exist. It holds one run: another is refused.
    state: of `init`, where the run begins: not the one that an earlier call returned.
    problem, teacher, batch_size, record_every, metrics, probe, lessons, mesh: as of `run`.
    steps: number of iterations from `state` on.
    write_every: iterations between two chunks, a multiple of `record_every`; unless given, some 20 to 100 chunks, and
      more of them where their records and lessons would be larger than 32 MiB.

  Returns:
    The state after the last step. `streamed` reads the records.

  Raises:
    ValueError: an argument is wrong, or the folder holds another run.
  """
  teaching.check_teaches(teacher, problem)
  plan = teaching.make_plan(problem, steps, batch_size, record_every, metrics, probe, lessons)
  folder, first = pathlib.Path(folder), int(np.max(devices.gather(state.step)))
  settings: dict[str, Any] = {
    "batch_size": plan.batch_size,
    "record_every": int(record_every),
    "metrics": list(plan.metrics),
    "probe": probe is not None,
    "lessons": plan.lessons,
  }
  if write_every is None:
    write_every = _chunk(state, problem, teacher, plan)
  else:
    checks.check_count("write_every", write_every)
    if write_every % record_every:
      raise ValueError(f"write_every must be a multiple of record_every={record_every}, but it is {write_every}")
  about = {"stream": _VERSION, "start": _digest(state), "first": first, "settings": settings}
  names = f"{teacher.name}, {problem.learner.loss.name}: "
  about |= {"problem": names + _digest((problem, teacher))}
  state = _begin(folder, state, about, mesh)
  done, axis = int(np.max(devices.gather(state.step))) - first, state.key.ndim
  if done > plan.steps:
    raise ValueError(f"steps={plan.steps}: {folder} holds {done} already")
  watch = watching.current() if watching.is_on(state, problem, teacher) else watching.SILENT
  with watch.line(plan.steps, "steps") as line, watching.paused():
    for end in _ends(done, plan.steps, write_every):
      after, records = teaching.run(
        state, problem, teacher, steps=end - done, batch_size=batch_size, record_every=record_every,
        metrics=plan.metrics, probe=probe, lessons=lessons, mesh=mesh,
      )  # fmt: skip
      whole, records = devices.gather((after, records))
      if devices.is_first():
        notes = {"stream": _VERSION, "certificate": _describe(records.certificate)}
        io.save(folder / f"records-{first + done}.npz", records, about=notes)
        io.save(folder / _STATE, whole, about=about)
      state, done = after, end
      watch.hand_over({name: getattr(records, name) for name in ("step", *_METRICS, "probe")}, axis)
      line.update(end)
  return state


def streamed(folder: str | os.PathLike[str]) -> Iterator[Records]:
  """Yield the records of a run that `stream` writes, chunk by chunk, as NumPy arrays; also of one under way.

  Of many students every leaf has a leading [students] axis. A probe is a dict of its leaves by name, or an array.

  Raises:
    FileNotFoundError: the folder holds no chunk that is finished.
    ValueError: a file is damaged, or does not belong to the others.
  """
  folder = pathlib.Path(folder)
  header, leaves = io.read(folder / _STATE)
  if header["about"].get("stream") != _VERSION:
    raise ValueError(f"{folder / _STATE} was not written by last_jax.stream, or by another version")
  step, last = header["about"].get("first"), _last_step(leaves)
  if type(step) is not int or last is None:
    raise ValueError(f"{folder / _STATE} holds no state of a run")
  while step < last:
    path = folder / f"records-{step}.npz"
    records = _read(path)
    before, step = step, int(np.max(records.step))
    if not before < step <= last:
      raise ValueError(f"{path} does not belong to the state beside it: it ends at step {step}")
    yield records


def _begin(folder: pathlib.Path, state: State, about: dict[str, Any], mesh: Mesh | None) -> State:
  """Return the state from which to continue: the saved one, if there is one."""
  path, problem = folder / _STATE, ""
  whole = devices.gather(state)
  if devices.is_first():
    folder.mkdir(parents=True, exist_ok=True)
    if path.exists():
      found = io.read(path)[0]["about"]
      differ = [name for name in about if found.get(name) != about[name]]
      names = {"start": "state", "first": "state", "problem": "problem or teacher", "stream": "version"}
      if "settings" in differ:
        earlier = found.get("settings") or {}
        changed = [name for name in about["settings"] if earlier.get(name) != about["settings"][name]]
        problem = f"{', '.join(changed)} of another run"
      elif differ:
        problem = f"another {names[differ[0]]}"
      else:
        whole = io.load(path, like=whole)
  if devices.from_first(np.asarray(bool(problem))):
    raise ValueError(f"folder: {folder} was written with {problem}: give another folder, or the same arguments")
  if jax.process_count() > 1:  # Keys are broadcast as numbers: NumPy has no dtype for them.
    numbers = devices.from_first(whole._replace(key=jax.random.key_data(whole.key)))
    whole = numbers._replace(key=jax.random.wrap_key_data(numbers.key, impl=jax.random.key_impl(state.key)))
  whole = jax.tree.map(lambda leaf: leaf if isinstance(leaf, jax.Array) else jax.numpy.asarray(leaf), whole)
  return devices.split(whole, mesh) if state.key.ndim else whole


def _chunk(state: State, problem: Problem, teacher: Teacher, plan: Plan) -> int:
  """Return the steps of a chunk: whole records, as many as are not too large."""

  def once(state: State) -> Any:
    stride = plan.record_every
    settings: dict[str, Any] = {"metrics": plan.metrics, "probe": plan.probe, "lessons": plan.lessons}
    return teaching.run(
      state, problem, teacher, steps=stride, record_every=stride, batch_size=plan.batch_size, **settings
    )[1]

  with watching.paused():
    sizes = [leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(jax.eval_shape(once, state))]
  return max(1, min(_BYTES // max(sum(sizes), 1), watching.chunk_length(plan.steps, 1) // plan.record_every)) * (
    plan.record_every
  )


def _ends(done: int, steps: int, length: int) -> list[int]:
  """Return the steps at which the chunks that are left end: multiples of the length, and the last step."""
  ends = [*range(done - done % length + length, steps, length), steps] if done < steps else []
  if len(ends) > 1 and steps - ends[-2] == 1:  # A single iteration may be rounded otherwise: see `teaching.run`.
    del ends[-2]
  return ends


def _digest(tree: Any) -> str:
  """Return a hash of the numbers, shapes and dtypes of a tree, and of its structure's size."""
  found = hashlib.sha256()
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    array = np.ascontiguousarray(devices.gather(leaf))
    name = jax.tree_util.keystr(path, simple=True, separator="/")
    found.update(f"{name} {array.dtype} {array.shape}\0".encode())
    found.update(array.tobytes())
  return found.hexdigest()


def _describe(certificate: Any) -> dict[str, Any] | None:
  """Return the part of a certificate that is no array; None where the teacher has another kind, or none."""
  return {"exact": certificate.exact, "road": certificate.road} if isinstance(certificate, Certificate) else None


def _last_step(leaves: dict[str, Any]) -> int | None:
  """Return the largest of the numbers of steps, or None where there are none."""
  step = leaves.get("step")
  return int(np.max(step)) if isinstance(step, np.ndarray) and step.size and step.dtype.kind in "iu" else None


def _read(path: pathlib.Path) -> Records:
  """Return the records of one file."""
  header, leaves = io.read(path)
  if header["kind"] != Records.__name__ or _last_step(leaves) is None:
    raise ValueError(f"{path} holds no records")

  def part(name: str) -> Any:
    """Return a leaf, or a dict of the leaves below this name; None where there is none."""
    below = {key.removeprefix(f"{name}/"): leaf for key, leaf in leaves.items() if key.startswith(f"{name}/")}
    return leaves.get(name, below or None)

  lessons, certificate, static = part("lessons"), part("certificate"), header["about"].get("certificate")
  try:
    if lessons is not None:
      lessons = Lesson(**lessons)
    if static is not None:
      certificate = Certificate(**certificate, **static)
  except TypeError as error:
    raise ValueError(f"{path} holds no records: {error}") from error
  metrics = {name: leaves.get(name) for name in (*_METRICS, "diverged")}
  return Records(leaves["step"], **metrics, probe=part("probe"), lessons=lessons, certificate=certificate)
