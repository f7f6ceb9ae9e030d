"""The premise of the paper's proposition 1, teaching monotonicity, measured on a given problem.

The proposition says that LAST is not slower than SGD in expectation, if of two students the nearer to w* is also the
nearer after a step, in the mean over examples. Students at equal distances must then be equally near after it: the mean
of G may depend on the distance only. That is a property of the data. For least squares without noise it is

    E[(I - eta x x')^2] = a I ,

which isotropic examples have. docs/errata.md says what else the proposition needs, and that it fails without.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from last_jax import checks, distances, fields, synthesis, targets
from last_jax.base import Array, Key, Params, Pool
from last_jax.constraints import Constraint
from last_jax.learners import Learner
from last_jax.problem import Problem

_DENSE_PARAMS = 1000  # Largest number of parameters for which the axes of the objective are found.


@fields.documented
class Monotonicity(NamedTuple):
  """Mean squared distances after a step, E[G], over students at each of R distances from w*.

  The directions in which students stand are a sample, so that a premise that is violated is violated, and one that is
  not may be violated elsewhere.

  Attributes:
    distances: `[R]` before the step, increasing.
    least: `[R]` the least E[G] of students there.
    largest: `[R]` the largest.
  """

  distances: Array
  least: Array
  largest: Array

  @property
  def ratio(self) -> Array:
    """The largest E[G] of a nearer student over that of a farther one, `[]`: the premise says that it is at most 1."""
    return jnp.max(jnp.triu(self.largest[:, None] / self.least[None]))


def monotonicity(
  learner: Learner,
  pool: Pool,
  target: Params,
  *,
  key: Key,
  radii: Any,
  directions: int = 100,
  constraint: Constraint | None = None,
) -> Monotonicity:
  """Measure how much E[G] depends on where a student is, besides its distance from w*.

  Students stand in random directions, and in both directions of each axis of the objective at w*, the eigenvectors of
  its Hessian (of up to 1,000 parameters), which differ most. Each takes its first step on every example of the pool.

  Args:
    learner: takes the steps.
    pool: the examples, each as likely as any other.
    target: w*.
    key: for the random directions.
    radii: distances from w*, one or several positive numbers.
    directions: number of random ones.
    constraint: the set of labels that are chosen by greedy LAST; the ground truth is shown unless given.
  """
  checks.check_count("directions", directions)
  radii = np.sort(np.atleast_1d(np.asarray(radii, float)))
  for radius in radii:
    checks.check_positive("radii", float(radius))
  problem = Problem(learner, pool, target=target)
  center, unravel = ravel_pytree(problem.target)
  ways = jax.random.normal(key, (directions, center.size), center.dtype)
  if center.size <= _DENSE_PARAMS:
    hessian = jax.hessian(lambda flat: learner.objective(unravel(flat), pool.x, problem.truth))(center)
    axes = jnp.linalg.eigh(hessian)[1].T
    ways = jnp.concatenate([ways, axes, -axes])
  ways = ways / jnp.linalg.norm(ways, axis=1, keepdims=True)
  starts = center[None, None] + jnp.asarray(radii, center.dtype)[:, None, None] * ways[None]  # [R, D, P]
  found = _mean_after(problem, constraint, jax.vmap(unravel)(starts.reshape(-1, center.size)))
  found = found.reshape(len(radii), -1)
  return Monotonicity(jnp.asarray(radii, center.dtype), jnp.min(found, 1), jnp.max(found, 1))


@jax.jit
def _mean_after(problem: Problem, constraint: Constraint | None, starts: Params) -> Array:
  """Return E[G] of each of the students, `[s]`."""
  learner, goal = problem.learner, problem.target
  toward = targets.params(goal, coasting=False)

  def after(start: Params, x: Array, truth: Array) -> Array:
    student, x, labels = learner.start(start), x[None], truth[None]
    if constraint is not None:
      now = toward.now(learner, student, None, jnp.zeros((), int), None)
      labels, _ = synthesis.greedy_labels(learner, student, now, x, labels, constraint)
    return distances.squared_distance(learner.step(student, x, labels).params, goal)

  examples = problem.pool.x, problem.truth
  return jax.lax.map(lambda start: jnp.mean(jax.vmap(lambda x, y: after(start, x, y))(*examples)), starts)
