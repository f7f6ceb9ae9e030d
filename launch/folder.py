"""The folder of a run: it is held while the run lasts, and what is in it beside summary.json is of one run.

config.json says which run the folder holds, so that no run replaces the files of another. Results are written into a
folder aside. Then summary.json is removed, all of them are moved, and summary.json comes last: where it is, all results
are of the run whose identifier it shares with config.json. Where it is not, they are not complete.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shlex
import shutil
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from absl import flags

from last_jax import devices, tools
from last_jax.io import read_json, remove_temporaries, replaced_together
from last_jax.io.files import temporary_name

from . import help, lock
from .command import user_errors
from .flags import NEUTRAL_FLAGS

CONFIG, SUMMARY = "config.json", "summary.json"


def repeat_command(
  module: str, values: flags.FlagValues, settled: Mapping[str, Any], only: Collection[str] | None = None
) -> list[str]:
  """Return the words of a command line that repeats a run, even if defaults change.

  Args:
    module: the module after `python -m`.
    values: the command's flags.
    settled: by flag, the values that were chosen for flags that were not given; None for flags without effect.
    only: the flags that the command has; all unless given.
  """
  words = ["python", "-m", module]
  for name, value in _flags(values, settled).items():
    if value is None or (only is not None and name not in only):
      continue
    if isinstance(value, bool):
      words.append(f"--{name}" if value else f"--no{name}")
    elif isinstance(value, (list, tuple)):
      words.append(f"--{name}={','.join(map(str, value))}")
    else:
      words.append(f"--{name}={value!r}" if isinstance(value, float) else f"--{name}={value}")
  return words


def make_config(
  module: str, values: flags.FlagValues, settled: Mapping[str, Any], data: Mapping[str, Any]
) -> dict[str, Any]:
  """Return the content of config.json: enough to repeat the run, and to recognise it."""
  return {
    "command": shlex.join(repeat_command(module, values, settled)),
    "flags": _flags(values, settled),
    "data": dict(data),
    "versions": tools.versions(),
  }


def _flags(values: flags.FlagValues, settled: Mapping[str, Any]) -> dict[str, Any]:
  return {name: value for name, value in values.flag_values_dict().items() if name not in help.FLAGS} | dict(settled)


def check_writable(out: str | pathlib.Path) -> None:
  """Create the folder of --out, or raise. Only the process that writes does."""
  if devices.is_first():
    try:
      tools.check_writable(out)
    except (OSError, ValueError) as error:  # The latter where it is no path at all.
      raise OSError(f"--out={out} cannot be written to: {error}") from error


class Folder(NamedTuple):
  """The folder of --out.

  Attributes:
    path: where it is.
    files: names of all files that the command can write into it.
    saved: name of the folder in it with the saved states.
    may_grow: flags that may differ when a run is resumed, as the number of episodes.
    growing: those of `files` that are written while the run lasts, and not with the results.
  """

  path: pathlib.Path
  files: Sequence[str]
  saved: str
  may_grow: Sequence[str] = ()
  growing: Sequence[str] = ()

  def check(self, config: Mapping[str, Any], *, resume: bool, overwrite: bool) -> None:
    """Create the folder; raise where it cannot be written to, or holds files of another run, naming them.

    Finished results of the same command may be replaced: at the end of the new run, and otherwise only if asked for. An
    unfinished run is resumed, or overwritten if asked for.
    """
    if not devices.is_first():
      return
    if resume and overwrite:
      raise ValueError("--resume and --overwrite exclude each other")
    check_writable(self.path)
    with lock.hold(self.path):
      self._check_found(config, resume, overwrite)

  def check_flags(
    self,
    module: str,
    values: flags.FlagValues,
    chosen: Collection[str],
    added: Mapping[str, Collection[str]] | None = None,
  ) -> None:
    """Raise at once where the folder holds a run with other flags, before any data is read. `check` does the rest.

    Args:
      module: the module of the command.
      values: its flags.
      chosen: flags that are chosen to fit the data, where they are not given.
      added: by flag, words of its list that are added to fit the data.
    """
    if values.overwrite or not devices.is_first() or not (found := self._found()) or CONFIG not in found:
      return
    now = _flags(values, {})
    try:
      config = read_json(self.path / CONFIG)
      before = dict(config["flags"])
      if config["command"].split()[2] != module:
        return
    except (OSError, ValueError, LookupError, TypeError, AttributeError):  # `check` says so.
      return
    for name in now:
      is_open = now[name] is None and name in chosen
      # A flag without effect has no value in the file.
      if is_open or before.get(name) is None or _show(before[name]) == _show(now[name]):
        before[name] = now[name]
    for name, words in (added or {}).items():
      lists = [{*(each.get(name) or ())} - {*words} for each in (before, now)]
      if lists[0] == lists[1]:
        before[name] = now[name]
    same = {"command": config["command"], "data": {}}
    self._check_same(found, same | {"flags": now}, values.resume, same | {"flags": before})

  @contextlib.contextmanager
  def begin(self, config: Mapping[str, Any], *, resume: bool, overwrite: bool) -> "Iterator[Run]":
    """Hold the folder until the block ends, and prepare it for the run that is yielded.

    Unless resuming, saved states are removed and, with `overwrite`, all results of an earlier run. What a killed
    process left of files that it was writing is removed. config.json is written where there are no earlier results;
    otherwise it stays with them until `Run.publish` replaces them.
    """
    held = None
    with contextlib.ExitStack() as stack:
      if devices.is_first():
        with user_errors():
          held = stack.enter_context(lock.hold(self.path))
          self._check_found(config, resume, overwrite)  # Another run may have been here since `check`.
        for place in (self.path, *(each for each in (self.path / self.saved).rglob("*") if each.is_dir())):
          remove_temporaries(place)
        if not resume:
          _remove_folder(self.path / self.saved)
        if overwrite or (self.growing and not resume):  # Without `overwrite`, nothing of them is finished.
          # summary.json is first, and the configuration last: until then it says which run the other files are of.
          for name in sorted(self.files, key=lambda name: (name == CONFIG) - (name == SUMMARY)):
            (self.path / name).unlink(missing_ok=True)
        if not (self.path / SUMMARY).exists():
          tools.write_json(self.path / CONFIG, config)
      yield Run(self, config, held)

  def _check_found(self, config: Mapping[str, Any], resume: bool, overwrite: bool) -> None:
    found = self._found()
    if found and not overwrite:
      self._check_same(found, config, resume)

  def _found(self) -> list[str]:
    """Return the names of files here that the command would write."""
    found = [name for name in self.files if (self.path / name).exists()]
    return found + [f"{self.saved}/"] * self._has_states()

  def _has_states(self) -> bool:
    folder = self.path / self.saved
    return folder.is_dir() and any(folder.iterdir())

  def _check_same(
    self, found: list[str], config: Mapping[str, Any], resume: bool, earlier: dict[str, Any] | None = None
  ) -> None:
    here, holds = f"--out={self.path}", f"--out={self.path} holds {', '.join(found)}"
    away = "give another --out, or --overwrite to replace them"
    if CONFIG not in found:
      raise ValueError(f"{holds}, but no {CONFIG}, so that they are not known to be of this command: {away}")
    try:
      earlier = read_json(self.path / CONFIG) if earlier is None else earlier
      difference = _find_difference(earlier, config, self.may_grow if resume else ())
    except (ValueError, LookupError, TypeError, AttributeError) as error:
      raise ValueError(f"{holds}, but {CONFIG} cannot be read ({error}): {away}") from error
    if difference and resume:
      raise ValueError(f"--resume: the run in {here} has {difference}: resume it with the same flags")
    if difference:
      grows = "--resume continues it, or " if not _find_difference(earlier, config, self.may_grow) else ""
      raise ValueError(f"{holds} of another run, which has {difference}: {grows}{away}")
    if self._has_states() and not resume and not self._is_finished():
      raise ValueError(
        f"{here} holds an unfinished run of the same command: --resume continues it, --overwrite starts again"
      )
    if self.growing and not resume and self._is_finished():
      raise ValueError(
        f"{here} holds a finished run of the same command, whose files a new one replaces from its start on: --resume "
        "continues it, --overwrite starts again"
      )

  def _is_finished(self) -> bool:
    try:
      return read_json(self.path / SUMMARY)["interrupted"] is False
    except (OSError, ValueError, KeyError, TypeError):
      return False


def _remove_folder(folder: pathlib.Path) -> None:
  """Remove a folder whole: a process that is killed meanwhile leaves no part of it under its name."""
  if folder.is_dir():
    aside = folder.with_name(temporary_name(folder.name))
    os.replace(folder, aside)
    shutil.rmtree(aside, ignore_errors=True)


class Run(NamedTuple):
  """A run that holds its folder."""

  folder: Folder
  config: Mapping[str, Any]
  lock: lock.Lock | None  # None in a process that does not write.

  def check(self) -> None:
    """Raise a FileNotFoundError if the folder was removed meanwhile: nothing must be written into another."""
    if self.lock is not None:
      self.lock.check()

  @contextlib.contextmanager
  def publish(self, summary: Mapping[str, Any]) -> Iterator[pathlib.Path]:
    """Yield an empty folder for the files of the results; at the end of the block they replace all earlier results.

    config.json and `summary`, the content of summary.json, are added. Pictures, which are drawn later, are removed.
    After an error inside the block, the earlier results are as they were.
    """
    self.check()
    others = [name for name in self.folder.files if name not in self.folder.growing]
    with replaced_together(self.folder.path, SUMMARY, others) as aside:
      yield aside
      identifier = uuid.uuid4().hex
      tools.write_json(aside / CONFIG, {"run": identifier, **self.config})
      tools.write_json(aside / SUMMARY, {"run": identifier, **summary})


def _find_difference(earlier: dict[str, Any], config: Mapping[str, Any], may_grow: Sequence[str]) -> str:
  """Return the flags in which two runs differ, as text; "" where they are the same run."""
  config = json.loads(json.dumps(config))  # As it is read back.
  if earlier["command"].split()[:3] != config["command"].split()[:3]:
    return f"the command {earlier['command'].split()[2]}"
  before, now = earlier["flags"], config["flags"]
  names = [name for name in dict.fromkeys([*before, *now]) if name not in (*NEUTRAL_FLAGS, *may_grow)]
  differing = [name for name in names if before.get(name) != now.get(name)]
  if differing:
    return " and ".join(f"--{name}={_show(before.get(name))} instead of {_show(now.get(name))}" for name in differing)
  changed = [name for name in now if name in config["data"] and earlier["data"].get(name) != config["data"][name]]
  return f"another content of --{changed[0]}={now[changed[0]]}" if changed else ""


def fingerprint(config: Mapping[str, Any], may_grow: Sequence[str]) -> str:
  """Return a hash that is equal for runs with equal results."""
  settings = {name: value for name, value in config["flags"].items() if name not in (*NEUTRAL_FLAGS, *may_grow)}
  text = json.dumps({"settings": settings, "data": config["data"]}, sort_keys=True)
  return hashlib.sha256(text.encode()).hexdigest()


def _show(value: Any) -> str:
  return "none" if value is None else ",".join(map(str, value)) if isinstance(value, list) else str(value)
