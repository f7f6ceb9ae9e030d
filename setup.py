"""Packaging of last_jax."""

import pathlib

from setuptools import find_packages, setup

HERE = pathlib.Path(__file__).parent

CORE = [
  "jax>=0.10",
  "jaxlib>=0.10",
  "optax>=0.2.4",
  "flax>=0.10",
  "chex>=0.1.89",
  "absl-py>=2.0",
  "orbax-checkpoint>=0.6",  # Checkpoints of training.
  "numpy>=2.0",
  "matplotlib>=3.8",  # The launchers draw PNG curves.
  "rich>=13.0",  # The launchers show progress and tables.
  "scikit-learn>=1.4",  # Half moons.
  "scipy>=1.15",  # Confidence intervals and bootstrap of the report.
  "plotly>=6.0",  # The page of launch.reproduce carries its script.
]
BENCH = ["torch>=2.2"]
TEST = [
  "pytest>=8.0",
  "pytest-xdist>=3.5",
  "hypothesis>=6.100",
  "cvxpy>=1.5",
  "playwright>=1.40",  # Drives Debian's chromium, or any other on the PATH.
  "ruff>=0.6",
  "mypy>=1.10",
]

setup(
  name="last_jax",
  version="0.1.0",
  description="Iterative teaching by label synthesis: exact greedy labels for any learner, in JAX.",
  long_description=(HERE / "README.md").read_text(encoding="utf-8"),
  long_description_content_type="text/markdown",
  license="Apache-2.0",
  python_requires=">=3.11",
  packages=find_packages(include=["last_jax", "last_jax.*", "launch", "launch.*", "benchmarks", "benchmarks.*"]),
  package_data={
    "benchmarks.baselines": ["*.c"],
    "last_jax": ["py.typed"],
    "last_jax.data": ["*.npz", "*.md"],
    "last_jax.report": ["assets/*"],
  },
  install_requires=CORE,
  extras_require={"test": TEST, "bench": BENCH},
  entry_points={
    "console_scripts": [
      "last-reproduce=launch.reproduce:run",
      "last-teach=launch.teach:run",
      "last-train-teacher=launch.train_teacher:run",
    ]
  },
)
