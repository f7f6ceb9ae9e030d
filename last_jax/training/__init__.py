"""Training of parameterized teachers, by unrolling, by policy gradient and by evolution strategies.

`checkpoint.py` saves the state of training.
"""

from last_jax.training.evolution import Evolution, train_evolution
from last_jax.training.near import near
from last_jax.training.reinforce import Reinforce, train_reinforce
from last_jax.training.settings import EVALUATE_EVERY, Settings
from last_jax.training.trainer import Log, Trainer, TrainingState, make_trainer
from last_jax.training.unrolled import Unrolled, train_unrolled

__all__ = [
  "EVALUATE_EVERY",
  "Evolution",
  "Log",
  "Reinforce",
  "Settings",
  "Trainer",
  "TrainingState",
  "Unrolled",
  "make_trainer",
  "near",
  "train_evolution",
  "train_reinforce",
  "train_unrolled",
]
