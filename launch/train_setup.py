"""From the flags of `launch.train_teacher` to a trainer, each error naming its flag."""

import hashlib
import inspect
import json
import pathlib
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

import last_jax as last
from last_jax import checks, devices, training
from last_jax.data.files import read_arrays
from last_jax.teachers import outputs
from last_jax.training import rewards
from last_jax.training.trainer import Trainer
from launch import command, problem, where
from launch.learner import parse_widths

METHODS, VIEWS = ("unroll", "reinforce"), ("omniscient", "black_box")
ACTIONS, REWARDS = ("binary", "binary_augmented", "mixtures"), ("distance", "loss", "accuracy", "steps")
LEARNING_RATES = problem.LEARNING_RATES | {"mnist": 5e-4}
# By method, the flags of the other.
_ONLY = {
  "unroll": ("output", "decay", "segment"),
  "reinforce": ("actions", "reward", "discount", "baseline"),
}
# What may differ between a training and its continuation.
_FREE = ("help", "h", "out", "resume", "checkpoint_seconds", "episodes", "mnist_folder", *where.FLAGS)


class Setup(NamedTuple):
  """All that a training needs."""

  title: str
  trainer: Trainer
  key: jax.Array
  episodes: int
  report_every: int
  out: pathlib.Path
  resume: bool
  checkpoint_seconds: float
  fingerprint: str  # The same if, and only if, training is the same.
  try_command: list[str]  # The words of a command that tries the finished teacher beside others.
  settled: dict[str, Any]
  data_facts: dict[str, Any]
  notes: list[str]


def prepare(flags: Any, mesh: Mesh | None) -> Setup:
  """Everything up to the first episode, checked. Raises ValueError, TypeError or OSError where something is wrong."""
  checks.check_not_negative("--checkpoint_seconds", flags.checkpoint_seconds)
  given = problem.build(flags, LEARNING_RATES)
  dataset, learner = given.dataset, given.learner
  if flags.validation == "test" and dataset.test is None:
    raise ValueError(f"--validation=test: --dataset={flags.dataset} has no test pool")
  method = _method_settings(flags, learner, dataset)
  problem.check_out(flags.out)
  _check_unused(pathlib.Path(flags.out), flags.resume)

  target_key, training_key = jax.random.split(jax.random.key(flags.seed))
  target, _, notes = problem.find_target(learner, dataset, target_key, flags)
  omniscient = flags.view == "omniscient"
  reinforce = flags.method == "reinforce"
  make: Any = training.make_reinforce if reinforce else training.make_unrolled
  usual = {name: parameter.default for name, parameter in inspect.signature(make).parameters.items()}
  decay = flags.teacher_weight_decay
  settled: dict[str, Any] = {
    "learning_rate": given.learning_rate,
    "learner": given.learner_name,
    "horizon": flags.horizon or usual["horizon"],
    "reset": usual["reset"] if flags.reset is None else flags.reset,
    "teacher_weight_decay": usual["weight_decay"] if decay is None else decay,
    "keep_best": (reinforce or not omniscient) if flags.keep_best is None else flags.keep_best,
  }
  trainer = make(
    learner,
    dataset.train,
    target=target if omniscient else None,
    validation=dataset.test if flags.validation == "test" else None,
    starts=training.near(target, flags.start_near) if flags.start_near > 0 else None,
    horizon=settled["horizon"],
    batch_size=flags.batch_size,
    students=flags.students,
    reset=settled["reset"],
    features=flags.features,
    hidden=parse_widths("--teacher_hidden", flags.teacher_hidden),
    standardize=flags.standardize,
    learning_rate=flags.teacher_learning_rate,
    weight_decay=settled["teacher_weight_decay"],
    evaluate_every=min(flags.report_every, flags.episodes) if settled["keep_best"] else None,
    mesh=mesh,
    **method,
  )
  idle = problem.idle_flags(flags, given.learner_name) + list(_ONLY["unroll" if reinforce else "reinforce"])
  idle += ["validation"] if omniscient else []
  notes += [f"--{name} has no effect here" for name in idle if flags[name].present]
  settled |= dict.fromkeys(idle)
  name = f"{pathlib.Path(flags.dataset).name}, {given.title}"
  return Setup(
    title=f"{flags.method}, {flags.view.replace('_', ' ')}: {name}",
    trainer=trainer,
    key=training_key,
    episodes=flags.episodes,
    report_every=flags.report_every,
    out=pathlib.Path(flags.out),
    resume=flags.resume,
    checkpoint_seconds=flags.checkpoint_seconds,
    fingerprint=_fingerprint(flags, settled, given.data_facts, dataset),
    try_command=_try_command(flags, settled),
    settled=settled,
    data_facts=given.data_facts,
    notes=notes,
  )


def _check_unused(out: pathlib.Path, resume: bool) -> None:
  checkpoints = out / "checkpoints"
  if devices.is_first() and not resume and checkpoints.is_dir() and any(checkpoints.iterdir()):
    raise ValueError(
      f"--out={out} holds checkpoints of a training already: --resume goes on with it; for a new one give another "
      "--out, or remove that folder"
    )


def _method_settings(flags: Any, learner: last.learners.Learner, dataset: last.Dataset) -> dict[str, Any]:
  if flags.method == "unroll":
    return {"decay": flags.decay, "segment": flags.segment, "output": _output(flags.output)}
  return {
    "actions": _actions(flags.actions, learner.num_outputs(dataset.train.x)),
    "reward": _reward(flags.reward),
    "discount": flags.discount,
    "baseline": flags.baseline,
  }


def _output(spec: str | None) -> Any:
  if spec is None:
    return None
  kind, *parts = spec.split(":")
  plain: dict[str, Any] = {"simplex": outputs.simplex, "free": outputs.free}
  if kind in plain and not parts:
    return plain[kind]()
  inner = parts[1] if len(parts) == 2 else "simplex"
  if kind != "residue" or not 1 <= len(parts) <= 2 or inner not in plain:
    raise ValueError(f"--output={spec} must be simplex, free, residue:ALPHA or residue:ALPHA:free")
  return outputs.residue(_number("--output", spec, parts[0]), plain[inner]())


def _actions(spec: str | None, num_outputs: int) -> Any:
  spec = spec or ("binary_augmented" if num_outputs == 2 else "mixtures")
  kind, _, rest = spec.partition(":")
  if spec in ("binary", "binary_augmented"):
    return outputs.BINARY if spec == "binary" else outputs.BINARY_AUGMENTED
  if kind == "mixtures":
    return (
      outputs.mixtures([_number("--actions", spec, word) for word in rest.split(",")]) if rest else outputs.mixtures()
    )
  if not spec.endswith(".npz"):
    raise ValueError(f"--actions={spec} is not known: use one of {', '.join(ACTIONS)}, or FILE.npz")
  arrays = read_arrays(spec)
  if "actions" not in arrays:
    raise ValueError(f"--actions={spec} must hold the array actions [A, K], but holds {', '.join(arrays) or 'nothing'}")
  return outputs.actions(arrays["actions"])


def _reward(spec: str | None) -> Any:
  if spec is None:
    return None
  plain: dict[str, Any] = {"distance": rewards.distance, "loss": rewards.loss, "accuracy": rewards.accuracy}
  if spec in plain:
    return plain[spec]()
  kind, _, threshold = spec.partition(":")
  if kind != "steps" or not threshold:
    raise ValueError(f"--reward={spec} must be distance, loss, accuracy, or steps:ACCURACY, as steps:0.9")
  return rewards.steps(_number("--reward", spec, threshold))


def _number(flag: str, spec: str, word: str) -> float:
  try:
    return float(word)
  except ValueError:
    raise ValueError(f"{flag}={spec}: {word!r} is not a number") from None


def _fingerprint(flags: Any, settled: dict[str, Any], data_facts: dict[str, Any], dataset: last.Dataset) -> str:
  settings = {name: flags[name].value for name in flags if name not in _FREE} | settled
  content = hashlib.sha256()
  for pool in (dataset.train, dataset.test):
    for leaf in jax.tree.leaves(pool):
      content.update(np.asarray(leaf).tobytes())
  facts = {"settings": settings, "data": data_facts, "content": content.hexdigest()}
  return hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()


def _try_command(flags: Any, settled: dict[str, Any]) -> list[str]:
  """The words of a command of `launch.teach` with the same data, learner and students."""
  words = command.repeat_command("launch.teach", flags, settled, only=(*problem.FLAGS, "batch_size", "seed", "x64"))
  words += [f"--start_near={flags.start_near!r}"] if flags.start_near > 0 else []
  constraint = "simplex" if flags.learner != "least_squares" else "none"
  others = ["--teacher=sgd,imt,greedy,policy", f"--constraint={constraint}", f"--policy={flags.out}", "--steps=300"]
  return [*words, *others]
