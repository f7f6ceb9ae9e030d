"""Greedy labels by other roads: dense search, the paper's formulas, autodiff, other optimizers and losses."""

import dataclasses
import functools
import itertools

import chex
import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import strategies as st

import last_jax as last
from last_jax import distances
from tests import problems

pytestmark = pytest.mark.sampled

SEEDS = st.integers(0, 2**32 - 1)


@pytest.mark.slow
@hypothesis.settings(max_examples=60)
@hypothesis.given(SEEDS, st.sampled_from(["none", "simplex", "ball_2", "ball_inf", "simplex_2", "one_hot"]))
def test_margin_labels_against_dense_search(seed, name):
  with jax.enable_x64(True):
    draw = np.random.default_rng(seed)
    rate = 10 ** draw.uniform(-1, 1)
    params, target = (
      {"weights": 10 ** draw.uniform(-2, 0.7) * draw.normal(size=(3, 1)), "bias": draw.normal(size=1)} for _ in range(2)
    )
    x, truth = draw.normal(size=(1, 3)), np.array([[draw.choice([-1.0, 1.0])]])
    labels = np.asarray(margin_labels(name)(rate, params, target, x, truth))
    z = (x @ params["weights"] + params["bias"]).item()
    center = np.tanh(z / 2) if name == "ball_2" else truth.item()
    low, high = {
      "none": (-60.0, 60.0),
      "simplex": (-1.0, 1.0),
      "ball_2": (center - 0.6, center + 0.6),
      "ball_inf": (center - 0.4, center + 0.4),
      "simplex_2": (max(-1, center - 0.6), min(1, center + 0.6)),
      "one_hot": (-1.0, 1.0),
    }[name]
    grid = np.array([low, high]) if name == "one_hot" else np.linspace(low, high, 200_001)
    gradient = -grid / (1 + np.exp(np.clip(grid * z, -700, 700)))
    error = params["weights"][:, 0] - target["weights"][:, 0]
    shift = params["bias"] - target["bias"]
    along, square = (x[0] @ error + shift).item(), (x[0] @ x[0] + 1).item()
    base = error @ error + (shift @ shift)
    reached = -labels.item() / (1 + np.exp(np.clip(labels.item() * z, -700, 700)))
    distance = base - 2 * rate * reached * along + rate**2 * square * reached**2
    distances = base - 2 * rate * gradient * along + rate**2 * square * gradient**2
    assert distance <= distances.min() + 1e-9 * base
    assert name == "none" or low - 1e-12 <= labels.item() <= high + 1e-12


@functools.cache
def margin_labels(name):
  def labels(rate, params, target, x, truth):
    learner = last.learners.logistic(3, learning_rate=rate, form="margin")
    return last.synthesize_labels(learner, params, target, x, truth, problems.CONSTRAINTS[name])

  return jax.jit(labels)


@pytest.mark.slow
def test_margin_labels_of_a_joint_batch(x64):
  """Against coordinate-wise dense search from many starts: no labelling of the grid is better."""
  learner = last.learners.logistic(3, learning_rate=3.0, form="margin")
  for seed in range(5):
    draw = np.random.default_rng(seed)
    params, target = ({"weights": draw.normal(size=(3, 1)), "bias": draw.normal(size=1)} for _ in range(2))
    x, truth = draw.normal(size=(2, 3)), np.array([[1.0], [-1.0]])
    problem = problems.Problem(params, target, x, truth)
    labels = last.synthesize_labels(learner, params, target, x, truth, last.constraints.simplex())
    grid = np.linspace(-1, 1, 81)
    pairs = jnp.asarray(list(itertools.product(grid, grid)))[:, :, None]
    after = jax.vmap(lambda y, p=problem: learner.step(learner.start(p.params), jnp.asarray(p.x), y).params)(pairs)
    distances = sum(
      np.sum(np.asarray(a - b[None]) ** 2, tuple(range(1, a.ndim)))
      for a, b in zip(jax.tree.leaves(after), jax.tree.leaves(target), strict=True)
    )
    assert problems.distance_after(learner, problem, labels) <= distances.min() + 1e-10


@pytest.mark.parametrize("kind", ["least_squares", "least_squares_3", "logistic", "softmax_2", "softmax_5"])
@pytest.mark.parametrize("momentum", [None, 0.7, "nesterov"])
@pytest.mark.slow
def test_closed_form_and_autodiff_agree(x64, kind, momentum):
  """The same learner through `from_apply` with an optax optimizer knows no closed form."""
  settings = {} if momentum is None else {"momentum": 0.7, "nesterov": momentum == "nesterov"}
  width = problems.KINDS[kind][2]
  loss = {"lea": "squared_error", "log": "sigmoid_cross_entropy", "sof": "softmax_cross_entropy"}[kind[:3]]
  known = {
    "squared_error": lambda **s: last.learners.least_squares(4, width, **s),
    "sigmoid_cross_entropy": lambda **s: last.learners.logistic(4, **s),
    "softmax_cross_entropy": lambda **s: last.learners.softmax(4, width, **s),
  }[loss](learning_rate=0.2, weight_decay=1e-2, **settings)
  opaque = last.learners.from_apply(
    known.init, known.apply, loss, optimizer=optax.sgd(0.2, **settings), weight_decay=1e-2
  )
  assert known.is_linear
  assert not opaque.is_linear
  draw = np.random.default_rng(3)
  for batch, name in ((1, "none"), (1, "simplex"), (4, "none")):  # The sets themselves are tested above.
    params, target, velocity = (
      {"weights": draw.normal(size=(4, width)), "bias": draw.normal(size=width)} for _ in range(3)
    )
    x = draw.normal(size=(batch, 4))
    truth = np.eye(width)[draw.integers(width, size=batch)]
    labels = []
    for learner in (known, opaque):
      student = learner.start(jax.tree.map(jnp.asarray, params))
      student = learner.update(student, jax.tree.map(jnp.asarray, velocity))  # So that there is momentum to speak of.
      found = last.synthesize_labels(
        learner, student.params, target, x, truth, problems.CONSTRAINTS[name], opt_state=student.opt_state
      )
      labels.append(found)
    np.testing.assert_allclose(labels[0], labels[1], rtol=1e-6, atol=1e-6, err_msg=f"{name}, batch {batch}")


def test_least_squares_follows_the_formula_of_the_paper(x64):
  draw = np.random.default_rng(0)
  for _ in range(20):
    rate = 10 ** draw.uniform(-3, 0)
    learner = last.learners.least_squares(6, learning_rate=rate, bias=False)
    w, goal, x = draw.normal(size=(6, 1)), draw.normal(size=(6, 1)), draw.normal(size=(1, 6))
    labels = last.synthesize_labels(learner, {"weights": w}, {"weights": goal}, x, np.zeros(1))
    share = 1 / (rate * np.sum(x**2))
    np.testing.assert_allclose(labels, (1 - share) * x @ w + share * x @ goal, rtol=1e-10)
    # Unconstrained, the step is Kaczmarz's: onto the hyperplane of all parameters that agree with w* on x.
    after = learner.step(learner.start({"weights": jnp.asarray(w)}), jnp.asarray(x), labels).params["weights"]
    np.testing.assert_allclose(after, w - x.T * (x @ (w - goal)) / np.sum(x**2), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("width", [1, 3])
def test_a_batch_of_full_rank_reaches_the_target_in_one_step(x64, width):
  draw = np.random.default_rng(1)
  learner = last.learners.least_squares(5, width, learning_rate=0.1, weight_decay=1e-3)
  params, target = ({"weights": draw.normal(size=(5, width)), "bias": draw.normal(size=width)} for _ in range(2))
  x, truth = draw.normal(size=(8, 5)), draw.normal(size=(8, width))
  problem = problems.Problem(params, target, x, truth)
  labels = last.synthesize_labels(learner, params, target, x, truth)
  assert problems.distance_after(learner, problem, labels) ** 0.5 <= 1e-10


@pytest.mark.slow
def test_free_softmax_labels_are_those_nearest_the_truth(x64):
  """Every y + t p has the same effect; the minimiser nearest the truth has no component along p to give up."""
  draw = np.random.default_rng(2)
  learner = last.learners.softmax(4, 3, learning_rate=0.5)
  for batch in (1, 2):
    params, target = ({"weights": draw.normal(size=(4, 3)), "bias": draw.normal(size=3)} for _ in range(2))
    x, truth = draw.normal(size=(batch, 4)), np.eye(3)[draw.integers(3, size=batch)]
    problem = problems.Problem(params, target, x, truth)
    labels = np.asarray(last.synthesize_labels(learner, params, target, x, truth))
    p = problems.prediction(learner, problem)
    np.testing.assert_allclose(np.sum((labels - truth) * p, 1), 0, atol=1e-9)
    start, columns = problems.step_map_of(learner, problem)
    gap = problems.flatten(target) - start - columns @ truth.ravel()
    expected = truth.ravel() + np.linalg.lstsq(columns, gap, rcond=1e-10)[0]  # Least squares of least norm.
    np.testing.assert_allclose(labels.ravel(), expected, atol=1e-8)


@pytest.mark.slow
def test_an_example_of_norm_zero_does_not_change_its_label(x64):
  draw = np.random.default_rng(4)
  for kind, name in itertools.product(["softmax_5", "mlp"], ["none", "one_hot", "simplex_2", "ball_inf"]):
    make, shape, width = problems.KINDS[kind]
    base = make(0.3)
    learner = last.learners.softmax(4, 5, learning_rate=0.3, bias=False) if kind == "softmax_5" else base
    params, target = (learner.init(jax.random.key(i)) for i in (0, 1))
    truth = np.eye(width)[draw.integers(width, size=2)]
    x = draw.normal(size=(2, *shape))
    x[0] = 0.0
    for batch in (1, 2):
      labels = last.synthesize_labels(learner, params, target, x[:batch], truth[:batch], problems.CONSTRAINTS[name])
      assert np.isfinite(labels).all()
      np.testing.assert_allclose(labels[0], truth[0], atol=1e-6, err_msg=f"{kind} {name}")


@pytest.mark.slow
def test_layer_weights_change_what_is_minimised(x64):
  draw = np.random.default_rng(5)
  learner = last.learners.mlp((4, 6, 3), learning_rate=0.3)
  params, target = (learner.init(jax.random.key(i)) for i in (0, 1))
  x, truth = jnp.asarray(draw.normal(size=(2, 4))), np.eye(3)[[0, 2]]
  problem = problems.Problem(params, target, x, truth)
  start, columns = problems.step_map_of(learner, problem)
  weights = {"layer_0": 0.1, "layer_1": 2.0}
  scale = (
    problems.flatten(jax.tree.map(lambda w, layer: jax.tree.map(lambda v: w + 0 * v, layer), weights, params)) ** 0.5
  )
  goal = problems.flatten(target)
  best = problems.solve("simplex", scale * start, scale[:, None] * columns, scale * goal, truth, None)
  labels = last.synthesize_labels(learner, params, target, x, truth, last.constraints.simplex(), layer_weights=weights)
  reached = np.sum((scale * (start + columns @ np.ravel(labels) - goal)) ** 2)
  assert reached == pytest.approx(best, rel=1e-6)
  plain = last.synthesize_labels(learner, params, target, x, truth, last.constraints.simplex())
  assert np.abs(plain - labels).max() > 1e-3
  uniform = last.synthesize_labels(
    learner, params, target, x, truth, last.constraints.simplex(), layer_weights={"layer_0": 1.0, "layer_1": 1.0}
  )
  np.testing.assert_allclose(uniform, plain, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "simplex", "ball_2", "one_hot"])
@pytest.mark.parametrize("optimizer", ["adam", "clipped"])
def test_through_other_optimizers_labels_are_never_worse_than_the_truth(x64, optimizer, name):
  transformation = {
    "adam": optax.adam(0.05),
    "clipped": optax.chain(optax.clip_by_global_norm(0.5), optax.sgd(0.5)),
  }[optimizer]
  learner = last.learners.mlp((4, 5, 3), activation="tanh", optimizer=transformation)
  assert not learner.optimizer.is_affine(learner.init(jax.random.key(0)))
  gains = []
  for seed in range(5):
    draw = np.random.default_rng(seed)
    target = learner.init(jax.random.key(seed))
    student = learner.start(learner.init(jax.random.key(seed + 100)))
    x, truth = jnp.asarray(draw.normal(size=(2, 4))), jnp.eye(3)[jnp.array([0, 1])]
    student = learner.step(student, x, truth)

    def distance(labels, student=student, x=x, target=target):
      return float(distances.squared_distance(learner.step(student, x, labels).params, target))

    labels = last.synthesize_labels(
      learner, student.params, target, x, truth, problems.CONSTRAINTS[name], opt_state=student.opt_state
    )
    reached = distance(labels)
    if name != "ball_2":
      assert reached <= distance(truth) + 1e-12
    if name == "simplex":  # A local optimum among random soft labels nearby.
      nearby = 0.98 * labels[None] + 0.02 * draw.dirichlet(np.ones(3), size=(50, 2))
      assert reached <= min(distance(other) for other in nearby) + 1e-6 * reached
    gains.append(distance(truth) - reached)
  assert max(gains) > 0


def hinge(outputs, label):
  return jnp.sum(jnp.maximum(0.0, 1.0 - label * outputs))


def one_output(loss, optimizer=None):
  """A linear learner of two features and rate 1."""
  return last.learners.from_apply(
    lambda key: {"w": jax.random.normal(key, (2, 1))},
    lambda params, x: x @ params["w"],
    loss,
    optimizer=optimizer or optax.sgd(1.0),
  )


HINGE = {
  "function": hinge,  # Classes are 0 and 1.
  "signs": last.losses.Loss("hinge", hinge, low=-1.0),
}


@pytest.mark.parametrize("set_name", ["none", "simplex", "ball_inf", "one_hot"])
@pytest.mark.parametrize("loss", HINGE)
def test_labels_of_hinge_loss_leave_a_truth_whose_gradient_vanishes(x64, loss, set_name):
  """Beyond the margin, G = 4.25 does not depend on the label; at y = 0.85 it is 1.38, at the margin 1.335."""
  learner = one_output(HINGE[loss])
  params, target, x = {"w": np.array([[1.0], [0.5]])}, {"w": np.array([[3.0], [1.0]])}, np.array([[1.0, 0.3]])
  problem = problems.Problem(params, target, x, np.ones((1, 1)))
  assert problems.distance_after(learner, problem, problem.truth) == pytest.approx(4.25)
  assert problems.distance_after(learner, problem, np.array([[0.85]])) == pytest.approx(1.3825, abs=1e-3)
  labels, certificate = last.synthesize_labels(
    learner, params, target, x, problem.truth, problems.CONSTRAINTS[set_name], with_certificate=True
  )
  reached = problems.distance_after(learner, problem, labels)
  if set_name == "one_hot":  # Neither class has an effect, or the other one is worse: the label stays.
    assert labels == 1.0
    assert certificate.exact
  else:
    assert reached <= 1.36
    assert not certificate.exact


@pytest.mark.slow
@pytest.mark.parametrize("set_name", ["none", "simplex", "one_hot"])
def test_through_steps_that_are_not_affine_one_label_is_nearly_as_good_as_dense_search(x64, set_name):
  """Saturated losses and clipped gradients, which at the truth are often flat; on average, not in every case."""
  clipped = optax.chain(optax.clip(0.3), optax.sgd(1.0))
  learners = [
    one_output(HINGE["signs"]),
    one_output(last.losses.Loss("huber", functools.partial(_summed_huber, delta=0.3), low=-1.0)),
    one_output(last.losses.Loss("squares", last.losses.squared_error.value, low=-1.0), clipped),
  ]
  grid = np.linspace(-1, 1, 401) if set_name != "one_hot" else np.array([-1.0, 1.0])
  left = {"truth": [], "found": []}
  for learner, seed in itertools.product(learners, range(20)):
    draw = np.random.default_rng(seed)
    params, target = ({"w": draw.normal(size=(2, 1))} for _ in range(2))
    problem = problems.Problem(params, target, draw.normal(size=(1, 2)), draw.choice([-1.0, 1.0], size=(1, 1)))
    labels = labels_in(set_name)(learner, params, target, problem.x, problem.truth)
    distances = distances_of(learner, problem, jnp.asarray(grid)[:, None, None])
    best, truth = float(distances.min()), problems.distance_after(learner, problem, problem.truth)
    found = problems.distance_after(learner, problem, labels)
    assert found <= truth + 1e-12
    left["truth"].append(max(truth - best, 0.0))
    left["found"].append(max(found - best, 0.0))
  assert np.mean(left["found"]) <= 0.02 * np.mean(left["truth"])


def _summed_huber(outputs, label, delta):
  return jnp.sum(optax.huber_loss(outputs, label, delta=delta))


@functools.cache
def labels_in(name):
  return jax.jit(lambda *problem: last.synthesize_labels(*problem, problems.CONSTRAINTS[name]))


@jax.jit
def distances_of(learner, problem, labels):
  """G of each of `labels [s, m, K]`."""
  student, x = learner.start(jax.tree.map(jnp.asarray, problem.params)), jnp.asarray(problem.x)
  after = jax.lax.map(lambda label: learner.step(student, x, label).params, labels)
  return jax.vmap(lambda params: distances.squared_distance(params, problem.target))(after)


def test_one_hot_batches_of_hinge_loss_leave_a_truth_whose_gradient_vanishes(x64):
  learner = one_output(HINGE["signs"])
  params, target = {"w": np.array([[2.0], [2.0]])}, {"w": np.array([[-1.0], [1.0]])}
  x, truth = np.array([[1.0, 0.0], [0.0, 1.0]]), np.ones((2, 1))
  problem = problems.Problem(params, target, x, truth)
  labels = last.synthesize_labels(learner, params, target, x, truth, last.constraints.one_hot())
  every = [np.array(labels)[:, None] for labels in itertools.product([-1.0, 1.0], repeat=2)]
  best = min(problems.distance_after(learner, problem, candidate) for candidate in every)
  assert problems.distance_after(learner, problem, labels) == pytest.approx(best)
  assert best < problems.distance_after(learner, problem, truth)


def test_optimizers_and_losses_are_recognised():
  params = {"w": jnp.ones((3, 2))}
  affine = [
    optax.sgd(0.1),
    optax.sgd(0.1, momentum=0.9, nesterov=True),
    optax.chain(optax.add_decayed_weights(0.1), optax.sgd(1.0)),
  ]
  others = [optax.adam(0.1), optax.rmsprop(0.1), optax.sign_sgd(0.1), optax.chain(optax.clip(1.0), optax.sgd(1.0))]
  for transformation in affine:
    learner = last.learners.logistic(2, optimizer=transformation)
    assert learner.optimizer.is_affine(params)
  for transformation in others:
    learner = last.learners.logistic(2, optimizer=transformation)
    assert not learner.optimizer.is_affine(params)
  assert last.losses.as_loss(lambda z, y: jnp.sum((z - y) ** 2)).is_affine(3)
  assert not last.losses.as_loss(lambda z, y: jnp.sum((z - y) ** 4)).is_affine(3)


@pytest.mark.slow
def test_a_users_own_loss_that_is_affine_in_the_label_is_solved_exactly(x64):
  def huber_free(outputs, label):  # A loss of the user's own: softplus potential, linear in the label.
    return jnp.sum(jnp.logaddexp(outputs, -outputs) - label * outputs)

  learner = last.learners.from_apply(
    lambda key: {"w": jax.random.normal(key, (4, 3))},
    lambda p, x: jnp.tanh(x @ p["w"]),
    huber_free,
    optimizer=optax.sgd(0.4, momentum=0.5),
  )
  draw = np.random.default_rng(0)
  params, target = (learner.init(jax.random.key(i)) for i in (0, 1))
  problem = problems.Problem(params, target, draw.normal(size=(2, 4)), np.eye(3)[[1, 2]])
  start, columns = problems.step_map_of(learner, problem)
  best = problems.solve("simplex", start, columns, problems.flatten(target), problem.truth, None)
  labels = last.synthesize_labels(learner, params, target, problem.x, problem.truth, last.constraints.simplex())
  assert problems.distance_after(learner, problem, labels) == pytest.approx(best, rel=1e-6)


# Not softmax in a round ball: labels then have a direction without effect, and what is nearest the truth along it is
# settled by rounding alone, so that neither derivative means much.
@pytest.mark.slow
@pytest.mark.parametrize(
  ("kind", "batch", "name"),
  [
    *(("logistic", 1, name) for name in ("none", "simplex", "simplex_2", "ball_inf", "ball_2")),
    *(("least_squares_3", 2, name) for name in ("none", "simplex", "ball_2")),
    *(("mlp", 2, name) for name in ("none", "simplex", "simplex_2")),
  ],
)
def test_labels_are_differentiable(x64, kind, batch, name):
  """The derivative of a label in the parameters equals central differences (where the active set does not change)."""
  problem = problems.random_problem(kind, batch, 11)
  learner = problems.KINDS[kind][0](0.3)
  direction = jax.tree.map(lambda leaf: np.random.default_rng(1).normal(size=leaf.shape), problem.params)

  def labels(t):
    params = jax.tree.map(lambda w, d: w + t * d, problem.params, direction)
    return last.synthesize_labels(learner, params, problem.target, problem.x, problem.truth, problems.CONSTRAINTS[name])

  weights = np.random.default_rng(2).normal(size=problem.truth.shape)
  found = jax.grad(lambda t: jnp.sum(weights * labels(t)))(0.0)
  step = 1e-6
  expected = np.sum(weights * (labels(step) - labels(-step))) / (2 * step)
  np.testing.assert_allclose(found, expected, rtol=2e-4, atol=1e-6)


# --- Parameters of any structure.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Module:
  """A model that is its own parameters, as Equinox has them."""

  layers: tuple
  name: str = dataclasses.field(metadata={"static": True})


def _as_pairs(params):
  return [(layer["weights"], layer["bias"]) for layer in params.values()]


STRUCTURES = {
  "pairs": (_as_pairs, lambda params: params),
  "module": (lambda params: Module(tuple(_as_pairs(params)), "mine"), lambda params: params.layers),
}


def tuple_learner(structure):
  """The network of `mlp((4, 6, 3))`, with its parameters in tuples; and the function that puts them there."""
  plain = last.learners.mlp((4, 6, 3), learning_rate=0.3, activation="tanh")
  pack, layers_of = STRUCTURES[structure]

  def apply(params, x):
    (first, second) = layers_of(params)
    return jnp.tanh(x @ first[0] + first[1][None]) @ second[0] + second[1][None]

  packed = last.learners.from_apply(
    lambda key: pack(plain.init(key)), apply, "softmax_cross_entropy", learning_rate=0.3
  )
  return plain, packed, pack


@pytest.mark.slow
@pytest.mark.parametrize("structure", list(STRUCTURES))
def test_parameters_may_contain_tuples(structure):
  plain, packed, pack = tuple_learner(structure)
  params, target = (plain.init(jax.random.key(i)) for i in (0, 1))
  x, y = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32), np.array([0, 2])
  simplex = last.constraints.simplex()
  expected = last.synthesize_labels(plain, params, target, x, y, simplex)
  labels = last.synthesize_labels(packed, pack(params), pack(target), x, y, simplex)
  np.testing.assert_allclose(labels, expected, atol=1e-5)
  if structure == "pairs":
    weights = {"layer_0": 0.1, "layer_1": 2.0}
    expected = last.synthesize_labels(plain, params, target, x, y, simplex, layer_weights=weights)
    labels = last.synthesize_labels(packed, pack(params), pack(target), x, y, simplex, layer_weights=[0.1, 2.0])
    np.testing.assert_allclose(labels, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("method", [last.teachers.greedy, last.teachers.mixed])
def test_parameters_with_tuples_are_taught(method):
  plain, packed, pack = tuple_learner("pairs")
  draw = np.random.default_rng(0)
  pool = last.Pool(draw.normal(size=(12, 4)).astype(np.float32), np.arange(12) % 3)
  target = plain.init(jax.random.key(1))
  teacher, start = method(last.constraints.simplex()), plain.init(jax.random.key(3))
  expected = last.teach(jax.random.key(0), plain, teacher, pool, target=target, init=start, steps=5)
  found = last.teach(jax.random.key(0), packed, teacher, pool, target=pack(target), init=pack(start), steps=5)
  np.testing.assert_allclose(found.distance, expected.distance, rtol=1e-4)


# --- Numbers at the ends of their range.


@pytest.mark.slow
@pytest.mark.parametrize("num_classes", [3, 10])
@pytest.mark.parametrize("kind", ["softmax", "mlp"])
def test_labels_in_float32_do_not_depend_on_the_range_of_the_rate(kind, num_classes):
  """Where the rate vanishes the labels tend to a limit, and where it explodes to another: no square may be lost."""

  def learner(rate):
    if kind == "softmax":
      return last.learners.softmax(4, num_classes, learning_rate=rate)
    return last.learners.mlp((4, 6, num_classes), activation="tanh", learning_rate=rate)

  params, target = (learner(1.0).init(jax.random.key(i)) for i in (0, 1))
  x = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
  y = np.arange(3)
  outputs = learner(1.0).apply(params, x)
  for constraint in (last.constraints.simplex(), last.constraints.magnitude(0.6)):

    @jax.jit
    def gradients(rate, constraint=constraint):
      """u of the labels: in a ball, labels themselves have a direction without effect."""
      labels = last.synthesize_labels(learner(rate), params, target, x, y, constraint)
      return jax.vmap(learner(rate).loss.output_gradient)(outputs, labels)

    truth = jax.vmap(learner(1.0).loss.output_gradient)(outputs, jnp.eye(num_classes)[y])
    for limit, rates in ((1e-7, (1e-10, 1e-12, 1e-20, 1e-30)), (1e7, (1e10, 1e12, 1e18))):
      expected = gradients(limit)
      assert np.abs(expected - truth).max() > 0.1
      for rate in rates:
        np.testing.assert_allclose(gradients(rate), expected, atol=2e-4, err_msg=f"{constraint.name}, {rate}")


@pytest.mark.parametrize("kind", ["least_squares", "softmax", "mlp"])
def test_free_labels_in_float32_scale_with_the_rate(kind):
  make = {
    "least_squares": lambda rate: last.learners.least_squares(4, 3, learning_rate=rate, bias=False),
    "softmax": lambda rate: last.learners.softmax(4, 3, learning_rate=rate),
    "mlp": lambda rate: last.learners.mlp((4, 6, 3), activation="tanh", learning_rate=rate),
  }[kind]
  params, target = (make(1.0).init(jax.random.key(i)) for i in (0, 1))
  x, y = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32), np.array([0, 2])
  labels = jax.jit(lambda rate, x: last.synthesize_labels(make(rate), params, target, x, y))
  expected = 1e-5 * labels(1e-5, x)
  for rate in (1e-10, 1e-15, 1e-25, 1e-30):
    np.testing.assert_allclose(rate * labels(rate, x), expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max())
  assert np.isfinite(labels(1e20, x)).all()
  if kind == "least_squares":  # Small examples do as small rates do: the label makes up for both.
    small = labels(1.0, 1e-12 * x)
    np.testing.assert_allclose(1e-12 * small, expected, rtol=1e-2, atol=1e-2 * np.abs(expected).max())


@pytest.mark.slow
def test_labels_are_never_worse_than_the_truth_in_float32():
  """Judged in float64, for batches whose quadratic is singular, and students near and far."""
  learner = last.learners.softmax(4, 5, learning_rate=0.3)
  for constraint in (last.constraints.none(), last.constraints.simplex()):
    labels = jax.jit(functools.partial(last.synthesize_labels, learner, constraint=constraint))
    for seed, spread in itertools.product(range(5), (1e-5, 1.0, 1e4)):
      draw = np.random.default_rng(seed)
      params = {"weights": draw.normal(size=(4, 5)), "bias": draw.normal(size=5)}
      target = jax.tree.map(lambda leaf, d=draw, s=spread: leaf + s * d.normal(size=leaf.shape), params)
      x, truth = draw.normal(size=(8, 4)), np.eye(5)[draw.integers(5, size=8)]
      single = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (params, target, x, truth))
      found = labels(*single)
      with jax.enable_x64(True):
        params, target, x, truth = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), single)
        problem = problems.Problem(params, target, x, truth)
        before, after = (problems.distance_after(learner, problem, label) for label in (truth, np.asarray(found)))
      assert after <= before * (1 + 1e-6)


@pytest.mark.slow
def test_through_adam_labels_teach_networks_with_dead_units(x64):
  """Adam has no derivative at a gradient of zero, which ReLU networks have wherever a unit is off."""
  learner = last.learners.mlp((4, 8, 3), activation="relu", optimizer=optax.adam(0.05))
  draw = np.random.default_rng(0)
  for seed in range(3):
    params, target = (learner.init(jax.random.key(i)) for i in (seed, seed + 100))
    x, truth = jnp.asarray(draw.normal(size=(1, 4))), jnp.eye(3)[:1]
    student = learner.step(learner.start(params), x, truth)
    labels = last.synthesize_labels(learner, student.params, target, x, truth, opt_state=student.opt_state)
    before, after = (
      distances.squared_distance(learner.step(student, x, label).params, target) for label in (truth, labels)
    )
    assert after < before - 1e-3


# --- Distances, and functions that users write.


def test_the_distance_has_a_derivative_at_the_target(x64):
  target = {"w": jnp.ones((3, 2)), "b": jnp.zeros(2)}
  value, gradient = jax.value_and_grad(distances.distance)(target, target)
  assert value == 0
  chex.assert_trees_all_equal(gradient, jax.tree.map(jnp.zeros_like, target))
  tangent = jax.jvp(lambda params: distances.distance(params, target), (target,), (target,))[1]
  assert tangent == 0
  params = jax.tree.map(lambda leaf: leaf + 0.5, target)
  value, gradient = jax.value_and_grad(distances.distance)(params, target)
  np.testing.assert_allclose(value, 0.5 * 8**0.5)
  chex.assert_trees_all_close(gradient, jax.tree.map(lambda leaf: jnp.full_like(leaf, 8**-0.5), target))


BAD_PROJECTIONS = {
  "a number": lambda label, center, radius, corners: jnp.sum(label),
  "a longer label": lambda label, center, radius, corners: jnp.concatenate([label, label]),
  "all labels of classes": lambda label, center, radius, corners: corners,
  "whole numbers": lambda label, center, radius, corners: jnp.round(label).astype(int),
  "a pair": lambda label, center, radius, corners: (label, center),
}


@pytest.mark.parametrize(
  "learner", [last.learners.softmax(4, 3, learning_rate=0.1), last.learners.mlp((4, 3, 3), learning_rate=0.1)]
)
@pytest.mark.parametrize("name", list(BAD_PROJECTIONS))
def test_a_projection_that_returns_no_label_is_refused(learner, name):
  constraint = last.constraints.Constraint("mine", project=BAD_PROJECTIONS[name], hull=True)
  params = learner.init(jax.random.key(0))
  x, y = np.ones((1, 4), np.float32), np.array([1])
  with pytest.raises((ValueError, TypeError), match=r"project of the constraint 'mine' must return .* shape \[3\]"):
    last.synthesize_labels(learner, params, params, x, y, constraint)
