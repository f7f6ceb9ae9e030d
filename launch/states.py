"""The run of one method under way: its state and records, in memory and in --out/state/, where --resume finds them."""

import pathlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

import last_jax as last
from last_jax import devices
from last_jax.teaching import METRICS

Arrays = Mapping[str, np.ndarray]
_WITHOUT_STUDENTS = ("step", "seconds")  # Time is their first axis.


class Course:
  """State and records of one method. Of several processes the first reads and writes; all must call the same methods.

  Files: `state.npz`, and for each save a file `records-N.npz` with the records since step N. Records are written before
  the state that they lead to: a process that is killed between the two leaves records that the next save replaces.
  """

  def __init__(self, folder: pathlib.Path, state: last.State, start: Arrays, mesh: Mesh | None):
    """Begin at the first step; nothing is written.

    Args:
      folder: where to save.
      state: of `last.init`, for many students.
      start: the record of the start: "step" `[1]`, each metric `[students, 1]`.
      mesh: devices that the students are split over.
    """
    self._folder, self._mesh = folder, mesh
    self._saved: list[Arrays] = []
    self._saved_steps = 0
    # One assignment for each chunk: Ctrl-C finds a state with its own records, whenever it comes.
    self._now = (devices.split(state, mesh), 0, [start])

  @property
  def state(self) -> last.State:
    """The state after the last chunk, with a leading [students] axis."""
    return self._now[0]

  @property
  def steps(self) -> int:
    """Number of steps taken."""
    return self._now[1]

  def append(self, state: last.State, records: Arrays) -> None:
    """Add a chunk: the state after it, and its records."""
    self._now = (state, int(records["step"][-1]), [*self._now[2], records])

  def save(self) -> None:
    """Write what was added since the last save."""
    state, steps, unsaved = self._now
    if steps == self._saved_steps:
      return
    whole = devices.gather(state)
    if devices.is_first():
      self._folder.parent.mkdir(exist_ok=True)  # Not its parents: a folder that was removed is not made again.
      self._folder.mkdir(exist_ok=True)
      last.save(self._folder / f"records-{self._saved_steps}.npz", _join(unsaved))
      last.save(self._folder / "state.npz", whole)
    self._saved += unsaved
    self._saved_steps, self._now = steps, (state, steps, [])

  def resume(self) -> bool:
    """Continue from the saved state, if there is one; return whether there was."""
    is_saved = devices.is_first() and (self._folder / "state.npz").is_file()
    if not devices.from_first(np.asarray(is_saved)):
      return False
    state = devices.gather(self.state)
    if devices.is_first():
      state = last.load(self._folder / "state.npz", like=state)
    # Keys are broadcast as numbers: NumPy has no dtype for them.
    numbers = devices.from_first(state._replace(key=jax.random.key_data(state.key)))
    state = jax.tree.map(jnp.asarray, numbers)
    state = state._replace(key=jax.random.wrap_key_data(state.key, impl=jax.random.key_impl(self.state.key)))
    self._saved_steps = int(numbers.step[0])
    self._saved = self._read_records() if devices.is_first() else []
    self._now = (devices.split(state, self._mesh), self._saved_steps, [])
    return True

  def _read_records(self) -> list[Arrays]:
    pieces: list[Arrays] = []
    step = 0
    while step < self._saved_steps:
      path = self._folder / f"records-{step}.npz"
      pieces.append(last.load(path))
      if not _continues(pieces[0], pieces[-1]):
        raise ValueError(f"{path} does not hold records with their steps, or others than the files before it")
      before, step = step, int(pieces[-1]["step"][-1])
      if not before < step <= self._saved_steps:
        raise ValueError(f"{path} does not belong to the state beside it: it ends at step {step}")
    return pieces

  def records(self) -> dict[str, np.ndarray]:
    """Return all records so far, those of the start first."""
    return _join([*self._saved, *self._now[2]])


def _continues(first: Any, piece: Any) -> bool:
  """Return whether both are records, and can be joined along time."""
  if not isinstance(piece, dict) or not isinstance(piece.get("step"), np.ndarray) or piece["step"].ndim != 1:
    return False
  return (
    len(piece["step"]) > 0
    and set(piece) <= {"index", "label", "seconds", *first}
    and all(_without_time(name, piece.get(name)) == _without_time(name, first[name]) for name in first)
  )


def _without_time(name: str, array: Any) -> tuple[str, tuple[int, ...]] | None:
  """Return the kind of numbers and the shape, without the axis along which pieces are joined."""
  axis = int(name not in _WITHOUT_STUDENTS)
  if not isinstance(array, np.ndarray) or array.ndim <= axis:
    return None
  return array.dtype.kind, (*array.shape[:axis], *array.shape[axis + 1 :])


def to_arrays(records: last.Records, seconds: tuple[float, float]) -> dict[str, np.ndarray]:
  """Return the records of many students as arrays on the host.

  Args:
    records: of `last.run`.
    seconds: of compiling and of running that they took.

  Returns:
    "step" `[records]`, each metric `[students, records]`, "seconds" `[1, 2]` and, if there are lessons, "index"
    `[students, steps, m]` and "label" `[students, steps, m, K]`.
  """
  named = {name: getattr(records, name) for name in ("step", *METRICS)}
  if records.lessons is not None:
    named |= records.lessons._asdict()
  arrays = devices.gather({name: value for name, value in named.items() if value is not None})
  return arrays | {"step": arrays["step"][0], "seconds": np.array([seconds])}


def _join(pieces: list[Arrays]) -> dict[str, np.ndarray]:
  """Concatenate pieces along time: the second axis, after students, or the first where there is none."""
  names = dict.fromkeys(name for piece in pieces for name in piece)  # The start has no lessons.
  return {
    name: np.concatenate([piece[name] for piece in pieces if name in piece], int(name not in _WITHOUT_STUDENTS))
    for name in names
  }
