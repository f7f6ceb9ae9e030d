"""Learners: outputs, gradients and steps against their formulas, encoded labels, recognised optimizers, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import last_jax as last
from last_jax import models
from last_jax.optimizers import Optax, Sgd
from tests.compilations import counted


def test_a_step_is_the_formula(x64):
  """w+ = w - eta (mean gradient + lambda w), with lambda not applied to the bias."""
  draw = np.random.default_rng(0)
  w, b, x, y = draw.normal(size=(4, 1)), draw.normal(size=1), draw.normal(size=(3, 4)), draw.uniform(size=(3, 1))
  learner = last.learners.logistic(4, learning_rate=0.2, weight_decay=0.1)
  after = learner.step(learner.start({"weights": jnp.asarray(w), "bias": jnp.asarray(b)}), jnp.asarray(x), y).params
  u = 1 / (1 + np.exp(-(x @ w + b))) - y
  np.testing.assert_allclose(after["weights"], w - 0.2 * (x.T @ u / 3 + 0.1 * w))
  np.testing.assert_allclose(after["bias"], b - 0.2 * u.mean(0))


@pytest.mark.parametrize(
  ("loss", "gradient"),
  [
    ("squared_error", lambda z, y: z - y),
    ("sigmoid_cross_entropy", lambda z, y: 1 / (1 + np.exp(-z)) - y),
    ("softmax_cross_entropy", lambda z, y: y.sum() * np.exp(z) / np.exp(z).sum() - y),
    ("margin_logistic", lambda z, y: -y / (1 + np.exp(y * z))),
  ],
)
def test_output_gradients_are_the_formulas_and_affine_where_said(x64, loss, gradient):
  chosen = last.losses.as_loss(loss)
  draw = np.random.default_rng(1)
  for _ in range(10):
    z, y = draw.normal(size=3), 2 * draw.normal(size=3)  # Labels need not be probabilities, nor sum to one.
    np.testing.assert_allclose(chosen.output_gradient(jnp.asarray(z), jnp.asarray(y)), gradient(z, y), rtol=1e-9)
    slope = np.stack([(gradient(z, y + 1e-6 * e) - gradient(z, y - 1e-6 * e)) / 2e-6 for e in np.eye(3)], 1)
    np.testing.assert_allclose(chosen.label_slope(jnp.asarray(z), jnp.asarray(y)), slope, atol=1e-7)
  unstated = last.losses.Loss(loss, chosen.value)
  assert unstated.is_affine(3) == (loss != "margin_logistic")
  assert chosen.is_affine(3) == (loss != "margin_logistic")


@pytest.mark.parametrize("outputs", [1, 2, 5])
@pytest.mark.parametrize("loss", ["squared_error", "sigmoid_cross_entropy", "softmax_cross_entropy"])
def test_gradients_are_made_of_their_rows(x64, loss, outputs):
  """Also for labels that do not sum to one."""
  chosen, draw = last.losses.as_loss(loss), np.random.default_rng(2)
  rows = chosen.gradient_rows(outputs)
  assert len(rows) == outputs - (loss == "softmax_cross_entropy" and outputs > 1)
  z, y = jnp.asarray(draw.normal(size=outputs)), jnp.asarray(2 * draw.normal(size=outputs))
  gradient = np.asarray(chosen.output_gradient(z, y))
  np.testing.assert_allclose(gradient[: len(rows)] @ rows, gradient, atol=1e-14)
  np.testing.assert_array_equal(last.losses.Loss("mine", chosen.value).gradient_rows(outputs), np.eye(outputs))


@pytest.mark.parametrize("loss", ["squared_error", "sigmoid_cross_entropy", "softmax_cross_entropy", "mine"])
def test_products_of_labels_are_those_of_the_gradients_that_they_cause(x64, loss):
  """For B of every loss, P from a random Jacobian: Bᵀ J Jᵀ B."""
  draw, number, outputs = np.random.default_rng(3), 3, 4
  # Not affine, and no structure to use.
  own = last.losses.Loss("mine", lambda z, y: jnp.sum(jnp.tanh(z) * y) + jnp.sum(z) ** 2 * y[0])
  chosen = own if loss == "mine" else last.losses.as_loss(loss)
  z, y = (jnp.asarray(draw.normal(size=(number, outputs))) for _ in range(2))
  slopes = jax.vmap(chosen.label_slope)(z, y)
  jacobian = draw.normal(size=(number, outputs, 20))
  rows = np.einsum("rk,nkp->nrp", chosen.gradient_rows(outputs), jacobian)
  found = chosen.between_labels(jnp.einsum("irp,jsp->irjs", rows, rows), slopes)
  columns = np.einsum("nkc,nkp->ncp", slopes, jacobian)
  np.testing.assert_allclose(found, np.einsum("icp,jdp->icjd", columns, columns), atol=1e-10)


SGD_SETTINGS = [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True}]


@pytest.mark.parametrize("settings", SGD_SETTINGS)
@pytest.mark.slow
def test_the_sgd_family_is_optax_and_its_rate_is_right(x64, settings):
  schedule = optax.linear_schedule(0.3, 0.1, 10)
  for learning_rate in (0.2, schedule):
    learner = last.learners.least_squares(3, learning_rate=learning_rate, **settings)
    transformation = optax.sgd(learning_rate, **settings)
    student = learner.start(learner.init(jax.random.key(0)))
    params, opt_state = student.params, transformation.init(student.params)
    draw = np.random.default_rng(0)
    for _ in range(4):
      x, y = jnp.asarray(draw.normal(size=(2, 3))), jnp.asarray(draw.normal(size=(2, 1)))
      gradient = jax.tree.map(lambda leaf, draw=draw: jnp.asarray(draw.normal(size=leaf.shape)), student.params)
      still = learner.update(student, jax.tree.map(jnp.zeros_like, gradient)).params
      moved = learner.update(student, gradient).params
      rate = learner.optimizer.rate(student.opt_state)
      jax.tree.map(lambda a, b, g, r=rate: np.testing.assert_allclose(a, b - r * g, rtol=1e-9), moved, still, gradient)
      student = learner.step(student, x, y)
      updates, opt_state = transformation.update(jax.grad(learner.mean_loss)(params, x, y), opt_state, params)
      params = optax.apply_updates(params, updates)
      jax.tree.map(np.testing.assert_array_equal, student.params, params)


# --- optax.sgd is recognised.


@pytest.mark.parametrize("settings", SGD_SETTINGS)
@pytest.mark.parametrize("rate", [0.2, 1, np.float32(0.2), jnp.asarray(0.2), optax.linear_schedule(0.3, 0.1, 10)])
def test_optax_sgd_gives_the_learner_that_learning_rate_gives(rate, settings):
  known = last.learners.logistic(3, learning_rate=rate, weight_decay=1e-2, **settings)
  learner = last.learners.logistic(3, optimizer=optax.sgd(rate, **settings), weight_decay=1e-2)
  assert learner.is_linear
  assert isinstance(learner.optimizer, Sgd)
  assert jax.tree.structure(learner) == jax.tree.structure(known)
  draw = np.random.default_rng(0)
  x, y = draw.normal(size=(2, 3)).astype("f4"), np.array([[0.0], [1.0]], "f4")
  target = {"weights": jnp.ones((3, 1)), "bias": jnp.zeros(1)}
  students = [one.start(one.init(jax.random.key(0))) for one in (known, learner)]
  for _ in range(3):
    labels = [
      last.synthesize_labels(one, student.params, target, x[:1], y[:1], opt_state=student.opt_state)
      for one, student in zip((known, learner), students, strict=True)
    ]
    np.testing.assert_array_equal(*labels)
    students = [one.step(student, x, y) for one, student in zip((known, learner), students, strict=True)]
    jax.tree.map(np.testing.assert_array_equal, *students)


def test_rates_of_optax_sgd_are_data():
  x, y, target = np.ones((1, 3), "f4"), np.array([1]), {"weights": jnp.ones((3, 1)), "bias": jnp.zeros(1)}
  params = jax.tree.map(jnp.zeros_like, target)

  def synthesize(rate, momentum):
    learner = last.learners.logistic(3, optimizer=optax.sgd(rate, momentum=momentum))
    return np.asarray(last.synthesize_labels(learner, params, target, x, y)).item()

  synthesize(0.05, None), synthesize(0.05, 0.1)
  with counted() as programs:
    labels = [synthesize(rate, None) for rate in np.linspace(0.1, 2.0, 20).tolist()]
    for momentum in np.linspace(0.0, 0.9, 20).tolist():
      synthesize(0.1, momentum)
  assert programs.count == 0
  assert len(set(labels)) == 20


def test_a_rate_that_is_traced_is_recognised():
  def label(rate):
    learner = last.learners.logistic(2, optimizer=optax.sgd(rate))
    assert learner.is_linear
    params, target = ({"weights": value * jnp.ones((2, 1)), "bias": jnp.zeros(1)} for value in (0.0, 1.0))
    return last.synthesize_labels(learner, params, target, np.ones((1, 2), "f4"), np.array([1]))[0, 0]

  rates = jnp.array([0.5, 1.0, 2.0])
  # y* = sigmoid(z) + (z* - z) / (rate ||x||^2), with z = 0, z* = 2 and ||x||^2 = 3.
  np.testing.assert_allclose(jax.vmap(label)(rates), 0.5 + 2 / (3 * rates), rtol=1e-6)


@pytest.mark.parametrize(
  "transformation",
  [
    optax.sgd(0.1, momentum=0.9, accumulator_dtype=jnp.bfloat16),
    optax.sgd(jnp.ones(3)),
    optax.chain(optax.sgd(0.1), optax.identity()),
    optax.chain(optax.scale(-0.1), optax.identity()),
    optax.chain(optax.clip(1.0), optax.scale(-0.1)),
    optax.chain(optax.identity(), optax.scale_by_schedule(lambda count: -0.1)),
    optax.sign_sgd(0.1),
    optax.adam(0.1),
  ],
)
def test_other_transformations_are_taken_unchanged(transformation):
  learner = last.learners.logistic(3, optimizer=transformation)
  assert isinstance(learner.optimizer, Optax)
  assert learner.optimizer.transformation is transformation
  assert not learner.is_linear


def test_networks_have_the_shapes_and_activations_of_the_paper(x64):
  learner = last.learners.mlp((24, 32, 5), activation="leaky_relu", learning_rate=5e-4, bias=False)
  params = learner.init(jax.random.key(0))
  assert jax.tree.map(jnp.shape, params) == {"layer_0": {"weights": (24, 32)}, "layer_1": {"weights": (32, 5)}}
  x = np.random.default_rng(0).normal(size=(6, 24))
  hidden = x @ params["layer_0"]["weights"]
  expected = np.where(hidden > 0, hidden, 0.01 * hidden) @ params["layer_1"]["weights"]
  np.testing.assert_allclose(learner.apply(params, x), expected)
  relu = last.learners.mlp((24, 32, 5), learning_rate=5e-4, bias=False)
  np.testing.assert_allclose(relu.apply(params, x), np.maximum(hidden, 0) @ params["layer_1"]["weights"])


def test_labels_are_encoded_as_vectors():
  x, ids = jnp.ones((3, 2)), jnp.array([0, 1, 1])
  logistic = last.learners.logistic(2, learning_rate=1.0)
  margin = last.learners.logistic(2, learning_rate=1.0, form="margin")
  softmax = last.learners.softmax(2, 2, learning_rate=1.0)
  regression = last.learners.least_squares(2, learning_rate=1.0)
  np.testing.assert_array_equal(logistic.encode(x, ids), [[0], [1], [1]])
  np.testing.assert_array_equal(margin.encode(x, ids), [[-1], [1], [1]])
  np.testing.assert_array_equal(softmax.encode(x, ids), [[1, 0], [0, 1], [0, 1]])
  np.testing.assert_array_equal(regression.encode(x, jnp.array([0, 5, 7])), [[0], [5], [7]])
  np.testing.assert_array_equal(logistic.encode(x, jnp.array([0.2, 0.5, 1.0])), np.array([[0.2], [0.5], [1.0]], "f4"))
  vectors = jnp.array([[0.0, 2.0], [0.5, 1.5], [1.0, 1.0]])
  np.testing.assert_array_equal(softmax.encode(x, vectors), vectors)


@pytest.mark.slow
def test_a_flax_module_can_be_taught():
  import flax.linen as nn

  class Net(nn.Module):
    @nn.compact
    def __call__(self, x):
      return nn.Dense(3)(nn.tanh(nn.Dense(8)(x)))

  model = Net()
  example = jnp.ones((1, 4))
  learner = last.learners.from_apply(
    lambda key: model.init(key, example), model.apply, optax.softmax_cross_entropy, optimizer=optax.sgd(0.2)
  )
  draw = np.random.default_rng(0)
  pool = last.Pool(draw.normal(size=(30, 4)), np.arange(30) % 3)
  target = learner.init(jax.random.key(1))
  greedy, sgd = (
    last.teach(jax.random.key(0), learner, teacher, pool, target=target, steps=100)
    for teacher in (last.teachers.greedy(last.constraints.simplex()), last.teachers.sgd())
  )
  assert greedy.distance[-1] < sgd.distance[-1]
  assert greedy.distance[-1] < greedy.distance[0]


@pytest.mark.parametrize(
  ("make", "error", "message"),
  [
    (lambda: last.learners.logistic(3, learning_rate=0.0), ValueError, "learning_rate must be a positive number"),
    (lambda: last.learners.logistic(3, learning_rate=-1e-3), ValueError, "learning_rate must be .* but it is -0.001"),
    (lambda: last.learners.logistic(3), ValueError, "learning_rate is missing"),
    (lambda: last.learners.logistic(3, learning_rate="fast"), TypeError, "learning_rate must be a number"),
    (lambda: last.learners.logistic(0, learning_rate=0.1), ValueError, "num_features must be a whole number"),
    (lambda: last.learners.softmax(3, 1, learning_rate=0.1), ValueError, "num_classes must be .* at least 2"),
    (lambda: last.learners.logistic(3, learning_rate=0.1, form="hinge"), ValueError, "form='hinge' is not known"),
    (lambda: last.learners.logistic(3, learning_rate=0.1, weight_decay=-1), ValueError, "weight_decay must be zero or"),
    (
      lambda: last.learners.logistic(3, learning_rate=0.1, momentum=2.0),
      ValueError,
      "momentum must lie between 0 and 1",
    ),
    (lambda: last.learners.logistic(3, learning_rate=0.1, nesterov=True), ValueError, "nesterov=True needs momentum"),
    (
      lambda: last.learners.logistic(3, learning_rate=0.1, optimizer=optax.sgd(0.1)),
      ValueError,
      "either an optimizer or learning_rate",
    ),
    (
      lambda: last.learners.logistic(3, optimizer=optax.sgd(0.1), nesterov=True),
      ValueError,
      "either an optimizer or learning_rate, momentum and nesterov",
    ),
    (
      lambda: last.learners.from_apply(jnp.ones, jnp.tanh, "squared_error", optimizer=optax.adam(0.1), nesterov=True),
      ValueError,
      "either an optimizer or",
    ),
    (lambda: last.learners.logistic(3, optimizer="adam"), TypeError, "optimizer must be an optax transformation"),
    (lambda: last.learners.mlp((3,), learning_rate=0.1), ValueError, "widths must name at least"),
    (
      lambda: last.learners.mlp((3, 2), learning_rate=0.1, activation="gelu?"),
      ValueError,
      "activation='gelu\\?' is not",
    ),
    (lambda: last.learners.mlp((3, 2), learning_rate=0.1, loss="zero_one"), ValueError, "loss 'zero_one' is not known"),
    (lambda: last.learners.from_apply(None, jnp.tanh, "squared_error"), TypeError, "init_fn must be a function"),
    (lambda: last.losses.as_loss(3), TypeError, "loss must be a name, a function"),
  ],
)
def test_bad_learners_are_refused(make, error, message):
  with pytest.raises(error, match=message):
    make()


# --- What users' functions return.


def custom(
  apply_fn=lambda params, x: x @ params, loss="squared_error", init_fn=lambda key: jnp.ones((3, 2)), **settings
):
  settings = settings or {"learning_rate": 0.1}
  return last.learners.from_apply(init_fn, apply_fn, loss, **settings)


@pytest.mark.parametrize(
  ("make", "error", "message"),
  [
    (
      lambda: custom(lambda params, x: jnp.sum(x @ params)),
      ValueError,
      r"apply_fn must return .* of shape \[4\] or \[4, K\] or \[4, T, K\], but it returned float32 of shape \[\]",
    ),
    (lambda: custom(lambda params, x: (x @ params)[:, :, None, None]), ValueError, r"apply_fn .* \[4, 2, 1, 1\]"),
    (lambda: custom(lambda params, x: (x @ params)[:3]), ValueError, r"apply_fn .* returned float32 of shape \[3, 2\]"),
    (lambda: custom(lambda params, x: (x @ params).astype(int)), ValueError, "apply_fn .* returned int32"),
    (lambda: custom(lambda params, x: (x @ params, 0)), TypeError, "apply_fn .* but it returned a tuple"),
    (lambda: custom(init_fn=lambda key: {"w": jnp.ones((3, 2), int)}), TypeError, r"init_fn .* leaf \['w'\] is int32"),
    (lambda: custom(init_fn=lambda key: [jnp.ones(2), jnp.tanh]), TypeError, r"init_fn .* leaf \[1\] is a "),
    (
      lambda: custom(loss=lambda z, y: jnp.outer(z, y)),
      ValueError,
      r"the loss <lambda> must return .* of shape \[\] or \[2\], but it returned float32 of shape \[2, 2\]",
    ),
    (lambda: custom(loss=lambda z, y: jnp.sum(z > y)), ValueError, "the loss <lambda> .* but it returned int32"),
    (lambda: custom(loss=lambda z, y: None), TypeError, "the loss <lambda> .* but it returned a NoneType"),
    (
      lambda: custom(loss=last.losses.Loss("mine", lambda z, y: z - y)),
      ValueError,
      r"the loss mine must return a floating point array of shape \[\], but it returned float32 of shape \[2\]",
    ),
    (
      lambda: last.learners.mlp((3, 5, 2), learning_rate=0.1, activation=jnp.sum),
      ValueError,
      r"activation must return a floating point array of shape \[4, 5\]",
    ),
  ],
)
def test_what_functions_return_is_checked_when_it_is_traced(make, error, message):
  learner = make()
  with pytest.raises(error, match=message):
    jax.jit(lambda x, y: learner.step(learner.start(learner.init(jax.random.key(0))), x, y))(
      np.ones((4, 3), "f4"), np.ones((4, 2), "f4")
    )


def test_a_schedule_must_return_one_number():
  learner = last.learners.logistic(2, learning_rate=lambda count: jnp.ones(2))
  params = learner.init(jax.random.key(0))
  with pytest.raises(ValueError, match=r"the schedule of learning_rate must return .* shape \[\], but .* shape \[2\]"):
    last.synthesize_labels(learner, params, params, np.ones((1, 2), "f4"), np.array([1]))


def test_predictions_are_checked():
  loss = last.losses.Loss("mine", lambda z, y: jnp.sum((z - y) ** 2), predict=jnp.sum)
  with pytest.raises(ValueError, match=r"predict of the loss mine must return .* shape \[3\]"):
    loss.predict_all(jnp.ones((2, 3)))


def test_one_output_may_come_without_its_axis():
  learner = custom(lambda params, x: x @ params[:, 0], loss="sigmoid_cross_entropy")
  params = learner.init(jax.random.key(0))
  assert learner.apply(params, np.ones((4, 3), "f4")).shape == (4, 1)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (1, 2), (3, 2)])
def test_labels_of_another_shape_are_refused(shape):
  """They would broadcast, and teach something else."""
  learner = custom()
  student = learner.start(learner.init(jax.random.key(0)))
  with pytest.raises(ValueError, match=r"labels must have shape \[4, 2\], but they have shape"):
    learner.step(student, jnp.ones((4, 3)), jnp.ones(shape))


def test_inputs_of_another_width_are_refused():
  learner = last.learners.logistic(3, learning_rate=0.1)
  with pytest.raises(ValueError, match=r"x must have shape \[n, 3\] for this learner"):
    learner.apply(learner.init(jax.random.key(0)), jnp.ones((2, 4)))


def test_shapes_of_parameters_follow_the_width_of_floats():
  learner = last.learners.logistic(3, learning_rate=0.1)
  assert models.param_shapes(learner.model)["weights"].dtype == jnp.float32
  with jax.enable_x64(True):
    assert models.param_shapes(learner.model)["weights"].dtype == jnp.float64
  assert models.param_shapes(learner.model)["weights"].dtype == jnp.float32


def test_bad_synthesis_arguments_are_refused():
  learner = last.learners.softmax(3, 4, learning_rate=0.1)
  params = learner.init(jax.random.key(0))
  x = np.ones((2, 3))
  with pytest.raises(ValueError, match=r"x must have shape \[n, 3\] for this learner"):
    last.synthesize_labels(learner, params, params, np.ones((2, 5)), np.zeros(2, int))
  with pytest.raises(ValueError, match="y holds class ids from 0 to 4, but the learner has 4 classes"):
    last.synthesize_labels(learner, params, params, x, np.array([0, 4]))
  with pytest.raises(ValueError, match="y holds label vectors of length 3, but the learner has 4 outputs"):
    last.synthesize_labels(learner, params, params, x, np.ones((2, 3)))
  with pytest.raises(ValueError, match="y must hold a label for each of 2 examples"):
    last.synthesize_labels(learner, params, params, x, np.zeros(3, int))
  with pytest.raises(ValueError, match="y holds real numbers, but the learner has 4 outputs"):
    last.synthesize_labels(learner, params, params, x, np.array([0.5, 1.0]))
  with jax.debug_nans(False), pytest.raises(ValueError, match="x holds NaN"):
    last.synthesize_labels(learner, params, params, np.full((2, 3), np.nan), np.zeros(2, int))
