"""Running a command: parsing its flags, help in the order of definition, errors in one line, exit statuses."""

import contextlib
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from absl import flags

from last_jax import partners

from . import help, stopping

FAILED, USAGE_ERROR, DIVERGED = 1, 2, 3
_REASON_SECONDS = 2  # For `partners` to say which process was lost.

# Messages of JAX and Gloo where the connection to another process broke. Out of memory, as others, is not among them.
_CONNECTION_LOST = re.compile(
  r"^(UNAVAILABLE|ABORTED|DEADLINE_EXCEEDED|CANCELLED)\b|connection (reset|closed|refused)|socket closed|broken pipe|"
  r"timed out",
  re.IGNORECASE,
)
_OUT_OF_MEMORY = re.compile(r"^RESOURCE_EXHAUSTED\b")  # As JAX says it.
_LONGEST = 1000  # Characters of an error: values of flags and files may be of any length.
_LONGEST_NAME = 50


class UsageError(Exception):
  """A request that cannot be carried out. The message is shown to the user, without a traceback."""


@contextlib.contextmanager
def user_errors(flag_of: Mapping[str, str] | None = None) -> Iterator[None]:
  """Turn errors that bad input raises into UsageErrors. Only code that reads and checks input belongs inside.

  Args:
    flag_of: the flag of each argument of the functions called inside, where they differ: a message of the library that
      begins with the name of an argument begins with its flag instead.
  """
  try:
    yield
  except (ValueError, TypeError, OSError) as error:
    message = str(error)
    argument = re.match(r"\w+", message)
    if flag_of and argument and argument[0] in flag_of:
      message = f"--{flag_of[argument[0]]}{message[argument.end() :]}"
    raise UsageError(message) from error


@contextlib.contextmanager
def naming(flag: str, value: Any) -> Iterator[None]:
  """Put a flag and its value in front of the messages of errors that are raised inside."""
  try:
    yield
  except (ValueError, TypeError, OSError) as error:
    raise ValueError(f"--{flag}={value}: {error}") from error


def run_command(
  main: Callable[[Any], int],
  flag_values: help.Grouped,
  documentation: str,
  arguments: Sequence[str],
  tables: help.Tables | None = None,
) -> int:
  """Parse the flags and call `main` with them.

  Args:
    main: returns the exit status.
    flag_values: the command's own flags, not absl's global ones: two commands may have flags of the same name.
    documentation: printed above the flags by --help.
    arguments: as `sys.argv`, the command's name first.
    tables: the names that flags take, with a line each, by title: what --list prints.

  Returns:
    The exit status: 2 after an error of the user's, 3 where all was written but students diverged, 130 after Ctrl-C,
    143 after SIGTERM.
  """
  help.define(flag_values, tables or {})
  for stream in (sys.stdout, sys.stderr):
    if hasattr(stream, "reconfigure"):
      stream.reconfigure(errors="replace")  # A question mark in a table is better than a crash at the end of a run.
  with stopping.by_signals():
    return _run(main, flag_values, documentation, arguments, tables or {})


def _run(
  main: Callable[[Any], int],
  flag_values: help.Grouped,
  documentation: str,
  arguments: Sequence[str],
  tables: help.Tables,
) -> int:
  try:
    _parse(flag_values, arguments)
    text = help.answer(flag_values, documentation, tables)
    if text is not None:
      print(text)
    status = main(flag_values) if text is None else 0
    sys.stdout.flush()  # Here, where a closed pipe can be handled, and not when Python exits.
    return _finish(status)
  except UsageError as error:
    print(f"error: {_one_line(str(error))}", file=sys.stderr)
    return _leave(USAGE_ERROR)
  except KeyboardInterrupt as error:
    print("stopped", file=sys.stderr)
    return _leave(stopping.status_of(error))
  except BrokenPipeError:
    _discard_output()
    return _leave(FAILED)
  except Exception as error:
    if isinstance(error, OSError) and error.filename is not None:  # A full disk, a folder that was removed.
      text = _one_line(f"{os.fsdecode(error.filename)}: {error.strerror or error}")
      print(f"error: {text}; files that were complete stay", file=sys.stderr)
      return _leave(FAILED)
    if isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error)):
      text = _one_line(str(error).partition("\n")[0] or "no more memory can be had")
      print(f"error: out of memory: {text}; files that were complete stay", file=sys.stderr)
      return _leave(FAILED)
    if not jax.distributed.is_initialized():
      raise
    if _is_connection_lost(error):
      time.sleep(_REASON_SECONDS)
      reason = str(error).strip().splitlines()[0]
      print(f"error: another process of this run was lost; saved states stay ({reason})", file=sys.stderr)
    else:
      traceback.print_exc()
    return _leave(FAILED)


def _one_line(text: str) -> str:
  """Return an error in one line of bounded length, in characters that a terminal shows and does not obey."""
  line = " ".join(text.split())
  if len(line) > _LONGEST:
    line = f"{line[: _LONGEST - 300]} ... {line[-295:]}"
  return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in line)


def _is_connection_lost(error: Exception) -> bool:
  """Whether an error says that another process of the run was lost. Its type depends on when that is noticed."""
  from_gloo = "Gloo" in str(error)
  return (isinstance(error, jax.errors.JaxRuntimeError) or from_gloo) and bool(_CONNECTION_LOST.search(str(error)))


def _finish(status: int) -> int:
  """Return the exit status, once all processes of the run have finished.

  Unless all of them have succeeded, exit here: JAX would wait for those that do the same.
  """
  if jax.distributed.is_initialized() and not partners.finish(status):
    _exit(status)
  return status


def _leave(status: int) -> int:
  """Return the exit status. After an error in one of several processes, exit at once: JAX would wait for the others."""
  if jax.distributed.is_initialized():
    partners.fail()
    _exit(status)
  return status


def _exit(status: int) -> None:
  with contextlib.suppress(BrokenPipeError):
    sys.stdout.flush()
  sys.stderr.flush()
  os._exit(status)


def _discard_output() -> None:
  """Send further output nowhere: its reader is gone, as `head` is after ten lines."""
  with contextlib.suppress(OSError, ValueError):  # Where the output is not a file.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse(flag_values: help.Grouped, arguments: Sequence[str]) -> None:
  if any(re.match(r"--?flagfile(=|$)", word) for word in arguments[1:]):
    raise UsageError("--flagfile is not read: give the flags themselves (--help shows every flag)")
  for word in arguments[1:]:
    if word.startswith("-") and len(word.partition("=")[0]) > _LONGEST_NAME:  # absl would look for one like it.
      raise UsageError(f"{word[:_LONGEST_NAME]}... is not a flag (--help shows every flag)")
  try:
    rest = flag_values(list(arguments))[1:]
  except (flags.Error, ValueError) as error:  # The latter for --noflag=value.
    raise UsageError(f"{error} (--help shows every flag)") from error
  if rest:
    raise UsageError(f"{rest[0]!r} is not a flag: flags are given as --name=value (--help shows every flag)")
