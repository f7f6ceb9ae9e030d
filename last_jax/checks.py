"""Checks of arguments, made before anything is traced. Tracers pass unchecked where a value would have to be known."""

import operator
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from last_jax.base import is_concrete
from last_jax.models import param_shapes


def _number(name: str, value: Any) -> np.ndarray | None:
  """Return the value as an array, or None for a tracer."""
  if isinstance(value, jax.core.Tracer):
    return None
  if isinstance(value, bool) or not (isinstance(value, (int, float, np.number)) or is_concrete(value)):
    raise TypeError(f"{name} must be a number, but it is a {type(value).__name__}")
  return np.asarray(value)


def check_number(name: str, value: Any) -> None:
  """Raise unless `value` is a finite number."""
  number = _number(name, value)
  if number is not None and not np.isfinite(number).all():
    raise ValueError(f"{name} must be a finite number, but it is {value}")


def check_positive(name: str, value: Any) -> None:
  """Raise unless `value` is finite and positive."""
  number = _number(name, value)
  if number is not None and not (np.isfinite(number).all() and (number > 0).all()):
    raise ValueError(f"{name} must be a positive number, but it is {value}")


def check_not_negative(name: str, value: Any) -> None:
  """Raise unless `value` is finite and at least 0."""
  number = _number(name, value)
  if number is not None and not (np.isfinite(number).all() and (number >= 0).all()):
    raise ValueError(f"{name} must be zero or a positive number, but it is {value}")


def check_between(name: str, value: Any, low: float, high: float) -> None:
  """Raise unless low <= `value` <= high."""
  number = _number(name, value)
  if number is not None and not ((number >= low).all() and (number <= high).all()):
    raise ValueError(f"{name} must lie between {low:g} and {high:g}, but it is {value}")


def check_count(name: str, value: Any, least: int = 1) -> None:
  """Raise unless `value` is a whole number of at least `least`."""
  try:
    number = operator.index(value)
  except TypeError:
    raise TypeError(f"{name} must be a whole number, but it is {value!r}") from None
  if isinstance(value, bool) or number < least:
    raise ValueError(f"{name} must be a whole number of at least {least}, but it is {value!r}")


def check_name(name: str, value: Any, allowed: Iterable[str]) -> str:
  """Return `value`, or raise unless it is one of `allowed`."""
  if not isinstance(value, str) or value not in allowed:
    raise ValueError(f"{name}={value!r} is not known: use one of {', '.join(repr(a) for a in sorted(allowed))}")
  return value


def check_finite(name: str, tree: Any) -> None:
  """Raise if a concrete leaf of `tree` holds NaN or infinity."""
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    # NumPy: within a caller's jit, a JAX operation on a concrete array would be traced.
    if is_concrete(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating) and not np.isfinite(np.asarray(leaf)).all():
      raise ValueError(f"{name}{jax.tree_util.keystr(path)} holds NaN or infinite values")


def check_params(learner: Any, params: Any, name: str, *, students: int | None = None) -> None:
  """Raises unless `params` has the structure and shapes of the learner's parameters (with a leading [students])."""
  expected = param_shapes(learner.model)
  found, wanted = str(jax.tree.structure(params)), str(jax.tree.structure(expected))
  if found != wanted:
    raise ValueError(f"{name} does not have the learner's parameters: it is {found}, but the learner has {wanted}")
  lead = () if students is None else (students,)
  for (path, leaf), want in zip(jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(expected), strict=True):
    if jnp.shape(leaf) != (*lead, *want.shape):
      where = jax.tree_util.keystr(path)
      raise ValueError(f"{name}{where} must have shape {(*lead, *want.shape)}, but it has shape {jnp.shape(leaf)}")
  check_finite(name, params)


def check_inputs(learner: Any, x: Any, name: str) -> None:
  """Raise unless the learner can be applied to `x [m, ...]`."""
  num_features = getattr(learner.model, "num_features", None)
  if num_features is not None and (x.ndim != 2 or x.shape[1] != num_features):
    raise ValueError(f"{name} must have shape [n, {num_features}] for this learner, but it has shape {x.shape}")


def check_labels(learner: Any, x: Any, y: Any, name: str) -> None:
  """Raise unless `y` holds labels of `x` for this learner: ids `[m]`, real targets `[m]` or vectors `[m, K]`.

  For a learner with outputs for each token likewise, `[m, T]` or `[m, T, K]`.
  """
  *tokens, num_outputs = learner.output_shape(x)
  if y.shape[0] != x.shape[0]:
    raise ValueError(f"{name} holds {y.shape[0]} labels for {x.shape[0]} examples")
  if y.ndim not in (1 + len(tokens), 2 + len(tokens)) or list(y.shape[1 : 1 + len(tokens)]) != tokens:
    sizes = ", ".join(map(str, ["n", *tokens]))
    raise ValueError(
      f"{name} must have shape [{sizes}] or [{sizes}, {num_outputs}] for this learner, but it has shape {y.shape}"
    )
  if y.ndim == 2 + len(tokens):
    if y.shape[-1] != num_outputs:
      raise ValueError(f"{name} holds label vectors of length {y.shape[-1]}, but the learner has {num_outputs} outputs")
    return
  if jnp.issubdtype(y.dtype, jnp.floating):
    if num_outputs > 1:
      raise ValueError(
        f"{name} holds real numbers, but the learner has {num_outputs} outputs: "
        f"give class ids (integers) or label vectors of shape [{', '.join(map(str, ['n', *tokens, num_outputs]))}]"
      )
    return
  if is_concrete(y):
    ids = np.asarray(y)  # NumPy: see `check_finite`.
    check_ids(learner, x, int(ids.min()), int(ids.max()), name)


def check_ids(learner: Any, x: Any, lowest: int, highest: int, name: str) -> None:
  """Raise unless integers from `lowest` to `highest` are class ids of this learner, or its targets are real numbers."""
  num_outputs = learner.num_outputs(x)
  classes = len(learner.loss.class_labels(num_outputs))
  if (learner.loss.classification or num_outputs > 1) and not 0 <= lowest <= highest < classes:
    raise ValueError(
      f"{name} holds class ids from {lowest} to {highest}, but the learner has {classes} classes: "
      f"ids must lie between 0 and {classes - 1}"
    )


def check_two_classes(learner: Any, x: Any, y: Any, name: str) -> None:
  """Raise if all labels of a classification pool are equal: there is then nothing to tell apart.

  Soft labels may differ although they favour the same class.
  """
  if not learner.loss.classification or not is_concrete(y):
    return
  values = np.asarray(y)
  tokens = len(learner.output_shape(x)) - 1
  values = values.reshape(-1, *values.shape[1 + tokens :])
  if (values == values[:1]).all():
    raise ValueError(f"{name} holds one class only: every label is {values[0]}, but a classifier needs at least two")


def check_layer_weights(layer_weights: Any, params: Any) -> None:
  """Raise unless `layer_weights` is a prefix of the parameters' tree, with weights of at least 0."""
  if layer_weights is None:
    return
  try:
    jax.tree.map(lambda weight, layer: None, layer_weights, params)
  except ValueError as error:
    raise ValueError(
      f"layer_weights must be a prefix of the parameters' tree {jax.tree.structure(params)}: {error}"
    ) from None
  for path, weight in jax.tree_util.tree_leaves_with_path(layer_weights):
    check_not_negative(f"layer_weights{jax.tree_util.keystr(path)}", weight)
