"""Policies in files: a registered kind of `last_jax.io`, so that `save` and `load` need no template for them."""

import dataclasses
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import io
from last_jax.base import is_concrete
from last_jax.teachers import outputs
from last_jax.teachers.features import NAMES, Inputs
from last_jax.teachers.module_network import find_network
from last_jax.teachers.policy import MOST_LAYERS, Policy

_KINDS: dict[str, Any] = {
  kind.kind: kind for kind in (outputs.Simplex, outputs.Free, outputs.Residue, outputs.Actions, outputs.Mixtures)
}

_MOST_NESTED = 4  # Outputs in one another.


def save_policy(path: str | os.PathLike[str], policy: Policy) -> None:
  """Write a policy to a file, whole or not at all: `last_jax.save`, for policies only."""
  if not isinstance(policy, Policy):
    raise TypeError(f"policy must be a Policy, but it is a {type(policy).__name__}")
  io.save(path, policy)


def load_policy(path: str | os.PathLike[str], module: Any = None) -> Policy:
  """Read a policy from a file: `last_jax.load`, for policies only.

  Args:
    path: the file.
    module: where the policy's network is a Flax module, that module, or the function that makes it: files hold weights,
      but no code.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it does not hold one whole policy, or one of another module; the message names it.
  """
  if module is not None:
    find_network("module", module, (), 0)
    return _load_with(path, module)
  policy = io.load(path)
  if not isinstance(policy, Policy):
    raise ValueError(f"{path} does not hold a Policy: it holds a {io.read(path)[0]['kind']}")
  return policy


def _load_with(path: str | os.PathLike[str], module: Any) -> Policy:
  header, leaves = io.read(path)
  if header["kind"] != Policy.__name__:
    raise ValueError(f"{path} does not hold a Policy: it holds a {header['kind']}")
  if "module" not in header["static"]:
    raise ValueError(f"{path} holds a policy of the built-in network, which needs no module")
  try:
    return _build(header["static"], leaves, module)
  except (KeyError, TypeError, AttributeError, ValueError) as error:
    raise ValueError(f"{path} does not hold a Policy of this module: {error}") from error


def _describe(policy: Policy) -> dict[str, Any]:
  """Return the static part of a policy, in JSON values."""
  _check("policy", policy)
  static = {
    "features": list(policy.features),
    "hidden": list(policy.hidden),
    "num_outputs": policy.num_outputs,
    "output": _describe_output(policy.output),
  }
  if policy.module is not None:
    shapes = {name: list(shape) for name, shape in policy.module.shapes}
    static["module"] = {"name": policy.module.name, "shapes": shapes}
  return static


def _describe_output(output: Any) -> dict[str, Any]:
  """Return the kind of an output and, for each field that is not None, its own description or "leaf"."""
  values = {field.name: getattr(output, field.name) for field in dataclasses.fields(output)}
  fields = {
    name: _describe_output(value) if hasattr(value, "kind") else "leaf"
    for name, value in values.items()
    if value is not None
  }
  return {"kind": output.kind, "fields": fields}


def _build(static: dict[str, Any], leaves: dict[str, Any], module: Any = None) -> Policy:
  """Return the policy of this static part and these leaves, by name; `module` is that of its network, if it has one."""
  if "module" in static and module is None:
    name = static["module"]["name"]
    raise ValueError(f"its network is the Flax module {name}, not held by files: load_policy(path, module={name}(...))")
  _check_static(static)
  features, rest = tuple(static["features"]), dict(leaves)

  def take(name: str) -> Any:
    value = rest.pop(name)
    return jnp.asarray(value) if isinstance(value, np.ndarray) else value

  weights: dict[str, Any] = {}
  for name in [name for name in rest if name.startswith("weights/")]:
    *layers, last = name.split("/")[1:]
    inner = weights
    for layer in layers:
      inner = inner.setdefault(layer, {})
    inner[last] = take(name)
  center, scale = (Inputs(*(take(f"{name}/{part}") for part in Inputs._fields)) for name in ("center", "scale"))
  output = _build_output(static["output"], "output", take)
  if rest:
    raise ValueError(f"it also holds {', '.join(rest)}")
  num_outputs, network = int(static["num_outputs"]), None
  if module is not None:
    shapes = {name: tuple(shape) for name, shape in static["module"]["shapes"].items()}
    ordered = tuple((name, shapes[name]) for name in features)
    network = find_network("module", module, ordered, output.width(num_outputs))
  policy = Policy(weights, center, scale, output, num_outputs, features, tuple(static["hidden"]), network)
  _check("it", policy)
  return policy


def _check_static(static: dict[str, Any]) -> None:
  """Raise unless features, widths and sizes can be those of a policy. Before anything is traced, which takes time."""
  features, hidden = static["features"], static["hidden"]
  if (
    not isinstance(features, list) or any(name not in NAMES for name in features) or len(set(features)) < len(features)
  ):
    raise ValueError("its features must be a list of known names, each once")
  if not isinstance(hidden, list) or len(hidden) > MOST_LAYERS:
    raise ValueError(f"its hidden layers must be a list of at most {MOST_LAYERS} widths")
  for size in (*hidden, static["num_outputs"]):
    if type(size) is not int or not 1 <= size < 2**31:
      raise ValueError(f"its sizes must be whole numbers from 1, but one is {size!r}")


def _build_output(static: dict[str, Any], place: str, take: Any) -> Any:
  if place.count("/") > _MOST_NESTED:
    raise ValueError("its outputs are nested too deeply")
  kind, fields = _KINDS[static["kind"]], static["fields"]
  values: dict[str, Any] = {}
  for field in dataclasses.fields(kind):
    inner, name = fields.get(field.name), f"{place}/{field.name}"
    if inner is None:
      values[field.name] = None
    else:
      values[field.name] = take(name) if inner == "leaf" else _build_output(inner, name, take)
  return kind(**values)


def _check(name: str, policy: Policy) -> None:
  """Raise unless this is one policy, with finite weights of the shapes of its architecture."""
  own, shared = (leaf.shape for leaf in policy.center)
  if len(own) != 1 or policy.scale.own.shape != own or policy.scale.shared.shape != shared:
    raise ValueError(f"{name} must be one policy, but its features have shapes {own} and {shared}")
  expected = jax.eval_shape(Policy.init_weights, policy, jax.random.key(0))
  wanted = jax.tree.map(lambda leaf: leaf.shape, expected)
  found = jax.tree.map(jnp.shape, policy.weights)
  if wanted != found:
    raise ValueError(f"{name} must have weights of the shapes {wanted}, but has {found}")
  if not all(np.isfinite(np.asarray(leaf)).all() for leaf in jax.tree.leaves(policy) if is_concrete(leaf)):
    raise ValueError(f"{name} holds NaN or infinite weights")


io.register_kind(Policy, _describe, _build)
