"""Flax modules as policy networks: from the features by name to the numbers that labels are made of.

A module is called with a dict of standardized features. Those of the batch's examples have a leading `[m]` axis (`x`
in the shape of an example, so that convolutions apply); those of the student, `params` and `target`, are vectors. It
returns `[m, width]`: a number per number of the label or, with actions, per action. What one example is labelled may
depend on the others of the batch, as with attention.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from last_jax import remade
from last_jax.base import Array, Key, Params
from last_jax.identity import Structural
from last_jax.modules import evaluation_settings
from last_jax.teachers import features as features_

Shapes = tuple[tuple[str, tuple[int, ...]], ...]  # By feature: its shape, without the axis of examples.


@dataclasses.dataclass(frozen=True, eq=False)
class ModuleNetwork(Structural):
  """A linen module, compared by structure, with the shapes of its inputs and its number of outputs."""

  module: Any
  shapes: Shapes
  width: int

  def init(self, key: Key, dtype: Any) -> Params:
    """Return random weights, those of `module.init`."""
    variables = self.module.init(key, self._zeros(1, dtype), **dict(evaluation_settings(self.module)))
    others = sorted(set(variables) - {"params"})
    if others:
      raise ValueError(f"policy must have parameters only, but its module also has the collection {others[0]!r}")
    if not jax.tree.leaves(variables):
      raise ValueError("policy has no parameters, so there is nothing to train")
    return variables["params"]

  def apply(self, weights: Params, features: Mapping[str, Array]) -> Array:
    """Return numbers `[m, width]` from the features by name: `[m, size]`, and `[size]` of the student."""
    inputs = {
      name: value.reshape(shape if features_.is_shared(name) else (value.shape[0], *shape))
      for (name, shape), value in ((each, features[each[0]]) for each in self.shapes)
    }
    return self.module.apply({"params": weights}, inputs, **dict(evaluation_settings(self.module)))

  def check(self, dtype: Any) -> None:
    """Raise unless the module maps the features to numbers of the right shape."""
    for count in (1, 3):
      found = jax.eval_shape(
        lambda count=count: self.apply(self.init(jax.random.key(0), dtype), self._zeros(count, dtype))
      )
      shape = getattr(found, "shape", type(found).__name__)
      if shape != (count, self.width):
        raise ValueError(
          f"policy must return numbers of shape [m, {self.width}] for m examples, but for {count} it returned {shape}"
        )

  def _zeros(self, count: int, dtype: Any) -> dict[str, Array]:
    return {
      name: jnp.zeros(shape if features_.is_shared(name) else (count, *shape), dtype) for name, shape in self.shapes
    }


def make_module_network(module: Any, shapes: Shapes, width: int, dtype: Any) -> ModuleNetwork:
  """Return the network of a user's module, checked."""
  check_module("policy", module)
  remade.warn_if_remade("policy", module, stacklevel=4)
  network = ModuleNetwork(module, shapes, width)
  network.check(dtype)
  return network


def check_module(name: str, module: Any) -> None:
  """Raise unless this is a linen module."""
  import flax.linen as nn

  if inspect.isclass(module) and issubclass(module, nn.Module):
    raise TypeError(f"{name} must be an instance, as {module.__name__}(...), but it is the class itself")
  if not isinstance(module, nn.Module):
    raise TypeError(f"{name} must be a flax.linen module, but it is a {type(module).__name__}")
