"""The paper's theory, measured on a given problem: g(y), and the bounds of theorems 1 to 3."""

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

__all__ = [
  "Constants", "bound_1", "bound_2", "bound_2_refined", "bound_3", "constants", "interpolating_pool", "label_factor",
  "label_factors",
]  # fmt: skip
