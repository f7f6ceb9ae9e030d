"""How XLA compiles: flags of a process, options of a program, and the cache of compiled programs on disk."""

import contextlib
import functools
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

# For small steps on a CPU. XLA ends the process at a flag that it does not know: only for releases that were tested.
_KNOWN_RELEASES = ("0.10.",)
_CPU_FLAGS = {
  # XLA hands sums of a few thousand numbers to a library (YNNPACK), whose calls take longer than such sums, above all
  # where several devices of a process wait for each other in it. With this flag only matrix products go there; fusions
  # that it miscompiles do not (see fitting.py).
  "--xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
  # LLVM unrolls loops over a few dozen features completely, and then vectorizes the loop over students around them,
  # whose numbers are far apart in memory: an update of the weights takes three times as long.
  "--xla_backend_extra_options": "xla_cpu_disable_loop_unrolling",
}

# What a single program can be told of the same; an option that XLA does not know raises an error there. The second has
# LLVM leave out, among others, the unrolling, which has no option of its own.
_SMALL_STEP_OPTIONS = {
  "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT",
  "xla_backend_optimization_level": 1,
}

# With one device per core: no operation is divided among threads, which would compete for the cores.
_CORE_FLAGS = {"--xla_disable_hlo_passes": "cpu-parallel-task-assigner"}

_CACHE_NAME = "last_jax_compilation_cache"
_CACHE_DAYS = 30  # After which an entry of the cache is deleted.
_CACHE_ENTRY = re.compile(r".+-[0-9a-f]{64}-(cache|atime)")  # JAX's name for one.
_CACHE_TAG = """Signature: 8a477f597d28d172789f06886806bc55
# A folder of last_jax, which deletes old entries of JAX's compilation cache from it.
# The name and the first line of this file tell backup programs to leave the folder out.
"""


# --- Flags and options for small steps.


def add_flags_for_small_steps(*, device_per_core: bool) -> None:
  """Set XLA's flags for steps of a few dozen numbers, before JAX starts; nothing for releases that were not tested."""
  if _is_known_release():
    add_xla_flags(_CPU_FLAGS | _CORE_FLAGS if device_per_core else _CPU_FLAGS)


def add_xla_flags(flags: Mapping[str, str]) -> None:
  """Add flags to XLA_FLAGS, which JAX reads when it starts; a flag that is there already keeps its value."""
  given = os.environ.get("XLA_FLAGS", "").split()
  known = {flag.partition("=")[0] for flag in given}
  more = [f"{flag}={value}" for flag, value in flags.items() if flag not in known]
  os.environ["XLA_FLAGS"] = " ".join(given + more)


def jit_for_small_steps(function: Callable[..., Any], static_argnames: tuple[str, ...]) -> Callable[..., Any]:
  """Return the function compiled for steps of a few dozen numbers, as `prepare` would have all programs compiled.

  The result's first argument is whether steps are small; all others are those of the function. It is compiled as any
  other inside of a program of the caller's, on accelerators, where XLA_FLAGS says how to compile (so after `prepare`),
  and with releases of JAX that were not tested.
  """
  plain = jax.jit(function, static_argnames=static_argnames, inline=True)
  small = jax.jit(function, static_argnames=static_argnames, compiler_options=_SMALL_STEP_OPTIONS)

  def call(small_steps: bool, *arguments: Any, **settings: Any) -> Any:
    usable = small_steps and _takes_options() and not _is_traced(arguments)
    return (small if usable else plain)(*arguments, **settings)

  return call


def _is_traced(arguments: Any) -> bool:
  """Return whether a call with these arguments is part of a larger program."""
  return is_tracing() or any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(arguments))


def is_tracing() -> bool:
  """Return whether a program is being traced: constants become traced in it."""
  return isinstance(jax.lax.full((), False), jax.core.Tracer)


def _takes_options() -> bool:
  given = os.environ.get("XLA_FLAGS", "")
  decided = any(flag in given for flag in (*_CPU_FLAGS, *_SMALL_STEP_OPTIONS))
  return not decided and jax.default_backend() == "cpu" and _is_known_release()


@functools.cache
def _is_known_release() -> bool:
  return metadata.version("jaxlib").startswith(_KNOWN_RELEASES)


# --- The cache.


def enable_compilation_cache(folder: str | os.PathLike[str] | None = None) -> None:
  """Have JAX store compiled programs on disk, for later processes; where nothing can be written, do nothing.

  The cache is a folder of its own, `last_jax_compilation_cache`. Entries older than 30 days are deleted from it;
  nothing else is ever deleted, and nothing at all from a folder that this function has not made.

  Args:
    folder: parent of the cache; by default the user's cache folder, unless JAX_COMPILATION_CACHE_DIR names a cache,
      which is then used and left alone.
  """
  if folder is None and jax.config.values["jax_compilation_cache_dir"] is not None:
    return
  place = (_user_cache() if folder is None else pathlib.Path(folder)) / _CACHE_NAME
  with contextlib.suppress(OSError):
    _make_cache(place)
    _delete_old_entries(place)
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    # JAX looks for a cache once, when it first compiles: have it look again.
    compilation_cache.reset_cache()


def _user_cache() -> pathlib.Path:
  home = pathlib.Path.home()
  usual = {"darwin": home / "Library" / "Caches", "win32": home / "AppData" / "Local"}
  return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or usual.get(sys.platform, home / ".cache"))


def _make_cache(place: pathlib.Path) -> None:
  """Make the folder and mark it as ours. A folder that is there already and not empty may be somebody else's."""
  place.mkdir(parents=True, exist_ok=True)
  if next(place.iterdir(), None) is None:
    (place / "CACHEDIR.TAG").write_text(_CACHE_TAG, encoding="utf-8")


def _delete_old_entries(place: pathlib.Path) -> None:
  # JAX can bound the size of its cache, but a killed process can corrupt the index that it then uses.
  tag = place / "CACHEDIR.TAG"
  if not tag.is_file() or tag.read_text(encoding="utf-8", errors="replace") != _CACHE_TAG:
    return
  oldest = time.time() - _CACHE_DAYS * 24 * 3600
  for file in place.iterdir():
    if _CACHE_ENTRY.fullmatch(file.name) and file.is_file() and not file.is_symlink():
      with contextlib.suppress(FileNotFoundError):  # Another process deletes the same.
        if file.stat().st_mtime < oldest:
          file.unlink()
