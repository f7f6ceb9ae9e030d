"""A teacher from two functions, a selection of examples and a synthesis of labels: the paper's stateless methods."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from last_jax.base import Array, Lesson, Teacher, View
from last_jax.functions import as_pure_function

Select = Callable[[View, Array], Array]  # (view, proposal [m]) -> index [m]
Label = Callable[[View, Array], tuple[Array, Any]]  # (view, index [m]) -> labels [m, K], Certificate or None


def compose(
  name: str,
  label: Label,
  *,
  select: Select | None = None,
  prepare: Callable[..., Any] | None = None,
  needs_target: bool = False,
) -> Teacher:
  """Return the teacher that shows `select`'s examples with `label`'s labels.

  Args:
    name: for tables and legends.
    label: `(view, index [m]) -> (labels [m, K], certificate)`; the certificate may be None.
    select: `(view, proposal [m]) -> index [m]` into the pool; the proposed, random examples unless given.
    prepare: as for `Teacher`.
    needs_target: as for `Teacher`.
  """
  label = as_pure_function("label", label, ("view", "index"))
  select = None if select is None else as_pure_function("select", select, ("view", "proposal"))
  step = jax.tree_util.Partial(_step, label, select)
  return Teacher(name, step=step, prepare=prepare, needs_target=needs_target)


def _step(label: Any, select: Any, teacher_state: None, view: View, proposal: Array) -> tuple[Lesson, None, Any]:
  index = proposal if select is None else select(view, proposal)
  if not isinstance(index, (jax.Array, np.ndarray)) or index.ndim != 1 or not jnp.issubdtype(index.dtype, jnp.integer):
    raise TypeError(f"select must return indices [m], integers, but it returned {index!r}")
  answer = label(view, index)
  if not isinstance(answer, tuple) or len(answer) != 2:
    raise TypeError(f"label must return (labels [m, K], certificate or None), but it returned {answer!r}")
  return Lesson(jnp.asarray(index), answer[0]), teacher_state, answer[1]
