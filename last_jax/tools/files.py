"""Files of a run folder: JSON written whole, a check that a folder is writable, and the versions that a run used."""

import contextlib
import json
import math
import os
import pathlib
import platform
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from last_jax.io import naming_file, replaced
from last_jax.io.files import FilePath as FilePath
from last_jax.io.files import escape_surrogates, temporary_name


def write_json(path: FilePath, value: Any) -> None:
  """Write nested dicts, lists and scalars as strict JSON. A reader sees the earlier file or the new one, never half.

  Args:
    path: The file to write or to replace. Its folder must exist.
    value: Numbers and arrays of NumPy and JAX become plain ones; NaN and infinity, which JSON lacks, become null.

  Raises:
    TypeError: a value that JSON cannot represent. The earlier file stays.
  """
  text = escape_surrogates(json.dumps(_plain(value), indent=2, allow_nan=False, ensure_ascii=False))
  with replaced(path) as temporary:
    temporary.write_text(text + "\n", encoding="utf-8")


def check_writable(folder: FilePath) -> None:
  """Make the folder if it does not exist, and raise an OSError unless files can be created in it."""
  folder = pathlib.Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  probe = folder / temporary_name("probe")  # Permissions do not suffice: a disk can be full or mounted read-only.
  try:
    with naming_file(folder):
      probe.write_bytes(b"?")
  finally:
    with contextlib.suppress(OSError):
      probe.unlink(missing_ok=True)


def package_versions() -> dict[str, str]:
  """Return the versions of the packages whose code computes results, by name."""
  import jaxlib
  import optax

  import last_jax

  modules = {"last_jax": last_jax, "jax": jax, "jaxlib": jaxlib, "numpy": np, "optax": optax}
  return {name: module.__version__ for name, module in modules.items()}


def versions() -> dict[str, str]:
  """Return everything that numbers can depend on beside the settings: Python, packages, and the kind of device."""
  return {"python": platform.python_version(), **package_versions(), "device": jax.devices()[0].device_kind}


def _plain(value: Any) -> Any:
  """Return `value` in JSON's own types."""
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
  raise TypeError(f"value must consist of what JSON can hold, but it contains a {type(value).__name__}: {value!r}")
