"""Many students at once: the same loop, vmapped."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from last_jax import checks, loop
from last_jax.learners import Learner
from last_jax.teachers.base import Teacher
from last_jax.types import Key, Params, Pool, Result


def teach_many(
  keys: Key,
  learner: Learner,
  teacher: Teacher,
  pool: Pool,
  *,
  target: Params | None = None,
  init: Params | None = None,
  steps: int = 1000,
  batch_size: int = 1,
  record_every: int = 1,
  test: Pool | None = None,
  lessons: bool = False,
  tolerance: Any = None,
  metrics: Sequence[str] = loop.METRICS,
  probe: Callable[[Params], Any] | None = None,
  resume: Result | None = None,
) -> Result:
  """Teaches many students, each on its own: what one gets does not depend on the others, nor on how many there are.

  Args:
    keys: `[students]`, one for each: `jax.random.split(key, students)`.
    init: parameters with a leading [students] axis; random if not given.
    resume: an earlier result of `teach_many` to go on from.

  The rest is as for `teach`.

  Returns:
    A `Result` whose leaves have a leading [students] axis.
  """
  keys = jnp.asarray(keys)
  if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
    raise TypeError("keys must be made by jax.random.key and jax.random.split, not by PRNGKey")
  if keys.ndim != 1 or keys.shape[0] == 0:
    raise ValueError(f"keys must have shape [students], but it has shape {keys.shape}")
  loop.check_teachable(learner, teacher, pool, test, target)
  if init is not None:
    checks.check_params(learner, init, "init", students=keys.shape[0])
  plan = loop.make_plan(learner, target, test, steps, batch_size, record_every, lessons, tolerance, metrics, probe)
  return run_many(keys, learner, teacher, loop.Task(pool, target, test, tolerance), init, resume, plan=plan)


def _run_many(
  keys: Key, learner: Learner, teacher: Teacher, task: loop.Task, init: Any, resume: Any, *, plan: loop.Plan
) -> Result:
  def one(key: Key, init: Any, resume: Any) -> Result:
    return loop.run(key, learner, teacher, task, init, resume, plan=plan)

  return jax.vmap(one)(keys, init, resume)


run_many = jax.jit(_run_many, static_argnames="plan")
