"""The paper's theory on a given problem: g(y), the premise of proposition 1, bounds, teaching sets, margins."""

from last_jax.theory.bounds import (
  Constants,
  bound_1,
  bound_2,
  bound_2_refined,
  bound_3,
  bound_3_sampled,
  constants,
  interpolating_pool,
)
from last_jax.theory.dimension import TeachingSet, teaching_set
from last_jax.theory.factors import label_factor, label_factors
from last_jax.theory.margins import Margin, induced_margin
from last_jax.theory.monotonicity import Monotonicity, monotonicity

__all__ = [
  "Constants", "Margin", "Monotonicity", "TeachingSet", "bound_1", "bound_2", "bound_2_refined", "bound_3",
  "bound_3_sampled", "constants", "induced_margin", "interpolating_pool", "label_factor", "label_factors",
  "monotonicity", "teaching_set",
]  # fmt: skip
