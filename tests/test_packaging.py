"""The installed package: one top-level name, commands that run without a checkout, requirements of the core apart."""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]


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
  for folder, name in (("last_jax", "last_jax"), ("launch", "last_jax/launch")):
    sources = {path.relative_to(ROOT / folder) for path in (ROOT / folder).rglob("*.py")}
    assert sources <= {path.relative_to(installed / name) for path in (installed / name).rglob("*.py")}
  for pattern in ("data/*.npz", "tools/assets/*", "py.typed"):
    names = {path.relative_to(ROOT / "last_jax") for path in (ROOT / "last_jax").glob(pattern)}
    assert names
    assert names == {path.relative_to(installed / "last_jax") for path in (installed / "last_jax").glob(pattern)}


@pytest.mark.parametrize("name", ["distill", "reproduce", "teach", "train_teacher"])
def test_commands_run_without_a_checkout(installed, tmp_path, name):
  """As the console scripts call them."""
  setup = (ROOT / "setup.py").read_text(encoding="utf-8")
  assert f"=last_jax.launch.{name}:run" in setup
  code = f"import sys, last_jax.launch.{name} as command; print(command.__file__); sys.exit(command.run())"
  environment = os.environ | {"PYTHONPATH": str(installed)}
  done = subprocess.run(
    [sys.executable, "-c", code, "--help"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
  )
  assert done.returncode in (0, 1), done.stderr  # absl ends with 1 after its help.
  assert done.stdout.startswith(str(installed))
  assert "--out" in done.stdout
  assert "--seed" in done.stdout
