"""Where programs run: on one device, on all of a machine's, or on those of several machines. Students are split.

    last.devices.prepare(devices=8)              # Before JAX starts.
    mesh = last.devices.mesh()                   # All devices of all processes, along one axis.
    result = last.teach_many(keys, ..., mesh=mesh)
    curves = last.devices.gather(result.distance)  # On the host, in every process.

Every process of a run over several calls the same functions with the same values.
"""

import contextlib
import os
import pathlib
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from last_jax import checks

STUDENTS = "students"  # The mesh's axis.
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

# For small steps on a CPU. XLA ends the process at a flag that it does not know, so these are only for releases in
# which they were seen to work.
_KNOWN_RELEASES = ("0.10.",)
_CPU_FLAGS = {
  # XLA hands sums of a few thousand numbers to a library (YNNPACK) whose calls cost more than the sums of a student's
  # step, all the more where several devices of a process wait for each other in it. Only matrix products go there.
  "--xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
  # LLVM unrolls loops over a few dozen features whole, and then vectorizes the loop over students around them, in which
  # numbers that are used together lie far apart: an update of the weights takes three times as long.
  "--xla_backend_extra_options": "xla_cpu_disable_loop_unrolling",
}

# Where every core has a device of its own: no operation is divided among threads, which would take turns on the cores.
_CORE_FLAGS = {"--xla_disable_hlo_passes": "cpu-parallel-task-assigner"}

_CONNECT_SECONDS = 120  # For all processes to come together.
_SILENT_SECONDS = 30  # After which a process that says nothing counts as lost.
_KEPT_DAYS = 30  # For which compiled programs are kept.


def prepare(
  platform: str | None = None,
  devices: int | None = None,
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
) -> None:
  """Sets JAX up. Call it first: once JAX has started, it keeps what it has.

  Args:
    platform: "cpu", "cuda", "rocm" or "tpu"; JAX's own choice unless given.
    devices: into how many devices to divide the CPU, if given. Students can be split over them (`mesh`): one device per
      core is faster than one device that uses all cores, since a student's step is too small to be divided.
    coordinator: HOST:PORT of the first process, for a run of several; then all three of these are needed.
    num_processes: how many there are.
    process_id: which of them this one is, from 0.
  """
  cores, xla_flags = num_cores(), _CPU_FLAGS
  if platform is not None:
    checks.check_name("platform", platform, PLATFORMS)
    # The host's CPU stays at hand: see `host`.
    jax.config.update("jax_platforms", platform if platform == "cpu" else f"{platform},cpu")
  if devices is not None:
    checks.check_count("devices", devices)
    if devices > 1:
      # A device takes a thread while it runs, and eigenvalues of many matrices are computed by further threads, for
      # which it waits: were there no more threads than devices, all would wait for ever.
      os.environ.setdefault("PJRT_NPROC", str(max(devices + 1, cores)))
      if devices >= cores:
        xla_flags = _CPU_FLAGS | _CORE_FLAGS
    with contextlib.suppress(RuntimeError):  # JAX has started already.
      jax.config.update("jax_num_cpu_devices", devices)
  if metadata.version("jaxlib").startswith(_KNOWN_RELEASES):
    add_xla_flags(xla_flags)
  if (coordinator, num_processes, process_id) != (None, None, None):
    _connect(coordinator, num_processes, process_id)


def add_xla_flags(flags: Mapping[str, str]) -> None:
  """Adds to the flags of XLA's in the environment, for when JAX starts; one that is given there stays as it is."""
  given = os.environ.get("XLA_FLAGS", "").split()
  known = {flag.partition("=")[0] for flag in given}
  more = [f"{flag}={value}" for flag, value in flags.items() if flag not in known]
  os.environ["XLA_FLAGS"] = " ".join(given + more)


def num_cores() -> int:
  """How many cores this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _connect(coordinator: Any, num_processes: Any, process_id: Any) -> None:
  """Joins the other processes; returns when all are there."""
  given = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
  missing = [name for name, value in given.items() if value is None]
  if missing:
    raise ValueError(f"{' and '.join(missing)} must be given too: a run of several processes needs {', '.join(given)}")
  checks.check_count("num_processes", num_processes)
  if not 0 <= process_id < num_processes:
    raise ValueError(f"process_id must be from 0 to {num_processes - 1}, but it is {process_id}")
  host, _, port = coordinator.rpartition(":")
  if not host or not port.isdecimal():
    raise ValueError(f"coordinator must be HOST:PORT, as 10.0.0.1:8476, but it is {coordinator!r}")
  try:
    jax.distributed.initialize(
      coordinator,
      num_processes,
      process_id,
      initialization_timeout=_CONNECT_SECONDS,
      heartbeat_timeout_seconds=_SILENT_SECONDS,
      cluster_detection_method="deactivate",
    )
  except RuntimeError as error:
    raise ValueError(
      f"coordinator: process {process_id} of {num_processes} did not find the others at {coordinator} within "
      f"{_CONNECT_SECONDS} s: {str(error).splitlines()[0]}"
    ) from error


def keep_compiled(folder: str | os.PathLike[str] | None = None) -> None:
  """Has JAX keep what it compiles in a folder for some weeks, for the next process that needs the same.

  Args:
    folder: unless given that of JAX_COMPILATION_CACHE_DIR, or else one in the user's cache folder.
  """
  if folder is None and jax.config.values["jax_compilation_cache_dir"] is not None:
    return
  place = _cache_folder() if folder is None else pathlib.Path(folder)
  with contextlib.suppress(OSError):  # Where nothing can be written, everything works but starts slower.
    place.mkdir(parents=True, exist_ok=True)
    # JAX could bound the folder's size, but when it is killed at the wrong moment its books are never right again.
    for file in place.iterdir():
      if file.is_file() and time.time() - file.stat().st_mtime > _KEPT_DAYS * 24 * 3600:
        file.unlink(missing_ok=True)
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def _cache_folder() -> pathlib.Path:
  home = pathlib.Path.home()
  usual = {"darwin": home / "Library" / "Caches", "win32": home / "AppData" / "Local"}
  return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or usual.get(sys.platform, home / ".cache")) / "last_jax"


def mesh(devices: int | None = None) -> Mesh:
  """The devices of all processes, or the first so many of each, along the axis "students"."""
  by_process: dict[int, list[jax.Device]] = {}
  for device in jax.devices():
    by_process.setdefault(device.process_index, []).append(device)
  if devices is not None:
    checks.check_count("devices", devices)
    fewest = min(map(len, by_process.values()))
    if devices > fewest:
      raise ValueError(
        f"devices={devices}, but there are {fewest}: devices.prepare(devices=...) divides a CPU into more"
      )
  return Mesh(np.array([device for own in by_process.values() for device in own[:devices]]), (STUDENTS,))


def host() -> jax.Device | None:
  """The CPU that programs are started from; None where JAX was told to do without."""
  try:
    return jax.local_devices(backend="cpu")[0]
  except RuntimeError:
    return None


def split(tree: Any, mesh: Mesh | None) -> Any:
  """The same arrays, a share of their leading axis on each device; whole on each where they cannot be divided.

  Without a mesh they stay where they are.
  """
  if mesh is None:
    return tree
  return jax.tree.map(lambda leaf: _put(leaf, sharding_of(np.shape(leaf)[0], mesh)), tree)


def copy_to_all(tree: Any, mesh: Mesh | None) -> Any:
  """The same arrays, whole on each device; without a mesh they stay where they are."""
  if mesh is None:
    return tree
  return jax.tree.map(lambda leaf: _put(leaf, NamedSharding(mesh, PartitionSpec())), tree)


def sharding_of(count: int, mesh: Mesh) -> NamedSharding:
  """How arrays with a leading axis of so many are kept."""
  return NamedSharding(mesh, PartitionSpec(STUDENTS) if count % mesh.size == 0 else PartitionSpec())


def _put(leaf: Any, sharding: NamedSharding) -> Any:
  """Every process has the whole array, and keeps what belongs to its devices."""
  if isinstance(leaf, jax.core.Tracer) or not isinstance(leaf, jax.Array) or leaf.sharding == sharding:
    return leaf  # Numbers and numpy arrays are copied to all devices by JAX.
  if jax.process_count() == 1 or not leaf.is_fully_addressable:
    return jax.device_put(leaf, sharding)
  if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    return jax.random.wrap_key_data(_put(jax.random.key_data(leaf), sharding), impl=jax.random.key_impl(leaf))
  return place(np.asarray(leaf), sharding)


def place(whole: np.ndarray, sharding: Any) -> jax.Array:
  """An array of the host's on devices, also those of other processes, which must have the same array."""
  return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def over_students(function: Callable[..., Any], mesh: Mesh, splits: tuple[bool, ...], out_splits: Any) -> Any:
  """The function of each device's share of the students, with no word between devices but what the function says.

  Args:
    function: of arrays.
    mesh: the devices.
    splits: which of the arguments are split along their leading axis; the others are whole on each device.
    out_splits: the same of what is returned, a tree of truth values that may be a prefix.
  """

  def spec(split: bool) -> PartitionSpec:
    return PartitionSpec(STUDENTS) if split else PartitionSpec()

  in_specs, out_specs = tuple(map(spec, splits)), jax.tree.map(spec, out_splits)
  return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def gather(tree: Any) -> Any:
  """The arrays on the host, whole, in every process. All processes must call it."""
  from jax.experimental import multihost_utils

  def whole(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
      if leaf.is_fully_replicated:
        return np.asarray(leaf.addressable_data(0))
      return multihost_utils.process_allgather(leaf, tiled=True)
    return np.asarray(leaf)

  return jax.tree.map(whole, tree)


def from_first(tree: Any) -> Any:
  """What the first process has, as numpy arrays, in every process. All must call it, with arrays of the same shapes."""
  if jax.process_count() == 1:
    return jax.tree.map(np.asarray, tree)
  from jax.experimental import multihost_utils

  return multihost_utils.broadcast_one_to_all(tree)


def is_first() -> bool:
  """Whether this is the process that writes and prints."""
  return not jax.distributed.is_initialized() or jax.process_index() == 0
