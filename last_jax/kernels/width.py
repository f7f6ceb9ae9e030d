"""Parameters and examples of 16 bits in float32, for gradients that are formed: these are sums."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp


def in_float32(apply_fn: Callable[[Any, Any], jax.Array], params: Any, *batches: Any) -> tuple[Any, ...]:
  """Return `params` and batches of examples with all numbers of 16 bits in float32, if any parameter has 16 bits.

  A function that takes no such parameters, because its operations do not mix them with numbers of its own, is left
  with those that it has.
  """
  if not any(map(_is_narrow, jax.tree.leaves(params))):
    return params, *batches
  wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32) if _is_narrow(leaf) else leaf, (params, *batches))
  try:
    for batch in wide[1:]:
      jax.eval_shape(apply_fn, wide[0], batch)
  except (TypeError, ValueError):
    return params, *batches
  return wide


def _is_narrow(leaf: Any) -> bool:
  dtype = jnp.result_type(leaf)
  return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize < 4
