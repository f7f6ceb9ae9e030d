"""Fields of NamedTuples have docstrings, for `help` and for the documentation."""

import importlib
import pathlib
import pkgutil
import subprocess
import sys
from typing import NamedTuple

import pytest

import last_jax as last
from last_jax import fields
from tests.test_api_pages import NAMED, find


def public_tuples():
  """The NamedTuples of the pages of docs/api, and those that public modules name in `__all__`, by name."""
  modules = [last, last.base]
  for module in (getattr(last, name) for name in last.__all__):
    if getattr(module, "__path__", None):  # Its submodules too: what they return has a class of theirs.
      inner = pkgutil.iter_modules(module.__path__, f"{module.__name__}.")
      modules += [module, *(importlib.import_module(each.name) for each in inner)]
  found = {}
  for module in modules:
    for name in getattr(module, "__all__", ()):
      value = getattr(module, name)
      found[name] = value
  found |= {path: find(path) for path in NAMED}
  return {name: value for name, value in found.items() if isinstance(value, type) and hasattr(value, "_fields")}


def test_no_public_field_is_an_alias_for_a_number():
  found = public_tuples()
  assert {"Dataset", "Lesson", "Records", "Result", "State", "Log", "TeachingSet", "DistillLog", "Reach"} <= set(found)
  for name, cls in found.items():
    for field in cls._fields:
      text = getattr(cls, field).__doc__
      assert text, f"{name}.{field}"
      assert not text.startswith("Alias for field"), f"{name}.{field}"


def test_fields_have_the_words_of_the_section():
  @fields.documented
  class Pair(NamedTuple):
    """Two numbers.

    Attributes:
      one, two: `[n]` both
        of them.
      three: the last: `{a: b}`.
    """

    one: int
    two: int
    three: int

  docs = [getattr(Pair, field).__doc__ for field in Pair._fields]
  assert docs == ["`[n]` both of them.", "`[n]` both of them.", "the last: `{a: b}`."]
  assert Pair(1, 2, 3).three == 3


@pytest.mark.parametrize(
  "text", ["No section.", "Attributes:\n  one: first.", "Attributes:\n  one, two: both.\n  other: none such."]
)
def test_a_field_without_words_and_words_without_a_field_are_refused(text):
  class Pair(NamedTuple):
    one: int
    two: int

  Pair.__doc__ = text
  with pytest.raises(TypeError, match="docstring of Pair must name its fields under Attributes"):
    fields.documented(Pair)


def test_nothing_is_asked_for_where_python_leaves_docstrings_out():
  code = """
import sys, typing
sys.path.append(sys.argv[1])
import fields

@fields.documented
class Pair(typing.NamedTuple):
  'No section.'
  one: int

sys.exit(Pair(1).one - 1)
"""
  subprocess.run([sys.executable, "-OO", "-c", code, pathlib.Path(fields.__file__).parent], check=True)
