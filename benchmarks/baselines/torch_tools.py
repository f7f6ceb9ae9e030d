"""What all baselines in PyTorch share. It is imported when it is used: everything else works without it."""

import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar

from benchmarks.problems import RADIUS

Tensor = Any  # torch.Tensor, which is not imported here.
Returned = TypeVar("Returned")


def missing() -> str | None:
  """Why there is nothing to compare with, if so."""
  if importlib.util.find_spec("torch") is not None:
    return None
  return "PyTorch is not installed, so nothing is compared with it: pip install '.[bench]'"


def with_threads(count: int, run: Callable[..., Returned]) -> Callable[..., Returned]:
  """The same, by `count` threads, however many PyTorch uses otherwise."""
  import torch

  def run_with_threads(*arguments: Any) -> Returned:
    usual = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
      return run(*arguments)
    finally:
      torch.set_num_threads(usual)

  return run_with_threads


def threads_to_try(given: int | None) -> list[int]:
  """The number given, or as many threads as PyTorch uses by default, and one.

  Small operations, or cores that others use as well, make more threads slower.
  """
  import torch

  return sorted({torch.get_num_threads(), 1}, reverse=True) if given is None else [given]


# From the best free label and the ground truth, of one student or of many, to the best label of the set, in place.
LABELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
  "none": lambda free, truth: free,
  "one_hot": lambda free, truth: (free > 0.5).to(free.dtype),
  "simplex": lambda free, truth: free.clamp_(0.0, 1.0),
  "magnitude": lambda free, truth: free.sub_(truth).clamp_(-RADIUS, RADIUS).add_(truth),
}
