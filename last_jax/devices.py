"""Devices: of one process or of several. Students are sharded over them, and need no collectives.

    last.devices.prepare(devices=8)              # Before JAX starts.
    mesh = last.devices.mesh()                   # All devices of all processes, along one axis.
    result = last.teach_many(keys, ..., mesh=mesh)
    curves = last.devices.gather(result.distance)  # On the host, in every process.

In a run of several processes, each calls the same functions with the same values.
"""

import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from last_jax import checks, compiler, partners
from last_jax.compiler import enable_compilation_cache as enable_compilation_cache
from last_jax.programs import count_programs as count_programs
from last_jax.programs import limit_programs as limit_programs

STUDENTS = "students"  # Axis of the mesh.
PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


# Of JAX itself. Before either has passed, `partners` has ended the process with a message.
_JAX_CONNECT_SECONDS = 60
_JAX_SILENT_SECONDS = 120


def prepare(
  platform: str | None = None,
  devices: int | None = None,
  coordinator: str | None = None,
  num_processes: int | None = None,
  process_id: int | None = None,
  settings: Mapping[str, Any] | None = None,
) -> None:
  """Configure JAX, before it starts.

  JAX starts with the first array, key or question about devices. Afterwards nothing can be changed.

  Args:
    platform: "cpu", "cuda", "rocm" or "tpu"; JAX's own choice by default.
    devices: number of devices to divide the CPU into; JAX's own choice by default. Students can be sharded over them
      (`mesh`): one device per core is faster than one device that uses all cores, since a student's step is too small
      to be divided.
    coordinator: HOST:PORT of the first process, in a run of several; needs the following two.
    num_processes: number of processes.
    process_id: number of this process, from 0.
    settings: what must be the same in all processes, as seeds: names and values that JSON can hold. Before JAX starts
      they are compared.

  In a run of several processes, one that is lost (it was killed, ended with an error, or is silent for 45 s) ends the
  others with one line on stderr and exit status 1.

  Raises:
    ValueError: an argument is wrong, JAX has started with something else than is asked for, or the processes do not
      find each other within 80 s or differ in their settings.
  """
  if platform is not None:
    checks.check_name("platform", platform, PLATFORMS)
  if devices is not None:
    checks.check_count("devices", devices)
  processes = {"coordinator": coordinator, "num_processes": num_processes, "process_id": process_id}
  _check_processes(processes)
  if has_started():
    _check_started({"platform": platform, "devices": devices, **processes})
    return
  cores, device_per_core = num_cores(), False
  if platform is not None:
    # The CPU stays available beside an accelerator: see `host`.
    jax.config.update("jax_platforms", platform if platform == "cpu" else f"{platform},cpu")
  if devices is not None:
    if devices > 1:
      # A device occupies a thread while it runs, and waits for further threads that compute eigenvalues of many
      # matrices: with no more threads than devices, all would wait for ever.
      os.environ.setdefault("PJRT_NPROC", str(max(devices + 1, cores)))
      device_per_core = devices >= cores
    jax.config.update("jax_num_cpu_devices", devices)
  compiler.add_flags_for_small_steps(device_per_core=device_per_core)
  if coordinator is not None:
    _connect(coordinator, num_processes, process_id, settings or {})


def has_started() -> bool:
  """Return whether JAX has started: its platform and devices can no longer be chosen."""
  number = jax.config.values["jax_num_cpu_devices"]
  try:
    jax.config.update("jax_num_cpu_devices", number + 1)  # Refused once JAX has started.
  except RuntimeError:
    return True
  jax.config.update("jax_num_cpu_devices", number)
  return False


def _check_started(settings: Mapping[str, Any]) -> None:
  """Raise unless JAX has started with these settings of `prepare`; None stands for any."""
  platform, devices = settings["platform"], settings["devices"]
  first, count, processes = jax.devices()[0], jax.local_device_count(), jax.process_count()
  try:
    same_platform = platform is None or jax.devices(platform)[0] == first
  except RuntimeError:  # There is no such platform.
    same_platform = False
  # `devices` divides a CPU, and no accelerator: of those, `mesh` refuses more than there are.
  same_devices = devices is None or devices == count or first.platform != "cpu"
  same_processes = settings["coordinator"] is None or (
    (settings["num_processes"], settings["process_id"]) == (processes, jax.process_index())
  )
  if not (same_platform and same_devices and same_processes):
    asked = ", ".join(f"{name}={value!r}" for name, value in settings.items() if value is not None)
    raise ValueError(
      f"prepare({asked}) comes too late: JAX has started with {count} device{'s' * (count > 1)} on platform "
      f"{first.platform!r} in {processes} process{'es' * (processes > 1)}; call it before anything else uses JAX"
    )


def num_cores() -> int:
  """Return the number of cores that this process may use."""
  return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _check_processes(given: Mapping[str, Any]) -> None:
  """Raise unless all three settings are given and make sense, or none is given."""
  coordinator, num_processes, process_id = given.values()
  missing = [name for name, value in given.items() if value is None]
  if len(missing) == len(given):
    return
  if missing:
    raise ValueError(f"{' and '.join(missing)} must be given too: a run of several processes needs {', '.join(given)}")
  checks.check_count("num_processes", num_processes)
  checks.check_count("process_id", process_id, least=0)
  if process_id >= num_processes:
    raise ValueError(f"process_id must be from 0 to {num_processes - 1}, but it is {process_id}")
  host, _, port = coordinator.rpartition(":")
  if not host or not port.isdecimal():
    raise ValueError(f"coordinator must be HOST:PORT, as 10.0.0.1:8476, but it is {coordinator!r}")


def _connect(coordinator: Any, num_processes: Any, process_id: Any, settings: Mapping[str, Any]) -> None:
  """Connect with the other processes; return when all are connected."""
  # JAX's own handler of SIGTERM would replace the caller's, and only take note of the signal.
  jax.config.update("jax_enable_preemption_service", False)
  try:
    address = partners.meet(coordinator, num_processes, process_id, settings)
    jax.distributed.initialize(
      address.connect,
      num_processes,
      process_id,
      initialization_timeout=_JAX_CONNECT_SECONDS,
      heartbeat_timeout_seconds=_JAX_SILENT_SECONDS,
      coordinator_bind_address=address.bind,
      cluster_detection_method="deactivate",
    )
  except partners.Lost as error:
    raise ValueError(f"coordinator={coordinator}: {error}") from error
  except RuntimeError as error:
    raise ValueError(f"coordinator={coordinator}: JAX did not connect: {str(error).splitlines()[0]}") from error


def mesh(devices: int | None = None) -> Mesh:
  """Return a mesh of all processes' devices, or of the first `devices` of each, with the axis "students"."""
  by_process: dict[int, list[jax.Device]] = {}
  for device in jax.devices():
    by_process.setdefault(device.process_index, []).append(device)
  if devices is not None:
    devices = checks.check_count("devices", devices)
    fewest = min(map(len, by_process.values()))
    if devices > fewest:
      raise ValueError(
        f"devices={devices}, but there are {fewest}: devices.prepare(devices=...) divides a CPU into more"
      )
  return Mesh(np.array([device for own in by_process.values() for device in own[:devices]]), (STUDENTS,))


def check_mesh(mesh: Any) -> None:
  """Raise unless it is None, or a mesh as `mesh` returns it."""
  if mesh is not None and not (isinstance(mesh, Mesh) and mesh.axis_names == (STUDENTS,)):
    raise TypeError(f"mesh must be made by last_jax.devices.mesh, but it is {checks.show(mesh)}")


def host() -> jax.Device | None:
  """Return the CPU of this process; None if JAX runs without one."""
  try:
    return jax.local_devices(backend="cpu")[0]
  except RuntimeError:
    return None


def split(tree: Any, mesh: Mesh | None) -> Any:
  """Shard arrays over the mesh along their leading axis; replicate those whose length it does not divide.

  Without a mesh they are returned unchanged.
  """
  if mesh is None:
    return tree
  return jax.tree.map(lambda leaf: _put(leaf, sharding_of(np.shape(leaf)[0], mesh)), tree)


def copy_to_all(tree: Any, mesh: Mesh | None) -> Any:
  """Replicate arrays on all devices of the mesh; without a mesh they are returned unchanged."""
  if mesh is None:
    return tree
  return jax.tree.map(lambda leaf: _put(leaf, NamedSharding(mesh, PartitionSpec())), tree)


def sharding_of(count: int, mesh: Mesh) -> NamedSharding:
  """Return the sharding of arrays whose leading axis has length `count`; replicated if the mesh does not divide it."""
  return NamedSharding(mesh, PartitionSpec(STUDENTS) if count % mesh.size == 0 else PartitionSpec())


def _put(leaf: Any, sharding: NamedSharding) -> Any:
  """Place an array that every process has whole; each puts on its devices what belongs there."""
  if isinstance(leaf, jax.core.Tracer) or not isinstance(leaf, jax.Array) or leaf.sharding == sharding:
    return leaf  # Numbers and NumPy arrays are replicated by JAX.
  if not leaf.is_fully_addressable:
    return leaf  # An array of several processes: compiled programs move its shards themselves.
  if jax.process_count() == 1:
    return jax.device_put(leaf, sharding)
  if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
    return jax.random.wrap_key_data(_put(jax.random.key_data(leaf), sharding), impl=jax.random.key_impl(leaf))
  return place(np.asarray(leaf), sharding)


def place(whole: np.ndarray, sharding: Any) -> jax.Array:
  """Place an array of the host on devices, also of other processes, which must call this with the same array."""
  return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])


def over_students(function: Callable[..., Any], mesh: Mesh, splits: tuple[bool, ...], out_splits: Any) -> Any:
  """Map a function over the shards of the students (`jax.shard_map`), without collectives except the function's own.

  Args:
    function: function of arrays.
    mesh: the devices.
    splits: for each argument, whether it is sharded along its leading axis; the others are replicated.
    out_splits: the same for the results: a tree of booleans, or a prefix of it.
  """

  def spec(split: bool) -> PartitionSpec:
    return PartitionSpec(STUDENTS) if split else PartitionSpec()

  in_specs, out_specs = tuple(map(spec, splits)), jax.tree.map(spec, out_splits)
  return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def gather(tree: Any) -> Any:
  """Return whole arrays on the host, as NumPy arrays, in every process; typed keys stay keys. All must call it."""
  from jax.experimental import multihost_utils

  def whole(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      return jax.random.wrap_key_data(whole(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
      if leaf.is_fully_replicated:
        return np.asarray(leaf.addressable_data(0))
      return multihost_utils.process_allgather(leaf, tiled=True)
    return np.asarray(leaf)

  return jax.tree.map(whole, tree)


def from_first(tree: Any) -> Any:
  """Broadcast the first process's arrays to all, as NumPy arrays. All must call it, with arrays of the same shapes."""
  if jax.process_count() == 1:
    return jax.tree.map(np.asarray, tree)
  from jax.experimental import multihost_utils

  return multihost_utils.broadcast_one_to_all(tree)


def from_all(array: np.ndarray) -> np.ndarray:
  """Return the arrays of all processes, `[processes, ...]`. All must call it, with arrays of the same shape."""
  if jax.process_count() == 1:
    return np.asarray(array)[None]
  from jax.experimental import multihost_utils

  return np.asarray(multihost_utils.process_allgather(np.asarray(array)))


def is_first() -> bool:
  """Return whether this is the first process, which writes and prints."""
  return not jax.distributed.is_initialized() or jax.process_index() == 0
