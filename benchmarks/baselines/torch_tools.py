"""Shared by all baselines in PyTorch. It is imported when it is used: everything else works without it."""

import importlib.util
from collections.abc import Callable
from typing import Any, TypeVar

from benchmarks.cases import RADIUS

Tensor = Any  # torch.Tensor, which is not imported here.
Returned = TypeVar("Returned")


def missing() -> str | None:
  """Return why PyTorch is not available, or None."""
  if importlib.util.find_spec("torch") is not None:
    return None
  return "PyTorch is not installed, so nothing is compared with it: pip install '.[bench]'"


def with_threads(count: int, run: Callable[..., Returned]) -> Callable[..., Returned]:
  """Return the same function, run with `count` threads of PyTorch."""
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
  """Return the number given, or else PyTorch's default and one: more threads are slower for small operations."""
  import torch

  return sorted({torch.get_num_threads(), 1}, reverse=True) if given is None else [given]


# From the best free label and the ground truth, of one student or of many, to the best label of the set, in place.
LABELS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
  "none": lambda free, truth: free,
  "one_hot": lambda free, truth: (free > 0.5).to(free.dtype),
  "simplex": lambda free, truth: free.clamp_(0.0, 1.0),
  "magnitude": lambda free, truth: free.sub_(truth).clamp_(-RADIUS, RADIUS).add_(truth),
}
