"""What all commands share: flags of their own, help in the order the flags were defined in, errors in one line."""

import contextlib
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import jax
from absl import flags

from last_jax import devices, report

FAILED, USAGE_ERROR, INTERRUPTED = 1, 2, 130


class UsageError(Exception):
  """What the user asked for cannot be done. The message is for the user."""


@contextlib.contextmanager
def user_errors() -> Iterator[None]:
  """Turns the errors that bad input raises into UsageErrors. Nothing else but taking in input belongs inside."""
  try:
    yield
  except (ValueError, TypeError, OSError) as error:
    raise UsageError(str(error)) from error


def run_command(
  main: Callable[[flags.FlagValues], int], flag_values: flags.FlagValues, documentation: str, arguments: Sequence[str]
) -> int:
  """Parses the flags and calls `main` with them.

  Args:
    main: gives the exit status.
    flag_values: the command's own flags. Not absl's global ones: two commands may have flags of the same name.
    documentation: printed above the flags by --help.
    arguments: as `sys.argv`, the command's name first.

  Returns:
    The exit status: 2 after an error of the user's, 130 after Ctrl-C.
  """
  flags.DEFINE_boolean("help", False, "Show this.", short_name="h", flag_values=flag_values)
  for stream in (sys.stdout, sys.stderr):
    if hasattr(stream, "reconfigure"):
      stream.reconfigure(errors="replace")  # Rather a question mark in a table than a crash at the end of a run.
  try:
    _parse(flag_values, arguments)
    if flag_values["help"].value:
      print(_help(documentation, flag_values))
      return 0
    return _leave(main(flag_values))
  except UsageError as error:
    print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
    return _leave(USAGE_ERROR)
  except KeyboardInterrupt:
    print("stopped", file=sys.stderr)
    return _leave(INTERRUPTED)
  except Exception as error:
    if not _was_left(error):
      raise
    what = str(error).strip().splitlines()[0]
    print(f"error: another process of this run was lost; what was finished or saved is kept ({what})", file=sys.stderr)
    return _leave(FAILED)


def _was_left(error: Exception) -> bool:
  """Whether another process of the run was lost. What is raised depends on when it is noticed."""
  return jax.distributed.is_initialized() and (isinstance(error, jax.errors.JaxRuntimeError) or "Gloo" in str(error))


def _leave(status: int) -> int:
  """The status to exit with. One of several processes goes at once: JAX would have it wait for the others."""
  if status and jax.distributed.is_initialized():
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
  return status


@contextlib.contextmanager
def prepared(flag_values: flags.FlagValues, prepare: Callable[[flags.FlagValues], Any]) -> Iterator[tuple[Any, Any]]:
  """Gives what `prepare` makes of the flags, once its notes are shown, and a console; in float64 if --x64 says so.

  The devices must have been started: see `where.start`.
  """
  console = make_console()
  with jax.enable_x64(True) if flag_values.x64 else contextlib.nullcontext():
    with user_errors():
      setup = prepare(flag_values)
    for note in setup.notes:
      console.print(f"note: {note}", markup=False, soft_wrap=True)
    yield setup, console


def make_console() -> Any:
  """A rich console that does not fold tables when nobody is watching."""
  from rich.console import Console

  quiet = not devices.is_first()
  console = Console(highlight=False, quiet=quiet)
  return console if console.is_terminal else Console(highlight=False, quiet=quiet, width=160)


def _parse(flag_values: flags.FlagValues, arguments: Sequence[str]) -> None:
  try:
    rest = flag_values(list(arguments))[1:]
  except flags.Error as error:
    raise UsageError(f"{error} (--help shows every flag)") from error
  if rest:
    raise UsageError(f"{rest[0]!r} is not a flag: flags are given as --name=value (--help shows every flag)")


def _help(documentation: str, flag_values: flags.FlagValues) -> str:
  width = min(100, shutil.get_terminal_size((100, 24)).columns)
  lines = [documentation.strip(), "", "Flags:"]
  for module_flags in flag_values.flags_by_module_dict().values():
    for flag in module_flags:
      lines.append(f"  {_head(flag)}")
      lines += textwrap.wrap(str(flag.help), width, initial_indent=" " * 6, subsequent_indent=" " * 6)
  return "\n".join(lines)


def _head(flag: Any) -> str:
  if flag.boolean:
    return f"--[no]{flag.name} (on unless --no{flag.name})" if flag.default else f"--{flag.name}"
  return f"--{flag.name}" if flag.default is None else f"--{flag.name}={flag.default_as_str.strip(chr(39))}"


def repeat_command(
  module: str, flag_values: flags.FlagValues, settled: dict[str, Any], only: Collection[str] | None = None
) -> list[str]:
  """The words of a command line that does the same again, even if defaults change.

  Args:
    module: what follows `python -m`.
    flag_values: the command's flags.
    settled: by flag, the values that were chosen in place of flags left out.
    only: the flags that the command has; all unless given.
  """
  words = ["python", "-m", module]
  for name in flag_values:
    if name in ("help", "h") or (only is not None and name not in only):
      continue
    value = settled.get(name, flag_values[name].value)
    if value is None:
      continue
    if isinstance(value, bool):
      words.append(f"--{name}" if value else f"--no{name}")
    elif isinstance(value, (list, tuple)):
      words.append(f"--{name}={','.join(map(str, value))}")
    else:
      words.append(f"--{name}={value!r}" if isinstance(value, float) else f"--{name}={value}")
  return words


def make_config(
  module: str, flag_values: flags.FlagValues, settled: dict[str, Any], data_facts: dict[str, Any]
) -> dict[str, Any]:
  """The content of config.json: enough to run it again."""
  return {
    "command": shlex.join(repeat_command(module, flag_values, settled)),
    "flags": {name: flag_values[name].value for name in flag_values if name not in ("help", "h")} | settled,
    "data": data_facts,
    "versions": report.versions(),
  }
