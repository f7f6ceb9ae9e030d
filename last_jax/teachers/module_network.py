"""Flax modules as policy networks: from the features by name to the numbers that labels are made of.

A module is called with a dict of standardized features. Those of the batch's examples have a leading `[m]` axis (`x`
in the shape of an example, so that convolutions apply); those of the student, `params` and `target`, are vectors. It
returns `[m, width]`: a number per number of the label or, with actions, per action. What one example is labelled may
depend on the others of the batch, as with attention.

Of linen, the module itself is given; of nnx a function that makes it, for training draws its weights by its own key.
"""

import dataclasses
import inspect
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from last_jax import modules, remade
from last_jax.base import Array, Key, Params
from last_jax.identity import Structural
from last_jax.teachers import features as features_

Shapes = tuple[tuple[str, tuple[int, ...]], ...]  # By feature: its shape, without the axis of examples.


@dataclasses.dataclass(frozen=True, eq=False)
class ModuleNetwork(Structural):
  """A module, compared by structure, with the shapes of its inputs and its number of outputs."""

  module: Any  # A linen module, or a function of rngs that makes an nnx module.
  shapes: Shapes
  width: int
  settings: tuple[tuple[str, Any], ...]  # Arguments of the module's call that turn training off.
  graph: Any = None  # Of an nnx module.

  @property
  def name(self) -> str:
    """The name of the module's class or function."""
    function = getattr(self.module, "func", self.module)  # Of functools.partial.
    return getattr(function, "__name__", type(function).__name__)

  def init(self, key: Key, dtype: Any) -> Params:
    """Return random weights, as the module draws them."""
    if self.graph is not None:
      _, params, others = modules.divide_nnx(modules.make_nnx("policy", self.module, key))
      if jax.tree.leaves(others):
        raise ValueError(
          "policy must have parameters only, but its nnx module also has other states, as batch statistics or the "
          f"random numbers of dropout: {', '.join(map(str, others))}"
        )
      return _with_text_keys(params)  # Layers in lists have numbers for names; in files, all names are text.
    variables = self.module.init(key, self._zeros(1, dtype), **dict(self.settings))
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
    if self.graph is None:
      return self.module.apply({"params": weights}, inputs, **dict(self.settings))
    from flax import nnx

    return nnx.merge(self.graph, nnx.restore_int_paths(weights))(inputs, **dict(self.settings))

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


def _with_text_keys(params: Params) -> Params:
  if not isinstance(params, dict):
    return params
  return {str(name): _with_text_keys(inner) for name, inner in params.items()}


def make_module_network(module: Any, shapes: Shapes, width: int, dtype: Any) -> ModuleNetwork:
  """Return the network of a user's module, checked."""
  network = find_network("policy", module, shapes, width)
  remade.warn_if_remade("policy", module, stacklevel=4)
  network.check(dtype)
  return network


def find_network(name: str, module: Any, shapes: Shapes, width: int) -> ModuleNetwork:
  """Return the network of a linen module, or of a function that makes an nnx module."""
  import flax.linen as nn
  from flax import nnx

  if inspect.isclass(module) and issubclass(module, nn.Module):
    raise TypeError(f"{name} must be an instance, as {module.__name__}(...), but it is the class itself")
  if isinstance(module, nn.Module):
    return ModuleNetwork(module, shapes, width, modules.evaluation_settings(module))
  if isinstance(module, nnx.Module):
    kind = type(module).__name__
    raise TypeError(
      f"{name} is an nnx module with weights of its own, but training draws them by its key, different for each "
      f"policy: give the function that makes it, as lambda rngs: {kind}(..., rngs=rngs)"
    )
  if not callable(module):
    raise TypeError(
      f"{name} must be a linen module or a function of rngs that makes an nnx module, but it is a "
      f"{type(module).__name__}"
    )
  instance = modules.make_nnx(name, module, 0)
  return ModuleNetwork(module, shapes, width, modules.evaluation_settings(instance), modules.divide_nnx(instance)[0])
