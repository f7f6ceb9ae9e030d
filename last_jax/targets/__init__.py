"""What labels steer toward: the distance G that the next step makes small, as a quadratic in the step's labels.

A step moves the parameters by -rate times a gradient, which is affine in the labels, u = a + B y. So any quadratic in
the parameters, or in outputs linearized around them, is a quadratic in y:

    params(w*)          G = ||w+ - w*||^2_M                  exact for any learner; the paper's
    outputs(x, z)       G = ||f(w+, x) - z||^2               f linearized around w; exact for linear learners
    trajectory(w)       params, with a target per step

The matrices follow from tangent kernels, Θ(x, x') = J(x) J(x')ᵀ, the linear terms from Jacobian-vector products: no
gradient of a single example is formed.

Momentum: the student keeps moving after the step. It comes to rest at a point that moves as plain SGD does, with rate
eta / (1 - mu): that point is steered, unless `coasting=False`, which steers w+ itself, as the paper writes it.
"""

from typing import Any

from last_jax.targets.base import Step, Target, expand, sum_of_squares, value
from last_jax.targets.outputs import ToOutputs, outputs
from last_jax.targets.params import ToParams, ToTrajectory, params, trajectory

__all__ = [
  "Step", "Target", "ToOutputs", "ToParams", "ToTrajectory", "check_target", "expand", "is_target", "outputs", "params",
  "sum_of_squares", "trajectory", "value",
]  # fmt: skip


def is_target(value: Any) -> bool:
  """Return whether it comes from this module."""
  return isinstance(value, (ToParams, ToTrajectory, ToOutputs))


def check_target(name: str, target: Any) -> None:
  """Raise unless it comes from this module."""
  if not is_target(target):
    raise TypeError(f"{name} must come from last_jax.targets, as outputs(x, z), but it is a {type(target).__name__}")
