"""Many students at once: the same loop, vmapped, and split over devices."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from last_jax import checks, devices, loop
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
  mesh: Mesh | None = None,
) -> Result:
  """Teaches many students, each on its own: what one gets does not depend on the others, nor on how many there are.

  Args:
    keys: `[students]`, one for each: `jax.random.split(key, students)`.
    init: parameters with a leading [students] axis; random if not given.
    resume: an earlier result of `teach_many` to go on from.
    mesh: devices to split the students over, of this process or of several: `last_jax.devices.mesh()`. Unless given,
      the students are taught where the arguments are.

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
  students = devices.split((keys, init, resume), mesh)
  shared = devices.copy_to_all((learner, teacher, loop.Task(pool, target, test, tolerance)), mesh)
  return run_many(students, shared, plan=plan, mesh=mesh)


def before_teaching(
  learner: Learner, teacher: Teacher, pool: Pool, *, target: Params | None, init: Params, tolerance: Any = None
) -> Result:
  """Students before their first step, as a result to go on from; all who go on then share a program, the first too.

  Args:
    init: parameters with a leading [students] axis.

  The rest is as for `teach_many`. A student who is within the tolerance already is not looked for.
  """
  student = jax.vmap(learner.start)(init)
  task = loop.Task(pool, target, None, tolerance)
  kept = jax.eval_shape(jax.vmap(lambda one: loop.kept_at_first(learner, teacher, task, one)), student)
  count = jax.tree.leaves(init)[0].shape[0]
  unmet = None if tolerance is None else jnp.full(count, -1)
  # Zeros are not what the teacher begins with, and so it begins anew.
  nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), kept)
  return loop.go_on_from(student, jnp.zeros((count, 1), int), unmet, nothing)


def _run_many(students: tuple[Key, Any, Any], shared: tuple[Any, ...], *, plan: loop.Plan, mesh: Mesh | None) -> Result:
  """Args: what each student has of its own, with a leading [students] axis (key, init, resume), and what all share."""

  def teach_all(students: tuple[Key, Any, Any], shared: tuple[Any, ...]) -> Result:
    keys, init, resume = students
    if resume is None:
      return jax.vmap(lambda key, init: loop.run(key, *shared, init, None, plan=plan))(keys, init)
    # All have taken as many steps: as one number, not one for each, it can decide what is computed.
    taken = resume.step[0]

    def go_on(key: Key, resume: Result) -> Result:
      return loop.run(key, *shared, None, resume._replace(step=taken), plan=plan)

    return jax.vmap(go_on)(keys, resume._replace(step=None))

  if mesh is None:
    return teach_all(students, shared)
  # Each device runs a program of its own: students have nothing to say to each other, and one whose labels take many
  # iterations keeps only its device waiting.
  count = students[0].shape[0]
  missing = -count % mesh.size
  if missing:  # Some are taught twice, so that all devices have as many.
    students = jax.tree.map(lambda leaf: leaf[jnp.arange(count + missing) % count], students)
  result = devices.over_students(teach_all, mesh, (True, False), True)(students, shared)
  if missing:
    result = jax.tree.map(lambda leaf: leaf[:count], result)
  return jax.lax.with_sharding_constraint(result, devices.sharding_of(count, mesh))


run_many = jax.jit(_run_many, static_argnames=("plan", "mesh"))
