"""The random examples that the loop proposes: uniform, a function of key and step alone, without a period."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import last_jax as last
from last_jax.proposals import propose

KEY = jax.random.key(0)


def draw(start, count, batch, size, key=KEY):
  return np.asarray(propose(key, jnp.asarray(start), count, batch, size))


def test_they_are_uniform_and_belong_to_key_and_step():
  drawn = draw(0, 4000, 5, 10)
  counts = np.bincount(drawn.ravel(), minlength=10)
  assert np.sum((counts - 2000) ** 2 / 2000) < 30  # Chi-squared with 9 degrees of freedom: p < 0.0005.
  repeats = np.mean(drawn[1:, 0] == drawn[:-1, 0])  # Neighbouring steps are independent.
  assert abs(repeats - 0.1) < 0.02
  np.testing.assert_array_equal(drawn[100:200], draw(100, 100, 5, 10))
  assert len(np.unique(drawn[:, 0])) == 10
  assert np.mean(drawn != draw(0, 4000, 5, 10, jax.random.key(1))) > 0.85


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
@pytest.mark.slow
def test_they_are_the_first_bits_of_keys_folded_with_the_number_of_the_draw(kind):
  size = 2**16
  for seed in (0, 1, 2**31 - 1):
    key = jax.random.key(seed, impl=kind)
    for first in (0, 5, 2**20):
      folded = jax.vmap(lambda i, key=key: jax.random.fold_in(key, i))(jnp.arange(3 * first, 3 * first + 30))
      bits = np.asarray(jax.random.key_data(folded))[:, 0]
      np.testing.assert_array_equal(draw(first, 10, 3, size, key).ravel(), bits >> 16)


@pytest.mark.parametrize("size", [1, 7, 65536, 65537, 1_000_003, 2**31 - 1])
def test_every_size_of_pool_divides_the_same_random_numbers(size):
  """floor(u n) for numbers u that the largest pool shows to within 2^-31."""
  fine = 2**31 - 1
  u = draw(0, 500, 2, fine).astype(np.float64)
  found = draw(0, 500, 2, size)
  assert np.all(np.floor(u / fine * size) <= found)
  assert np.all(found <= np.floor((u + 1) / fine * size))
  assert found.max() < size


@pytest.mark.parametrize("start", [2**25 - 64, 2**25, 2**28, 2**31 - 1 - 4000])
def test_they_do_not_repeat_after_2_to_the_32_draws(start):
  """A batch of 128 takes 2^25 steps for as many draws."""
  drawn = draw(start, 4000, 128, 1000)
  assert scipy.stats.chisquare(np.bincount(drawn.ravel(), minlength=1000)).pvalue > 1e-3
  for earlier in (start - 2**25, start % 2**25):
    if 0 <= earlier < start:
      same = np.mean(drawn == draw(earlier, 4000, 128, 1000))
      assert same == pytest.approx(1e-3, abs=3e-4)


@pytest.mark.slow
def test_nothing_changes_where_the_count_of_draws_passes_2_to_the_32():
  start = 2**25 - 3
  together = draw(start, 6, 128, 1000)
  alone = [draw(start + i, 1, 128, 1000)[0] for i in range(6)]
  np.testing.assert_array_equal(together, np.stack(alone))
  odd = draw((2**32) // 100 - 1, 3, 100, 1000)  # Within a batch: 100 does not divide 2^32.
  np.testing.assert_array_equal(odd[1:], draw((2**32) // 100, 2, 100, 1000))


def test_a_late_state_is_taught_with_examples_of_its_own():
  learner = last.learners.logistic(3, learning_rate=0.1)
  pool = last.Pool(np.random.default_rng(0).normal(size=(1000, 3)), np.arange(1000) % 2)
  problem, teacher = last.Problem(learner, pool), last.teachers.sgd()
  start = last.init(KEY, problem, teacher)

  def shown(step):
    state = start._replace(step=jnp.asarray(step, start.step.dtype))
    state, records = last.run(state, problem, teacher, steps=20, batch_size=128, lessons=True, metrics=())
    assert state.step == step + 20
    return np.asarray(records.lessons.index)

  late = 2**31 - 100
  assert np.mean(shown(late) == shown(late - 2**25)) < 0.01
  with pytest.raises(ValueError, match=r"steps=200: a run has at most 2147483647 iterations in all, and 2147483548"):
    last.run(start._replace(step=jnp.asarray(late, start.step.dtype)), problem, teacher, steps=200)
