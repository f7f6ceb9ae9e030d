"""The teachers that --teacher and --constraint name."""

import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import last_jax as last
from last_jax import checks

CHOOSING = ("greedy", "mixed", "planner")  # Teachers that choose labels from a set.
TEACHERS = (
  "sgd", "imt", *CHOOSING, "label_smoothing", "distillation", "self_training", "self_training_hard", "policy"
)  # fmt: skip
POLICY_FILE = "policy.npz"
SETS = ("none", "one_hot", "simplex", "magnitude")
CLASS_SETS = ("one_hot", "simplex", "none")
NUMBER_SETS = ("magnitude:0.5", "magnitude:1", "magnitude:2", "none")


class Method(NamedTuple):
  """A teacher, and how it finds its labels, in words."""

  teacher: last.teachers.Teacher
  labels: str


def build_methods(
  flags: Any, constraint_specs: Sequence[str], learner: last.learners.Learner
) -> Callable[[Any], dict[str, Method]]:
  """Checks names and numbers; gives a function of the target that makes the methods, by their names in files."""
  names = list(dict.fromkeys(flags.teacher))
  if not names:
    raise ValueError(f"--teacher is empty: use some of {', '.join(TEACHERS)}")
  for name in names:
    checks.check_name("--teacher", name, TEACHERS)
  constraints = {}
  if set(names) & set(CHOOSING):
    constraints = {spec: _constraint(spec, learner) for spec in dict.fromkeys(constraint_specs)}
  if "label_smoothing" in names:
    checks.check_between("--mu", flags.mu, 0.0, 1.0)
    if not learner.loss.classification:
      raise ValueError("--teacher=label_smoothing is for classifiers, but this learner predicts numbers")
  if "distillation" in names:
    checks.check_positive("--temperature", flags.temperature)
  for name in ("distillation", "self_training", "self_training_hard", "policy"):
    hard_numbers = name == "self_training_hard" and not learner.loss.classification
    if name in names and (learner.loss.predict is None or hard_numbers):
      raise ValueError(f"--teacher={name} needs a learner that predicts labels, which {learner.loss.name} does not")
  policy: Any = _load_policy(flags.policy) if "policy" in names else None

  def make(target: Any) -> dict[str, Method]:
    methods = {}
    for name in names:
      if name in CHOOSING:
        for spec, constraint in constraints.items():
          key = f"{'joint_mixed' if name == 'mixed' and flags.joint else name}:{spec}"
          methods[key] = _choosing(name, constraint, flags, learner)
      elif name == "policy":
        methods[name] = Method(last.teachers.policy(policy), f"those of the network in {flags.policy}")
      else:
        methods[name] = _plain(name, flags, learner, target)
    return methods

  return make


def _choosing(name: str, constraint: last.constraints.Constraint, flags: Any, learner: last.learners.Learner) -> Method:
  teachers = last.teachers
  if name == "planner":
    teacher = teachers.planner(flags.horizon, constraint)
  else:
    teacher = teachers.greedy(constraint) if name == "greedy" else teachers.mixed(constraint, joint=flags.joint)
  num_outputs = getattr(learner.model, "num_outputs", 2)
  return Method(teacher, constraint.describe(flags.batch_size, num_outputs))


def _plain(name: str, flags: Any, learner: last.learners.Learner, target: Any) -> Method:
  teachers = last.teachers
  if name == "label_smoothing":
    return Method(teachers.label_smoothing(flags.mu), f"ground truth smoothed, mu={flags.mu:g}")
  if name == "distillation":
    teacher = teachers.distillation(lambda x: learner.apply(target, x), flags.temperature)
    return Method(teacher, f"what the target predicts, temperature {flags.temperature:g}")
  if name == "self_training":
    return Method(teachers.self_training(), "what the student predicts")
  if name == "self_training_hard":
    return Method(teachers.self_training(hard=True), "the class that the student predicts")
  return Method(teachers.sgd() if name == "sgd" else teachers.imt(), "ground truth")


def _load_policy(path: str | None) -> last.teachers.Policy:
  if path is None:
    raise ValueError("--teacher=policy needs --policy, the folder that launch.train_teacher wrote")
  file = pathlib.Path(path)
  file = file / POLICY_FILE if file.is_dir() else file
  if not file.is_file():
    raise FileNotFoundError(f"--policy={path}: there is no {file}: a training writes it when it is finished")
  return last.load_policy(file)


def _constraint(spec: str, learner: last.learners.Learner) -> last.constraints.Constraint:
  """The set that a spec like magnitude:0.5:1:prediction names."""
  kind, *parts = spec.split(":")
  if kind not in SETS:
    raise ValueError(f"--constraint={spec} is not known: use one of {', '.join(SETS)}, the last two with a radius")
  if kind in ("none", "one_hot") and parts:
    raise ValueError(f"--constraint={spec}: {kind} has no radius")
  if kind in ("one_hot", "simplex") and not learner.loss.classification:
    raise ValueError(
      f"--constraint={spec} chooses among classes, but this learner predicts numbers: use none or magnitude:R"
    )
  if kind == "none":
    return last.constraints.none()
  if kind == "one_hot":
    return last.constraints.one_hot()
  if kind == "simplex" and not parts:
    return last.constraints.simplex()
  radius, p, around = _ball(spec, kind, parts)
  make = last.constraints.simplex if kind == "simplex" else last.constraints.magnitude
  return make(radius, p, around)


def _ball(spec: str, kind: str, parts: Sequence[str]) -> tuple[float, float, str]:
  """Radius, norm and center."""
  form = f"{kind}:RADIUS, {kind}:RADIUS:P or {kind}:RADIUS:P:prediction, as {kind}:0.5:1"
  if not parts or len(parts) > 3:
    raise ValueError(f"--constraint={spec} must have the form {form}")
  try:
    radius, p = float(parts[0]), float(parts[1]) if len(parts) > 1 else 2.0
  except ValueError:
    raise ValueError(f"--constraint={spec}: radius and P must be numbers: {form}") from None
  checks.check_positive(f"--constraint={spec}: the radius", radius)
  if p not in (1.0, 2.0, float("inf")):
    raise ValueError(f"--constraint={spec}: P must be 1, 2 or inf")
  around = parts[2] if len(parts) > 2 else "truth"
  if around not in ("truth", "prediction"):
    raise ValueError(f"--constraint={spec}: the center must be truth or prediction, not {around}")
  return radius, p, around
