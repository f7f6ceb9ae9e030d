"""What labels steer toward: the distance G that the next step makes small, as a quadratic in the step's labels.

A step moves the parameters by -rate times a gradient, which is affine in the labels, u = a + B y. So any quadratic in
the parameters, or in outputs linearized around them, is a quadratic in y, and so is the second-order model of any
other convex function of them:

    params(w*)          G = ||w+ - w*||^2_M                  exact for any learner; the paper's
    outputs(x, z)       G = ||f(w+, x) - z||^2               f linearized around w; exact for linear learners
    trajectory(w)       params, with a target per step
    loss(validation)    G = mean loss(f(w+, x), y)           f linearized, the loss to second order in f; no w*

The matrices follow from tangent kernels, Θ(x, x') = J(x) J(x')ᵀ, the linear terms from Jacobian-vector products: no
gradient of a single example is formed.

Momentum: the student keeps moving after the step. It comes to rest at a point that moves as plain SGD does, with rate
eta / (1 - mu): that point is steered, unless `coasting=False`, which steers w+ itself, as the paper writes it.
"""

from typing import Any

from last_jax.targets.base import Local, Step, Target, along, expand, value
from last_jax.targets.loss import ToLoss, ToNewtonPoint, loss, validation_losses
from last_jax.targets.outputs import ToOutputs, outputs
from last_jax.targets.params import ToParams, ToTrajectory, params, trajectory

__all__ = [
  "Local", "Step", "Target", "ToLoss", "ToNewtonPoint", "ToOutputs", "ToParams", "ToTrajectory", "along",
  "check_target", "expand", "is_target", "loss", "outputs", "params", "trajectory", "validation_losses", "value",
]  # fmt: skip


def is_target(value: Any) -> bool:
  """Return whether it comes from this module."""
  return isinstance(value, (ToParams, ToTrajectory, ToOutputs, ToLoss, ToNewtonPoint))


def check_target(name: str, target: Any) -> None:
  """Raise unless it comes from this module."""
  if not is_target(target):
    raise TypeError(f"{name} must come from last_jax.targets, as outputs(x, z), but it is a {type(target).__name__}")
