"""Projections against a general convex solver; names, radii as data, and errors of constraints."""

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
from tests.compilations import counted

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
  # A projected label is its own projection.
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


@pytest.mark.slow
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
    (lambda: last.constraints.simplex(p=3), "p must be 1, 2 or infinity, but it is 3"),
    (lambda: last.constraints.simplex(p=True), "p must be 1, 2 or infinity, but it is True"),
    (lambda: last.constraints.magnitude(np.ones(3)), r"radius must be one number, but it has shape \(3,\)"),
    (lambda: last.constraints.simplex(jnp.ones((1, 1))), r"radius must be one number, but it has shape \(1, 1\)"),
    (lambda: last.constraints.magnitude(np.float32(-1)), "radius must be a positive number"),
    (lambda: last.constraints.one_hot(0), "max_combinations must be a whole number of at least 1"),
  ],
)
def test_bad_constraints_are_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()


@pytest.mark.parametrize(
  "radius",
  [None, "wide", True, np.True_, np.array(True), 1j, np.complex64(1), jnp.asarray(1j), [0.5], jnp.asarray(True)],
)
@pytest.mark.parametrize("make", [last.constraints.magnitude, last.constraints.simplex])
def test_a_radius_that_is_no_number_is_refused(make, radius):
  if make is last.constraints.simplex and radius is None:
    return  # No ball.
  with pytest.raises(TypeError, match=r"radius must be a (real )?number, but it"):
    make(radius)


def test_a_traced_radius_is_refused_by_dtype_and_shape():
  with pytest.raises(TypeError, match="radius must be a real number, but its dtype is bool"):
    jax.jit(lambda r: last.constraints.magnitude(r).radius)(True)
  with pytest.raises(ValueError, match=r"radius must be one number, but it has shape \(2,\)"):
    jax.jit(lambda r: last.constraints.magnitude(r).radius)(jnp.ones(2))


# --- Names are for people, radii are data.


@pytest.mark.parametrize(
  ("constraint", "name"),
  [
    (last.constraints.none(), "none"),
    (last.constraints.one_hot(), "one_hot"),
    (last.constraints.simplex(), "simplex"),
    (last.constraints.magnitude(0.5), "r=0.5"),
    (last.constraints.magnitude(2), "r=2"),
    (last.constraints.magnitude(np.float32(0.5), p=1), "r=0.5, p=1"),
    (last.constraints.magnitude(jnp.asarray(0.5)), "r=0.5"),
    (last.constraints.simplex(1, np.inf, "prediction"), "simplex, r=1, p=inf, around prediction"),
  ],
)
def test_names_are_readable_and_survive(constraint, name):
  assert constraint.name == name
  assert jax.tree.map(lambda leaf: leaf, constraint).name == name


@pytest.mark.slow
def test_radii_and_names_compile_nothing():
  learner = last.learners.softmax(3, 4, learning_rate=0.5)
  params, target = (learner.init(jax.random.key(seed)) for seed in range(2))
  x = np.random.default_rng(0).normal(size=(2, 3)).astype("f4")

  def labels(constraint):
    return np.asarray(last.synthesize_labels(learner, params, target, x, np.array([0, 3]), constraint))

  truth = np.eye(4)[[0, 3]]
  for make in (last.constraints.magnitude, last.constraints.simplex):
    labels(make(0.75))
    with counted() as programs:
      for radius in [*map(float, np.linspace(0.1, 0.7, 20)), 1, 2]:  # Integers are the same data.
        found = labels(make(radius))
        assert np.all(np.linalg.norm(found - truth, axis=1) <= radius * (1 + 1e-5))
    assert programs.count == 0


def test_a_radius_can_be_swept_by_vmap(x64):
  learner = last.learners.least_squares(2, learning_rate=0.1, bias=False)
  params, target = ({"weights": value * jnp.ones((2, 1))} for value in (0.0, 1.0))

  def label(radius):
    constraint = last.constraints.magnitude(radius)
    return last.synthesize_labels(learner, params, target, np.ones((1, 2)), np.array([1.0]), constraint)[0, 0]

  # The best free label is 1 / (0.1 * 2) * 2 = 10: each ball around the truth, 1, stops it.
  np.testing.assert_allclose(jax.vmap(label)(jnp.array([0.5, 2.0, 20.0])), [1.5, 3.0, 10.0])


@pytest.mark.parametrize(
  ("batch", "width", "combinations", "exact"),
  [(10, 1, 1024, True), (11, 1, 1024, False), (10, 2, 1024, True), (3, 10, 1024, True), (4, 10, 1024, False),
   (1, 100, 99, False), (4, 3, 81, True), (5, 3, 81, False)],
)  # fmt: skip
def test_one_hot_batches_are_exact_while_they_can_be_enumerated(batch, width, combinations, exact):
  assert last.constraints.one_hot(combinations).is_exact(batch, width) == exact
  classes = len(last.losses.sigmoid_cross_entropy.class_labels(width))
  assert exact == (classes**batch <= combinations)
  for other in (last.constraints.none(), last.constraints.simplex(), last.constraints.magnitude(1.0)):
    assert other.is_exact(batch, width)


@pytest.mark.parametrize(
  ("project", "error", "message"),
  [
    (
      lambda y, *_: jnp.sum(y),
      ValueError,
      r"project of the constraint 'mine' must return a floating point array of shape \[4\], but it returned float32 of",
    ),
    (lambda y, *_: y[None], ValueError, r"project of the constraint 'mine' .* shape \[1, 4\]"),
    (lambda y, *_: jnp.argmax(y), ValueError, "project of the constraint 'mine' .* returned int32"),
    (lambda y, *_: None, TypeError, "project of the constraint 'mine' .* returned a NoneType"),
  ],
)
@pytest.mark.parametrize("batch", [1, 2])
def test_what_a_projection_returns_is_checked_when_it_is_traced(project, error, message, batch):
  learner = last.learners.softmax(3, 4, learning_rate=0.5)
  params = learner.init(jax.random.key(0))
  with pytest.raises(error, match=message):
    last.synthesize_labels(
      learner, params, params, np.ones((batch, 3)), np.zeros(batch, int), last.constraints.Constraint("mine", project)
    )


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


def test_the_largest_of_sparse_labels_keep_their_digits():
  sparse = last.constraints.simplex(max_nonzero=2)
  label = jnp.array([-1e8, 0.3, 0.2])
  found = sparse.project(label, jnp.zeros(3), jnp.inf, jnp.eye(3))
  np.testing.assert_allclose(found, [0, 0.55, 0.45], atol=1e-6)


@pytest.mark.parametrize("size", [1e6, 1e9, 1e15, 1e30])
def test_the_nearest_label_to_a_far_one_is_in_its_direction(size):
  """Within 1/2 of the truth and the simplex: from the second corner toward the first."""
  ball = last.constraints.simplex(0.5)
  truth = jnp.array([0.0, 1.0, 0.0])
  found = ball.project(truth + size * jnp.array([1.0, 0.0, 0.0]), truth, ball.radius, jnp.eye(3))
  np.testing.assert_allclose(found, [0.5**1.5, 1 - 0.5**1.5, 0], atol=1e-3)
  assert abs(found.sum() - 1) <= 1e-6
  assert jnp.linalg.norm(found - truth) <= 0.5 + 1e-6
