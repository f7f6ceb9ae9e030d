"""Checkpoints of training, with Orbax: everything a `State` holds, written whole or not at all.

Orbax is imported when it is used. A checkpoint carries a fingerprint of what it belongs to and a checksum of what it
holds: one of another training, or one that was damaged, is refused by name, and never changed. Of several processes the
first writes and reads, and tells the others; all must call the same.
"""

import hashlib
import os
import pathlib
from typing import Any

import jax
import numpy as np

from last_jax import devices
from last_jax.training.trainer import State

_KEPT = 2  # The last checkpoints; the one before the last is there should a disk damage the last.


class Checkpoints:
  """The checkpoints in a folder."""

  def __init__(self, folder: str | os.PathLike[str], fingerprint: str):
    """Looks into the folder; makes it with the first checkpoint.

    Args:
      folder: where they are.
      fingerprint: what they belong to: a text that is the same if, and only if, training is the same.
    """
    self._folder = pathlib.Path(folder).absolute()
    self._fingerprint = fingerprint
    self._manager: Any = None

  def save(self, state: State) -> None:
    """Writes a checkpoint; of the earlier ones the last is kept."""
    arrays = _arrays(state)
    if not devices.is_first():
      return
    import orbax.checkpoint as ocp

    about = {"fingerprint": self._fingerprint, "checksum": _checksum(arrays)}
    what = ocp.args.Composite(state=ocp.args.StandardSave(arrays), about=ocp.args.JsonSave(about))
    self._open().save(int(arrays["episode"]), args=what)

  def latest(self) -> int | None:
    """The number of episodes that the last checkpoint was written after; None where there is none."""
    found = self._open().latest_step() if devices.is_first() and self._folder.is_dir() else None
    episode = int(devices.from_first(np.asarray(-1 if found is None else found)))
    return None if episode < 0 else episode

  def restore(self, template: State) -> State:
    """The last checkpoint.

    Args:
      template: a state of the same training, as `start` makes it.

    Raises:
      ValueError: naming the checkpoint, where it is damaged or belongs to another training.
    """
    episode = self.latest()
    if episode is None:
      raise ValueError(f"there is no checkpoint in {self._folder}")
    arrays = self._read(episode) if devices.is_first() else _arrays(template)
    return _state(template, devices.from_first(arrays))

  def _read(self, episode: int) -> dict[str, np.ndarray]:
    import orbax.checkpoint as ocp

    place = self._folder / str(episode)
    what = ocp.args.Composite(state=ocp.args.StandardRestore(), about=ocp.args.JsonRestore())
    try:
      found = self._open().restore(episode, args=what)
      about, arrays = dict(found.about), {name: np.asarray(array) for name, array in found.state.items()}
    except Exception as error:  # Whatever a damaged file makes of Orbax and what it is built on.
      reason = str(error).strip().splitlines()
      raise ValueError(
        f"the checkpoint {place} cannot be read, and was left as it is: {reason[0] if reason else type(error).__name__}"
      ) from error
    if about.get("fingerprint") != self._fingerprint:
      raise ValueError(f"the checkpoint {place} belongs to another training, and was left as it is")
    if about.get("checksum") != _checksum(arrays):
      raise ValueError(f"the checkpoint {place} is damaged, and was left as it is: its checksum does not agree")
    return arrays

  def close(self) -> None:
    """Waits for what is being written."""
    if self._manager is not None:
      self._manager.close()

  def _open(self) -> Any:
    if self._manager is None:
      import orbax.checkpoint as ocp

      options = ocp.CheckpointManagerOptions(
        max_to_keep=_KEPT,
        enable_async_checkpointing=False,
        multiprocessing_options=ocp.options.MultiprocessingOptions(
          primary_host=0, active_processes={0}, barrier_sync_key_prefix="first"
        ),
        create=False,
      )
      self._folder.mkdir(parents=True, exist_ok=True)
      self._manager = ocp.CheckpointManager(self._folder, options=options)
    return self._manager


def _flatten(state: State) -> tuple[list[tuple[str, Any]], Any]:
  """Leaves by name, and the structure. Keys become numbers."""
  plain = state._replace(key=jax.random.key_data(state.key))
  leaves, structure = jax.tree_util.tree_flatten_with_path(plain)
  return [(jax.tree_util.keystr(place, simple=True, separator="."), leaf) for place, leaf in leaves], structure


def _arrays(state: State) -> dict[str, np.ndarray]:
  return devices.gather(dict(_flatten(state)[0]))


def _state(template: State, arrays: dict[str, np.ndarray]) -> State:
  named, structure = _flatten(template)
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
