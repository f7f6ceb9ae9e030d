"""Iterative teaching by label synthesis, in JAX.

A teacher steers a learner to target parameters by choosing, each iteration, the labels of random examples. Start with
`teach`; the heart is `synthesize_labels`.
"""

from last_jax import constraints, data, devices, learners, losses, teachers, theory, training
from last_jax.loop import teach
from last_jax.students import teach_many
from last_jax.synthesis import synthesize_labels
from last_jax.target import fit_target, unreachable_distance, unreachable_part
from last_jax.teachers import outputs
from last_jax.teachers.policy_file import load_policy, save_policy
from last_jax.training import rewards, train_reinforce, train_unrolled
from last_jax.types import Dataset, Lessons, Pool, Result, Student

__version__ = "0.1.0"

__all__ = [
  "Dataset",
  "Lessons",
  "Pool",
  "Result",
  "Student",
  "constraints",
  "data",
  "devices",
  "fit_target",
  "learners",
  "load_policy",
  "losses",
  "outputs",
  "rewards",
  "save_policy",
  "synthesize_labels",
  "teach",
  "teach_many",
  "teachers",
  "theory",
  "train_reinforce",
  "train_unrolled",
  "training",
  "unreachable_distance",
  "unreachable_part",
]
