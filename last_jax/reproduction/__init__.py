"""The paper's figures as experiments, their claims and verdicts, and the report on them."""

from last_jax.reproduction.claims import Claim, Comparison, Reading, Verdict, judge
from last_jax.reproduction.config import SEEDS, SIZES, Figure, Method, Outcome, Size
from last_jax.reproduction.figures import FIGURES
from last_jax.reproduction.report import Finding, write_report
from last_jax.reproduction.storage import Stored, load, save
from last_jax.reproduction.workers import Finished, run_figures

__all__ = [
  "FIGURES",
  "SEEDS",
  "SIZES",
  "Claim",
  "Comparison",
  "Figure",
  "Finding",
  "Finished",
  "Method",
  "Outcome",
  "Reading",
  "Size",
  "Stored",
  "Verdict",
  "judge",
  "load",
  "run_figures",
  "save",
  "write_report",
]
