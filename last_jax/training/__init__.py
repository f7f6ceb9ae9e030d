"""Training of parameterized teachers, by unrolling and by policy gradient; `checkpoint.py` saves its state."""

from last_jax.training.near import near
from last_jax.training.reinforce import Reinforce, train_reinforce
from last_jax.training.settings import Settings
from last_jax.training.trainer import Log, Trainer, TrainingState, make_trainer
from last_jax.training.unrolled import Unrolled, train_unrolled

__all__ = [
  "Log",
  "Reinforce",
  "Settings",
  "Trainer",
  "TrainingState",
  "Unrolled",
  "make_trainer",
  "near",
  "train_reinforce",
  "train_unrolled",
]
