"""Greedy labels are the best of their set: against a general convex solver and full enumeration, for every learner."""

import functools
import itertools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import last_jax as last
from last_jax import argmin, linear, targets
from tests import problems

pytestmark = pytest.mark.sampled

SEEDS = st.integers(0, 2**32 - 1)
CONVEX = [name for name in problems.CONSTRAINTS if name != "one_hot"]


@functools.cache
def compiled(kind, name):
  make = problems.KINDS[kind][0]

  def labels(rate, params, target, x, truth):
    return last.synthesize_labels(make(rate), params, target, x, truth, problems.CONSTRAINTS[name])

  # A custom optimizer holds its rate as a constant; the others take it as data and compile once.
  return jax.jit(labels, static_argnums=0) if kind == "conv" else jax.jit(labels)


def synthesize(kind, name, rate, problem, dtype):
  cast = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), problem)
  return np.asarray(compiled(kind, name)(rate, *cast), np.float64)


def rate_of(kind, seed):
  return 0.3 if kind == "conv" else float(10 ** np.random.default_rng(seed).uniform(-2, 0))


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", list(problems.KINDS))
def test_the_quadratic_is_the_distance_after_the_step(x64, kind, batch):
  """G itself, by taking steps with random labels; for linear learners by both roads."""
  for seed in range(3):
    rate = rate_of(kind, seed)
    problem = problems.random_problem(kind, batch, seed)
    start, columns = problems.step_map(kind, rate, problem)
    goal = problems.flatten(problem.target)
    others = 3 * np.random.default_rng(seed).normal(size=(4, *problem.truth.shape))
    expected = np.sum((start - goal + others.reshape(4, -1) @ columns.T) ** 2, 1)
    base = np.sum((start - goal + columns @ problem.truth.ravel()) ** 2)
    for road in (False, True):
      change = jax.vmap(quadratics(kind, road)(rate, problem)[0].change)(others)
      np.testing.assert_allclose(change, expected - base, rtol=1e-8, atol=1e-10 * expected.max())


@functools.cache
def quadratics(kind, by_autodiff):
  """Return the quadratic around the ground truth, and the outputs, compiled once per kind, shape and dtype."""
  make = problems.KINDS[kind][0]

  def build(rate, problem):
    learner = make(rate)
    student = learner.start(problem.params)
    outputs = learner.apply(problem.params, problem.x)
    gradients = jax.vmap(learner.loss.output_gradient)(outputs, problem.truth)
    slopes = jax.vmap(learner.loss.label_slope)(outputs, problem.truth)
    if learner.is_linear and not by_autodiff:
      known = linear.geometry(learner, problem.target, problem.x)
      return linear.quadratic_of_batch(
        learner, student, problem.x, outputs, gradients, slopes, problem.truth, known
      ), outputs
    step = targets.Step(learner, student, problem.x, outputs, gradients, slopes, problem.truth)
    return targets.expand(targets.params(problem.target), step), outputs

  return jax.jit(build, static_argnums=0) if kind == "conv" else jax.jit(build)


@functools.cache
def solver(loss, name):
  """Return the minimiser over a set, compiled once per shape and dtype, for the quadratics of all learners."""
  return jax.jit(functools.partial(argmin.best_labels, loss, problems.CONSTRAINTS[name]))


def check_optimum(kind, name, batch, seed, dtype, tolerance):
  """Our labels are in the set, and no better ones are known to a general convex solver."""
  rate = rate_of(kind, seed)
  learner, problem = problems.KINDS[kind][0](rate), problems.random_problem(kind, batch, seed)
  start, columns = problems.step_map(kind, rate, problem)
  goal, center = problems.flatten(problem.target), problems.prediction(learner, problem)
  cast = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), problem)
  quadratic, outputs = quadratics(kind, False)(rate, cast)
  labels, _ = solver(learner.loss, name)(quadratic, outputs, cast.truth)
  labels = np.asarray(labels, np.float64)
  check_feasible(name, labels, problem.truth, center, 1e-9 if dtype == jnp.float64 else 1e-5)

  def distance(labels):
    return float(np.sum((start + columns @ labels.ravel() - goal) ** 2))

  best, reached = problems.solve(name, start, columns, goal, problem.truth, center), distance(labels)
  # Where the optimum is zero, relative to the distance that the ground truth leads to.
  slack = tolerance * best + 1e-2 * tolerance * distance(problem.truth)
  assert reached <= best + slack
  assert dtype != jnp.float64 or reached >= best - slack


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.slow
def test_labels_reach_the_optimum_of_a_convex_solver(x64, name, batch):
  @hypothesis.settings(max_examples=6)
  @hypothesis.given(st.sampled_from(list(problems.KINDS)), SEEDS)
  def check(kind, seed):
    check_optimum(kind, name, batch, seed, jnp.float64, 1e-5)

  for kind in problems.KINDS:  # Each at least once.
    check_optimum(kind, name, batch, 7, jnp.float64, 1e-5)
  check()


@pytest.mark.slow
@pytest.mark.parametrize("name", CONVEX)
def test_labels_in_float32_are_hardly_worse(x64, name):
  for kind, seed in itertools.product(["logistic", "softmax_5", "mlp", "tanh"], range(4)):  # K = 1, 5 and 10.
    check_optimum(kind, name, 3, seed, jnp.float32, 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", list(problems.KINDS))
def test_synthesis_from_end_to_end(x64, kind, batch):
  """`synthesize_labels` itself, closed forms included, on sets of every sort."""
  for name, seed in itertools.product(["simplex_2", "none"], range(2)):
    rate = rate_of(kind, seed)
    learner, problem = problems.KINDS[kind][0](rate), problems.random_problem(kind, batch, seed)
    start, columns = problems.step_map(kind, rate, problem)
    goal, center = problems.flatten(problem.target), problems.prediction(learner, problem)
    dtype, tolerance = (jnp.float64, 1e-5) if name == "none" else (jnp.float32, 1e-3)
    labels = synthesize(kind, name, rate, problem, dtype)
    check_feasible(name, labels, problem.truth, center, 1e-5)
    reached = np.sum((start + columns @ labels.ravel() - goal) ** 2)
    best = problems.solve(name, start, columns, goal, problem.truth, center)
    truth = np.sum((start + columns @ problem.truth.ravel() - goal) ** 2)
    assert reached <= best * (1 + tolerance) + 1e-2 * tolerance * truth


@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.parametrize("kind", ["least_squares", "least_squares_3", "logistic", "softmax_2", "softmax_5"])
def test_closed_forms_reach_the_optimum(x64, kind, name):
  """One example and a linear learner: where the label is a projection, `synthesize_labels` takes that road."""
  learner = problems.KINDS[kind][0](0.1)
  if not linear.is_projection(learner, problems.CONSTRAINTS[name]):
    assert kind.startswith("softmax")  # A ball of labels that need not sum to one: not a projection for softmax.
    return
  for seed in range(5):
    rate, problem = rate_of(kind, seed), problems.random_problem(kind, 1, seed)
    start, columns = problems.step_map(kind, rate, problem)
    goal, center = problems.flatten(problem.target), problems.prediction(learner, problem)
    best = problems.solve(name, start, columns, goal, problem.truth, center)
    labels = synthesize(kind, name, rate, problem, jnp.float64)
    check_feasible(name, labels, problem.truth, center, 1e-9)
    reached = np.sum((start + columns @ labels.ravel() - goal) ** 2)
    truth = np.sum((start + columns @ problem.truth.ravel() - goal) ** 2)
    assert abs(reached - best) <= 1e-5 * best + 1e-8 * truth


def check_feasible(name, labels, truth, center, tolerance):
  if name.startswith("simplex"):
    assert labels.min() >= -tolerance
    assert labels.max() <= 1 + tolerance
    assert labels.shape[1] == 1 or np.abs(labels.sum(1) - 1).max() <= tolerance
  radius, p = {
    "simplex_1": (0.7, 1),
    "simplex_2": (0.6, 2),
    "simplex_inf": (0.3, np.inf),
    "ball_1": (0.8, 1),
    "ball_2": (0.6, 2),
    "ball_inf": (0.4, np.inf),
  }.get(name, (None, None))
  if radius is not None:
    middle = center if name == "ball_2" else truth
    assert np.linalg.norm(labels - middle, ord=p, axis=1).max() <= radius + tolerance


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kind", list(problems.KINDS))
def test_one_hot_labels_are_the_best_of_all(x64, kind, batch):
  @hypothesis.settings(max_examples=4)
  @hypothesis.given(SEEDS)
  def check(seed):
    rate = rate_of(kind, seed)
    learner, problem = problems.KINDS[kind][0](rate), problems.random_problem(kind, batch, seed)
    start, columns = problems.step_map(kind, rate, problem)
    goal = problems.flatten(problem.target)
    corners = learner.loss.class_labels(problem.truth.shape[1])
    every = np.array(list(itertools.product(corners, repeat=batch)))
    distances = np.sum((start - goal + every.reshape(len(every), -1) @ columns.T) ** 2, 1)
    for dtype in (jnp.float64, jnp.float32) if kind in ("logistic", "mlp") else (jnp.float64,):
      labels = synthesize(kind, "one_hot", rate, problem, dtype)
      assert (labels[:, None] == corners).all(-1).any(1).all()
      reached = np.sum((start - goal + columns @ labels.ravel()) ** 2)
      assert reached <= distances.min() * (1 + (1e-9 if dtype == jnp.float64 else 1e-3))

  check()


@pytest.mark.slow
def test_large_one_hot_batches_descend_and_say_so(x64):
  constraint = last.constraints.one_hot(max_combinations=100)
  learner = last.learners.softmax(4, 3, learning_rate=2.0)
  assert not constraint.is_exact(6, 3)
  for seed in range(20):
    draw = np.random.default_rng(seed)
    params, target = ({"weights": draw.normal(size=(4, 3)), "bias": draw.normal(size=3)} for _ in range(2))
    x, truth = draw.normal(size=(6, 4)), np.eye(3)[draw.integers(3, size=6)]
    problem = problems.Problem(params, target, x, truth)
    labels, certificate = last.synthesize_labels(
      learner, params, target, x, truth, constraint, with_certificate=True
    )  # fmt: skip
    assert (certificate.exact, certificate.road) == (False, "coordinate descent")
    labels = np.asarray(labels)
    reached = problems.distance_after(learner, problem, labels)
    assert reached <= problems.distance_after(learner, problem, truth) + 1e-12
    for i, corner in itertools.product(range(6), np.eye(3)):  # No single label can be changed for the better.
      changed = labels.copy()
      changed[i] = corner
      assert reached <= problems.distance_after(learner, problem, changed) + 1e-12
