"""The README as typed: its Python blocks run, in order, and its commands have the flags that they are given.

A block that cannot be run has a comment in the line before it that says why:  <!-- not run: REASON -->
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
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")

# Runs blocks, given as (line, code), in one namespace, as a user does who types them one after the other.
RUN = """
import ast, sys
namespace = {"__name__": "__main__"}
for line, code in ast.literal_eval(sys.stdin.read()):
  print(f"README.md, block at line {line}", flush=True)
  exec(compile("\\n" * line + code, "README.md", "exec"), namespace)
"""


class Block(NamedTuple):
  line: int  # Of its fence, from 1.
  language: str
  code: str
  not_run: str | None  # The reason.


def blocks(text):
  pattern = r"(?:^<!-- not run: (?P<why>.+?) -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$"
  for match in re.finditer(pattern, text, re.MULTILINE | re.DOTALL):
    line = text.count("\n", 0, match.start("language")) + 1
    yield Block(line, match["language"], match["code"], match["why"])


def commands(text):
  """Every `python -m launch.NAME FLAGS` in a shell block or within a sentence, as (line, words)."""
  shell = [(block.line, line) for block in blocks(text) if not block.language for line in block.code.splitlines()]
  inline = [
    (text.count("\n", 0, match.start()) + 1, match[1]) for match in re.finditer(r"(?<!`)`(python -m [^`]+)`(?!`)", text)
  ]
  for line, command in shell + inline:
    for part in command.split("&&"):
      words = shlex.split(part)
      if words[:2] == ["python", "-m"] and words[2].startswith("launch."):
        yield line, words


def known_flags(module):
  return importlib.import_module(module).make_flags()


COMMANDS = list(commands(TEXT))


@pytest.mark.slow
def test_python_blocks_run_as_typed(tmp_path):
  run = [(block.line, block.code) for block in blocks(TEXT) if block.language == "python" and not block.not_run]
  result = subprocess.run(
    [sys.executable, "-c", RUN],
    input=repr(run),
    cwd=tmp_path,
    env=os.environ | {"PYTHONPATH": str(ROOT)},
    capture_output=True,
    text=True,
    timeout=1800,
  )
  assert result.returncode == 0, result.stdout + result.stderr


def test_python_blocks_are_there_and_can_be_read():
  found = [block for block in blocks(TEXT) if block.language == "python"]
  assert TEXT.count("```python\n") == len(found) >= 8
  for block in found:
    compile(block.code, f"README.md, block at line {block.line}", "exec")


@pytest.mark.parametrize(("line", "words"), COMMANDS, ids=[f"line {line}" for line, _ in COMMANDS])
def test_commands_have_the_flags_they_are_given(line, words):
  flags = [word for word in words[3:] if word != "--help"]  # Every command has that one.
  rest = known_flags(words[2])([words[2], *flags])  # Raises where there is no such flag, or no such value.
  assert rest[1:] == [], f"README.md:{line}: {rest[1:]} are no flags"


def test_a_fault_in_a_block_or_a_command_would_be_found(tmp_path):
  text = "<!-- not run: no such file -->\n```python\nopen('missing')\n```\n\n```python\nmissing\n```\n"
  first, second = blocks(text)
  assert (first.line, first.not_run, second.line, second.not_run) == (2, "no such file", 6, None)
  result = subprocess.run(
    [sys.executable, "-c", RUN], input=repr([(second.line, second.code)]), capture_output=True, text=True, cwd=tmp_path
  )
  assert result.returncode != 0
  assert 'File "README.md", line 7' in result.stderr
  (_, words), (_, inline) = commands(
    "```\nx && python -m launch.teach --dataset=a\n```\nas `python -m launch.teach --b`"
  )
  assert words == ["python", "-m", "launch.teach", "--dataset=a"]
  with pytest.raises(Exception, match="Unknown command line flag 'b'"):
    known_flags("launch.teach")(inline[2:])
