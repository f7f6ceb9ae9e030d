"""What fixed labels do to a student that is linear around its start: a quadratic in the labels, in closed form.

Around the start w0 the outputs are linear in the parameters, z = z0 + J v with v = w - w0, and the loss is its
expansion to second order in the outputs, u = u0(y) + H J v with u0(y) affine in the label. A step of SGD on all n
examples is then

    v+ = v - (eta / n) J^T (u0(y) + H J v) - eta lambda D (w0 + v)          D: the leaves that decay

and never leaves the span of J^T and D w0. In the coordinates of that span, s, it is s+ = M s + E u0(y) + g with
matrices of inner products only, the tangent kernel: T steps are s = (1 + M + ... + M^(T-1)) (E u0(y) + g), affine in
the labels, and both goals, ||w - w*||^2 and the loss's expansion on validation examples, are quadratics in s.

For linear learners with squared error nothing is approximated. For one step from any start, neither: the sum of
one-step errors along a trajectory is the sum of such quadratics. For softmax, H = (1'y) (diag p - p p') makes this a
regression of labels that are centred over the classes: with equal outputs at the start, H = (1 - 11'/K) / K. Its
(1'y) is that of the ground truth.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from last_jax import kernels, models
from last_jax.base import Array, Params
from last_jax.learners import Learner
from last_jax.optimizers import Sgd
from last_jax.quadratic import Quadratic

_BLOCK = 256  # Validation examples whose kernel is formed at a time.
_GROWTH_STEPS = 50  # Of power iteration.


class Model(NamedTuple):
  """The goal of students with linear outputs, over the labels.

  Attributes:
    quadratic: the goal's change from that at `quadratic.at`, the ground truth `[n, K]`.
    value: `[]` the goal at the ground truth.
    growth: `[]` about how much the student's fastest mode grows in a step; above 1 it diverges.
  """

  quadratic: Quadratic
  value: Array
  growth: Array


class _Span(NamedTuple):
  """The coordinates s of v: v = sum over parts of (J W_p)^T s_p, and D w0 times the last one where there is decay."""

  learner: Learner
  start: Params
  masks: list[Any]  # W_p, a 0 or 1 for each leaf; None for all.
  decayed: Params | None  # D w0, None without decay.

  def products(self, x: Array, direction: Params) -> Array:
    """Return J(x) times a direction, `[n K]`."""
    return jax.jvp(lambda w: self.learner.apply(w, x).reshape(-1), (self.start,), (direction,))[1]

  def effects(self, x: Array, shown: Array) -> Array:
    """Return what the coordinates do to the outputs of `x [m, ...]`, for steps on `shown [n, ...]`: `[m K, size]`."""
    columns = []
    for mask in self.masks:
      kernel = kernels.tangent_kernel(self.learner.apply, self.start, x, shown, weights=mask)
      columns.append(kernel.reshape(x.shape[0] * math.prod(self.learner.output_shape(x)), -1))
    if self.decayed is not None:
      columns.append(self.products(x, self.decayed)[:, None])
    return jnp.concatenate(columns, 1)


def to_params(learner: Learner, start: Params, x: Array, truth: Array, steps: int, target: Params) -> Model:
  """Return the squared distance to `target` after `steps` steps from `start`, over labels of `x` around `truth`."""
  span, first, moves, growth = _follow(learner, start, x, truth, steps)
  error = jax.tree.map(jnp.subtract, models.wide(start), models.wide(target))
  shape = truth.size
  gram = jnp.zeros((first.size, first.size), first.dtype)
  slope = []
  for place, mask in enumerate(span.masks):
    here = slice(place * shape, (place + 1) * shape)
    own = kernels.tangent_kernel(learner.apply, start, x, weights=mask).reshape(shape, shape)
    gram = gram.at[here, here].set(own)
    slope.append(span.products(x, _masked(mask, error)))
  if span.decayed is not None:
    across = span.products(x, span.decayed)  # With the first part, that of the leaves that decay.
    gram = gram.at[-1, :shape].set(across).at[:shape, -1].set(across).at[-1, -1].set(_dot(span.decayed, span.decayed))
    slope.append(_dot(span.decayed, error)[None])
  return _compose(truth, first, moves, gram, jnp.concatenate(slope), _dot(error, error), growth)


def to_loss(
  learner: Learner, start: Params, x: Array, truth: Array, steps: int, validation: tuple[Array, Array]
) -> Model:
  """Return the mean loss on validation examples `(x [v, ...], labels [v, K])`, expanded, likewise."""
  span, first, moves, growth = _follow(learner, start, x, truth, steps)
  count = validation[0].shape[0]

  def add(total: tuple[Array, Array, Array], block: tuple[Array, Array]) -> tuple[tuple[Array, Array, Array], None]:
    examples, labels = block
    outputs, labels = (values.reshape(-1, values.shape[-1]) for values in (learner.apply(start, examples), labels))
    loss = jnp.sum(jax.vmap(learner.loss)(outputs, labels))
    gradients = jax.vmap(learner.loss.output_gradient)(outputs, labels)
    roots = jax.vmap(learner.loss.curvature_root)(outputs, labels)
    effects = span.effects(examples, x)
    bent = jnp.einsum("nrk,nks->nrs", roots, effects.reshape(*outputs.shape, -1)).reshape(-1, first.size)
    added = (bent.T @ bent, effects.T @ gradients.reshape(-1), loss)
    return jax.tree.map(jnp.add, total, added), None

  total = (jnp.zeros((first.size, first.size), first.dtype), jnp.zeros_like(first), jnp.zeros((), first.dtype))
  whole = count // _BLOCK * _BLOCK
  if whole:
    blocks = jax.tree.map(lambda leaf: leaf[:whole].reshape(-1, _BLOCK, *leaf.shape[1:]), validation)
    total, _ = jax.lax.scan(add, total, blocks)
  if whole < count:
    total, _ = add(total, jax.tree.map(lambda leaf: leaf[whole:], validation))
  rows = validation[1].size // validation[1].shape[-1]
  gram, slope, value = (part / rows for part in total)
  return _compose(truth, first, moves, 0.5 * gram, 0.5 * slope, value, growth)


def _follow(learner: Learner, start: Params, x: Array, truth: Array, steps: int) -> tuple[_Span, Array, Array, Array]:
  """Return the span, where the ground truth leads in it, `[size]`, how labels change that, `[size, n K]`, the growth.

  The growth is as in `Model`.
  """
  assert isinstance(learner.optimizer, Sgd), "checked before"
  start = models.wide(start)
  span, shrink = _make_span(learner, start)
  outputs = learner.apply(start, x).reshape(truth.shape)
  gradients = jax.vmap(learner.loss.output_gradient)(outputs, truth)
  slopes = jax.vmap(learner.loss.label_slope)(outputs, truth)
  hessians = jax.vmap(jax.hessian(learner.loss))(outputs, truth)
  rate = jnp.asarray(learner.optimizer.learning_rate, truth.dtype)
  pull = -rate / truth.shape[0]  # E: every part of the span receives the outputs' gradient.

  def enter(gradients: Array) -> Array:
    """Return E times gradients in the outputs, `[n K, c]` -> `[size, c]`."""
    parts = [pull * gradients] * len(span.masks)
    tail = [] if span.decayed is None else [jnp.zeros((1, gradients.shape[1]), gradients.dtype)]
    return jnp.concatenate([*parts, *tail])

  effects = span.effects(x, x)
  bent = jnp.einsum("nkl,nls->nks", hessians, effects.reshape(*truth.shape, -1)).reshape(effects.shape)
  factors = jnp.concatenate([jnp.full(truth.size, factor, truth.dtype) for factor in shrink])
  constant = jnp.zeros(factors.size, truth.dtype)
  if span.decayed is not None:
    factors = jnp.append(factors, shrink[0].astype(truth.dtype))
    constant = jnp.append(constant, (shrink[0] - 1).astype(truth.dtype))
  step = jnp.diag(factors) + enter(bent)
  total = _geometric_sum(step, steps)
  columns = jnp.einsum("nkl,nm->nkml", slopes, jnp.eye(truth.shape[0], dtype=truth.dtype)).reshape(truth.size, -1)
  first = total @ (enter(gradients.reshape(-1, 1))[:, 0] + constant)
  return span, first, total @ enter(columns), _growth(step)


def _make_span(learner: Learner, start: Params) -> tuple[_Span, list[Array]]:
  """Return the span of a student's steps, and the factor by which each part of it shrinks in a step."""
  assert isinstance(learner.optimizer, Sgd)
  one = jnp.ones(())
  if learner.weight_decay is None:
    return _Span(learner, start, [None], None), [one]
  assert learner.optimizer.learning_rate is not None, "checked before"
  factor = 1 - jnp.asarray(learner.optimizer.learning_rate * learner.weight_decay)
  decays = jax.tree.map(lambda leaf: float(leaf.ndim > 1), start)
  others = jax.tree.map(lambda leaf: float(leaf.ndim <= 1), start)
  masks, shrink = [decays], [factor]
  if any(jax.tree.leaves(others)):
    masks, shrink = [decays, others], [factor, one]
  return _Span(learner, start, masks, _masked(decays, start)), shrink


def _masked(mask: Any, tree: Params) -> Params:
  return tree if mask is None else jax.tree.map(lambda keep, leaf: keep * leaf, mask, tree)


def _dot(a: Params, b: Params) -> Array:
  return jax.tree.reduce(jnp.add, jax.tree.map(lambda one, other: jnp.sum(one * other), a, b))


def _geometric_sum(matrix: Array, count: int) -> Array:
  """Return 1 + M + ... + M^(count - 1), by doubling: `[size, size]`."""
  power, total = jnp.eye(matrix.shape[0], dtype=matrix.dtype), jnp.zeros_like(matrix)
  for digit in f"{count:b}":
    power, total = power @ power, total + power @ total
    if digit == "1":
      power, total = matrix @ power, total + power
  return total


def _growth(matrix: Array) -> Array:
  """Return about the largest magnitude of an eigenvalue, `[]`."""
  direction = 1 + jnp.cos(jnp.arange(matrix.shape[0], dtype=matrix.dtype))

  def multiply(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
    image = matrix @ state[0]
    size = jnp.linalg.norm(image)
    return image / jnp.where(size > 0, size, 1.0), size

  start = (direction / jnp.linalg.norm(direction), jnp.ones((), matrix.dtype))
  return jax.lax.fori_loop(0, _GROWTH_STEPS, multiply, start)[1]


def _compose(truth: Array, first: Array, moves: Array, gram: Array, slope: Array, value: Array, growth: Array) -> Model:
  """Return value + 2 slope' s + s' gram s over the labels, for s = first + moves (y - truth)."""
  bent = gram @ moves
  matrix = moves.T @ bent
  matrix = (0.5 * (matrix + matrix.T)).reshape(*truth.shape, *truth.shape)
  linear = (moves.T @ slope + bent.T @ first).reshape(truth.shape)
  value = value + jnp.sum(first * (2 * slope + gram @ first))
  return Model(Quadratic(truth, matrix, linear), value, growth)
