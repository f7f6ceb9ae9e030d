"""Identity by structure: functions with equal code and equal contents share compiled programs.

JAX reuses a compiled program when the static parts of its arguments are equal. A Python function equals only itself, so
a lambda, or `optax.sgd(0.1)`, that is made again would compile again. Here a function is compared by its code, its
defaults, the contents of its closure and the values of the global variables that it reads, recursively.

Compared by value: numbers, strings, tuples, lists, dicts, sets, dataclasses and Flax modules (by their fields), other
objects that hash by value, `functools.partial`, and arrays of up to `MAX_ARRAY_BYTES`.

Compared by identity, because structure says too little or costs too much:
- larger arrays: close over the same array, or pass it as an argument;
- modules, classes, methods as attributes of their class, functions of another module, and wrapped functions (`jax.jit`,
  `jax.custom_jvp`). Attributes that code reads from a module or class, as `config.scale`, are compared by value;
- any other object, which may change in place. A function that reaches one is itself compared by identity, as JAX does:
  made again, it compiles again, and learners warn of it (`remade.py`). Give such an object value equality (a frozen
  dataclass) to avoid that.

Contents are read once, when the function is first compared. Changing them in place afterwards has no effect on programs
that are already compiled: make the function again.
"""

import dataclasses
import dis
import functools
import hashlib
import inspect
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

MAX_ARRAY_BYTES = 1 << 16

_T = TypeVar("_T")


class Static:
  """A static value that hashes and compares by structure: for `static_argnums`, `jax.tree_util.Partial` and caches."""

  __slots__ = ("_hash", "_key", "value")

  def __init__(self, value: Any):
    self.value: Any = value
    self._key: Hashable = None
    self._hash: int | None = None

  @property
  def key(self) -> Hashable:
    """The value's structural key, computed once."""
    if self._key is None:
      self._key = key_of(self.value)
    return self._key

  def __call__(self, *args: Any, **kwargs: Any) -> Any:
    """Call the value."""
    return self.value(*args, **kwargs)

  def __eq__(self, other: object) -> bool:
    return self is other or (isinstance(other, Static) and hash(self) == hash(other) and self.key == other.key)

  def __hash__(self) -> int:
    if self._hash is None:
      self._hash = hash(self.key)
    return self._hash

  def __repr__(self) -> str:
    return f"Static({self.value!r})"


class Structural:
  """Base of frozen dataclasses (declared with `eq=False`) that compare by structure.

  A field declared with `compare=False`, such as a name, takes no part.
  """

  def __eq__(self, other: object) -> bool:
    return self is other or (type(self) is type(other) and self._structure == other._structure)

  def __hash__(self) -> int:
    return hash(self._structure)

  @functools.cached_property
  def _structure(self) -> Static:
    return Static(tuple(getattr(self, field.name) for field in _compared(self)))


def register_dataclass(cls: type[_T]) -> type[_T]:
  """Register a frozen dataclass as a pytree whose static fields are compared by structure.

  Otherwise as `jax.tree_util.register_dataclass`: fields with `metadata={"static": True}` are static, all others are
  children. A static field that is also declared with `compare=False`, such as a name, survives flattening but is not
  part of the tree's structure: trees that differ in it share compiled programs. (A tree that such a program returns has
  the name that the program was compiled with.)
  """
  fields = dataclasses.fields(cls)  # type: ignore[arg-type]
  static = {field.name: field.compare for field in fields if field.metadata.get("static")}
  compared = tuple(name for name, compare in static.items() if compare)
  ignored = tuple(name for name, compare in static.items() if not compare)
  data = tuple(field.name for field in fields if field.name not in static)
  keys = tuple(jax.tree_util.GetAttrKey(name) for name in data)

  def flatten(instance: Any) -> tuple[tuple[Any, ...], "_Settings"]:
    attributes = instance.__dict__
    settings = attributes.get("_settings")
    if settings is None:
      values = Static(tuple(attributes[name] for name in compared))
      # Stored in the instance: its key is then computed once, and not on every call of a compiled function.
      settings = attributes["_settings"] = _Settings(values, tuple(attributes[name] for name in ignored))
    return tuple([attributes[name] for name in data]), settings

  def flatten_with_keys(instance: Any) -> tuple[Iterator[tuple[Any, Any]], "_Settings"]:
    leaves, settings = flatten(instance)
    return zip(keys, leaves, strict=True), settings

  def unflatten(settings: "_Settings", leaves: Any) -> Any:
    # Not through __init__: JAX rebuilds instances around tracers and placeholders, which cannot be checked.
    instance = object.__new__(cls)
    instance.__dict__.update(zip(compared, settings.compared.value, strict=True))
    instance.__dict__.update(zip(ignored, settings.ignored, strict=True))
    instance.__dict__.update(zip(data, leaves, strict=True))
    instance.__dict__["_settings"] = settings
    return instance

  jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
  return cls


class _Settings:
  """The static fields of a registered dataclass."""

  __slots__ = ("compared", "ignored")

  def __init__(self, compared: Static, ignored: tuple[Any, ...]):
    self.compared, self.ignored = compared, ignored

  def __eq__(self, other: object) -> bool:
    return self is other or (isinstance(other, _Settings) and self.compared == other.compared)

  def __hash__(self) -> int:
    return hash(self.compared)

  def __repr__(self) -> str:
    return repr((*self.ignored, *self.compared.value))


def key_of(value: Any) -> Hashable:
  """Return a hashable key that is equal for values of equal structure: see the module's docstring."""
  return _Walk().key(value)


class Identity:
  """An object compared by identity, as part of a key. The reference keeps its id from being used again."""

  __slots__ = ("value",)

  def __init__(self, value: Any):
    self.value: Any = value

  def __eq__(self, other: object) -> bool:
    return isinstance(other, Identity) and self.value is other.value

  def __hash__(self) -> int:
    return id(self.value)


class _MayChangeError(Exception):
  """Raised where a function reaches an object that may change in place."""


_FIXED = (types.ModuleType, type, types.BuiltinFunctionType, np.ufunc, jax.core.Tracer, jax.Array, np.ndarray)


class _Walk:
  """One traversal of a value. Functions are numbered in the order of their visits, so that recursive ones end."""

  def __init__(self) -> None:
    self.seen: dict[int, int] = {}  # From the ids of functions to their numbers.
    self.scopes: list[dict[str, Any] | None] = []  # The globals of the functions that the current value is inside of.

  def key(self, value: Any) -> Hashable:
    kind = type(value)
    if value is None or kind in (bool, int, str, bytes, types.CodeType):
      return kind, value
    if kind in (float, complex):
      return kind, repr(value)  # NaN differs from itself, and -0.0 equals 0.0: their texts do not.
    if isinstance(value, Static):
      return self.key(value.value)
    if kind is types.FunctionType:
      if self._is_imported(value):
        return Identity(value)
      return self._inside(value, value.__globals__, self._function)
    if isinstance(value, functools.partial):
      return self._inside(value, None, lambda f: (kind, self._all((f.func, f.args, f.keywords))))
    if kind is types.MethodType:
      return kind, Identity(value.__func__), self.key(value.__self__)
    if kind in (tuple, list) or (isinstance(value, tuple) and hasattr(value, "_fields")):
      return kind, self._all(value)
    if kind is dict:
      return kind, self._all(value), self._all(value.values())
    if kind in (set, frozenset):
      return kind, frozenset(map(self.key, value))
    if dataclasses.is_dataclass(kind) and kind.__eq__ is not object.__eq__:
      return kind, self._all(getattr(value, field.name) for field in _compared(value))
    return self._array(value) or self._opaque(value)

  def _all(self, values: Any) -> tuple[Hashable, ...]:
    return tuple(map(self.key, values))

  def _inside(self, value: Any, scope: dict[str, Any] | None, key: Callable[[Any], Hashable]) -> Hashable:
    """The key of a function; of the outermost one by identity, where anything inside it may change."""
    count = len(self.seen)
    self.scopes.append(scope)
    try:
      return key(value)
    except _MayChangeError:
      if len(self.scopes) > 1:
        raise
      self.seen = dict(list(self.seen.items())[:count])  # Nothing of this function is part of the key.
      return Identity(value)
    finally:
      self.scopes.pop()

  def _is_imported(self, function: types.FunctionType) -> bool:
    """Whether this is a module's function that is used in another module."""
    local = function.__closure__ is not None or "<" in function.__qualname__
    return bool(self.scopes) and not local and self.scopes[-1] is not function.__globals__

  def _function(self, function: types.FunctionType) -> Hashable:
    if id(function) in self.seen:
      return types.FunctionType, self.seen[id(function)]
    self.seen[id(function)] = len(self.seen)
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return (
      types.FunctionType,
      function.__code__,
      Identity(function.__globals__),
      self._all((function.__defaults__, function.__kwdefaults__)),
      tuple(map(self._cell, cells.values())),
      tuple(self._read(function.__globals__, cells, *names) for names in _reads(function.__code__)),
    )

  def _cell(self, cell: types.CellType) -> Hashable:
    try:
      contents = cell.cell_contents
    except ValueError:  # Not assigned yet.
      return ()
    return self.key(contents)

  def _read(self, scope: dict[str, Any], cells: dict[str, types.CellType], name: str, *attributes: str) -> Hashable:
    """The key of a variable that code reads, with attributes that it reads from it in turn."""
    if name in cells:
      try:
        value = cells[name].cell_contents
      except ValueError:
        return ()
    elif name in scope:
      value = scope[name]
    else:
      return ()  # A builtin, or a variable of an enclosing function that runs later.
    if not attributes or not isinstance(value, (types.ModuleType, type)):
      return () if name in cells else self.key(value)
    owner = Identity(value)
    for attribute in attributes:
      if isinstance(value, (types.ModuleType, type)):
        value = inspect.getattr_static(value, attribute, None)  # Runs no code of the owner.
    try:
      return owner, Identity(value) if callable(value) else self.key(value)
    except _MayChangeError:
      return owner, Identity(value)

  def _array(self, value: Any) -> Hashable:
    """The key of a small array of numbers; None for anything else."""
    if isinstance(value, jax.Array):
      numbers = not jnp.issubdtype(value.dtype, jax.dtypes.extended)
      readable = numbers and not isinstance(value, jax.core.Tracer) and value.is_fully_addressable
    else:
      readable = isinstance(value, (np.generic, np.ndarray)) and not value.dtype.hasobject
    if not readable or value.nbytes > MAX_ARRAY_BYTES:
      return None
    place = (value.weak_type, value.sharding) if isinstance(value, jax.Array) else ()
    digest = hashlib.blake2b(np.asarray(value).tobytes()).digest()
    return type(value), str(value.dtype), value.shape, digest, place

  def _opaque(self, value: Any) -> Hashable:
    kind = type(value)
    hash_of: Any = kind.__hash__
    if hash_of is not None and hash_of is not object.__hash__ and not isinstance(value, _FIXED):
      try:
        hash(value)
      except TypeError:  # It holds something that does not hash.
        pass
      else:
        return kind, value
    if not self.scopes or kind is object or isinstance(value, _FIXED) or hasattr(value, "__wrapped__"):
      return Identity(value)
    raise _MayChangeError


_LOADS = (
  "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_GLOBALS", "LOAD_FROM_DICT_OR_DEREF"
)  # fmt: skip


def _compared(instance: Any) -> list[Any]:
  return [field for field in dataclasses.fields(instance) if field.compare]


@functools.lru_cache(maxsize=4096)
def _reads(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
  """The variables from outside that this code reads, or code inside it: a name and the attributes read from it."""
  found: dict[tuple[str, ...], None] = {}
  names: tuple[str, ...] = ()
  for step in dis.get_instructions(code):
    if names and step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
      names = (*names, step.argval)
    elif step.opname != "EXTENDED_ARG":  # The prefix of an instruction.
      found |= {names: None}
      names = (step.argval,) if step.opname in _LOADS else ()
  for constant in code.co_consts:
    if isinstance(constant, types.CodeType):
      found |= dict.fromkeys(_reads(constant))
  return tuple(filter(None, found))
