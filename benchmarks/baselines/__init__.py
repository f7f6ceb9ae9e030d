"""What we compare with, written for the same jobs with care: each kind in a module of its own.

A kind that cannot be had on this machine says so in a line, and is left out.
"""

from collections.abc import Callable
from typing import NamedTuple

from benchmarks.baselines import c_loop, numpy_batched, torch_batched, torch_students, torch_tools
from benchmarks.baselines.base import Teach
from benchmarks.problems import Method, Problem

PER_STUDENT, BATCHED, NUMPY, C_LOOP = "PyTorch, per student", "PyTorch, batched", "NumPy", "C loop"


class Kind(NamedTuple):
  """A way to teach linear students.

  Attributes:
    name: for tables.
    missing: gives why it cannot be had, or None.
    variants: `(problem, method, PyTorch's threads or None) -> ` what to try, by name: the fastest counts.
    students: how many students it is timed on at most, where all would take too long; None: all.
  """

  name: str
  missing: Callable[[], str | None]
  variants: Callable[[Problem, Method, int | None], dict[str, Teach]]
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
  """Why baselines are left out on this machine: a line each."""
  return list(dict.fromkeys(why for kind in KINDS.values() if (why := kind.missing()) is not None))
