"""The shape of the package: imports point one way, and importing touches no device."""

import ast
import pathlib
import subprocess
import sys

import last_jax as last

ROOT = pathlib.Path(last.__file__).parent
ORDER = [
  "fields", "identity", "functions", "remade", "affine", "kernels", "frames", "lessons", "pool", "summaries", "base",
  "io", "models", "checks", "compiler", "programs", "partners", "devices", "margin", "losses", "optimizers", "learner",
  "modules", "learners", "simplices", "constraints", "distances", "quadratic", "free", "projected", "sparse", "argmin",
  "linear", "problem", "targets", "scalar_map", "solvers", "synthesis", "advice", "minimising", "fitting", "proposals",
  "teachers", "answers", "loop", "watching", "teaching", "streaming", "stacking", "sweeping", "training", "distilling",
  "theory", "data", "facts", "curriculum", "tools", "reproduction", "launch",
]  # fmt: skip


def layer(path):
  name = path.relative_to(ROOT).parts[0].removesuffix(".py")
  return ORDER.index(name)


def nodes_that_run(tree):
  """All nodes of a module, except the imports that only type checkers see."""
  for node in ast.iter_child_nodes(tree):
    if not (isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"):
      yield node
      yield from nodes_that_run(node)


def imported_layers(path):
  for node in nodes_that_run(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "last_jax":
      parts = node.module.split(".")
      yield from ([parts[1]] if len(parts) > 1 else [alias.name for alias in node.names])
    elif isinstance(node, ast.Import):
      yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("last_jax."))


def test_imports_never_point_back():
  for path in ROOT.rglob("*.py"):
    if path.parent == ROOT and path.name == "__init__.py":
      continue
    for name in imported_layers(path):
      assert ORDER.index(name) <= layer(path), f"{path.name} imports {name}"


def test_importing_touches_no_device_and_no_heavy_module():
  code = (
    "import sys, last_jax, jax; "
    "jax.config.update('jax_num_cpu_devices', 3); assert jax.device_count() == 3, 'JAX had started'; "
    "heavy = {'sklearn', 'matplotlib', 'torch', 'rich', 'flax', 'equinox', 'orbax', 'plotly'} & set(sys.modules); "
    "assert not heavy, heavy"
  )
  subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT.parent)


def test_modules_stay_short():
  long = {path.name: count for path in ROOT.rglob("*.py") if (count := len(path.read_text().splitlines())) > 350}
  assert not long
