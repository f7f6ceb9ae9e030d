"""Policies in files: one npz with the weights and, as text, the architecture. Nothing in it is code."""

import dataclasses
import json
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from last_jax.data.files import read_arrays, save_npz
from last_jax.teachers import outputs
from last_jax.teachers.features import NAMES, Inputs
from last_jax.teachers.policy import Policy

_FORMAT = "last_jax policy 1"
_KINDS: dict[str, Any] = {
  kind.kind: kind for kind in (outputs.Simplex, outputs.Free, outputs.Residue, outputs.Actions, outputs.Mixtures)
}


def save_policy(path: str | os.PathLike[str], policy: Policy) -> None:
  """Writes a policy into a file, whole or not at all. The same policy gives the same bytes."""
  if not isinstance(policy, Policy):
    raise TypeError(f"policy must be a Policy, but it is a {type(policy).__name__}")
  _check_shapes("policy", policy)
  about = {
    "format": _FORMAT,
    "features": policy.features,
    "hidden": policy.hidden,
    "num_outputs": policy.num_outputs,
    "output": _describe(policy.output),
  }
  leaves, _ = jax.tree_util.tree_flatten_with_path(policy)
  arrays = {jax.tree_util.keystr(place, simple=True, separator="/"): np.asarray(leaf) for place, leaf in leaves}
  text = np.frombuffer(json.dumps(about).encode(), np.uint8)
  save_npz(path, architecture=text, **arrays)


def load_policy(path: str | os.PathLike[str]) -> Policy:
  """Reads a policy from a file.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it does not hold a policy, or not all of one; the message names it.
  """
  arrays = read_arrays(path)
  try:
    about = json.loads(arrays.pop("architecture").tobytes())
    if about["format"] != _FORMAT:
      raise ValueError(f"its format is {about['format']!r}, not {_FORMAT!r}")
    policy = _build(about, arrays)
    if arrays:
      raise ValueError(f"it also holds {', '.join(arrays)}")
    _check_shapes("it", policy)
  except (KeyError, TypeError, AttributeError) as error:
    raise ValueError(f"{path} does not hold a policy: {type(error).__name__}: {error}") from error
  except ValueError as error:
    raise ValueError(f"{path} does not hold a policy: {error}") from error
  return policy


def _describe(output: Any) -> dict[str, Any]:
  """Its kind and, by the name of each field that is set, what is in it: a kind, or an array."""
  values = {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
  inner = {
    name: _describe(value) if hasattr(value, "kind") else "array" for name, value in values.items() if value is not None
  }
  return {"kind": output.kind} | inner


def _build(about: dict[str, Any], arrays: dict[str, np.ndarray]) -> Policy:
  features = tuple(about["features"])
  if not set(features) <= set(NAMES):
    raise ValueError(f"its features are {features}, of which some are not known")
  weights: dict[str, Any] = {}
  for name in [name for name in arrays if name.startswith("weights/")]:
    *way, last = name.split("/")[1:]
    place = weights
    for part in way:
      place = place.setdefault(part, {})
    place[last] = jnp.asarray(arrays.pop(name))
  center, scale = (
    Inputs(*(jnp.asarray(arrays.pop(f"{name}/{part}")) for part in Inputs._fields)) for name in ("center", "scale")
  )
  output = _build_output(about["output"], "output", arrays)
  hidden = tuple(int(width) for width in about["hidden"])
  return Policy(weights, center, scale, output, int(about["num_outputs"]), features, hidden)


def _build_output(about: dict[str, Any], place: str, arrays: dict[str, np.ndarray]) -> Any:
  kind = _KINDS[about["kind"]]
  values = {}
  for field in dataclasses.fields(kind):
    inner = about.get(field.name)
    where = f"{place}/{field.name}"
    if isinstance(inner, dict):
      values[field.name] = _build_output(inner, where, arrays)
    else:
      values[field.name] = None if inner is None else jnp.asarray(arrays.pop(where))
  return kind(**values)


def _check_shapes(name: str, policy: Policy) -> None:
  """Raises unless the weights are those of one network of its architecture."""
  own, shared = policy.center
  if own.ndim != 1 or policy.scale.own.shape != own.shape or policy.scale.shared.shape != shared.shape:
    raise ValueError(f"{name} must be one policy, but its features have shapes {own.shape} and {shared.shape}")
  expected = jax.eval_shape(policy.init_weights, jax.random.key(0))
  wanted = jax.tree.map(lambda leaf: leaf.shape, expected)
  found = jax.tree.map(jnp.shape, policy.weights)
  if wanted != found:
    raise ValueError(f"{name} must have weights of the shapes {wanted}, but has {found}")
  if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(policy)):
    raise ValueError(f"{name} holds NaN or infinite weights")
