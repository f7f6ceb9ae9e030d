"""Wheel and source archive: what they hold, and that the commands run from them where there is no checkout."""

import email
import os
import pathlib
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile

import numpy as np
import pytest

import last_jax

ROOT = pathlib.Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
COMMANDS = {"last-distill", "last-reproduce", "last-teach", "last-train-teacher"}


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
  """A folder with the files that `pip install .` would copy into site-packages."""
  base = tmp_path_factory.mktemp("build")
  command = [sys.executable, "setup.py", "-q", "build", f"--build-base={base / 'base'}", f"--build-lib={base / 'lib'}"]
  subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
  return base / "lib"


def test_no_top_level_name_but_our_own_is_installed(installed):
  assert [path.name for path in installed.iterdir()] == ["last_jax"]


def test_everything_that_is_read_is_installed(installed):
  assert needed() <= {path.relative_to(installed).as_posix() for path in installed.rglob("*")}


def needed():
  """Files below last_jax/ that have to be there when it runs; the commands are installed as last_jax/launch/."""
  names = set()
  patterns = "last_jax/**/*.py", "launch/*.py", "last_jax/data/*.npz", "last_jax/tools/assets/*", "last_jax/py.typed"
  for pattern in patterns:
    found = {path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern)}
    assert found, pattern
    names |= {f"last_jax/{name}" if name.startswith("launch/") else name for name in found}
  return names


@pytest.mark.parametrize("name", ["distill", "reproduce", "teach", "train_teacher"])
def test_commands_run_without_a_checkout(installed, tmp_path, name):
  """As the console scripts call them."""
  assert PROJECT["scripts"][f"last-{name.replace('_', '-')}"] == f"last_jax.launch.{name}:run"
  code = f"import sys, last_jax.launch.{name} as command; print(command.__file__); sys.exit(command.run())"
  environment = os.environ | {"PYTHONPATH": str(installed)}
  done = subprocess.run(
    [sys.executable, "-c", code, "--help"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
  )
  assert done.returncode in (0, 1), done.stderr  # absl ends with 1 after its help.
  assert done.stdout.startswith(str(installed))
  assert "--out" in done.stdout
  assert "--seed" in done.stdout


def test_each_fact_is_written_once():
  """What changes with the code is in setup.py, what describes the project in pyproject.toml."""
  assert set(PROJECT["dynamic"]) == {"version", "dependencies", "optional-dependencies"}
  assert not set(PROJECT["dynamic"]) & set(PROJECT)
  assert set(PROJECT["scripts"]) == COMMANDS
  setup = (ROOT / "setup.py").read_text(encoding="utf-8")
  for key in ("name=", "description=", "license=", "python_requires=", "entry_points=", "classifiers="):
    assert f"  {key}" not in setup
  for file in PROJECT["license-files"]:
    assert (ROOT / file).is_file()


@pytest.mark.slow
def test_a_wheel_built_from_the_source_archive_teaches_in_an_empty_folder(tmp_path):
  """The archive, a wheel from it alone, and its command in a new environment, with the images that it carries."""
  (tmp_path / "facts").mkdir()
  run(
    [sys.executable, "setup.py", "-q", "egg_info", f"--egg-base={tmp_path / 'facts'}", "sdist", f"-d{tmp_path}"], ROOT
  )
  with tarfile.open(tmp_path / f"last_jax-{last_jax.__version__}.tar.gz") as file:
    file.extractall(tmp_path, filter="data")
  source = tmp_path / f"last_jax-{last_jax.__version__}"
  for name in (
    "LICENSE",
    "CHANGELOG.md",
    "docs/conf.py",
    "examples",
    "benchmarks/baselines/c_loop.c",
    "tests/conftest.py",
  ):
    assert (source / name).exists(), name
  assert not list(source.rglob("__pycache__"))

  pip = [sys.executable, "-m", "pip", "-q"]
  offline = ["--no-deps", "--no-index"]
  run([*pip, "wheel", *offline, "--no-build-isolation", f"--wheel-dir={tmp_path}", str(source)], tmp_path)
  (wheel,) = tmp_path.glob("*.whl")
  facts = f"last_jax-{last_jax.__version__}.dist-info"
  with zipfile.ZipFile(wheel) as file:
    names = set(file.namelist())
    metadata = email.message_from_bytes(file.read(f"{facts}/METADATA"))
  assert needed() <= names
  assert {name.partition("/")[0] for name in names} == {"last_jax", facts}
  assert (metadata["Name"], metadata["Version"]) == ("last_jax", last_jax.__version__)
  assert metadata["License-Expression"] == PROJECT["license"]
  assert {f"{facts}/licenses/{name}" for name in PROJECT["license-files"]} <= names
  assert any(need.startswith("jax>=") for need in metadata.get_all("Requires-Dist"))

  environment = tmp_path / "environment"
  venv.create(environment, symlinks=True)
  python = environment / "bin" / "python"
  run([*pip, f"--python={python}", "install", *offline, str(wheel)], tmp_path)
  assert {path.name for path in (environment / "bin").glob("last-*")} == COMMANDS
  (packages,) = environment.glob("lib/python*/site-packages")
  # What it needs is that of this environment; what is installed there comes first.
  (packages / "needs.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
  empty = tmp_path / "empty"
  empty.mkdir()
  flags = ["--dataset=mnist", "--learner=softmax", "--teacher=greedy", "--steps=5", "--students=2"]
  run([str(environment / "bin" / "last-teach"), *flags, "--out=taught"], empty)
  with np.load(empty / "taught" / "curves.npz") as curves:
    assert len(curves.files) > 0
  shown = run([str(python), "-c", "import last_jax; print(last_jax.__file__)"], empty)
  assert pathlib.Path(shown.stdout.strip()) == packages / "last_jax" / "__init__.py"


def run(command, folder):
  """Run a command without this checkout on its path."""
  environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
  done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=600)
  assert done.returncode == 0, done.stdout + done.stderr
  return done
