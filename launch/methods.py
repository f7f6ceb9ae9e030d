"""The teachers that --teacher and --constraint name."""

import dataclasses
import hashlib
import pathlib
from typing import Any, NamedTuple

import jax
from jax.tree_util import Partial

import last_jax as last
from last_jax import checks
from last_jax.learners import Learner
from last_jax.tools import Family, Variant, specs

from .command import naming
from .flags import Flags, several

CHOOSING = ("greedy", "mixed", "planner")  # Teachers that choose labels from a set.
PREDICTING = ("distillation", "self_training", "self_training_hard", "policy")  # They need a learner with predictions.
TEACHERS = ("sgd", "imt", *CHOOSING, "label_smoothing", *PREDICTING)
_LOOKS: dict[str, tuple[Family, str]] = {
  "sgd": ("sgd", ""),
  "imt": ("imt", ""),
  "label_smoothing": ("label_smoothing", ""),
  "distillation": ("distillation", ""),
  "self_training": ("self_training", ""),
  "self_training_hard": ("self_training", "hard"),
  "policy": ("learned", ""),
}
POLICY_FILE = "policy.npz"
CLASS_SETS = ("one_hot", "simplex", "none")
NUMBER_SETS = ("magnitude:0.5", "magnitude:1", "magnitude:2", "none")


class Method(NamedTuple):
  """A teacher, with the family and the variant that set its look in pictures."""

  teacher: last.Teacher
  family: Family
  variant: Variant = ""


def define_flags(values: Flags) -> None:
  """Define the flags of teachers."""
  values.several(
    "teacher", ["sgd", "imt", "greedy", "mixed"],
    f"Teachers, one or more of {', '.join(TEACHERS)}. sgd: random examples, true labels. imt: the example of the pool "
    "that helps most, true label. greedy: LAST, random examples, the label that helps most. mixed: both chosen. "
    "planner: as greedy, several steps ahead. distillation: labels of a pretrained model, which here is the target "
    "itself. policy: labels of a network that launch.train_teacher has trained (--policy).",
  )  # fmt: skip
  values.several(
    "constraint", None,
    "Sets of labels that greedy, mixed and planner choose from, one curve for each: none (any numbers), one_hot "
    "(classes), simplex (soft labels), simplex:R (soft, within R of the truth), simplex:max_nonzero=K (soft, at most K "
    "classes in a label), magnitude:R (within R of the truth), "
    "magnitude:R:P (in the norm P: 1, 2 or inf), magnitude:R:P:prediction (of the student's prediction). Default: "
    f"{','.join(CLASS_SETS)} for classes; {','.join(NUMBER_SETS)} for numbers.",
  )  # fmt: skip
  values.text("policy", None, "policy: the folder of launch.train_teacher, or a file of last_jax.save_policy.")
  values.whole(
    "horizon", 4, "planner: number of steps whose labels are chosen at once; their examples are drawn ahead."
  )
  values.switch("joint", False, "mixed: choose example and label together, rather than the example first.")
  values.reals("mu", 0.9, "label_smoothing: the share of the true label. A list gives a curve for each.")
  values.reals("temperature", 1.0, "distillation: more is softer. A list gives a curve for each.")


def find_idle(values: Flags) -> list[str]:
  """Return the flags of this module that have no effect, given the others."""
  needed = {
    "constraint": not set(CHOOSING).isdisjoint(values.teacher),
    "joint": "mixed" in values.teacher,
    "horizon": "planner" in values.teacher,
    "mu": "label_smoothing" in values.teacher,
    "temperature": "distillation" in values.teacher,
    "policy": "policy" in values.teacher,
  }
  return [name for name, applies in needed.items() if not applies]


def default_constraints(learner: Learner) -> list[str]:
  """Return the sets of labels to choose from where --constraint is not given."""
  return list(CLASS_SETS if learner.loss.classification else NUMBER_SETS)


def build(values: Flags, learner: Learner, target: Any) -> dict[str, Method]:
  """Return the methods by their names in files. Errors name the flag; nothing is computed.

  Args:
    values: the command's flags.
    learner: the learner to teach.
    target: w*; only distillation uses it.
  """
  names = list(dict.fromkeys(values.teacher))
  if not names:
    raise ValueError(f"--teacher is empty: use some of {', '.join(TEACHERS)}")
  if values.constraint is not None and not values.constraint:
    raise ValueError("--constraint is empty: leave it out for the default")
  methods: dict[str, Method] = {}
  for name in names:
    checks.check_name("--teacher", name, TEACHERS)
    with naming("teacher", name):
      if name in PREDICTING and learner.loss.predict is None:
        raise ValueError(f"it needs a learner that predicts labels, which {learner.loss.name} does not")
      if name in ("label_smoothing", "self_training_hard") and not learner.loss.classification:
        raise ValueError("it is for classifiers, but this learner predicts numbers")
    if name in CHOOSING:
      family: Any = "joint_mixed" if name == "mixed" and values.joint else name
      for text in values.constraint or default_constraints(learner):
        teacher = _choosing(name, _constraint(text, learner), values)
        methods[f"{family}:{text}"] = Method(teacher, family, specs.variant(text))
    else:
      flag = {"label_smoothing": "mu", "distillation": "temperature"}.get(name)
      numbers = several(values[flag].value) if flag else [None]
      for place, number in enumerate(numbers):
        teacher = _plain(name, values, learner, target, number)
        if len(numbers) == 1:
          methods[name] = Method(teacher, *_LOOKS[name])
        else:
          teacher = dataclasses.replace(teacher, name=f"{teacher.name} ({flag} {number:g})")
          methods[f"{name}:{number!r}"] = Method(teacher, _LOOKS[name][0], place)
  return methods


def _choosing(name: str, constraint: last.constraints.Constraint, values: Flags) -> last.Teacher:
  if name == "planner":
    return last.teachers.planner(values.horizon, constraint)
  return last.teachers.greedy(constraint) if name == "greedy" else last.teachers.mixed(constraint, joint=values.joint)


def _plain(name: str, values: Flags, learner: Learner, target: Any, number: Any) -> last.Teacher:
  teachers = last.teachers
  if name == "label_smoothing":
    checks.check_between("--mu", number, 0.0, 1.0)
    return teachers.label_smoothing(number)
  if name == "distillation":
    checks.check_positive("--temperature", number)
    return teachers.distillation(Partial(Learner.apply, learner, target), number)
  if name == "policy":
    if values.policy is None:
      raise ValueError("--teacher=policy needs --policy, the folder that launch.train_teacher wrote")
    with naming("policy", values.policy):
      return teachers.policy(last.load_policy(find_policy(values.policy)))
  if name.startswith("self_training"):
    return teachers.self_training(hard=name == "self_training_hard")
  return teachers.sgd() if name == "sgd" else teachers.imt()


def hash_data(values: Flags, dataset: str) -> dict[str, str]:
  """Return hashes of the files that a run depends on, by flag; that of the data is given."""
  data = {"dataset": dataset}
  if "policy" in values.teacher:
    data["policy"] = hashlib.sha256(find_policy(values.policy).read_bytes()).hexdigest()
  return data


def find_policy(path: str) -> pathlib.Path:
  """Return the file of --policy, which is that file or the folder that holds it."""
  file = pathlib.Path(path)
  file = file / POLICY_FILE if file.is_dir() else file
  if not file.is_file():
    raise FileNotFoundError(f"there is no {file}: launch.train_teacher writes it when training is finished")
  return file


def _constraint(text: str, learner: Learner) -> last.constraints.Constraint:
  with naming("constraint", text):
    constraint = specs.constraint(text)
    if constraint.hull and not learner.loss.classification:
      raise ValueError("it chooses among classes, but this learner predicts numbers: use none or magnitude:R")
  return constraint


def check(name: str, method: Method, teachable: last.Problem, batch_size: int) -> Any:
  """Trace one step, which raises where the teacher cannot teach; return its certificate, without numbers."""

  def step(key: jax.Array, teachable: last.Problem, teacher: last.Teacher) -> last.Info:
    return last.step(last.init(key, teachable, teacher), teachable, teacher, batch_size=batch_size)[1]

  try:
    certificate = jax.eval_shape(step, jax.random.key(0), teachable, method.teacher).certificate
  except (ValueError, TypeError) as error:
    raise ValueError(f"--teacher={name.partition(':')[0]}: {error}") from error
  return certificate if isinstance(certificate, last.Certificate) else None
