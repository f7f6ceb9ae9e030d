"""The answers to --help, flags in groups with an example and their defaults, and to --list, names with a line each."""

import shutil
import textwrap
from collections.abc import Mapping
from typing import Any, NamedTuple

from absl import flags

from last_jax.tools.catalogue import listing

FLAGS = ("help", "h", "list")  # They are no settings of a run.
Tables = Mapping[str, Mapping[str, str]]  # Names that flags take, with a line each, by title.


class Group(NamedTuple):
  """Flags that belong together.

  Attributes:
    title: what they are about.
    example: flags of the group as somebody would give them.
    names: of its flags.
  """

  title: str
  example: str
  names: list[str]


class Grouped(flags.FlagValues):
  """Flags in groups."""

  groups: list[Group]

  def __init__(self) -> None:
    """Begin without flags."""
    super().__init__()
    self.__dict__["groups"] = []  # Any other attribute of a FlagValues would be a flag.

  def group(self, title: str, example: str) -> None:
    """Begin a group: flags that are defined from here on belong to it."""
    self.groups.append(Group(title, example, []))

  def __setitem__(self, name: str, flag: Any) -> None:
    """Add a flag to the group."""
    super().__setitem__(name, flag)
    if name == flag.name:  # A short name is none of its own.
      self.groups[-1].names.append(name)


def define(values: Grouped, tables: Tables) -> None:
  """Define --help and, if there are tables, --list."""
  values.group("Help", "--list" if tables else "--help")
  flags.DEFINE_boolean("help", False, "Show this help.", short_name="h", flag_values=values)
  if tables:
    flags.DEFINE_boolean(
      "list", False, f"Name all {', '.join(tables).lower()}, with a line for each.", flag_values=values
    )


def answer(values: Grouped, documentation: str, tables: Tables) -> str | None:
  """Return what to print in place of running the command, if that is asked for."""
  if values["help"].value:
    return _help(values, documentation)
  if tables and values["list"].value:
    return "\n".join(listing(tables))
  return None


def _help(values: Grouped, documentation: str) -> str:
  width = min(100, shutil.get_terminal_size((100, 24)).columns)
  lines = [documentation.strip()]
  for group in values.groups:
    lines += ["", f"{group.title}, as {group.example}"]
    for name in group.names:
      lines.append(f"  {_head(values[name])}")
      text = str(values[name].help)
      lines += textwrap.wrap(text, width, initial_indent=" " * 6, subsequent_indent=" " * 6)
  return "\n".join(lines)


def _head(flag: Any) -> str:
  if flag.boolean:
    return f"--[no]{flag.name} (on unless --no{flag.name})" if flag.default else f"--{flag.name}"
  return f"--{flag.name}" if flag.default is None else f"--{flag.name}={flag.default_as_str.strip(chr(39))}"
