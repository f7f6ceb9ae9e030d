"""Targets without w*: the loss on validation examples, after the step."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from last_jax import checks, losses
from last_jax.base import STATIC, Array, Key, Params, Pool, Student, is_concrete
from last_jax.learner import check_learner
from last_jax.learners import Learner, check_learns_from
from last_jax.models import wide
from last_jax.optimizers import as_float
from last_jax.problem import Problem
from last_jax.targets.base import Local, PerStep, along
from last_jax.targets.outputs import OfOutputs, draw
from last_jax.targets.params import ToParams

MOST_PARAMETERS = 2000  # Whose Hessian is solved: 16 MB, and about 0.1 s for a step.
_FORMS = ("gauss_newton", "newton_point")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ToLoss(OfOutputs):
  """See `loss`.

  Attributes:
    validation: v examples.
    damping: `[]`.
    anchor: `[v, K]` the outputs before the step, which damping keeps them near to; of the target of one step only.
    batch_size: see `loss`.
    coasting: see `loss`.
    ids: the lowest and the highest of class ids, which are checked where labels may be tracers; None for vectors.
  """

  validation: Pool
  damping: Array | float
  anchor: Array | None = None
  batch_size: int | None = dataclasses.field(default=None, metadata=STATIC)
  coasting: bool = dataclasses.field(default=True, metadata=STATIC)
  ids: tuple[int, int] | None = dataclasses.field(default=None, metadata=STATIC)

  @property
  def x(self) -> Array:  # type: ignore[override]
    """The inputs of the validation examples, `[v, ...]`."""
    return self.validation.x

  def check(self, learner: Learner) -> None:
    """See `Target`."""
    check_learns_from(learner, self.validation, "validation")
    if self.ids is not None:
      checks.check_ids(learner, self.validation.x, *self.ids, "validation.y")

  def prepare(self, problem: Problem) -> None:
    """See `Target`."""
    self.check(problem.learner)

  def now(self, learner: Learner, student: Student, params: Params | None, step: Array, key: Key | None) -> "ToLoss":
    """See `Target`."""
    del params, step
    chosen = Pool.tree_unflatten(None, draw(key, self.batch_size, self.validation.x, self.validation.y))
    drawn = dataclasses.replace(self, validation=chosen, batch_size=None)
    return dataclasses.replace(drawn, anchor=drawn.measure(learner, student))

  def value(self, learner: Learner, measured: Array) -> Array:
    """Return the mean loss plus (damping / 2) times the mean squared change of the outputs, `[]`."""
    change = jnp.sum((measured - self._before()) ** 2, -1)
    return jnp.mean(jax.vmap(learner.loss)(measured, self._labels(learner)) + 0.5 * self.damping * change)

  def local(self, learner: Learner, measured: Array) -> Local:
    """See `Target`. The curvature is that of the loss in the outputs: generalized Gauss-Newton."""
    labels, share = self._labels(learner), 0.5 / measured.shape[0]
    gradients = jax.vmap(learner.loss.output_gradient)(measured, labels)
    roots = math.sqrt(share) * jax.vmap(learner.loss.curvature_root)(measured, labels)  # [v, R, K]
    damped = jnp.sqrt(share * jnp.asarray(self.damping, measured.dtype))

    def root(tangent: Array) -> tuple[Array, Array]:
      return jnp.einsum("vrk,vk->vr", roots, tangent), damped * tangent

    return Local(share * (gradients + self.damping * (measured - self._before())), root)

  def _labels(self, learner: Learner) -> Array:
    return losses.rows(learner.encode(self.validation.x, self.validation.y))

  def _before(self) -> Array:
    if self.anchor is None:
      raise TypeError("ToLoss is a target per step: use .now(learner, student, params, step, key)")
    return self.anchor


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ToNewtonPoint(PerStep):
  """See `loss`: in each step the parameters where the quadratic model of the loss is least."""

  loss: ToLoss
  needs_params: ClassVar[bool] = False

  @property
  def coasting(self) -> bool:
    """See `Target`."""
    return self.loss.coasting

  def check(self, learner: Learner) -> None:
    """See `Target`."""
    self.loss.check(learner)
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(learner.shapes()))
    if size > MOST_PARAMETERS:
      raise ValueError(
        f"form='newton_point' solves with the Hessian of all parameters, of which there may be {MOST_PARAMETERS}, but "
        f"the learner has {size}: use form='gauss_newton'"
      )

  def prepare(self, problem: Problem) -> None:
    """See `Target`."""
    self.check(problem.learner)

  def now(self, learner: Learner, student: Student, params: Params | None, step: Array, key: Key | None) -> ToParams:
    """See `Target`."""
    loss = self.loss.now(learner, student, params, step, key)
    position, unravel = ravel_pytree(wide(learner.position(student, loss.coasting)))
    measured = loss.measure(learner, student)

    def outputs(flat: Array, x_one: Array) -> Array:
      return losses.rows(learner.apply(unravel(flat), x_one[None]))

    rows = jax.vmap(jax.jacrev(outputs), (None, 0))(position, loss.x)  # [v, T, K, P]
    columns = jnp.moveaxis(rows.reshape(*measured.shape, position.size), -1, 0)
    matrix, slope = along(loss.local(learner, measured), columns)
    # Directions without effect on the loss have no slope either: a trace of curvature leaves them alone.
    size = jnp.trace(matrix) / position.size
    trace = jnp.where(size > 0, float(jnp.finfo(matrix.dtype).eps) ** 0.5 * size, 1.0)
    way = jax.scipy.linalg.solve(matrix + trace * jnp.eye(position.size, dtype=matrix.dtype), slope, assume_a="pos")
    return ToParams(unravel(position - way), coasting=loss.coasting)


def loss(
  validation: Pool,
  *,
  batch_size: int | None = None,
  damping: Any = 0.1,
  form: str = "gauss_newton",
  coasting: bool = True,
) -> ToLoss | ToNewtonPoint:
  """The loss on validation examples, for teachers that do not know w*.

      G = mean over v of  loss(z⁺_v, y_v) + damping / 2 ||z⁺_v - z_v||^2,       z = f(w, x_v),  z⁺ = f(w⁺, x_v)

  Labels minimise its quadratic model: f linearized around w, the loss to second order in the outputs (generalized
  Gauss-Newton), with the gradient g and the Hessian H in the outputs where the student would be without the labels. For
  a linear learner that is the second-order Taylor series of G in w. The loss has no weight decay in it.

  Teachers fit the validation examples as training fits its own: `validation_losses` shows both sides along a run.

  Args:
    validation: examples with labels to be trusted, as a `Pool`; the pool itself will do where its labels are right.
      Hundreds: a few dozen are fitted in a few steps, at the cost of all others.
    batch_size: number of validation examples that are drawn in each iteration; all of them unless given. The time of a
      step grows with it.
    damping: of changes of the outputs, so that it does not depend on how the learner is parameterized. Next to it: the
      Hessian of cross-entropy has eigenvalues up to 1/2, and next to none where outputs are far out. The model holds
      near the outputs that it was made at, and without damping free labels lead a network far away from them. 0: none.
    form: "gauss_newton": as above. "newton_point": labels bring w⁺ nearest to w - A⁻¹ ∇L, where that model is least
      over all parameters; A is its Hessian in them. For learners of at most 2,000 parameters.
    coasting: as in `params`.
  """
  if not isinstance(validation, Pool):
    raise TypeError(f"validation must be a last_jax.Pool, but it is a {type(validation).__name__}")
  if batch_size is not None:
    batch_size = checks.check_count("batch_size", batch_size)
  damping = checks.check_not_negative("damping", damping)
  checks.check_name("form", form, _FORMS)
  ids = None
  if is_concrete(validation.y) and jnp.issubdtype(validation.y.dtype, jnp.integer):
    values = np.asarray(validation.y)
    ids = (int(values.min()), int(values.max()))
  flag = checks.check_flag("coasting", coasting)
  target = ToLoss(validation, as_float(damping), None, batch_size, flag, ids)
  return ToNewtonPoint(target) if form == "newton_point" else target


def validation_losses(learner: Learner, **pools: Pool) -> Callable[[Params], dict[str, Array]]:
  """A probe for `teach`: the mean loss on each pool, to see what fits the validation examples and nothing else.

      probe = targets.validation_losses(learner, validation=validation, held_out=held_out)
      result = teach(..., probe=probe)
      result.probe["validation"], result.probe["held_out"]          # [records] each

  While both fall, teaching helps; where the first falls and the second rises, it fits the validation examples.
  """
  check_learner(learner)
  if not pools:
    raise TypeError("give at least one pool by name, as held_out=pool")
  for name, pool in pools.items():
    check_learns_from(learner, pool, name)

  def probe(params: Params) -> dict[str, Array]:
    return {name: learner.mean_loss(params, pool.x, learner.encode(pool.x, pool.y)) for name, pool in pools.items()}

  return probe
