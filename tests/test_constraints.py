"""Projections against a general convex solver, and what constraints refuse."""

import cvxpy
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import last_jax as last
from last_jax import margin
from tests import problems

CONVEX = [name for name in problems.CONSTRAINTS if name not in ("none", "one_hot")]


def project(name, labels, centers):
  constraint, corners = problems.CONSTRAINTS[name], jnp.asarray(np.eye(labels.shape[1]), labels.dtype)
  return jax.vmap(lambda y, c: constraint.project(y, c, constraint.radius, corners))(labels, centers)


@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.parametrize("width", [2, 5, 10])
def test_projections_match_a_convex_solver(x64, name, width):
  draw = np.random.default_rng(width)
  centers = np.concatenate([np.eye(width)[draw.integers(width, size=10)], draw.dirichlet(np.ones(width), size=10)])
  labels = 10 ** draw.uniform(-1, 1.5, size=(20, 1)) * draw.normal(size=(20, width))
  found = np.asarray(project(name, jnp.asarray(labels), jnp.asarray(centers)))
  for label, center, nearest in zip(labels, centers, found, strict=True):
    variable = cvxpy.Variable((1, width))
    rules = problems.feasible_set(name, variable, center[None], center[None])
    size = 1 + np.linalg.norm(label)
    # The squared distance, in a form and at a scale in which the solver is accurate.
    goal = cvxpy.Minimize(cvxpy.sum_squares((variable - label[None]) / size))
    problems.solve_closely(cvxpy.Problem(goal, rules))
    np.testing.assert_allclose(nearest, variable.value[0], atol=1e-5 * size)
    assert np.sum((nearest - label) ** 2) <= goal.value * size**2 * (1 + 1e-7) + 1e-8
  # What is projected stays where it is.
  np.testing.assert_allclose(project(name, jnp.asarray(found), jnp.asarray(centers)), found, atol=1e-10)


@pytest.mark.parametrize("name", CONVEX)
def test_projections_are_differentiable(x64, name):
  draw = np.random.default_rng(0)
  label, center, direction = draw.normal(size=6), np.eye(6)[2], draw.normal(size=6)

  def along(t):
    return project(name, (label + t * direction)[None], jnp.asarray(center)[None])[0]

  found = jax.jacrev(along)(0.0)
  step = 1e-6
  np.testing.assert_allclose(found, (along(step) - along(-step)) / (2 * step), atol=1e-5)


def test_a_ball_that_is_larger_than_the_simplex_changes_nothing(x64):
  labels = np.random.default_rng(0).normal(size=(7, 4))
  centers = np.eye(4)[[0, 1, 2, 3, 0, 1, 2]]
  corners = jnp.eye(4)
  for p in (1, 2, np.inf):
    constraint = last.constraints.simplex(5.0, p=p)
    found = jax.vmap(lambda y, c, q=constraint: q.project(y, c, q.radius, corners))(labels, centers)
    np.testing.assert_allclose(found, project("simplex", jnp.asarray(labels), centers), atol=1e-12)


def test_a_center_beside_the_simplex_is_moved_onto_it(x64):
  constraint = last.constraints.simplex(0.1)
  found = constraint.project(jnp.array([5.0, 0.0]), jnp.array([0.0, 2.0]), 0.1, jnp.eye(2))
  assert found.sum() == pytest.approx(1)
  assert np.linalg.norm(found - np.array([0.0, 1.0])) == pytest.approx(0.1)


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: last.constraints.magnitude(-1.0), "radius must be a positive number, but it is -1.0"),
    (lambda: last.constraints.magnitude(0.0), "radius must be a positive number"),
    (lambda: last.constraints.magnitude(float("nan")), "radius must be a positive number"),
    (lambda: last.constraints.magnitude(1.0, p=3), "p must be 1, 2 or infinity"),
    (lambda: last.constraints.magnitude(1.0, around="mean"), "around='mean' is not known: use one of 'prediction'"),
    (lambda: last.constraints.simplex(-0.5), "radius must be a positive number"),
    (lambda: last.constraints.one_hot(0), "max_combinations must be a whole number of at least 1"),
  ],
)
def test_bad_constraints_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def test_a_radius_that_is_no_number_is_refused():
  with pytest.raises(TypeError, match="radius must be a number, but it is a str"):
    last.constraints.magnitude("wide")
  with pytest.raises(TypeError, match="radius must be a number"):
    last.constraints.magnitude(None)


margin_gradient, margin_reachable, margin_label_of = map(
  jax.jit, (margin.output_gradient, margin.reachable, margin.label_of)
)


@hypothesis.given(st.floats(-30, 30, allow_subnormal=False), st.floats(-5, 5), st.floats(0.01, 10), st.floats(-8, 8))
def test_margin_labels_invert_the_gradient(z, middle, width, label):
  """A label inside the interval gives a u that is reachable, and label_of finds a label with the same u."""
  with jax.enable_x64(True):
    low, high = middle - width, middle + width
    label = min(max(label, low), high)
    z, low, high, label = (jnp.asarray([v], float) for v in (z, low, high, label))
    u = margin_gradient(label, z)
    least, most = margin_reachable(z, low, high)
    assert least - 1e-12 <= u <= most + 1e-12
    grid = jnp.linspace(low[0], high[0], 2001)
    values = margin_gradient(grid, jnp.broadcast_to(z, grid.shape))
    assert least <= values.min() + 1e-12
    assert most >= values.max() - 1e-12
    found = margin_label_of(u, z, low, high, label)
    assert low - 1e-12 <= found <= high + 1e-12
    np.testing.assert_allclose(margin_gradient(found, z), u, atol=1e-12 + 1e-10 * abs(float(u[0])))
    # Given the label itself as the truth, the label nearest to it is that label, unless u hardly depends on it.
    if abs(float(margin._slope(label, z)[0])) > 1e-3:
      np.testing.assert_allclose(found, label, atol=1e-6)
