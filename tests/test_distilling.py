"""Fixed labels: each road against oracles of its own, and against the others where they meet."""

import itertools

import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import last_jax as last
from last_jax.distilling import students, train_students, unrolled
from tests.compilations import assert_compiled_once

C = last.constraints
N, D, K, STEPS = 4, 5, 3, 7


def draw(seed, *shape):
  return np.random.default_rng(seed).normal(size=shape)


def make_learner(kind, rate=0.3, weight_decay=0.02, **settings):
  rate = 0.3 * rate if kind == "network, squared error" else rate
  settings = {"learning_rate": rate, "weight_decay": weight_decay, **settings}
  if kind == "least_squares":
    return last.learners.least_squares(D, K, **settings)
  if kind == "softmax":
    return last.learners.softmax(D, K, **settings)
  loss = "squared_error" if kind == "network, squared error" else None
  return last.learners.mlp((D, 6, K), activation="tanh", loss=loss, **settings)


def params_like(learner, seed, scale=1.0):
  draws = np.random.default_rng(seed)
  return jax.tree.map(lambda leaf: jnp.asarray(scale * draws.normal(size=leaf.shape)), learner.shapes())


def examples(seed=0, count=N):
  return draw(seed, count, D), np.arange(count) % K


def starts(learner, count, key):
  """A function that makes random starts, and those that `distill_labels` uses."""
  init_fn = last.training.near(params_like(learner, 5), 0.3)
  return init_fn, [init_fn(k) for k in jax.random.split(key, count)]


class Linearized:
  """The linear student by plain NumPy loops over its parameters: its end is offset + columns y."""

  def __init__(self, learner, start, x, truth, steps):
    flat, unravel = ravel_pytree(start)
    self.start, self.learner, self.unravel = np.asarray(flat), learner, unravel
    outputs, jacobian = self.expand(x)
    _, hessian = self.bend(outputs, truth)
    decay = 0.0 if learner.weight_decay is None else learner.weight_decay
    decayed = np.asarray(ravel_pytree(jax.tree.map(lambda leaf: jnp.full(leaf.shape, leaf.ndim > 1.0), start))[0])
    rate = learner.optimizer.learning_rate

    def end(labels):
      gradient, _ = self.bend(outputs, labels)
      moved = np.zeros_like(self.start)
      for _ in range(steps):
        pull = gradient + np.einsum("nkl,nl->nk", hessian, (jacobian @ moved).reshape(truth.shape))
        moved = moved - rate * (jacobian.T @ pull.ravel() / len(truth) + decay * decayed * (self.start + moved))
      return moved

    self.offset = end(np.zeros_like(truth))
    basis = np.eye(truth.size).reshape(-1, *truth.shape)
    self.columns = np.stack([end(each) - self.offset for each in basis], 1)

  def expand(self, x):
    apply = lambda flat: self.learner.apply(self.unravel(flat), jnp.asarray(x)).reshape(-1)  # noqa: E731
    return np.asarray(apply(self.start)).reshape(len(x), -1), np.asarray(jax.jacrev(apply)(self.start))

  def bend(self, outputs, labels):
    """The gradient and the Hessian of the loss in the outputs, by their formulas."""
    if self.learner.loss.name == "squared_error":
      return outputs - labels, np.broadcast_to(np.eye(K), (len(outputs), K, K))
    p = np.exp(outputs) / np.exp(outputs).sum(1, keepdims=True)
    return labels.sum(1, keepdims=True) * p - labels, np.einsum("nk,kl->nkl", p, np.eye(K)) - p[:, :, None] * p[:, None]

  def to_target(self, target):
    """The squared distance as ||rows y + offset||^2."""
    return self.columns, self.start + self.offset - np.asarray(ravel_pytree(target)[0])

  def to_loss(self, x, labels):
    """The loss, expanded, as ||rows y + offset||^2 up to a constant."""
    outputs, jacobian = self.expand(x)
    gradient, hessian = self.bend(outputs, labels)
    values, vectors = np.linalg.eigh(hessian)
    kept = values > 1e-12
    roots = np.sqrt(np.where(kept, values, 0))[:, :, None] * vectors.transpose(0, 2, 1)
    inverse = np.where(kept, 1 / np.sqrt(np.where(kept, values, 1)), 0)[:, :, None] * vectors.transpose(0, 2, 1)
    through = np.einsum("nrk,nkp->nrp", roots, jacobian.reshape(*outputs.shape, -1)).reshape(-1, self.start.size)
    offset = np.einsum("nrk,nk->nr", inverse, gradient).ravel() + through @ self.offset
    scale = (0.5 / len(x)) ** 0.5
    return scale * through @ self.columns, scale * offset


@pytest.mark.parametrize(
  ("kind", "goal", "decay"),
  [
    ("least_squares", "target", 0.0),
    ("least_squares", "validation", 0.02),
    ("softmax", "validation", 0.02),
    ("network, squared error", "validation", 0.0),
    ("network", "target", 0.0),
    ("network", "target", 0.02),
  ],
)
@pytest.mark.slow
def test_solved_labels_are_those_of_a_dense_solve(x64, kind, goal, decay):
  learner = make_learner(kind, weight_decay=decay)
  x, y = examples()
  truth = np.eye(K)[y]
  key = jax.random.key(3)
  init_fn, drawn = starts(learner, 2, key)
  target, xv = params_like(learner, 9), draw(8, 300, D)
  yv = draw(7, 300, K) if "squared" in learner.loss.name else np.arange(300) % K
  vectors = yv if yv.ndim == 2 else np.eye(K)[yv]
  aim = {"target": target} if goal == "target" else {"validation": last.Pool(xv, yv)}
  labels, log = last.distill_labels(key, learner, x, y, steps=STEPS, road="solved", students=2, init_fn=init_fn, **aim)
  models = [Linearized(learner, start, x, truth, STEPS) for start in drawn]
  pairs = [model.to_target(target) if goal == "target" else model.to_loss(xv, vectors) for model in models]
  rows, offset = (np.concatenate(part) for part in zip(*pairs, strict=True))
  step = np.linalg.lstsq(rows, -(rows @ truth.ravel() + offset), rcond=1e-9)[0]  # The shortest, as ours.
  np.testing.assert_allclose(np.asarray(labels).ravel(), truth.ravel() + step, atol=1e-8)
  change = [np.sum((rows @ flat.ravel() + offset) ** 2) / 2 for flat in (truth, np.asarray(labels))]
  np.testing.assert_allclose(log.objective[0] - log.objective[1], change[0] - change[1], rtol=1e-8)
  if goal == "target":
    np.testing.assert_allclose(log.objective, change, rtol=1e-8, atol=1e-12)
  assert log.certificate.exact
  assert log.certificate.residual < 1e-10


@pytest.mark.slow
def test_solved_labels_in_float32_are_as_good(x64):
  learner, (x, y) = make_learner("network"), examples()
  target = params_like(learner, 9)
  setting = {"steps": STEPS, "road": "solved", "students": 1, "constraint": C.simplex()}
  init_fn = last.training.near(params_like(learner, 5), 0.0)
  _, best = last.distill_labels(jax.random.key(0), learner, x, y, target=target, init_fn=init_fn, **setting)
  with jax.enable_x64(False):
    narrow = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), (target, params_like(learner, 5)))
    init_fn = last.training.near(narrow[1], 0.0)
    labels, log = last.distill_labels(jax.random.key(0), learner, x, y, target=narrow[0], init_fn=init_fn, **setting)
  assert labels.dtype == jnp.float32
  np.testing.assert_allclose(log.objective, best.objective, rtol=1e-5)


def convex_labels(rows, offset, truth, constraint):
  """The labels of least ||rows y + offset||^2, by cvxpy."""
  variable = cvxpy.Variable(truth.shape)
  rules = {
    "none": [],
    "simplex": [variable >= 0, cvxpy.sum(variable, axis=1) == 1],
    "ball": [cvxpy.norm(variable - truth, 2, axis=1) <= 0.4],
  }[constraint]
  objective = cvxpy.sum_squares(rows @ cvxpy.vec(variable, order="C") + offset)
  return cvxpy.Problem(cvxpy.Minimize(objective), rules).solve(solver=cvxpy.CLARABEL)


SETS = {"none": C.none(), "simplex": C.simplex(), "ball": C.magnitude(0.4)}


@pytest.mark.slow
@pytest.mark.parametrize("constraint", SETS)
def test_solved_labels_of_a_set_against_cvxpy(x64, constraint):
  learner, (x, y) = make_learner("network"), examples()
  truth, key, target = np.eye(K)[y], jax.random.key(3), params_like(learner, 9)
  init_fn, drawn = starts(learner, 2, key)
  _, log = last.distill_labels(
    key, learner, x, y, target=target, steps=STEPS, road="solved", students=2, init_fn=init_fn,
    constraint=SETS[constraint],
  )  # fmt: skip
  pairs = [Linearized(learner, start, x, truth, STEPS).to_target(target) for start in drawn]
  rows, offset = (np.concatenate(part) for part in zip(*pairs, strict=True))
  np.testing.assert_allclose(log.objective[1], convex_labels(rows, offset, truth, constraint) / 2, rtol=1e-6)


def trajectory_of(learner, steps, seed=20):
  """A path that no fixed labels lead along: `[steps + 1]` parameters."""
  path = [params_like(learner, 5)]
  for step in range(steps):
    path.append(jax.tree.map(lambda w, move: w + 0.1 * move, path[-1], params_like(learner, seed + step)))
  return jax.tree.map(lambda *leaves: jnp.stack(leaves), *path)


def one_step_errors(learner, path, x):
  """The sum of squared one-step errors as ||rows y + offset||^2, read off the learner's own steps."""
  rows, offsets = [], []
  for t in range(jax.tree.leaves(path)[0].shape[0] - 1):
    now, goal = (jax.tree.map(lambda leaf, t=t: leaf[t], path) for t in (t, t + 1))

    def after(labels, now=now, goal=goal):
      moved = learner.step(learner.start(now), jnp.asarray(x), labels.reshape(len(x), K)).params
      return ravel_pytree(moved)[0] - ravel_pytree(goal)[0]

    zero = after(jnp.zeros(len(x) * K))
    rows.append((np.asarray(jax.vmap(after)(jnp.eye(len(x) * K))) - np.asarray(zero)[None]).T)
    offsets.append(np.asarray(zero))
  return np.concatenate(rows), np.concatenate(offsets)


@pytest.mark.parametrize(("kind", "constraint"), [("softmax", "none"), ("network", "ball"), ("network", "simplex")])
@pytest.mark.slow
def test_labels_by_trajectory_against_cvxpy(x64, kind, constraint):
  learner, (x, y) = make_learner(kind), examples()
  path = trajectory_of(learner, 3)
  rows, offset = one_step_errors(learner, path, x)
  labels, log = last.distill_labels(
    jax.random.key(0), learner, x, y, target=last.targets.trajectory(path), steps=3, road="trajectory",
    constraint=SETS[constraint],
  )  # fmt: skip
  found = np.sum((rows @ np.asarray(labels).ravel() + offset) ** 2)
  np.testing.assert_allclose(log.objective[1], found, rtol=1e-9)
  np.testing.assert_allclose(found, convex_labels(rows, offset, np.eye(K)[y], constraint), rtol=1e-6)


@pytest.mark.slow
def test_one_hot_labels_by_trajectory_are_the_best_of_all(x64):
  learner, (x, y) = make_learner("network"), examples()
  path = trajectory_of(learner, 3)
  rows, offset = one_step_errors(learner, path, x)
  labels, _ = last.distill_labels(
    jax.random.key(0), learner, x, y, target=last.targets.trajectory(path), steps=3, road="trajectory",
    constraint=C.one_hot(),
  )  # fmt: skip
  values = {
    chosen: np.sum((rows @ np.eye(K)[list(chosen)].ravel() + offset) ** 2)
    for chosen in itertools.product(range(K), repeat=N)
  }
  assert tuple(np.argmax(labels, 1)) == min(values, key=values.get)


@pytest.mark.slow
@pytest.mark.parametrize("constraint", SETS)
def test_the_roads_agree_where_they_meet(x64, constraint):
  # A target that three examples cannot reach.
  learner, (x, y) = make_learner("least_squares"), examples(count=3)
  start, target = params_like(learner, 5), params_like(learner, 9)
  setting = {
    "steps": STEPS, "students": 1, "init_fn": last.training.near(start, 0.0), "constraint": SETS[constraint],
  }  # fmt: skip
  key = jax.random.key(0)
  solved, log = last.distill_labels(key, learner, x, y, target=target, road="solved", **setting)
  steps = {"updates": 400, "rate": 0.05}
  searched, _ = last.distill_labels(key, learner, x, y, target=target, **steps, **setting)
  path, student = [start], learner.start(start)
  for _ in range(STEPS):
    student = learner.step(student, jnp.asarray(x), solved)
    path.append(student.params)
  path = last.targets.trajectory(jax.tree.map(lambda *leaves: jnp.stack(leaves), *path))
  followed, along = last.distill_labels(key, learner, x, y, target=path, road="trajectory", **setting)

  def squared_distance(labels):
    end = train_students(key, learner, x, labels, steps=STEPS, students=1, init_fn=setting["init_fn"])
    return float(optax.tree.norm(optax.tree.sub(jax.tree.map(lambda leaf: leaf[0], end), target))) ** 2

  best = float(log.objective[1])
  assert 0.01 < best < 0.99 * squared_distance(jnp.eye(K)[y])
  np.testing.assert_allclose([squared_distance(labels) for labels in (solved, followed)], best, rtol=1e-9)
  np.testing.assert_allclose(squared_distance(searched), best, rtol=1e-4)
  assert along.objective[1] < 1e-12


# --- Through the loop.


def mean_goal(learner, goal, batch_size, segment, steps=STEPS):
  """The goal of two students as a function of the labels, with everything else fixed."""
  x, _ = examples()
  keys = jax.random.split(jax.random.key(2), 2)
  init_fn = students.as_init_fn(learner, last.training.near(params_like(learner, 5), 0.3))
  training = students.make_training(steps, batch_size, segment)
  return jax.jit(lambda labels: unrolled.mean_goal(keys, learner, jnp.asarray(x), labels, init_fn, training, goal))


def goals(learner):
  xv, yv = jnp.asarray(draw(8, 6, D)), jnp.eye(K)[np.arange(6) % K]
  return {"target": unrolled.Goal(params_like(learner, 9), None, None), "validation": unrolled.Goal(None, xv, yv)}


def test_the_gradient_of_two_steps_by_hand(x64):
  # w+ = w - rate / n X'(X w - y) twice: the second step sees the first one's labels through w.
  learner, (x, _) = make_learner("least_squares", weight_decay=0.0, bias=False), examples()
  w = np.asarray(params_like(learner, 9)["weights"])
  goal = unrolled.Goal({"weights": jnp.asarray(w)}, None, None)
  training = students.make_training(2, None, 1)
  init_fn = students.as_init_fn(learner, lambda key: {"weights": jnp.zeros((D, K))})
  keys, labels = jax.random.split(jax.random.key(2), 1), jnp.asarray(draw(1, N, K))
  slope = jax.grad(lambda labels: unrolled.mean_goal(keys, learner, jnp.asarray(x), labels, init_fn, training, goal))
  share = 0.3 / N
  moves = (2 * np.eye(D) - share * x.T @ x) @ (share * x.T)  # Of labels, from zero parameters.
  np.testing.assert_allclose(slope(labels), 2 * moves.T @ (moves @ np.asarray(labels) - w), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("kind", "goal", "batch_size", "settings"),
  [
    ("network", "target", 2, {}),
    ("softmax", "validation", None, {"momentum": 0.9}),
    ("network", "validation", None, {"learning_rate": None, "optimizer": optax.adam(0.1)}),
    ("network", "validation", 2, {}),
  ],
)
def test_gradients_through_the_loop_against_finite_differences(x64, kind, goal, batch_size, settings):
  learner = make_learner(kind, **settings)
  labels, direction = jnp.asarray(draw(1, N, K)), jnp.asarray(draw(2, N, K))
  value = mean_goal(learner, goals(learner)[goal], batch_size, 3)
  slope = jnp.sum(jax.grad(value)(labels) * direction)
  # Four points: the error is of fourth order.
  near, far = ((value(labels + h * direction) - value(labels - h * direction)) / (2 * h) for h in (2e-4, 4e-4))
  np.testing.assert_allclose(slope, (4 * near - far) / 3, rtol=1e-7)
  whole = mean_goal(learner, goals(learner)[goal], batch_size, STEPS)
  np.testing.assert_allclose(jax.grad(whole)(labels), jax.grad(value)(labels), rtol=1e-10, atol=1e-13)


@pytest.mark.slow
def test_segments_save_memory():
  learner = make_learner("network")
  labels = jnp.asarray(draw(1, N, K), jnp.float32)
  sizes = [
    jax.jit(jax.grad(mean_goal(learner, goals(learner)["target"], None, segment, steps=400)))
    .lower(labels)
    .compile()
    .memory_analysis()
    .temp_size_in_bytes
    for segment in (20, 400)
  ]
  assert sizes[0] < 0.5 * sizes[1]


@pytest.mark.slow
def test_students_train_as_the_learner_does():
  learner, x = make_learner("network"), examples()[0]
  x, labels = jnp.asarray(x, jnp.float32), jnp.asarray(draw(1, N, K), jnp.float32)
  key = jax.random.key(4)
  found = train_students(key, learner, x, labels, steps=STEPS, students=2)
  for student, own in enumerate(jax.random.split(key, 2)):
    state = learner.start(learner.init(jax.random.split(own)[0]))
    for _ in range(STEPS):
      state = learner.step(state, x, labels)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(state.params), strict=True):
      np.testing.assert_allclose(one[student], other, rtol=1e-5, atol=1e-6)
  found = train_students(key, learner, x, labels, steps=STEPS, batch_size=2, students=1)
  start, lessons = jax.random.split(jax.random.split(key, 1)[0])
  expected = last.teach(
    lessons, learner, last.teachers.sgd(), last.Pool(x, labels), init=learner.init(start), steps=STEPS, batch_size=2
  ).params
  for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(one[0], other, rtol=1e-5, atol=1e-6)


SETTING = {"steps": 6, "students": 2, "batch_size": 2, "validation_batch": 4, "segment": 2}


def search(updates, state=None, **settings):
  learner, (x, y) = make_learner("network", weight_decay=0.0), examples()
  pool = last.Pool(draw(8, 9, D), np.arange(9) % K)
  return last.distill_labels(
    jax.random.key(1), learner, x, y, validation=pool, updates=updates, state=state, **(SETTING | settings)
  )


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"constraint": C.simplex(), "parametrization": "softmax"}])
def test_a_search_that_is_cut_and_saved_ends_at_the_same_bits(tmp_path, settings):
  labels, log = search(6, **settings)
  state, pieces = search(0, **settings)[1].state, []
  for updates in (3, 1, 2):
    last.save(tmp_path / "state.npz", state)
    state = last.load(tmp_path / "state.npz", like=search(0, **settings)[1].state)
    cut, part = search(updates, state, **settings)
    state = part.state
    pieces.append(part.objective)
  np.testing.assert_array_equal(labels, cut)
  np.testing.assert_array_equal(log.objective, np.concatenate(pieces))
  assert int(state.update) == 6
  assert len(np.unique(log.objective)) == 6  # Fresh students in every update.


@pytest.mark.parametrize(
  ("settings", "low", "high"),
  [
    ({"constraint": C.simplex(), "parametrization": "softmax"}, 0.0, 1.0),
    ({"constraint": C.simplex(0.5)}, 0.0, 1.0),
    ({"constraint": C.magnitude(0.3, p=np.inf)}, -0.3, 1.3),
    ({"constraint": C.simplex()}, 0.0, 1.0),
  ],
)
@pytest.mark.slow
def test_searched_labels_stay_in_their_set(settings, low, high):
  labels, _ = search(12, rate=0.3, **settings)
  truth = np.eye(K)[examples()[1]]
  assert np.abs(labels - truth).max() > 0.1
  assert labels.min() >= low - 1e-6
  assert labels.max() <= high + 1e-6
  if settings["constraint"].hull:
    np.testing.assert_allclose(labels.sum(1), 1, atol=1e-6)
  if settings["constraint"].name == C.simplex(0.5).name:
    assert (np.linalg.norm(labels - truth, axis=1) <= 0.5 + 1e-6).all()


@pytest.mark.slow
def test_a_search_lowers_the_loss_of_other_students():
  labels, _ = search(60, rate=0.1, batch_size=None, validation_batch=None)
  learner, (x, y) = make_learner("network", weight_decay=0.0), examples()
  pool = last.Pool(draw(8, 9, D), np.arange(9) % K)

  def loss(labels):
    found = train_students(jax.random.key(99), learner, x, labels, steps=6, students=10)
    return jax.vmap(lambda w: learner.mean_loss(w, pool.x, learner.encode(pool.x, pool.y)))(found)

  assert (loss(labels) < loss(y)).mean() >= 0.9


@pytest.mark.slow
def test_other_numbers_do_not_compile_again():
  x, y = examples()

  def call(setting):
    rate, road, radius = setting
    learner = make_learner("network", rate)
    more = {"updates": 2, "rate": rate} if road == "loop" else {}
    last.distill_labels(
      jax.random.key(0), learner, x, y, target=params_like(learner, 9), steps=3, road=road, students=2,
      constraint=C.magnitude(radius), **more,
    )  # fmt: skip

  for road in ("loop", "solved"):
    assert_compiled_once(call, [(0.1, road, 0.2), (0.2, road, 0.3)])


@pytest.mark.slow
def test_labels_of_tokens():
  def apply(params, x):
    return x.reshape(-1, 2, 4) @ params["w"]

  learner = last.learners.from_apply(
    lambda key: {"w": jax.random.normal(key, (4, K))}, apply, "squared_error", learning_rate=0.1
  )
  x, y = draw(0, N, 8), draw(1, N, 2, K)
  target = {"w": jnp.ones((4, K))}
  for road in ("loop", "solved"):
    labels, log = last.distill_labels(jax.random.key(0), learner, x, y, target=target, steps=5, road=road, students=2)
    assert labels.shape == y.shape
    assert log.objective[-1] < log.objective[0]


def good():
  learner, (x, y) = make_learner("network"), examples()
  return {"learner": learner, "x": x, "y": y, "target": params_like(learner, 9), "steps": 3, "road": "solved"}


@pytest.mark.parametrize(
  ("change", "message"),
  [
    ({"target": None}, "give either target= or validation="),
    ({"learner": 3}, "learner must come from"),
    ({"x": draw(0, N, D + 1)}, "x must have shape"),
    ({"y": [0, 1, 2, 9]}, "y holds class ids"),
    ({"target": {"w": 1.0}}, "target does not have"),
    ({"steps": 0}, "steps must be"),
    ({"road": "short"}, "road='short' is not known"),
    ({"students": 0}, "students must be"),
    ({"constraint": "simplex"}, "constraint must come from"),
    ({"constraint": C.magnitude(1.0, around="prediction")}, "constraint: fixed labels cannot lie around predictions"),
    ({"init_fn": lambda key: {"w": jax.random.normal(key)}}, r"init_fn\(key\) does not have"),
    ({"init_fn": lambda key: {"w": key}}, r"init_fn\(key\)\[.w.\] must hold real numbers"),
    ({"rate": 0.1}, "rate is a setting of road='loop'"),
    ({"batch_size": 2}, "batch_size: this road"),
    ({"learner": make_learner("network", momentum=0.9)}, "learner: this road needs SGD"),
    ({"learner": make_learner("network", rate=1e4)}, "learner: at this learning rate the student .* grows"),
    ({"road": "trajectory"}, "target must be targets.trajectory"),
    ({"road": "loop", "rate": -1.0}, "rate must be a positive"),
    ({"road": "loop", "updates": -1}, "updates must be"),
    ({"road": "loop", "segment": 0}, "segment must be"),
    ({"road": "loop", "constraint": C.one_hot()}, "constraint 'one_hot' is no convex set"),
    ({"road": "loop", "parametrization": "softmax"}, "parametrization='softmax' is for"),
    ({"road": "loop", "parametrization": "sigmoid"}, "parametrization='sigmoid' is not known"),
    ({"road": "loop", "validation_batch": 2}, "validation_batch=2 needs"),
    ({"road": "loop", "labels": np.zeros((N, K + 1))}, "labels must have shape"),
  ],
)
def test_bad_arguments_are_named(change, message):
  given = good() | change
  with pytest.raises((ValueError, TypeError), match=message):
    last.distill_labels(jax.random.key(0), **given)


def test_a_trajectory_must_fit_the_steps():
  learner, (x, y) = make_learner("network"), examples()
  path = last.targets.trajectory(trajectory_of(learner, 3))
  with pytest.raises(ValueError, match="target holds 4 parameters, but steps=4 needs 5"):
    last.distill_labels(jax.random.key(0), learner, x, y, target=path, steps=4, road="trajectory")


def test_margins_cannot_be_solved():
  learner = last.learners.logistic(D, learning_rate=0.1, form="margin")
  x, y = examples()
  with pytest.raises(ValueError, match="loss margin_logistic is not affine"):
    last.distill_labels(jax.random.key(0), learner, x, y % 2, target=params_like(learner, 9), steps=3, road="solved")
