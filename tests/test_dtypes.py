"""Pools of every dtype are taught from, or refused by name when they are made."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import last_jax as last

_TAKEN = ("float16", "bfloat16", "float32", "float64", "int8", "uint8", "int32", "bool")
_REFUSED = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "complex64", "datetime64[D]", "timedelta64[s]", "S3")


def _values(dtype):
  numbers = np.random.default_rng(0).integers(0, 2, size=(6, 3)) + np.eye(6, 3, dtype=int)
  return numbers.astype(getattr(ml_dtypes, dtype, dtype))


@pytest.mark.parametrize("dtype", _TAKEN)
@pytest.mark.slow
def test_pools_that_are_taken_are_taught_from(dtype):
  learner = last.learners.softmax(3, 2, learning_rate=0.1)
  pool = last.Pool(_values(dtype), np.arange(6) % 2)
  target = learner.init(jax.random.key(1))
  teacher = last.teachers.greedy(last.constraints.simplex())
  result = jax.eval_shape(
    lambda key: last.teach(key, learner, teacher, pool, target=target, steps=2, lessons=True), jax.random.key(0)
  )
  assert result.distance.dtype == result.lessons.label.dtype == jnp.float32


@pytest.mark.parametrize(
  ("dtype", "convert"),
  [
    *((dtype, np.asarray) for dtype in _REFUSED),
    *((dtype, jnp.asarray) for dtype in _REFUSED if dtype.startswith(("float8", "complex"))),
  ],
)
@pytest.mark.parametrize("place", ["x", "y"])
def test_others_are_refused(dtype, place, convert):
  given = {"x": np.ones((6, 3)), "y": np.ones((6, 2))}
  odd = _values(dtype)[:, : given[place].shape[1]]
  with pytest.raises(TypeError, match=f"pool {place} must"):
    last.Pool(**given | {place: convert(odd)})


@pytest.mark.parametrize("place", ["x", "y"])
def test_masked_entries_are_refused_and_masks_without_any_are_not(place):
  given = {"x": np.ones((6, 3)), "y": np.ones((6, 2))}
  masked = np.ma.masked_array(given[place], mask=False)
  last.Pool(**given | {place: masked})
  masked[2, 1] = np.ma.masked
  with pytest.raises(ValueError, match=f"pool {place} must have no masked entries, but 1 are masked"):
    last.Pool(**given | {place: masked})


@pytest.mark.parametrize("weights", [{"weights": -1.0}, {"weights": np.nan}, {"weights": True}, -0.5])
@pytest.mark.parametrize("make", [
  lambda w: last.teachers.greedy(last.constraints.none(), layer_weights=w),
  lambda w: last.teachers.imt(layer_weights=w),
  lambda w: last.teachers.mixed(last.constraints.none(), layer_weights=w),
  lambda w: last.targets.params(layer_weights=w),
  lambda w: last.targets.trajectory({"weights": np.ones((2, 3))}, layer_weights=w),
])  # fmt: skip
def test_weights_of_layers_are_checked_where_they_are_given(make, weights):
  with pytest.raises((TypeError, ValueError), match="layer_weights"):
    make(weights)


@pytest.mark.parametrize("settings", [{"p": 1}, {"p": np.inf}, {"around": "prediction"}, {"p": 1, "max_nonzero": 2}])
def test_settings_of_a_ball_need_its_radius(settings):
  with pytest.raises(ValueError, match="radius"):
    last.constraints.simplex(**settings)


def test_students_at_different_steps_are_not_run_together():
  learner = last.learners.softmax(3, 2, learning_rate=0.1)
  problem = last.Problem(learner, last.Pool(_values("float32"), np.arange(6) % 2))
  keys = jax.random.split(jax.random.key(0), 2)
  state = last.init(keys, problem, last.teachers.sgd())
  state = state._replace(step=jnp.array([0, 3]))
  with pytest.raises(ValueError, match=r"state.step differs between students"):
    last.run(state, problem, last.teachers.sgd(), steps=2)
