"""Checks of the arguments of tangent kernels, before the network is traced."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def check_call(apply_fn: Callable[..., Any], params: Any, x: Any, name: str = "x") -> tuple[int, ...]:
  """Return the shape of `apply_fn(params, x)`, `[n, ...]`. Raise where it has none; only shapes are computed.

  Args:
    apply_fn: the network.
    params: its parameters.
    x: examples.
    name: of the examples, for messages.
  """
  if not callable(apply_fn):
    raise TypeError(f"apply_fn must be a function of (params, x), but it is a {type(apply_fn).__name__}")
  check_arrays("params", params, ndim=0)
  check_arrays(name, x)
  number = {np.shape(leaf)[0] for leaf in jax.tree.leaves(x)}
  if len(number) != 1:
    raise ValueError(f"{name} must hold arrays [n, ...] of the same number of examples, but it holds {sorted(number)}")
  try:
    outputs = jax.eval_shape(apply_fn, params, x)
  except Exception as error:
    error.add_note(f"raised by apply_fn(params, {name}), a function of the caller's")
    raise
  shape = getattr(outputs, "shape", None)
  if shape is None or shape[:1] != (*number,) or not jnp.issubdtype(outputs.dtype, jnp.floating):
    found = type(outputs).__name__ if shape is None else f"{outputs.dtype}{list(shape)}"
    wanted = f"one row for each example of {name}, floats [{min(number)}, ...]"
    raise ValueError(f"apply_fn must return {wanted}, but it returned {found}")
  return shape


def check_arrays(name: str, tree: Any, ndim: int = 1) -> None:
  """Raise unless it is a tree of arrays of numbers with at least `ndim` axes, not empty and none masked."""
  try:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
  except (TypeError, ValueError) as error:
    raise TypeError(f"{name} must be a tree of arrays, but it is none: {str(error).splitlines()[0]}") from None
  if not leaves:
    raise ValueError(f"{name} must hold at least one array, but it holds none")
  for path, leaf in leaves:
    where = f"{name}{jax.tree_util.keystr(path)}"
    kinds = (jax.Array, np.ndarray, np.generic, jax.ShapeDtypeStruct) + (float, int) * (ndim == 0)
    if not isinstance(leaf, kinds) or isinstance(leaf, np.ma.MaskedArray) or (isinstance(leaf, int) and leaf >= 2**31):
      raise TypeError(f"{where} must be an array of numbers, but it is a {type(leaf).__name__}")
    dtype = np.asarray(leaf).dtype if isinstance(leaf, (float, int)) else leaf.dtype
    if not (jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)) or dtype == np.longdouble:
      raise TypeError(f"{where} must hold numbers, but its dtype is {dtype}")
    shape = jnp.shape(leaf)
    if len(shape) < ndim or shape[:1] == (0,):
      raise ValueError(f"{where} must have at least one example, [n, ...], but its shape is {shape}")


def check_weights(weights: Any) -> None:
  """Raise unless it is None or a tree of finite real numbers, and of arrays of them."""
  if weights is None:
    return
  check_arrays("weights", weights, ndim=0)
  for path, leaf in jax.tree_util.tree_leaves_with_path(weights):
    value = leaf if isinstance(leaf, jax.core.Tracer) else np.asarray(leaf)
    if isinstance(leaf, bool) or not (
      jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)
    ):
      raise TypeError(f"weights{jax.tree_util.keystr(path)} must be real numbers, but they are {value.dtype}")
    most = float(jnp.finfo(jax.dtypes.canonicalize_dtype(float)).max)
    if isinstance(value, np.ndarray) and not (np.abs(value.astype(np.float64)) <= most).all():
      raise ValueError(f"weights{jax.tree_util.keystr(path)} must be finite numbers")


def check_rows(name: str, rows: Any, shape: tuple[int, ...]) -> Any:
  """Return an array of real numbers of this shape, or raise."""
  check_arrays(name, rows)
  if not isinstance(rows, (jax.Array, np.ndarray)) or jnp.issubdtype(rows.dtype, jnp.complexfloating):
    raise TypeError(f"{name} must be an array of real numbers, but it is a {type(rows).__name__}")
  if rows.shape != shape:
    raise ValueError(f"{name} must have shape {list(shape)}, as the outputs, but it has shape {list(rows.shape)}")
  return jnp.asarray(rows)
