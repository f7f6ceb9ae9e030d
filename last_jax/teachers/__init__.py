"""Teachers, a file per method. A new one is a `Teacher(name, init, step)`, or two functions through `compose`."""

from last_jax.base import Teacher, View
from last_jax.teachers.compose import compose
from last_jax.teachers.fixed import distillation, label_smoothing, self_training, sgd
from last_jax.teachers.greedy import greedy
from last_jax.teachers.planner import planner
from last_jax.teachers.policy import Policy, make_policy, policy
from last_jax.teachers.policy_file import load_policy, save_policy
from last_jax.teachers.selection import imt, mixed
from last_jax.teachers.theorems import theorem_1, theorem_2, theorem_3

__all__ = [
  "Policy",
  "Teacher",
  "View",
  "compose",
  "distillation",
  "greedy",
  "imt",
  "label_smoothing",
  "load_policy",
  "make_policy",
  "mixed",
  "planner",
  "policy",
  "save_policy",
  "self_training",
  "sgd",
  "theorem_1",
  "theorem_2",
  "theorem_3",
]
