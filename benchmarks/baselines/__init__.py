"""Implementations to compare with, written with care for the same jobs: each kind in a module of its own.

A kind that is not available on this machine is left out, with a message.
"""

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.baselines import c_loop, cvxpy_student, numpy_batched, torch_batched, torch_students, torch_tools
from benchmarks.baselines.base import Teach
from benchmarks.cases import Case, Strategy

PER_STUDENT, BATCHED, NUMPY, C_LOOP = "PyTorch, per student", "PyTorch, batched", "NumPy", "C loop"


class Kind(NamedTuple):
  """A kind of implementation of teaching linear students.

  Attributes:
    name: for tables.
    missing: returns why it is not available, or None.
    variants: `(case, strategy, PyTorch's threads or None) ->` implementations to try, by name: the fastest counts.
    students: the most students that it is timed on, where all would take too long; None for all.
  """

  name: str
  missing: Callable[[], str | None]
  variants: Callable[[Case, Strategy, int | None], dict[str, Teach]]
  students: int | None = None


KINDS = {
  kind.name: kind
  for kind in (
    Kind(PER_STUDENT, torch_tools.missing, torch_students.variants, students=2),
    Kind(BATCHED, torch_tools.missing, torch_batched.variants),
    Kind(NUMPY, lambda: None, numpy_batched.variants),
    Kind(C_LOOP, c_loop.missing, c_loop.variants),
  )
}


def missing() -> list[str]:
  """Return why baselines are left out on this machine: a line each."""
  reasons = [*(kind.missing() for kind in KINDS.values()), cvxpy_student.missing()]
  return list(dict.fromkeys(why for why in reasons if why is not None))
