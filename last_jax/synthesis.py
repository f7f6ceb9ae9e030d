"""Greedy label synthesis, equation 1 of the paper: the labels that bring the student nearest to the target in one step.

    y* = argmin over y in the set of  G(y) = || w+(y) - w* ||^2_M ,     w+(y): the student after one step on (x, y)

The gradient of the loss in the outputs is affine in the label, u = a + B y, and an SGD step is affine in the gradient.
So y ↦ w+ is affine and G is a convex quadratic in the m K numbers of the labels, for any model: linearize the step
once, then solve that quadratic exactly. Three roads lead to it, each tested against the others:

- `linear.closed_form_labels`: a linear learner shown one example; the label is a projection.
- `linear.quadratic_of_batch`: a linear learner shown a batch; the quadratic from inner products of the examples.
- `quadratic_of_step`: any learner; the quadratic by autodiff.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from last_jax import checks, linear, quadratic
from last_jax.constraints import Constraint, none
from last_jax.learners import Learner
from last_jax.linear import Geometry
from last_jax.losses import Loss
from last_jax.margin import ScalarMap
from last_jax.quadratic import Quadratic, safe_divide
from last_jax.types import Array, Params, Student

_GAUSS_NEWTON_STEPS = 10  # Where the step is not affine in the label (Adam): linearizations, each with a line search.
_LINE_SEARCH = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01)


def squared_distance(params: Params, target: Params, layer_weights: Any = None) -> Array:
  """||w - w*||^2, each leaf weighted by its entry in `layer_weights`, a prefix of the parameters' tree (None: by 1)."""
  # Flat before the difference: on a CPU, XLA sums the squares of [d, 1] arrays several times as slowly as of [d].
  squares = jax.tree.map(lambda w, goal: jnp.sum((jnp.ravel(w) - jnp.ravel(goal)) ** 2), params, target)
  weights = _broadcast_weights(layer_weights, squares)
  return jax.tree.reduce(jnp.add, jax.tree.map(jnp.multiply, weights, squares))


def _broadcast_weights(layer_weights: Any, params: Params) -> Params:
  if layer_weights is None:
    return jax.tree.map(lambda _: 1.0, params)
  return jax.tree.map(lambda weight, layer: jax.tree.map(lambda _: weight, layer), layer_weights, params)


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
) -> Array:
  """The labels that bring `params` nearest to `target` in one step on the batch `x`. Pure; the heart of the package.

  Args:
    learner: whose step it is.
    params: w, where the student is.
    target: w*, where it should go.
    x: `[m, ...]` examples, shown together in one step.
    y: their ground truth: `[m]` class ids or real targets, or `[m, K]` label vectors. Where labels make no difference
      (x = 0, or a direction of label space without effect), the ground truth is kept.
    constraint: the set to choose from; `constraints.none()` unless given.
    opt_state: the optimizer's state (momentum); a fresh one unless given.
    layer_weights: M, weights of parts of the parameters, as a prefix of their tree: {"layer_0": beta, "layer_1": 1.0}.

  Returns:
    `[m, K]` labels.
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
  return _greedy_labels(learner, student, target, x, learner.encode(x, y), constraint, layer_weights=layer_weights)


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
) -> Array:
  """As `synthesize_labels`, for a student, `truth [m, K]`, and a geometry of `x` that may be known already."""
  if constraint.project is None and not constraint.discrete and constraint.radius is not None:
    raise ValueError(f"constraint {constraint.name!r} has a radius but no projection")
  batch, width = truth.shape
  outputs = learner.apply(student.params, x)
  if learner.is_linear and layer_weights is None:
    known = linear.geometry(learner, target, x) if known is None else known
    if batch == 1 and linear.is_projection(learner, constraint):
      return linear.closed_form_labels(learner, student, x, truth, outputs, constraint, known)

  def expand(gradients: Array, slopes: Array, at: Array) -> Quadratic:
    """G around `at`, from u `[m, K]` and du/dat `[m, K, K]`."""
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
    return _labels_through_map(learner, learner.loss.scalar_map, outputs, truth, constraint, expand)

  def distance(labels: Array) -> Array:
    return squared_distance(learner.step(student, x, labels).params, target, layer_weights)

  return labels_numerically(learner, constraint, expand_in_labels, distance, outputs, truth)


_greedy_labels = jax.jit(greedy_labels)  # For callers who do not compile: learner and constraint are pytrees.


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
  """G around `at` for any learner: the step's derivative in the labels, by autodiff.

  Args:
    gradients: `[m, K]` u at `at`.
    slopes: `[m, K, K]` du/dy at `at`.
  """
  batch, width = at.shape

  def pull_back(x_one: Array, gradient: Array, slope: Array) -> tuple[Params, Params]:
    _, pull = jax.vjp(lambda params: learner.apply(params, x_one[None])[0], student.params)
    return pull(gradient / batch)[0], jax.vmap(lambda column: pull(column / batch)[0])(slope.T)

  per_example, directions = jax.vmap(pull_back)(x, gradients, slopes)  # Leaves [m, ...] and [m, K, ...].
  gradient = jax.tree.map(lambda leaf: jnp.sum(leaf, 0), per_example)
  after, push = jax.linearize(lambda g: learner.update(student, g).params, gradient)
  columns = jax.vmap(jax.vmap(push))(directions)  # dw+/dy, leaves [m, K, ...].
  error = optax.tree.sub(after, target)
  weights = _broadcast_weights(layer_weights, error)

  def contribution(weight: Any, column: Array, error: Array) -> tuple[Array, Array]:
    flat = column.reshape(batch * width, -1)
    return weight * flat @ flat.T, weight * flat @ error.reshape(-1)

  parts = jax.tree.leaves(jax.tree.map(contribution, weights, columns, error), is_leaf=lambda p: isinstance(p, tuple))
  matrix, linear = (sum(values) for values in zip(*parts, strict=True))
  return Quadratic(at, matrix.reshape(batch, width, batch, width), linear.reshape(batch, width))


def best_labels(loss: Loss, constraint: Constraint, problem: Quadratic, outputs: Array, truth: Array) -> Array:
  """The minimiser of the quadratic over the constraint set, `[m, K]`."""
  if constraint.discrete:
    return quadratic.minimise_discrete(problem, loss.class_labels_like(truth), constraint.max_combinations)
  if constraint.project is None:
    return quadratic.minimise_free(problem)
  project = constraint.projection(loss, outputs, truth)
  if constraint.hull and truth.shape[1] == 2:
    return _minimise_on_segment(problem, project, loss.class_labels_like(truth))
  return quadratic.minimise(problem, project)


def _minimise_on_segment(problem: Quadratic, project: quadratic.BatchProjection, class_labels: Array) -> Array:
  """Mixtures of two classes are (1 - t, t): one number per example, in an interval, instead of two."""
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
  best = quadratic.minimise(reduced, lambda t: jnp.clip(t, low, high))
  return class_labels[:1] + best * direction[None]


# --- Where the step is not affine in the label.


def _labels_through_map(
  learner: Learner,
  through: ScalarMap,
  outputs: Array,
  truth: Array,
  constraint: Constraint,
  expand: Callable[[Array, Array, Array], Quadratic],
) -> Array:
  """Scalar labels whose u is not affine in them: G is quadratic in u, so choose u, then the label that gives it."""
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
  best = quadratic.minimise(problem, lambda u: jnp.clip(u, least, most))
  labels = through.label_of(best, outputs, low, high, truth)
  unmoved = jnp.abs(best - gradients) == 0  # An example without effect keeps its label as it is.
  return jnp.where(unmoved & (truth >= low) & (truth <= high), truth, labels)


def _discrete_through_map(learner: Learner, outputs: Array, problem: Quadratic, constraint: Constraint) -> Array:
  """One-hot labels of a scalar map: two values of u per example, which differ from example to example."""
  class_labels = learner.loss.class_labels_like(outputs)  # [2, 1]
  ends = jax.vmap(lambda z: jax.vmap(lambda y: learner.loss.output_gradient(z, y))(class_labels))(outputs)  # [m, 2, 1]
  # In shares t of the way from the one value of u to the other, the choice is between 0 and 1 for every example.
  direction = ends[:, 1] - ends[:, 0]
  slope = problem.linear + jnp.einsum("ikjl,jl->ik", problem.matrix, ends[:, 0] - problem.at)
  truth_share = safe_divide(problem.at - ends[:, 0], direction)
  matrix = problem.matrix * direction[:, :, None, None] * direction[None, None]
  linear = slope * direction + jnp.einsum("ikjl,jl->ik", matrix, truth_share)
  shares = jnp.array([[0.0], [1.0]], outputs.dtype)
  chosen = quadratic.minimise_discrete(Quadratic(truth_share, matrix, linear), shares, constraint.max_combinations)
  return class_labels[:1] + chosen * (class_labels[1:] - class_labels[:1])


def labels_numerically(
  learner: Learner,
  constraint: Constraint,
  expand_at: Callable[[Array], Quadratic],
  distance: Callable[[Array], Array],
  outputs: Array,
  truth: Array,
) -> Array:
  """Gauss-Newton with a line search: linearize the step where the labels are, solve exactly, go as far as it helps.

  A local minimum of G, and never worse than the label of the set that is nearest to the ground truth.
  """
  if constraint.discrete:
    best = best_labels(learner.loss, constraint, expand_at(truth), outputs, truth)
    candidates = jnp.stack([learner.loss.nearest_class_labels(truth), best])
    if truth.shape[0] == 1:  # Few enough to try every class through the optimizer itself.
      candidates = jnp.concatenate([candidates, learner.loss.class_labels_like(truth)[:, None]])
    return candidates[jnp.argmin(jax.lax.map(distance, candidates))]

  def improve(labels: Array, _: Any) -> tuple[Array, None]:
    goal = best_labels(learner.loss, constraint, expand_at(labels), outputs, truth)
    goal = jnp.where(jnp.isfinite(goal), goal, labels)  # Where the step hardly depends on a label, this may overflow.
    shares = jnp.array((0.0, *_LINE_SEARCH), labels.dtype)
    candidates = labels[None] + shares[:, None, None] * (goal - labels)[None]
    distances = jax.lax.map(distance, candidates)
    return candidates[jnp.argmin(jnp.where(jnp.isfinite(distances), distances, jnp.inf))], None

  start = constraint.projection(learner.loss, outputs, truth)(truth)
  return jax.lax.scan(improve, start, length=_GAUSS_NEWTON_STEPS)[0]
