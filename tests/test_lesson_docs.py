"""docs/lessons.md as typed: the first block writes a file, and the others read it where last_jax and JAX are not."""

import os
import pathlib
import subprocess
import sys

import pytest

import last_jax as last
from tests.test_curriculum import good, make_problem
from tests.test_readme import RUN, blocks

ROOT = pathlib.Path(__file__).parents[1]
TEXT = (ROOT / "docs" / "lessons.md").read_text(encoding="utf-8")
WITHOUT = "import sys\nsys.modules.update(dict.fromkeys(('jax', 'jaxlib', 'last_jax', 'ml_dtypes')))\n"


def run(code, given, folder):
  done = subprocess.run(
    [sys.executable, "-c", code],
    input=repr(given),
    cwd=folder,
    env=os.environ | {"PYTHONPATH": str(ROOT)},
    capture_output=True,
    text=True,
    check=False,
  )
  assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_the_page_runs_as_typed(tmp_path):
  first, *others = [("docs/lessons.md", block.line, block.code) for block in blocks(TEXT) if block.language == "python"]
  assert len(others) >= 4
  run(RUN, [first], tmp_path)
  run(WITHOUT + RUN, others, tmp_path)


def test_reading_takes_five_lines():
  second = [block.code for block in blocks(TEXT) if block.language == "python"][1]
  assert len([line for line in second.splitlines() if line.strip()]) == 5


def test_every_array_and_fact_of_a_file_is_on_the_page(tmp_path):

  problem = make_problem()
  params = problem.target
  curriculum = last.Curriculum(problem, good(), init=params, final=params, target=params, examples=True)
  parts = [name.partition("/")[0] for name in curriculum.arrays]
  inner = {name for part in ("loss", "optimizer", "model", "inputs", "pool") for name in curriculum.facts[part]}
  for name in {*parts, *curriculum.facts, *inner} - {"of", "start"}:
    assert f"`{name}" in TEXT, name
