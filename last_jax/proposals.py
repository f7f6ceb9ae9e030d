"""The random examples that the loop proposes to teachers, in a module of its own for teachers who look ahead."""

import jax
import jax.numpy as jnp

from last_jax.types import Array, Key


def propose(key: Key, steps: Array, batch_size: int, pool_size: int) -> Array:
  """The random examples of iterations `steps [t]`, `[t, m]`: each depends on the key and its own number alone.

  One hash per example: the bits that `fold_in` makes are used as random numbers, not as keys. `jax.random.randint` with
  a key per step does the same in some forty times the time, which would be most of a student's step.
  """
  number = steps[:, None] * batch_size + jnp.arange(batch_size)[None]
  folded = jax.vmap(jax.vmap(lambda i: jax.random.fold_in(key, i)))(number.astype(jnp.uint32))
  return _scale_down(jax.random.key_data(folded)[..., 0], pool_size)


def _scale_down(bits: Array, size: int) -> Array:
  """floor(bits * size / 2^32), in 32-bit arithmetic: uniform below `size`, but for one part in 2^32 / size."""
  bits_high, bits_low = bits >> 16, bits & 0xFFFF
  size_high, size_low = jnp.uint32(size >> 16), jnp.uint32(size & 0xFFFF)
  middle = bits_high * size_low + ((bits_low * size_low) >> 16)
  other = bits_low * size_high + (middle & 0xFFFF)
  return (bits_high * size_high + (middle >> 16) + (other >> 16)).astype(jnp.int32)
