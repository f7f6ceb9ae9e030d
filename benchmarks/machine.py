"""Facts about the machine that times are measured on."""

import os
import platform
from importlib import metadata
from typing import Any

import jax

from last_jax.compiler import add_xla_flags
from last_jax.devices import num_cores


def compile_quickly() -> None:
  """Let XLA optimise little, before JAX starts: tiny cases spend most of their time compiling."""
  add_xla_flags({"--xla_backend_optimization_level": "0", "--xla_cpu_use_fusion_emitters": "false"})


def facts() -> dict[str, Any]:
  """Return all that times depend on, and nothing that identifies the machine's owner."""
  cores = num_cores()
  versions: dict[str, str | None] = {}
  for package in ("jax", "jaxlib", "numpy", "torch"):
    try:
      versions[package] = metadata.version(package)
    except metadata.PackageNotFoundError:
      versions[package] = None
  return {
    "cores": cores,
    "devices": jax.device_count(),
    "architecture": platform.machine(),
    "system": platform.system(),
    "python": platform.python_version(),
    "versions": versions,
    "jax_backend": jax.default_backend(),
    "xla_flags": os.environ.get("XLA_FLAGS", ""),
    "load_per_core": os.getloadavg()[0] / cores if hasattr(os, "getloadavg") else None,  # Before the first job.
  }
