"""The random examples that the loop proposes to teachers, in a module of its own for teachers that look ahead."""

import jax
import jax.numpy as jnp

from last_jax.base import Array, Key


def propose(key: Key, start: Array, count: int, batch_size: int, pool_size: int) -> Array:
  """Return the random examples of iterations `start .. start + count - 1`, `[count, m]`.

  Each depends on the key and its own number alone. One hash per example: the bits that `fold_in` makes are used as
  random numbers, not as keys. `jax.random.randint` with a key per step takes far longer, and would be most of a
  student's step.
  """
  # Draws are numbered start * m + i in 64 bits: after 2^32 of them the key changes rather than repeat them.
  high, low = _multiply(start.astype(jnp.uint32), batch_size)
  number = low + jnp.arange(count * batch_size, dtype=jnp.uint32)

  def draw(high: Array) -> Array:
    later = jax.random.fold_in(jax.random.fold_in(key, high), 1)
    return _fold_in_each(jax.lax.select(high == 0, key, later), number)

  bits = jax.lax.cond(
    number[-1] < low,
    lambda: jnp.where(number < low, draw(high + 1), draw(high)),
    lambda: draw(high),
  )
  return _scale_down(bits, pool_size).reshape(count, batch_size)


def _fold_in_each(key: Key, numbers: Array) -> Array:
  """Return the first 32 bits of `jax.random.fold_in(key, i)` for each of the numbers, `[count]`."""
  if jax.random.key_impl(key) != "threefry2x32":
    return jax.random.key_data(jax.vmap(lambda i: jax.random.fold_in(key, i))(numbers))[:, 0]
  first, second = jax.random.key_data(key)
  return _threefry(first, second, numbers)


_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def _threefry(first: Array, second: Array, numbers: Array) -> Array:
  """Return the first word of Threefry-2x32 (Salmon et al., 2011) of the counters (0, i), for a key of two words.

  What `jax.random` computes, in one pass: on a CPU, JAX makes a loop of the rounds, each over arrays in memory, which
  takes four times as long.
  """
  keys = (first, second, first ^ second ^ jnp.uint32(0x1BD11BDA))
  a, b = jnp.broadcast_to(first, numbers.shape), numbers + second
  for i in range(5):
    for distance in _ROTATIONS[i % 2]:
      a = a + b
      b = a ^ ((b << distance) | (b >> (32 - distance)))
    a, b = a + keys[(i + 1) % 3], b + keys[(i + 2) % 3] + jnp.uint32(i + 1)
  return a


def _multiply(a: Array, b: int) -> tuple[Array, Array]:
  """Return the high and the low 32 bits of a product, in 32-bit arithmetic."""
  a_high, a_low, b_high, b_low = a >> 16, a & 0xFFFF, jnp.uint32(b >> 16), jnp.uint32(b & 0xFFFF)
  middle = a_high * b_low + ((a_low * b_low) >> 16)
  other = a_low * b_high + (middle & 0xFFFF)
  return a_high * b_high + (middle >> 16) + (other >> 16), a * jnp.uint32(b)


def _scale_down(bits: Array, size: int) -> Array:
  """Return floor(bits * size / 2^32): uniform below `size`, except for one part in 2^32 / size."""
  return _multiply(bits, size)[0].astype(jnp.int32)
