"""Outputs and labels for each token, [m, T, K]: a causal transformer and tables, under teachers that need no w*."""

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import last_jax as last
from tests.compilations import counted

KEY = jax.random.key(0)
N, T, K, VOCABULARY = 12, 5, 4, 7
DRAW = np.random.default_rng(0)
IDS = DRAW.integers(VOCABULARY, size=(N, T))
Y = DRAW.integers(K, size=(N, T))
POOL = last.Pool(IDS, Y)
LOSS = "softmax_cross_entropy"


class Transformer(nn.Module):
  @nn.compact
  def __call__(self, ids, deterministic: bool):
    x = nn.Embed(VOCABULARY, 8)(ids) + self.param("position", nn.initializers.normal(), (1, T, 8))
    mask = nn.make_causal_mask(ids)
    attend = nn.MultiHeadDotProductAttention(2, deterministic=deterministic, dropout_rate=0.5)
    x = x + attend(nn.LayerNorm()(x), mask=mask)
    return nn.Dense(K)(x + nn.Dense(8)(nn.gelu(nn.Dense(16)(nn.LayerNorm()(x)))))


class Nnx(nnx.Module):
  def __init__(self, rngs):
    self.table, self.last = nnx.Embed(VOCABULARY, 6, rngs=rngs), nnx.Linear(6, K, rngs=rngs)

  def __call__(self, ids):
    return self.last(nnx.tanh(self.table(ids)))


class Equinox(eqx.Module):
  table: eqx.nn.Embedding
  last: eqx.nn.Linear

  def __init__(self, *, key):
    self.table, self.last = eqx.nn.Embedding(VOCABULARY, 6, key=key), eqx.nn.Linear(6, K, key=key)

  def __call__(self, ids):
    return jax.vmap(self.last)(jnp.tanh(jax.vmap(self.table)(ids)))


def functions_init(key):
  one, other = jax.random.split(key)
  return {"table": jax.random.normal(one, (VOCABULARY, 6)), "last": 0.4 * jax.random.normal(other, (6, K))}


def functions_apply(params, x):
  return jnp.tanh(params["table"][x.astype(int)]) @ params["last"]


LEARNERS = {
  "functions": lambda: last.learners.from_apply(functions_init, functions_apply, LOSS, learning_rate=0.5),
  "linen": lambda: last.learners.from_flax(Transformer(), IDS[:1], loss=LOSS, learning_rate=0.1),
  "nnx": lambda: last.learners.from_flax(Nnx, IDS[:1], loss=LOSS, learning_rate=0.5),
  "equinox": lambda: last.learners.from_equinox(Equinox, IDS[:1], loss=LOSS, learning_rate=0.5),
}
TEACHERS = {
  "sgd": last.teachers.sgd,
  "label_smoothing": lambda: last.teachers.label_smoothing(0.8),
  "distillation": lambda: last.teachers.distillation(lambda x: jnp.stack([jnp.sin(k * x) for k in range(K)], -1), 2.0),
  "self_training": last.teachers.self_training,
  "hard": lambda: last.teachers.self_training(hard=True),
}


@pytest.mark.parametrize("kind", LEARNERS)
def test_shapes_losses_and_accuracy(kind):
  learner = LEARNERS[kind]()
  params = learner.init(KEY)
  assert learner.output_shape(POOL.x) == (T, K)
  assert learner.num_outputs(POOL.x) == K
  outputs = np.asarray(learner.apply(params, POOL.x), np.float64)
  assert outputs.shape == (N, T, K)
  labels = learner.encode(POOL.x, POOL.y)
  np.testing.assert_array_equal(labels, np.eye(K)[Y])
  np.testing.assert_array_equal(learner.encode(POOL.x, jnp.asarray(labels)), labels)
  logs = outputs - np.log(np.exp(outputs).sum(-1, keepdims=True))
  expected = -np.mean([logs[i, t, Y[i, t]] for i in range(N) for t in range(T)])
  np.testing.assert_allclose(learner.mean_loss(params, POOL.x, labels), expected, rtol=1e-5)
  np.testing.assert_allclose(learner.accuracy(params, POOL.x, labels), np.mean(outputs.argmax(-1) == Y), rtol=1e-6)


@pytest.mark.slow
def test_a_step_is_the_mean_over_tokens():
  learner = LEARNERS["functions"]()
  params = learner.init(KEY)
  labels = jnp.asarray(DRAW.uniform(size=(2, T, K)), jnp.float32)
  after = learner.step(learner.start(params), POOL.x[:2], labels).params

  def loss(params):
    total = 0.0
    for i in range(2):
      for t in range(T):
        z = jnp.tanh(params["table"][IDS[i, t]]) @ params["last"]
        total += -jnp.sum(labels[i, t] * jax.nn.log_softmax(z))
    return total / (2 * T)

  slope = jax.grad(loss)(params)
  for name, w in params.items():
    np.testing.assert_allclose(after[name], w - 0.5 * slope[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
  ("kind", "method"),
  [
    ("functions", "sgd"),
    ("linen", "sgd"),
    ("linen", "label_smoothing"),
    ("nnx", "sgd"),
    ("equinox", "sgd"),
    ("functions", "self_training"),
    ("functions", "distillation"),
    ("functions", "hard"),
    ("functions", "label_smoothing"),
  ],
)
def test_fixed_teachers(kind, method):
  learner = LEARNERS[kind]()

  def teach(seed):
    return last.teach_many(
      jax.random.split(jax.random.key(seed), 2), learner, TEACHERS[method](), POOL, target=learner.init(KEY),
      steps=4, batch_size=3, lessons=True, test=POOL,
    )  # fmt: skip

  result = teach(0)
  index, label = result.lessons
  assert label.shape == (2, 4, 3, T, K)
  assert result.accuracy.shape == result.objective.shape == (2, 5)
  truth = np.eye(K)[Y][np.asarray(index)]
  if method == "sgd":
    np.testing.assert_array_equal(label, truth)
  if method == "label_smoothing":
    np.testing.assert_allclose(label, 0.8 * truth + 0.2 / K, rtol=1e-5)
  if method == "distillation":
    logits = np.stack([np.sin(k * IDS) for k in range(K)], -1) / 2.0
    soft = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    np.testing.assert_allclose(label, soft[np.asarray(index)], rtol=1e-5)
  if method == "hard":
    assert np.all(np.sort(np.asarray(label), -1) == np.eye(K)[-1])
  np.testing.assert_allclose(np.sum(label, -1), 1.0, rtol=1e-5)
  with counted() as programs:
    teach(1)
  assert not programs.names


@pytest.mark.slow
def test_a_transformer_learns():
  """The class of a token is its id's: a few hundred steps of SGD on true labels find it."""
  pool = last.Pool(IDS, IDS % K)
  learner = last.learners.from_flax(Transformer(), IDS[:1], loss=LOSS, learning_rate=0.3)
  result = last.teach(KEY, learner, last.teachers.sgd(), pool, test=pool, steps=300, batch_size=4, record_every=300)
  assert result.accuracy[-1] > 0.95 > result.accuracy[0]


def test_states_with_token_lessons_are_saved_and_live_students_get_them(tmp_path):
  learner = LEARNERS["functions"]()
  problem, teacher = last.Problem(learner, POOL), last.teachers.sgd()
  assert problem.truth.shape == (N, T, K)
  state = last.init(KEY, problem, teacher)
  lesson, state = last.next_lesson(state, problem, teacher, batch_size=2)
  assert lesson.label.shape == (2, T, K)
  last.save(tmp_path / "lesson", lesson)
  jax.tree.map(np.testing.assert_array_equal, last.load(tmp_path / "lesson", like=lesson), lesson)


@pytest.mark.slow
def test_imt_targets_and_what_cannot_be_reached():
  learner = LEARNERS["functions"]()
  target = learner.init(jax.random.key(3))
  params = learner.init(KEY)
  result = last.teach(KEY, learner, last.teachers.imt(), POOL, target=target, init=params, steps=1, lessons=True)
  labels = learner.encode(POOL.x, POOL.y)
  after = [learner.step(learner.start(params), POOL.x[i : i + 1], labels[i : i + 1]).params for i in range(N)]
  gaps = [sum(np.sum((w[name] - target[name]) ** 2) for name in w) for w in map(dict, after)]
  assert result.lessons.index[0, 0] == np.argmin(gaps)
  unused = VOCABULARY - len(np.unique(IDS[:1]))
  part = last.unreachable_part(learner, params, target, POOL.x[:1])
  absent = np.setdiff1d(np.arange(VOCABULARY), IDS[:1])
  assert len(absent) == unused > 0
  np.testing.assert_allclose(part["table"][absent], (params["table"] - target["table"])[absent], atol=1e-4)


@pytest.mark.parametrize(
  ("make", "message"),
  [
    (lambda: last.Problem(LEARNERS["functions"](), last.Pool(IDS, Y[:, :3])), r"pool.y must have shape \[n, 5\] or"),
    (lambda: last.Problem(LEARNERS["functions"](), last.Pool(IDS, Y[:, 0])), r"pool.y must have shape \[n, 5\] or"),
    (
      lambda: last.Problem(LEARNERS["functions"](), last.Pool(IDS, np.ones((N, T, 3)))),
      "label vectors of length 3, but the learner has 4 outputs",
    ),
    (lambda: last.Problem(LEARNERS["functions"](), last.Pool(IDS, Y + 2)), "class ids from 2 to 5, but .* 4 classes"),
    (lambda: last.Problem(LEARNERS["functions"](), last.Pool(IDS, 0.5 * Y)), r"label vectors of shape \[n, 5, 4\]"),
    (lambda: last.Problem(LEARNERS["functions"](), last.Pool(IDS, 0 * Y)), "one class only"),
    (lambda: last.Pool(IDS, np.ones((N, T, K, 1))), r"\[n, T\] or \[n, T, K\]"),
    (
      lambda: last.Problem(LEARNERS["linen"](), last.Pool(IDS + 0.5, Y)),
      "pool.x must hold integers, as the x that the learner was made for",
    ),
    (
      lambda: last.train_unrolled(KEY, LEARNERS["functions"](), POOL, target=functions_init(KEY), episodes=1),
      "policies give one label to each example, but this one has outputs for 5 tokens",
    ),
    (
      lambda: last.teach(KEY, LEARNERS["functions"](), last.Teacher("flat", step=flat_labels), POOL, steps=1),
      r"labels \[m, T, K\] = \[1, 5, 4\], floats, but they are float32\[1, 4\]",
    ),
  ],
)
def test_what_does_not_fit_is_refused(make, message):
  with pytest.raises(ValueError, match=message):
    make()


def flat_labels(state, view, proposal):
  return last.Lesson(proposal, view.truth[proposal][:, 0]), state, None


def test_one_sequence_is_a_pool():
  """Its tokens differ, although all examples are the same."""
  result = last.teach(KEY, LEARNERS["functions"](), last.teachers.sgd(), last.Pool(IDS[:1], Y[:1]), steps=3)
  assert result.objective[-1] < result.objective[0]


def test_real_targets_of_tokens():
  learner = last.learners.from_apply(
    lambda key: jnp.zeros((VOCABULARY, 1)), lambda params, x: params[x.astype(int)], "squared_error", learning_rate=0.1
  )
  targets = DRAW.normal(size=(N, T)).astype("f4")
  np.testing.assert_array_equal(learner.encode(POOL.x, jnp.asarray(targets)), targets[..., None])
  result = last.teach(KEY, learner, last.teachers.sgd(), last.Pool(IDS, targets), steps=2)
  assert np.isfinite(result.objective).all()


@pytest.mark.parametrize("name", ["none", "simplex"])
@pytest.mark.slow
def test_greedy_labels_of_tokens_are_the_best_of_a_step(x64, name):
  """A step is affine in the labels of all tokens: its columns, taken one by one, and a long projected descent."""
  learner = last.learners.from_apply(functions_init, functions_apply, LOSS, learning_rate=0.5)
  params, target = learner.init(KEY), learner.init(jax.random.key(1))
  x, truth = jnp.asarray(POOL.x[:2], float), learner.encode(POOL.x, POOL.y)[:2].astype(float)
  constraint = {"none": last.constraints.none(), "simplex": last.constraints.simplex()}[name]
  labels, certificate = last.synthesize_labels(learner, params, target, x, truth, constraint, with_certificate=True)
  assert labels.shape == truth.shape == (2, T, K)
  assert certificate.residual < 1e-8

  def residual(labels):
    after = learner.step(learner.start(params), x, labels).params
    return jnp.concatenate([(w - goal).ravel() for w, goal in zip(*map(jax.tree.leaves, (after, target)), strict=True)])

  start = residual(jnp.zeros_like(truth))
  columns = jax.jacfwd(residual)(truth).reshape(start.size, -1)
  np.testing.assert_allclose(residual(truth), start + columns @ truth.ravel(), atol=1e-12)
  reached = float(jnp.sum(residual(labels) ** 2))
  if name == "none":
    best = np.linalg.lstsq(columns, -start)[0]
  else:
    np.testing.assert_allclose(labels.sum(-1), 1.0, atol=1e-9)
    assert labels.min() >= 0
    step = 1 / np.linalg.norm(columns.T @ columns, 2)
    project = jax.jit(lambda y: jax.vmap(optax.projections.projection_simplex)(y.reshape(-1, K)).ravel())
    best = truth.ravel()
    for _ in range(3000):
      best = project(best - step * columns.T @ (start + columns @ best))
  assert reached == pytest.approx(float(jnp.sum((start + columns @ best) ** 2)), rel=1e-6)


@pytest.mark.slow
def test_outputs_of_tokens_are_a_target(x64):
  """G by real steps, of a student that is linearized where it was before: its derivative shows that labels are best."""
  learner = last.learners.from_apply(functions_init, functions_apply, LOSS, learning_rate=0.5)
  params = learner.init(KEY)
  x, x_eval = (jnp.asarray(part, float) for part in (POOL.x[:2], POOL.x[2:5]))
  z = jnp.asarray(np.random.default_rng(1).normal(size=(3, T, K)))
  truth, toward = learner.encode(POOL.x, POOL.y)[:2].astype(float), last.targets.outputs(x_eval, z)

  def gap(labels):
    moved = optax.tree.sub(learner.step(learner.start(params), x, labels).params, params)
    outputs, shift = jax.jvp(lambda w: learner.apply(w, x_eval), (params,), (moved,))
    errors = outputs + shift - z
    return jnp.sum((errors - errors.mean(-1, keepdims=True)) ** 2)

  found, certificate = last.synthesize_labels(
    learner, params, toward, x, truth, last.constraints.simplex(), with_certificate=True
  )
  assert found.shape == (2, T, K)
  assert certificate.residual < 1e-8
  # A convex G: no way toward a corner of any token's simplex leads down.
  slope = jax.grad(gap)(found)
  assert jnp.sum(jnp.sum(slope * found, -1) - jnp.min(slope, -1)) < 1e-6 * (gap(truth) - gap(found))
  free = last.synthesize_labels(learner, params, toward, x, truth)
  np.testing.assert_allclose(jax.grad(gap)(free), 0.0, atol=1e-8)
  assert gap(free) < gap(found) < gap(truth)


@pytest.mark.slow
@pytest.mark.parametrize("teacher", [
  last.teachers.greedy(last.constraints.simplex()), last.teachers.mixed(last.constraints.simplex()),
  last.teachers.mixed(last.constraints.none(), joint=True), last.teachers.planner(2, last.constraints.simplex()),
])  # fmt: skip
def test_teachers_with_a_target_teach_tokens(teacher):
  learner = last.learners.from_apply(functions_init, functions_apply, LOSS, learning_rate=0.5)
  target = learner.init(jax.random.key(1))
  result = last.teach(KEY, learner, teacher, POOL, target=target, steps=20, batch_size=2, lessons=True)
  assert result.lessons.label.shape == (20, 2, T, K)
  assert result.distance[-1] < result.distance[0]
