"""What labels steer toward: quadratics against the step itself, the point of rest against a student left alone."""

import functools
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import last_jax as last
from last_jax import linear, synthesis, targets

pytestmark = pytest.mark.sampled

KEY = jax.random.key(0)
MOMENTA = {"plain": {}, "heavy ball": {"momentum": 0.7}, "nesterov": {"momentum": 0.7, "nesterov": True}}


def draw(learner, shape, width, batch, seed=0):
  """A student with velocity, random goal parameters, examples and one-hot truth, in float64."""
  random = np.random.default_rng(seed)
  shapes = jax.eval_shape(learner.init, KEY)
  params, goal, velocity = (
    jax.tree.map(lambda leaf: jnp.asarray(0.5 * random.normal(size=leaf.shape)), shapes) for _ in range(3)
  )
  x = jnp.asarray(random.normal(size=(batch, *shape)))
  truth = jnp.asarray(np.eye(width)[random.integers(width, size=batch)])
  return learner.update(learner.start(params), velocity), goal, x, truth


def expand(learner, student, target, x, truth):
  outputs = learner.apply(student.params, x)
  gradients = jax.vmap(learner.loss.output_gradient)(outputs, truth)
  slopes = jax.vmap(learner.loss.label_slope)(outputs, truth)
  return targets.expand(target, targets.Step(learner, student, x, outputs, gradients, slopes, truth))


def make_mlp(**settings):
  return last.learners.mlp((4, 6, 3), learning_rate=0.3, activation="tanh", weight_decay=1e-2, **settings)


@pytest.mark.parametrize("settings", MOMENTA.values(), ids=MOMENTA)
def test_the_point_of_rest_is_where_a_student_ends_that_is_left_alone(x64, settings):
  """Without weight decay, which would go on: gradients of zero for 120 steps."""
  update = jax.jit(lambda learner, student, gradient: learner.update(student, gradient))
  schedule = optax.linear_schedule(0.3, 0.1, 3)
  for rate in (0.3, schedule):
    learner = last.learners.softmax(4, 3, learning_rate=rate, **settings)
    student, _, x, truth = draw(learner, (4,), 3, 2)
    for _ in range(4):  # The schedule has ended by then: before, its next rate is taken for all that follow.
      student = learner.step(student, x, truth)
    rest = learner.position(student)
    zero = jax.tree.map(jnp.zeros_like, student.params)
    alone = student
    for _ in range(120):
      alone = update(learner, alone, zero)
    # Schedules compute in float32, or in float64 where they are compiled.
    chex.assert_trees_all_close(rest, alone.params, rtol=1e-10 if rate == 0.3 else 1e-6)
    chex.assert_trees_all_equal(learner.position(student, coasting=False), student.params)


@pytest.mark.parametrize("settings", MOMENTA.values(), ids=MOMENTA)
def test_the_point_of_rest_moves_as_plain_sgd(x64, settings):
  learner = last.learners.softmax(4, 3, learning_rate=0.3, **settings)
  student, _, x, truth = draw(learner, (4,), 3, 2)
  gradient = jax.grad(learner.mean_loss)(student.params, x, truth)
  moved = optax.tree.sub(learner.position(learner.step(student, x, truth)), learner.position(student))
  rate = 0.3 / (1 - settings.get("momentum", 0.0))
  chex.assert_trees_all_close(moved, jax.tree.map(lambda leaf: -rate * leaf, gradient), rtol=1e-12)


RATES = {"layer_0": "first", "layer_1": "second"}


def preconditioned(**settings):
  """Every leaf with its own rate, and every entry of one of them."""
  scale = optax.stateless(lambda updates, params: jax.tree.map(lambda leaf: leaf * (1 + jnp.abs(jnp.sin(
    jnp.arange(leaf.size, dtype=leaf.dtype).reshape(leaf.shape)))), updates))  # fmt: skip
  transformation = optax.chain(
    optax.multi_transform({"first": optax.sgd(0.3, momentum=0.5), "second": optax.chain(scale, optax.sgd(0.1))}, RATES),
    optax.add_decayed_weights(-1e-3),
  )
  return with_optimizer(transformation)


def with_optimizer(transformation):
  network = make_mlp()
  return last.learners.from_apply(network.init, network.apply, "softmax_cross_entropy", optimizer=transformation)


KINDS = {
  "linear": (lambda **s: last.learners.softmax(4, 3, learning_rate=0.3, weight_decay=1e-2, **s), (4,), 3),
  "mlp": (make_mlp, (4,), 3),
  "optax": (lambda **s: with_optimizer(
    optax.chain(optax.add_decayed_weights(0.01), optax.trace(0.7), optax.scale(-0.2))), (4,), 3),
  "mixing": (lambda **s: with_optimizer(optax.chain(optax.centralize(), optax.sgd(0.2, momentum=0.7))), (4,), 3),
  "preconditioned": (preconditioned, (4,), 3),
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", MOMENTA.values(), ids=MOMENTA)
@pytest.mark.slow
def test_the_quadratic_of_parameters_is_the_distance_after_the_step(x64, kind, settings):
  settings = settings if kind in ("linear", "mlp") else {}
  make, shape, width = KINDS[kind]
  learner = make(**settings)
  student, goal, x, truth = draw(learner, shape, width, 3)
  random = np.random.default_rng(1)
  weights = jax.tree.map(lambda leaf: float(random.uniform(0.5, 2)), goal)
  for coasting in (True, False):
    for layer_weights in (None, weights):
      target = targets.params(goal, layer_weights=layer_weights, coasting=coasting)
      found = expand(learner, student, target, x, truth)
      for _ in range(3):
        labels = truth + jnp.asarray(random.normal(size=truth.shape))

        def distance(labels, coasting=coasting, layer_weights=layer_weights):
          reached = learner.position(learner.step(student, x, labels), coasting)
          factors = jax.tree.map(lambda _: 1.0, goal) if layer_weights is None else layer_weights
          return sum(
            jax.tree.leaves(jax.tree.map(lambda w, g, f: float(f * np.sum((w - g) ** 2)), reached, goal, factors))
          )

        expected = distance(labels) - distance(truth)
        np.testing.assert_allclose(found.change(labels), expected, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("settings", MOMENTA.values(), ids=MOMENTA)
@pytest.mark.slow
def test_the_quadratic_of_outputs_is_that_of_the_linearized_student(x64, kind, settings):
  settings = settings if kind in ("linear", "mlp") else {}
  make, shape, width = KINDS[kind]
  learner = make(**settings)
  student, _, x, truth = draw(learner, shape, width, 3)
  random = np.random.default_rng(2)
  x_eval, z = jnp.asarray(random.normal(size=(7, *shape))), jnp.asarray(random.normal(size=(7, width)))
  target = targets.outputs(x_eval, z)
  found = expand(learner, student, target, x, truth)
  # Optimizers that mix gradients are linearized around the parameters after the step with the labels of the expansion.
  around = student.params if kind != "mixing" else learner.step(student, x, truth).params

  def distance(labels):
    reached = learner.position(learner.step(student, x, labels))
    outputs, shift = jax.jvp(lambda w: learner.apply(w, x_eval), (around,), (optax.tree.sub(reached, around),))
    errors = outputs + shift - z
    return float(jnp.sum((errors - jnp.mean(errors, 1, keepdims=True)) ** 2))

  for _ in range(3):
    labels = truth + jnp.asarray(random.normal(size=truth.shape))
    np.testing.assert_allclose(found.change(labels), distance(labels) - distance(truth), rtol=1e-8, atol=1e-12)
  if kind == "linear":  # Nothing is lost by the linearization.
    labels, certificate = synthesis.greedy_labels(learner, student, target, x, truth, last.constraints.simplex())
    assert certificate.residual < 1e-10
    exact = functools.partial(targets.value, target, learner)
    reached = float(exact(learner.step(student, x, labels)))
    for other in random.dirichlet(np.ones(width), size=(50, len(truth))):
      assert reached <= float(exact(learner.step(student, x, other))) + 1e-12


@pytest.mark.slow
def test_outputs_of_squared_error_are_not_centred(x64):
  learner = last.learners.least_squares(4, 3, learning_rate=0.3)
  student, goal, x, truth = draw(learner, (4,), 3, 5)
  z = learner.apply(goal, x)
  target = targets.outputs(x, z)
  labels, _ = synthesis.greedy_labels(learner, student, target, x, truth, last.constraints.none())
  after = learner.step(student, x, labels)
  np.testing.assert_allclose(learner.apply(after.params, x), z, atol=1e-6)  # As many labels as there are wishes.


def test_a_trajectory_is_a_target_per_step(x64):
  """A student that can follow exactly does: as many free labels as parameters."""
  learner = last.learners.least_squares(3, 1, learning_rate=0.2, bias=False)
  random = np.random.default_rng(0)
  pool = last.Pool(random.normal(size=(8, 3)), random.normal(size=8))
  path = {"weights": random.normal(size=(4, 3, 1))}
  teacher = last.teachers.greedy(last.constraints.none(), last.targets.trajectory(path))
  result = last.teach(KEY, learner, teacher, pool, steps=6, batch_size=5, probe=lambda params: params["weights"])
  np.testing.assert_allclose(result.probe[1:5], path["weights"], atol=1e-8)
  np.testing.assert_allclose(result.probe[5:], path["weights"][[3, 3]], atol=1e-8)


@pytest.mark.parametrize("make", [
  lambda toward: last.teachers.greedy(last.constraints.simplex(), toward),
  lambda toward: last.teachers.planner(2, last.constraints.simplex(), toward),
])  # fmt: skip
@pytest.mark.slow
def test_teachers_toward_outputs_need_no_target(make):
  """A student that is steered toward the outputs of another network comes nearer to them than by SGD."""
  random = np.random.default_rng(0)
  pool = last.Pool(random.normal(size=(40, 4)).astype(np.float32), random.integers(0, 3, 40))
  wide = last.learners.mlp((4, 16, 3), learning_rate=0.3)
  z = wide.apply(wide.init(jax.random.key(5)), pool.x)
  learner = last.learners.mlp((4, 6, 3), learning_rate=0.3)

  def gap(teacher):
    result = last.teach(KEY, learner, teacher, pool, steps=40, batch_size=4)
    errors = learner.apply(result.params, pool.x) - z
    return float(jnp.sum((errors - jnp.mean(errors, 1, keepdims=True)) ** 2))

  toward = last.targets.outputs(pool.x, z)
  assert gap(make(toward)) < 0.8 * gap(last.teachers.sgd())
  some = last.targets.outputs(pool.x, z, batch_size=10)
  assert np.isfinite(gap(make(some)))


def other_targets(learner, pool):
  """A target in the outputs and one per step, each with G of a student after step t, in NumPy."""
  goal = learner.init(jax.random.key(5))
  z = np.asarray(learner.apply(goal, pool.x)) / 2
  path = jax.tree.map(lambda leaf: jnp.stack([leaf, 2 * leaf, -leaf]), goal)

  def gap(params, t):
    errors = np.asarray(learner.apply(params, pool.x)) - z
    return np.sum((errors - errors.mean(1, keepdims=True)) ** 2)

  def distance(params, t):
    pairs = zip(jax.tree.leaves(params), jax.tree.leaves(path), strict=True)
    return sum(np.sum((np.asarray(leaf) - np.asarray(goals[t])) ** 2) for leaf, goals in pairs)

  return {
    "outputs": (last.targets.outputs(pool.x, z), gap),
    "trajectory": (last.targets.trajectory(path), distance),
  }


@pytest.mark.parametrize("name", ["outputs", "trajectory"])
@pytest.mark.parametrize("kind", ["imt", "joint"])
@pytest.mark.slow
def test_selection_toward_any_target_is_the_best_of_all_steps(x64, kind, name):
  """Every example, and every class as its label, tried on the student itself, in each of three steps."""
  random = np.random.default_rng(1)
  pool = last.Pool(random.normal(size=(12, 4)), random.integers(0, 3, 12))
  learner = make_mlp(momentum=None)
  toward, value = other_targets(learner, pool)[name]
  teacher = last.teachers.imt(toward)
  if kind == "joint":
    teacher = last.teachers.mixed(last.constraints.one_hot(), joint=True, toward=toward)
  assert not teacher.needs_target
  result = last.teach(KEY, learner, teacher, pool, steps=3, lessons=True, probe=lambda params: params)
  chosen = jnp.eye(3)[pool.y][:, None] if kind == "imt" else jnp.broadcast_to(jnp.eye(3), (12, 3, 3))
  step = jax.jit(lambda params, x, label: learner.step(learner.start(params), x[None], label[None]).params)
  for t in range(3):
    params = jax.tree.map(lambda leaf, t=t: leaf[t], result.probe)
    values = [[value(step(params, x, label), t) for label in labels] for x, labels in zip(pool.x, chosen, strict=True)]
    after = jax.tree.map(lambda leaf, t=t: leaf[t + 1], result.probe)
    assert value(after, t) == pytest.approx(np.min(values), rel=1e-9 if name == "trajectory" or kind == "imt" else 1e-3)


@pytest.mark.parametrize("name", ["outputs", "trajectory"])
def test_a_plan_toward_any_target_is_the_best_of_all_sequences(x64, name):
  random = np.random.default_rng(1)
  pool = last.Pool(random.normal(size=(12, 4)), random.integers(0, 3, 12))
  learner = make_mlp(momentum=None)
  toward, value = other_targets(learner, pool)[name]
  planner = last.teachers.planner(2, last.constraints.one_hot(), toward)
  start = learner.init(jax.random.key(3))
  result = last.teach(KEY, learner, planner, pool, init=start, steps=2, lessons=True)
  x = pool.x[result.lessons.index]  # [2, 1, 4]
  step = jax.jit(lambda params, x, label: learner.step(learner.start(params), x, label[None]).params)
  ends = [step(step(start, x[0], one), x[1], other) for one in jnp.eye(3) for other in jnp.eye(3)]
  assert value(result.params, 1) == pytest.approx(min(value(end, 1) for end in ends), rel=1e-9)


@pytest.mark.slow
def test_momentum_does_not_overshoot():
  """A constant target that SGD with momentum 0.9 and free labels toward the next parameters runs away from."""
  learner = last.learners.mlp((4, 16, 3), learning_rate=0.05, momentum=0.9)
  random = np.random.default_rng(0)
  pool = last.Pool(random.normal(size=(60, 4)).astype(np.float32), random.integers(0, 3, 60))
  init, target = learner.init(jax.random.key(1)), learner.init(jax.random.key(2))

  def distances(toward):
    teacher = last.teachers.greedy(last.constraints.none(), toward)
    return last.teach(KEY, learner, teacher, pool, target=target, init=init, steps=60, batch_size=4).distance

  coasting, literal = distances(None), distances(last.targets.params(coasting=False))
  assert coasting[-1] < 0.9 * coasting[0]
  assert literal[-1] > coasting[-1]


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: last.targets.outputs(np.ones((3, 4)), np.ones((2, 3))), "x .* and z .* rows"),
    (lambda: last.targets.outputs(np.ones((3, 4)), np.full((3, 3), np.nan)), "z "),
    (lambda: last.targets.outputs(np.ones((3, 4)), np.ones((3, 2))), r"z of targets.outputs must have shape \[3, 3\]"),
    (lambda: last.targets.outputs(np.ones((3, 5)), np.ones((3, 3))), "x of targets.outputs"),
    (lambda: last.targets.params({"weights": np.ones(3)}), "params"),
    (lambda: last.targets.trajectory({"weights": np.ones(()), "bias": np.ones(3)}), "leading axis"),
  ],
)
def test_bad_targets_are_refused(make, message):
  learner = last.learners.softmax(4, 3, learning_rate=0.1)
  pool = last.Pool(np.ones((5, 4), np.float32), np.arange(5) % 3)
  with pytest.raises((ValueError, TypeError), match=message):
    last.teach(KEY, learner, last.teachers.greedy(last.constraints.simplex(), make()), pool, steps=1)


def test_a_target_must_come_from_targets():
  with pytest.raises(TypeError, match=r"toward must come from last_jax\.targets"):
    last.teachers.greedy(last.constraints.simplex(), {"weights": np.ones(3)})
  with pytest.raises(ValueError, match="layer_weights are a setting of the target"):
    last.teachers.greedy(last.constraints.simplex(), last.targets.params(), layer_weights={"layer_0": 1.0})


def conv_init(key):
  one, two = jax.random.split(key)
  return {"kernel": 0.4 * jax.random.normal(one, (3, 3, 1, 4)), "dense": 0.3 * jax.random.normal(two, (16, 3))}


def conv_apply(params, x):
  hidden = jax.lax.conv_general_dilated(x, params["kernel"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
  return jnp.tanh(hidden).reshape(x.shape[0], -1) @ params["dense"]


ROADS = {
  "mlp": (lambda: make_mlp(momentum=0.5), (4,)),
  "conv": (
    lambda: last.learners.from_apply(conv_init, conv_apply, "softmax_cross_entropy", learning_rate=0.3),
    (4, 4, 1),
  ),
  "preconditioned": (preconditioned, (4,)),
}


@pytest.mark.parametrize("kind", ROADS)
@pytest.mark.parametrize("name", ["simplex", "ball", "none"])
@pytest.mark.slow
def test_labels_by_products_are_those_by_kernels(x64, kind, name):
  """Two roads: the tangent kernel as a matrix, and products with it by a backward and a forward pass."""
  make, shape = ROADS[kind]
  learner = make()
  constraint = {
    "simplex": last.constraints.simplex(),
    "ball": last.constraints.magnitude(0.7),
    "none": last.constraints.none(),
  }[name]
  student, goal, x, truth = draw(learner, shape, 3, 4)
  weights = jax.tree.map(lambda leaf: 1.0 + 0.1 * leaf.ndim, goal)

  def after(road):
    target = targets.params(goal, layer_weights=weights, road=road)
    labels, certificate = synthesis.greedy_labels(learner, student, target, x, truth, constraint)
    return targets.value(target, learner, learner.step(student, x, labels)), labels, certificate

  (by_kernel, labels, _), (by_products, others, certificate) = after("kernel"), after("products")
  np.testing.assert_allclose(by_products, by_kernel, rtol=1e-9)
  assert certificate.residual < 1e-7
  if name == "simplex":
    np.testing.assert_allclose(others, labels, atol=1e-5)


@pytest.mark.parametrize("loss", ["softmax", "logistic", "least_squares"])
def test_the_quadratic_of_linear_learners_without_its_matrix_is_the_distance_after_the_step(x64, loss, monkeypatch):
  monkeypatch.setattr(linear, "MOST_NUMBERS", 0)
  settings = {"learning_rate": 0.3, "weight_decay": 1e-2, "momentum": 0.7}
  learner = {
    "softmax": lambda: last.learners.softmax(4, 3, **settings),
    "logistic": lambda: last.learners.logistic(4, **settings),
    "least_squares": lambda: last.learners.least_squares(4, 3, **settings),
  }[loss]()
  student, goal, x, truth = draw(learner, (4,), 1 if loss == "logistic" else 3, 5)
  outputs = learner.apply(student.params, x)
  gradients = jax.vmap(learner.loss.output_gradient)(outputs, truth)
  slopes = jax.vmap(learner.loss.label_slope)(outputs, truth)
  known = linear.geometry(learner, goal, x)
  found = linear.quadratic_of_batch(learner, student, x, outputs, gradients, slopes, truth, known)
  assert callable(found.matrix)
  random = np.random.default_rng(3)
  for _ in range(3):
    labels = truth + jnp.asarray(random.normal(size=truth.shape))
    before, after = (learner.position(learner.step(student, x, each)) for each in (truth, labels))
    expected = sum(float(jnp.sum((after[w] - goal[w]) ** 2) - jnp.sum((before[w] - goal[w]) ** 2)) for w in goal)
    np.testing.assert_allclose(found.change(labels), expected, rtol=1e-9)


@pytest.mark.parametrize("kind", ROADS)
@pytest.mark.parametrize("name", ["outputs", "loss"])
@pytest.mark.slow
def test_labels_toward_outputs_by_products_are_those_by_kernels(x64, kind, name, monkeypatch):
  make, shape = ROADS[kind]
  learner = make()
  student, goal, x, truth = draw(learner, shape, 3, 4)
  random = np.random.default_rng(4)
  x_eval = jnp.asarray(random.normal(size=(5, *shape)))
  if name == "outputs":
    z = learner.apply(goal, x_eval)
    targets_ = [targets.outputs(x_eval, z, road=road) for road in ("kernel", "products")]
  else:
    toward = targets.loss(last.Pool(x_eval, np.arange(5) % 3))
    targets_ = [toward.now(learner, student, None, jnp.zeros((), int), None)] * 2
  by_kernel = expand(learner, student, targets_[0], x, truth)
  monkeypatch.setattr(sys.modules[targets.ToOutputs.__module__], "_MOST_ENTRIES", 0)
  by_products = expand(learner, student, targets_[1], x, truth)
  assert callable(by_products.matrix)
  assert not callable(by_kernel.matrix)
  for _ in range(3):
    labels = truth + jnp.asarray(random.normal(size=truth.shape))
    np.testing.assert_allclose(by_products.change(labels), by_kernel.change(labels), rtol=1e-9)
    np.testing.assert_allclose(
      by_products.scale**2 * by_products.gradient(labels), by_kernel.scale**2 * by_kernel.gradient(labels), atol=1e-10
    )


@pytest.mark.slow
def test_labels_toward_outputs_of_a_thousand_classes_need_no_derivative_of_all_outputs():
  """By the compiled program's own analysis: that derivative would take 6 GB."""
  learner = last.learners.mlp((6, 8, 1000), learning_rate=2.0)
  params = learner.init(KEY)
  x, y, x_eval = np.ones((8, 6), np.float32), np.arange(8), np.ones((200, 6), np.float32)
  toward = targets.outputs(x_eval, np.zeros((200, 1000), np.float32))
  labels = jax.jit(lambda *problem: last.synthesize_labels(*problem, last.constraints.simplex()))
  memory = labels.lower(learner, params, toward, x, y).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 2**25


@pytest.mark.slow
def test_a_problem_too_large_for_a_matrix_is_solved_by_products():
  """50 classes, 100 examples: 5,000 numbers, a matrix of 100 MB. Linear learners and networks."""
  random = np.random.default_rng(0)
  x, y = random.normal(size=(100, 6)).astype(np.float32), random.integers(0, 50, 100)
  for learner in (last.learners.softmax(6, 50, learning_rate=2.0), last.learners.mlp((6, 8, 50), learning_rate=2.0)):
    params, target = learner.init(KEY), learner.init(jax.random.key(1))
    labels, certificate = last.synthesize_labels(
      learner, params, target, x, y, last.constraints.simplex(), with_certificate=True
    )
    assert certificate.road == "projected gradients"
    assert certificate.residual < 5e-4  # Rounding of 5,000 numbers in float32.
    np.testing.assert_allclose(labels.sum(1), 1.0, atol=1e-5)
    memory = jax.jit(lambda *a: last.synthesize_labels(*a, last.constraints.simplex())).lower(
      learner, params, target, x, y
    ).compile().memory_analysis()  # fmt: skip
    assert memory.temp_size_in_bytes < 2**25
  with pytest.raises(ValueError, match="needs the matrix of the label problem"):
    last.synthesize_labels(learner, params, target, x, y, last.constraints.one_hot())


@pytest.mark.slow
@pytest.mark.parametrize(("batch", "classes"), [(8, 1000), (256, 40)])
def test_a_thousand_classes_and_batches_of_256(batch, classes):
  """About 10,000 numbers on the simplex, whose matrix would take 400 MB: certified, and better than the truth."""
  random = np.random.default_rng(1)
  x, y = random.normal(size=(batch, 6)).astype(np.float32), random.integers(0, classes, batch)
  learner = last.learners.mlp((6, 8, classes), learning_rate=2.0)
  params, target = learner.init(KEY), learner.init(jax.random.key(1))
  constraint = last.constraints.simplex()
  labels, certificate = last.synthesize_labels(learner, params, target, x, y, constraint, with_certificate=True)
  assert certificate.residual < 1e-4
  np.testing.assert_allclose(labels.sum(1), 1.0, atol=1e-5)
  assert labels.min() >= 0
  problem = targets.params(target)
  after, plain = (
    float(targets.value(problem, learner, learner.step(learner.start(params), x, each)))
    for each in (labels, learner.encode(x, y))
  )
  assert after < plain


@pytest.mark.slow
def test_preconditioned_steps_form_no_gradients_of_labels():
  """By the compiled program's own analysis: a gradient for every label of the batch would take 130 MB."""
  rates = {"layer_0": optax.sgd(0.1, momentum=0.9), "layer_1": optax.sgd(0.01)}
  network = last.learners.mlp((784, 128, 10), learning_rate=0.1)
  optimizer = optax.multi_transform(rates, {name: name for name in rates})
  learner = last.learners.from_apply(network.init, network.apply, "softmax_cross_entropy", optimizer=optimizer)
  params = learner.init(KEY)
  x, y = np.ones((32, 784), np.float32), np.arange(32) % 10
  for target in (targets.params(params), targets.outputs(x, network.apply(params, x))):
    labels = jax.jit(lambda *a, to=target: last.synthesize_labels(*a[:2], to, *a[2:], last.constraints.simplex()))
    memory = labels.lower(learner, params, x, y).compile().memory_analysis()
    assert memory.temp_size_in_bytes < 32 * 10 * 4 * sum(leaf.size for leaf in jax.tree.leaves(params)) / 10


@pytest.mark.parametrize("kind", ["linear", "mlp"])
@pytest.mark.slow
def test_labels_of_a_thousand_classes_for_256_examples_need_memory_for_labels_only(kind):
  """By the compiled program's own analysis: the matrices du/dy of all examples alone would take a gigabyte."""
  batch, classes = 256, 1000
  make = {
    "linear": lambda: last.learners.softmax(6, classes, learning_rate=2.0),
    "mlp": lambda: last.learners.mlp((6, 8, classes), learning_rate=2.0),
  }[kind]
  learner = make()
  params = learner.init(KEY)
  x, y = np.ones((batch, 6), np.float32), np.arange(batch)
  labels = jax.jit(lambda *problem: last.synthesize_labels(*problem, last.constraints.simplex()))
  memory = labels.lower(learner, params, params, x, y).compile().memory_analysis()
  assert memory.temp_size_in_bytes < 30 * 4 * batch * classes
