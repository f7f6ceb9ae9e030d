"""The sets that labels are chosen from (section 3.2 of the paper), each with its exact projection.

A constraint holds for every example of a batch on its own. A new convex set needs nothing but a projection:
`Constraint("mine", project=...)`. The best label of a quadratic in the set is found in `quadratic.py`.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from last_jax import checks
from last_jax.losses import Loss
from last_jax.types import STATIC, Array

# (label [K], center [K], radius [], class labels [C, K]) -> the nearest label of the set [K].
Projection = Callable[[Array, Array, Any, Array], Array]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Constraint:
  """A set of labels.

  Attributes:
    name: how tables and messages call it.
    project: the nearest label of a convex set; None: any label will do, or, with `discrete`, only those of the classes.
    radius: of a ball around `around`; a leaf, so that radii can be swept without compiling again.
    around: "truth" or "prediction", what `project` is given as the center.
    hull: whether every label of the set is a mixture of the class labels.
    discrete: only the class labels themselves.
    max_combinations: up to how many label combinations a discrete batch is enumerated; beyond, coordinate descent.
  """

  name: str = dataclasses.field(metadata=STATIC)
  project: Projection | None = dataclasses.field(default=None, metadata=STATIC)
  radius: Array | float | None = None
  around: str = dataclasses.field(default="truth", metadata=STATIC)
  hull: bool = dataclasses.field(default=False, metadata=STATIC)
  discrete: bool = dataclasses.field(default=False, metadata=STATIC)
  max_combinations: int = dataclasses.field(default=1024, metadata=STATIC)

  def projection(self, loss: Loss, outputs: Array, truth: Array) -> Callable[[Array], Array]:
    """Takes labels `[m, K]` to the nearest of the set, for a batch with these outputs and ground truth, `[m, K]`."""
    project = self.project
    if project is None:
      return lambda labels: labels
    class_labels = loss.class_labels_like(truth)
    centers = truth if self.around == "truth" else loss.predict_all(outputs)
    return lambda labels: _project_each(project, labels, centers, self.radius, class_labels)

  def is_exact(self, batch_size: int, num_outputs: int) -> bool:
    """Whether the best label is global: always, but for one-hot batches too large to enumerate."""
    return not self.discrete or max(num_outputs, 2) ** batch_size <= self.max_combinations

  def describe(self, batch_size: int, num_outputs: int) -> str:
    """Says how labels are found, for tables and logs."""
    if self.discrete:
      exact = self.is_exact(batch_size, num_outputs)
      return "one-hot, " + ("every combination tried" if exact else "coordinate descent (a local optimum)")
    return f"{self.name}, exact"


@functools.partial(jax.jit, static_argnames="project")  # A solver projects in many places: trace it once.
def _project_each(project: Projection, labels: Array, centers: Array, radius: Any, class_labels: Array) -> Array:
  return jax.vmap(lambda label, center: project(label, center, radius, class_labels))(labels, centers)


def none() -> Constraint:
  """Any real label."""
  return Constraint("none")


def one_hot(max_combinations: int = 1024) -> Constraint:
  """Only the labels of the classes. Batches with more than `max_combinations` labellings use coordinate descent."""
  checks.check_count("max_combinations", max_combinations)
  return Constraint("one_hot", hull=True, discrete=True, max_combinations=max_combinations)


def simplex(radius: Any = None, p: float = 2, around: str = "truth") -> Constraint:
  """Soft labels: mixtures of the class labels; with `radius`, those also within a ball (see `magnitude`).

  With one output (logistic), that is the interval between the labels of the two classes. The center of the ball is
  moved onto the simplex if it is not there, so that the set is never empty.
  """
  checks.check_name("around", around, ("truth", "prediction"))
  if radius is None:
    return Constraint("simplex", _onto_simplex, hull=True)
  checks.check_positive("radius", radius)
  return Constraint(f"simplex, {_text(radius, p, around)}", _SIMPLEX_BALLS[_norm(p)], radius, around, hull=True)


def magnitude(radius: Any, p: float = 2, around: str = "truth") -> Constraint:
  """Labels with ||y - center||_p <= radius.

  Args:
    radius: a positive number.
    p: 1, 2 or infinity.
    around: "truth": the center is the ground truth; "prediction": what the learner predicts now.
  """
  checks.check_name("around", around, ("truth", "prediction"))
  checks.check_positive("radius", radius)
  return Constraint(_text(radius, p, around), _BALLS[_norm(p)], radius, around)


def _norm(p: float) -> float:
  if p not in (1, 2, float("inf")):
    raise ValueError(f"p must be 1, 2 or infinity, but it is {p!r}")
  return float(p)


def _text(radius: Any, p: float, around: str) -> str:
  """A name that tells sets apart, but not by the radius of a sweep, whose digits are not known or would recompile."""
  size = f"r={radius:g}" if isinstance(radius, (int, float)) else "r=..."
  return size + ("" if p == 2 else f", p={p:g}") + ("" if around == "truth" else f", around {around}")


def _onto_simplex(label: Array, center: Array, radius: Any, class_labels: Array) -> Array:
  del center, radius
  if label.shape[0] == 1:
    return jnp.clip(label, class_labels[0], class_labels[1])
  return optax.projections.projection_simplex(label)


def _onto_ball(project_centered: Callable[[Array, Any], Array]) -> Projection:
  def project(label: Array, center: Array, radius: Any, class_labels: Array) -> Array:
    del class_labels
    return center + project_centered(label - center, radius)

  return project


def _l1_ball(offset: Array, radius: Any) -> Array:
  # optax's l1 ball branches with lax.cond and so evaluates both sides under vmap; this is one select.
  inside = jnp.sum(jnp.abs(offset)) <= radius
  return jnp.where(inside, offset, optax.projections.projection_l1_sphere(offset, radius))


_BALLS: dict[float, Projection] = {
  1.0: _onto_ball(_l1_ball),
  2.0: _onto_ball(optax.projections.projection_l2_ball),
  float("inf"): _onto_ball(lambda offset, radius: jnp.clip(offset, -radius, radius)),
}


def _onto_simplex_and(project_in: Callable[[Array, Array, Any], Array], p: float) -> Projection:
  """The projection onto simplex ∩ ball, from `project_in(label, center, radius)` for centers on the simplex, K > 1."""

  def project(label: Array, center: Array, radius: Any, class_labels: Array) -> Array:
    center = _onto_simplex(center, center, None, class_labels)
    if label.shape[0] == 1:  # Two intervals; every p is the same.
      low = jnp.maximum(class_labels[0], center - radius)
      return jnp.clip(label, low, jnp.minimum(class_labels[1], center + radius))
    nearest = optax.projections.projection_simplex(label)
    inside = jnp.linalg.norm(nearest - center, ord=p) <= radius
    # The other branch is evaluated too: keep it well defined, also for its derivative.
    return jnp.where(inside, nearest, project_in(jnp.where(inside, center, label), center, radius))

  return project


def _simplex_l2(label: Array, center: Array, radius: Any) -> Array:
  """Points P(c + s (v - c)), P onto the simplex, move away from c as s grows: find where they leave the ball."""

  def point(share: Array) -> Array:
    return optax.projections.projection_simplex(center + share * (label - center))

  def excess(share: Array) -> Array:
    return jnp.sum((point(share) - center) ** 2) - radius**2

  return point(_root(excess, jnp.zeros((), label.dtype), jnp.ones((), label.dtype)))


def _simplex_linf(label: Array, center: Array, radius: Any) -> Array:
  """The ball is a box, so the answer is clip(v - tau, low, high) with the tau that makes it sum to one."""
  low, high = jnp.maximum(center - radius, 0.0), center + radius

  def missing(tau: Array) -> Array:
    return 1.0 - jnp.sum(jnp.clip(label - tau, low, high))

  tau = _root(missing, jnp.min(label - high), jnp.max(label - low))
  return jnp.clip(label - tau, low, high)


def _simplex_l1(label: Array, center: Array, radius: Any) -> Array:
  """What some classes gain others lose, radius / 2 each way, with a threshold for the gains and one for the losses."""
  offset = label - center
  half = radius / 2

  def gains(threshold: Array) -> Array:
    return jnp.maximum(offset - threshold, 0.0)

  def losses(threshold: Array) -> Array:
    return jnp.minimum(jnp.maximum(threshold - offset, 0.0), center)

  gain = _root(lambda t: half - jnp.sum(gains(t)), jnp.min(offset) - half, jnp.max(offset))
  loss = _root(lambda t: jnp.sum(losses(t)) - half, jnp.min(offset), jnp.max(offset) + 1.0)
  return center + gains(gain) - losses(loss)


def _root(increasing: Callable[[Array], Array], low: Array, high: Array) -> Array:
  """Where an increasing, piecewise smooth function crosses zero: bisection, then a Newton step.

  The Newton step ends on the exact root where the function is linear, and makes the root differentiable.
  """

  def halve(_, bracket):
    low, high = bracket
    middle = 0.5 * (low + high)
    below = increasing(middle) < 0
    return jnp.where(below, middle, low), jnp.where(below, high, middle)

  bracket = jax.lax.stop_gradient((low, high))
  low, high = jax.lax.fori_loop(0, jnp.finfo(low.dtype).nmant + 3, halve, bracket)
  # The secant through the final bracket would lose every digit; the slope at its middle does not.
  middle = jax.lax.stop_gradient(0.5 * (low + high))
  slope = jax.lax.stop_gradient(jax.grad(increasing)(middle))
  safe = slope > 0
  return middle - jnp.where(safe, increasing(middle) / jnp.where(safe, slope, 1.0), 0.0)


_SIMPLEX_BALLS: dict[float, Projection] = {
  1.0: _onto_simplex_and(_simplex_l1, 1),
  2.0: _onto_simplex_and(_simplex_l2, 2),
  float("inf"): _onto_simplex_and(_simplex_linf, jnp.inf),
}
