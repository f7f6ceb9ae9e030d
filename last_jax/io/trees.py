"""Pytrees in files: states, policies, lessons.

The file is an npz archive with one array per leaf, named by its key path ("student/params/weights"), and a header: the
array `__header__`, the bytes of a JSON object with these entries.

    format   "last_jax"
    version  1
    kind     name of the pytree's type, "State"
    about    notes of the caller
    static   the part of a registered kind that is not in its leaves (`register_kind`)
    leaves   {name: dtype}. Keys are "key<impl>", stored as their key data; extended types (bfloat16, float8) are stored
             as unsigned integers of the same bits; Python numbers are "python int", and so on
"""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from last_jax.io.files import MOST_JSON, parse_json, replaced
from last_jax.io.npz import read_arrays, write_archive

_FORMAT, _VERSION, _HEADER = "last_jax", 1, "__header__"
_NUMBERS = {f"python {kind.__name__}": kind for kind in (bool, int, float, complex)}


class _Kind(NamedTuple):
  """A type whose pytrees can be loaded without a template."""

  type: type
  describe: Callable[[Any], dict[str, Any]]
  build: Callable[[dict[str, Any], dict[str, Any]], Any]


_KINDS: dict[str, _Kind] = {}  # By the type's name.


def register_kind(
  kind: type,
  describe: Callable[[Any], dict[str, Any]],
  build: Callable[[dict[str, Any], dict[str, Any]], Any],
) -> None:
  """Make pytrees of this type loadable without `like`.

  Args:
    kind: the type; its name identifies it in files.
    describe: `tree -> static`, a dict of JSON values; may raise if the tree cannot be saved.
    build: `(static, leaves by name) -> tree`. A KeyError, TypeError, AttributeError or ValueError from it means that
      the file does not hold such a tree.
  """
  known = _KINDS.setdefault(kind.__name__, _Kind(kind, describe, build))
  if known.type is not kind:
    raise ValueError(f"kind: a type of the name {kind.__name__} is registered already: {known.type}")


def save(path: str | os.PathLike[str], tree: Any, *, about: Mapping[str, Any] | None = None) -> None:
  """Write a pytree to a file, whole or not at all. The same pytree gives the same bytes.

  Args:
    path: file to write or to replace. Its folder must exist; no suffix is added.
    tree: pytree of arrays, typed keys and numbers. In a run of several processes: `devices.gather(state)`, called by
      all of them, and saved by the first.
    about: notes, as a dict of JSON values: `read` returns them.
  """
  kind = type(tree).__name__
  static = _KINDS[kind].describe(tree) if _is_registered(tree) else {}
  arrays: dict[str, np.ndarray] = {}
  dtypes: dict[str, str] = {}
  for name, leaf in _named_leaves(tree):
    if name in arrays or name == _HEADER or "\0" in name:
      raise ValueError(f"tree: {name!r} cannot be the name of a leaf: it is there twice, or reserved")
    dtypes[name], arrays[name] = _encode(name, leaf)
  header = {
    "format": _FORMAT,
    "version": _VERSION,
    "kind": kind,
    "about": dict(about or {}),
    "static": static,
    "leaves": dtypes,
  }
  try:
    text = json.dumps(header, allow_nan=False)
  except (TypeError, ValueError) as error:
    raise ValueError(f"about must be a dict of JSON values: {error}") from error
  if len(text) > MOST_JSON:
    raise ValueError(f"about and the names of leaves must take at most {MOST_JSON} bytes, but take {len(text)}")
  with replaced(path) as temporary, open(temporary, "xb") as stream:
    # The fastest level: it suffices for one-hot labels, and no level helps for trained weights.
    write_archive(stream, {_HEADER: np.frombuffer(text.encode(), np.uint8)} | arrays, level=1)


def load(path: str | os.PathLike[str], like: Any = None) -> Any:
  """Read a pytree that `save` has written.

  Args:
    path: the file.
    like: a pytree of the same structure, shapes and dtypes, of arrays or `jax.ShapeDtypeStruct`s. NumPy arrays in it
      are loaded as NumPy arrays, others as JAX arrays on the default device.

  Returns:
    A pytree like `like`. Without it, a tree of a registered kind, such as a policy; of any other kind, a dict of the
    leaves by name.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: the file is damaged, of another format or version, or does not hold a tree like `like`; the message
      names the file, and the first leaf that differs.
  """
  header, leaves = read(path)
  if like is not None:
    return _restore(path, header, leaves, like)
  if header["kind"] not in _KINDS:
    return leaves
  try:
    return _KINDS[header["kind"]].build(header["static"], leaves)
  except (KeyError, TypeError, AttributeError) as error:
    raise ValueError(f"{path} does not hold a {header['kind']}: {type(error).__name__}: {error}") from error
  except ValueError as error:
    raise ValueError(f"{path} does not hold a {header['kind']}: {error}") from error


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
  """Read the header and the leaves, by name, of a file that `save` has written.

  Leaves are NumPy arrays, typed keys (JAX arrays) and Python numbers. Errors are those of `load`.
  """
  arrays = read_arrays(path)
  if _HEADER not in arrays:
    raise ValueError(f"{path} was not written by last_jax.save: it has no header")
  header = _parse_header(path, arrays.pop(_HEADER))
  for name in sorted(set(header["leaves"]) ^ set(arrays)):
    fault = "lacks the leaf" if name in header["leaves"] else "also holds the array"
    raise ValueError(f"{path} is damaged: it {fault} {name!r}")
  leaves = {}
  for name, dtype in header["leaves"].items():
    try:
      leaves[name] = _decode(dtype, arrays[name])
    except (TypeError, ValueError) as error:
      raise ValueError(f"{path}: leaf {name!r} cannot be read as {dtype}: {error}") from error
  return header, leaves


def _parse_header(path: str | os.PathLike[str], array: np.ndarray) -> dict[str, Any]:
  try:
    header = parse_json(array.tobytes())
    if header["format"] != _FORMAT:
      raise ValueError(f"its format is {header['format']!r}")
    newer = header["version"] > _VERSION
    if not newer:
      types = {"version": int, "kind": str, "about": dict, "static": dict, "leaves": dict}
      wrong = [name for name, kind in types.items() if not isinstance(header[name], kind)]
      if wrong or not all(isinstance(dtype, str) for dtype in header["leaves"].values()):
        raise ValueError(f"wrong entries {', '.join(wrong) or 'leaves'}")
  except (ValueError, TypeError, KeyError) as error:
    raise ValueError(f"{path} was not written by last_jax.save, or is damaged: its header has {error}") from error
  if newer:
    raise ValueError(
      f"{path} has version {header['version']} of the format, but this last_jax reads up to {_VERSION}: update it"
    )
  return header


def _is_registered(tree: Any) -> bool:
  known = _KINDS.get(type(tree).__name__)
  return known is not None and known.type is type(tree)


def _named_leaves(tree: Any) -> list[tuple[str, Any]]:
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return [(jax.tree_util.keystr(path, simple=True, separator="/"), leaf) for path, leaf in leaves]


def _is_key(leaf: Any) -> bool:
  return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _encode(name: str, leaf: Any) -> tuple[str, np.ndarray]:
  """Return a leaf's dtype for the header, and an array of a dtype that npz can hold."""
  if isinstance(leaf, jax.core.Tracer):
    raise TypeError(f"tree: leaf {name!r} is a tracer: save cannot be called within jit")
  if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
    raise ValueError(f"tree: leaf {name!r} is in part on devices of other processes: save devices.gather(tree)")
  if type(leaf) in _NUMBERS.values():
    array, dtype = np.asarray(leaf), f"python {type(leaf).__name__}"
  elif _is_key(leaf):
    array, dtype = np.asarray(jax.random.key_data(leaf)), f"key<{jax.random.key_impl(leaf)}>"
  elif isinstance(leaf, (np.ndarray, np.generic, jax.Array)):
    array = np.asarray(leaf)
    dtype = array.dtype.name
    if _is_extended(array.dtype):
      array = array.view(f"u{array.dtype.itemsize}")
  else:
    raise TypeError(f"tree: leaf {name!r} must be an array or a number, but it is a {type(leaf).__name__}")
  if array.dtype.kind not in "biufc":
    raise TypeError(f"tree: leaf {name!r} must hold numbers, but its dtype is {array.dtype}")
  return dtype, array


def _decode(dtype: str, array: np.ndarray) -> Any:
  """Return a leaf from its dtype in the header and its array."""
  if dtype in _NUMBERS:
    if array.dtype.kind != np.dtype(_NUMBERS[dtype]).kind:  # NumPy would cast it.
      raise ValueError(f"the array has dtype {array.dtype}")
    return _NUMBERS[dtype](array[()])
  if dtype.startswith("key<"):
    if array.dtype != np.uint32:  # JAX would cast it.
      raise ValueError(f"the array has dtype {array.dtype}")
    return jax.random.wrap_key_data(jnp.asarray(array), impl=dtype.removeprefix("key<").removesuffix(">"))
  wanted = np.dtype(dtype)
  if _is_extended(wanted) and array.dtype == np.dtype(f"u{wanted.itemsize}"):
    return array.view(wanted)
  if array.dtype != wanted:
    raise ValueError(f"the array has dtype {array.dtype}")
  return array


def _is_extended(dtype: np.dtype) -> bool:
  """Return whether this is a number type of JAX that NumPy does not have, such as bfloat16."""
  return dtype.isbuiltin == 2


def _restore(path: str | os.PathLike[str], header: dict[str, Any], leaves: dict[str, Any], like: Any) -> Any:
  """Return a tree like `like`, or raise an error that names the first leaf that differs."""
  if header["kind"] != type(like).__name__:
    raise ValueError(f"{path} holds a {header['kind']}, but like is a {type(like).__name__}")
  if _is_registered(like):
    static = json.loads(json.dumps(_KINDS[header["kind"]].describe(like)))
    if static != header["static"]:
      raise ValueError(f"{path} holds a {header['kind']} with {header['static']}, but like has {static}")
  named = _named_leaves(like)
  found = []
  for name, template in named:
    if name not in leaves:
      raise ValueError(f"{path} lacks the leaf {name!r} of like; it holds {', '.join(leaves) or 'none'}")
    try:
      found.append(_as_like(leaves[name], template))
    except ValueError as error:
      raise ValueError(f"{path}: leaf {name!r} {error}") from error
  more = [name for name in leaves if name not in dict(named)]
  if more:
    raise ValueError(f"{path} holds the leaf {more[0]!r}, which like does not have")
  return jax.tree.unflatten(jax.tree.structure(like), found)


def _as_like(value: Any, template: Any) -> Any:
  """Return the leaf in the type of array that `template` has."""
  if not hasattr(template, "dtype") or not hasattr(value, "dtype"):
    if type(value) is not type(template):
      raise ValueError(f"is {_describe(value)}, but in like it is {_describe(template)}")
    return value
  if value.dtype != template.dtype or value.shape != template.shape:
    raise ValueError(f"is {_describe(value)}, but in like it is {_describe(template)}")
  if isinstance(template, np.generic):
    return value[()]
  if isinstance(template, np.ndarray):
    return value
  array = jnp.asarray(value)
  if array.dtype != value.dtype:
    raise ValueError(f"is {_describe(value)}, which JAX holds only with jax_enable_x64")
  return array


def _describe(leaf: Any) -> str:
  return f"{leaf.dtype}{list(leaf.shape)}" if hasattr(leaf, "dtype") else f"a Python {type(leaf).__name__}"
