"""The sets that labels are chosen from (section 3.2 of the paper), each with its exact projection.

A constraint holds for every example of a batch on its own. A new convex set needs only a projection:
`Constraint("mine", project=...)`. The best label of a quadratic in the set is found in `quadratic.py` and
`projected.py`; that of sparse labels, the one set here that is neither convex nor finite, in `sparse.py`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from last_jax import checks, identity, simplices
from last_jax.base import STATIC, Array, is_concrete
from last_jax.losses import Loss
from last_jax.models import check_returned

# (label [K], center [K], radius [], class labels [C, K]) -> the nearest label of the set [K].
Projection = Callable[[Array, Array, Any, Array], Array]


@identity.register_dataclass
@dataclasses.dataclass(frozen=True)
class Constraint:
  """A set of labels. Constraints that differ only in name or radius share compiled programs.

  Attributes:
    name: for tables and messages.
    project: the projection onto a convex set, or onto sparse labels; None: all labels or, with `discrete`, only those
      of the classes.
    radius: of a ball around `around`; a leaf of the pytree.
    around: "truth" or "prediction", the center that `project` receives.
    hull: whether every label of the set is a mixture of the class labels.
    discrete: only the class labels themselves.
    max_combinations: the largest number of label combinations of a discrete batch, or of supports of a sparse one, that
      is enumerated; beyond it, local search.
    max_nonzero: the largest number of classes in a label, of soft labels; None: all of them.
  """

  name: str = dataclasses.field(compare=False, metadata=STATIC)
  project: Projection | None = dataclasses.field(default=None, metadata=STATIC)
  radius: Array | float | None = None
  around: str = dataclasses.field(default="truth", metadata=STATIC)
  hull: bool = dataclasses.field(default=False, metadata=STATIC)
  discrete: bool = dataclasses.field(default=False, metadata=STATIC)
  max_combinations: int = dataclasses.field(default=1024, metadata=STATIC)
  max_nonzero: int | None = dataclasses.field(default=None, metadata=STATIC)

  def projection(self, loss: Loss, outputs: Array, truth: Array) -> Callable[[Array], Array]:
    """Return the projection of labels `[m, K]` onto the set, for a batch with `outputs [m, K]` and `truth [m, K]`."""
    if self.project is None:
      return lambda labels: labels
    project = _Checked(self.name, self.project)
    class_labels = loss.class_labels_like(truth)
    centers = truth if self.around == "truth" else loss.predict_all(outputs)
    return lambda labels: _project_each(project, labels, centers, self.radius, class_labels)

  def is_exact(self, batch_size: int, num_outputs: int) -> bool:
    """Return whether a batch is solved globally: all are, but discrete and sparse ones with too many combinations.

    Args:
      batch_size: m.
      num_outputs: K, the width of a label: K classes, or two for K = 1.
    """
    if self.is_sparse(num_outputs):
      assert self.max_nonzero is not None
      return math.comb(num_outputs, self.max_nonzero) ** batch_size <= self.max_combinations
    return not self.discrete or max(num_outputs, 2) ** batch_size <= self.max_combinations

  def is_sparse(self, num_outputs: int) -> bool:
    """Return whether labels of this width hold fewer classes than there are, but may mix some: not a convex set."""
    return self.max_nonzero is not None and not self.discrete and self.max_nonzero < num_outputs


@dataclasses.dataclass(frozen=True, eq=False)
class _Checked(identity.Structural):
  """A projection whose result is checked."""

  name: str = dataclasses.field(compare=False)
  project: Projection

  def __call__(self, label: Array, center: Array, radius: Any, class_labels: Array) -> Array:
    # optax's projections answer in JAX's default precision, and have derivatives in no other.
    nearest = self.project(label.astype(float), center, radius, class_labels)
    return check_returned(f"project of the constraint {self.name!r}", nearest, label.shape).astype(label.dtype)


@functools.partial(jax.jit, static_argnames="project")  # A solver projects in many places: trace it once.
def _project_each(project: _Checked, labels: Array, centers: Array, radius: Any, class_labels: Array) -> Array:
  return jax.vmap(lambda label, center: project(label, center, radius, class_labels))(labels, centers)


def check_constraint(constraint: Any) -> None:
  """Raise unless it is a Constraint."""
  if not isinstance(constraint, Constraint):
    shown = checks.show(constraint)
    raise TypeError(f"constraint must come from last_jax.constraints, as simplex(), but it is {shown}")


def none() -> Constraint:
  """All real labels."""
  return Constraint("none")


def one_hot(max_combinations: int = 1024) -> Constraint:
  """The labels of the classes. Batches with more than `max_combinations` combinations use coordinate descent."""
  max_combinations = checks.check_count("max_combinations", max_combinations, most=None)
  return Constraint("one_hot", hull=True, discrete=True, max_combinations=max_combinations)


def simplex(
  radius: Any = None,
  p: float = 2,
  around: str = "truth",
  *,
  max_nonzero: int | None = None,
  max_combinations: int = 1024,
) -> Constraint:
  """Soft labels: mixtures of the class labels; with `radius`, those within a ball (see `magnitude`).

  With one output (logistic), that is the interval between the labels of the two classes. The center of the ball is
  moved onto the simplex if it is elsewhere, so that the set is never empty.

  Args:
    radius, p, around: of the ball, as of `magnitude`; None: no ball.
    max_nonzero: k, the largest number of classes that a label may mix, as sparse labels are stored; no ball then. All
      other entries are exactly zero. One class is `one_hot`, as many as there are is the whole simplex.
    max_combinations: with max_nonzero, the largest number of choices of classes, C(K, k)^m for m labels, that
      is enumerated: labels are then a global optimum. Beyond, they are a local one, and `Certificate.gap` bounds what
      they miss.
  """
  checks.check_name("around", around, ("truth", "prediction"))
  _check_norm(p)
  max_combinations = checks.check_count("max_combinations", max_combinations, most=None)
  if max_nonzero is not None:
    count = checks.check_count("max_nonzero", max_nonzero)
    if radius is not None or p != 2 or around != "truth":
      raise ValueError("max_nonzero cannot be combined with radius, p and around: give one of them")
    name = f"simplex, k={count}"
    if count == 1:
      return dataclasses.replace(one_hot(max_combinations), name=name, max_nonzero=1)
    return Constraint(name, SparseSimplex(count), hull=True, max_combinations=max_combinations, max_nonzero=count)
  if radius is None:
    if p != 2 or around != "truth":
      raise ValueError("radius is missing: p and around are settings of its ball")
    return Constraint("simplex", _onto_simplex, hull=True)
  radius = checks.check_positive("radius", radius)
  return Constraint(f"simplex, {_text(radius, p, around)}", _SIMPLEX_BALLS[float(p)], radius, around, hull=True)


def magnitude(radius: Any, p: float = 2, around: str = "truth") -> Constraint:
  """Labels with ||y - center||_p <= radius.

  Args:
    radius: a positive number.
    p: 1, 2 or infinity.
    around: "truth": the center is the ground truth; "prediction": it is the learner's current prediction.
  """
  checks.check_name("around", around, ("truth", "prediction"))
  _check_norm(p)
  radius = checks.check_positive("radius", radius)
  return Constraint(_text(radius, p, around), _BALLS[float(p)], radius, around)


def _check_norm(p: Any) -> None:
  if not isinstance(p, (int, float, np.integer, np.floating)) or isinstance(p, bool) or p not in _BALLS:
    raise ValueError(f"p must be 1, 2 or infinity, but it is {checks.show(p)}")


def _text(radius: Any, p: float, around: str) -> str:
  """A name for people."""
  known = isinstance(radius, (int, float, np.generic)) or is_concrete(radius)
  size = f"r={float(radius):g}" if known else "r=..."
  return size + ("" if p == 2 else f", p={p:g}") + ("" if around == "truth" else f", around {around}")


def _onto_simplex(label: Array, center: Array, radius: Any, class_labels: Array) -> Array:
  del center, radius
  chex.assert_rank([label, class_labels], [1, 2])
  if label.shape[0] == 1:
    return jnp.clip(label, class_labels[0], class_labels[1])
  return simplices.project(label)


@dataclasses.dataclass(frozen=True)
class SparseSimplex:
  """The projection onto mixtures of at most `max_nonzero` classes: that of the largest entries onto their simplex."""

  max_nonzero: int

  def __call__(self, label: Array, center: Array, radius: Any, class_labels: Array) -> Array:
    """Return the nearest label, `[K] -> [K]`; the first of several."""
    if label.shape[0] <= self.max_nonzero or label.shape[0] == 1:  # One output stands for two classes.
      return _onto_simplex(label, center, radius, class_labels)
    below = label - jnp.max(label)
    _, kept = jax.lax.top_k(jax.lax.stop_gradient(below), self.max_nonzero)
    # The threshold of `simplices.project` is at most 1 below the largest: entries 2 below it become exactly zero.
    return simplices.project(jnp.where(jnp.zeros(label.shape, bool).at[kept].set(True), below, -2.0))


def _onto_ball(project_centered: Callable[[Array, Any], Array]) -> Projection:
  def project(label: Array, center: Array, radius: Any, class_labels: Array) -> Array:
    del class_labels
    chex.assert_rank([label, center], 1)
    return center + project_centered(label - center, radius)

  return project


def _l1_ball(offset: Array, radius: Any) -> Array:
  # optax's l1 ball branches with lax.cond, of which vmap evaluates both sides; this is one select.
  inside = jnp.sum(jnp.abs(offset)) <= radius
  nearest = optax.projections.projection_l1_sphere(_nearer(offset, jnp.zeros_like(offset), radius), radius)
  # Far labels leave its threshold few digits.
  length = jax.lax.stop_gradient(jnp.sum(jnp.abs(nearest)))
  return jnp.where(inside, offset, nearest * jnp.where(length > radius, radius / length, 1.0))


_BALLS: dict[float, Projection] = {
  1.0: _onto_ball(_l1_ball),
  2.0: _onto_ball(optax.projections.projection_l2_ball),
  float("inf"): _onto_ball(lambda offset, radius: jnp.clip(offset, -radius, radius)),
}


def _onto_simplex_and(project_in: Callable[[Array, Array, Any], Array], p: float) -> Projection:
  """Return the projection onto simplex ∩ ball, from `project_in(label, center, radius)` for centers on the simplex."""

  def project(label: Array, center: Array, radius: Any, class_labels: Array) -> Array:
    chex.assert_equal_shape([label, center])
    center = _onto_simplex(center, center, None, class_labels)
    if label.shape[0] == 1:  # The intersection of two intervals, whatever p is.
      low = jnp.maximum(class_labels[0], center - radius)
      return jnp.clip(label, low, jnp.minimum(class_labels[1], center + radius))
    nearest = simplices.project(label)
    inside = jnp.linalg.norm(nearest - center, ord=p) <= radius
    # Both branches are evaluated: the other one must be well defined too, also for its derivative.
    return jnp.where(
      inside, nearest, project_in(jnp.where(inside, center, _nearer(label, center, radius)), center, radius)
    )

  return project


def _nearer(label: Array, center: Array, size: Any) -> Array:
  """Return a label on the way to one that is so far away that differences of the set's size have no digits.

  The limit of far labels is reached to the root of float's resolution.
  """
  far = jax.lax.stop_gradient(jnp.max(jnp.abs(label - center)))
  limit = float(jnp.finfo(label.dtype).eps) ** -0.5 * size
  return jnp.where(far > limit, center + (label - center) * (limit / jnp.maximum(far, limit)), label)


_SIMPLEX_BALLS: dict[float, Projection] = {
  1.0: _onto_simplex_and(simplices.in_l1_ball, 1),
  2.0: _onto_simplex_and(simplices.in_l2_ball, 2),
  float("inf"): _onto_simplex_and(simplices.in_linf_ball, jnp.inf),
}
