"""Networks of other libraries as models: Flax (linen and nnx) and Equinox. None of them is imported before it is used.

A network is divided into parameters, which are taught; arrays that stay as they are (batch statistics, keys, integers),
which the learner keeps as `constants`; and the rest, which is static and compared by structure (`identity.py`). It is
evaluated as after training: batch statistics are not updated, and dropout is off.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import remade
from last_jax.base import Array, Key, Params
from last_jax.identity import Structural
from last_jax.models import check_floating, check_outputs

# Arguments of calls that turn training off, by the names that are usual.
_EVALUATION = {
  "train": False, "training": False, "is_training": False, "deterministic": True, "use_running_average": True
}  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class _Network(Structural):
  """What the networks of all libraries have in common.

  Attributes:
    settings: arguments of the network's call that turn training off, by name.
    inputs: the integer dtype that inputs are converted to, as token ids have; None: as they are.
    shapes: of the constants' leaves.
    structure: of the tuple of constants.
  """

  settings: tuple[tuple[str, Any], ...]
  inputs: Any
  shapes: tuple[jax.ShapeDtypeStruct, ...]
  structure: Any

  num_features: ClassVar[None] = None
  num_outputs: ClassVar[None] = None

  @property
  def constant_shapes(self) -> tuple[Any, ...]:
    """See `models.Model`."""
    return jax.tree.unflatten(self.structure, self.shapes)

  def _as_given(self, x: Array) -> Array:
    return x if self.inputs is None else x.astype(self.inputs)


@dataclasses.dataclass(frozen=True, eq=False)
class Linen(_Network):
  """A linen module. Constants: an example `[1, ...]`, and all collections of variables but the parameters."""

  module: Any

  def init(self, key: Key, example: Array, fixed: Any) -> Params:
    """Return random parameters, those of `module.init`."""
    params = self.module.init(key, example, **dict(self.settings)).get("params", {})
    return _checked("module", params)

  def apply(self, params: Params, x: Array, example: Array, fixed: Any) -> Array:
    """Return outputs, `[m, ...] -> [m, K]` or `[m, T, K]`."""
    outputs = self.module.apply({"params": params, **fixed}, self._as_given(x), **dict(self.settings))
    return check_outputs("module", outputs, x.shape[0])


@dataclasses.dataclass(frozen=True, eq=False)
class Nnx(_Network):
  """An nnx module. Constants: its own parameters or, if there is a function that makes modules, None; other states."""

  graph: Any
  make: Callable[..., Any] | None

  def init(self, key: Key, own: Params | None, fixed: Any) -> Params:
    """Return random parameters, or the module's own."""
    if self.make is None:
      return own
    return divide_nnx(make_nnx("module", self.make, key))[1]

  def apply(self, params: Params, x: Array, own: Params | None, fixed: Any) -> Array:
    """Return outputs, `[m, ...] -> [m, K]` or `[m, T, K]`."""
    from flax import nnx

    outputs = nnx.merge(self.graph, params, fixed)(self._as_given(x), **dict(self.settings))
    return check_outputs("module", outputs, x.shape[0])


@dataclasses.dataclass(frozen=True, eq=False)
class Equinox(_Network):
  """An Equinox module. Constants: as for `Nnx`; the others are arrays of the module, and its `eqx.nn.State` or None."""

  rest: Any
  make: Callable[..., Any] | None

  def init(self, key: Key, own: Params | None, fixed: Any) -> Params:
    """Return random parameters, or the module's own."""
    return own if self.make is None else _divide_equinox(*_with_state(_call_with(self.make, "key", key)))[0]

  def apply(self, params: Params, x: Array, own: Params | None, fixed: Any) -> Array:
    """Return outputs, `[m, ...] -> [m, K]` or `[m, T, K]`: the module is mapped over the examples."""
    import equinox as eqx

    arrays, state = fixed
    module = eqx.combine(params, arrays, self.rest)

    def one(example: Array) -> Any:
      if state is None:
        return module(example, **dict(self.settings))
      return module(example, state, **dict(self.settings))[0]

    return check_outputs("model", jax.vmap(one)(self._as_given(x)), x.shape[0])


# --- Making them.


def linen_or_nnx(module: Any, x: Any, variables: Any = None) -> tuple[Linen | Nnx, tuple[Any, ...]]:
  """Return the model of a Flax module, or of a function that makes one, and its constants."""
  import flax.linen as nn
  from flax import nnx

  example = _example(x)
  if isinstance(module, nn.Module):
    return _linen(module, example, variables)
  if variables is not None:
    raise ValueError("variables are for linen modules: the states of an nnx module are its own")
  if isinstance(module, type) and issubclass(module, nn.Module):
    raise TypeError(f"module must be an instance, as {module.__name__}(...), but it is the class itself")
  if isinstance(module, nnx.Module):
    instance, make = module, None
  elif callable(module):
    instance, make = make_nnx("module", module, 0), module
  else:
    raise TypeError(f"module must be a linen or nnx module, or a function of rngs, but it is a {type(module).__name__}")
  graph, params, fixed = divide_nnx(instance)
  constants = _as_arrays((params if make is None else None, fixed))
  remade.warn_if_remade("module", graph if make is None else (graph, make), stacklevel=3)
  return Nnx(evaluation_settings(instance), _integers(example), *_shapes(constants), graph, make), constants


def equinox(model: Any, x: Any = None) -> tuple[Equinox, tuple[Any, ...]]:
  """Return the model of an Equinox module, of a pair (module, state), or of a function that makes one."""
  import equinox as eqx

  given = model[0] if isinstance(model, tuple) and model else model
  made: tuple[Any, Any]
  if isinstance(given, eqx.Module):
    made, make = _with_state(model), None
  elif callable(model):
    made, make = _with_state(_call_with(model, "key", jax.random.key(0))), model
  else:
    kind = type(model).__name__
    raise TypeError(f"model must be an Equinox module, (module, state), or a function of a key, but it is a {kind}")
  if not callable(made[0]):
    raise TypeError(f"model must have a __call__, but {type(made[0]).__name__} has none")
  params, arrays, rest = _divide_equinox(*made)
  constants = _as_arrays((params if make is None else None, (arrays, made[1])))
  remade.warn_if_remade("model", rest if make is None else (rest, make), jax.tree.structure(params), stacklevel=3)
  settings = evaluation_settings(made[0], key=None)
  return Equinox(settings, _integers(_example(x)), *_shapes(constants), rest, make), constants


def _linen(module: Any, example: Array | None, variables: Any) -> tuple[Linen, tuple[Any, ...]]:
  remade.warn_if_remade("module", module, stacklevel=4)
  if example is None:
    raise TypeError("x is missing: give a batch of inputs [m, ...], as x[:1]")
  settings = dict(evaluation_settings(module))

  def others(key: Key) -> Any:
    made = module.init(key, example, **settings)
    return {name: values for name, values in made.items() if name != "params"}

  key = jax.random.key(0)
  expected = jax.eval_shape(others, key)
  if variables is not None:
    missing = sorted(set(expected) - set(variables))
    if missing:
      raise ValueError(f"variables lack the collection {missing[0]!r} of the module: give all but the parameters")
    fixed = {name: values for name, values in variables.items() if name != "params"}
  else:
    fixed = jax.jit(others)(key) if expected else {}
  constants = _as_arrays((example, fixed))
  return Linen(tuple(settings.items()), _integers(example), *_shapes(constants), module), constants


def make_nnx(name: str, make: Callable[..., Any], seed: Any) -> Any:
  """Return the module that a function of rngs makes; `seed`: a number or a key."""
  from flax import nnx

  instance = _call_with(make, "rngs", nnx.Rngs(seed))
  if not isinstance(instance, nnx.Module):
    kind = type(instance).__name__
    raise TypeError(f"{name}, as a function of rngs, must return an nnx module, but it returned a {kind}")
  return instance


def divide_nnx(module: Any) -> tuple[Any, Params, Any]:
  """Return the graph, the parameters and the other states of a copy of the module in evaluation mode."""
  from flax import nnx

  def is_param(_: Any, value: Any) -> bool:
    return isinstance(value, nnx.Param)

  copy = nnx.clone(module)
  copy.eval()
  graph, params, fixed = nnx.split(copy, is_param, ...)
  return graph, _checked("module", nnx.to_pure_dict(params)), nnx.to_pure_dict(fixed)


def _divide_equinox(module: Any, _: Any = None) -> tuple[Params, Any, Any]:
  """Return the parameters, the other arrays and the rest of the module in inference mode, each with its structure."""
  import equinox as eqx

  module = eqx.nn.inference_mode(module)
  params, others = eqx.partition(module, eqx.is_inexact_array)
  arrays, rest = eqx.partition(others, lambda leaf: isinstance(leaf, (np.ndarray, np.generic, jax.Array)))
  return _checked("model", params), arrays, rest


def _with_state(made: Any) -> tuple[Any, Any]:
  """Return a module and its state, or None."""
  import equinox as eqx

  module, state = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
  if not isinstance(module, eqx.Module) or not (state is None or isinstance(state, eqx.nn.State)):
    kinds = ", ".join(type(part).__name__ for part in (made if isinstance(made, tuple) else (made,)))
    raise TypeError(f"model must be, or return, an Equinox module or (module, state), but it is {kinds}")
  return module, state


def _checked(name: str, params: Params) -> Params:
  if not jax.tree.leaves(params):
    raise ValueError(f"{name} has no parameters, so there is nothing to teach")
  return check_floating(f"{name} must have parameters that are", params)


def _call_with(make: Callable[..., Any], name: str, value: Any) -> Any:
  """Call a function that makes modules with its one argument: by name if it takes an argument of this name."""
  arguments = _arguments(make)
  any_name = any(argument.kind is inspect.Parameter.VAR_KEYWORD for argument in arguments.values())
  return make(**{name: value}) if name in arguments or any_name else make(value)


def _arguments(function: Any) -> dict[str, inspect.Parameter]:
  """The arguments of a function, except those that can only be given by position."""
  try:
    found = inspect.signature(function).parameters
  except (TypeError, ValueError):
    return {}
  return {name: one for name, one in found.items() if one.kind is not inspect.Parameter.POSITIONAL_ONLY}


def evaluation_settings(module: Any, **needed: Any) -> tuple[tuple[str, Any], ...]:
  """The arguments of the module's call that turn training off, and those of `needed` that have no default."""
  arguments = _arguments(module.__call__)
  off = [(name, value) for name, value in _EVALUATION.items() if name in arguments]
  bare = [name for name in needed if name in arguments and arguments[name].default is inspect.Parameter.empty]
  return (*off, *((name, needed[name]) for name in bare))


def _example(x: Any) -> Array | None:
  """Return the first example of a batch, `[1, ...]`."""
  if x is None:
    return None
  if not isinstance(x, (np.ndarray, jax.Array)) or x.ndim == 0 or x.shape[0] == 0:
    raise TypeError(f"x must be a batch of inputs [m, ...], as x[:1], but it is {x!r}")
  return jnp.asarray(x[:1])


def _integers(example: Array | None) -> Any:
  return example.dtype if example is not None and not jnp.issubdtype(example.dtype, jnp.floating) else None


def _as_arrays(tree: Any) -> Any:
  return jax.tree.map(jnp.asarray, tree)


def _shapes(tree: Any) -> tuple[tuple[jax.ShapeDtypeStruct, ...], Any]:
  leaves, structure = jax.tree.flatten(tree)
  return tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves), structure
