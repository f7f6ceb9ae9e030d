"""A warning where functions that are made again compile again: `identity.py` says which are compared by identity."""

import functools
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from last_jax import identity

_MOST = 4096  # Structures to remember.

# From structures to references to the objects last seen in them, the tree, and whether it was said.
_seen: dict[Any, tuple[list[Callable[[], Any]], Any, bool]] = {}


def warn_if_remade(name: str, value: Any, tree: Any = None, *, stacklevel: int = 2) -> None:
  """Warn, once for each structure, if a value differs from an earlier one only in objects compared by identity.

  A learner made of it compiles everything again, although nothing but the objects' identities may have changed.

  Args:
    name: the argument's name.
    value: a function, a module, an optimizer.
    tree: the structure of a pytree that belongs to it, in which JAX itself compares functions by identity; or None.
    stacklevel: as for `warnings.warn`.
  """
  found: list[Any] = []
  structure = name, _without_identities(identity.key_of(value), found)
  if any(isinstance(part, jax.core.Tracer) for part in found):
    return  # Compiled as a part of something else.
  references = list(map(_reference, found))
  before, tree_before, said = _seen.get(structure, (references, tree, False))
  changed = [part for part, last in zip(found, before, strict=True) if last() is not part]
  remade = bool(changed) or tree != tree_before
  if len(_seen) >= _MOST:
    _seen.clear()
  _seen[structure] = references, tree, said or remade
  if said or not remade:
    return
  if not changed:
    what = "functions in its static fields, whose structure is equal, are compared by identity by JAX"
  elif changed[0] is value:
    what = "it is compared by identity"
  else:
    what = f"its part, a {_describe(changed[0])}, is compared by identity"
  warnings.warn(
    f"{name} was made again and will be compiled again: {what}. Make it once and use it again, or let it hold nothing "
    "but what is compared by value: numbers, tuples, functions, frozen dataclasses, small arrays (last_jax.identity)",
    stacklevel=stacklevel + 1,
  )


def _reference(value: Any) -> Callable[[], Any]:
  """Return a function that gives the object, or None once it is gone. An id could then belong to another object."""
  try:
    return weakref.ref(value)
  except TypeError:  # A dict of global variables, say: kept.
    return lambda: value


def _without_identities(key: Any, found: list[Any]) -> Any:
  """Return a structural key with what stays of objects compared by identity; `found` receives these objects."""
  if isinstance(key, identity.Identity):
    found.append(key.value)
    return _kind(key.value)
  if type(key) is tuple:
    return tuple(_without_identities(part, found) for part in key)
  return key


def _kind(value: Any) -> Any:
  """What an object and one that is made again in its place have in common."""
  if isinstance(value, types.FunctionType):
    return types.FunctionType, value.__code__
  if isinstance(value, functools.partial):
    return type(value), _kind(value.func)
  if isinstance(value, (np.ndarray, jax.Array)):
    return type(value), value.shape, str(value.dtype)
  if isinstance(value, (type, types.ModuleType, dict)):
    return id(value)  # Other classes, modules and global variables are other code.
  wrapped = getattr(value, "__wrapped__", None)
  return type(value), getattr(value, "__name__", None), None if wrapped is None else _kind(wrapped)


def _describe(value: Any) -> str:
  if isinstance(value, (np.ndarray, jax.Array)):
    return f"{type(value).__name__} of shape {list(value.shape)}"
  return f"{type(value).__name__} {getattr(value, '__qualname__', '')}".strip()
