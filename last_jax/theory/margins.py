"""The dynamic margin that labels induce: appendix E of the paper, on large-margin softmax."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from last_jax import checks, fields, losses, models
from last_jax.base import Array, Params
from last_jax.learner import check_learner
from last_jax.learners import Learner
from last_jax.quadratic import safe_divide


@fields.documented
class Margin(NamedTuple):
  """What a label makes of an example's angle to the weights of its class.

  Attributes:
    psi: `[m]`, takes the place of the cosine.
    cosine: `[m]`, of the angle between the example and the weights of its class. As large-margin softmax has it, a psi
      below it asks for more than the ground truth does, and one above it for less.
  """

  psi: Array
  cosine: Array


def induced_margin(learner: Learner, params: Params, x: Array, labels: Array, truth: Array) -> Margin:
  """Return psi and the cosine of each example.

      psi = sum_k a_k (||w_k|| / ||w_c||) cos(angle of x and w_k) = <a, z> / (||w_c|| ||x||)

  for the label a, the outputs z and the class c. For labels that sum to one, cross-entropy is exactly
  log(sum_k exp(z_k)) - ||w_c|| ||x|| psi, where the paper has an approximation (docs/errata.md). Other labels have the
  psi of the one that sums to one and has the same gradient, a + (1 - sum of a) softmax(z). A bias counts as the weight
  of one more feature, which is 1.

  Args:
    learner: linear, softmax cross-entropy.
    params: w.
    x: `[m, d]` examples.
    labels: `[m, K]`.
    truth: `[m, K]`, whose largest entry is the class.
  """
  check_learner(learner)
  x, labels, truth = (
    jnp.asarray(checks.check_array(name, value), float)
    for name, value in (("x", x), ("labels", labels), ("truth", truth))
  )
  if not isinstance(learner.model, models.Linear) or learner.loss != losses.softmax_cross_entropy:
    raise ValueError("learner must be linear with softmax cross-entropy: a margin is an angle to a class's weights")
  checks.check_params(learner, params, "params")
  outputs = learner.apply(params, x)
  for name, value in (("labels", labels), ("truth", truth)):
    if value.shape != outputs.shape:
      raise ValueError(f"{name} must have shape {list(outputs.shape)}, but it has shape {list(value.shape)}")
  squares = jnp.sum(params["weights"] ** 2, 0)
  lengths = jnp.sum(x**2, 1)
  if learner.model.bias:
    squares, lengths = squares + params["bias"] ** 2, lengths + 1
  classes = jnp.argmax(truth, 1)
  scale = jnp.sqrt(squares[classes] * lengths)
  labels = labels + (1 - jnp.sum(labels, 1, keepdims=True)) * jax.nn.softmax(outputs)
  own = jnp.take_along_axis(outputs, classes[:, None], 1)[:, 0]
  return Margin(safe_divide(jnp.sum(labels * outputs, 1), scale), safe_divide(own, scale))
