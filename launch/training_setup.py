"""Everything that `launch.train_teacher` needs up to the first episode: its flags, and from them a trainer, checked.

Settings of training are flags made from the fields of `training.Unrolled`, `training.Reinforce` and
`training.Evolution`.
"""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh

import last_jax as last
from last_jax import checks, training
from last_jax.tools import catalogue, specs
from last_jax.training import Trainer

from . import command, flags, problem
from .folder import Folder, check_writable, make_config, repeat_command
from .methods import POLICY_FILE
from .metrics import METRICS_FILE

TABLES = {
  "Learners": catalogue.LEARNERS,
  "Data sets": catalogue.DATASETS | catalogue.SKLEARN_SETS | catalogue.FILES,
}
FILES = (POLICY_FILE, METRICS_FILE, "training.png", "summary.json", "config.json")
METHODS: dict[str, type[training.Settings]] = {
  "unroll": training.Unrolled, "reinforce": training.Reinforce, "evolution": training.Evolution
}  # fmt: skip
VIEWS = ("omniscient", "black_box")
LEARNING_RATES = problem.LEARNING_RATES | {"mnist": 5e-4}

# Settings whose flags have another name, because the learner has flags of their own names.
_RENAMED = {
  "hidden": "teacher_hidden",
  "learning_rate": "teacher_learning_rate",
  "weight_decay": "teacher_weight_decay",
}
_WITHOUT_FLAG = ("optimizer", "policy", "evaluate_every")  # --keep_best and --report_every set the last.
# Settings that are objects, given as text: how it is read, and its forms.
_OBJECTS: dict[str, tuple[Callable[[str], Any], str]] = {
  "output": (specs.output, f"{specs.OUTPUTS}. Default: simplex for classes, free for numbers."),
  "actions": (specs.actions, f"{specs.ACTIONS}. Default: binary_augmented for two outputs, mixtures for more."),
  "reward": (specs.reward, f"{specs.REWARDS}. Default: distance, or loss in a black box."),
}


def make_flags() -> flags.Flags:
  """Return the flags of this command."""
  values = flags.Flags()
  values.group("How the teacher is trained", "--method=reinforce --view=black_box")
  values.choice(
    "method", "unroll", list(METHODS),
    "unroll: by gradients through the students' steps. reinforce: by policy gradient, choosing among --actions. "
    "evolution: by evolution strategies, which need no gradient of the reward; best for small networks.",
  )  # fmt: skip
  values.choice(
    "view", "omniscient", VIEWS,
    "omniscient: the teacher sees the target and is to bring students near it. black_box: it does not, and is to make "
    "them good on validation examples.",
  )  # fmt: skip
  rate = "Default: 5e-4 for MNIST, as launch.teach for others."
  problem.define_flags(values, dataset="mnist", learner="softmax", bias=False, learning_rate=rate)
  values.group("Teacher and training", "--episodes=2000 --output=residue:0.5 --teacher_hidden=32")
  values.real(
    "start_near", 0.05,
    "Students start at the target plus N(0, this^2); with 0 or less, at the learner's own random parameters.",
  )  # fmt: skip
  values.whole("episodes", 1000, "Number of episodes of teaching; after each the teacher takes a step.")
  flag_of = {name: flag for method in METHODS.values() for name, flag in _flags_of(method).items()}
  flags.define_settings(values, METHODS, flag_of, {name: forms for name, (_, forms) in _OBJECTS.items()})
  values.choice("validation", "train", ("train", "test"), "black_box: the pool of the validation examples.")
  values.switch(
    "keep_best", None,
    "Whether the teacher is evaluated at every report, on students that are the same every time, and the best one is "
    "returned. Default: except for unroll with a target, whose metrics show how well it teaches.",
  )  # fmt: skip
  values.whole("report_every", training.EVALUATE_EVERY, f"Number of episodes between two lines of {METRICS_FILE}.")
  flags.define_run(values, os.path.join("runs", "train_teacher"))
  flags.define_devices(values, "one of a CPU, otherwise all; they must divide --students evenly")
  return values


def _flags_of(method: type[training.Settings]) -> dict[str, str]:
  """Return the flag of each setting that has one."""
  names = [field.name for field in dataclasses.fields(method)]
  return {name: _RENAMED.get(name, name) for name in names if name not in _WITHOUT_FLAG}


def _read_settings(method: type[training.Settings], given: Mapping[str, Any]) -> dict[str, Any]:
  """Return the settings that have a value among the flags."""
  settings = {}
  for name, flag in _flags_of(method).items():
    value = given[flag]
    if value is None:
      continue
    if name in _OBJECTS:
      with command.naming(flag, value):
        value = _OBJECTS[name][0](value)
    elif name == "hidden":
      with command.naming(flag, ",".join(value)):
        value = specs.widths(value)
    settings[name] = value
  return settings


# --- From flags to a trainer.


class Setup(NamedTuple):
  """Everything that a training needs, checked."""

  title: str
  trainer: Trainer
  key: jax.Array
  folder: Folder
  config: dict[str, Any]
  try_command: list[str]  # The words of a command that tries the finished teacher beside others.
  notes: list[str]


def prepare(values: flags.Flags, mesh: Mesh | None, now: Callable[[str], None]) -> Setup:
  """Check the flags and prepare all up to the first episode; `now` is told what is done. Errors name the flag."""
  checks.check_not_negative("--checkpoint_seconds", values.checkpoint_seconds)
  folder = Folder(pathlib.Path(values.out), FILES, "checkpoints", may_grow=("episodes",), growing=(METRICS_FILE,))
  settings = {flag for method in METHODS.values() for flag in _flags_of(method).values()}
  problem.check_names(values)
  folder.check_flags("launch.train_teacher", values, settings | {"learner", "learning_rate", "keep_best"})
  given = problem.read(values, LEARNING_RATES)
  dataset, learner = given.dataset, given.learner
  if values.validation == "test" and dataset.test is None:
    raise ValueError(f"--validation=test: --dataset={values.dataset} has no test pool")
  omniscient, reinforce = values.view == "omniscient", values.method == "reinforce"
  unroll = values.method == "unroll"
  settled: dict[str, Any] = {"learning_rate": given.learning_rate, "learner": given.learner_name}
  settled["keep_best"] = (not unroll or not omniscient) if values.keep_best is None else values.keep_best
  if reinforce and values.actions is None:
    settled["actions"] = "binary_augmented" if learner.num_outputs(dataset.train.x) == 2 else "mixtures"
  kind, evaluate_every = METHODS[values.method], values.report_every if settled["keep_best"] else 0
  method = kind(**_read_settings(kind, values.flag_values_dict() | settled), evaluate_every=evaluate_every)
  if not _is_utf8(os.path.abspath(values.out)):
    raise ValueError(f"--out={values.out} must be a path in UTF-8: the library that writes checkpoints takes no other")
  check_writable(values.out)  # Before the target is fitted, which can take long.
  target_key, training_key = jax.random.split(jax.random.key(values.seed))
  now("finding w*")
  target, _, notes = problem.find_target(values, given, target_key)
  used = _flags_of(kind)
  with command.user_errors(used):
    trainer = training.make_trainer(
      method,
      learner,
      dataset.train,
      target=target if omniscient else None,
      validation=dataset.test if values.validation == "test" else None,
      init_fn=training.near(target, values.start_near) if values.start_near > 0 else None,
      mesh=mesh,
    )
  settled |= {flag: getattr(trainer.method, name) for name, flag in used.items() if name not in _OBJECTS}
  idle = [
    *problem.find_idle(values, given),
    *sorted(settings - set(used.values())),
    *(["validation"] if omniscient else []),
  ]
  settled |= dict.fromkeys(idle)
  config = make_config("launch.train_teacher", values, settled, {"dataset": given.digest})
  folder.check(config, resume=values.resume, overwrite=values.overwrite)
  return Setup(
    title=f"{values.method}, {values.view.replace('_', ' ')}: {given.title(values)}",
    trainer=trainer,
    key=training_key,
    folder=folder,
    config=config,
    try_command=_make_try_command(values, settled, learner),
    notes=notes + problem.note_idle(values, idle),
  )


def _is_utf8(path: str) -> bool:
  try:
    path.encode()
  except UnicodeEncodeError:
    return False
  return True


def _make_try_command(values: flags.Flags, settled: dict[str, Any], learner: last.learners.Learner) -> list[str]:
  """Return the words of a command of `launch.teach` with the same data, learner and students."""
  words = repeat_command("launch.teach", values, settled, only=(*problem.FLAGS, "batch_size", "seed", "x64"))
  words += [f"--start_near={values.start_near!r}"] if values.start_near > 0 else []
  constraint = "simplex" if learner.loss.classification else "none"
  words += ["--teacher=sgd,imt,greedy,policy", f"--constraint={constraint}", "--steps=300"]
  return [*words, f"--policy={values.out}", f"--out={os.path.join(values.out, 'teach')}"]
