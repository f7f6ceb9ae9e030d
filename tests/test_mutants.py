"""The mutation test itself, on a project of two files."""

import ast

import pytest

from tests import mutants

MODULE = '''"""A text with 1 < 2."""

SIZE = 4096


def area(width: "1 + 1", height: float = 1.0, *, unit: float = 2.0) -> float:
  """Return width * height."""
  if width < 0:
    raise ValueError(f"width must be at least {0}, but it is {width - 0}")
  assert height >= 0
  return unit * width * height
'''
TESTS = """
import pathlib
import last_jax.shapes


def test_area():
  assert last_jax.shapes.area(2.0, 3.0) == 12
  assert pathlib.Path(last_jax.shapes.__file__).parents[1] == pathlib.Path.cwd()
"""


@pytest.fixture
def project(tmp_path):
  root = tmp_path / "project"
  for name, text in {"last_jax/shapes.py": MODULE, "last_jax/__init__.py": "", "tests/test_shapes.py": TESTS}.items():
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)
  return root


def differences(source):
  places = mutants.mutants_of("a.py", source.encode())
  return {mutant.difference().splitlines()[-1][1:].strip() for place in places for mutant in place}


def test_places_are_expressions_that_run():
  assert differences(MODULE) == {
    "if (width <= 0):",
    "if (width > 0):",
    "if (not width < 0):",
    "if width < 1:",
    "if width < -1:",
    "return (unit * width / height)",
    "return (unit / width) * height",
    "return width",
  }


@pytest.mark.parametrize(
  ("line", "kinds"),
  [
    ("jnp.where(a, b, c)", {"jnp.where(a, c, b)"}),
    ("jnp.minimum(a, b)", {"jnp.maximum(a, b)"}),
    ("jnp.sum(a, axis=0)", {"jnp.sum(a, axis=1)", "jnp.sum(a, axis=-1)"}),
    ("a.swapaxes(b, c)", {"a"}),
    ("jax.lax.stop_gradient(a)", {"a"}),
    ("a.T @ b", {"a @ b", "(b @ a.T)"}),
    ("-a", {"a"}),
    ("a and b", {"(a or b)", "a", "b"}),
    ("a if b else c", {"(c if b else a)", "a", "c"}),
    ("a is None", {"(a is not None)"}),
    ("zip(a, b, strict=True)", set()),
    ("'text'", set()),
  ],
)
def test_what_an_expression_may_become(line, kinds):
  found = differences(f"def function():\n  x = {line}\n")
  assert {mutated.removeprefix("x = ") for mutated in found} == kinds


def test_random_mutants_of_the_package_are_programs():
  """The choice depends on the seed alone and takes each place once."""
  modules = ["last_jax/kernels/remainder.py", "last_jax/kernels/width.py"]
  some = mutants.choose(mutants.ROOT, modules, 20, seed=3)
  assert some == mutants.choose(mutants.ROOT, modules, 20, seed=3)
  assert len({(mutant.path, mutant.begin, mutant.end) for mutant in some}) == 20
  for mutant in some:
    assert ast.dump(ast.parse(mutant.mutated)) != ast.dump(ast.parse(mutant.source))


def test_every_module_has_tests():
  for name, calls in mutants.SUITES.items():
    assert mutants.calls_for(name) == calls
    files = [word for call in calls for word in call.split() if word.startswith("tests/")]
    assert files
    assert all((mutants.ROOT / file).exists() for file in (name, *files))


def test_a_mutant_is_killed_in_a_copy_only(project, tmp_path):
  before = {path: path.read_bytes() for path in project.rglob("*.py")}
  places = mutants.mutants_of("last_jax/shapes.py", MODULE.encode())
  by_text = {mutant.text: mutant for place in places for mutant in place}
  copied = mutants.Copy(project, tmp_path / "copy")
  assert copied.judge(by_text["(unit / width)"], ["tests"]) == ("killed", "FAILED tests/test_shapes.py::test_area")
  assert copied.judge(by_text["(width <= 0)"], ["tests"]) == ("survived", "")
  assert {path: path.read_bytes() for path in project.rglob("*.py")} == before
  assert (tmp_path / "copy" / "last_jax" / "shapes.py").read_text() == MODULE


def test_tests_that_do_not_pass_without_mutants_are_refused(project, tmp_path):
  (mutant, *_), *_ = mutants.mutants_of("last_jax/shapes.py", MODULE.encode())
  with pytest.raises(ValueError, match="must pass without mutants, but timed out"):
    mutants.Copy(project, tmp_path / "late", timeout=0.01).judge(mutant, ["tests"])
  (project / "tests" / "test_shapes.py").write_text("def test_nothing():\n  assert False\n")
  with pytest.raises(ValueError, match="must pass without mutants, but killed"):
    mutants.Copy(project, tmp_path / "copy").judge(mutant, ["tests"])
