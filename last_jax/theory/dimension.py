"""Batch machine teaching of linear learners, GIT(m, infinity) of the paper: few examples, with labels that stay fixed.

The same m examples are shown in every step, so that the student ends where their mean loss (plus weight decay) is
least. That is w* exactly if its gradient vanishes there, and if it is the only minimum within the student's reach:

    (1/m) sum_i x_i u_i' + lambda w* = 0 ,     u_i = u(y_i) at w*, which free labels set to any value

Without weight decay, labels that w* predicts have u = 0 for any examples; but a student moves in their span only, so
that they must span all examples: m = rank(X), with the bias as one more feature. With weight decay the end does not
depend on the start, and it is enough that the span contains w* (of every output), so that fewer may do. The least such
m is the teaching dimension, here with examples from a pool.
"""

import itertools
import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from last_jax import checks, fields, losses, models
from last_jax.base import Array, Params, Pool
from last_jax.learners import Learner, check_learns_from

_LOSSES = (losses.squared_error, losses.sigmoid_cross_entropy, losses.softmax_cross_entropy)


@fields.documented
class TeachingSet(NamedTuple):
  """Examples with labels on which batch training ends at w*, up to what the pool cannot teach.

  Attributes:
    chosen: `[m]`, indices of the pool.
    labels: `[m, K]`.
    minimal: whether no fewer examples would do: m is the teaching dimension, and not only an upper bound of it.
    miss: `[]` the gradient that is left at w*. Zero unless weight decay pulls at a part of w* that no labels can hold:
      outside of the span of the pool or, for softmax, common to all classes.
  """

  chosen: Array
  labels: Array
  minimal: bool
  miss: Array


def teaching_set(learner: Learner, pool: Pool, target: Params, *, max_combinations: int = 10_000) -> TeachingSet:
  """Return as few examples of the pool as can be found, and labels, on which batch training ends at w*.

  Without weight decay, training ends at w* plus the part of w0 - w* that the whole pool could not change either
  (`unreachable_part`); it is the only part that depends on the start.

  Args:
    learner: linear, with squared error or a cross-entropy.
    pool: the examples to choose from. Their own labels do not matter.
    target: w*.
    max_combinations: with weight decay, how many sets of examples smaller than rank(X) are tried.
  """
  check_learns_from(learner, pool)
  checks.check_params(learner, target, "target")
  checks.check_count("max_combinations", max_combinations)
  model = learner.model
  if not isinstance(model, models.Linear) or learner.loss not in _LOSSES:
    raise ValueError("learner must be linear, with squared error or a cross-entropy: its labels then set any gradient")
  x = np.asarray(pool.x, np.float64)
  features = np.concatenate([x, np.ones_like(x[:, :1])], 1) if model.bias else x
  slack = features.shape[1] * float(jnp.finfo(pool.x.dtype).eps)
  decay = 0.0 if learner.weight_decay is None else float(learner.weight_decay)
  basis = _spanning(features, slack)
  pull, wanted = _pull_of_decay(np.asarray(target["weights"], np.float64), decay, features[basis], learner)
  index, minimal = (basis, True) if decay == 0 else _fewest(features, pull, basis, slack, max_combinations)
  # The labels that make the gradients of these examples balance weight decay.
  gradients = -len(index) * np.linalg.lstsq(features[index].T, pull, rcond=None)[0]  # [m, K]
  left = features[index].T @ gradients / len(index) + wanted
  labels = np.asarray(learner.loss.predict_all(learner.apply(target, pool.x[index])), np.float64) - gradients
  dtype = models.label_dtype(pool.x)
  return TeachingSet(jnp.asarray(index), jnp.asarray(labels, dtype), minimal, jnp.asarray(np.linalg.norm(left), dtype))


def _pull_of_decay(
  weights: np.ndarray, decay: float, basis: np.ndarray, learner: Learner
) -> tuple[np.ndarray, np.ndarray]:
  """Return the part of weight decay's gradient at w* that labels can balance, and all of it, `[p, K]` each."""
  wanted = np.zeros((basis.shape[1], weights.shape[1]))
  wanted[: len(weights)] = decay * weights  # Not the bias.
  pull = wanted
  if learner.loss.ignores_common_shift:  # Gradients in the outputs sum to zero.
    pull = pull - pull.mean(1, keepdims=True)
  return basis.T @ np.linalg.lstsq(basis.T, pull, rcond=None)[0], wanted


def _spanning(features: np.ndarray, slack: float) -> np.ndarray:
  """Return rows that span all rows of `features [n, p]`, `[rank]`: in turn the one farthest from the span of those."""
  rest, chosen = features.copy(), list[int]()
  smallest = slack * np.max(np.linalg.norm(features, axis=1), initial=0.0)
  while len(chosen) < min(features.shape):
    norms = np.linalg.norm(rest, axis=1)
    farthest = int(np.argmax(norms))
    if norms[farthest] <= smallest:
      break
    chosen.append(farthest)
    way = rest[farthest] / norms[farthest]
    for _ in range(2):  # The second time removes what rounding left.
      rest -= np.outer(rest @ way, way)
  return np.array(chosen or [0])


def _fewest(
  features: np.ndarray, pull: np.ndarray, basis: np.ndarray, slack: float, max_combinations: int
) -> tuple[np.ndarray, bool]:
  """Return the fewest rows whose span contains the columns of `pull [p, K]`, and whether fewer are ruled out."""
  size = np.linalg.norm(pull)
  least = max(1, np.linalg.matrix_rank(pull, tol=slack * size) if size else 1)
  for count in range(least, len(basis)):
    max_combinations -= math.comb(len(features), count)
    if max_combinations < 0:
      return basis, False
    for chosen in itertools.combinations(range(len(features)), count):
      rows = features[list(chosen)].T
      if np.linalg.norm(rows @ np.linalg.lstsq(rows, pull, rcond=None)[0] - pull) <= slack * size:
        return np.array(chosen), True
  return basis, True
