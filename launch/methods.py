"""The teachers that --teacher and --constraint name."""

import dataclasses
import hashlib
import pathlib
from typing import Any, NamedTuple

import jax
from jax.tree_util import Partial

import last_jax as last
from last_jax import checks, models
from last_jax.learners import Learner
from last_jax.tools import Family, Variant, specs
from last_jax.tools.catalogue import CONSTRAINTS, TEACHERS

from .command import naming
from .datasets import FILE_ENDINGS
from .flags import Flags, several

CHOOSING = ("greedy", "mixed", "planner")  # Teachers that choose labels from a set.
PREDICTING = ("distillation", "self_training", "self_training_hard", "policy")  # They need a learner with predictions.
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
BASELINES = ("sgd", "label_smoothing")  # What a method is compared with. The second is for classes only.
STEERED = (*CHOOSING, "imt")  # Teachers that steer toward w*, or toward its outputs.
LINEAR_DEFAULT = ("sgd", "imt", "greedy", "mixed")
NETWORK_DEFAULT = (*BASELINES, "greedy")  # To judge all examples of a pool by a network takes long.
CLASS_SETS = ("one_hot", "simplex", "none")
NUMBER_SETS = ("magnitude:0.5", "magnitude:1", "magnitude:2", "none")
# Toward a loss or outputs. What this is worth is measured in docs/guides/networks.md.
NETWORK_CLASS_SETS = ("magnitude:0.5", "magnitude:1")
TOWARD = ("params", "outputs", "loss")
# Flags that are chosen to fit the data, where they are not given; and what is added to one that is given.
CHOSEN = ("learner", "learning_rate", "record_every", "teacher", "constraint", "toward", "baselines")
ADDED = {"teacher": BASELINES}
_TEMPERATURE = 3.0  # By which outputs of classes are divided.
_COMPARED = 200  # Examples of the pool that are drawn for each step, at most.


class Method(NamedTuple):
  """A teacher, with the family and the variant that set its look in pictures."""

  teacher: last.Teacher
  family: Family
  variant: Variant = ""


def define_flags(values: Flags) -> None:
  """Define the flags of teachers."""
  values.group("Teachers", "--teacher=sgd,greedy --constraint=simplex,magnitude:0.5")
  values.several(
    "teacher", None,
    f"Teachers, one or more of {', '.join(TEACHERS)}; --list says what they do. The model of distillation is here "
    "the target itself. Default: "
    f"{','.join(LINEAR_DEFAULT)} for linear learners, {','.join(NETWORK_DEFAULT)} for others.",
  )  # fmt: skip
  values.switch(
    "baselines", None,
    f"Whether {' and '.join(BASELINES)} teach beside the teachers given. Default: with data of your own, where neither "
    "is among the teachers, so that a number has something beside it.",
  )  # fmt: skip
  values.choice(
    "toward", None, TOWARD,
    "What imt, greedy, mixed and planner bring the student near to. params: w* itself. outputs: what w* answers "
    f"(for classes divided by {_TEMPERATURE:g}). loss: a low loss, without w*. The last two on {_COMPARED} random "
    "examples of the pool in each step. Default: params for linear learners and with --start_near or init in the file; "
    "loss for networks, for which parameters that were trained from another start are no direction.",
  )  # fmt: skip
  values.several(
    "constraint", None,
    f"Sets of labels that greedy, mixed and planner choose from, one curve for each: {', '.join(CONSTRAINTS)}; --list "
    f"says what they are. Default: {','.join(CLASS_SETS)} for classes ({','.join(NETWORK_CLASS_SETS)} toward others); "
    f"{','.join(NUMBER_SETS)} for numbers.",
  )  # fmt: skip
  values.text("policy", None, "policy: the folder of launch.train_teacher, or a file of last_jax.save_policy.")
  values.whole(
    "horizon", 4, "planner: number of steps whose labels are chosen at once; their examples are drawn ahead."
  )
  values.switch("joint", False, "mixed: choose example and label together, rather than the example first.")
  values.reals("mu", 0.9, "label_smoothing: the share of the true label. A list gives a curve for each.")
  values.reals("temperature", 1.0, "distillation: more is softer. A list gives a curve for each.")


def check_names(values: Flags) -> None:
  """Raise where a teacher or a set of labels has a name that does not exist."""
  if values.teacher is not None and not values.teacher:
    raise ValueError(f"--teacher is empty: use some of {', '.join(TEACHERS)}")
  if values.constraint is not None and not values.constraint:
    raise ValueError("--constraint is empty: leave it out for the default")
  for name in values.teacher or ():
    checks.check_name("--teacher", name, TEACHERS)
  for text in values.constraint or ():
    with naming("constraint", text):
      specs.constraint(text)


class Choice(NamedTuple):
  """The teachers, the sets of labels and what is steered toward, as the flags say, or as fits the data.

  Attributes:
    teacher: names of teachers.
    constraint: names of sets of labels.
    toward: one of `TOWARD`.
    baselines: False where they were to be left out, otherwise None: they are among the teachers, or have no place here.
  """

  teacher: list[str]
  constraint: list[str]
  toward: str
  baselines: bool | None

  @property
  def settled(self) -> dict[str, Any]:
    """The values of the flags, for the command that repeats the run."""
    return self._asdict()

  def find_idle(self) -> list[str]:
    """Return the flags of this module that have no effect, given the others."""
    names = set(self.teacher)
    needed = {
      "constraint": not names.isdisjoint(CHOOSING),
      "toward": not names.isdisjoint(STEERED),
      "joint": "mixed" in names,
      "horizon": "planner" in names,
      "mu": "label_smoothing" in names,
      "temperature": "distillation" in names,
      "policy": "policy" in names,
    }
    return [name for name, applies in needed.items() if not applies]

  def notes(self, values: Flags) -> list[str]:
    """Return what a person should know of what was chosen for them."""
    given = values["teacher"].present and not set(self.teacher) <= set(values.teacher)
    notes = [f"{' and '.join(BASELINES)} teach beside it, for comparison (not with --nobaselines)"] if given else []
    if values.toward is None and self.toward == "loss" and "toward" not in self.find_idle():
      notes.append(
        "labels steer toward a low loss (--toward=loss), and not toward w*: parameters of a network that was trained "
        "from another start are no direction for a student, so do not judge by the distance"
      )
    return notes


def choose(values: Flags, learner: Learner, dataset: last.Dataset) -> Choice:
  """Return what the flags say, with a choice that fits the data where they say nothing. Errors name the flag."""
  network, classes = not isinstance(learner.model, models.Linear), learner.loss.classification
  baselines = [name for name in BASELINES if classes or name != "label_smoothing"]
  own = values.dataset.endswith(FILE_ENDINGS)
  given = list(dict.fromkeys(values.teacher or (NETWORK_DEFAULT if network else LINEAR_DEFAULT)))
  wanted = own and (values.teacher is None or set(BASELINES).isdisjoint(given))
  if values.teacher is None:
    given = [name for name in given if name in baselines or name not in BASELINES]
  add = values.baselines or (wanted and values.baselines is None)
  if values.baselines is False and values.teacher is None:
    given = [name for name in given if name not in BASELINES]
  near = values.start_near is not None or dataset.init is not None
  toward = values.toward or ("loss" if network and not near else "params")
  sets = (CLASS_SETS if toward == "params" else NETWORK_CLASS_SETS) if classes else NUMBER_SETS
  return Choice(
    teacher=[*(name for name in baselines if name not in given), *given] if add else given,
    constraint=values.constraint or list(sets),
    toward=toward,
    baselines=False if wanted and values.baselines is False else None,
  )


def find_toward(choice: Choice, learner: Learner, pool: last.Pool, target: Any) -> Any:
  """Return what labels steer toward, or None: the parameters."""
  size = min(len(pool), _COMPARED)
  if choice.toward == "loss":
    return last.targets.loss(pool, batch_size=size)
  if choice.toward == "params" or target is None:
    return None
  outputs = jax.lax.map(lambda x: learner.apply(target, x[None])[0], pool.x, batch_size=size)
  temperature = _TEMPERATURE if learner.loss.classification else 1.0
  return last.targets.outputs(pool.x, outputs, temperature=temperature, batch_size=size)


def build(values: Flags, choice: Choice, learner: Learner, target: Any, toward: Any = None) -> dict[str, Method]:
  """Return the methods by their names in files. Errors name the flag; nothing is computed.

  Args:
    values: the command's flags.
    choice: of `choose`.
    learner: the learner to teach.
    target: w*; only distillation uses it.
    toward: of `find_toward`.
  """
  names = choice.teacher
  methods: dict[str, Method] = {}
  for name in names:
    with naming("teacher", name):
      if name in PREDICTING and learner.loss.predict is None:
        raise ValueError(f"it needs a learner that predicts labels, which {learner.loss.name} does not")
      if name in ("label_smoothing", "self_training_hard") and not learner.loss.classification:
        raise ValueError("it is for classifiers, but this learner predicts numbers")
    if name in CHOOSING:
      family: Any = "joint_mixed" if name == "mixed" and values.joint else name
      for text in choice.constraint:
        teacher = _choosing(name, _constraint(text, learner), values, toward)
        methods[f"{family}:{text}"] = Method(teacher, family, specs.variant(text))
    else:
      flag = {"label_smoothing": "mu", "distillation": "temperature"}.get(name)
      numbers = several(values[flag].value) if flag else [None]
      for place, number in enumerate(numbers):
        teacher = _plain(name, values, learner, target, number, toward)
        if len(numbers) == 1:
          methods[name] = Method(teacher, *_LOOKS[name])
        else:
          teacher = dataclasses.replace(teacher, name=f"{teacher.name} ({flag} {number:g})")
          methods[f"{name}:{number!r}"] = Method(teacher, _LOOKS[name][0], place)
  return methods


def _choosing(name: str, constraint: last.constraints.Constraint, values: Flags, toward: Any) -> last.Teacher:
  if name == "planner":
    return last.teachers.planner(values.horizon, constraint, toward)
  if name == "greedy":
    return last.teachers.greedy(constraint, toward)
  return last.teachers.mixed(constraint, values.joint, toward)


def _plain(name: str, values: Flags, learner: Learner, target: Any, number: Any, toward: Any) -> last.Teacher:
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
  return teachers.sgd() if name == "sgd" else teachers.imt(toward)


def hash_data(values: Flags, choice: Choice, dataset: str) -> dict[str, str]:
  """Return hashes of the files that a run depends on, by flag; that of the data is given."""
  data = {"dataset": dataset}
  if "policy" in choice.teacher:
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
