"""Getting the most out of a CPU: what has to be settled before JAX starts."""

import contextlib
import os
from importlib import metadata

import jax

from last_jax import checks

# XLA hands sums of a few thousand numbers to a library (YNNPACK) whose calls cost more than the sums of a student's
# step, all the more where several devices of a process wait for each other in it: without it for anything but matrix
# products, greedy teaching takes two thirds of the time. XLA ends the process at a flag that it does not know, so this
# is only for releases in which the flag was seen to work.
_FLAG = "--xla_cpu_experimental_ynn_fusion_type"
_KEPT = "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"
_KNOWN_RELEASES = ("0.10.",)


def prepare_cpu(devices: int | None = None) -> None:
  """Sets JAX up for teaching many students on a CPU. Call it first: once JAX has started, it keeps what it has.

  Args:
    devices: into how many devices to divide the CPU, if given. Students can be split over them (`jax.sharding`): one
      device per core is faster than one device that uses all cores, since a student's step is too small to be divided.
  """
  flags = os.environ.get("XLA_FLAGS", "")
  if _FLAG not in flags and metadata.version("jaxlib").startswith(_KNOWN_RELEASES):
    os.environ["XLA_FLAGS"] = f"{flags} {_FLAG}={_KEPT}".strip()
  if devices is not None:
    checks.check_count("devices", devices)
    with contextlib.suppress(RuntimeError):  # JAX has started already.
      jax.config.update("jax_num_cpu_devices", devices)
