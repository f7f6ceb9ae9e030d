"""Labels that lower a validation loss: the quadratic against dense matrices, labels against a general convex solver."""

import functools

import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import last_jax as last
from last_jax import losses, synthesis, targets
from tests import problems

KEY = jax.random.key(0)
KINDS = {
  "softmax": lambda **s: last.learners.softmax(4, 3, learning_rate=0.3, weight_decay=1e-2, **s),
  "logistic": lambda **s: last.learners.logistic(4, learning_rate=0.3, **s),
  "least_squares": lambda **s: last.learners.least_squares(4, 2, learning_rate=0.3, **s),
  "margin": lambda **s: last.learners.logistic(4, learning_rate=0.3, form="margin", **s),
  "mlp": lambda **s: last.learners.mlp((4, 5, 3), learning_rate=0.3, activation="tanh", weight_decay=1e-2, **s),
}
MOMENTA = {"plain": {}, "heavy ball": {"momentum": 0.7}, "nesterov": {"momentum": 0.7, "nesterov": True}}


def draw(kind, batch=3, number=11, seed=0, dtype=np.float64, **settings):
  """A learner, a student with velocity, a batch with its truth, and validation examples."""
  random = np.random.default_rng(seed)
  learner = KINDS[kind](**settings)
  params, velocity = (
    jax.tree.map(lambda leaf: jnp.asarray(0.5 * random.normal(size=leaf.shape), dtype), learner.shapes())
    for _ in range(2)
  )
  x, x_val = (random.normal(size=(size, 4)).astype(dtype) for size in (batch, number))
  width = learner.num_outputs(jnp.asarray(x))
  classes = 2 if width == 1 else width
  ids, ids_val = random.integers(classes, size=batch), np.arange(number) % classes
  student = learner.start(params)
  if "momentum" in settings:
    student = learner.update(student, velocity)
  return learner, student, jnp.asarray(x), learner.encode(jnp.asarray(x), jnp.asarray(ids)), last.Pool(x_val, ids_val)


def dense_model(learner, student, target, x):
  """The model of G as a function of labels, written out with dense Jacobians and Hessians."""
  pool, coasting, damping = target.validation, target.coasting, target.damping
  labels_val = learner.encode(pool.x, pool.y)
  flat, unravel = ravel_pytree(student.params)

  def outputs(flat):
    return learner.apply(unravel(flat), pool.x)

  jacobian = jax.jacrev(outputs)(flat)  # [v, K, P]
  zero = jax.tree.map(jnp.zeros_like, student.params)

  def reached(student):
    return ravel_pytree(learner.position(student, coasting))[0]

  drift = reached(learner.update(student, zero))
  before = outputs(flat) + jacobian @ (drift - flat)
  gradients = jax.vmap(jax.grad(learner.loss))(before, labels_val)
  hessians = jax.vmap(jax.hessian(learner.loss))(before, labels_val)
  anchor = outputs(reached(student))

  def model(labels):
    moved = jacobian @ (reached(learner.step(student, x, labels)) - drift)
    change = jnp.sum(gradients * moved) + 0.5 * jnp.einsum("vk,vkl,vl->", moved, hessians, moved)
    return (change + 0.5 * damping * jnp.sum((before + moved - anchor) ** 2)) / len(pool)

  return model


def now(target, learner, student, key=None):
  return target.now(learner, student, None, jnp.zeros((), int), key)


def expand(learner, student, target, x, truth):
  outputs = learner.apply(student.params, x)
  gradients = jax.vmap(learner.loss.output_gradient)(outputs, truth)
  slopes = jax.vmap(learner.loss.label_slope)(outputs, truth)
  return targets.expand(target, targets.Step(learner, student, x, outputs, gradients, slopes, truth))


CASES = [
  *(("softmax", momentum) for momentum in MOMENTA), ("logistic", "plain"), ("least_squares", "heavy ball"),
  ("mlp", "nesterov"), ("mlp", "plain"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "momentum"), CASES)
def test_the_quadratic_is_that_of_dense_matrices(x64, kind, momentum):
  learner, student, x, truth, pool = draw(kind, **MOMENTA[momentum])

  @functools.partial(jax.jit, static_argnums=1)
  def changes(others, coasting):
    target = now(targets.loss(pool, damping=0.3, coasting=coasting), learner, student)
    found, model = expand(learner, student, target, x, truth), dense_model(learner, student, target, x)
    return jax.vmap(found.change)(others), jax.vmap(model)(others) - model(truth)

  others = truth[None] + np.random.default_rng(1).normal(size=(4, *truth.shape))
  for coasting in (True, False) if momentum != "plain" else (True,):
    found, expected = changes(others, coasting)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", ["softmax", "margin"])
@pytest.mark.slow
def test_the_model_of_a_linear_learner_is_a_taylor_series(x64, kind):
  """What the model misses of the loss itself shrinks with the third power of the step."""
  misses = []
  for rate in (1e-2, 1e-3):
    learner, student, x, truth, pool = draw(kind, momentum=None)
    learner = last.learners.from_apply(learner.init, learner.apply, learner.loss, learning_rate=rate)
    student = learner.start(student.params)
    target = now(targets.loss(pool, damping=0.1), learner, student)
    labels = truth + 1.0
    change = expand(learner, student, target, x, truth).change(labels) if kind == "softmax" else None
    truly = [targets.value(target, learner, learner.step(student, x, y)) for y in (labels, truth)]
    if change is None:  # Steps are not affine in these labels.
      model = dense_model(learner, student, target, x)
      change = model(labels) - model(truth)
    misses.append(abs(float(change - (truly[0] - truly[1]))))
  assert 0 < misses[1] < 2e-3 * misses[0]


@pytest.mark.slow
def test_squared_error_has_no_other_model(x64):
  learner, student, x, truth, pool = draw("least_squares")
  target = now(targets.loss(pool), learner, student)
  change = expand(learner, student, target, x, truth).change(truth + 1.0)
  after = [targets.value(target, learner, learner.step(student, x, y)) for y in (truth + 1.0, truth)]
  np.testing.assert_allclose(change, after[0] - after[1], rtol=1e-10)
  value = targets.value(targets.loss(pool, damping=0.0).now(learner, student, None, 0, None), learner, student)
  np.testing.assert_allclose(value, learner.mean_loss(student.params, pool.x, learner.encode(pool.x, pool.y)))


WIDE, NARROW = (np.float64, 1e-7), (np.float32, 2e-4)
SOLVED = [
  *(("mlp", {}, name, *WIDE) for name in ("none", "simplex", "simplex_2", "ball_2", "ball_inf")),
  ("logistic", {}, "simplex_2", *WIDE), ("softmax", {"momentum": 0.7}, "simplex_2", *WIDE),
  *(("mlp", {}, name, *NARROW) for name in ("none", "simplex_2")),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "settings", "name", "dtype", "tolerance"), SOLVED)
@pytest.mark.slow
def test_labels_are_those_of_a_convex_solver(x64, kind, settings, name, dtype, tolerance):
  learner, student, x, truth, pool = draw(kind, dtype=dtype, **settings)
  target = targets.loss(pool, damping=0.05)
  exact = draw(kind, **settings)
  with jax.enable_x64(dtype == np.float64):
    labels = last.synthesize_labels(
      learner, student.params, target, x, truth, problems.CONSTRAINTS[name], opt_state=student.opt_state
    )
  assert labels.dtype == dtype
  learner, student, x, truth, pool = exact
  target = now(targets.loss(pool, damping=0.05), learner, student)
  model = jax.jit(dense_model(learner, student, target, x))
  slope, matrix = jax.grad(model)(truth).ravel(), jax.hessian(model)(truth).reshape(truth.size, truth.size)
  values, vectors = np.linalg.eigh(matrix)
  root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
  wanted = cvxpy.Variable(truth.shape)
  step = cvxpy.reshape(wanted, (truth.size,), order="C") - np.asarray(truth).ravel()
  center = np.asarray(jax.vmap(learner.loss.predict)(learner.apply(student.params, x)))
  rules = problems.feasible_set(name, wanted, np.asarray(truth), center)
  size = float(np.abs(slope).max())
  goal = cvxpy.Problem(cvxpy.Minimize((0.5 * cvxpy.sum_squares(root @ step) + np.asarray(slope) @ step) / size), rules)
  problems.solve_closely(goal)
  gained, possible = float(model(jnp.asarray(labels, float)) - model(truth)), float(goal.value) * size
  assert possible < 0
  assert abs(gained - possible) <= tolerance * abs(possible)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["softmax", "mlp"])
def test_one_hot_labels_are_the_best_of_all(x64, kind):
  learner, student, x, truth, pool = draw(kind, batch=2)
  target = targets.loss(pool, damping=0.05)
  labels = last.synthesize_labels(learner, student.params, target, x, truth, last.constraints.one_hot())
  model = jax.jit(jax.vmap(dense_model(learner, student, now(target, learner, student), x)))
  every = jnp.eye(3)[jnp.stack(jnp.meshgrid(jnp.arange(3), jnp.arange(3), indexing="ij"), -1).reshape(-1, 2)]
  values = model(every)
  assert values.max() - values.min() > 1e-3
  np.testing.assert_allclose(labels, every[jnp.argmin(values)])


@pytest.mark.slow
def test_a_step_that_is_not_affine_is_searched_with_the_loss_itself(x64):
  """Adam: G of the best label is the least of a dense search."""
  learner = last.learners.logistic(4, optimizer=optax.adam(0.1))
  _, _, x, truth, pool = draw("logistic", batch=1)
  student = learner.step(learner.start(draw("logistic")[1].params), x, truth)
  target = now(targets.loss(pool, damping=0.0), learner, student)

  @jax.jit
  def after(label):
    params = learner.step(student, x, label).params
    return learner.mean_loss(params, pool.x, learner.encode(pool.x, pool.y))

  labels, _ = synthesis.greedy_labels(learner, student, target, x, truth, last.constraints.simplex())
  grid = jax.vmap(after)(jnp.linspace(0, 1, 201).reshape(-1, 1, 1))
  assert float(grid.max() - grid.min()) > 1e-3
  assert float(after(labels)) <= float(grid.min()) + 1e-9


@pytest.mark.slow
def test_minibatches_are_drawn_with_the_steps_own_key():
  learner, student, *_, pool = draw("softmax", number=50, dtype=np.float32)
  target = targets.loss(pool, batch_size=8)
  one, again, other = (now(target, learner, student, jax.random.key(seed)) for seed in (1, 1, 2))
  assert one.x.shape == (8, 4)
  assert one.anchor.shape == (8, 3)
  np.testing.assert_array_equal(one.x, again.x)
  assert np.any(np.asarray(one.x) != np.asarray(other.x))
  for x, y in zip(one.validation.x, one.validation.y, strict=True):  # Labels stay with their examples.
    assert y in np.asarray(pool.y)[np.all(np.asarray(pool.x) == np.asarray(x), 1)]
  assert now(target, learner, student).x.shape == (50, 4)
  teacher = last.teachers.greedy(last.constraints.simplex(), target)
  problem = last.Problem(learner, pool)
  state = last.init(KEY, problem, teacher)
  view = problems.view_of(problem, state.student, teacher, key=jax.random.key(1))
  lesson, _, _ = teacher.step(None, view, jnp.arange(3))
  drawn = now(target, learner, state.student, jax.random.key(1))
  x, truth = pool.x[:3], problem.truth[:3]
  expected, _ = synthesis.greedy_labels(learner, state.student, drawn, x, truth, last.constraints.simplex())
  np.testing.assert_allclose(lesson.label, expected, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["softmax", "mlp"])
def test_joint_mixed_shows_the_example_that_lowers_the_loss_most(x64, kind):
  learner, student, *_, pool = draw(kind, number=20)
  toward, constraint = targets.loss(pool), last.constraints.simplex()
  problem, target = last.Problem(learner, pool), now(toward, learner, student)
  teacher = last.teachers.mixed(constraint, joint=True, toward=toward)
  assert not teacher.needs_target
  lesson, _ = problems.answer_of(teacher, problem, student, jnp.zeros(1, int))

  @jax.jit
  def after(x, truth):
    labels, _ = synthesis.greedy_labels(learner, student, target, x[None], truth[None], constraint)
    return targets.value(target, learner, learner.step(student, x[None], labels))

  values = [float(after(x, truth)) for x, truth in zip(pool.x, problem.truth, strict=True)]
  assert lesson.index[0] == np.argmin(values)


@pytest.mark.slow
def test_the_planner_finds_the_least_loss_after_two_steps(x64):
  """Least squares: the end is affine in all labels, and the least loss that they can reach is a least squares fit."""
  learner, student, *_, pool = draw("least_squares", number=20)
  x, truth = pool.x, learner.encode(pool.x, pool.y)

  def loss(params):
    return float(learner.mean_loss(params, x, truth))

  def taught(teacher):
    settings = {"init": student.params, "steps": 2, "batch_size": 2, "lessons": True}
    return last.teach(KEY, learner, teacher, pool, **settings)

  toward = targets.loss(pool, damping=0.0)
  planned = taught(last.teachers.planner(2, last.constraints.none(), toward))
  index = planned.lessons.index

  @jax.jit
  def end(labels):
    after = student
    for place in range(2):
      after = learner.step(after, x[index[place]], labels[place])
    return learner.apply(after.params, x)

  zero = jnp.zeros(planned.lessons.label.shape)
  base = end(zero)
  basis = jnp.eye(zero.size).reshape(-1, *zero.shape)
  columns = jax.vmap(lambda labels: end(labels) - base)(basis).reshape(zero.size, -1).T
  best, *_ = np.linalg.lstsq(np.asarray(columns), np.asarray(truth - base).ravel(), rcond=None)
  least = 0.5 * np.mean(np.sum((base + (columns @ best).reshape(base.shape) - truth) ** 2, 1))
  np.testing.assert_allclose(loss(planned.params), least, rtol=1e-9)
  assert least < loss(taught(last.teachers.greedy(last.constraints.none(), toward)).params)


@pytest.mark.parametrize(("kind", "momentum"), [("softmax", "plain"), ("mlp", "plain"), ("logistic", "heavy ball")])
@pytest.mark.slow
def test_the_newton_point_is_that_of_a_dense_solve(x64, kind, momentum):
  learner, student, *_, pool = draw(kind, number=30, **MOMENTA[momentum])
  found = now(targets.loss(pool, damping=0.2, form="newton_point"), learner, student)
  flat, unravel = ravel_pytree(learner.position(student))
  labels = learner.encode(pool.x, pool.y)

  def outputs(flat):
    return learner.apply(unravel(flat), pool.x)

  jacobian, z = jax.jacrev(outputs)(flat), outputs(flat)
  curvature = jax.vmap(jax.hessian(learner.loss))(z, labels) + 0.2 * jnp.eye(z.shape[1])[None]
  matrix = jnp.einsum("vkp,vkl,vlq->pq", jacobian, curvature, jacobian) / len(pool)
  slope = jax.grad(lambda flat: learner.mean_loss(unravel(flat), pool.x, labels))(flat)
  way = flat - ravel_pytree(found.params)[0]
  np.testing.assert_allclose(matrix @ way, slope, atol=1e-6 * float(jnp.linalg.norm(slope)))
  if kind == "softmax":  # A linear learner: without damping, the point of Newton's own method.
    hessian = jax.hessian(lambda flat: learner.mean_loss(unravel(flat), pool.x, labels))(flat)
    free = now(targets.loss(pool, damping=0.0, form="newton_point"), learner, student)
    expected = flat - np.linalg.pinv(hessian) @ slope
    np.testing.assert_allclose(ravel_pytree(free.params)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["gauss_newton", "newton_point"])
@pytest.mark.slow
def test_the_loss_falls_below_that_of_sgd_and_nothing_depends_on_the_target(form):
  """On the pool itself, whose labels are right: in 30 steps far below SGD, with or without a target in the problem."""
  learner, student, *_, pool = draw("mlp", number=60, dtype=np.float32)
  teacher = last.teachers.greedy(last.constraints.simplex(), targets.loss(pool, form=form))
  assert not teacher.needs_target
  settings = {"init": student.params, "steps": 30, "batch_size": 4, "record_every": 10}
  taught, sgd = (last.teach(KEY, learner, each, pool, **settings) for each in (teacher, last.teachers.sgd()))
  assert taught.objective[-1] < sgd.objective[-1] - 0.005
  known = last.teach(KEY, learner, teacher, pool, target=learner.init(KEY), **settings)
  np.testing.assert_array_equal(known.objective, taught.objective)


@pytest.mark.slow
def test_without_curvature_the_model_leads_away():
  """Labels within 2 of the truth that minimise the loss's linear model, written by hand, end above the start."""
  learner, student, *_, pool = draw("softmax", number=60, dtype=np.float32)
  learner = last.learners.softmax(4, 3, learning_rate=3.0)
  truth = learner.encode(pool.x, pool.y)

  def loss(params):
    return learner.mean_loss(params, pool.x, truth)

  def step(params, index):
    slope = jax.grad(loss)(params)
    start, x = learner.start(params), pool.x[index]

    def model(labels):
      after = learner.step(start, x, labels).params
      return sum(jnp.vdot(a, b) for a, b in zip(jax.tree.leaves(slope), jax.tree.leaves(after), strict=True))

    down = jax.grad(model)(truth[index])
    labels = truth[index] - 2.0 * down / jnp.linalg.norm(down, axis=1, keepdims=True)
    return learner.step(start, x, labels).params, None

  index = jax.random.randint(KEY, (30, 4), 0, 60)
  linear = jax.jit(lambda params: jax.lax.scan(step, params, index)[0])(student.params)
  teacher = last.teachers.greedy(last.constraints.magnitude(2.0), targets.loss(pool))
  curved = last.teach(KEY, learner, teacher, pool, init=student.params, steps=30, batch_size=4).params
  before = loss(student.params)
  assert loss(curved) < before - 0.1
  assert loss(linear) > before + 0.1


@pytest.mark.slow
def test_losses_along_a_run_are_mean_losses():
  learner, student, *_, pool = draw("softmax", number=40, dtype=np.float32)
  held_out = last.Pool(-pool.x, pool.y)
  probe = targets.validation_losses(learner, validation=pool, held_out=held_out)
  teacher = last.teachers.greedy(last.constraints.none(), targets.loss(pool, damping=0.0))
  result = last.teach(KEY, learner, teacher, pool, init=student.params, steps=20, batch_size=4, probe=probe)
  for name, each in (("validation", pool), ("held_out", held_out)):
    expected = learner.mean_loss(result.params, each.x, learner.encode(each.x, each.y))
    np.testing.assert_allclose(result.probe[name][-1], expected, rtol=1e-5)
  assert result.probe["validation"][-1] < result.probe["validation"][0]
  assert result.probe["held_out"][-1] > result.probe["validation"][-1] + 0.1
  with pytest.raises(TypeError, match="at least one pool"):
    targets.validation_losses(learner)


def robust(outputs, label):
  return jnp.sum(jnp.logaddexp(outputs - label, label - outputs)) + 0.1 * jnp.sum(outputs) ** 2


LOSSES = [
  *(losses.as_loss(name) for name in ("squared_error", "sigmoid_cross_entropy", "softmax_cross_entropy")),
  losses.as_loss(robust), losses.margin_logistic,
]  # fmt: skip


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.name)
def test_roots_of_curvature(x64, loss):
  random = np.random.default_rng(0)
  width = 1 if loss is losses.margin_logistic else 4
  for _ in range(3):
    outputs, label = jnp.asarray(3 * random.normal(size=width)), jnp.asarray(random.uniform(size=width))
    root = loss.curvature_root(outputs, label)
    np.testing.assert_allclose(root.T @ root, jax.hessian(loss.value)(outputs, label), atol=1e-12)


def test_the_root_of_softmax_keeps_its_digits_where_outputs_are_far_apart(x64):
  """In float32 p (1 - p) would be a difference of numbers that agree in all digits but one."""
  z, label, direction = np.array([14.0, 0.0, -1.0]), np.array([0.0, 1.0, 0.0]), np.array([1.0, -1.0, 0.5])
  exact = direction @ jax.hessian(losses.softmax_cross_entropy.value)(jnp.asarray(z), jnp.asarray(label)) @ direction
  narrow = [jnp.asarray(value, jnp.float32) for value in (z, label, direction)]
  found = jnp.sum((losses.softmax_cross_entropy.curvature_root(*narrow[:2]) @ narrow[2]) ** 2)
  np.testing.assert_allclose(found, exact, rtol=1e-4)


_POOL = last.Pool(np.eye(4, dtype=np.float32), np.arange(4) % 3)


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: targets.loss(np.eye(4)), "validation must be a last_jax.Pool"),
    (lambda: targets.loss(_POOL, batch_size=0), "batch_size must be a whole number"),
    (lambda: targets.loss(_POOL, damping=-1.0), "damping must be zero or a positive number"),
    (lambda: targets.loss(_POOL, form="newton"), "form='newton' is not known"),
    (lambda: targets.loss(last.Pool(np.ones((4, 5)), np.arange(4) % 3)), r"validation\.x must have shape \[n, 4\]"),
    (lambda: targets.loss(last.Pool(np.eye(4), np.arange(4))), "validation.y holds class ids from 0 to 3"),
  ],
)
def test_bad_settings_are_refused(make, message):
  learner = last.learners.softmax(4, 3, learning_rate=0.1)
  with pytest.raises((ValueError, TypeError), match=message):
    last.teach(KEY, learner, last.teachers.greedy(last.constraints.simplex(), make()), _POOL, steps=1)


def test_a_learner_too_large_for_a_newton_point_is_refused():
  learner = last.learners.mlp((4, 400, 3), learning_rate=0.1)
  teacher = last.teachers.greedy(last.constraints.simplex(), targets.loss(_POOL, form="newton_point"))
  with pytest.raises(ValueError, match="may be 2000, but the learner has 3203: use form='gauss_newton'"):
    last.teach(KEY, learner, teacher, _POOL, steps=1)


def test_the_target_of_a_run_is_not_that_of_a_step():
  learner, student, *_ = draw("softmax", dtype=np.float32)
  for form in ("gauss_newton", "newton_point"):
    with pytest.raises(TypeError, match="is a target per step"):
      targets.value(targets.loss(_POOL, form=form), learner, student)
