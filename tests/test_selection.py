"""Selection without gradients of examples, against real steps; approximate selection, against its rule."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import last_jax as last
from last_jax import distances, synthesis
from last_jax.base import View
from last_jax.kernels import direction, remainder
from last_jax.teachers.scores import Examples, score
from tests import problems
from tests.networks import CASES, draw, normal

pytestmark = pytest.mark.sampled

KEY = jax.random.key(0)

# --- Squared norms of gradients and products with a direction.


def check_products(apply_fn, params, x, weighted):
  """Against the gradient of each example by autodiff."""
  leaves, structure = jax.tree.flatten(params)
  places = [place for place, leaf in enumerate(leaves) if jnp.issubdtype(leaf.dtype, jnp.floating)]
  params = [leaves[place] for place in places]  # Learners have no others.

  def loss(params, batch):
    every = list(leaves)
    for place, leaf in zip(places, params, strict=True):
      every[place] = leaf
    outputs = apply_fn(jax.tree.unflatten(structure, every), batch)
    return jnp.sum(jnp.sin(outputs.reshape(outputs.shape[0], -1)), axis=1)[:, None]

  shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
  along, weights = draw(shapes, seed=5), [0.5 + index for index in range(len(params))] if weighted else None

  def gradient(example):
    return jax.grad(lambda params: loss(params, jax.tree.map(lambda value: value[None], example))[0, 0])(params)

  every = jax.vmap(gradient)(x)
  factors = [1.0] * len(params) if weights is None else weights
  flat = [np.asarray(leaf, np.float64).reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(every)]
  norms = sum(factor * np.square(leaf).sum(1) for factor, leaf in zip(factors, flat, strict=True))
  products = sum(
    leaf @ np.asarray(other, np.float64).reshape(-1) for leaf, other in zip(flat, jax.tree.leaves(along), strict=True)
  )
  sizes = sum(
    np.abs(leaf) @ np.abs(other).reshape(-1) for leaf, other in zip(flat, jax.tree.leaves(along), strict=True)
  )
  found = jax.jit(lambda *arguments: direction.norms_and_products(loss, *arguments, weights=weights))(params, x, along)
  relative = 1e-10 if jax.config.jax_enable_x64 else 1e-5
  np.testing.assert_allclose(found[0], norms, rtol=relative, atol=relative * norms.max())
  assert np.max(np.abs(found[1] - products)) <= relative * sizes.max()


QUICK = {"fully_connected", "convolution_groups", "embedding", "used_transposed", "what_cannot_be_read"}


@pytest.mark.parametrize(
  "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_norms_and_products_are_those_of_the_gradients(x64, name):
  apply_fn, params, x, _ = CASES[name]()
  check_products(apply_fn, params, x, weighted=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fully_connected", "convolution_same", "tied_embedding", "what_cannot_be_read"])
def test_weights_count_in_norms_only(x64, name):
  apply_fn, params, x, _ = CASES[name]()
  check_products(apply_fn, params, x, weighted=True)


@pytest.mark.slow
def test_norms_and_products_where_gradients_are_not_formed_at_once(x64, monkeypatch):
  monkeypatch.setattr(remainder, "FORMED", 1)
  apply_fn, params, x, _ = CASES["what_cannot_be_read"]()
  check_products(apply_fn, params, x, weighted=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fully_connected", "convolution_same", "embedding"])
def test_norms_and_products_in_float32(name):
  apply_fn, params, x, _ = CASES[name]()
  check_products(apply_fn, params, x, weighted=False)


# --- Scores, against real steps.

SETTINGS = {
  "sgd": {"learning_rate": 0.3},
  "decay": {"learning_rate": 0.3, "weight_decay": 0.1},
  "momentum": {"learning_rate": 0.3, "weight_decay": 0.1, "momentum": 0.7},
  "nesterov": {"learning_rate": 0.3, "momentum": 0.7, "nesterov": True},
  "schedule": {"learning_rate": optax.linear_schedule(0.5, 0.1, 4)},
}


def network_problem(settings, size=20, scale=1.0, seed=0, classes=3):
  learner = last.learners.mlp((4, 5, classes), activation="tanh", **settings)
  pool = last.Pool(scale * normal(seed, size, 4), np.arange(size) % classes)
  problem = last.Problem(learner, pool, target=learner.init(jax.random.key(1)))
  student = learner.start(learner.init(jax.random.key(2)))
  return problem, learner.step(student, pool.x[:3], problem.truth[:3])  # Momentum has something to remember.


def view_of(problem, student):
  return View(problem, student, jnp.zeros((), int), KEY, KEY)


def score_all(problem, student, layer_weights=None, **settings):
  def scores(problem, student):
    target = last.targets.params(problem.target, layer_weights=layer_weights)
    return score(view_of(problem, student), Examples(problem.pool.x, problem.truth), target, **settings)

  return jax.jit(scores)(problem, student)


def distances_after(problem, student, labels, layer_weights=None):
  """G after a step on each example alone, `[n]`."""

  def after(x, label):
    params = problem.learner.position(problem.learner.step(student, x[None], label[None]))
    return distances.squared_distance(params, problem.target, layer_weights)

  return jax.jit(jax.vmap(after))(problem.pool.x, labels)


def offset_and_rate(problem, student, layer_weights=None):
  """G without a gradient, and how far a unit of gradient moves the parameters: scores are (G - G(drift)) / rate."""
  zero = jax.tree.map(jnp.zeros_like, student.params)
  learner = problem.learner
  drift = learner.position(learner.update(student, zero))
  moved = learner.position(learner.update(student, jax.tree.map(jnp.ones_like, student.params)))
  rate = (drift["layer_0"]["bias"] - moved["layer_0"]["bias"])[0]
  return distances.squared_distance(drift, problem.target, layer_weights), rate


@pytest.mark.parametrize("chunk_size", [None, 7])
@pytest.mark.parametrize("weights", [None, {"layer_0": 3.0, "layer_1": 0.5}])
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.slow
def test_scores_are_distances_after_steps(x64, name, weights, chunk_size):
  problem, student = network_problem(SETTINGS[name])
  found = score_all(problem, student, layer_weights=weights, chunk_size=chunk_size)
  start, rate = offset_and_rate(problem, student, weights)
  expected = distances_after(problem, student, problem.truth, weights)
  np.testing.assert_allclose(start + rate * found, expected, rtol=1e-6 if name == "schedule" else 1e-11)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simplex", "one_hot", "none", "ball_1", "simplex_2"])
@pytest.mark.parametrize("kind", ["sgd", "nesterov"])
def test_joint_scores_are_distances_after_the_best_labels(x64, name, kind):
  problem, student = network_problem(SETTINGS[kind])
  constraint, weights = problems.CONSTRAINTS[name], {"layer_0": 3.0, "layer_1": 0.5}
  found = score_all(problem, student, constraint=constraint, layer_weights=weights, chunk_size=7)

  def best(x, truth):
    return synthesis.synthesize_labels(
      problem.learner, student.params, problem.target, x[None], truth[None], constraint, opt_state=student.opt_state,
      layer_weights=weights,
    )[0]  # fmt: skip

  labels = jax.jit(jax.vmap(best))(problem.pool.x, problem.truth)
  start, rate = offset_and_rate(problem, student, weights)
  np.testing.assert_allclose(start + rate * found, distances_after(problem, student, labels, weights), rtol=1e-8)


@pytest.mark.slow
def test_joint_scores_of_classes_are_the_least_of_all(x64):
  problem, student = network_problem(SETTINGS["sgd"])
  found = score_all(problem, student, constraint=last.constraints.one_hot())
  start, rate = offset_and_rate(problem, student)
  every = [distances_after(problem, student, jnp.broadcast_to(row, problem.truth.shape)) for row in jnp.eye(3)]
  np.testing.assert_allclose(start + rate * found, np.min(every, 0), rtol=1e-11)


@pytest.mark.parametrize("joint", [False, True])
def test_scores_through_rates_of_each_leaf_are_distances_after_steps(x64, joint):
  rates = {"layer_0": optax.sgd(0.5, momentum=0.5), "layer_1": optax.sgd(0.1)}
  optimizer = optax.multi_transform(rates, {name: name for name in rates})
  problem, student = network_problem({"optimizer": optimizer, "weight_decay": 0.1})
  weights = {"layer_0": 3.0, "layer_1": 0.5}
  found = score_all(problem, student, layer_weights=weights, constraint=last.constraints.one_hot() if joint else None)
  after = distances_after(problem, student, problem.truth, weights)
  if joint:
    classes = [jnp.broadcast_to(row, problem.truth.shape) for row in jnp.eye(3)]
    after = np.min([distances_after(problem, student, each, weights) for each in classes], 0)
  zero = jax.tree.map(jnp.zeros_like, student.params)
  drift = problem.learner.update(student, zero).params
  change = after - distances.squared_distance(drift, problem.target, weights)
  scale = change[0] / found[0]
  assert scale > 0
  np.testing.assert_allclose(scale * found, change, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("joint", [False, True])
def test_other_optimizers_and_losses_take_steps(x64, joint):
  """Adam has no rate, and the margin loss is not affine in the label: the example is still the best of all."""
  learners = {
    "adam": last.learners.mlp((4, 5, 3), optimizer=optax.adam(0.1)),
    "margin": last.learners.mlp((4, 5, 1), loss=last.losses.margin_logistic, learning_rate=0.3),
  }
  for learner in learners.values():
    pool = last.Pool(normal(0, 12, 4), np.arange(12) % 2)
    problem = last.Problem(learner, pool, target=learner.init(jax.random.key(1)))
    teacher = last.teachers.mixed(last.constraints.one_hot(), joint=True) if joint else last.teachers.imt()
    state = last.init(KEY, problem, teacher)
    (index,) = last.step(state, problem, teacher)[1].lesson.index
    classes = jnp.asarray(learner.loss.class_labels(problem.truth.shape[1]))
    every = np.array(
      [distances_after(problem, state.student, jnp.broadcast_to(c, problem.truth.shape)) for c in classes]
    )
    least = every.min(0) if joint else np.asarray(distances_after(problem, state.student, problem.truth))
    assert least[index] == pytest.approx(least.min(), rel=1e-9)


@pytest.mark.parametrize("rate", [1e-12, 1e-3, 1e6])
@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_float32_chooses_as_float64_does(rate, scale):
  """Over all ranges of rates and inputs, except for ties to rounding."""
  problem, student = network_problem({"learning_rate": rate}, 50, scale)
  single = np.asarray(score_all(problem, student))
  assert np.all(np.isfinite(single))
  with jax.enable_x64(True):
    exact, start = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), (problem.pool.x, (problem.target, student)))
    double = last.Problem(
      last.learners.mlp((4, 5, 3), activation="tanh", learning_rate=rate),
      last.Pool(exact, np.asarray(problem.pool.y)),
      target=start[0],
    )
    scores = np.asarray(score_all(double, start[1]))
  chosen = np.argmin(single)
  assert scores[chosen] - scores.min() <= 1e-5 * np.abs(scores).max()


def temporary_bytes(learner, shape, classes, teacher, size):
  """Of one step, compiled for shapes and not run."""
  x, y = jax.ShapeDtypeStruct((size, *shape), np.float32), np.arange(size) % classes
  target = learner.init(jax.random.key(1))

  def step(x, params):
    problem = last.Problem(learner, last.Pool(x, jnp.asarray(y)), target=target)
    return last.step(last.init(KEY, problem, teacher, params), problem, teacher)

  return jax.jit(step).lower(x, target).compile().memory_analysis().temp_size_in_bytes


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["linear", "network"])
@pytest.mark.parametrize("name", ["imt", "joint", "shortlist"])
def test_a_pool_of_a_million_needs_memory_for_scores_only(kind, name):
  """Less than the pool itself, and in proportion."""
  learner = last.learners.logistic(24, learning_rate=0.1)
  if kind == "network":
    learner = last.learners.mlp((24, 32, 2), learning_rate=0.1)
  teacher = {
    "imt": last.teachers.imt(),
    "joint": last.teachers.mixed(last.constraints.simplex(), joint=True),
    "shortlist": last.teachers.imt(shortlist=10_000),
  }[name]
  small, large = (temporary_bytes(learner, (24,), 2, teacher, size) for size in (100_000, 1_000_000))
  assert large < 4 * 24 * 1_000_000
  assert large <= 11 * small


# --- The shortlist.


def linear_problem(size=101, seed=0):
  learner = last.learners.softmax(4, 3, learning_rate=0.2, weight_decay=0.01)
  pool = last.Pool(normal(seed, size, 4), np.arange(size) % 3)
  return last.Problem(learner, pool, target=learner.init(jax.random.key(1)))


def scores_by_steps(problem, params):
  return np.asarray(distances_after(problem, problem.learner.start(params), problem.truth))


@pytest.mark.parametrize("make", [linear_problem, lambda: network_problem(SETTINGS["sgd"], 101)[0]])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.slow
def test_a_shortlist_follows_its_rule(x64, make, batch):
  """The rule of the module's docstring, in NumPy, with G after real steps."""
  problem, size, steps = make(), 10, 25
  teacher = last.teachers.imt(shortlist=size)
  state = last.init(KEY, problem, teacher)
  number, held = len(problem.pool), None
  take = jax.jit(functools.partial(last.step, batch_size=batch))
  for step in range(steps):
    scores = scores_by_steps(problem, state.params)
    if held is None:
      held = np.array([min(range(place, number, size), key=scores.__getitem__) for place in range(size)])
    start = min(step % 11 * size, number - size)
    judged = set(held) | set(range(start, start + size))
    for other in range(start, start + size):
      if scores[other] < scores[held[other % size]]:
        held[other % size] = other
    state, info = take(state, problem, teacher)
    np.testing.assert_array_equal(info.lesson.index, sorted(judged, key=scores.__getitem__)[:batch])
    np.testing.assert_array_equal(state.teacher_state[0], held)


@pytest.mark.parametrize("shortlist", [51, 1000])
def test_a_shortlist_of_half_the_pool_is_exact(shortlist):
  problem = linear_problem()
  one, other = (
    last.teach(KEY, problem.learner, teacher, problem.pool, target=problem.target, steps=20)
    for teacher in (last.teachers.imt(), last.teachers.imt(shortlist=shortlist))
  )
  np.testing.assert_array_equal(one.distance, other.distance)


@pytest.mark.parametrize(
  "teacher",
  [
    last.teachers.imt(shortlist=7),
    last.teachers.mixed(last.constraints.simplex(), shortlist=7),
    last.teachers.mixed(last.constraints.simplex(), joint=True, shortlist=7),
  ],
)
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.slow
def test_many_students_in_pieces_are_taught_as_each_at_once(x64, teacher, batch):
  problem, keys = linear_problem(), jax.random.split(KEY, 3)
  whole = [
    last.teach(key, problem.learner, teacher, problem.pool, target=problem.target, steps=20, batch_size=batch)
    for key in keys
  ]
  state = last.init(keys, problem, teacher)
  for steps in (9, 11):
    state, _ = last.run(state, problem, teacher, steps=steps, batch_size=batch)
  for place, result in enumerate(whole):
    assert all(len(set(held.tolist())) == 7 for held in result.state.teacher_state if held[0] >= 0)
    for left, right in zip(jax.tree.leaves(result.params), jax.tree.leaves(state.params), strict=True):
      np.testing.assert_allclose(left, right[place], rtol=1e-10, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logistic", "softmax"])
def test_a_hundredth_of_a_pool_keeps_most_of_the_progress(kind):
  """For 50 times less work at least 95 % of what exact selection gains in each step, in the mean."""
  size, steps = 20_000, 200
  learner = last.learners.softmax(8, 5, learning_rate=0.02)
  if kind == "logistic":
    learner = last.learners.logistic(8, learning_rate=0.02)
  pool = last.Pool(normal(0, size, 8), np.arange(size) % (2 if kind == "logistic" else 5))
  target = draw(jax.eval_shape(learner.init, KEY), seed=3)
  problem = last.Problem(learner, pool, target=target)
  result = last.teach(
    KEY,
    learner,
    last.teachers.imt(shortlist=size // 100),
    pool,
    target=target,
    steps=steps,
    probe=lambda params: params,
  )
  exact = last.teachers.imt()

  def best_after(params):
    state = last.init(KEY, problem, exact, params)
    return distances.distance(last.step(state, problem, exact)[0].params, target)

  before = jax.tree.map(lambda leaf: leaf[:-1], result.probe)
  best = np.asarray(result.distance[:-1] - jax.jit(lambda params: jax.lax.map(best_after, params))(before))
  gained = -np.diff(np.asarray(result.distance))
  assert np.mean(gained / best) >= 0.95


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: last.teachers.imt(shortlist=0), "shortlist must be a whole number"),
    (lambda: last.teachers.mixed(last.constraints.simplex(), shortlist=-1), "shortlist must be a whole number"),
    (lambda: teach_batch(8), "batch_size=8 examples cannot be chosen from shortlist=7"),
  ],
)
def test_bad_shortlists_are_refused(call, message):
  with pytest.raises(ValueError, match=message):
    call()


def teach_batch(batch):
  problem, teacher = linear_problem(), last.teachers.imt(shortlist=7)
  return last.teach(KEY, problem.learner, teacher, problem.pool, target=problem.target, steps=1, batch_size=batch)
