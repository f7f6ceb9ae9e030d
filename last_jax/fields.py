"""Docstrings for the fields of NamedTuples, so that `help` shows more than "Alias for field number 0"."""

import inspect
import re
import sys
from typing import TypeVar

_T = TypeVar("_T")


def documented(cls: type[_T]) -> type[_T]:
  """Give each field of a NamedTuple the words that its class's docstring has for it, under "Attributes:".

  Raises:
    TypeError: a field has none there, or the section names something that is no field.
  """
  if sys.flags.optimize > 1:  # With -OO Python leaves docstrings out.
    return cls
  words = attributes(cls.__doc__ or "")
  fields: tuple[str, ...] = cls._fields  # type: ignore[attr-defined]
  if set(words) != set(fields):
    differ = sorted(set(words) ^ set(fields))
    raise TypeError(
      f"the docstring of {cls.__name__} must name its fields under Attributes, but these differ: {differ}"
    )
  for field in fields:
    getattr(cls, field).__doc__ = words[field]
  return cls


def attributes(docstring: str) -> dict[str, str]:
  """Return the words of each name under "Attributes:", the last section of a docstring."""
  _, _, section = inspect.cleandoc(docstring).partition("Attributes:\n")
  words: dict[str, str] = {}
  for entry in re.split(r"\n(?=  \w)", "\n" + section)[1:]:
    names, _, text = entry.partition(":")
    words |= {name.strip(): " ".join(text.split()) for name in names.split(",")}
  return words
