"""Labels that stay: one per example, the same in every step, for students that train on them by themselves.

GIT(m, infinity) of the paper with the examples fixed, also known as label distillation. `distill_labels` finds them,
`train_students` shows what they are worth.
"""

from last_jax.distilling.distill import DistillLog, distill_labels
from last_jax.distilling.students import train_students
from last_jax.distilling.unrolled import DistillState

__all__ = ["DistillLog", "DistillState", "distill_labels", "train_students"]
