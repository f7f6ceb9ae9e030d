"""Mutation testing: which small faults in the mathematics do the tests notice?

    python -m tests.mutants --mutants=120 --seed=0 [--json=FILE]

Random places of the modules in `SUITES` are changed one at a time: signs and comparisons are swapped, constants moved,
conditions negated, branches exchanged, transposes left out, arguments returned. Each mutant is a change of one
expression in a temporary copy of the package, and the tests of its module run on that copy until the first of them
fails. A mutant that no test notices survives; its difference is printed. `docs/testing.md` has the figures.

Not mutated: annotations, texts, the arguments of decorators, default values, assertions, errors that are raised, and
numbers that a module names (sizes beyond which another algorithm is faster).
"""

import argparse
import ast
import contextlib
import copy
import dataclasses
import difflib
import itertools
import json
import multiprocessing
import os
import pathlib
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

ROOT = pathlib.Path(__file__).parents[1]
COPIED = ("last_jax", "launch", "tests", "benchmarks", "docs", "examples", "pyproject.toml", "README.md")
# For each module what pytest is called with, one call after the other: fast tests that notice much come first.
_LABELS = (
  "-m 'not slow' tests/test_optimality.py",
  "-m 'not slow' tests/test_label_ranges.py tests/test_synthesis.py",
  "-m 'not slow' tests/test_certificates.py tests/test_label_factors.py",
  "tests/test_solvers.py tests/test_synthesis.py",
)
_SELECTION = "-m 'not slow' tests/test_selection.py tests/test_learners.py"
_KERNELS = (
  "tests/test_kernels.py -k 'in_float64 and (connected or tied or groups or scan_over or biases_of or slices_of)'",
  "-m 'not slow' tests/test_kernels.py",
  "tests/test_kernels.py",
)
SUITES: dict[str, tuple[str, ...]] = {
  "last_jax/synthesis.py": _LABELS,
  "last_jax/quadratic.py": ("-m 'not slow' tests/test_quadratic.py", *_LABELS),
  "last_jax/linear.py": ("-m 'not slow' tests/test_closed_forms.py", *_LABELS, _SELECTION),
  "last_jax/constraints.py": ("-m 'not slow' tests/test_constraints.py tests/test_sparse.py", *_LABELS[:2]),
  "last_jax/kernels/arguments.py": ("-m 'not slow' tests/fuzz/test_arguments.py", _KERNELS[1]),
  "last_jax/kernels/convolution.py": ("tests/test_convolution.py", "tests/test_kernels.py -k convolution"),
  "last_jax/kernels/direction.py": ("tests/test_selection.py -k 'norms_and_products or weights_count'",),
  "last_jax/kernels/width.py": ("tests/test_kernels.py -k sums_are", "tests/test_narrow.py -k 'kernels or mix'"),
  "last_jax/kernels": _KERNELS,
}
_PYTEST = ["-x", "-q", "-p", "no:cacheprovider", "--durations=0", "--durations-min=60"]
_PRELOADED = ["jax", "optax", "cvxpy", "scipy.stats", "flax", "pytest"]  # Nothing that starts a device.


# --- Places and what they may become.


@dataclasses.dataclass(frozen=True)
class Mutant:
  """One expression of a module, replaced.

  Attributes:
    path: of the module, relative to the root.
    line: of the expression, from 1.
    kind: what was done.
    source: of the whole module, in UTF-8.
    begin: where the expression begins in it.
    end: where it ends.
    text: what takes its place.
  """

  path: str
  line: int
  kind: str
  source: bytes
  begin: int
  end: int
  text: str

  @property
  def mutated(self) -> bytes:
    """The module with the replacement."""
    return self.source[: self.begin] + self.text.encode() + self.source[self.end :]

  def difference(self) -> str:
    """Return the lines that differ, before and after."""
    lines = difflib.unified_diff(
      *(each.decode().splitlines() for each in (self.source, self.mutated)), lineterm="", n=0
    )
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))


_OPERATORS: dict[type, type] = {
  ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult, ast.FloorDiv: ast.Mult,
  ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_COMPARISONS: dict[type, tuple[type, ...]] = {
  ast.Lt: (ast.LtE, ast.Gt), ast.LtE: (ast.Lt, ast.GtE), ast.Gt: (ast.GtE, ast.Lt), ast.GtE: (ast.Gt, ast.LtE),
  ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
  ast.NotIn: (ast.In,),
}  # fmt: skip
_PAIRS = ("min max", "minimum maximum", "argmin argmax", "any all", "zeros ones", "zeros_like ones_like")
_NAMES = {one: other for pair in _PAIRS for one, other in (pair.split(), pair.split()[::-1])}
_DROPPED = ("abs", "clip", "swapaxes", "transpose", "stop_gradient", "sqrt")  # Calls that become their operand.


def _with(node: ast.AST, **changes: object) -> ast.AST:
  """Return a copy of a node with other fields."""
  changed = copy.copy(node)
  for name, value in changes.items():
    setattr(changed, name, value)
  return changed


def replacements(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
  """Return what an expression may become, each with the kind of change."""
  match node:
    case ast.BinOp(op=op) if type(op) in _OPERATORS:
      yield "operator", _with(node, op=_OPERATORS[type(op)]())
    case ast.BinOp(left=left, op=ast.MatMult(), right=right):
      yield "operator", _with(node, left=right, right=left)
    case ast.Compare(ops=[op]):
      for other in _COMPARISONS[type(op)]:
        yield "comparison", _with(node, ops=[other()])
    case ast.BoolOp(op=op, values=values):
      yield "and/or", _with(node, op=ast.Or() if isinstance(op, ast.And) else ast.And())
      yield "dropped condition", _with(node, values=values[1:]) if len(values) > 2 else values[1]
      yield "dropped condition", _with(node, values=values[:-1]) if len(values) > 2 else values[0]
    case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
      yield "dropped sign", operand
    case ast.IfExp(body=body, orelse=orelse):
      yield "condition", _with(node, body=orelse, orelse=body)
      yield "condition", body
      yield "condition", orelse
    case ast.Constant(value=bool(value)):
      yield "constant", ast.Constant(not value)
    case ast.Constant(value=int(value)):
      yield "constant", ast.Constant(value + 1)
      yield "constant", ast.Constant(value - 1)
    case ast.Constant(value=float(value)):
      yield "constant", ast.Constant(2 * value if value else 1.0)
      yield "constant", ast.Constant(0.5 * value if value else -1.0)
    case ast.Attribute(value=value, attr="T"):
      yield "transpose", value
    case ast.Call(func=ast.Attribute(attr="where"), args=[condition, one, other]):
      yield "branches", _with(node, args=[condition, other, one])
    case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name), args=args) if name in _NAMES and args:
      renamed = _with(node.func, **{"attr" if isinstance(node.func, ast.Attribute) else "id": _NAMES[name]})
      yield "function", _with(node, func=renamed)
    case ast.Call(func=ast.Attribute(value=owner, attr=name), args=args) if name in _DROPPED:
      is_module = ast.unparse(owner) in ("jnp", "np", "lax", "jax.lax")
      if not is_module or args:
        yield "dropped call", args[0] if is_module else owner


def _expressions(tree: ast.AST, argument: str | None = None) -> Iterator[tuple[ast.AST, list[tuple[str, ast.AST]]]]:
  """Return the expressions below a node that may be mutated, with their replacements."""
  if isinstance(tree, ast.FunctionDef | ast.Lambda):
    names = [each.arg for each in tree.args.args if each.arg != "self"]
    argument = names[0] if names else None
  for name, field in ast.iter_fields(tree):
    if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(tree, ast.Call):
      continue  # The last are names, annotations and defaults of a function's arguments.
    for node in field if isinstance(field, list) else [field]:
      if not isinstance(node, ast.AST) or _is_left_alone(node, tree):
        continue
      found = list(replacements(node))
      if isinstance(tree, ast.If) and name == "test":
        found.append(("condition", ast.UnaryOp(ast.Not(), node)))
      if isinstance(tree, ast.Return) and argument and ast.unparse(node) != argument:
        found.append(("returned argument", ast.Name(argument)))
      if found:
        yield node, found
      yield from _expressions(node, argument)


def _is_left_alone(node: ast.AST, parent: ast.AST) -> bool:
  if isinstance(parent, ast.Module | ast.ClassDef) and isinstance(node, ast.Assign | ast.AnnAssign):
    numbers = ast.Constant | ast.BinOp | ast.UnaryOp | ast.Tuple
    return node.value is None or isinstance(node.value, numbers) or isinstance(parent, ast.ClassDef)
  if isinstance(node, ast.keyword):
    return node.arg in ("strict", "unroll", "batch_size")
  if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
    return ast.unparse(node.value.func).startswith("chex.assert_")
  return isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom)


def mutants_of(path: str, source: bytes) -> list[list[Mutant]]:
  """Return the mutants of each place of a module."""
  starts = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]
  places = []
  for node, found in _expressions(ast.parse(source)):
    begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
    mutants = []
    for kind, replacement in found:
      text = ast.unparse(replacement)
      text = text if isinstance(replacement, ast.Constant | ast.Name | ast.Call) else f"({text})"
      mutants.append(Mutant(path, node.lineno, kind, source, begin, end, text))
    places.append(mutants)
  return places


def choose(root: pathlib.Path, modules: Iterable[str], count: int, seed: int) -> list[Mutant]:
  """Return random mutants at as many different places of all modules, each place equally likely."""
  places = []
  files = {
    file for name in modules for file in ((root / name).glob("*.py") if (root / name).is_dir() else [root / name])
  }
  for file in sorted(files):
    places += mutants_of(file.relative_to(root).as_posix(), file.read_bytes())
  draw = random.Random(seed)
  return [draw.choice(place) for place in draw.sample(places, min(count, len(places)))]


# --- Tests of a mutant.


def run_tests(folder: str, arguments: list[str], log: str, write_bytecode: bool) -> None:
  """Run pytest in a copy of the project and leave with its exit status: the body of a process of its own."""
  os.setsid()  # What the tests start ends with them.
  with open(log, "wb") as file:
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
  os.chdir(folder)
  sys.path[:] = [folder, *(entry for entry in sys.path if entry not in ("", str(ROOT)))]
  for name in [name for name in sys.modules if name.partition(".")[0] in COPIED]:
    del sys.modules[name]
  # A mutant may have the size and, in seconds, the time of the one before it: its bytecode would be that one's.
  sys.dont_write_bytecode = not write_bytecode
  import pytest

  status = int(pytest.main(arguments))
  sys.stdout.flush()
  os._exit(status)


class Copy:
  """A temporary copy of the project, in which one module at a time is a mutant. The project itself is only read."""

  def __init__(self, root: pathlib.Path, folder: pathlib.Path, preload: Sequence[str] = (), timeout: float = 300):
    """Copy the files under `root` that the tests need to `folder`; `preload` is imported once, for all runs."""
    self._folder, self._timeout = folder, timeout
    self._passed: set[str] = set()
    self._processes = multiprocessing.get_context("forkserver")
    self._processes.set_forkserver_preload(list(preload))
    for name in COPIED:
      if (root / name).is_dir():
        shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
      elif (root / name).exists():
        shutil.copy2(root / name, folder / name)

  def judge(self, mutant: Mutant, calls: Sequence[str]) -> tuple[str, str]:
    """Return "killed", "timed out" or "survived", and the first test that fails."""
    path = self._folder / mutant.path
    for arguments in calls:
      self._check(arguments)
      try:
        path.write_bytes(mutant.mutated)
        outcome, text = self._run(arguments)
      finally:
        path.write_bytes(mutant.source)
      if outcome != "survived":
        failed = [line.split(" - ")[0] for line in text.splitlines() if line.startswith(("FAILED", "ERROR"))]
        return outcome, (failed or text.splitlines()[-1:] or [""])[0]
    return "survived", ""

  def _check(self, arguments: str) -> None:
    """Raise unless the tests pass without mutants."""
    if arguments in self._passed:
      return
    begin = time.time()
    outcome, text = self._run(arguments, write_bytecode=True)
    if outcome != "survived":
      raise ValueError(f"pytest {arguments} must pass without mutants, but {outcome}: {text[-2000:]}")
    self._passed.add(arguments)
    print(f"{time.time() - begin:.0f} s without mutants: pytest {arguments}", flush=True)

  def _run(self, arguments: str, write_bytecode: bool = False) -> tuple[str, str]:
    """Return an outcome, and what pytest has printed."""
    log = self._folder / "log.txt"
    log.write_bytes(b"")
    given = (str(self._folder), [*_PYTEST, *shlex.split(arguments)], str(log), write_bytecode)
    process = self._processes.Process(target=run_tests, args=given)
    process.start()
    try:
      process.join(self._timeout)
    finally:
      late = process.exitcode is None
      if late:
        assert process.pid is not None, "the process has started"
        process.kill()
        with contextlib.suppress(ProcessLookupError):  # It has no group of its own yet.
          os.killpg(process.pid, signal.SIGKILL)
        process.join()
    outcome = "timed out" if late else "killed" if process.exitcode else "survived"
    return outcome, log.read_text(errors="replace") if log.exists() else ""  # There is none where it was that early.


def calls_for(path: str) -> tuple[str, ...]:
  """Return what pytest is called with for a module."""
  return next(calls for name, calls in SUITES.items() if path == name or path.startswith(name + "/"))


# --- The command.


def main() -> None:
  """Print the table."""
  # Not absl's flags, which are one table for the process: tests that run beside those of this module define theirs.
  parser = argparse.ArgumentParser(prog="tests.mutants", description="Count the small faults that the tests notice.")
  parser.add_argument("--mutants", type=int, default=120, help="how many mutants")
  parser.add_argument("--seed", type=int, default=0, help="of the choice")
  parser.add_argument("--only", nargs="*", default=[""], help="of these, those in a module: last_jax/linear.py:80")
  parser.add_argument("--json", type=pathlib.Path, help="a file for the outcome of every mutant")
  given = parser.parse_args()
  chosen = choose(ROOT, SUITES, given.mutants, given.seed)
  chosen = [mutant for mutant in chosen if f"{mutant.path}:{mutant.line}".startswith(tuple(given.only))]
  results = []
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Ends the tests that run, and removes the copy.
  with tempfile.TemporaryDirectory(prefix="mutants_") as folder:
    # JAX reads these when it is imported. A program that the mutant does not change is compiled once, in all runs.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(pathlib.Path(folder) / "cache"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
    project = Copy(ROOT, pathlib.Path(folder) / "project", _PRELOADED)
    for number, mutant in enumerate(chosen, 1):
      begin = time.time()
      outcome, failed = project.judge(mutant, calls_for(mutant.path))
      place, seconds = f"{mutant.path}:{mutant.line}", round(time.time() - begin, 1)
      print(f"{number:4d} {outcome:10s} {seconds:6.1f} s  {place} {mutant.kind}  {failed}", flush=True)
      if outcome == "survived":
        print(mutant.difference(), flush=True)
      results.append({
        "path": mutant.path, "line": mutant.line, "kind": mutant.kind, "difference": mutant.difference(),
        "outcome": outcome, "failed": failed, "seconds": seconds,
      })  # fmt: skip
      if given.json:
        given.json.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
  print_table(results)


def print_table(results: Sequence[dict[str, Any]]) -> None:
  """Print how many mutants of each module and kind were noticed."""
  outcomes = ("killed", "timed out", "survived")
  for column in ("path", "kind"):
    print(f"\n{column:34s}" + "".join(f"{outcome:>10}" for outcome in ("mutants", *outcomes)))
    for name in [*sorted({result[column] for result in results}), "all"]:
      found = [result["outcome"] for result in results if name in (result[column], "all")]
      print(f"{name:34s}{len(found):10d}" + "".join(f"{found.count(outcome):10d}" for outcome in outcomes))
  noticed = sum(result["outcome"] in ("killed", "timed out") for result in results)
  print(f"\n{noticed} of {len(results)} noticed: {100 * noticed / len(results):.1f} %")


if __name__ == "__main__":
  main()
