"""The core without the tools: its imports, by reading the code and by running it where nothing else can be imported."""

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
CORE_NEEDS = {"jax", "jaxlib", "optax", "flax", "chex", "numpy", "absl"}
TOOLS = {"tools", "reproduction", "launch"}  # Folders of the package that may need more; the core does not import them.
OTHERS = ("matplotlib", "plotly", "rich", "orbax", "scipy", "sklearn", "torch", "cvxpy", "pandas")


def modules(folder):
  return sorted((ROOT / folder).rglob("*.py"))


def is_core(path):
  return path.relative_to(ROOT / "last_jax").parts[0] not in TOOLS


def imports_of(path):
  """Dotted names of all modules that a file imports, at its top or inside functions; relative ones are resolved."""
  package = path.relative_to(ROOT).with_suffix("").parts[:-1]
  for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
      lead = package[: len(package) - node.level + 1] if node.level else ()
      module = ".".join((*lead, *([node.module] if node.module else [])))
      yield from (f"{module}.{alias.name}" for alias in node.names)


# Checkpoints of training are Orbax's, which is imported when one is written or read; Equinox for its own modules;
# pandas for tables of results.
MORE = {"checkpoint.py": {"orbax"}, "modules.py": {"equinox"}, "frames.py": {"pandas"}}
# What `last_jax` imports when a name is asked for.
LAZY = {"last_jax.tools.plot"}
CORE = [path for path in modules("last_jax") if is_core(path)]


@pytest.mark.parametrize("path", CORE, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_core_imports_jax_and_its_kin_only(path):
  lazy = LAZY if path == ROOT / "last_jax" / "__init__.py" else set()
  for name in set(imports_of(path)) - lazy:
    top, _, rest = name.partition(".")
    if top == "last_jax":
      assert rest.partition(".")[0] not in TOOLS, f"{path.name} imports {name}"
    else:
      needs = CORE_NEEDS | MORE.get(path.name, set())
      assert top in needs or top in sys.stdlib_module_names, f"{path.name} imports {name}"


def test_the_library_does_not_import_commands_and_benchmarks():
  for path in modules("last_jax"):
    for name in imports_of(path):
      assert name.split(".")[0] not in ("launch", "benchmarks", "tests"), f"{path.name} imports {name}"
      assert not name.startswith("last_jax.launch"), f"{path.name} imports {name}"


def test_commands_do_not_import_benchmarks_and_neither_imports_tests():
  for folder in ("launch", "benchmarks"):
    for path in modules(folder):
      for name in imports_of(path):
        forbidden = ("tests", "benchmarks") if folder == "launch" else ("tests",)
        assert name.split(".")[0] not in forbidden, f"{path} imports {name}"


USE = """
import sys
import tempfile

BLOCKED = {blocked}

class Nothing:
  def find_spec(self, name, path=None, target=None):
    if name.partition(".")[0] in BLOCKED:
      raise ModuleNotFoundError(f"No module named {{name!r}}: blocked", name=name)

sys.meta_path.insert(0, Nothing())

import jax
import numpy as np
import last_jax as last

x = np.random.default_rng(0).normal(size=(20, 3))
pool = last.Pool(x, (x[:, 0] > 0).astype(int))
learner = last.learners.softmax(3, 2, learning_rate=0.1)
key = jax.random.key(0)
target = learner.init(jax.random.key(1))
for teacher in (last.teachers.sgd(), last.teachers.greedy(last.constraints.simplex()), last.teachers.imt()):
  result = last.teach(key, learner, teacher, pool, target=target, test=pool, steps=5)
  assert np.isfinite(result.distance).all()
with tempfile.TemporaryDirectory() as folder:
  last.save(folder + "/state.npz", result.state)
  again = last.load(folder + "/state.npz", like=result.state)
np.testing.assert_array_equal(again.params["weights"], result.params["weights"])

BLOCKED -= {{"scipy", "rich"}}  # jaxlib itself calls LAPACK through SciPy, and Flax imports rich.
target = last.fit_target(learner, pool)
labels = last.synthesize_labels(learner, learner.init(key), target, pool.x[:2], pool.y[:2], last.constraints.simplex())
assert labels.shape == (2, 2)
policy, log = last.train_unrolled(key, learner, pool, target=target, episodes=2, horizon=3, hidden=(4,), students=2,
                                  reset=0.5)
policy, log = last.train_reinforce(key, learner, pool, target=target, actions=last.outputs.BINARY, episodes=2,
                                   horizon=3, hidden=(4,), students=2, evaluation_steps=3)
last.teach(key, learner, last.teachers.policy(policy), pool, target=target, steps=3)
moons = last.data.half_moons()
assert not BLOCKED & {{name.partition(".")[0] for name in sys.modules}}
"""


@pytest.mark.slow
def test_the_core_can_be_used_where_only_its_needs_are_installed():
  code = USE.format(blocked=set(OTHERS))
  done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
