"""Greedy label synthesis, equation 1 of the paper: the labels that bring the student nearest to the target in one step.

    y* = argmin over y in the set of  G(y) = || w+(y) - w* ||^2_M ,     w+(y): the student after one step on (x, y)

The gradient of the loss in the outputs is affine in the label, u = a + B y, and an SGD step is affine in the gradient.
So y ↦ w+ is affine and G is a convex quadratic in the m K numbers of the labels, for any model: find that quadratic,
then solve it exactly. Three roads lead to it, each tested against the others:

- `linear.closed_form_labels`: a linear learner shown one example; the label is a projection.
- `linear.quadratic_of_batch`: a linear learner shown a batch; the quadratic from inner products of the examples.
- `targets.expand`: any learner, any target; the quadratic from tangent kernels, or by autodiff through the optimizer.

Labels come with a `Certificate`: the road taken, whether they are a global optimum, and the residual that is left.

In float32 the aim, at any rate and size of examples, is labels that lie in their set to 1e-6, are not worse than the
ground truth, and reach the optimum to a thousandth of the possible gain wherever float32 can represent it; elsewhere
`Certificate.gap` is to say so. `python -m tests.label_ranges` counts on random problems how often that holds:
`docs/float32.md` has the table. For free labels of a batch it needs the examples themselves, or the gradients of all
outputs of a network, which are formed up to 2^17 entries; beyond, half of the digits are lost in their products, and a
smaller effect than they hold may be missed without a gap that shows it.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, overload

import chex
import jax
import jax.numpy as jnp

from last_jax import checks, linear, programs, quadratic, scalar_map, solvers, targets
from last_jax.argmin import best_labels, with_rounding
from last_jax.base import Array, Certificate, Params, Student
from last_jax.constraints import Constraint, check_constraint, none
from last_jax.learner import check_learner
from last_jax.learners import Learner
from last_jax.linear import Geometry
from last_jax.losses import Loss
from last_jax.quadratic import Quadratic
from last_jax.solvers import Descent
from last_jax.targets import Step, Target, ToTrajectory

_GAUSS_NEWTON_STEPS = 10  # Where the step is not affine in the label (Adam): linearizations, each with a line search.
_LINE_SEARCH = (1.0, 0.5, 0.25, 0.1, 0.03, 0.01)
_STARTS = (0.25, 0.5, 0.75, 1.0)  # Shares of the way from the ground truth at which Gauss-Newton may start, too.


@overload
def synthesize_labels(
  learner: Learner, params: Params, target: Params | Target, x: Array, y: Array,
  constraint: Constraint | None = None, *, opt_state: Any = None, layer_weights: Any = None,
  solver: Descent | None = None, with_certificate: Literal[False] = False,
) -> Array: ...  # fmt: skip
@overload
def synthesize_labels(
  learner: Learner, params: Params, target: Params | Target, x: Array, y: Array,
  constraint: Constraint | None = None, *, opt_state: Any = None, layer_weights: Any = None,
  solver: Descent | None = None, with_certificate: Literal[True],
) -> tuple[Array, Certificate]: ...  # fmt: skip


def synthesize_labels(
  learner: Learner,
  params: Params,
  target: Params | Target,
  x: Array,
  y: Array,
  constraint: Constraint | None = None,
  *,
  opt_state: Any = None,
  layer_weights: Any = None,
  solver: Descent | None = None,
  with_certificate: bool = False,
) -> Array | tuple[Array, Certificate]:
  """Return the labels that bring `params` nearest to `target` in one step on the batch `x`. A pure function.

  Args:
    learner: the learner that takes the step.
    params: w, the student's parameters.
    target: w*, the parameters to reach; or what else to steer toward, from `targets`.
    x: `[m, ...]` examples, shown together in one step.
    y: their ground truth: `[m]` class ids or real targets, or `[m, K]` label vectors. Of labels with the same effect
      (x = 0, or a direction of label space without effect), those nearest to the ground truth are chosen.
    constraint: the set to choose from; `constraints.none()` unless given.
    opt_state: the optimizer's state (momentum); a fresh one unless given.
    layer_weights: M, weights of parts of the parameters, as a prefix of their tree: {"layer_0": beta, "layer_1": 1.0}.
      With a target from `targets`, give them there.
    solver: how to search, from `solvers`; exactly unless given.
    with_certificate: whether to return a `Certificate` too.

  Returns:
    `[m, K]` labels, or labels and their certificate.
  """
  programs.make_room()
  check_learner(learner)
  x, y = jnp.asarray(checks.check_array("x", x)), jnp.asarray(checks.check_array("y", y))
  x = x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(float)
  checks.check_inputs(learner, x, "x")
  checks.check_labels(learner, x, y, "y")
  checks.check_params(learner, params, "params")
  if targets.is_target(target):
    if layer_weights is not None:
      raise ValueError("layer_weights are a setting of the target here: give them to targets.params")
    target.check(learner)
    if target.needs_params or isinstance(target, ToTrajectory):
      raise ValueError("target must be given whole: targets.params(w), targets.outputs(x, z), or parameters")
  else:
    checks.check_params(learner, target, "target")
    checks.check_layer_weights(layer_weights, params)
    target = targets.params(target, layer_weights=layer_weights)
  student = learner.start(params)
  if opt_state is not None:
    _check_opt_state(opt_state, student.opt_state)
    student = student._replace(opt_state=opt_state)
  target = target.now(learner, student, None, jnp.zeros((), int), None)
  constraint = none() if constraint is None else constraint
  check_constraint(constraint)
  with_certificate = checks.check_flag("with_certificate", with_certificate)
  solvers.check_solver(solver, constraint)
  problem = (learner, student, target, x, learner.encode(x, y), constraint, None, solver)
  return _greedy_labels(*problem, with_certificate=with_certificate)


def _check_opt_state(given: Any, fresh: Any) -> None:
  found, wanted = checks.check_tree("opt_state", given), jax.tree.structure(fresh)
  if found != wanted:
    raise ValueError(f"opt_state must be one of the learner's optimizer, {wanted}, but it is {found}")
  for (path, leaf), want in zip(jax.tree_util.tree_leaves_with_path(given), jax.tree.leaves(fresh), strict=True):
    if jnp.shape(leaf) != jnp.shape(want):
      where = jax.tree_util.keystr(path)
      raise ValueError(f"opt_state{where} must have shape {jnp.shape(want)}, but it has shape {jnp.shape(leaf)}")


def greedy_labels(
  learner: Learner,
  student: Student,
  target: Target,
  x: Array,
  truth: Array,
  constraint: Constraint,
  known: Geometry | None = None,
  solver: Descent | None = None,
) -> tuple[Array, Certificate]:
  """Return the labels that make the target's G least after one step, and their certificate.

  Args:
    learner: the learner that takes the step.
    student: before the step.
    target: from `targets`, that of this step (`Target.now`).
    x: `[m, ...]`.
    truth: `[m, K]`, or `[m, T, K]` with a label for each token; labels are returned likewise.
    constraint: for every label on its own.
    known: the geometry of `x`, where it was computed before.
    solver: how to search, from `solvers`; exactly unless given.
  """
  if constraint.project is None and not constraint.discrete and constraint.radius is not None:
    raise ValueError(f"constraint {constraint.name!r} has a radius but no projection")
  chex.assert_equal_shape_prefix([x, truth], 1)
  shape, width = truth.shape, truth.shape[-1]
  outputs = learner.apply(student.params, x)
  chex.assert_equal_shape([outputs, truth])
  # The labels of tokens are rows of their own; sums over labels are at least in float32.
  truth = truth.reshape(-1, width)
  outputs = outputs.reshape(-1, width).astype(jnp.promote_types(outputs.dtype, jnp.float32))
  known = target.geometry(learner, x) if known is None else known
  if solver is None and known is not None and truth.shape[0] == 1 and linear.is_projection(learner, constraint):
    given = (learner, student, x, truth, outputs, constraint, known)
    labels = linear.closed_form_labels(*given, target.coasting)
    gap = linear.closed_form_gap(*given, labels, target.coasting)
    certificate = dataclasses.replace(quadratic.solved_directly(labels, "closed form"), gap=gap)
    return labels, with_rounding(certificate, constraint, labels)

  is_free = constraint.project is None and not constraint.discrete

  def expand(gradients: Array, slopes: Array, at: Array) -> Quadratic:
    """Return G around `at`, from u `[n, K]` and du/dat `[n, K, K]`."""
    if known is not None:
      found = linear.quadratic_of_batch(learner, student, x, outputs, gradients, slopes, at, known, target.coasting)
      if not is_free:
        return found
      assert isinstance(target, targets.ToParams), "only parameters have closed forms"
      error, rate, _ = target.error(learner, student)
      return found._replace(squares=linear.squares_of_batch(learner, x, gradients, slopes, error, rate, found.scale))
    return targets.expand(target, Step(learner, student, x, outputs, gradients, slopes, at, is_free))

  def expand_in_labels(labels: Array) -> Quadratic:
    gradients = jax.vmap(learner.loss.output_gradient)(outputs, labels)
    return expand(gradients, jax.vmap(learner.loss.label_slope)(outputs, labels), labels)

  def distance_after(labels: Array) -> Array:
    return targets.value(target, learner, learner.step(student, x, labels.reshape(shape)))

  affine_step = learner.optimizer.is_affine(student.params)
  if solver is not None:
    affine = affine_step and learner.loss.is_affine(width)
    project = constraint.projection(learner.loss, outputs, truth)
    labels, certificate = solvers.search(solver, expand_in_labels, distance_after, affine, project, truth)
  elif affine_step and learner.loss.is_affine(width):
    at = truth
    if constraint.around == "prediction" and not learner.loss.classification:
      # Predictions, and labels near them, may be far from the truth: digits are lost on the way from there.
      at = constraint.projection(learner.loss, outputs, truth)(truth)
    labels, certificate = best_labels(learner.loss, constraint, expand_in_labels(at), outputs, truth)
  elif affine_step and learner.loss.scalar_map is not None:
    through = learner.loss.scalar_map
    labels, certificate = scalar_map.labels_through_map(learner, through, outputs, truth, constraint, expand)
  else:
    starts = _starts(learner.loss, outputs, truth)
    labels, certificate = labels_numerically(
      learner, constraint, expand_in_labels, distance_after, outputs, truth, starts
    )
  return labels.reshape(shape), certificate


@functools.partial(jax.jit, static_argnames="with_certificate")  # Learner, target and constraint are pytrees.
def _greedy_labels(*problem: Any, with_certificate: bool = False) -> Any:
  """Return `greedy_labels`, compiled, for callers who do not compile; without a certificate none is computed."""
  labels, certificate = greedy_labels(*problem)
  return (labels, certificate) if with_certificate else labels


# --- The minimiser of a quadratic over a set.


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
    ways = labels[None] + shares[:, None, None] * (goal - labels)[None]
    if constraint.is_sparse(truth.shape[1]):  # The way between two sparse labels leaves the set.
      ways = jax.vmap(project)(ways)
    return best_of(ways), None

  def search(start: Array) -> Array:
    return jax.lax.scan(improve, start, length=_GAUSS_NEWTON_STEPS)[0]

  labels = best_of(jax.lax.map(search, first))
  left = quadratic.residual(expand_at(labels), project, labels)
  count = jnp.full((), _GAUSS_NEWTON_STEPS)
  return labels, Certificate(residual=left, iterations=count, exact=False, road="Gauss-Newton")
