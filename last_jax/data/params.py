"""Parameters from the arrays of a dataset's file: flat, or one array per leaf."""

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from last_jax.base import Params


def params_from_arrays(template: Params, arrays: np.ndarray | Mapping[str, np.ndarray], name: str) -> Params:
  """Return parameters of the template's structure, shapes and dtypes.

  Args:
    template: parameters of the learner, or their shapes: `jax.eval_shape(learner.init, key)`.
    arrays: `Dataset.target` or `Dataset.init`: flat `[p]`, in the order of `jax.flatten_util.ravel_pytree`; or one
      array per leaf by the leaf's path, "layer_0/weights".
    name: name of the argument, for errors.

  Raises:
    ValueError: the arrays do not fit; the message says which would.
  """
  paths, structure = jax.tree_util.tree_flatten_with_path(template)
  leaves = {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in paths}
  found = _by_leaf(leaves, arrays, name) if isinstance(arrays, Mapping) else _cut(leaves, np.asarray(arrays), name)
  return jax.tree.unflatten(structure, [jnp.asarray(found[key].astype(leaf.dtype)) for key, leaf in leaves.items()])


def _by_leaf(leaves: Mapping[str, jax.Array], arrays: Mapping[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
  unknown, missing = sorted(set(arrays) - set(leaves)), sorted(set(leaves) - set(arrays))
  if unknown or missing:
    wrong = [f"lacks {', '.join(missing)}"] * bool(missing) + [f"has the unknown {', '.join(unknown)}"] * bool(unknown)
    raise ValueError(f"{name} {' and '.join(wrong)}: the learner's parameters are {_describe(leaves)}")
  found = {key: np.asarray(arrays[key]) for key in leaves}
  for key, leaf in leaves.items():
    if found[key].shape != leaf.shape:
      raise ValueError(
        f"{name}/{key} has shape {list(found[key].shape)}, but the learner's parameters are {_describe(leaves)}"
      )
  return found


def _cut(leaves: Mapping[str, jax.Array], flat: np.ndarray, name: str) -> dict[str, np.ndarray]:
  sizes = [math.prod(leaf.shape) for leaf in leaves.values()]
  if flat.shape != (sum(sizes),):
    raise ValueError(
      f"{name} has shape {list(flat.shape)}, but must hold {sum(sizes)} numbers: "
      f"the learner's parameters are {_describe(leaves)}, in this order"
    )
  pieces = np.split(flat, np.cumsum(sizes)[:-1])
  return {key: piece.reshape(leaf.shape) for (key, leaf), piece in zip(leaves.items(), pieces, strict=True)}


def _describe(leaves: Mapping[str, jax.Array]) -> str:
  return ", ".join(f"{key} {list(leaf.shape)}" for key, leaf in leaves.items())
