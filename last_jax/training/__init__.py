"""Training of parameterized teachers, by unrolling and by policy gradient; checkpoints of it in `checkpoint.py`."""

from last_jax.training.reinforce import make_reinforce, train_reinforce
from last_jax.training.starts import near
from last_jax.training.trainer import Log, State, Trainer
from last_jax.training.unrolled import make_unrolled, train_unrolled

__all__ = [
  "Log",
  "State",
  "Trainer",
  "make_reinforce",
  "make_unrolled",
  "near",
  "train_reinforce",
  "train_unrolled",
]
