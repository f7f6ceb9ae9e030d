"""Advice about target parameters."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import last_jax as last
from last_jax import advice

KEY = jax.random.key(0)
RANDOM = np.random.default_rng(0)
POOL = last.Pool(RANDOM.normal(size=(30, 4)).astype(np.float32), RANDOM.integers(0, 3, 30))


@pytest.mark.slow
def test_reach_is_that_of_the_best_step(x64):
  learner = last.learners.mlp((4, 6, 3), learning_rate=0.3)
  params, target = learner.init(KEY), learner.init(jax.random.key(1))
  x, y = jnp.asarray(POOL.x[:2], float), POOL.y[:2]
  found = last.reach(learner, params, target, x, y)
  assert found.distance == pytest.approx(float(optax.tree.norm(optax.tree.sub(params, target))))
  truth = learner.encode(x, y)
  rivals = [
    learner.step(learner.start(params), x, truth + scale * RANDOM.normal(size=truth.shape)).params
    for scale in (0.0, 0.1, 1.0, 10.0)
  ]
  assert all(found.after <= float(optax.tree.norm(optax.tree.sub(rival, target))) for rival in rivals)
  assert found.share == pytest.approx(1 - found.after / found.distance)
  limited = last.reach(learner, params, target, x, y, last.constraints.simplex())
  assert found.after <= limited.after <= float(optax.tree.norm(optax.tree.sub(rivals[0], target))) + 1e-12
  assert last.reach(learner, params, params, x, y).cosine == pytest.approx(1.0)
  assert abs(found.cosine) < 0.5


GREEDY = last.teachers.greedy(last.constraints.simplex())


def teach(learner, init, target, teacher=GREEDY):
  return last.teach(KEY, learner, teacher, POOL, target=target, init=init, steps=1)


@pytest.mark.slow
def test_a_target_of_another_start_is_told_once():
  advice._told.clear()
  learner = last.learners.mlp((4, 7, 3), learning_rate=0.3)
  init, other = learner.init(KEY), learner.init(jax.random.key(1))
  found = last.reach(learner, init, other, POOL.x[:1], POOL.y[:1])
  numbers = rf"= {found.distance:.3g}, .*cosine .* is {found.cosine:.2f}, .* on 1 .* reach {found.after:.3g} at best, "
  with pytest.warns(UserWarning, match=rf"far from the start: .*{numbers}.* % of the way.*targets\.outputs"):
    teach(learner, init, other)
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    teach(learner, init, other)


@pytest.mark.slow
def test_it_is_told_with_numbers_where_the_caller_compiles():
  advice._told.clear()
  learner = last.learners.mlp((4, 7, 3), learning_rate=0.3)
  init, other = learner.init(KEY), learner.init(jax.random.key(1))
  with pytest.warns(UserWarning, match="far from the start: .* % of the way"):
    distance = jax.jit(lambda key: last.teach(key, learner, GREEDY, POOL, target=other, init=init, steps=1).distance)(
      KEY
    )
  np.testing.assert_allclose(distance, teach(learner, init, other).distance, rtol=1e-5)


def test_where_what_labels_reach_would_be_searched_for_the_rest_is_told():
  advice._told.clear()
  learner = last.learners.mlp((4, 7, 3), optimizer=optax.adam(0.1))
  with pytest.warns(UserWarning, match=r"different starts\. Labels lead there") as caught:
    advice.warn_if_far(last.Problem(learner, POOL, target=learner.init(jax.random.key(1))), learner.init(KEY), 2)
  assert "% of the way" not in str(caught[0].message)


@pytest.mark.slow
def test_targets_that_are_not_far_are_not_told():
  with warnings.catch_warnings():
    warnings.simplefilter("error")
    advice._told.clear()
    learner = last.learners.mlp((4, 8, 3), learning_rate=0.3)
    init = learner.init(KEY)
    near = jax.tree.map(lambda leaf: leaf + 0.1, init)
    teach(learner, init, near)
    advice._told.clear()
    other = learner.init(jax.random.key(1))
    teach(learner, init, other, last.teachers.sgd())  # It does not steer.
    linear = last.learners.softmax(4, 3, learning_rate=0.1)
    teach(linear, linear.init(KEY), linear.init(jax.random.key(1)))
    jax.jit(lambda init, other: teach(learner, init, other).distance)(init, other)  # Traced: not known.
