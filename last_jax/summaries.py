"""Lines that say what a result, a state or a learner is, for `repr`. Tracers and shapes have theirs too."""

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from last_jax.pool import is_concrete


def number(value: Any) -> str:
  """Return a number as text; dtype and shape of an array that is none, or whose entries cannot be read."""
  if isinstance(value, (int, float, np.number)) or (is_concrete(value) and value.ndim == 0):
    return f"{float(value):.4g}"
  return f"{jnp.result_type(value)}{list(jnp.shape(value))}" if hasattr(value, "shape") else type(value).__name__


def count(amount: int, noun: str) -> str:
  """Return an amount with its noun, in the plural unless it is one."""
  return f"{amount:,} {noun}{'s' * (amount != 1)}"


def records(step: Any, metrics: Mapping[str, Any]) -> str:
  """Describe records: how many steps, of how many students, and each metric from first to last, means over students."""
  if not is_concrete(step) or not step.ndim:
    return ", ".join([f"step {number(step)}", *(name for name, values in metrics.items() if values is not None)])
  parts = [count(int(np.asarray(step)[..., -1].max()), "step")]
  if step.ndim > 1:
    parts.append(count(math.prod(step.shape[:-1]), "student"))
  for name, values in metrics.items():
    if values is not None and is_concrete(values):
      ends = np.asarray(values, float)[..., [0, -1]].reshape(-1, 2).mean(0)
      parts.append(f"{name} {ends[0]:.3g} -> {ends[1]:.3g}")
  return ", ".join(parts)


def state(step: Any, params: Any, hitting_time: Any) -> str:
  """Describe a state: its step, the size of its parameters, how many students, and the hitting time of one."""
  shape = jnp.shape(step)
  now = int(np.asarray(step).max()) if is_concrete(step) and step.size else number(step)
  size = sum(math.prod(jnp.shape(leaf)) for leaf in jax.tree.leaves(params) if hasattr(leaf, "shape"))
  parts = [f"step {now}", count(size // max(1, math.prod(shape)), "parameter")]
  if shape:
    parts.append(count(math.prod(shape), "student"))
  elif hitting_time is not None and is_concrete(hitting_time):
    parts.append(f"hitting time {int(hitting_time)}")
  return ", ".join(parts)
