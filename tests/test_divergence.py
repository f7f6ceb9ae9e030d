"""Students that diverge are reported: in records, by a warning of `teach`, and nowhere else."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last

_STEPS = 60


@pytest.fixture(autouse=True)
def _nans():
  with jax.debug_nans(False):
    yield


def _problem(rate):
  """Least squares: at a rate of 5 errors grow in every step."""
  draw = np.random.default_rng(0)
  pool = last.Pool(draw.normal(size=(20, 3)), draw.normal(size=20))
  learner = last.learners.least_squares(3, learning_rate=rate)
  return learner, last.teachers.sgd(), pool, learner.init(jax.random.key(1))


def _first_lost(rate, key, init):
  """The first iteration after which a parameter is not finite, by a loop of single steps."""
  learner, teacher, pool, target = _problem(rate)
  problem = last.Problem(learner, pool, target=target)
  step = jax.jit(last.step)
  state = last.init(key, problem, teacher, init)
  for count in range(1, _STEPS + 1):
    state, _ = step(state, problem, teacher)
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params)):
      return count
  return -1


@pytest.mark.parametrize("metrics", [(), ("objective",)])
def test_the_first_iteration_with_a_parameter_that_is_not_finite(metrics):
  learner, teacher, pool, target = _problem(30.0)
  keys = jax.random.split(jax.random.key(2), 3)
  with pytest.warns(UserWarning, match="3 of 3 students diverged by iteration"):
    result = last.teach_many(keys, learner, teacher, pool, target=target, steps=_STEPS, metrics=metrics)
  expected = [_first_lost(30.0, key, None) for key in keys]
  np.testing.assert_array_equal(result.diverged_at, expected)
  assert min(expected) > 0
  assert result.records.diverged.shape == result.step.shape


def test_which_students_and_from_which_record():
  learner, teacher, pool, target = _problem(0.1)
  far = jax.tree.map(lambda leaf: jnp.stack([leaf, jnp.full_like(leaf, 3e38), leaf]), target)  # One overflows at once.
  keys = jax.random.split(jax.random.key(2), 3)
  with pytest.warns(UserWarning, match="1 of 3 students diverged by iteration") as caught:
    result = last.teach_many(
      keys, learner, teacher, pool, target=target, init=far, steps=_STEPS, record_every=7, metrics=("objective",)
    )
  assert len(caught) == 1
  assert [int(at) >= 0 for at in result.diverged_at] == [False, True, False]
  flags = np.asarray(result.records.diverged[1])
  assert result.diverged_at[1] == result.step[1][flags][0]
  assert (np.diff(flags.astype(int)) >= 0).all()


def test_with_a_distance_it_counts_from_where_that_overflows():
  learner, teacher, pool, target = _problem(1e-3)
  far = jax.tree.map(lambda leaf: jnp.full_like(leaf, 1e30), target)
  with pytest.warns(UserWarning, match="the student diverged by iteration 0"):
    result = last.teach(jax.random.key(0), learner, teacher, pool, target=target, init=far, steps=3)
  np.testing.assert_array_equal(result.records.diverged, ~np.isfinite(result.distance))
  assert result.diverged_at == 0


def test_students_that_stay_finite_warn_of_nothing():
  learner, teacher, pool, target = _problem(0.01)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    result = last.teach(jax.random.key(0), learner, teacher, pool, target=target, steps=20)
  assert result.diverged_at == -1
  assert not result.records.diverged.any()


@pytest.mark.slow
def test_runs_in_pieces_and_watched_runs_say_the_same():
  learner, teacher, pool, target = _problem(30.0)
  key = jax.random.key(2)
  with pytest.warns(UserWarning, match="diverged"):
    whole = last.teach(key, learner, teacher, pool, target=target, steps=_STEPS, record_every=2)
  with last.progress(show=False), pytest.warns(UserWarning, match="diverged"):
    watched = last.teach(key, learner, teacher, pool, target=target, steps=_STEPS, record_every=2)
  problem = last.Problem(learner, pool, target=target)
  state, records = last.init(key, problem, teacher), []
  for steps in (20, _STEPS - 20):
    state, found = last.run(state, problem, teacher, steps=steps, record_every=2)
    records.append(found.diverged)
  np.testing.assert_array_equal(watched.records.diverged, whole.records.diverged)
  np.testing.assert_array_equal(np.concatenate(records), whole.records.diverged[1:])
  assert watched.diverged_at == whole.diverged_at


def test_traced_calls_do_not_warn():
  learner, teacher, pool, target = _problem(30.0)

  @jax.jit
  def teach(key):
    return last.teach(key, learner, teacher, pool, target=target, steps=_STEPS).diverged_at

  assert teach(jax.random.key(2)) > 0


@pytest.mark.parametrize("tolerance", [1e25, 1e-25])
def test_tolerances_whose_squares_are_no_numbers_are_refused(tolerance):
  learner, _, pool, target = _problem(1e-3)
  with pytest.raises(ValueError, match="tolerance must lie between"):
    last.Problem(learner, pool, target=target, tolerance=tolerance)
