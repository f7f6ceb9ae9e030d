"""Many settings in few programs: settings of equal structure share one, and numbers in which they differ are stacked.

A setting is a problem and a teacher, taught with each of the same keys. In a call of a program every pair of a setting
and a key is a student of its own, so that the result is that of `teach_many` for this setting alone.
"""

import contextlib
import functools
import itertools
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from last_jax import compiler, devices, loop, programs, watching
from last_jax.base import Key, Params, Result, Teacher
from last_jax.loop import Plan
from last_jax.problem import Problem

Leaves = list[Any]  # Of a setting's problem and teacher; None in the places that another list has.


class Setting(NamedTuple):
  """What is taught, and how; `init` has a leading [seeds] axis, or is None for random starts."""

  problem: Problem
  teacher: Teacher
  plan: Plan
  init: Params | None = None


class Form(NamedTuple):
  """The static part of a program: how leaves make a problem and a teacher, and which are numbers of Python."""

  structure: Any
  python: tuple[type | None, ...]

  def build(self, own: Leaves, shared: Leaves) -> tuple[Problem, Teacher]:
    """Return the problem and the teacher of one student."""

    def merge(mine: Any, common: Any, python: type | None) -> Any:
      if mine is None:
        return common
      # Python's numbers do not decide the precision of what is computed with them; in a stack they would.
      return mine if python is None else jax.lax.convert_element_type(mine, python)

    return jax.tree.unflatten(self.structure, [merge(*each) for each in zip(own, shared, self.python, strict=True)])


def teach_settings(
  keys: Key, settings: Mapping[Hashable, Setting], *, at_once: int, mesh: Mesh | None
) -> Iterator[tuple[Hashable, Result]]:
  """Teach students of every setting; yield its name and its result on the host as soon as there is one.

  Args:
    keys: `[seeds]`, the same for each setting.
    settings: by name, in any order. Results come program by program.
    at_once: the largest number of students in a call.
    mesh: devices to split students over.
  """
  watched = watching.is_on(keys)
  with watching.current().line(len(settings), "settings") if watched else contextlib.nullcontext() as line:
    done = 0
    for names in _by_program(settings):
      programs.make_room()
      group = [settings[name] for name in names]
      try:
        for place, result in _teach_group(keys, group, at_once, mesh):
          yield names[place], result
          done += 1
          if line is not None:
            line.update(done)
      except Exception as error:
        error.add_note(f"while teaching {len(names)} settings of one program, as {names[0]}")
        raise


# --- Groups.


def _by_program(settings: Mapping[Hashable, Setting]) -> list[list[Hashable]]:
  """Return the names of settings that one compiled program can teach, program by program."""
  structures: dict[Any, int] = {}
  known: dict[int, int] = {}  # From the identity of a part to its structure, which takes long to compare.

  def structure_of(part: Any) -> int:
    if id(part) not in known:
      leaves, structure = jax.tree.flatten(part)
      known[id(part)] = structures.setdefault((structure, tuple(map(_kind, leaves))), len(structures))
    return known[id(part)]

  groups: dict[Any, list[Hashable]] = {}
  for name, setting in settings.items():
    parts = setting.problem, setting.teacher, setting.init
    groups.setdefault((*map(structure_of, parts), setting.plan), []).append(name)
  return list(groups.values())


class _Kind(NamedTuple):
  """What a program knows of a leaf."""

  shape: tuple[int, ...]
  dtype: Any
  weak_type: bool

  @property
  def python(self) -> type | None:
    """The type of Python's numbers that the leaf behaves as, or None for an array."""
    if not self.weak_type:
      return None
    return float if jnp.issubdtype(self.dtype, jnp.floating) else int


def _kind(leaf: Any) -> _Kind:
  kind = jax.typeof(leaf)
  return _Kind(kind.shape, kind.dtype, kind.weak_type)


def _are_equal(leaf: Any, other: Any) -> bool:
  """Return whether two leaves of a kind are known to hold the same."""
  if leaf is other:
    return True
  comparable = jnp.issubdtype(jax.typeof(leaf).dtype, jnp.number) or jax.typeof(leaf).dtype == bool
  whole = all(getattr(each, "is_fully_addressable", True) for each in (leaf, other))
  return bool(comparable and whole and np.array_equal(leaf, other))


class _Group(NamedTuple):
  """Settings of one program.

  Attributes:
    form: the program's static part.
    stacked: by place among the leaves, the numbers `[settings]` that differ between settings; None elsewhere.
    calls: the settings, divided into those that a call can teach together: all that is not stacked is equal.
    leaves: of each setting.
  """

  form: Form
  stacked: list[np.ndarray | None]
  calls: list[list[int]]
  leaves: list[Leaves]


def _arrange(group: Sequence[Setting]) -> _Group:
  leaves = [jax.tree.leaves((each.problem, each.teacher)) for each in group]
  kinds = tuple(map(_kind, leaves[0]))
  form = Form(jax.tree.structure((group[0].problem, group[0].teacher)), tuple(kind.python for kind in kinds))
  columns = list(zip(*leaves, strict=True))
  stacked: list[np.ndarray | None] = [None] * len(columns)
  for place, (kind, column) in enumerate(zip(kinds, columns, strict=True)):
    if kind.shape == () and not all(_are_equal(column[0], leaf) for leaf in column):
      stacked[place] = np.asarray(column, kind.dtype)
  if _caches_differ(form, kinds, tuple(stack is not None for stack in stacked)):
    stacked = [None] * len(columns)  # One cache for each student would be too large: settings take turns.
  others = [column for column, stack in zip(columns, stacked, strict=True) if stack is None]
  calls: list[list[int]] = []
  for place in range(len(group)):
    fitting = (call for call in calls if all(_are_equal(column[call[0]], column[place]) for column in others))
    call = next(fitting, None)
    if call is None:
      calls.append([place])
    else:
      call.append(place)
  return _Group(form, stacked, calls, leaves)


@functools.lru_cache(maxsize=256)
def _caches_differ(form: Form, kinds: tuple[_Kind, ...], stacked: tuple[bool, ...]) -> bool:
  """Return whether what the teacher prepares depends on numbers that differ between settings."""
  if not any(stacked):
    return False
  own, shared = (
    [
      jax.ShapeDtypeStruct((2,) * mine + kind.shape, kind.dtype, weak_type=kind.weak_type) if mine is side else None
      for mine, kind in zip(stacked, kinds, strict=True)
    ]
    for side in (True, False)
  )

  def prepare(own: Leaves, shared: Leaves) -> Any:
    problem, teacher = form.build(own, shared)
    seen = problem if teacher.needs_target else problem.without_target()
    return None if teacher.prepare is None else teacher.prepare(seen)

  try:
    jax.eval_shape(jax.vmap(prepare, (0, None), None), own, shared)  # Refused where a result is mapped.
  except ValueError:
    return True
  return False


# --- Calls.


def _teach_stacked(students: Any, shared: Leaves, *, plan: Plan, form: Form, mesh: Mesh | None) -> Result:
  """Teach students `(keys, starts, own leaves)`, each with a leading [students] axis."""

  def teach_all(students: Any, shared: Leaves) -> Result:
    def teach(key: Key, params: Params | None, own: Leaves) -> Result:
      return loop.teach_one(key, params, *form.build(own, shared), plan=plan)

    return jax.vmap(teach)(*students)

  return loop.over_students(teach_all, students, shared, mesh)


_teach_compiled = compiler.jit_for_small_steps(_teach_stacked, ("plan", "form", "mesh"))


def _teach_group(
  keys: Key, settings: Sequence[Setting], at_once: int, mesh: Mesh | None
) -> Iterator[tuple[int, Result]]:
  """Yield the place and the result of each setting."""
  group, seeds = _arrange(settings), keys.shape[0]
  small_steps = loop.has_small_steps(settings[0].problem)
  most = max(map(len, group.calls)) * seeds
  length = -(-most // -(-most // at_once))  # All calls of a program have the same length, and little is left over.
  for call in group.calls:
    leaves = group.leaves[call[0]]
    shared = [leaf if stack is None else None for leaf, stack in zip(leaves, group.stacked, strict=True)]
    shared = devices.copy_to_all(shared, mesh)
    pieces: list[Result] = []
    count = len(call) * seeds
    for start in range(0, count, length):
      pairs = np.arange(start, start + length) % count  # Some are taught twice, to fill the last call.
      which, seed = np.asarray(call)[pairs // seeds], pairs % seeds
      own = [None if stack is None else jnp.asarray(stack[which]) for stack in group.stacked]
      students = devices.split((_rows(keys, seed), _pick([each.init for each in settings], which, seed), own), mesh)
      result = _teach_compiled(small_steps, students, shared, plan=settings[0].plan, form=group.form, mesh=mesh)
      # Keys are those of the call.
      result = devices.gather(result._replace(state=result.state._replace(key=None)))
      for place, rows in _divide(start, min(start + length, count), seeds):
        pieces.append(jax.tree.map(lambda leaf, rows=rows: leaf[rows], result))
        if (start + rows.stop) % seeds == 0:
          whole = pieces[0] if len(pieces) == 1 else jax.tree.map(lambda *parts: np.concatenate(parts), *pieces)
          yield call[place], whole._replace(state=whole.state._replace(key=keys))
          pieces = []


@jax.jit  # One dispatch in place of several for each leaf.
def _rows(tree: Any, rows: np.ndarray) -> Any:
  return jax.tree.map(lambda leaf: jnp.asarray(leaf)[rows], tree)


def _pick(inits: Sequence[Params | None], which: np.ndarray, seed: np.ndarray) -> Params | None:
  """Return the starts of pairs of a setting and a seed."""
  first = inits[which[0]]
  if first is None:
    return None
  if all(inits[each] is first for each in np.unique(which)):
    return _rows(first, seed)
  runs = [list(run) for _, run in itertools.groupby(range(len(which)), lambda i: which[i])]
  parts = [jax.tree.map(lambda leaf, run=run: jnp.asarray(leaf)[seed[run]], inits[which[run[0]]]) for run in runs]
  return jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *parts)


def _divide(start: int, stop: int, seeds: int) -> Iterator[tuple[int, slice]]:
  """Divide the pairs `start .. stop - 1` by setting: its place, and its rows, counted from `start`."""
  for place in range(start // seeds, -(-stop // seeds)):
    first, last = max(start, place * seeds), min(stop, (place + 1) * seeds)
    yield place, slice(first - start, last - start)
