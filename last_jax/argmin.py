"""The labels of a set that minimise a quadratic: each kind of set has a solver of its own, chosen here."""

import dataclasses

import chex
import jax
import jax.numpy as jnp

from last_jax import free, projected, quadratic, sparse
from last_jax.base import Array, Certificate
from last_jax.constraints import Constraint, simplex
from last_jax.losses import Loss
from last_jax.quadratic import Quadratic

_ROUNDINGS = 8  # Of outputs and labels: outputs are sums.


def best_labels(
  loss: Loss, constraint: Constraint, problem: Quadratic, outputs: Array, truth: Array
) -> tuple[Array, Certificate]:
  """Return the minimiser of the quadratic over the constraint set, `[m, K]`."""
  chex.assert_equal_shape([problem.at, outputs, truth])
  if callable(problem.matrix) and (constraint.discrete or constraint.is_sparse(truth.shape[1])):
    raise ValueError(
      f"constraint {constraint.name!r} needs the matrix of the label problem, which is not formed for {truth.shape[0]} "
      f"labels of length {truth.shape[1]}: use a smaller batch, or simplex()"
    )
  if constraint.discrete:
    class_labels = loss.class_labels_like(truth)
    labels, certificate = quadratic.minimise_discrete(problem, class_labels, constraint.max_combinations)
    if constraint.max_nonzero is None or certificate.exact:
      return labels, certificate
    mixtures, nearest = simplex().projection(loss, outputs, truth), loss.nearest_class_labels(truth)
    gap = sparse.relative_gap(problem, mixtures, class_labels, labels, nearest)
    return labels, dataclasses.replace(certificate, gap=gap)
  if constraint.project is None:
    return free.minimise(problem)
  project = constraint.projection(loss, outputs, truth)
  if constraint.is_sparse(truth.shape[1]):
    assert constraint.max_nonzero is not None
    relaxed = simplex().projection(loss, outputs, truth)
    return sparse.minimise(problem, project, relaxed, constraint.max_nonzero, constraint.max_combinations, truth)
  if constraint.hull and truth.shape[1] == 2 and not callable(problem.matrix):
    return _minimise_on_segment(problem, project, loss.class_labels_like(truth))
  labels, certificate = projected.minimise(problem, project)
  return labels, with_rounding(certificate, constraint, labels)


def with_rounding(certificate: Certificate, constraint: Constraint, labels: Array) -> Certificate:
  """Return the certificate of labels in a ball, with a gap where rounding moves them by a part of its radius."""
  if constraint.radius is None or constraint.hull:
    return certificate
  rounding = _ROUNDINGS * jnp.finfo(labels.dtype).eps * jnp.max(jnp.abs(jax.lax.stop_gradient(labels)))
  share = rounding / jax.lax.stop_gradient(jnp.asarray(constraint.radius, labels.dtype))
  share = share if certificate.gap is None else share + certificate.gap
  return dataclasses.replace(certificate, gap=jnp.minimum(share, 1.0))


def _minimise_on_segment(
  problem: Quadratic, project: quadratic.BatchProjection, class_labels: Array
) -> tuple[Array, Certificate]:
  """Minimise over mixtures of two classes, (1 - t, t): one number per example, in an interval, instead of two."""
  direction = class_labels[1] - class_labels[0]
  # The ends of the set, as shares t, are where it meets the ends of the segment.
  low = project(jnp.broadcast_to(class_labels[0], problem.at.shape))[:, 1:]
  high = project(jnp.broadcast_to(class_labels[1], problem.at.shape))[:, 1:]
  # Expand around a point of the segment: G's slope there, and its curvature along it.
  shares = jnp.clip(project(problem.at)[:, 1:], low, high)
  base = class_labels[:1] + shares * direction[None]
  slope = problem.linear + jnp.einsum("ikjl,jl->ik", problem.matrix, base - problem.at)
  reduced = Quadratic(
    shares,
    jnp.einsum("ikjl,k,l->ij", problem.matrix, direction, direction)[:, None, :, None],
    (slope @ direction)[:, None],
  )
  best, certificate = projected.minimise(reduced, lambda t: jnp.clip(t, low, high))
  labels = class_labels[:1] + best * direction[None]
  return labels, dataclasses.replace(certificate, residual=quadratic.residual(problem, project, labels))
