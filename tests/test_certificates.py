"""Certificates of label problems, confirmed through the learner's own step, not through the package's quadratic."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import last_jax as last
from last_jax import free, linear, quadratic, synthesis, targets
from tests import problems

pytestmark = pytest.mark.sampled


def momentum(rate):
  return last.learners.softmax(4, 3, learning_rate=rate, momentum=0.8, nesterov=True, weight_decay=1e-2)


# A learner, a set and a batch size.
CASES = [
  ("least_squares_3", "none", 3),
  ("least_squares_3", "ball_1", 2),
  ("logistic", "simplex", 1),
  ("logistic", "ball_inf", 3),
  ("softmax_5", "simplex_2", 3),
  ("softmax_5", "ball_2", 1),
  ("mlp", "simplex", 2),
  ("mlp", "none", 2),
  ("momentum", "simplex_inf", 3),
  ("momentum", "none", 1),
]
KINDS = {kind: problems.KINDS[kind] for kind in ("least_squares_3", "logistic", "softmax_5", "mlp")}
KINDS["momentum"] = (momentum, (4,), 3)


def draw_case(kind, batch, seed):
  """A learner, a student that has velocity where there is momentum, and a problem in float64."""
  make, shape, width = KINDS[kind]
  draw = np.random.default_rng(seed)
  learner = make(float(10 ** draw.uniform(-1.5, 0.5)))
  shapes = jax.eval_shape(learner.init, jax.random.key(0))
  params, target, velocity = (jax.tree.map(lambda leaf: draw.normal(size=leaf.shape), shapes) for _ in range(3))
  x = draw.normal(size=(batch, *shape))
  truth = np.eye(width)[draw.integers(width, size=batch)] if width > 1 else draw.integers(2, size=(batch, 1)) * 1.0
  student = learner.update(learner.start(as_dtype(params, float)), as_dtype(velocity, float))
  return learner, student, problems.Problem(student.params, target, x, truth)


def as_dtype(tree, dtype):
  return jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), tree)


def step_map(learner, student, problem):
  """w+ - w* = error + columns y, read off by taking steps: `[P]` and `[P, m K]`, float64."""
  size, goal = problem.truth.size, problems.flatten(problem.target)
  probes = jnp.asarray(np.concatenate([np.zeros((1, size)), np.eye(size)]).reshape(-1, *problem.truth.shape))
  after = jax.vmap(lambda label: learner.position(learner.step(student, jnp.asarray(problem.x), label)))(probes)
  rows = np.concatenate([np.asarray(leaf).reshape(size + 1, -1) for leaf in jax.tree.leaves(after)], 1)
  return rows[0] - goal, (rows[1:] - rows[0]).T


def natural_map(error, columns, project, labels):
  """The residual as `quadratic.residual` defines it, for G(y) = ||error + columns y||^2."""
  labels = np.asarray(labels, np.float64)
  gradient = 2 * columns.T @ (error + columns @ labels.ravel())
  size = 1 + np.linalg.norm(labels)
  bound = max(np.linalg.norm(2 * columns.T @ columns), 1e-6 * np.linalg.norm(gradient) / size)
  moved = labels - (gradient / bound).reshape(labels.shape)
  return float(np.linalg.norm(labels - project(jnp.asarray(moved))) / size)


def projection(learner, problem, constraint):
  outputs = learner.apply(problem.params, jnp.asarray(problem.x))
  return constraint.projection(learner.loss, outputs, jnp.asarray(problem.truth))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["softmax_5", "mlp", "momentum"])
def test_the_residual_of_any_labels_is_the_natural_map_of_the_step(x64, kind):
  """At labels that are no optimum, where it is not small: for linear learners by both roads to the quadratic."""
  learner, student, problem = draw_case(kind, 2, 0)
  x, truth = jnp.asarray(problem.x), jnp.asarray(problem.truth)
  outputs = learner.apply(student.params, x)
  gradients = jax.vmap(learner.loss.output_gradient)(outputs, truth)
  slopes = jax.vmap(learner.loss.label_slope)(outputs, truth)
  goal = as_dtype(problem.target, float)
  step = targets.Step(learner, student, x, outputs, gradients, slopes, truth)
  quadratics = [targets.expand(targets.params(goal), step)]
  if learner.is_linear:
    known = linear.geometry(learner, goal, x)
    quadratics.append(linear.quadratic_of_batch(learner, student, x, outputs, gradients, slopes, truth, known))
  error, columns = step_map(learner, student, problem)
  for name in ("none", "simplex", "ball_2"):
    project = projection(learner, problem, problems.CONSTRAINTS[name])
    labels = 0.5 * truth + 0.5 * project(truth + np.random.default_rng(1).normal(size=truth.shape))
    expected = natural_map(error, columns, project, labels)
    assert expected > 1e-3
    for found in quadratics:
      np.testing.assert_allclose(quadratic.residual(found, project, labels), expected, rtol=1e-7, atol=1e-12)


@functools.cache
def synthesis_of(kind, name):
  @jax.jit
  def labels(learner, student, target, x, truth):
    return last.synthesize_labels(
      learner, student.params, target, x, truth, problems.CONSTRAINTS[name], opt_state=student.opt_state,
      with_certificate=True,
    )  # fmt: skip

  return labels


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("kind", "name", "batch"), CASES)
@pytest.mark.slow
def test_certificates_hold_for_the_step_itself(x64, kind, name, batch, dtype):
  """The labels' natural map, recomputed in float64, is as small as the certificate says."""
  for seed in range(4):
    learner, student, problem = draw_case(kind, batch, seed)
    given = as_dtype((student, problem.target, problem.x, problem.truth), dtype)
    labels, certificate = synthesis_of(kind, name)(learner, *given)
    chex.assert_shape([certificate.residual, certificate.iterations], ())
    chex.assert_type([certificate.residual, certificate.iterations], [np.dtype(dtype), int])
    assert certificate.exact
    assert certificate.miss is None
    error, columns = step_map(learner, student, problem)
    true = natural_map(error, columns, projection(learner, problem, problems.CONSTRAINTS[name]), labels)
    assert float(certificate.residual) <= (1e-12 if dtype == "float64" else 1e-4)
    assert abs(true - float(certificate.residual)) <= (1e-11 if dtype == "float64" else 3e-4), seed


@pytest.mark.parametrize(("kind", "name", "batch"), CASES)
def test_a_certified_optimum_is_the_one_of_a_convex_solver(x64, kind, name, batch):
  learner, student, problem = draw_case(kind, batch, 3)
  given = as_dtype((student, problem.target, problem.x, problem.truth), float)
  labels, certificate = synthesis_of(kind, name)(learner, *given)
  assert certificate.exact
  assert certificate.residual <= 1e-12
  error, columns = step_map(learner, student, problem)
  center = problems.prediction(learner, problem)
  best = problems.solve(name, error, columns, np.zeros_like(error), problem.truth, center)
  truth = np.sum((error + columns @ problem.truth.ravel()) ** 2)
  assert np.sum((error + columns @ np.ravel(labels)) ** 2) == pytest.approx(best, rel=1e-5, abs=1e-8 * truth)


# --- The road that is named, and whether it leads to a global optimum.


def _dense_init(key):
  return {"w": jax.random.normal(key, (4, 10))}


def _dense(params, x):
  return x @ params["w"]


def hinge(outputs, label):
  return jnp.sum(jax.nn.relu(1 - label * outputs) ** 2)


def opaque(loss="softmax_cross_entropy", optimizer=None):
  return last.learners.from_apply(_dense_init, _dense, loss, optimizer=optimizer or optax.sgd(0.5))


def mlp(classes, **settings):
  return last.learners.mlp((4, 6, classes), **(settings or {"learning_rate": 0.5}))


SOFTMAX = last.learners.softmax(4, 3, learning_rate=0.5)
LOGISTIC = last.learners.logistic(4, learning_rate=0.5)
MARGIN = last.learners.logistic(4, learning_rate=0.5, form="margin")
HINGE = last.losses.Loss("hinge", hinge, affine=False)
ROADS = {
  "one example, linear": (SOFTMAX, "simplex", 1, "closed form", True),
  "one example, linear, free": (LOGISTIC, "none", 1, "closed form", True),
  "one example, linear, one-hot": (SOFTMAX, "one_hot", 1, "closed form", True),
  "one example, two classes": (mlp(2), "simplex", 1, "closed form", True),
  "one example, one output": (mlp(1), "ball_2", 1, "closed form", True),
  "one example, linear, a ball": (SOFTMAX, "ball_2", 1, "projected gradients", True),
  "batch, linear": (SOFTMAX, "simplex", 3, "projected gradients", True),
  "batch, two classes": (mlp(2), "simplex", 3, "projected gradients", True),
  "network": (mlp(3), "simplex_2", 1, "projected gradients", True),
  "batch, free": (LOGISTIC, "none", 3, "linear solve", True),
  "network, free": (mlp(3), "none", 1, "linear solve", True),
  "network, one-hot": (mlp(3), "one_hot", 1, "enumeration", True),
  "batch, one-hot": (SOFTMAX, "one_hot", 6, "enumeration", True),
  "batch, one-hot, too large": (SOFTMAX, "one_hot", 7, "coordinate descent", False),
  "3 examples, 10 classes": (opaque(), "one_hot", 3, "enumeration", True),
  "4 examples, 10 classes": (opaque(), "one_hot", 4, "coordinate descent", False),
  "margin": (MARGIN, "simplex", 1, "scalar map", True),
  "margin, batch": (MARGIN, "simplex_2", 3, "scalar map", True),
  "margin, one-hot": (MARGIN, "one_hot", 3, "enumeration", True),
  "margin, one-hot, too large": (MARGIN, "one_hot", 11, "coordinate descent", False),
  "Adam": (mlp(3, optimizer=optax.adam(0.1)), "simplex", 1, "Gauss-Newton", False),
  "Adam, free": (mlp(3, optimizer=optax.adam(0.1)), "none", 2, "Gauss-Newton", False),
  "Adam, one-hot": (mlp(3, optimizer=optax.adam(0.1)), "one_hot", 1, "enumeration", True),
  "Adam, one-hot batch": (mlp(3, optimizer=optax.adam(0.1)), "one_hot", 2, "Gauss-Newton", False),
  "hinge": (opaque(HINGE), "ball_inf", 1, "Gauss-Newton", False),
  "hinge, one-hot": (opaque(HINGE), "one_hot", 1, "enumeration", True),
}


@pytest.mark.parametrize("name", list(ROADS))
def test_roads(name):
  learner, constraint, batch, road, exact = ROADS[name]
  constraint = problems.CONSTRAINTS[constraint]
  if constraint.around == "prediction" and learner.loss.predict is None:
    constraint = dataclasses.replace(constraint, around="truth")
  params, target = (learner.init(jax.random.key(i)) for i in (0, 1))
  x = np.random.default_rng(0).normal(size=(batch, 4)).astype(np.float32)
  classes = len(learner.loss.class_labels(learner.num_outputs(jnp.asarray(x))))
  y = np.arange(batch) % classes
  labels, certificate = last.synthesize_labels(learner, params, target, x, y, constraint, with_certificate=True)
  assert (certificate.road, certificate.exact) == (road, exact)
  assert (int(certificate.iterations) > 0) == (
    (road in ("projected gradients", "coordinate descent", "Gauss-Newton") and name != "Adam, one-hot batch")
    or name == "margin, batch"
  )  # fmt: skip
  assert np.isfinite(certificate.residual)
  assert road in ("projected gradients", "linear solve", "scalar map", "Gauss-Newton") or certificate.residual <= 1e-6
  assert labels.shape == (batch, learner.num_outputs(jnp.asarray(x)))


@pytest.mark.slow
def test_enumerated_labels_are_a_global_optimum_through_any_optimizer(x64):
  learner = last.learners.softmax(4, 4, optimizer=optax.adam(0.1))
  for seed in range(3):
    keys = jax.random.split(jax.random.key(seed), 2)
    params, target = (as_dtype(learner.init(key), float) for key in keys)
    problem = problems.Problem(params, target, np.random.default_rng(seed).normal(size=(1, 4)), np.eye(4)[:1])
    labels, certificate = last.synthesize_labels(
      learner, params, target, problem.x, problem.truth, last.constraints.one_hot(), with_certificate=True
    )
    assert certificate.exact
    every = [problems.distance_after(learner, problem, label[None]) for label in np.eye(4)]
    assert problems.distance_after(learner, problem, labels) == pytest.approx(min(every), rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "simplex"])
def test_the_residual_of_gauss_newton_is_that_of_the_linearized_step(x64, name):
  learner = last.learners.logistic(4, optimizer=optax.adam(0.05))
  params, target = (as_dtype(learner.init(jax.random.key(i)), float) for i in (0, 1))
  x, truth = np.random.default_rng(0).normal(size=(2, 4)), np.array([[0.0], [1.0]])
  student = learner.step(learner.start(params), jnp.asarray(x), jnp.asarray(truth))
  problem = problems.Problem(student.params, target, x, truth)
  labels, certificate = last.synthesize_labels(
    learner, student.params, target, x, truth, problems.CONSTRAINTS[name], opt_state=student.opt_state,
    with_certificate=True,
  )  # fmt: skip

  def error(flat):
    after = learner.step(student, jnp.asarray(x), flat.reshape(truth.shape)).params
    return ravel_pytree(after)[0] - ravel_pytree(target)[0]

  columns = np.asarray(jax.jacfwd(error)(labels.ravel()))
  project = projection(learner, problem, problems.CONSTRAINTS[name])
  expected = natural_map(error(labels.ravel()) - columns @ labels.ravel(), columns, project, labels)
  np.testing.assert_allclose(certificate.residual, expected, rtol=1e-6, atol=1e-10)


# --- Certificates are pytrees, and cost nothing where they are not used.


@pytest.mark.slow
def test_certificates_are_batched_and_carried():
  learner = SOFTMAX
  params = jax.vmap(learner.init)(jax.random.split(jax.random.key(0), 4))
  target, x, y = learner.init(jax.random.key(9)), np.ones((2, 4), np.float32), np.array([0, 1])

  def labels(params):
    return last.synthesize_labels(
      learner, params, target, x, y, last.constraints.simplex(), with_certificate=True
    )  # fmt: skip

  _, certificate = jax.jit(jax.vmap(labels))(params)
  chex.assert_shape([certificate.residual, certificate.iterations], (4,))
  assert certificate.exact
  _, carried = jax.lax.scan(lambda _, w: labels(w), jnp.zeros((2, 3)), params)
  np.testing.assert_array_equal(carried.iterations, certificate.iterations)
  gradient = jax.grad(lambda w: labels(w)[1].residual)(jax.tree.map(lambda leaf: leaf[0], params))
  chex.assert_trees_all_equal(gradient, jax.tree.map(jnp.zeros_like, gradient))  # A diagnostic, not an objective.


def operations(function, *arguments):
  return jax.jit(function).lower(*arguments).compile().cost_analysis()["flops"]


@pytest.mark.slow
def test_certificates_cost_nothing_where_they_are_not_used():
  learner, x = SOFTMAX, jnp.ones((1, 4))
  student, target = (learner.start(learner.init(jax.random.key(0))), learner.init(jax.random.key(1)))
  truth, constraint = jnp.eye(3)[:1], last.constraints.simplex()

  def closed_form(student):
    known = linear.geometry(learner, target, x)
    outputs = learner.apply(student.params, x)
    return linear.closed_form_labels(learner, student, x, truth, outputs, constraint, known)

  def greedy(student):
    return synthesis.greedy_labels(learner, student, targets.params(target), x, truth, constraint)

  assert operations(lambda s: greedy(s)[0], student) == operations(closed_form, student)

  def in_a_ball(student):
    return synthesis.greedy_labels(learner, student, targets.params(target), x, truth, last.constraints.magnitude(0.5))

  assert operations(lambda s: in_a_ball(s)[0], student) < operations(in_a_ball, student)


@pytest.mark.parametrize("values", ["regular", "two are zero", "one is rounding"])
def test_many_free_labels_are_the_nearest_minimiser(values):
  """From a Cholesky factor where the matrix is regular, from eigenvalues where it is not: by NumPy's pseudo-inverse."""
  size, draw = 150, np.random.default_rng(0)
  spectrum = draw.uniform(1.0, 3.0, size)
  spectrum[:2] = {"regular": (1.0, 1.0), "two are zero": (0.0, 0.0), "one is rounding": (1e-8, 1.0)}[values]
  basis = np.linalg.qr(draw.normal(size=(size, size)))[0]
  matrix = (basis * spectrum) @ basis.T
  linear = matrix @ draw.normal(size=size)
  at, shape = jnp.asarray(draw.normal(size=(size // 3, 3)), jnp.float32), (size // 3, 3)
  problem = quadratic.Quadratic(
    at, jnp.asarray(matrix, jnp.float32).reshape(shape * 2), jnp.asarray(linear, jnp.float32).reshape(shape)
  )
  labels, certificate = jax.jit(free.minimise)(problem)
  expected = -np.linalg.pinv(matrix, rcond=1e-5) @ linear
  np.testing.assert_allclose((labels - at).ravel(), expected, atol=1e-4)
  assert certificate.residual < 1e-6


@pytest.mark.slow
def test_many_free_labels_have_derivatives(x64):
  """Through the Cholesky factor, against those of NumPy's solution by finite differences."""
  size, draw = 129, np.random.default_rng(1)
  root = draw.normal(size=(size, 2 * size))
  matrix, linear, away, along = root @ root.T / size, *draw.normal(size=(3, size))
  turn = np.outer(away, away) / size

  def minimum(t):
    problem = quadratic.Quadratic(
      jnp.zeros((size, 1)), (matrix + t * turn).reshape(size, 1, size, 1), (linear + t * away)[:, None]
    )
    return along @ free.minimise(problem)[0][:, 0]

  def oracle(t):
    return -along @ np.linalg.solve(matrix + t * turn, linear + t * away)

  slope = (oracle(1e-5) - oracle(-1e-5)) / 2e-5
  assert float(jax.grad(minimum)(0.0)) == pytest.approx(slope, rel=1e-6)
