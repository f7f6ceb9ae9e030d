"""Settings of the documentation: `sphinx-build -W --keep-going -b html docs OUT`, offline."""

import inspect
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # What is documented is what stands beside this file.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))  # In notebooks too.

import last_jax  # noqa: E402

project = "last_jax"
author = "The authors of last_jax"
version = release = last_jax.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "force"  # Outputs are those of this build.
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_in_temp = True
nb_execution_timeout = 900
nb_ipywidgets_js = {}  # There are no widgets, and nothing is loaded from elsewhere.
html_theme = "furo"
html_title = f"last_jax {version}"
html_show_copyright = False

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # Signatures stay short: docstrings state the shapes.
autodoc_preserve_defaults = True
napoleon_use_ivar = True  # Attributes are a list within their class.
napoleon_use_rtype = False
napoleon_attr_annotations = False


def literal(text):
  """Return a line of a docstring, which is plain text, as reStructuredText that shows the same letters."""
  parts = re.split(r"(`[^`]+`)", text)
  for number, part in enumerate(parts):
    if number % 2:  # Between backticks. Letters that touch the end need an escaped space.
      parts[number] = f"`{part}`" + "\\ " * parts[number + 1][:1].isalnum()
    else:
      parts[number] = re.sub(r"([\\*|`]|_(?=\W|$))", r"\\\1", part)
  return "".join(parts)


def as_restructured_text(app, what, name, obj, options, lines):
  """Escape what has a meaning in reStructuredText, and mark indented code as such."""
  docstring, after = list(lines), []
  code = False
  for number, line in enumerate(docstring):
    before = docstring[number - 1] if number else ""
    indent = len(line) - len(line.lstrip())
    if code and line.strip() and indent < code:
      code = False
    if not code and indent >= 4 and not before.strip() and after:
      code = indent
      after += [" " * (indent - 2) + "::", ""]
    after.append(line if code else literal(line))
  lines[:] = after


def skip_fields(app, what, name, obj, skip, options):
  """Leave out fields of NamedTuples: their class lists them."""
  return True if type(obj).__name__ == "_tuplegetter" or inspect.ismemberdescriptor(obj) else None


def setup(app):
  """Connect both with autodoc; before napoleon, which has priority 500."""
  app.connect("autodoc-process-docstring", as_restructured_text, priority=400)
  app.connect("autodoc-skip-member", skip_fields)
