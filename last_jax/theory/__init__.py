"""The paper's theory on a given problem: g(y), the premise of proposition 1, the bounds of theorems 1 to 3."""

from last_jax.theory.bounds import (
  Constants,
  bound_1,
  bound_2,
  bound_2_refined,
  bound_3,
  constants,
  interpolating_pool,
)
from last_jax.theory.factors import label_factor, label_factors
from last_jax.theory.monotonicity import Monotonicity, monotonicity

__all__ = [
  "Constants", "Monotonicity", "bound_1", "bound_2", "bound_2_refined", "bound_3", "constants", "interpolating_pool",
  "label_factor", "label_factors", "monotonicity",
]  # fmt: skip
