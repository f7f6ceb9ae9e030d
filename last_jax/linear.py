"""Closed forms for linear learners, z = x W + b, taught by SGD: everything follows from a few inner products.

With e = w - eta lambda w - w* (and momentum's drift), one example moves w by -eta x uᵀ, and

    G = ||e||^2 - 2 eta ⟨u, ⟨e, x⟩⟩ + eta^2 ||x||^2 ||u||^2

so teaching needs ⟨w, x⟩, which the student computes anyway, and ⟨w*, x⟩ and ||x||^2, which never change.
"""

from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np

from last_jax.base import Array, Params, Student
from last_jax.constraints import Constraint
from last_jax.learners import Learner
from last_jax.models import Linear, wide
from last_jax.optimizers import Sgd
from last_jax.quadratic import MOST_NUMBERS, Quadratic, Squares, power_of_two, safe_divide, triangular


class Geometry(NamedTuple):
  """Inner products of examples that closed forms need; constant while a student is taught."""

  target_outputs: Array  # [n, K]: ⟨w*, x⟩.
  squared_norms: Array  # [n]: ||x||^2, with one more for a bias.


def geometry(learner: Learner, target: Params, x: Array) -> Geometry:
  """Return the geometry of the examples `x [n, d]`."""
  chex.assert_rank(x, 2)
  model, _ = _parts(learner)
  norms = jnp.sum(wide(x) ** 2, 1)
  return Geometry(learner.apply(target, x), norms + 1 if model.bias else norms)


def _parts(learner: Learner) -> tuple[Linear, Sgd]:
  assert isinstance(learner.model, Linear), "closed forms are for linear models"
  assert isinstance(learner.optimizer, Sgd), "closed forms are for SGD"
  return learner.model, learner.optimizer


def is_projection(learner: Learner, constraint: Constraint) -> bool:
  """Return whether the best label of one example is the projection of the best free one: u = prediction - y there."""
  kind = learner.loss.isotropic
  return kind == "everywhere" or (kind == "on_simplex" and (constraint.hull or constraint.project is None))


def closed_form_labels(
  learner: Learner,
  student: Student,
  x: Array,
  truth: Array,
  outputs: Array,
  constraint: Constraint,
  known: Geometry,
  coasting: bool = True,
) -> Array:
  """Return the best label of each example shown on its own, for a linear learner: `x [n, d]` -> `[n, K]`.

  Free labels are y* = prediction - ⟨e, x⟩ / (eta ||x||^2), with e = w - eta lambda w - w*. For least squares that is
  the paper's y* = (1 - k) ⟨w, x⟩ + k ⟨w*, x⟩ with k = 1 / (eta ||x||^2). The nearest label of the set is the best in
  it, since ||w+ - w*|| grows with ||y - y*||. A label that would not be finite is the ground truth.
  """
  chex.assert_equal_shape([truth, outputs, known.target_outputs])
  push, scale, prediction = _best_gradients(learner, student, x, outputs, constraint, known, coasting)
  if _is_free_softmax(learner, constraint):
    # Softmax: y + t p has the same effect for every t; take the y nearest the truth.
    share = jnp.sum((truth + push) * prediction, 1) / jnp.sum(prediction**2, 1)
    free = share[:, None] * prediction - push
  else:
    free = prediction - push
  free = jnp.where((scale != 0) & jnp.isfinite(free), free, truth)  # x = 0: no label has any effect.
  if not constraint.discrete:
    return constraint.projection(learner.loss, outputs, truth)(free)
  return learner.loss.nearest_class_labels(free)


def _is_free_softmax(learner: Learner, constraint: Constraint) -> bool:
  return learner.loss.isotropic == "on_simplex" and constraint.project is None and not constraint.discrete


def _best_gradients(
  learner: Learner,
  student: Student,
  x: Array,
  outputs: Array,
  constraint: Constraint,
  known: Geometry,
  coasting: bool,
) -> tuple[Array, Array, Array]:
  """Return the u `[n, K]` that would be best for each example, eta ||x||^2 `[n, 1]`, and the predictions `[n, K]`.

  Where eta ||x||^2 is 0 no label has an effect.
  """
  drifted, rate = drift_outputs(learner, student, x, outputs, coasting)
  scale = (rate * known.squared_norms)[:, None]
  push = safe_divide(drifted - known.target_outputs, scale)
  if _is_free_softmax(learner, constraint):
    push = push - jnp.mean(push, 1, keepdims=True)  # The u of labels sum to zero.
  return push, scale, learner.loss.predict_all(outputs)


def closed_form_gap(
  learner: Learner,
  student: Student,
  x: Array,
  truth: Array,
  outputs: Array,
  constraint: Constraint,
  known: Geometry,
  labels: Array,
  coasting: bool = True,
) -> Array:
  """Return what rounding may have cost `closed_form_labels`, as a share of the possible gain: `[]`.

  It is near 1 where the best label differs from the ground truth by less than the digits of labels and outputs.
  """
  if constraint.discrete:
    return jnp.zeros((), labels.dtype)
  given = (student, x, truth, outputs, known, labels)
  student, x, truth, outputs, known, labels = jax.lax.stop_gradient(given)
  push, scale, prediction = _best_gradients(learner, student, x, outputs, constraint, known, coasting)
  project = constraint.projection(learner.loss, outputs, truth)
  start = project(truth)
  eps, width = jnp.finfo(labels.dtype).eps, labels.shape[1]
  largest = jnp.max(jnp.concatenate([jnp.abs(w).reshape(-1, width) for w in jax.tree.leaves(student.params)]), 0)
  terms = jnp.sqrt(known.squared_norms)[:, None] * largest[None]  # Outputs are sums of numbers of this size.
  slopes = jax.vmap(jax.jacfwd(learner.loss.output_gradient))(outputs, truth)
  digits = jnp.abs(labels) + jnp.abs(prediction) + jnp.sum(jnp.abs(slopes) * terms[:, None], 2)
  if learner.loss.isotropic == "on_simplex":
    digits = digits + jnp.abs(prediction) * jnp.sum(jnp.abs(labels), 1, keepdims=True)
  digits = eps * digits  # [n, K], of u.
  # The best u is ⟨w - w*, x⟩ / scale: beside small differences and steps the digits of outputs are worth much.
  blur = safe_divide(0.5 * eps * (terms + jnp.abs(known.target_outputs)), scale)  # [n, K]
  if _is_free_softmax(learner, constraint):
    gradients = jax.vmap(learner.loss.output_gradient)
    gained = jnp.sum((gradients(outputs, truth) - push) ** 2)
    missed = jnp.sum((gradients(outputs, labels) - push) ** 2 + digits**2 + blur**2)
  else:
    free = prediction - push
    gained = jnp.maximum(jnp.sum((labels - start) * ((free - start) + (free - labels))), 0.0)
    # The ground truth stays the best label, if it does for all labels that rounding cannot tell from the free one.
    middle = jnp.mean(learner.loss.class_labels_like(truth), 0)[None]
    around = free - 2 * (digits + eps * jnp.abs(free)) * jnp.sign(truth - middle)
    stays = jnp.all(project(around) == start) & jnp.all(labels == start)
    inward = 2 * digits * jnp.abs(free - labels) if constraint.hull else 0.0  # Balls: see `argmin.with_rounding`.
    # P(free + d) is best for free + d, and so it is worse than P(free) by no more than 2 ⟨d, P(free + d) - P(free)⟩.
    waves = blur * (1 - 2 * (jnp.arange(width) % 2))[None]  # The same everywhere would move no label of a simplex.
    moved = jnp.maximum(jnp.abs(project(free + waves) - labels), jnp.abs(project(free - waves) - labels))
    missed = jnp.where(stays, 0.0, jnp.sum(inward + digits**2 + 2 * blur * moved))
  return jnp.where(jnp.any(scale != 0), safe_divide(missed, missed + gained), 0.0)


def drift_outputs(
  learner: Learner, student: Student, x: Array, outputs: Array, coasting: bool
) -> tuple[Array, Array | float]:
  """Return ⟨drift, x⟩ `[n, K]` and the rate, where drift is the student after a step without gradient of the loss."""
  model, optimizer = _parts(learner)
  if optimizer.momentum is not None:
    drift, rate = learner.drift(student, coasting)
    return learner.apply(drift, x), rate
  rate = optimizer.rate(student.opt_state)
  if learner.weight_decay is None:
    return outputs, rate
  # Weight decay only shrinks the weights, so the outputs suffice: no second product with x.
  without_bias = outputs - student.params["bias"][None] if model.bias else outputs
  return outputs - rate * learner.weight_decay * without_bias, rate


def quadratic_of_batch(
  learner: Learner,
  student: Student,
  x: Array,
  outputs: Array,
  gradients: Array,
  slopes: Array,
  at: Array,
  known: Geometry,
  coasting: bool = True,
) -> Quadratic:
  """Return G around `at [m, K]` for a linear learner, from the inner products of the batch.

  Args:
    learner: the learner that takes the step.
    student: before the step.
    x: `[m, d]`.
    outputs: `[m, K]`.
    gradients: `[m, K]` u at `at`.
    slopes: `[m, K, K]` du/dy at `at`.
    at: `[m, K]` labels.
    known: the geometry of `x`.
    coasting: whether the student's momentum counts: see `targets`.
  """
  chex.assert_rank([x, slopes], [2, 3])
  chex.assert_equal_shape([outputs, gradients, at, known.target_outputs])
  drifted, rate = drift_outputs(learner, student, x, outputs, coasting)
  errors = drifted - known.target_outputs
  products = gram(learner, x)  # [m, m]
  pace = rate / x.shape[0]  # The step is along the mean of the gradients.
  # The size of the step for one unit of u is taken out before it is squared; powers of two round nothing.
  length = power_of_two(jnp.sqrt(jax.lax.stop_gradient(jnp.max(products))))
  scale = power_of_two(jnp.asarray(pace * length))
  share, products = pace * length / scale, products / length**2
  # ⟨w+ - w*, x⟩ / length for every example, after the step with labels `at`.
  after = errors / length - pace * length * products @ gradients
  if at.size > MOST_NUMBERS:
    forward, back = learner.loss.slope_products(outputs, at)

    def multiply(direction: Array) -> Array:
      return share**2 * back(products @ forward(direction))

    return Quadratic(at, multiply, -share / scale * back(after), scale)
  linear = -share / scale * jnp.einsum("ioc,io->ic", slopes, after)
  matrix = share**2 * jnp.einsum("ij,ioc,jod->icjd", products, slopes, slopes)
  return Quadratic(at, matrix, linear, scale)


def squares_of_batch(
  learner: Learner, x: Array, gradients: Array, slopes: Array, error: Params, rate: Array | float, scale: Array | float
) -> Squares | None:
  """Return the squares of `quadratic_of_batch`; None where there are too many columns.

  The examples' own factors, x = R Q, take the place of their inner products.

  Args:
    learner: the learner that takes the step.
    x: `[m, d]`.
    gradients: `[m, K]` u at `at`.
    slopes: `[m, K, K]` du/dy at `at`.
    error: w - w* before the step, with the drift.
    rate: `[]` how far one unit of gradient moves the parameters.
    scale: that of the quadratic.
  """
  if gradients.size > MOST_NUMBERS:
    return None
  inputs, rows = wide(x).T, error["weights"]  # [d, m], [d, K]
  if _parts(learner)[0].bias:
    inputs = jnp.concatenate([inputs, jnp.ones_like(inputs[:1])])
    rows = jnp.concatenate([rows, error["bias"][None]])
  basis, factors = triangular(inputs)  # [d, r], [r, m]
  factors = (rate / x.shape[0] / scale) * factors
  basis_of_outputs = np.linalg.qr(learner.loss.gradient_rows(gradients.shape[1]).T)[0].T
  shown = jnp.asarray(basis_of_outputs, gradients.dtype)  # [R, K]
  after = (basis.T @ rows / scale - factors @ gradients) @ shown.T  # [r, R]
  effects = jnp.einsum("po,ioc->ipc", shown, slopes)
  return Squares(after.reshape(-1), -jnp.einsum("ri,ipc->rpic", factors, effects).reshape(after.size, -1))


def can_track(learner: Learner) -> bool:
  """Return whether a step changes outputs by the examples shown and weight decay alone."""
  return _parts(learner)[1].momentum is None


def gram(learner: Learner, x: Array) -> Array:
  """Return ⟨x, x'⟩ of all pairs `[n, n]`, with one more for a bias: how far a step on x moves the output of x'."""
  x = wide(x)
  products = x @ x.T
  return products + 1 if _parts(learner)[0].bias else products


def outputs_after(
  learner: Learner, student: Student, outputs: Array, gram: Array, index: Array, labels: Array
) -> Array:
  """Return the outputs `[n, K]` after a step on the examples `index [m]` with `labels [m, K]`: O(m n), without weights.

  Args:
    learner: the learner that takes the step.
    student: before the step.
    outputs: its outputs for the whole pool, `[n, K]`.
    gram: `[n, n]`.
    index: `[m]`.
    labels: `[m, K]`.
  """
  chex.assert_rank([outputs, gram, index, labels], [2, 2, 1, 2])
  gradients = jax.vmap(learner.loss.output_gradient)(outputs[index], labels)  # [m, K]
  drifted, rate = drift_outputs(learner, student, outputs, outputs, coasting=False)
  return drifted - gram[index].T @ (rate / index.shape[0] * gradients)


def scores(
  learner: Learner,
  student: Student,
  x: Array,
  outputs: Array,
  labels: Array,
  known: Geometry,
  coasting: bool = True,
) -> Array:
  """Return G after one step on each example alone, without the common ||e||^2: eta^2 T1 - 2 eta T2, `[n]`."""
  chex.assert_equal_shape([outputs, labels, known.target_outputs])
  drifted, rate = drift_outputs(learner, student, x, outputs, coasting)
  gradients = jax.vmap(learner.loss.output_gradient)(outputs, labels)
  errors = drifted - known.target_outputs
  size = jnp.sum(gradients**2, 1) * known.squared_norms  # T1
  alignment = jnp.sum(gradients * errors, 1)  # T2
  return rate**2 * size - 2 * rate * alignment
