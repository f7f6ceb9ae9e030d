"""Where a command runs: flags for the platform, the devices, and runs of several processes."""

from typing import Any

from absl import flags
from jax.sharding import Mesh

from last_jax import devices
from launch.command import user_errors

FLAGS = ("platform", "devices", "coordinator", "num_processes", "process_id")


def define_flags(flag_values: flags.FlagValues, devices_unless_given: str) -> None:
  """Defines them.

  Args:
    flag_values: the command's.
    devices_unless_given: how many there are then, for --help.
  """
  flags.DEFINE_enum(
    "platform", None, list(devices.PLATFORMS), "What to run on. Unless given: the best that JAX finds.",
    flag_values=flag_values,
  )  # fmt: skip
  flags.DEFINE_integer(
    "devices", None,
    "How many devices of this process to split the students over; a CPU is divided into so many. Unless given: "
    f"{devices_unless_given}.", lower_bound=1, flag_values=flag_values,
  )  # fmt: skip
  flags.DEFINE_string(
    "coordinator", None,
    "For a run of several processes, on one machine or many: HOST:PORT of the first, the same for all. Start the same "
    "command once for every process, with --num_processes and its own --process_id; the first one writes and prints.",
    flag_values=flag_values,
  )  # fmt: skip
  flags.DEFINE_integer("num_processes", None, "How many there are.", lower_bound=1, flag_values=flag_values)
  flags.DEFINE_integer("process_id", None, "Which one this is, from 0.", lower_bound=0, flag_values=flag_values)


def start(values: flags.FlagValues, cpu_devices: int) -> Mesh | None:
  """Has JAX start as the flags say, and gives the devices to split students over; None where there is only one.

  Args:
    values: the command's flags.
    cpu_devices: into how many a CPU is divided unless --devices says so.
  """
  with user_errors():
    given: dict[str, Any] = {name: values[name].value for name in FLAGS}
    devices.prepare(**given | {"devices": values.devices or cpu_devices})
    devices.keep_compiled()
    try:
      mesh = devices.mesh(values.devices)
    except RuntimeError as error:  # What JAX raises where it cannot start.
      raise ValueError(f"--platform={values.platform} cannot be used here: {str(error).splitlines()[0]}") from error
  return mesh if mesh.size > 1 else None
