"""Pure functions give the same compiled, not compiled, and on arrays that are placed on a device."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

import last_jax as last
from last_jax import projected, quadratic
from tests.problems import task

KEY = jax.random.key(0)


def project(labels):
  return jnp.clip(labels, 0.0, 1.0)


class TestVariants(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True, with_device=True)
  def test_minimiser_of_a_quadratic(self):
    half = np.random.default_rng(0).normal(size=(6, 6)).astype(np.float32)
    matrix, linear = (half @ half.T).reshape(2, 3, 2, 3), np.full((2, 3), -3.0, np.float32)
    solve = self.variant(
      lambda at, matrix, linear: projected.minimise(quadratic.Quadratic(at, matrix, linear), project)
    )
    labels, certificate = solve(np.zeros((2, 3), np.float32), matrix, linear)
    chex.assert_trees_all_close(labels, project(labels))
    # The condition of the minimum: no gradient inside of the interval, and none that points back into it at its ends.
    gradient = np.einsum("ikjl,jl->ik", matrix, labels) + linear
    assert np.all(np.where(labels < 1e-6, gradient > -1e-3, np.where(labels > 1 - 1e-6, gradient < 1e-3, True)))
    assert np.all(np.abs(gradient[(labels > 1e-6) & (labels < 1 - 1e-6)]) < 1e-3)
    chex.assert_scalar_non_negative(float(certificate.residual))
    assert certificate.residual < 1e-5

  @chex.variants(with_jit=True, without_jit=True, with_device=True)
  @parameterized.parameters("logistic", "softmax_5", "mlp")
  def test_one_iteration(self, kind):
    learner, pool, target = task(kind)
    problem = last.Problem(learner, pool, target=target)
    teacher = last.teachers.greedy(last.constraints.simplex())
    state = last.init(KEY, problem, teacher)
    after, info = self.variant(lambda state, problem: last.step(state, problem, teacher, batch_size=2))(state, problem)
    expected, wanted = last.step(state, problem, teacher, batch_size=2)
    chex.assert_trees_all_close(after.params, expected.params, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_close(info.lesson, wanted.lesson, rtol=1e-4, atol=1e-5)
    chex.assert_trees_all_equal_structs(after, expected)
    chex.assert_tree_all_finite(after.params)
