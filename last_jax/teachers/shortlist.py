"""The lowest scores: of a whole pool or, approximately, of a shortlist that is kept from step to step.

The shortlist has s places. Example i of the pool belongs to place i mod s, and each place holds the best example that
was seen for it. In every step the s examples on the list are judged again, and s others, the next in the order of the
pool: where one is better than the holder of its place, it takes the place. So 2 s examples are judged instead of n,
nothing is sorted, an example is on the list at most once, and each is looked at again within n / s steps. In the first
step, and in no other, the whole pool is judged.

It works since a step changes the ranking little: what is good for the next step was good for the last one.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from last_jax.base import Array
from last_jax.teachers.scores import Examples

# Scores of examples: [r, ...] -> [r].
Judge = Callable[[Examples], Array]


def lowest(scores: Array, batch: int) -> Array:
  """Return the indices of the lowest scores, `[m]`. NaN scores sort last."""
  if batch == 1:
    return _lowest_index(scores)[None]
  return jax.lax.top_k(-_or_last(scores), batch)[1]


def _or_last(scores: Array) -> Array:
  return jnp.where(jnp.isnan(scores), jnp.inf, scores)


_COLUMNS = 128


def _lowest_index(scores: Array) -> Array:
  """Return the index of the lowest of `scores [n]`, `[]`: `jnp.argmin` (NaN last), several times as fast on a CPU.

  XLA vectorizes elementwise minima of rows, but not reductions along a row. So the scores are laid out in rows of at
  most 128; the lowest of each column is found first, then the lowest column, then the row.
  """
  size = scores.shape[0]
  rows = -(-size // _COLUMNS)
  columns = -(-size // rows)
  # Integers in the order of the scores, NaN last: a minimum of floats has to propagate NaN.
  whole = jnp.dtype(f"int{8 * scores.dtype.itemsize}")
  most = jnp.iinfo(whole).max
  bits = jax.lax.bitcast_convert_type(scores + 0.0, whole)  # The sum makes -0 and 0 equal.
  ordered = jnp.where(jnp.isnan(scores), most, jnp.where(bits < 0, bits ^ most, bits))
  table = jnp.pad(ordered, (0, rows * columns - size), constant_values=most).reshape(rows, columns)
  lowest = table
  while lowest.shape[0] > 1:
    half = lowest.shape[0] // 2
    lowest = jnp.concatenate([jnp.minimum(lowest[:half], lowest[half : 2 * half]), lowest[2 * half :]])
  column = jnp.min(jnp.where(lowest[0] == jnp.min(lowest), jnp.arange(columns), columns - 1))
  return jnp.minimum(jnp.argmin(table[:, column]) * columns + column, size - 1)


# --- The shortlist.


def empty(size: int) -> Array:
  """Return a shortlist that is filled in the first step, `[s]`."""
  return jnp.full(size, -1, jnp.int32)


def choose(judge: Judge, pool: Examples, shortlist: Array, step: Array, batch: int) -> tuple[Array, Array]:
  """Return the best examples that are judged in this step, `[m]`, and the shortlist after it, `[s]`."""
  number, size = pool.x.shape[0], shortlist.shape[0]
  rounds = -(-number // size)

  def compare(turn: Array, held: Array, old: Array | None) -> tuple[Array, Array, Array, Array]:
    """Compare the holders of all places with the next examples in turn: winners, their scores, losers, theirs, `[s]`.

    Any s neighbours in the pool belong to all places, once each.
    """
    start = jnp.minimum(turn * size, number - size).astype(jnp.int32)
    others = start + jnp.arange(size, dtype=jnp.int32)
    new = _or_last(judge(jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, start, size), pool)))
    others, new = jnp.roll(others, start % size), jnp.roll(new, start % size)
    if old is None:
      old = _or_last(judge(jax.tree.map(lambda leaf: leaf[held], pool)))
    better = (new < old) | (held < 0)
    # An example that meets itself counts once.
    worst = jnp.where(held == others, jnp.inf, jnp.maximum(new, old))
    return jnp.where(better, others, held), jnp.minimum(new, old), jnp.where(better, held, others), worst

  def fill(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    turn, held, old = carry
    return turn + 1, *compare(turn, held, old)[:2]

  # A loop of no rounds once it is full, not a branch: of many students, a branch would be computed in every step.
  first = jnp.where(shortlist[0] < 0, 0, rounds)
  dtype = jax.eval_shape(judge, pool).dtype
  unknown = jnp.full(size, jnp.inf, dtype)
  shortlist = jax.lax.while_loop(lambda carry: carry[0] < rounds, fill, (first, shortlist, unknown))[1]
  kept, scores, left, worse = compare(step % rounds, shortlist, None)
  if batch == 1:
    return kept[lowest(scores, 1)], kept
  return jnp.concatenate([kept, left])[lowest(jnp.concatenate([scores, worse]), batch)], kept
