"""Checks of what a caller's functions return, made once, while they are traced."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from last_jax.base import Lesson, State, Teacher
from last_jax.problem import Problem


def check_answer(teacher: Teacher, problem: Problem, state: State, answer: Any) -> tuple[Lesson, Any, Any]:
  """Check what a teacher's step returns, once, while it is traced."""
  who = f"the teacher {teacher.name!r}"
  if not isinstance(answer, tuple) or len(answer) != 3 or not isinstance(answer[0], Lesson):
    raise TypeError(f"step of {who} must return (Lesson, teacher_state, certificate), but it returned {answer!r}")
  lesson, teacher_state, certificate = answer
  for name, part in (("index", lesson.index), ("label", lesson.label)):
    if part is None or not jax.tree_util.all_leaves((part,)):
      raise TypeError(
        f"step of {who} must return an array as the {name} of its Lesson, but it is a {type(part).__name__}"
      )
  for name, part in (("Lesson", lesson), ("teacher_state", teacher_state), ("certificate", certificate)):
    check_arrays(f"step of {who}", name, part)
  index, label = jnp.asarray(lesson.index), jnp.asarray(lesson.label)
  if index.ndim != 1 or not jnp.issubdtype(index.dtype, jnp.integer):
    raise ValueError(f"{who} must return indices [m], integers, but they are {index.dtype}{list(index.shape)}")
  wanted = (index.shape[0], *problem.truth.shape[1:])
  if label.shape != wanted or not jnp.issubdtype(label.dtype, jnp.floating):
    axes = "[m, K]" if len(wanted) == 2 else "[m, T, K]"
    raise ValueError(
      f"{who} must return labels {axes} = {list(wanted)}, floats, but they are {label.dtype}{list(label.shape)}"
    )
  before, after = (_describe(tree) for tree in (state.teacher_state, teacher_state))
  if before != after:
    raise ValueError(f"step of {who} must return a teacher_state like init's, {before}, but it returned {after}")
  return Lesson(index, label.astype(problem.truth.dtype)), teacher_state, certificate


def check_arrays(function: str, name: str, tree: Any) -> None:
  """Raise unless all leaves of a part of what a function returned are arrays or numbers."""
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    if not isinstance(leaf, (jax.Array, np.ndarray, np.generic, bool, int, float, complex)):
      where = jax.tree_util.keystr(path)
      raise TypeError(f"{function} must return arrays, but {name}{where} is a {type(leaf).__name__}")


def _describe(tree: Any) -> str:
  """Return the structure, shapes and dtypes of a tree, as text."""
  return str(jax.tree.map(lambda leaf: f"{jnp.result_type(leaf)}{list(jnp.shape(leaf))}", tree))
