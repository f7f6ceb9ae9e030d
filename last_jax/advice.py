"""How far labels can take a student toward target parameters, and a warning where that is not far.

Parameters of a network that was trained from another start are not a direction for this student: both compute about the
same function with units in another order. Labels lead toward them slowly, and through worse networks.
"""

import warnings
from typing import Any, NamedTuple

import jax
import numpy as np

from last_jax import constraints, distances, fields, models, synthesis, targets
from last_jax.base import Array, Params, Records, is_concrete
from last_jax.constraints import Constraint
from last_jax.learners import Learner
from last_jax.problem import Problem

_FAR = 0.5  # Cosine between start and target below which they are taken for networks of different starts.
_told: set[Any] = set()  # Models that were warned about.


@fields.documented
class Reach(NamedTuple):
  """What the labels of one step can do.

  Attributes:
    distance: ||w - w*|| before the step.
    after: the least distance after it, over all labels of the set.
    share: of the distance that the step takes away, 1 - after / distance.
    cosine: between w and w*: about 1 for targets that were trained from w, about 0 for those of another start.
  """

  distance: float
  after: float
  share: float
  cosine: float


def reach(
  learner: Learner, params: Params, target: Params, x: Array, y: Array, constraint: Constraint | None = None
) -> Reach:
  """Return what the best labels of the batch `x [m, ...]` do for a student at `params`, with truth `y`.

  Args:
    learner: the learner.
    params: w.
    target: w*.
    x: `[m, ...]` examples, shown together in one step.
    y: their ground truth.
    constraint: the set of labels; all labels unless given, which bounds what any set can do.
  """
  labels = synthesis.synthesize_labels(
    learner, params, targets.params(target, coasting=False), x, y, constraint or constraints.none()
  )
  after = learner.step(learner.start(params), x, labels).params
  before, least = (float(distances.distance(each, target)) for each in (params, after))
  return Reach(before, least, 1 - least / before if before > 0 else 0.0, _cosine(params, target))


def _cosine(params: Params, target: Params) -> float:
  """Return the cosine between weights, without the leaves of one dimension: fresh biases are zero, scales are one."""
  pairs = zip(jax.tree.leaves(params), jax.tree.leaves(target), strict=True)
  rows = [[np.asarray(leaf, np.float64).ravel() for leaf in pair] for pair in pairs if pair[0].ndim > 1]
  if not rows:
    return 1.0
  one, other = (np.concatenate(parts) for parts in zip(*rows, strict=True))
  size = np.linalg.norm(one) * np.linalg.norm(other)
  return float(one @ other / size) if size > 0 else 1.0


def is_far(learner: Learner, params: Params, target: Params) -> bool:
  """Whether target parameters of a network look like those of another start than `params`."""
  return not isinstance(learner.model, models.Linear) and _cosine(params, target) < _FAR


def warn_if_far(problem: Problem, params: Params, batch_size: int) -> None:
  """Warn, once for each model, where target parameters of a network look like those of another start."""
  model = problem.learner.model
  if isinstance(model, models.Linear) or model in _told:
    return
  if not all(map(is_concrete, jax.tree.leaves((params, problem.target)))):
    return
  _told.add(model)
  cosine = _cosine(params, problem.target)
  if cosine >= _FAR:
    return
  with jax.ensure_compile_time_eval():  # Numbers, also where the caller is being traced.
    distance = float(distances.distance(params, problem.target))
    one_step = _of_one_step(problem, params, batch_size)
  warnings.warn(
    f"target is far from the start: ||w - w*|| = {distance:.3g}, and the cosine between them is {cosine:.2f}, as for "
    f"networks that were trained from different starts. {one_step}Labels lead there "
    "slowly, and its accuracy is lost on the way. Steer toward its outputs, teachers.greedy(..., "
    "toward=targets.outputs(x, z)), or train the target from the student's own start. last.reach(...) says what the "
    "labels of a batch can do in one step.",
    stacklevel=3,
  )


def warn_if_diverged(records: Records) -> None:
  """Warn, once for all students, where some diverged. Reads the records, so it waits for them."""
  if records.diverged is None or not is_concrete(records.step, records.diverged):
    return
  diverged, step = np.atleast_2d(np.asarray(records.diverged)), np.atleast_2d(np.asarray(records.step))
  students: np.ndarray = np.any(diverged, 1)
  if not students.any():
    return
  first = step[students, diverged[students].argmax(1)].min()
  who = "the student" if len(students) == 1 else f"{np.count_nonzero(students)} of {len(students)} students"
  warnings.warn(
    f"{who} diverged by iteration {first}: parameters are NaN, infinite or "
    "too large for a distance. Result.diverged_at says which students, and from which record on. Give a smaller "
    "learning_rate, or a smaller set of labels",
    stacklevel=3,
  )


def _of_one_step(problem: Problem, params: Params, batch_size: int) -> str:
  """Return a sentence on what free labels of the pool's first examples reach; none where that takes a search."""
  learner, pool = problem.learner, problem.pool
  affine = learner.optimizer.is_affine(params) and learner.loss.is_affine(learner.num_outputs(pool.x))
  known = is_concrete(pool.x, pool.y) and not any(
    isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(learner)
  )
  if not (affine and known):
    return ""
  found = reach(learner, params, problem.target, pool.x[:batch_size], pool.y[:batch_size])
  return (
    f"In a step on {len(pool.x[:batch_size])} examples, labels without any constraint reach {found.after:.3g} at best, "
    f"{100 * found.share:.2g} % of the way. "
  )
