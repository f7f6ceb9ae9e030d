"""g(y) of the paper's section 3.4: by what labels scale the gradient that the ground truth would give."""

import jax
import jax.numpy as jnp

from last_jax import checks
from last_jax.base import Array, Params
from last_jax.learner import check_learner
from last_jax.learners import Learner
from last_jax.losses import rows
from last_jax.quadratic import safe_divide


def label_factors(learner: Learner, params: Params, x: Array, y: Array, truth: Array) -> Array:
  """Return the factor of each output, `[m, K]`: labels y scale entry k of u, the gradient in the outputs, by factor k.

  With these as a diagonal matrix, the gradient of least squares with weights `[d, K]` under y is exactly that under the
  ground truth times diag(factors): a learning rate of its own for each output. Infinite where the ground truth gives an
  output no gradient and y gives one, and 1 where neither does.

  Args:
    learner: of any model and loss, with one label for each example.
    params: w.
    x: `[m, ...]` examples.
    y: `[m, K]` labels, or `[m]` with one output.
    truth: the same, the ground truth.
  """
  check_learner(learner)
  checks.check_params(learner, params, "params")
  x, y, truth = (
    jnp.asarray(checks.check_array(name, value), float) for name, value in (("x", x), ("y", y), ("truth", truth))
  )
  outputs = learner.apply(params, x)
  if outputs.ndim != 2:
    raise ValueError(f"learner must have one label for each example, but its outputs have shape {list(outputs.shape)}")
  for name, value in (("y", y), ("truth", truth)):
    if value.size != outputs.size or value.shape[:1] != outputs.shape[:1]:
      raise ValueError(f"{name} must have shape {list(outputs.shape)}, but it has shape {list(value.shape)}")
  gradient = jax.vmap(learner.loss.output_gradient)
  ours, theirs = (gradient(outputs, rows(jnp.reshape(label, outputs.shape))) for label in (y, truth))
  missing = jnp.where(ours == 0, 1.0, jnp.inf)
  return jnp.where(theirs == 0, missing, safe_divide(ours, theirs))


def label_factor(learner: Learner, params: Params, x: Array, y: Array, truth: Array) -> Array:
  """Return g(y), `[m]`: the mean of the factors of the outputs.

      g(y) = (1/K) sum_k u_k(y) / u_k(truth) ,     for least squares   (1/K) sum_k (y_k - z_k) / (truth_k - z_k)

  With one output it is the paper's g(y), and the gradient under y is g(y) times that under the ground truth. With
  several, that is so exactly where all factors are equal, which labels of theorems 1 and 2 are.

  Note on the paper. It divides by d, the number of features, where there are K summands: then g would be K c / d for
  labels that scale every entry by c. Read as a matrix, the column u(y) times the row 1 / u(truth), its formula is exact
  for any labels, again with 1/K: it takes the gradient `[K, d]` under the truth to that under y. This g(y) is the
  trace of that matrix and its only eigenvalue that is not zero.
  """
  return jnp.mean(label_factors(learner, params, x, y, truth), 1)
