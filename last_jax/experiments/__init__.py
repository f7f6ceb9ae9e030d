"""The paper's figures as experiments: each an entry with its data, learner, methods, settings and claims."""

from last_jax.experiments.claims import Claim, Comparison, Verdict, judge
from last_jax.experiments.config import SEEDS, SIZES, Figure, Outcome, Size
from last_jax.experiments.figures import FIGURES
from last_jax.experiments.storage import Stored, load, save

__all__ = [
  "FIGURES",
  "SEEDS",
  "SIZES",
  "Claim",
  "Comparison",
  "Figure",
  "Outcome",
  "Size",
  "Stored",
  "Verdict",
  "judge",
  "load",
  "save",
]
