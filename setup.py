"""Packaging of last_jax: version, requirements and files. Name, description and commands are in pyproject.toml."""

import pathlib
import re

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent
# Read, not imported: importing the package needs JAX, which may not be installed yet.
VERSION = re.search(r'^__version__ = "(.+)"$', (HERE / "last_jax" / "__init__.py").read_text(encoding="utf-8"), re.M)[1]

CORE = [
  "jax>=0.10",
  "jaxlib>=0.10",
  "optax>=0.2.5",
  "flax>=0.12.1",
  "chex>=0.1.89",
  "absl-py>=2.0",
  "orbax-checkpoint>=0.7",  # Checkpoints of training.
  "numpy>=2.0",
  "matplotlib>=3.8",  # The launchers draw PNG curves.
  "rich>=13.0",  # The launchers show progress and tables.
  "scipy>=1.15",  # Confidence intervals and bootstrap of the report.
  "plotly>=6.0",  # The page of launch.reproduce carries its script.
]
BENCH = [
  "torch>=2.2",
  "cvxpy>=1.6",
  "scikit-learn>=1.4",  # Digits to compare teachers on.
]
TEST = [
  "pytest>=8.0",
  "pytest-xdist>=3.5",
  "hypothesis>=6.100",
  "cvxpy>=1.6",
  "scikit-learn>=1.4",  # Half moons and logistic regressions are compared with its own.
  "pandas>=2.2",  # Examples from data frames, results as data frames.
  "pyarrow>=16",  # Parquet files as data sets.
  "equinox>=0.13.1",  # Networks of other libraries, whose tangent kernels are tested.
  "dm-haiku>=0.0.15",
  "playwright>=1.40",  # Drives Debian's chromium, or any other on the PATH.
  "setuptools>=77.0.3",  # The tests look at the files that would be installed.
  "ruff>=0.6",
  "mypy>=1.10",
]

DOCS = ["sphinx>=9.0", "myst-parser>=5.0", "myst-nb>=1.4", "furo>=2025.12"]  # sphinx-build -W -b html docs FOLDER

setup(
  version=VERSION,
  # The commands live in launch/, and are installed inside the package: no top-level name but our own reaches others.
  packages=[*find_packages(include=["last_jax", "last_jax.*"]), "last_jax.launch"],
  package_dir={"last_jax.launch": "launch"},
  package_data={
    "last_jax": ["py.typed"],
    "last_jax.data": ["*.npz", "*.md"],
    "last_jax.tools": ["assets/*"],
  },
  include_package_data=False,  # What is installed is named here; MANIFEST.in names what else a source archive holds.
  install_requires=CORE,
  extras_require={"test": TEST, "bench": BENCH, "docs": DOCS},
)
