"""Scalar labels whose u is not affine in them, as those of the margin form of the logistic loss.

G is quadratic in u, the gradient of the loss in the output: choose u, then a label that gives it (`margin.ScalarMap`).
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from last_jax import projected, quadratic
from last_jax.base import Array, Certificate
from last_jax.constraints import Constraint
from last_jax.learners import Learner
from last_jax.margin import ScalarMap
from last_jax.quadratic import Quadratic, safe_divide


def labels_through_map(
  learner: Learner,
  through: ScalarMap,
  outputs: Array,
  truth: Array,
  constraint: Constraint,
  expand: Callable[[Array, Array, Array], Quadratic],
) -> tuple[Array, Certificate]:
  """Return scalar labels whose u is not affine in them: G is quadratic in u, so choose u, then a label that gives it.

  The certificate is that of the problem in u, at the u of the labels.
  """
  gradients = jax.vmap(learner.loss.output_gradient)(outputs, truth)
  problem = expand(gradients, jnp.ones((*truth.shape, 1), truth.dtype), gradients)
  if constraint.discrete:
    return _discrete_through_map(learner, outputs, problem, constraint)
  # The ends of each label's interval: where the set meets the ends of the line.
  project = constraint.projection(learner.loss, outputs, truth)
  infinity = jnp.full_like(truth, jnp.inf)
  if constraint.project is None:
    low, high = -infinity, infinity
  else:
    far = jnp.full_like(truth, jnp.sqrt(jnp.finfo(truth.dtype).max))
    low, high = project(-far), project(far)
  least, most = through.reachable(outputs, low, high)
  best, certificate = projected.minimise(problem, lambda u: jnp.clip(u, least, most))
  labels = through.label_of(best, outputs, low, high, truth)
  unmoved = jnp.abs(best - gradients) == 0  # An example without effect: its label does not change.
  labels = jnp.where(unmoved & (truth >= low) & (truth <= high), truth, labels)
  reached = jax.vmap(learner.loss.output_gradient)(outputs, labels)
  left = quadratic.residual(problem, lambda u: jnp.clip(u, least, most), reached)
  return labels, dataclasses.replace(certificate, residual=left, road="scalar map")


def _discrete_through_map(
  learner: Learner, outputs: Array, problem: Quadratic, constraint: Constraint
) -> tuple[Array, Certificate]:
  """Return one-hot labels of a scalar map: two values of u per example, which differ from example to example."""
  class_labels = learner.loss.class_labels_like(outputs)  # [2, 1]
  ends = jax.vmap(lambda z: jax.vmap(lambda y: learner.loss.output_gradient(z, y))(class_labels))(outputs)  # [m, 2, 1]
  # In shares t of the way from the one value of u to the other, the choice is between 0 and 1 for every example.
  direction = ends[:, 1] - ends[:, 0]
  slope = problem.linear + jnp.einsum("ikjl,jl->ik", problem.matrix, ends[:, 0] - problem.at)
  truth_share = safe_divide(problem.at - ends[:, 0], direction)
  matrix = problem.matrix * direction[:, :, None, None] * direction[None, None]
  linear = slope * direction + jnp.einsum("ikjl,jl->ik", matrix, truth_share)
  shares = jnp.array([[0.0], [1.0]], outputs.dtype)
  reduced = Quadratic(truth_share, matrix, linear)
  chosen, certificate = quadratic.minimise_discrete(reduced, shares, constraint.max_combinations)
  return class_labels[:1] + chosen * (class_labels[1:] - class_labels[:1]), certificate
