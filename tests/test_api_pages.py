"""The pages of docs/api name every public function and class, and nothing that is not there."""

import importlib
import inspect
import pathlib
import re

import last_jax as last

FOLDER = pathlib.Path(__file__).parents[1] / "docs" / "api"
TEXT = "\n".join(path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md"))
NAMED = re.findall(r"^\.\. auto(?:function|class):: last_jax\.([\w.]+)$", TEXT, re.MULTILINE)


def find(path):
  value = last
  for name in path.split("."):
    value = getattr(value, name) if hasattr(value, name) else importlib.import_module(f"{value.__name__}.{name}")
  return value


def test_every_name_on_the_pages_is_there_and_has_a_docstring():
  assert len(NAMED) > 100
  for path in NAMED:
    assert inspect.getdoc(find(path)), path


def public(module):
  """Functions and classes of `__all__`, or else those that are defined in the module, without checks of arguments."""
  own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__]
  names = getattr(module, "__all__", [name for name in own if not name.startswith(("_", "check_", "is_", "as_"))])
  return {f"{module.__name__}.{name}": getattr(module, name) for name in names if callable(getattr(module, name))}


def test_every_public_function_and_class_has_its_place():
  documented = [find(path) for path in NAMED]
  documented += [loss for name, loss in vars(last.losses).items() if f"| `{name}` |" in TEXT]
  for module in [last, *(getattr(last, name) for name in last.__all__ if inspect.ismodule(getattr(last, name)))]:
    missing = [path for path, value in public(module).items() if not any(value is each for each in documented)]
    assert not missing
