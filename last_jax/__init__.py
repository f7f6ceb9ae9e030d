"""Iterative teaching by label synthesis, in JAX.

A teacher steers a learner to target parameters by choosing, each iteration, the labels of random examples. Start with
`teach`; the heart is `synthesize_labels`; `init`, `step` and `run` are the same machine in pieces.
"""

from typing import TYPE_CHECKING, Any

from last_jax import (
  constraints,
  data,
  devices,
  distilling,
  kernels,
  learners,
  losses,
  solvers,
  targets,
  teachers,
  theory,
  training,
)
from last_jax.advice import Reach, reach
from last_jax.base import (
  Certificate,
  Dataset,
  Info,
  Lesson,
  Lessons,
  Pool,
  Records,
  Result,
  State,
  Student,
  Teacher,
  View,
)
from last_jax.curriculum import Curriculum
from last_jax.distilling import distill_labels
from last_jax.fitting import fit_target, unreachable_distance, unreachable_part
from last_jax.io import load, save
from last_jax.kernels import squared_gradient_norms, tangent_kernel, tangent_product, tangent_roads
from last_jax.problem import Problem
from last_jax.streaming import stream, streamed
from last_jax.sweeping import Sweep, sweep
from last_jax.synthesis import synthesize_labels
from last_jax.teachers import outputs
from last_jax.teachers.policy_file import load_policy, save_policy
from last_jax.teaching import init, next_lesson, observe, run, step, teach, teach_many
from last_jax.training import rewards, train_evolution, train_reinforce, train_unrolled
from last_jax.watching import progress

if TYPE_CHECKING:
  from last_jax.tools import plot

__version__ = "0.2.0"

__all__ = [
  "Certificate",
  "Curriculum",
  "Dataset",
  "Info",
  "Lesson",
  "Lessons",
  "Pool",
  "Problem",
  "Reach",
  "Records",
  "Result",
  "State",
  "Student",
  "Sweep",
  "Teacher",
  "View",
  "constraints",
  "data",
  "devices",
  "distill_labels",
  "distilling",
  "fit_target",
  "init",
  "kernels",
  "learners",
  "load",
  "load_policy",
  "losses",
  "next_lesson",
  "observe",
  "outputs",
  "plot",
  "progress",
  "reach",
  "rewards",
  "run",
  "save",
  "save_policy",
  "solvers",
  "squared_gradient_norms",
  "step",
  "stream",
  "streamed",
  "sweep",
  "synthesize_labels",
  "tangent_kernel",
  "tangent_product",
  "tangent_roads",
  "targets",
  "teach",
  "teach_many",
  "teachers",
  "theory",
  "train_evolution",
  "train_reinforce",
  "train_unrolled",
  "training",
  "unreachable_distance",
  "unreachable_part",
]


def __getattr__(name: str) -> Any:
  """Import `plot` when it is asked for: nothing else here needs the tools."""
  if name == "plot":
    from last_jax.tools import plot

    return plot
  raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
