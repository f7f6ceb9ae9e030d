"""From the flags of `launch.teach` to a dataset, a learner, students and teachers, each error naming its flag."""

import hashlib
import pathlib
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import last_jax as last
from last_jax import checks, report
from last_jax.data.params import params_from_arrays
from last_jax.models import param_shapes
from launch import chunks
from launch.teach_learner import build_learner
from launch.teach_methods import CHOOSING, CLASS_SETS, NUMBER_SETS, Method, build_methods

DATASETS = ("half_moons", "gaussian", "regression", "mnist")
# Rates at which the methods part within the default number of steps. The paper's are given in the help of the flag.
LEARNING_RATES = {"half_moons": 0.3, "gaussian": 0.03, "regression": 0.003, "mnist": 1e-3}
FILE_LEARNING_RATE = 0.01
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


def prepare(flags: Any) -> Setup:
  """Everything up to the first step, checked. Raises ValueError, TypeError or OSError where something is wrong."""
  dataset, data_facts = _load(flags)
  learning_rate = flags.learning_rate
  if learning_rate is None:
    learning_rate = LEARNING_RATES.get(flags.dataset, FILE_LEARNING_RATE)
  checks.check_positive("--learning_rate", learning_rate)
  checks.check_not_negative("--weight_decay", flags.weight_decay)
  checks.check_not_negative("--init_scale", flags.init_scale)
  if flags.tolerance is not None:
    checks.check_positive("--tolerance", flags.tolerance)
  learner_name, learner = build_learner(flags, dataset, learning_rate)
  for name, pool in (("x and y", dataset.train), ("x_test and y_test", dataset.test)):
    if pool is not None:
      _check_fits(learner_name, learner, pool, f"--dataset={flags.dataset} ({name})")

  # One root key; what is drawn for the students does not depend on how the target is found.
  target_key, start_key, lesson_key = jax.random.split(jax.random.key(flags.seed), 3)
  # Names are checked before the target is sought, which may take long; the teachers are made after it.
  constraint = flags.constraint or list(CLASS_SETS if learner.loss.classification else NUMBER_SETS)
  make_methods = build_methods(flags, constraint, learner)
  _check_out(flags.out)
  target, target_facts, notes = _find_target(learner, dataset, target_key, flags)
  methods = make_methods(target)

  init = _start(flags, learner, dataset, start_key)
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


def _check_out(folder: str) -> None:
  try:
    report.check_writable(folder)
  except OSError as error:
    raise OSError(f"--out={folder} cannot be written to: {error}") from error


def _load(flags: Any) -> tuple[last.Dataset, dict[str, Any]]:
  name = flags.dataset
  if name == "mnist":
    if flags.mnist_folder is not None and not pathlib.Path(flags.mnist_folder).is_dir():
      raise FileNotFoundError(f"--mnist_folder={flags.mnist_folder}: there is no such folder")
    checks.check_positive("--feature_scale", flags.feature_scale)
    dataset = last.data.mnist(
      _whole_numbers("--digits", flags.digits),
      folder=flags.mnist_folder,
      num_features=flags.num_features or None,
      feature_scale=flags.feature_scale,
    )
    return dataset, {}
  makers: dict[str, Callable[[int], last.Dataset]] = {
    "half_moons": last.data.half_moons,
    "gaussian": last.data.gaussian,
    "regression": last.data.regression,
  }
  if name in makers:
    return makers[name](flags.seed), {}
  if not name.endswith(".npz"):
    raise ValueError(f"--dataset={name!r} is not known: use one of {', '.join(DATASETS)}, or a file, FILE.npz")
  path = pathlib.Path(name)
  if not path.is_file():
    raise FileNotFoundError(f"--dataset={name}: there is no such file")
  return last.data.load_npz(path), {"sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _whole_numbers(flag: str, words: Sequence[str]) -> tuple[int, ...]:
  try:
    return tuple(int(word) for word in words)
  except ValueError:
    raise ValueError(f"{flag}={','.join(words)} must be whole numbers with commas between them") from None


def _check_fits(learner_name: str, learner: last.learners.Learner, pool: last.Pool, where: str) -> None:
  try:
    last.learners.check_learns_from(learner, pool)
  except (ValueError, TypeError) as error:
    raise ValueError(f"--learner={learner_name} cannot learn from {where}: {error}") from error


def _find_target(
  learner: last.learners.Learner, dataset: last.Dataset, key: jax.Array, flags: Any
) -> tuple[Any, dict[str, Any], list[str]]:
  """The file's target or a fitted one, what is known about it, and what the user should know."""
  facts: dict[str, Any] = {"from": "file" if dataset.target is not None else "fitted to the pool"}
  notes = []
  if dataset.target is not None:
    target = params_from_arrays(param_shapes(learner.model), dataset.target, f"--dataset={flags.dataset}: target")
  else:
    with warnings.catch_warnings(record=True) as caught:
      warnings.simplefilter("always")
      target, fit = last.fit_target(learner, dataset.train, key=key, with_fit=True)
    notes = [str(warning.message) for warning in caught]
    facts |= {"gradient_norm": fit.gradient_norm, "converged": fit.converged}
  labels = learner.encode(dataset.train.x, dataset.train.y)
  facts["objective"] = float(learner.objective(target, dataset.train.x, labels))
  if dataset.test is not None and learner.loss.classification:
    test_labels = learner.encode(dataset.test.x, dataset.test.y)
    facts["accuracy"] = float(learner.accuracy(target, dataset.test.x, test_labels))
  return target, facts, notes


def _start(flags: Any, learner: last.learners.Learner, dataset: last.Dataset, key: jax.Array) -> Any:
  """Where the students start, with a leading [students] axis."""
  if dataset.init is not None:
    init = params_from_arrays(param_shapes(learner.model), dataset.init, f"--dataset={flags.dataset}: init")
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (flags.students, *leaf.shape)), init)
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
    ("mnist_folder", "digits", "num_features", "feature_scale"): flags.dataset == "mnist",
    ("bias", "momentum", "nesterov"): ":" not in learner_name,
    ("hidden", "activation"): learner_name == "mlp",
    ("constraint",): not set(CHOOSING).isdisjoint(flags.teacher),
    ("joint",): "mixed" in flags.teacher,
    ("mu",): "label_smoothing" in flags.teacher,
    ("temperature",): "distillation" in flags.teacher,
    ("init_scale",): dataset.init is None,
  }
  return [name for names, applies in needed.items() if not applies for name in names]
