"""Greedy label synthesis, equation 1 of the paper: the labels that bring the student nearest to the target in one step.

    y* = argmin over y in the set of  G(y) = || w+(y) - w* ||^2_M ,     w+(y): the student after one step on (x, y)

The gradient of the loss in the outputs is affine in the label, u = a + B y, and an SGD step is affine in the gradient.
So y ↦ w+ is affine and G is a convex quadratic in the m K numbers of the labels, for any model: linearize the step
once, then solve that quadratic exactly. Three roads lead to it, each tested against the others:

- `linear.closed_form_labels`: a linear learner shown one example; the label is a projection.
- `linear.quadratic_of_batch`: a linear learner shown a batch; the quadratic from inner products of the examples.
- `quadratic_of_step`: any learner; the quadratic by autodiff.

Labels come with a `Certificate`: the road taken, whether they are a global optimum, and the residual that is left.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, overload

import chex
import jax
import jax.numpy as jnp
import optax

from last_jax import checks, linear, quadratic, scalar_map
from last_jax.base import Array, Certificate, Params, Student
from last_jax.constraints import Constraint, none
from last_jax.learners import Learner
from last_jax.linear import Geometry
from last_jax.losses import Loss
from last_jax.quadratic import Quadratic, power_of_two

_GAUSS_NEWTON_STEPS = 10  # Where the step is not affine in the label (Adam): linearizations, each with a line search.
_LINE_SEARCH = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01)
_STARTS = (0.25, 0.5, 0.75, 1.0)  # Shares of the way from the ground truth at which Gauss-Newton may start, too.


def squared_distance(params: Params, target: Params, layer_weights: Any = None) -> Array:
  """Return ||w - w*||^2 `[]`, each leaf weighted by `layer_weights`, a prefix of the parameters' tree (None: 1)."""
  # Flat before the difference: on a CPU, XLA sums the squares of [d, 1] arrays several times as slowly as of [d].
  squares = jax.tree.map(lambda w, goal: jnp.sum((jnp.ravel(w) - jnp.ravel(goal)) ** 2), params, target)
  weights = _broadcast_weights(layer_weights, squares)
  return jax.tree.reduce(jnp.add, jax.tree.map(jnp.multiply, weights, squares))


def distance(params: Params, target: Params, layer_weights: Any = None) -> Array:
  """Return ||w - w*|| `[]`, whose derivative at the target is zero."""
  square = squared_distance(params, target, layer_weights)
  zero = square == 0
  return jnp.where(zero, 0.0, jnp.sqrt(jnp.where(zero, 1.0, square)))


def _broadcast_weights(layer_weights: Any, params: Params) -> Params:
  if layer_weights is None:
    return jax.tree.map(lambda _: 1.0, params)
  return jax.tree.map(lambda weight, layer: jax.tree.map(lambda _: weight, layer), layer_weights, params)


@overload
def synthesize_labels(
  learner: Learner, params: Params, target: Params, x: Array, y: Array, constraint: Constraint | None = None, *,
  opt_state: Any = None, layer_weights: Any = None, with_certificate: Literal[False] = False,
) -> Array: ...  # fmt: skip
@overload
def synthesize_labels(
  learner: Learner, params: Params, target: Params, x: Array, y: Array, constraint: Constraint | None = None, *,
  opt_state: Any = None, layer_weights: Any = None, with_certificate: Literal[True],
) -> tuple[Array, Certificate]: ...  # fmt: skip


def synthesize_labels(
  learner: Learner,
  params: Params,
  target: Params,
  x: Array,
  y: Array,
  constraint: Constraint | None = None,
  *,
  opt_state: Any = None,
  layer_weights: Any = None,
  with_certificate: bool = False,
) -> Array | tuple[Array, Certificate]:
  """Return the labels that bring `params` nearest to `target` in one step on the batch `x`. A pure function.

  Args:
    learner: the learner that takes the step.
    params: w, the student's parameters.
    target: w*, the parameters to reach.
    x: `[m, ...]` examples, shown together in one step.
    y: their ground truth: `[m]` class ids or real targets, or `[m, K]` label vectors. Of labels with the same effect
      (x = 0, or a direction of label space without effect), those nearest to the ground truth are chosen.
    constraint: the set to choose from; `constraints.none()` unless given.
    opt_state: the optimizer's state (momentum); a fresh one unless given.
    layer_weights: M, weights of parts of the parameters, as a prefix of their tree: {"layer_0": beta, "layer_1": 1.0}.
    with_certificate: whether to return a `Certificate` too.

  Returns:
    `[m, K]` labels, or labels and their certificate.
  """
  x, y = jnp.asarray(x), jnp.asarray(y)
  x = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)
  checks.check_inputs(learner, x, "x")
  checks.check_labels(learner, x, y, "y")
  checks.check_finite("x", x)
  checks.check_finite("y", y)
  checks.check_params(learner, params, "params")
  checks.check_params(learner, target, "target")
  checks.check_layer_weights(layer_weights, params)
  student = learner.start(params)
  student = student if opt_state is None else student._replace(opt_state=opt_state)
  constraint = none() if constraint is None else constraint
  problem = (learner, student, target, x, learner.encode(x, y), constraint)
  return _greedy_labels(*problem, layer_weights=layer_weights, with_certificate=bool(with_certificate))


def greedy_labels(
  learner: Learner,
  student: Student,
  target: Params,
  x: Array,
  truth: Array,
  constraint: Constraint,
  *,
  layer_weights: Any = None,
  known: Geometry | None = None,
) -> tuple[Array, Certificate]:
  """Return labels `[m, K]` as `synthesize_labels` does, for a student, `truth [m, K]`, and a known geometry of `x`."""
  if constraint.project is None and not constraint.discrete and constraint.radius is not None:
    raise ValueError(f"constraint {constraint.name!r} has a radius but no projection")
  chex.assert_rank(truth, 2)
  chex.assert_equal_shape_prefix([x, truth], 1)
  batch, width = truth.shape
  outputs = learner.apply(student.params, x)
  chex.assert_equal_shape([outputs, truth])
  if learner.is_linear and layer_weights is None:
    known = linear.geometry(learner, target, x) if known is None else known
    if batch == 1 and linear.is_projection(learner, constraint):
      labels = linear.closed_form_labels(learner, student, x, truth, outputs, constraint, known)
      return labels, quadratic.solved_directly(labels, "closed form")

  def expand(gradients: Array, slopes: Array, at: Array) -> Quadratic:
    """Return G around `at`, from u `[m, K]` and du/dat `[m, K, K]`."""
    if known is not None:
      return linear.quadratic_of_batch(learner, student, x, outputs, gradients, slopes, at, known)
    return quadratic_of_step(learner, student, target, x, gradients, slopes, at, layer_weights)

  def expand_in_labels(labels: Array) -> Quadratic:
    gradients = jax.vmap(learner.loss.output_gradient)(outputs, labels)
    return expand(gradients, jax.vmap(learner.loss.label_slope)(outputs, labels), labels)

  affine_step = learner.optimizer.is_affine(student.params)
  if affine_step and learner.loss.is_affine(width):
    return best_labels(learner.loss, constraint, expand_in_labels(truth), outputs, truth)
  if affine_step and learner.loss.scalar_map is not None:
    return scalar_map.labels_through_map(learner, learner.loss.scalar_map, outputs, truth, constraint, expand)

  def distance_after(labels: Array) -> Array:
    return squared_distance(learner.step(student, x, labels).params, target, layer_weights)

  starts = _starts(learner.loss, outputs, truth)
  return labels_numerically(learner, constraint, expand_in_labels, distance_after, outputs, truth, starts)


@functools.partial(jax.jit, static_argnames="with_certificate")  # Learner and constraint are pytrees.
def _greedy_labels(*problem: Any, layer_weights: Any = None, with_certificate: bool = False) -> Any:
  """Return `greedy_labels`, compiled, for callers who do not compile; without a certificate none is computed."""
  labels, certificate = greedy_labels(*problem, layer_weights=layer_weights)
  return (labels, certificate) if with_certificate else labels


# --- The quadratic of a step, and its minimiser over a set.


def quadratic_of_step(
  learner: Learner,
  student: Student,
  target: Params,
  x: Array,
  gradients: Array,
  slopes: Array,
  at: Array,
  layer_weights: Any = None,
) -> Quadratic:
  """Return G around `at [m, K]` for any learner: the step's derivative in the labels, by autodiff.

  Args:
    gradients: `[m, K]` u at `at`.
    slopes: `[m, K, K]` du/dy at `at`.
  """
  batch, width = at.shape
  chex.assert_shape([gradients, slopes], [(batch, width), (batch, width, width)])
  _, pull_batch = jax.vjp(lambda params: learner.apply(params, x), student.params)
  (gradient,) = pull_batch(gradients / batch)
  after, derivative = jax.linearize(lambda g: learner.update(student, g).params, gradient)
  affine = learner.optimizer.is_affine(student.params)

  def push(tangent: Params) -> Params:
    moved = derivative(tangent)
    # Adam has no derivative at a gradient of zero.
    return moved if affine else jax.tree.map(lambda leaf: jnp.where(jnp.isfinite(leaf), leaf, 0.0), moved)

  # How far one unit of gradient moves the parameters is taken out of the columns before they are squared.
  moved = jax.tree.leaves(push(jax.tree.map(jnp.ones_like, gradient)))
  scale = power_of_two(jnp.stack([jnp.max(jnp.abs(leaf)) for leaf in moved]))

  def column(x_one: Array, slope: Array) -> Params:
    _, pull = jax.vjp(lambda params: learner.apply(params, x_one[None])[0], student.params)
    return push(pull(slope / (batch * scale))[0])

  columns = jax.vmap(jax.vmap(column, (None, 1)))(x, slopes)  # dw+/dy / scale, leaves [m, K, ...].
  rows = [leaf.reshape(batch * width, -1) for leaf in jax.tree.leaves(columns)]
  errors = [leaf.reshape(-1) for leaf in jax.tree.leaves(optax.tree.sub(after, target))]
  weights = jax.tree.leaves(_broadcast_weights(layer_weights, target))
  matrix = sum(weight * flat @ flat.T for weight, flat in zip(weights, rows, strict=True))
  linear = sum(weight * flat @ error for weight, flat, error in zip(weights, rows, errors, strict=True))
  return Quadratic(at, matrix.reshape(at.shape * 2), (linear / scale).reshape(at.shape), scale)


def best_labels(
  loss: Loss, constraint: Constraint, problem: Quadratic, outputs: Array, truth: Array
) -> tuple[Array, Certificate]:
  """Return the minimiser of the quadratic over the constraint set, `[m, K]`."""
  chex.assert_equal_shape([problem.at, outputs, truth])
  if constraint.discrete:
    return quadratic.minimise_discrete(problem, loss.class_labels_like(truth), constraint.max_combinations)
  if constraint.project is None:
    return quadratic.minimise_free(problem)
  project = constraint.projection(loss, outputs, truth)
  if constraint.hull and truth.shape[1] == 2:
    return _minimise_on_segment(problem, project, loss.class_labels_like(truth))
  return quadratic.minimise(problem, project)


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
  best, certificate = quadratic.minimise(reduced, lambda t: jnp.clip(t, low, high))
  labels = class_labels[:1] + best * direction[None]
  return labels, dataclasses.replace(certificate, residual=quadratic.residual(problem, project, labels))


# --- Where the step is not affine in the label.


def _starts(loss: Loss, outputs: Array, truth: Array) -> Array:
  """Return labels `[s, m, K]` on the way from the ground truth to its mirror image, and to the prediction.

  At the ground truth the step may not depend on the label at all: hinge loss beyond its margin, a gradient that is
  clipped. The one way leads through the middle of the classes to the other side, the other to where errors are small.
  """
  mirrored = 2 * jnp.mean(loss.class_labels_like(truth), 0)[None] - truth
  prediction = outputs if loss.predict is None else loss.predict_all(outputs)
  shares = jnp.array(_STARTS, truth.dtype)[:, None, None]
  return jnp.concatenate([truth[None] + shares * (end - truth)[None] for end in (mirrored, prediction)])


def labels_numerically(
  learner: Learner,
  constraint: Constraint,
  expand_at: Callable[[Array], Quadratic],
  distance: Callable[[Array], Array],
  outputs: Array,
  truth: Array,
  starts: Array | None = None,
) -> tuple[Array, Certificate]:
  """Return labels `[m, K]` by Gauss-Newton: linearize the step, solve exactly, move as far as it helps, repeat.

  A local minimum of G, and never worse than the label of the set that is nearest to the ground truth.

  Args:
    expand_at: `labels [m, K]` -> G of the step linearized there.
    distance: `labels [m, K]` -> G itself, `[]`.
    starts: `[s, m, K]` labels; Gauss-Newton starts from the best of them too, and the better of both answers is taken.
  """

  def best_of(candidates: Array) -> Array:
    """Return the best of `[s, m, K]`, the first of several."""
    distances = jax.lax.map(distance, candidates)
    return candidates[jnp.argmin(jnp.where(jnp.isnan(distances), jnp.inf, distances))]

  project = constraint.projection(learner.loss, outputs, truth)
  first = project(truth)[None]
  if starts is not None:
    first = jnp.concatenate([first, best_of(jax.vmap(project)(starts))[None]])

  if constraint.discrete:
    nearest = learner.loss.nearest_class_labels(truth)[None]
    if truth.shape[0] == 1:  # Few enough to try every class through the optimizer itself.
      labels = best_of(jnp.concatenate([nearest, learner.loss.class_labels_like(truth)[:, None]]))
      return labels, quadratic.solved_directly(labels, "enumeration")

    def relabel(at: Array) -> Array:
      return best_labels(learner.loss, constraint, expand_at(at), outputs, truth)[0]

    labels = best_of(jnp.concatenate([nearest, jax.lax.map(relabel, first)]))
    return labels, quadratic.solved_directly(labels, "Gauss-Newton", exact=False)

  def improve(labels: Array, _: Any) -> tuple[Array, None]:
    goal, _ = best_labels(learner.loss, constraint, expand_at(labels), outputs, truth)
    goal = jnp.where(jnp.isfinite(goal), goal, labels)  # Where the step hardly depends on a label, this may overflow.
    shares = jnp.array((0.0, *_LINE_SEARCH), labels.dtype)
    return best_of(labels[None] + shares[:, None, None] * (goal - labels)[None]), None

  def search(start: Array) -> Array:
    return jax.lax.scan(improve, start, length=_GAUSS_NEWTON_STEPS)[0]

  labels = best_of(jax.lax.map(search, first))
  left = quadratic.residual(expand_at(labels), project, labels)
  count = jnp.full((), _GAUSS_NEWTON_STEPS)
  return labels, Certificate(residual=left, iterations=count, exact=False, road="Gauss-Newton")
