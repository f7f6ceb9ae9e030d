"""Flags that commands share: how flags are defined, the flags of runs that can be resumed, and those of devices."""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags
from jax.sharding import Mesh

from last_jax import devices

from . import help
from .command import user_errors
from .console import Console

DEVICE_FLAGS = ("platform", "devices", "coordinator", "num_processes", "process_id")
# Flags that do not change the results of a run, so that they may differ when it is resumed.
NEUTRAL_FLAGS = ("out", "resume", "overwrite", "checkpoint_seconds", "mnist_folder", *DEVICE_FLAGS)
MOST = 2**31 - 1  # Of whole numbers: sizes of arrays, numbers of steps, seeds.


class Flags(help.Grouped):
  """The flags of one command, with a method to define each kind."""

  def whole(self, name: str, default: int | None, text: str, least: int = 1, most: int = MOST) -> None:
    """Define a whole number."""
    flags.DEFINE_integer(name, default, text, least, most, flag_values=self)

  def real(self, name: str, default: float | None, text: str) -> None:
    """Define a real number."""
    flags.DEFINE_float(name, default, text, flag_values=self)

  def reals(self, name: str, default: float | None, text: str) -> None:
    """Define a real number, or a list of several, separated by commas: a number is a float, several are a list."""
    flags.DEFINE(_Numbers(float), name, default, text, flag_values=self, serializer=_NumbersText())

  def wholes(self, name: str, default: int | None, text: str) -> None:
    """Define a whole number from 1, or a list of several."""
    flags.DEFINE(_Numbers(int), name, default, text, flag_values=self, serializer=_NumbersText())

  def text(self, name: str, default: str | None, text: str) -> None:
    """Define a text."""
    flags.DEFINE_string(name, default, text, flag_values=self)

  def several(self, name: str, default: Sequence[str] | None, text: str) -> None:
    """Define a list of words, separated by commas."""
    flags.DEFINE_list(name, None if default is None else list(default), text, flag_values=self)

  def switch(self, name: str, default: bool | None, text: str) -> None:
    """Define a flag that is on or off."""
    flags.DEFINE_boolean(name, default, text, flag_values=self)

  def choice(self, name: str, default: str | None, allowed: Sequence[str], text: str) -> None:
    """Define one of some words."""
    flags.DEFINE_enum(name, default, list(allowed), text, flag_values=self)


class _Numbers(flags.ArgumentParser[Any]):
  """Read "0.1" as a number and "0.1,1" as a list of numbers; one that is given twice counts once."""

  syntactic_help = "a number, or several with commas between them"

  def __init__(self, kind: type[float] | type[int]):
    super().__init__()
    self._kind = kind

  def parse(self, argument: Any) -> Any:
    """Return a number or a list."""
    if not isinstance(argument, str):
      return argument
    whole = self._kind is int
    try:
      numbers = list(dict.fromkeys(self._kind(word) for word in argument.split(",")))
    except ValueError:
      kind, example = ("a whole number", "1,8") if whole else ("a number", "0.01,0.1")
      raise ValueError(f"must be {kind}, or several with commas between them, as {example}") from None
    if whole and not 1 <= min(numbers) <= max(numbers) <= MOST:
      raise ValueError(f"must be at least 1 and at most {MOST}")
    return numbers if len(numbers) > 1 else numbers[0]


class _NumbersText(flags.ArgumentSerializer[Any]):
  def serialize(self, value: Any) -> str:
    """Return the text that is read as this value."""
    return ",".join(map(repr, several(value)))


def several(value: Any) -> list[Any]:
  """Return the values of a flag that takes one or a list."""
  return list(value) if isinstance(value, (list, tuple)) else [value]


def define_settings(
  values: Flags, kinds: Mapping[str, type], flag_of: Mapping[str, str], forms: Mapping[str, str]
) -> None:
  """Define flags from the fields of dataclasses: types and defaults are those of the fields, the help is metadata.

  Args:
    values: where to.
    kinds: the dataclasses, by the names that the help calls them. They may share fields.
    flag_of: the flag of each field that gets one.
    forms: of fields that are given as text, its forms, for the help.
  """
  for name, flag in flag_of.items():
    fields = {key: {field.name: field for field in dataclasses.fields(kind)} for key, kind in kinds.items()}
    having: dict[str, Any] = {key: known[name] for key, known in fields.items() if name in known}
    meanings = {key: field.metadata["help"] for key, field in having.items()}
    defaults = {key: field.default for key, field in having.items()}
    shared, differ = len(meanings) == len(kinds) and len(set(meanings.values())) == 1, len(set(defaults.values())) > 1
    text = next(iter(meanings.values())) if shared else " ".join(f"{key}: {text}" for key, text in meanings.items())
    text += f" Default: {', '.join(f'{default} for {key}' for key, default in defaults.items())}." if differ else ""
    text += f" Given as {forms[name]}" if name in forms else ""
    field = next(iter(having.values()))
    _define_setting(values, flag, field.type, None if differ else field.default, text)


def _define_setting(values: Flags, flag: str, kind: Any, default: Any, text: str) -> None:
  kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
  if bool in kinds:
    values.switch(flag, default, text)
  elif int in kinds:
    values.whole(flag, default, text)
  elif float in kinds:
    values.real(flag, default, text)
  elif any(typing.get_origin(each) is Sequence for each in kinds):
    values.several(flag, None if default is None else [str(each) for each in default], text)
  else:
    values.text(flag, default, text)


def define_run(values: Flags, out: str) -> None:
  """Define the flags of a run that can be resumed; `out` is the default of --out."""
  values.group("The run and its folder", f"--out={out}-2 --seed=1")
  values.whole("seed", 0, "Of everything random. The same seed gives the same numbers.", least=0)
  values.text("out", out, "Folder for the run's files. One that holds results of other settings is refused.")
  values.switch("resume", False, "Continue the run in --out where it was stopped or killed, with the same results.")
  values.switch("overwrite", False, "Start again and replace the results that an earlier run left in --out.")
  values.real("checkpoint_seconds", 10.0, "Seconds between two saves of the state; 0: whenever it is possible.")
  values.switch("x64", False, "Compute in float64.")


def define_devices(values: Flags, default: str) -> None:
  """Define the flags of devices and of runs in several processes; `default` explains --devices in the help."""
  values.group("Devices and processes", "--platform=cpu --devices=2")
  values.choice("platform", None, devices.PLATFORMS, "Platform to run on. Default: the best that JAX finds.")
  values.whole(
    "devices", None,
    "Number of devices of this process to split the students over; a CPU is divided into that many. "
    f"Default: {default}.",
  )  # fmt: skip
  values.text(
    "coordinator", None,
    "For a run of several processes, on one machine or many: HOST:PORT of the first, the same for all. Start the same "
    "command once for every process, with --num_processes and its own --process_id; the first one writes and prints.",
  )  # fmt: skip
  values.whole("num_processes", None, "Number of processes.")
  values.whole("process_id", None, "Number of this process, from 0.", least=0)


def _settings(values: Flags) -> dict[str, Any]:
  """Return what must be the same in all processes of a run: its flags, except those that each may choose."""
  free = {*NEUTRAL_FLAGS, *help.FLAGS} - {"resume"}
  return {f"--{name}": value for name, value in values.flag_values_dict().items() if name not in free}


def start_devices(values: Flags, console: Console, cpu_devices: int) -> Mesh | None:
  """Start JAX as the flags say. Return the devices to split students over, or None where there is only one.

  Args:
    values: the command's flags.
    console: says that others are waited for.
    cpu_devices: number of devices that a CPU is divided into unless --devices is given.
  """
  doing = "starting JAX" if values.coordinator is None else f"waiting for the {values.num_processes} processes"
  with console.doing(doing), user_errors({name: name for name in DEVICE_FLAGS}):
    given: dict[str, Any] = {name: values[name].value for name in DEVICE_FLAGS}
    # Where JAX has started, as in tests, a default must not ask for other devices than there are.
    default = None if devices.has_started() else cpu_devices
    devices.prepare(**given | {"devices": values.devices or default}, settings=_settings(values))
    devices.enable_compilation_cache()
    try:
      mesh = devices.mesh(values.devices)
    except RuntimeError as error:  # JAX cannot start.
      raise ValueError(f"platform={values.platform} cannot be used here: {str(error).splitlines()[0]}") from error
  return mesh if mesh.size > 1 else None
