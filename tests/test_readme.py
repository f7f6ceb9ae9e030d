"""The README and the pages of docs/ as typed: Python blocks run, in order, and commands have the flags they are given.

Cells of notebooks, `{code-cell}`, are run when the documentation is built, and only read here.

A page is typed from its beginning in a new session: it shares no name with another. A block that cannot be run has a
comment in the line before it that says why:  <!-- not run: REASON -->
"""

import importlib
import os
import pathlib
import re
import shlex
import subprocess
import sys
from typing import NamedTuple

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PAGES = {
  path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
  for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
ELSEWHERE = ["docs/lessons.md"]  # Its blocks are run by test_lesson_docs.py: where JAX is not.
TOGETHER = 5  # Pages that share a process, and what it has compiled, but no names.

# Runs blocks, given as (page, line, code), those of a page in one namespace, as a user types them one after the other.
RUN = """
import ast, sys
namespaces = {}
for page, line, code in ast.literal_eval(sys.stdin.read()):
  print(f"{page}, block at line {line}", flush=True)
  namespace = namespaces.setdefault(page, {"__name__": "__main__"})
  exec(compile("\\n" * line + code, page, "exec"), namespace)
"""


class Block(NamedTuple):
  line: int  # Of its fence, from 1.
  language: str
  code: str
  not_run: str | None  # The reason.


def blocks(text):
  pattern = r"(?:^<!-- not run: (?P<why>.+?) -->\n)?^```(?P<language>[\w{}-]*)\n(?P<code>.*?)^```$"
  for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
    line = text.count("\n", 0, match.start("language")) + 1
    yield Block(line, match["language"], match["code"], match["why"])


def commands(text):
  """Every `python -m launch.NAME FLAGS` in a shell block or within a sentence, as (line, words).

  Installed commands, `last-NAME FLAGS` in a shell block, are returned as those modules.
  """
  shell = [(block.line, line) for block in blocks(text) if not block.language for line in block.code.splitlines()]
  inline = [
    (text.count("\n", 0, match.start()) + 1, match[1]) for match in re.finditer(r"(?<!`)`(python -m [^`]+)`(?!`)", text)
  ]
  for line, command in shell + inline:
    for part in command.split("&&"):
      words = shlex.split(part)
      if words and words[0].startswith("last-"):
        words = ["python", "-m", "launch." + words[0].removeprefix("last-").replace("-", "_"), *words[1:]]
      if words[:2] == ["python", "-m"] and words[2].startswith("launch."):
        yield line, words


def known_flags(module):
  return importlib.import_module(module).make_flags()


def typed(page):
  """The blocks of a page that are run, as (page, line, code)."""
  run = [block for block in blocks(PAGES[page]) if block.language == "python" and not block.not_run]
  return [(page, block.line, block.code) for block in run]


COMMANDS = [(page, line, words) for page, text in PAGES.items() for line, words in commands(text)]
TYPED = [page for page in PAGES if page not in ELSEWHERE and typed(page)]
WITH_TORCH = [page for page in TYPED if "import torch" in PAGES[page]]  # It is not among the needs of the tests.
PLAIN = [page for page in TYPED if page not in WITH_TORCH]
GROUPS = [PLAIN[start : start + TOGETHER] for start in range(0, len(PLAIN), TOGETHER)] + [WITH_TORCH]


@pytest.mark.slow
@pytest.mark.parametrize("pages", GROUPS, ids=" ".join)
def test_python_blocks_run_as_typed(pages, tmp_path):
  if pages == WITH_TORCH:
    pytest.importorskip("torch")
  result = subprocess.run(
    [sys.executable, "-c", RUN],
    input=repr([block for page in pages for block in typed(page)]),
    cwd=tmp_path,
    env=os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"},
    capture_output=True,
    text=True,
    timeout=1800,
  )
  assert result.returncode == 0, result.stdout + result.stderr


def test_python_blocks_are_there_and_can_be_read():
  assert len(list(blocks(PAGES["README.md"]))) == 3
  assert len(TYPED) >= 10
  for page, text in PAGES.items():
    found = [block for block in blocks(text) if block.language == "python"]
    assert text.count("```python\n") == len(found), page
    cells = [block for block in blocks(text) if block.language == "{code-cell}"]
    assert len(cells) == text.count("{code-cell}")
    assert bool(cells) == page.startswith("docs/notebooks/")
    for block in found + cells:
      compile(block.code, f"{page}, block at line {block.line}", "exec")


def test_the_readme_is_short_and_its_commands_are_those_that_the_build_runs():
  text = PAGES["README.md"]
  assert len(text.split()) < 900  # A page and a half.
  assert len(re.findall(r"^pip install ", text, re.MULTILINE)) == 2
  assert "Then `python -m launch.reproduce` " in text
  build = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
  assert '"${#commands[@]}" -ne 2' in build
  assert "\npython -m launch.reproduce\n" in build


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_to_files(page):
  for link in re.findall(r"\]\((?!\w+://|#)([^)\s#]+)", PAGES[page]):
    assert (ROOT / page).parent.joinpath(link).is_file(), f"{page}: {link}"


@pytest.mark.parametrize(("page", "line", "words"), COMMANDS, ids=[f"{page} line {line}" for page, line, _ in COMMANDS])
def test_commands_have_the_flags_they_are_given(page, line, words):
  flags = [word for word in words[3:] if word not in ("--help", "--list")]  # Every command has that one.
  rest = known_flags(words[2])([words[2], *flags])  # Raises where there is no such flag, or no such value.
  assert rest[1:] == [], f"{page}:{line}: {rest[1:]} are no flags"


def test_a_fault_in_a_block_or_a_command_would_be_found(tmp_path):
  text = "<!-- not run: no such file -->\n```python\nopen('missing')\n```\n\n```python\nmissing\n```\n"
  first, second = blocks(text)
  assert (first.line, first.not_run, second.line, second.not_run) == (2, "no such file", 6, None)
  given = repr([("README.md", second.line, second.code)])
  result = subprocess.run([sys.executable, "-c", RUN], input=given, capture_output=True, text=True, cwd=tmp_path)
  assert result.returncode != 0
  assert 'File "README.md", line 7' in result.stderr
  (_, words), (_, inline) = commands(
    "```\nx && python -m launch.teach --dataset=a\n```\nas `python -m launch.teach --b`"
  )
  assert words == ["python", "-m", "launch.teach", "--dataset=a"]
  with pytest.raises(Exception, match="Unknown command line flag 'b'"):
    known_flags("launch.teach")(inline[2:])
