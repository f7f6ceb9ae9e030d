"""Checkpoints of training, with Orbax: a whole `TrainingState`, written completely or not at all.

Each checkpoint holds a fingerprint of its training and a checksum of its arrays. One of another training or a damaged
one is refused by name, and never changed. Of several processes the first writes and reads; all must call the same
methods. Orbax is imported on first use.
"""

import errno
import hashlib
import logging
import os
import pathlib
import shutil
from typing import Any

import jax
import numpy as np

from last_jax import devices
from last_jax.training.trainer import TrainingState

_NUM_CHECKPOINTS = 2  # The last one, and the one before it in case a disk damages the last.
_UNFINISHED = ".orbax-checkpoint-tmp"


class Checkpoints:
  """The checkpoints in a folder."""

  def __init__(self, folder: str | os.PathLike[str], fingerprint: str):
    """Refer to a folder, which is created with the first checkpoint.

    Args:
      folder: where the checkpoints are.
      fingerprint: a text that is equal for equal trainings, and for no others.
    """
    self._folder = pathlib.Path(folder).absolute()
    self._fingerprint = fingerprint
    self._manager: Any = None

  def save(self, state: TrainingState) -> None:
    """Write a checkpoint, and remove all earlier ones except the last; an OSError says that it could not be written."""
    arrays = _to_arrays(state)
    if not devices.is_first():
      return
    import orbax.checkpoint as ocp

    about = {"fingerprint": self._fingerprint, "checksum": _checksum(arrays)}
    items = ocp.args.Composite(state=ocp.args.StandardSave(arrays), about=ocp.args.JsonSave(about))
    place = self._folder / str(int(arrays["episode"]))
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.CRITICAL)  # Orbax prints the stack trace of an error that it also raises.
    try:
      self._open().save(int(arrays["episode"]), args=items)
    except Exception as error:  # A full disk can raise nearly anything in Orbax and the libraries below it.
      reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
      raise OSError(errno.EIO, f"this checkpoint could not be written: {reason}", str(place)) from error
    finally:
      log.setLevel(level)

  def latest(self) -> int | None:
    """Return the number of episodes before the last checkpoint, or None where there is no checkpoint."""
    found = self._open().latest_step() if devices.is_first() and self._folder.is_dir() else None
    episode = int(devices.from_first(np.asarray(-1 if found is None else found)))
    return None if episode < 0 else episode

  def restore(self, like: TrainingState) -> TrainingState:
    """Return the state of the last checkpoint.

    Args:
      like: a state of the same training, as `Trainer.init` returns it.

    Raises:
      ValueError: naming the checkpoint, where it is damaged or belongs to another training.
    """
    episode = self.latest()
    if episode is None:
      raise ValueError(f"there is no checkpoint in {self._folder}")
    arrays = _to_arrays(like)  # All processes gather; those that do not read need arrays of the same shapes.
    if devices.is_first():
      arrays = self._read(episode)
    return _to_state(like, devices.from_first(arrays))

  def _read(self, episode: int) -> dict[str, np.ndarray]:
    import orbax.checkpoint as ocp

    place = self._folder / str(episode)
    items = ocp.args.Composite(state=ocp.args.StandardRestore(), about=ocp.args.JsonRestore())
    try:
      found = self._open().restore(episode, args=items)
      about, arrays = dict(found.about), {name: np.asarray(array) for name, array in found.state.items()}
    except Exception as error:  # A damaged file can raise nearly anything in Orbax and the libraries below it.
      reason = str(error).strip().splitlines()
      raise ValueError(
        f"the checkpoint {place} cannot be read, and was not changed: {reason[0] if reason else type(error).__name__}"
      ) from error
    if about.get("fingerprint") != self._fingerprint:
      raise ValueError(f"the checkpoint {place} belongs to another training, and was not changed")
    if about.get("checksum") != _checksum(arrays):
      raise ValueError(f"the checkpoint {place} is damaged, and was not changed: its checksum does not agree")
    return arrays

  def close(self) -> None:
    """Wait until everything is written."""
    if self._manager is not None:
      self._manager.close()

  def _open(self) -> Any:
    if self._manager is None:
      import orbax.checkpoint as ocp

      options = ocp.CheckpointManagerOptions(
        max_to_keep=_NUM_CHECKPOINTS,
        enable_async_checkpointing=False,
        multiprocessing_options=ocp.options.MultiprocessingOptions(
          primary_host=0, active_processes={0}, barrier_sync_key_prefix="first"
        ),
        create=False,
      )
      self._folder.mkdir(parents=True, exist_ok=True)
      for left in self._folder.glob(f"*{_UNFINISHED}*"):  # By a process that was killed while it wrote.
        shutil.rmtree(left, ignore_errors=True)
      self._manager = ocp.CheckpointManager(self._folder, options=options)
    return self._manager


def _flatten(state: TrainingState) -> tuple[list[tuple[str, Any]], Any]:
  """Return the leaves by name, with the numbers of keys in place of keys, and the structure."""
  plain = state._replace(key=jax.random.key_data(state.key))
  leaves, structure = jax.tree_util.tree_flatten_with_path(plain)
  return [(jax.tree_util.keystr(place, simple=True, separator="."), leaf) for place, leaf in leaves], structure


def _to_arrays(state: TrainingState) -> dict[str, np.ndarray]:
  return devices.gather(dict(_flatten(state)[0]))


def _to_state(like: TrainingState, arrays: dict[str, np.ndarray]) -> TrainingState:
  named, structure = _flatten(like)
  leaves = [devices.place(np.asarray(arrays[name], leaf.dtype), leaf.sharding) for name, leaf in named]
  plain = jax.tree.unflatten(structure, leaves)
  return plain._replace(key=jax.random.wrap_key_data(plain.key))


def _checksum(arrays: dict[str, np.ndarray]) -> str:
  digest = hashlib.sha256()
  for name in sorted(arrays):
    array = np.ascontiguousarray(arrays[name])
    digest.update(f"{name} {array.dtype} {array.shape} ".encode())
    digest.update(array.tobytes())
  return digest.hexdigest()
