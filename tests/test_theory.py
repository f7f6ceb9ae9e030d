"""The theory: closed forms, constants that hold wherever one looks, and bounds that no measured mean exceeds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import theory
from tests import problems

KEY = jax.random.key(0)
STUDENTS = 64


def make_task(kind, features=2, bias=False, rate=0.1, size=60, weight_decay=0.0):
  """An interpolating problem: a learner, a pool that the target labels, and the target."""
  make = {"least_squares": last.learners.least_squares, "logistic": last.learners.logistic}[kind]
  learner = make(features, learning_rate=rate, bias=bias, weight_decay=weight_decay)
  draw = np.random.default_rng(0)
  x = draw.normal(size=(size, features))
  x = jnp.asarray(x / np.linalg.norm(x, axis=1, keepdims=True) * draw.uniform(0.7, 1.2, size=(size, 1)))
  target = jax.tree.map(lambda leaf: 0.4 * jnp.ones(leaf.shape), jax.eval_shape(learner.init, KEY))
  return learner, theory.interpolating_pool(learner, target, x), target


def teach_from(distance, learner, teacher, pool, target, **settings):
  """Students who start in random directions at this distance from the target: all distances, [students, steps + 1]."""
  flat, unravel = jax.flatten_util.ravel_pytree(target)
  ways = jax.random.normal(jax.random.key(5), (STUDENTS, flat.size))
  starts = flat[None] + distance * ways / jnp.linalg.norm(ways, axis=1, keepdims=True)
  keys = jax.random.split(KEY, STUDENTS)
  result = last.teach_many(
    keys, learner, teacher, pool, target=target, init=jax.vmap(unravel)(starts), metrics=("distance",), **settings
  )
  return np.asarray(result.distance)


@pytest.mark.parametrize("kind", ["least_squares", "logistic"])
def test_what_the_target_predicts_interpolates(x64, kind):
  learner, pool, target = make_task(kind, bias=True)
  gradients = jax.vmap(lambda x, y: jax.grad(learner.mean_loss)(target, x[None], y[None]))(pool.x, pool.y)
  assert max(np.max(np.abs(leaf)) for leaf in jax.tree.leaves(gradients)) < 1e-15


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["least_squares", "logistic"])
@pytest.mark.parametrize("bias", [False, True])
def test_constants_hold_at_random_parameters(x64, kind, bias):
  """Each by the inequality that it stands for, with derivatives by autodiff, all over the ball."""
  learner, pool, target = make_task(kind, bias=bias)
  radius, inner = 0.9, 0.4
  found = theory.constants(learner, pool, target, radius=radius, inner_radius=inner)
  center, unravel = jax.flatten_util.ravel_pytree(target)

  def single(flat, x, y):
    return learner.mean_loss(unravel(flat), x[None], y[None])

  def mean(flat):
    return learner.mean_loss(unravel(flat), pool.x, pool.y)

  @jax.jit
  def look(way, length):
    flat = center + length * way / jnp.linalg.norm(way)
    each = (None, 0, 0)
    gradients = jax.vmap(jax.grad(single), each)(flat, pool.x, pool.y)
    curvatures = jnp.linalg.eigvalsh(jax.vmap(jax.hessian(single), each)(flat, pool.x, pool.y))
    convex = jnp.vdot(jax.grad(mean)(flat), flat - center) - (mean(flat) - mean(center))
    return jnp.linalg.norm(gradients, axis=1), curvatures, jax.hessian(mean)(flat), convex

  draw = np.random.default_rng(1)
  lengths = np.concatenate([np.full(20, radius), draw.uniform(inner, radius, 40)])
  seen = [look(jnp.asarray(draw.normal(size=center.size)), length) for length in lengths]
  slack = 1e-12
  for length, (norms, curvatures, hessian, convex) in zip(lengths, seen, strict=True):
    assert np.max(norms) <= found.lipschitz + slack
    assert np.all(curvatures[:, -1] <= found.smoothness + slack)
    assert np.all(curvatures[:, 0] >= found.convexity - slack)
    assert np.linalg.eigvalsh(hessian)[0] >= found.hessian_low - slack
    assert convex >= found.order_1 / 2 * length - slack
    change = np.linalg.norm(hessian - seen[0][2], 2)
    assert change <= found.hessian_lipschitz * 2 * radius + slack
  assert np.max([np.max(norms) for norms, *_ in seen]) > 0.5 * found.lipschitz  # And not absurdly large.
  assert found.gap < 1e-14


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["least_squares", "logistic"])
def test_theorem_1_stays_below_its_bound(x64, kind):
  """For students who have not been inside of the inner radius before."""
  learner, pool, target = make_task(kind, rate=0.2)
  found = theory.constants(learner, pool, target, radius=1.0, inner_radius=0.5)
  c1 = float(found.order_1 / (2 * found.lipschitz**2 * 0.2))
  assert c1 * 0.2 * 1.0 <= 2 / np.max(found.smoothness)  # Nobody leaves the ball.
  bound = theory.bound_1(found, c1=c1, learning_rate=0.2, distance=1.0, steps=300)
  distances = teach_from(1.0, learner, last.teachers.theorem_1(c1), pool, target, steps=300)
  outside = np.cumprod(np.concatenate([np.ones((STUDENTS, 1)), distances[:, :-1] >= 0.5], 1), 1)
  measured = np.mean(distances**2 * outside, 0)
  assert np.max(distances) <= 1.0 + 1e-9
  assert np.all(measured <= bound * (1 + 1e-12))
  assert bound[-1] < 0.5 * bound[0]
  assert measured[30] > 0  # There was something to bound.


def test_theorem_1_is_best_where_its_docstring_says(x64):
  learner, pool, target = make_task("least_squares")
  found = theory.constants(learner, pool, target, radius=1.0, inner_radius=0.5)
  best = float(found.order_1 / (2 * found.lipschitz**2 * 0.1))
  factors = [float(theory.bound_1(found, c1=c, learning_rate=0.1, distance=1.0, steps=1)[1]) for c in
             (0.8 * best, best, 1.2 * best)]  # fmt: skip
  assert factors[1] == min(factors)
  assert factors[1] == pytest.approx(float(1 - found.order_1**2 / (4 * found.lipschitz**2)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["least_squares", "logistic"])
def test_theorem_2_stays_below_the_papers_bound_in_one_dimension(x64, kind):
  learner, pool, target = make_task(kind, features=1)
  found = theory.constants(learner, pool, target, radius=1.0)
  bound = theory.bound_2(found, largest_rate=0.1 * 1024, distance=1.0, steps=12)
  distances = teach_from(1.0, learner, last.teachers.theorem_2(), pool, target, steps=12)
  assert np.all(np.mean(distances**2, 0) <= bound * (1 + 1e-12) + 1e-28)
  assert bound[1] < 0.7


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["least_squares", "logistic"])
@pytest.mark.parametrize("settings", [{}, {"c2": 0.8, "shrink": 0.7}, {"largest": 4.0}])
def test_theorem_2_stays_below_the_refined_bound(x64, kind, settings):
  learner, pool, target = make_task(kind, features=3, bias=True)
  found = theory.constants(learner, pool, target, radius=1.0)
  largest = settings.get("largest", 1024.0)
  searched = {name: settings[name] for name in ("c2", "shrink") if name in settings}
  bound = theory.bound_2_refined(found, largest_rate=0.1 * largest, distance=1.0, steps=60, **searched)
  distances = teach_from(1.0, learner, last.teachers.theorem_2(**settings), pool, target, steps=60)
  assert np.all(np.diff(distances, axis=1) <= 1e-12)  # No step leads away.
  assert np.all(np.mean(distances**2, 0) <= bound * (1 + 1e-12))
  assert bound[-1] < 0.8 * bound[0]
  # The paper's own says nothing here: no single loss is strongly convex.
  np.testing.assert_array_equal(theory.bound_2(found, largest_rate=0.1 * largest, distance=1.0, steps=60), 1.0)


@pytest.mark.slow
def test_the_bound_that_the_paper_states_for_theorem_2_does_not_hold_for_backtracking(x64):
  """x = 1 or -1: the paper says that one step suffices, but the search stops at 0.6 of it."""
  learner, _, target = make_task("least_squares", features=1)
  pool = theory.interpolating_pool(learner, target, np.array([[1.0], [-1.0]]))
  found = theory.constants(learner, pool, target, radius=1.0)
  teacher = last.teachers.theorem_2(largest=12.0)  # Times the learning rate: 1.2, which is too long, and then 0.6.
  measured = np.mean(teach_from(1.0, learner, teacher, pool, target, steps=5) ** 2, 0)
  np.testing.assert_allclose(measured, 0.16 ** np.arange(6), rtol=1e-9)
  assert np.all(measured[1:] > theory.bound_2(found, largest_rate=1.2, distance=1.0, steps=5)[1:])
  assert np.all(measured <= theory.bound_2_refined(found, largest_rate=1.2, distance=1.0, steps=5))


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("kind", ["least_squares", "logistic"])
def test_theorem_3_stays_below_its_bound(x64, kind, alpha):
  """With hard labels and weight decay: interpolation is not needed, but a w* that minimises the objective is."""
  learner, pool, _ = make_task(kind, features=3, bias=True, weight_decay=0.01)
  y = pool.y[:, 0] > 0.5 if kind == "logistic" else pool.y[:, 0]
  pool = last.Pool(pool.x, y.astype(int) if kind == "logistic" else y + jnp.sin(9 * pool.x[:, 0]))
  target = last.fit_target(learner, pool, tolerance=1e-14)
  start = 0.05
  found = theory.constants(learner, pool, target, radius=start)
  bound = np.asarray(theory.bound_3(found, alpha=alpha, distance=start, steps=6))
  distances = teach_from(start, learner, last.teachers.theorem_3(alpha), pool, target, steps=6, batch_size=25)
  assert np.all(distances <= bound + 1e-12)
  assert bound[1] < 0.7 * bound[0]
  assert bound[6] < 1e-6
  if kind == "least_squares":
    np.testing.assert_array_equal(bound[1:], 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["least_squares", "logistic"])
def test_theorem_3_with_a_sampled_hessian_stays_below_its_bound_and_is_exponential(x64, kind):
  """The pace by autodiff: students that start along the worst direction come to it, neither faster nor slower."""
  learner, pool, _ = make_task(kind, features=3, bias=True, weight_decay=0.01)
  pool = last.Pool(pool.x, (pool.y[:, 0] > 0.5).astype(int) if kind == "logistic" else pool.y[:, 0])
  target, start, steps = last.fit_target(learner, pool, tolerance=1e-14), 0.05, 8
  found = theory.constants(learner, pool, target, radius=start)
  chosen = last.teachers.theorems.hessian_examples(30, 60)
  bound = np.asarray(theory.bound_3_sampled(found, chosen=chosen, distance=start, steps=steps))
  teacher = last.teachers.theorem_3(1.0, hessian_size=30)
  distances = teach_from(start, learner, teacher, pool, target, steps=steps, batch_size=25)
  assert np.all(distances <= bound + 1e-12)
  assert bound[-1] < 0.05 * bound[0]
  flat, unravel = jax.flatten_util.ravel_pytree(target)
  truth = learner.encode(pool.x, pool.y)

  def hessian(some):
    return jax.hessian(lambda flat: learner.objective(unravel(flat), pool.x[some], truth[some]))(flat)

  wrong = np.eye(flat.size) - np.linalg.solve(hessian(chosen), hessian(np.arange(60)))
  assert bound[-1] / bound[-2] == pytest.approx(np.linalg.norm(wrong, 2), rel=1e-2)
  slowest = np.max(np.abs(np.linalg.eigvals(wrong)))
  assert np.median(distances[:, -1] / distances[:, -2]) == pytest.approx(slowest, rel=0.1)
  # With all examples only the second term is left, which is that of theorem 3 or sharper: mu at w*, not in the ball.
  whole = theory.bound_3_sampled(found, chosen=np.arange(60), distance=start, steps=3)
  assert np.all(whole <= theory.bound_3(found, alpha=1.0, distance=start, steps=3) + 1e-15)


def test_the_unreachable_part_is_what_its_distance_measures(x64):
  learner = last.learners.softmax(4, 3, learning_rate=0.1)
  params, target = (learner.init(jax.random.key(seed)) for seed in (1, 2))
  x = jax.random.normal(KEY, (30, 4))
  part = last.unreachable_part(learner, params, target, x)
  gap = problems.flatten(params["weights"] - target["weights"]).reshape(4, 3)
  np.testing.assert_allclose(part["weights"], np.repeat(gap.mean(1, keepdims=True), 3, 1), atol=1e-12)
  distance = last.unreachable_distance(learner, params, target, x)
  np.testing.assert_allclose(distance, np.linalg.norm(problems.flatten(part)))


@pytest.mark.slow
def test_what_the_bounds_are_not_for_is_refused():
  learner, pool, target = make_task("logistic")
  found = theory.constants(learner, pool, target, radius=1.0, inner_radius=0.5)
  margin = last.learners.logistic(2, learning_rate=0.1, form="margin", bias=False)
  with pytest.raises(ValueError, match="learner has the loss margin_logistic"):
    theory.constants(margin, pool, target, radius=1.0)
  many = last.learners.softmax(2, 3, learning_rate=0.1)
  x = pool.x
  with pytest.raises(ValueError, match="learner must be linear and have one output"):
    theory.constants(many, last.Pool(x, np.arange(60) % 3), many.init(KEY), radius=1.0)
  with pytest.raises(ValueError, match="radius must be a positive number"):
    theory.constants(learner, pool, target, radius=0.0)
  with pytest.raises(ValueError, match="inner_radius must be zero or a positive number"):
    theory.constants(learner, pool, target, radius=1.0, inner_radius=-1.0)
  start = {"distance": 1.0, "steps": 5}
  with pytest.raises(ValueError, match="c1 must be a positive number"):
    theory.bound_1(found, c1=-1.0, learning_rate=0.1, **start)
  with pytest.raises(ValueError, match="largest_rate must be a positive number"):
    theory.bound_2(found, largest_rate=0.0, **start)
  with pytest.raises(ValueError, match=r"c2 must lie between 0.5 and 1"):
    theory.bound_2_refined(found, largest_rate=1.0, c2=0.3, **start)
  with pytest.raises(ValueError, match="alpha must lie between 0 and 1"):
    theory.bound_3(found, alpha=2.0, **start)
  with pytest.raises(ValueError, match="Hessian of these 1 examples is singular"):
    theory.bound_3_sampled(found, chosen=jnp.array([0]), **start)
  with pytest.raises(ValueError, match="distance must lie between 0 and 1"):
    theory.bound_3(found, alpha=0.0, distance=2.0, steps=5)
  with pytest.raises(ValueError, match="steps must be a whole number"):
    theory.bound_3(found, alpha=0.0, distance=1.0, steps=0)
  hard = last.Pool(x, (np.asarray(pool.y[:, 0]) > 0.5).astype(int))
  noisy = theory.constants(learner, hard, target, radius=1.0)
  for call in (
    lambda: theory.bound_1(noisy, c1=1.0, learning_rate=0.1, **start),
    lambda: theory.bound_2(noisy, largest_rate=1.0, **start),
  ):
    with pytest.raises(ValueError, match="w\\* does not minimise every single loss"):
      call()
