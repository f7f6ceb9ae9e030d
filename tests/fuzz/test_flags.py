"""Odd values of every flag of every command: accepted, or one line that names the flag, and exit status 2.

Commands stop where computing would begin. `pytest -m fuzz` tries every odd value of every flag, random text, and
several odd flags together; the ordinary run has some values of each flag.
"""

import collections
import re

import hypothesis
import jax
import pytest
from hypothesis import strategies

from launch.command import UsageError, run_command
from launch.flags import Flags
from tests.fuzz import commands

COMMANDS = commands.commands()


@pytest.fixture(autouse=True)
def _nothing_is_computed(monkeypatch, tmp_path):
  monkeypatch.chdir(tmp_path)
  commands.prepare_folder(tmp_path)
  commands.stop_before_computing(monkeypatch)
  with jax.debug_nans(False):
    yield


def check(name, cases):
  """Every case is right: none accepted that must not be, none without a line that names its flag."""
  faults = [fault for fault in (commands.fault_of(COMMANDS[name], given) for given in cases) if fault]
  counts = collections.Counter(kind for kind, _ in faults)
  print(f"{name}: {len(cases)} cases: {dict(counts)}")
  assert not faults, "\n".join(f"{kind}: {text}" for kind, text in faults)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_has_every_flag(name):
  module = {"benchmarks": commands.benchmarks_run}.get(name) or getattr(commands, name)
  values = module.define_flags() if name == "benchmarks" else module.make_flags()
  assert set(COMMANDS[name].flags) == set(values)


@pytest.mark.parametrize("name", COMMANDS)
def test_words_that_are_no_flags(name, capsys):
  for word in (
    "-", "---", "--=3", "--seed", "--no", "--noseed", "--noredo=1", "--s=3", "-x", "", "\0", "--\ud800=1", "seed",
    "--help=maybe", "--flagfile", "--flagfile=/dev/zero", "-flagfile=fifo.csv", "--flagfile=damaged.csv", "--\n=1",
    "--" + "x" * 10**5, "--seed=1=2", "--seed==1", "@file", "--seed 1",
  ):  # fmt: skip
    assert COMMANDS[name].run([word]) == 2, word
    shown = capsys.readouterr().err
    assert re.fullmatch(r"error: [^\n]{1,1100}\n", shown), (word, shown)


@pytest.mark.parametrize(
  "error", [MemoryError(), MemoryError("Unable\nto"), jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory")]
)
def test_out_of_memory_is_one_line(capsys, error):
  """Sizes that are right by themselves can still be too large for a machine."""

  def main(values):
    raise error

  assert run_command(main, Flags(), "", ["some"]) == 1
  assert re.fullmatch(r"error: out of memory: [^\n]+; files that were complete stay\n", capsys.readouterr().err)


def test_errors_are_shown_and_not_obeyed(capsys):
  """A name in a file may hold what terminals take for commands."""

  def main(values):
    raise UsageError("columns \x1b[31m \ud800 \u202e a\u2028b\r\n" + "x" * 10_000 + " end")

  assert run_command(main, Flags(), "", ["some"]) == 2
  shown = capsys.readouterr().err
  assert shown.startswith("error: columns \\x1b[31m \\ud800 \\u202e a b xxx")
  assert shown.endswith("xxx end\n")
  assert len(shown) < 1100


@pytest.mark.parametrize("name", COMMANDS)
def test_some_values(name):
  """Two of each flag, others of the next one."""
  flags, values = list(COMMANDS[name].flags), commands.ODD
  places = [(flag, 5 * place + 37 * turn) for place, flag in enumerate(flags) for turn in (0, 1)]
  check(name, [{flag: values[place % len(values)]} for flag, place in places])


@pytest.mark.fuzz
@pytest.mark.parametrize("name", COMMANDS)
def test_every_value(name):
  check(name, [{flag: value} for flag in COMMANDS[name].flags for value in commands.ODD])


@pytest.mark.fuzz
@pytest.mark.parametrize("name", COMMANDS)
def test_random_flags(name):
  cases, flags = [], COMMANDS[name].flags

  @hypothesis.settings(max_examples=400)
  @hypothesis.given(strategies.data())
  def collect(data):
    chosen = data.draw(strategies.lists(strategies.sampled_from(sorted(flags)), min_size=1, max_size=4, unique=True))
    odd = strategies.one_of(
      strategies.sampled_from(commands.ODD), strategies.text(max_size=20), strategies.floats().map(repr),
      strategies.integers().map(str),
    )  # fmt: skip
    cases.append({flag: data.draw(odd) for flag in chosen})

  collect()
  check(name, cases)
