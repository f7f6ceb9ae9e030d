"""Lessons in files, with all that a student elsewhere needs to follow them: `docs/lessons.md` has the format.

curriculum = last.Curriculum(problem, result.lessons, init=start, final=result.params, examples=True)
last.save("lessons.npz", curriculum)
"""

import json
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from last_jax import checks, facts, io
from last_jax.base import Lesson, Lessons, Params, Pool, is_concrete
from last_jax.data.params import params_from_arrays
from last_jax.learner import Learner
from last_jax.optimizers import Sgd
from last_jax.problem import Problem

_VERSION = 1
_SHARED = ("x", "truth", "learning_rate", "init", "target")
_PARAMS = ("init", "target", "final")


@jax.tree_util.register_pytree_with_keys_class
class Curriculum:
  """Lessons for a student elsewhere, as `save` writes them and `load` reads them.

  Attributes:
    arrays: NumPy arrays, by their names in the file.
    facts: everything else, in JSON's own types: loss, optimizer, model, inputs, hashes of the pool.
  """

  arrays: dict[str, np.ndarray]
  facts: dict[str, Any]

  def __init__(
    self,
    problem: Problem,
    lessons: Lessons | Mapping[str, Lessons],
    *,
    init: Params | None = None,
    final: Params | Mapping[str, Params] | None = None,
    target: Params | None = None,
    examples: bool = False,
    inputs: str = "",
    model: str = "",
    loss: str = "",
    optimizer: str = "",
  ):
    """Gather lessons and what belongs to them.

    Args:
      problem: learner and pool. Its target stays out of the file, unless given as `target`.
      lessons: index `[steps, m]`, the examples of each step. Label `[steps, m, K]`, or labels that stay, one for each
        example of the pool, `[n, K]`: any other order of the examples then serves as well. (With tokens `[..., T, K]`.)
        Of many students, `[students, steps, m]` and `[students, steps, m, K]`. Of several teachers, a dict by name.
        Steps are those of a new student, whose optimizer begins.
      init: the parameters that the lessons are for; of many students with a leading [students] axis.
      final: where they led to, for students to compare with; of several teachers, a dict by name.
      target: w*, if it may be known.
      examples: whether the file holds the examples themselves, with their ground truth. Else it has their places in the
        pool, which whoever reads it must have.
      inputs: how the pool's inputs were made, in words: "pixels / 255".
      model: what the model is, in words; wanted where it is none of the package's.
      loss: what the loss is, in words; needed where it is none of the package's.
      optimizer: what the optimizer is, in words; needed where it is not SGD.
    """
    if not isinstance(problem, Problem):
      raise TypeError(f"problem must be a Problem, but it is a {type(problem).__name__}")
    for name, words in {"inputs": inputs, "model": model, "loss": loss, "optimizer": optimizer}.items():
      if not isinstance(words, str):
        raise TypeError(f"{name} must be words, but it is a {type(words).__name__}")
    examples = checks.check_flag("examples", examples)
    given = jax.tree.leaves((lessons, init, final, target, problem))
    if not is_concrete(*(leaf for leaf in given if isinstance(leaf, jax.Array))):
      raise TypeError("lessons must be arrays of this process: outside jit, and of several processes gathered")
    several = not isinstance(lessons, Lesson)
    named = {"": lessons} if isinstance(lessons, Lesson) else _check_names(lessons)
    shapes = {name: _check_lesson(f"lessons{_of(name)}", each, problem) for name, each in named.items()}
    first = next(iter(shapes.values()))
    for name, shape in shapes.items():
      if shape != first:
        raise ValueError(f"lessons{_of(name)} must be like the first: {first[0]}, but they are {shape[0]}")
    (*students, steps, batch_size), per_step = first
    learner = problem.learner

    num_outputs = problem.truth.shape[-1]
    self.facts = {
      "curriculum": _VERSION,
      "teachers": [*named] if several else None,
      "students": students[0] if students else None,
      "steps": steps,
      "batch_size": batch_size,
      "num_outputs": num_outputs,
      "labels": "one for each step and place in its batch" if per_step else "one for each example of the pool",
      "order": "as listed" if per_step else "any: that of index is one",
      "offset": "none: labels enter the loss as they are",
      "loss": facts.describe_loss(learner, num_outputs, loss),
      "optimizer": facts.describe_optimizer(learner, optimizer),
      "model": facts.describe_model(learner, model),
      "inputs": facts.describe_inputs(learner, problem.pool, inputs),
      "pool": facts.describe_pool(problem.pool),
    }
    self.arrays = {}
    if examples:
      self.arrays |= {"x": facts.plain(problem.pool.x), "truth": np.asarray(problem.truth)}
    if isinstance(learner.optimizer, Sgd):
      self.arrays["learning_rate"] = np.asarray(learner.optimizer.learning_rates(steps))
    for name, each in named.items():
      self.arrays |= {f"{_before(name)}{part}": array for part, array in _encode(each).items()}
    self._add_params(learner, "init", init, "", students)
    self._add_params(learner, "target", target, "", [])
    if several and final is not None and not isinstance(final, Mapping):
      raise TypeError(f"final must be a dict by teacher, as the lessons are, but it is a {type(final).__name__}")
    finals = {} if final is None else final if several else {"": final}
    if set(finals) - set(named):
      raise ValueError(f"final must have the names of the lessons, {', '.join(named)}, but has {', '.join(finals)}")
    for name, params in finals.items():
      self._add_params(learner, "final", params, name, students)

  @property
  def lessons(self) -> Lessons | dict[str, Lessons]:
    """The lessons as they were given: one `Lesson`, or of several teachers a dict by name."""
    found = self._named()
    return found if self.facts["teachers"] else found[""]

  def params(self, name: str, learner: Learner, teacher: str = "") -> Params:
    """Return parameters in the learner's own tree.

    Args:
      name: "init", "final" or "target".
      learner: one with the same parameters as that of the lessons.
      teacher: whose `final`, where there are several.
    """
    checks.check_name("name", name, _PARAMS)
    place = _before(teacher) + name
    leaves = {key.removeprefix(place).lstrip("/"): array for key, array in self.arrays.items() if _is_in(key, place)}
    if not leaves:
      raise ValueError(f"name={place!r}: the file does not have these parameters; it has {', '.join(self.arrays)}")
    students = self.facts["students"] if name != "target" else None
    lead = () if students is None else (students,)
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((*lead, *leaf.shape), leaf.dtype), learner.shapes())
    return params_from_arrays(shapes, leaves, name)

  def select(self, teacher: str = "", student: int | None = None) -> "Curriculum":
    """Return the lessons of one teacher, where there are several, and of one student, where there are many."""
    told = self.facts
    if teacher not in (told["teachers"] or [""]):
      raise ValueError(
        f"teacher={teacher!r} is not among those of the lessons: {told['teachers'] or 'one, without name'}"
      )
    if student is not None and not 0 <= student < (told["students"] or 0):
      raise ValueError(
        f"student={student} is not among those of the lessons: there are {told['students'] or 'no others'}"
      )
    others = tuple(map(_before, told["teachers"] or []))
    own = {
      name.removeprefix(_before(teacher)): array
      for name, array in self.arrays.items()
      if name.startswith(_before(teacher)) or not name.startswith(others)
    }
    if student is not None:
      labels = ("label", "label_class", "label_value") if told["order"] == "as listed" else ()
      of_student = [name for name in own if name in ("index", *labels) or _is_in(name, "init") or _is_in(name, "final")]
      own |= {name: own[name][student] for name in of_student}
    facts_of_one = told | {"teachers": None, "students": None if student is not None else told["students"]}
    return Curriculum.tree_unflatten((tuple(own), json.dumps(facts_of_one)), own.values())

  def check_pool(self, pool: Pool) -> None:
    """Raise unless `pool` is the one that the lessons were made from, by its hashes."""
    if not isinstance(pool, Pool):
      raise TypeError(f"pool must be a Pool, but it is a {type(pool).__name__}")
    for name in ("x", "y"):
      known, found = self.facts["pool"][name], facts.describe_pool(pool)[name]
      if found["shape"] != known["shape"] or found["dtype"] != known["dtype"]:
        given = " but ".join(f"{each['dtype']}{each['shape']}" for each in (known, found))
        raise ValueError(f"pool.{name} is not that of the lessons: theirs is {given} is given")
      if found["sha256"] != known["sha256"]:
        raise ValueError(f"pool.{name} is not that of the lessons: numbers differ, or are in another order or scaling")

  def __repr__(self) -> str:
    told = self.facts
    of = f"{', '.join(told['teachers'])}: " if told["teachers"] else ""
    many = "" if told["students"] is None else f", {told['students']} students"
    return f"Curriculum({of}{told['steps']} steps of {told['batch_size']}, {told['loss']['name']}{many})"

  def tree_flatten_with_keys(self) -> Any:
    """Return the leaves, for JAX."""
    leaves = [(jax.tree_util.DictKey(name), array) for name, array in self.arrays.items()]
    return leaves, (tuple(self.arrays), json.dumps(self.facts))

  @classmethod
  def tree_unflatten(cls, static: Any, leaves: Any) -> "Curriculum":
    """Rebuild a curriculum around leaves, for JAX."""
    curriculum = object.__new__(cls)  # Not through __init__, which makes one of lessons.
    curriculum.arrays, curriculum.facts = dict(zip(static[0], leaves, strict=True)), json.loads(static[1])
    return curriculum

  def _add_params(self, learner: Learner, name: str, params: Params | None, teacher: str, students: list[int]) -> None:
    if params is None:
      return
    # A student that has diverged has NaNs for its end.
    number, finite = students[0] if students else None, name != "final"
    checks.check_params(learner, params, f"{name}{_of(teacher)}", students=number, finite=finite)
    names = facts.leaf_shapes(params)
    for leaf, array in zip(names, jax.tree.leaves(params), strict=True):
      self.arrays[f"{_before(teacher)}{name}/{leaf}".rstrip("/")] = facts.plain(array)

  def _named(self) -> dict[str, Lessons]:
    return {name: self._decode(_before(name)) for name in self.facts["teachers"] or [""]}

  def _decode(self, before: str) -> Lessons:
    index: Any = self.arrays[f"{before}index"]
    label: Any = self.arrays.get(f"{before}label")
    if label is not None:
      return Lesson(index, label)
    classes, values = self.arrays[f"{before}label_class"], self.arrays[f"{before}label_value"]
    label = np.zeros((*values.shape[:-1], self.facts["num_outputs"]), values.dtype)
    np.put_along_axis(label, classes.astype(int), values, -1)
    return Lesson(index, label)


def _of(name: str) -> str:
  return f"[{name!r}]" if name else ""


def _before(name: str) -> str:
  return f"{name}/" if name else ""


def _is_in(key: str, place: str) -> bool:
  return key == place or key.startswith(f"{place}/")


def _check_names(lessons: Any) -> dict[str, Lessons]:
  if not isinstance(lessons, Mapping) or not lessons:
    raise TypeError(f"lessons must be a Lesson, or a dict of them by teacher, but it is a {type(lessons).__name__}")
  for name in lessons:
    if not isinstance(name, str) or not name or "/" in name or name in _SHARED:
      raise ValueError(f"lessons: {name!r} cannot name a teacher: give a word without '/', and none of {_SHARED}")
  return dict(lessons)


def _check_lesson(name: str, lesson: Any, problem: Problem) -> tuple[tuple[int, ...], bool]:
  """Return the shape of `index`, and whether there is a label for each step, not one for each example."""
  if not isinstance(lesson, Lesson):
    raise TypeError(f"{name} must be a Lesson(index, label), but it is a {type(lesson).__name__}")
  index, label = (np.asarray(part) for part in lesson)
  pool_size, *shape = problem.truth.shape
  if index.ndim not in (2, 3) or not np.issubdtype(index.dtype, np.integer) or not index.size:
    raise ValueError(
      f"{name}.index must be whole numbers [steps, m] or [students, steps, m], but it is {index.dtype}{[*index.shape]}"
    )
  if not 0 <= index.min() <= index.max() < pool_size:
    found = f"it goes from {index.min()} to {index.max()}"
    raise ValueError(f"{name}.index must lie between 0 and {pool_size - 1}, but {found}")
  per_step, fixed = [*index.shape, *shape], [pool_size, *shape]
  if [*label.shape] not in (per_step, fixed) or not np.issubdtype(label.dtype, np.floating):
    raise ValueError(
      f"{name}.label must be real numbers {per_step}, for each step, or {fixed}, for each example, "
      f"but it is {label.dtype}{[*label.shape]}"
    )
  return index.shape, [*label.shape] == per_step


def _encode(lesson: Lesson) -> dict[str, np.ndarray]:
  """Return index and label; labels of few classes as the numbers of these classes and their values."""
  index, label = np.asarray(lesson.index), facts.plain(lesson.label)
  most = max(int(np.count_nonzero(label, -1).max()), 1)
  if 4 * most > label.shape[-1]:
    return {"index": index, "label": label}
  # Classes with an entry first, then others: each class once, so that those with a value of zero do no harm.
  classes = np.sort(np.argsort(label == 0, -1, kind="stable")[..., :most], -1)
  values = np.take_along_axis(label, classes, -1)
  return {"index": index, "label_class": classes.astype(np.min_scalar_type(label.shape[-1])), "label_value": values}


def _build(static: dict[str, Any], leaves: dict[str, Any]) -> Curriculum:
  if static["curriculum"] > _VERSION:
    raise ValueError(f"its version is {static['curriculum']}, but this last_jax reads up to {_VERSION}: update it")
  num_outputs = static["num_outputs"]
  if type(num_outputs) is not int or not 1 <= num_outputs < 2**31:
    raise ValueError(f"num_outputs must be a whole number from 1, but it is {num_outputs!r}")
  _check_facts(static)
  for name in static["teachers"] or [""]:
    _check_arrays(_before(name), static, leaves)
  return Curriculum.tree_unflatten((tuple(leaves), json.dumps(static)), leaves.values())


def _check_facts(static: dict[str, Any]) -> None:
  """Raise unless the facts that are used have the types that they should have."""
  teachers, students, pool = static["teachers"], static["students"], static["pool"]
  if teachers is not None and not (isinstance(teachers, list) and all(isinstance(each, str) for each in teachers)):
    raise ValueError("teachers must be names, or none")
  if students is not None and (type(students) is not int or students < 1):
    raise ValueError("students must be a whole number from 1, or none")
  if not isinstance(static["order"], str) or not isinstance(static["loss"]["name"], str):
    raise ValueError("order and loss must be words")
  for name in ("x", "y"):
    kinds = {"shape": list, "dtype": str, "sha256": str}
    if not all(isinstance(pool[name][fact], kind) for fact, kind in kinds.items()):
      raise ValueError(f"pool.{name} must have a shape, a dtype and a hash")


def _check_arrays(before: str, static: dict[str, Any], leaves: dict[str, Any]) -> None:
  """Raise unless index and labels fit the facts. Labels of few classes stay as they are: whole, they can be large."""
  index, label = leaves[f"{before}index"], leaves.get(f"{before}label")
  lead = () if static["students"] is None else (static["students"],)
  if index.shape != (*lead, static["steps"], static["batch_size"]) or index.dtype.kind not in "iu":
    raise ValueError(f"{before}index has shape {index.shape}, which is not that of its facts")
  if label is not None:
    if label.shape[-1:] != (static["num_outputs"],):
      raise ValueError(f"{before}label has shape {label.shape}, but there are {static['num_outputs']} outputs")
    return
  classes, values = leaves[f"{before}label_class"], leaves[f"{before}label_value"]
  if classes.shape != values.shape or classes.dtype.kind not in "iu":
    raise ValueError(f"{before}label_class must hold a class for each of label_value")
  if classes.size and not 0 <= classes.min() <= classes.max() < static["num_outputs"]:
    raise ValueError(f"{before}label_class must lie between 0 and {static['num_outputs'] - 1}")


io.register_kind(Curriculum, lambda curriculum: curriculum.facts, _build)
