"""A caller's functions as pytrees: numbers bound to them are leaves, and the functions themselves static."""

import inspect
from typing import Any

import jax
from jax.tree_util import Partial

from last_jax import identity


def as_pure_function(name: str, function: Any, arguments: tuple[str, ...]) -> Any:
  """Make a pytree of a function: its numbers are leaves, the function itself is static and compared by structure.

  Args:
    name: the argument's name, for messages.
    function: a plain function, which has no numbers; a `jax.tree_util.Partial`, whose bound arguments are leaves; or
      any other callable that is a pytree, as a registered dataclass with `__call__`.
    arguments: the names of the positional arguments that it will be called with.

  Raises:
    TypeError: it cannot be called with these arguments.
  """
  shown = ", ".join(arguments)
  if not callable(function):
    raise TypeError(f"{name} must be a function of ({shown}), but it is a {type(function).__name__}")
  try:
    inspect.signature(function).bind(*arguments)
  except TypeError as error:
    raise TypeError(f"{name} must be a function of ({shown}): {error}") from None
  except ValueError:
    pass  # Some built-in functions have no signature.
  if isinstance(function, Partial):
    return Partial(identity.Static(function.func), *function.args, **function.keywords)
  is_leaf = jax.tree_util.all_leaves((function,))
  return Partial(identity.Static(function)) if is_leaf else function
