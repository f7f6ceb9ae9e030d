"""Files of a run folder, each written whole or not at all: a reader, or a run cut short, never sees half of one."""

import contextlib
import json
import math
import os
import pathlib
import platform
import uuid
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from last_jax.data.files import replaced, save_npz

FilePath = str | os.PathLike[str]


def write_json(path: FilePath, value: Any) -> None:
  """Writes nested dicts, lists and scalars as JSON that every parser reads.

  Args:
    path: the file to write, or to replace. Its folder must exist.
    value: what to write. Numbers and arrays of numpy and JAX become plain ones; NaN and infinity, which JSON does not
      have, become null.
  """
  text = json.dumps(_plain(value), indent=2, allow_nan=False, ensure_ascii=False)
  with replaced(path) as temporary:
    temporary.write_text(text + "\n", encoding="utf-8")


def write_npz(path: FilePath, arrays: Mapping[str, Any]) -> None:
  """Writes arrays by name into a compressed npz file. Names may hold slashes: "sgd/distance"."""
  save_npz(path, **arrays)


def check_writable(folder: FilePath) -> None:
  """Makes the folder if there is none, and raises an OSError unless files can be made in it."""
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  probe = folder / f".{uuid.uuid4().hex}.tmp"  # Permissions do not tell: disks may be full, or mounted for reading.
  try:
    probe.write_bytes(b"?")
  finally:
    with contextlib.suppress(OSError):
      probe.unlink(missing_ok=True)


def versions() -> dict[str, str]:
  """What a run's numbers may depend on: of Python, of the packages that compute, and the kind of device."""
  import jaxlib

  import last_jax

  return {
    "python": platform.python_version(),
    "last_jax": last_jax.__version__,
    "jax": jax.__version__,
    "jaxlib": jaxlib.__version__,
    "numpy": np.__version__,
    "device": jax.devices()[0].device_kind,
  }


def _plain(value: Any) -> Any:
  """The same in types of JSON."""
  if isinstance(value, Mapping):
    return {str(key): _plain(item) for key, item in value.items()}
  if isinstance(value, (np.ndarray, np.generic, jax.Array)):
    return _plain(np.asarray(value).tolist())
  if isinstance(value, (list, tuple, set, frozenset)):
    return [_plain(item) for item in value]
  if isinstance(value, os.PathLike):
    return os.fspath(value)
  if isinstance(value, float):
    return value if math.isfinite(value) else None
  if value is None or isinstance(value, (str, bool, int)):
    return value
  raise TypeError(f"a {type(value).__name__} cannot be written as JSON: {value!r}")
