"""The unrelated channel: what its learner sees, and what labels can do through it, by brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree

import last_jax as last
from last_jax.distances import distance
from last_jax.reproduction import auxiliary

NET = auxiliary.network(5)
ROWS = 6  # Images in a batch.


def draw(dtype=jnp.float32):
  """A student's start, its teacher near it, and noise."""
  keys = jax.random.split(jax.random.key(0), 3)
  start = jax.tree.map(lambda leaf: leaf.astype(dtype), auxiliary.init(NET, keys[0]))
  noise = [
    jax.random.normal(jax.random.fold_in(keys[1], i), leaf.shape) for i, leaf in enumerate(jax.tree.leaves(start))
  ]
  away = jax.tree.unflatten(jax.tree.structure(start), noise)
  target = jax.tree.map(lambda leaf, by: leaf + 0.03 * by.astype(dtype), start, away)
  return start, target, jax.random.uniform(keys[2], (ROWS, 784), dtype, -1.0, 1.0)


def make_learner(loss="squared_error", **settings):
  return auxiliary.make_learner(NET, auxiliary.auxiliary_outputs, loss, **(settings or {"learning_rate": 0.1}))


def test_the_loss_sees_the_three_outputs_alone():
  """Gradients are those of a loss of all thirteen outputs with a mask, so nothing moves the class weights."""
  start, _, x = draw()
  labels = jax.random.normal(jax.random.key(1), (ROWS, 3))

  def masked(params):
    gaps = NET.apply(params, x) - jnp.concatenate([jnp.full((ROWS, 10), 7.0), labels], 1)
    return jnp.mean(jnp.sum(jnp.where(jnp.arange(13)[None] >= 10, 0.5 * gaps**2, 0.0), 1))

  gradient = jax.jit(make_learner().gradient)(start, x, labels)
  for own, expected in zip(jax.tree.leaves(gradient), jax.tree.leaves(jax.jit(jax.grad(masked))(start)), strict=True):
    np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-6)
  assert not np.asarray(gradient["layer_2"]["weights"][:, :10]).any()
  assert np.asarray(gradient["layer_2"]["weights"][:, 10:]).any()


def test_labels_of_the_recipe_are_what_the_teacher_gives():
  _, target, x = draw()
  outputs = NET.apply(target, x)[:, 10:]
  np.testing.assert_allclose(auxiliary.make_problem(make_learner(), target, x).truth, outputs, rtol=1e-6)
  softmax = auxiliary.make_problem(make_learner("softmax_cross_entropy"), target, x).truth
  np.testing.assert_allclose(softmax, jax.nn.softmax(outputs), rtol=1e-6)


def test_class_weights_are_told_from_the_rest():
  start, target, _ = draw()
  mixed = auxiliary.with_class_weights(target, start)
  for key in ("weights", "bias"):
    np.testing.assert_array_equal(mixed["layer_2"][key][..., :10], start["layer_2"][key][..., :10])
    np.testing.assert_array_equal(mixed["layer_2"][key][..., 10:], target["layer_2"][key][..., 10:])
  np.testing.assert_array_equal(mixed["layer_1"]["weights"], target["layer_1"]["weights"])


@pytest.mark.slow
def test_exact_labels_leave_what_no_label_transmits(x64):
  """One step ends at the part of w - w* that is outside of the span of the outputs' gradients."""
  start, target, x = draw(jnp.float64)
  learner = make_learner()
  truth = auxiliary.make_problem(learner, target, x).truth
  flat, unravel = ravel_pytree(start)
  jacobian = np.asarray(jax.jacrev(lambda w: NET.apply(unravel(w), x)[:, 10:].ravel())(flat))
  error = np.asarray(flat - ravel_pytree(target)[0])
  beyond = error - jacobian.T @ np.linalg.lstsq(jacobian.T, error, rcond=None)[0]

  def after(labels):
    return float(distance(learner.step(learner.start(start), x, labels).params, target))

  sets = (last.constraints.none(), last.constraints.magnitude(1.0))
  free, bounded = (after(last.synthesize_labels(learner, start, target, x, truth, constraint)) for constraint in sets)
  assert free == pytest.approx(np.linalg.norm(beyond), rel=1e-9)
  assert free <= bounded < after(truth)
  reach = last.reach(learner, start, target, x, truth)
  assert reach.after == pytest.approx(np.linalg.norm(beyond), rel=1e-9)
  class_weights = distance(auxiliary.with_class_weights(target, start), target)
  assert class_weights < np.linalg.norm(beyond)  # Part of what no label transmits, whatever the images.


@pytest.mark.slow
def test_no_way_moves_the_class_weights():
  start, target, x = draw()
  for way in auxiliary.make_ways(NET, 2):
    problem = auxiliary.make_problem(way.learner, target, x)
    state = last.init(jax.random.key(2), problem, way.method.teacher, params=start)
    state, _ = last.run(state, problem, way.method.teacher, steps=3, batch_size=way.batch_size, metrics=())
    for key in ("weights", "bias"):
      np.testing.assert_array_equal(state.params["layer_2"][key][..., :10], start["layer_2"][key][..., :10])
    assert not np.array_equal(state.params["layer_0"]["weights"], start["layer_0"]["weights"])
