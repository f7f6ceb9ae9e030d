"""Importing the tools costs no more than importing the library."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]


def test_tools_import_drawing_libraries_only_when_they_draw():
  code = (
    "import sys, last_jax; before = set(sys.modules); import last_jax.tools, last_jax.tools.page, "
    "last_jax.tools.pictures; new = {name.split('.')[0] for name in set(sys.modules) - before}; "
    "heavy = new & {'matplotlib', 'plotly', 'scipy', 'rich', 'pandas'}; assert not heavy, heavy"
  )
  subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
