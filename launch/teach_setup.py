"""From the flags of `launch.teach` to a dataset, a learner, students and teachers, each error naming its flag."""

import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

import last_jax as last
from last_jax import checks, report
from last_jax.data.params import params_from_arrays
from last_jax.models import param_shapes
from launch import chunks, problem
from launch.teach_methods import CHOOSING, CLASS_SETS, NUMBER_SETS, Method, build_methods

MOST_PARAMETERS = 500  # Up to how many it is worked out what no label can teach: that takes their number cubed.


class Setup(NamedTuple):
  """All that a run needs."""

  title: str
  classroom: chunks.Classroom
  methods: dict[str, Method]
  target_facts: dict[str, Any]  # What is known about the target: its metrics, how near one can get.
  settled: dict[str, Any]  # By flag, what was chosen where the flag was left out.
  data_facts: dict[str, Any]
  notes: list[str]


def prepare(flags: Any, mesh: Mesh | None) -> Setup:
  """Everything up to the first step, checked. Raises ValueError, TypeError or OSError where something is wrong."""
  dataset, data_facts, learner_name, learner, learning_rate = problem.build(flags)
  checks.check_not_negative("--init_scale", flags.init_scale)
  if flags.start_near is not None:
    checks.check_not_negative("--start_near", flags.start_near)
  if flags.tolerance is not None:
    checks.check_positive("--tolerance", flags.tolerance)

  # One root key; what is drawn for the students does not depend on how the target is found.
  target_key, start_key, lesson_key = jax.random.split(jax.random.key(flags.seed), 3)
  # Names are checked before the target is sought, which may take long; the teachers are made after it.
  constraint = flags.constraint or list(CLASS_SETS if learner.loss.classification else NUMBER_SETS)
  make_methods = build_methods(flags, constraint, learner)
  problem.check_out(flags.out)
  target, target_facts, notes = problem.find_target(learner, dataset, target_key, flags)
  methods = make_methods(target)

  init = _start(flags, learner, dataset, target, start_key)
  record_every = flags.record_every or max(1, flags.steps // 100)
  classroom = chunks.Classroom(
    keys=jax.random.split(lesson_key, flags.students),
    learner=learner,
    pool=dataset.train,
    test=dataset.test,
    target=target,
    init=init,
    steps=flags.steps,
    batch_size=flags.batch_size,
    record_every=record_every,
    tolerance=flags.tolerance,
    lessons=flags.lessons,
    chunk=chunks.chunk_length(flags.steps, record_every),
    mesh=mesh,
  )
  for name, method in methods.items():
    try:
      classroom.check(method.teacher)
    except (ValueError, TypeError) as error:
      raise ValueError(f"--teacher={name.partition(':')[0]}: {error}") from error
  target_facts |= _reach(classroom)
  settled: dict[str, Any] = {"learning_rate": learning_rate, "learner": learner_name, "record_every": record_every}
  idle = _idle(flags, learner_name, dataset)
  settled |= {"constraint": constraint} | dict.fromkeys(idle)
  notes += [f"--{name} has no effect here" for name in idle if flags[name].present]
  students = f"{flags.students} student{'s' * (flags.students != 1)}"
  title = f"{pathlib.Path(flags.dataset).name}, {learner_name}, learning rate {learning_rate:g}, {students}"
  return Setup(title, classroom, methods, target_facts, settled, data_facts, notes)


def _start(flags: Any, learner: last.learners.Learner, dataset: last.Dataset, target: Any, key: jax.Array) -> Any:
  """Where the students start, with a leading [students] axis."""
  if dataset.init is not None:
    init = params_from_arrays(param_shapes(learner.model), dataset.init, f"--dataset={flags.dataset}: init")
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (flags.students, *leaf.shape)), init)
  if flags.start_near is not None:
    return jax.vmap(last.training.near(target, flags.start_near))(jax.random.split(key, flags.students))
  random = jax.vmap(learner.init)(jax.random.split(key, flags.students))
  return jax.tree.map(lambda leaf: flags.init_scale * leaf, random)


def _reach(classroom: chunks.Classroom) -> dict[str, Any]:
  """How near to the target students can come: what rounding leaves, and what no label can teach."""
  learner, target = classroom.learner, classroom.target
  facts: dict[str, Any] = {"rounding_floor": report.rounding_floor(target)}
  if learner.is_linear and sum(leaf.size for leaf in jax.tree.leaves(target)) <= MOST_PARAMETERS:
    facts["unreachable_distance"] = float(_unreachable(learner, classroom.init, target, classroom.pool.x).mean())
  return facts


@jax.jit
def _unreachable(learner: last.learners.Learner, init: Any, target: Any, x: jax.Array) -> jax.Array:
  return jax.lax.map(lambda params: last.unreachable_distance(learner, params, target, x), init)


def _idle(flags: Any, learner_name: str, dataset: last.Dataset) -> list[str]:
  """The flags that nothing looks at, given the others."""
  needed = {
    ("constraint",): not set(CHOOSING).isdisjoint(flags.teacher),
    ("joint",): "mixed" in flags.teacher,
    ("horizon",): "planner" in flags.teacher,
    ("mu",): "label_smoothing" in flags.teacher,
    ("temperature",): "distillation" in flags.teacher,
    ("init_scale",): dataset.init is None and flags.start_near is None,
    ("start_near",): dataset.init is None,
    ("policy",): "policy" in flags.teacher,
  }
  idle = [name for names, applies in needed.items() if not applies for name in names]
  return problem.idle_flags(flags, learner_name) + idle
