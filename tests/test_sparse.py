"""Sparse soft labels: the projection, global optima by enumeration, local ones with a gap that is a true bound."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import last_jax as last
from tests import problems
from tests.compilations import counted

pytestmark = pytest.mark.sampled


def best_over(start, columns, goal, shape, k):
  """The least ||start + columns y - goal||^2 over labels with at most k classes, from all sets of positive entries.

  At the minimum the entries of some set are positive, and least squares with sum one gives them.
  """
  batch, width = shape
  sets = [each for size in range(1, k + 1) for each in itertools.combinations(range(width), size)]
  best = np.inf
  for chosen in itertools.product(sets, repeat=batch):
    base, directions = np.zeros(shape), []
    for i, (first, *others) in enumerate(chosen):
      base[i, first] = 1
      for other in others:
        direction = np.zeros(shape)
        direction[i, first], direction[i, other] = -1, 1
        directions.append(direction.ravel())
    labels = base.ravel()
    if directions:
      basis = np.stack(directions, 1)
      error = start - goal + columns @ labels
      labels = labels - basis @ np.linalg.lstsq(columns @ basis, error, rcond=1e-12)[0]
    if labels.min() >= -1e-9:
      best = min(best, np.sum((start - goal + columns @ labels) ** 2))
  return best


@functools.cache
def compiled(kind, k, combinations):
  make = problems.KINDS[kind][0]
  constraint = last.constraints.simplex(max_nonzero=k, max_combinations=combinations)

  def labels(rate, params, target, x, truth):
    return last.synthesize_labels(make(rate), params, target, x, truth, constraint, with_certificate=True)

  return jax.jit(labels)


class Case:
  """One greedy step, solved by us and by brute force."""

  def __init__(self, kind, k, batch, seed, combinations=1024, dtype=jnp.float64):
    rate = float(10 ** np.random.default_rng(seed).uniform(-2, 0))
    problem = problems.random_problem(kind, batch, seed)
    self.start, self.columns = problems.step_map(kind, rate, problem)
    self.goal, self.shape, self.k, self.problem = problems.flatten(problem.target), problem.truth.shape, k, problem
    cast = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), problem)
    labels, self.certificate = compiled(kind, k, combinations)(rate, *cast)
    self.labels = np.asarray(labels, np.float64)
    self.truth, self.reached = self.distance(problem.truth), self.distance(self.labels)
    check_feasible(self.labels, k)

  def distance(self, labels):
    return float(np.sum((self.start - self.goal + self.columns @ labels.ravel()) ** 2))

  @functools.cached_property
  def best(self):
    return best_over(self.start, self.columns, self.goal, self.shape, self.k)

  @functools.cached_property
  def relaxed(self):
    return problems.solve("simplex", self.start, self.columns, self.goal, self.problem.truth, None)


def check_feasible(labels, k):
  labels = np.asarray(labels)
  assert (np.count_nonzero(labels, axis=-1) <= k).all()
  assert labels.min() >= 0
  assert np.abs(labels.sum(-1) - 1).max() <= 1e-6


# --- The projection.


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize(("width", "k"), [(3, 2), (5, 2), (8, 3), (40, 39)])
def test_the_projection_is_the_best_of_all_supports(x64, width, k, dtype):
  constraint, draw = last.constraints.simplex(max_nonzero=k), np.random.default_rng(width)
  labels = jnp.asarray(10 ** draw.uniform(-1, 1.5, size=(50, 1)) * draw.normal(size=(50, width)), dtype)
  project = constraint.projection(last.losses.softmax_cross_entropy, labels, labels)
  found = np.asarray(project(labels), np.float64)
  check_feasible(found, k)
  for label, nearest in zip(np.asarray(labels, np.float64), found, strict=True):
    distances = []
    for support in map(list, itertools.combinations(range(width), k)):
      # The threshold that makes the entries sum to one, for each number of entries above it.
      ordered = np.sort(label[support])[::-1]
      thresholds = (np.cumsum(ordered) - 1) / np.arange(1, k + 1)
      threshold = thresholds[np.nonzero(ordered > thresholds)[0][-1]]
      other = np.zeros(width)
      other[support] = np.maximum(label[support] - threshold, 0)
      distances.append(np.linalg.norm(label - other))
    np.testing.assert_allclose(np.linalg.norm(label - nearest), min(distances), rtol=1e-6)
  np.testing.assert_allclose(project(jnp.asarray(found, dtype)), found, atol=2e-7)


def test_the_projection_of_entries_of_any_size():
  project = last.constraints.simplex(max_nonzero=2).project
  labels = jnp.array([[1e30, 1e30, 1e30, 0], [-1e30, -1e-30, -1e-30, -1e30], [0, 0, 0, 0], [1e-30, 0, 0, 3]])
  found = jax.vmap(lambda label: project(label, label, None, jnp.eye(4)))(labels)
  np.testing.assert_array_equal(found, [[0.5, 0.5, 0, 0], [0, 0.5, 0.5, 0], [0.5, 0.5, 0, 0], [0, 0, 0, 1]])


# --- Global optima.


def check_exact(kind, k, batch, seed, dtype=jnp.float64, tolerance=1e-7):
  case = Case(kind, k, batch, seed, 10_000, dtype)
  assert case.certificate.exact
  # Known to be a global optimum: there is no bound, but for one example what rounding costs is known.
  assert case.certificate.gap is None or case.certificate.gap <= (1e-12 if dtype == jnp.float64 else 1e-3)
  assert case.certificate.residual <= (1e-9 if dtype == jnp.float64 else 1e-4)
  assert abs(case.reached - case.best) <= tolerance * (case.best + 0.1 * case.truth)
  return case


@pytest.mark.parametrize("kind", ["softmax_5", "least_squares_3"])
def test_one_example_of_a_linear_learner_is_a_projection(x64, kind):
  for seed in range(10):
    assert check_exact(kind, 2, 1, seed).certificate.road == "closed form"


@pytest.mark.slow
def test_networks_with_one_example_reach_the_optimum(x64):
  for seed in range(6):
    assert check_exact("mlp", 2, 1, seed).certificate.road == "enumeration of supports"


@pytest.mark.slow
@pytest.mark.parametrize(
  ("kind", "k", "batch"), [("softmax_5", 2, 2), ("softmax_5", 4, 2), ("mlp", 3, 1), ("mlp", 2, 2), ("mlp", 2, 3),
                           ("tanh", 3, 1), ("least_squares_3", 2, 3), ("softmax_5", 2, 3)],
)  # fmt: skip
def test_enumeration_reaches_the_optimum(x64, kind, k, batch):
  for seed in range(2 if batch == 3 else 6):
    check_exact(kind, k, batch, seed)
    check_exact(kind, k, batch, seed, jnp.float32, 1e-3)


@pytest.mark.slow
def test_enumeration_against_a_convex_solver(x64):
  """The brute force above is our own, too: here each support is solved by cvxpy."""
  for seed in range(3):
    case = Case("mlp", 2, 1, seed)
    values = []
    for support in itertools.combinations(range(5), 2):
      columns = case.columns[:, list(support)]
      values.append(problems.solve("simplex", case.start, columns, case.goal, np.eye(2)[:1], None))
    assert abs(min(values) - case.reached) <= 1e-5 * case.reached + 1e-7 * case.truth
    assert abs(min(values) - case.best) <= 1e-5 * case.best + 1e-7 * case.truth


# --- Local optima and their gap.


def check_local(kind, k, batch, seed, dtype=jnp.float64, tolerance=1e-9):
  """Return whether the optimum was reached."""
  case = Case(kind, k, batch, seed, 1, dtype)
  assert (case.certificate.exact, case.certificate.road) == (False, "sparse, local")
  assert case.reached <= case.truth * (1 + 10 * tolerance)
  gap, gain = float(case.certificate.gap), case.truth - case.best
  assert 0 <= gap <= 1
  missed = (case.reached - case.best) / gain if gain > 1e-9 * case.truth else 0.0
  assert missed <= gap + 1e3 * tolerance
  # The bound is that of the relaxation, no weaker.
  if case.truth - case.relaxed > 1e-3 * case.truth:
    assert gap <= (case.reached - case.relaxed) / (case.truth - case.relaxed) + max(1e-4, 1e3 * tolerance)
  return missed < 1e-5


@pytest.mark.slow
def test_the_gap_of_a_network_is_a_true_bound(x64):
  assert sum(check_local("mlp", 2, 1, seed) for seed in range(6)) >= 5


@pytest.mark.slow
@pytest.mark.parametrize(
  ("kind", "k", "batch"),
  [("softmax_5", 2, 2), ("mlp", 3, 2), ("mlp", 2, 2), ("tanh", 2, 1), ("tanh", 3, 1), ("least_squares_3", 2, 3)],
)
def test_the_gap_is_a_true_bound_and_most_local_optima_are_global(x64, kind, k, batch):
  reached = [check_local(kind, k, batch, seed) for seed in range(20)]
  assert np.mean(reached) >= 0.8
  for seed in range(6):
    check_local(kind, k, batch, seed, jnp.float32, 1e-5)


@pytest.mark.slow
def test_a_relaxation_that_is_sparse_itself_has_no_gap(x64):
  """The target is one step with labels of two classes away: these are the best, and the gap shows it."""
  learner = last.learners.softmax(6, 5, learning_rate=0.5)
  params, draw = learner.init(jax.random.key(0)), np.random.default_rng(0)
  x, y = draw.normal(size=(3, 6)), np.array([0, 1, 2])
  wanted = np.array([[0.5, 0.5, 0, 0, 0], [0, 0.25, 0, 0.75, 0], [0, 0, 1, 0, 0]])
  target = learner.step(learner.start(params), jnp.asarray(x), jnp.asarray(wanted)).params
  constraint = last.constraints.simplex(max_nonzero=2, max_combinations=1)
  labels, certificate = last.synthesize_labels(learner, params, target, x, y, constraint, with_certificate=True)
  np.testing.assert_allclose(labels, wanted, atol=1e-7)
  assert certificate.gap <= 1e-9
  assert not certificate.exact


# --- Edges.


@pytest.mark.parametrize(
  ("arguments", "error", "message"),
  [
    ({"max_nonzero": 0}, ValueError, "max_nonzero must be a whole number of at least 1, but it is 0"),
    ({"max_nonzero": True}, ValueError, "max_nonzero must be a whole number"),
    ({"max_nonzero": 1.5}, TypeError, "max_nonzero must be a whole number, but it is 1.5"),
    ({"max_nonzero": 2, "radius": 0.5}, ValueError, "max_nonzero cannot be combined with radius"),
    ({"max_nonzero": 2, "max_combinations": 0}, ValueError, "max_combinations must be a whole number of at least 1"),
  ],
)
def test_bad_settings_are_refused(arguments, error, message):
  with pytest.raises(error, match=message):
    last.constraints.simplex(**arguments)


@pytest.mark.parametrize(
  ("k", "batch", "width", "exact"),
  [(3, 1, 10, True), (3, 2, 10, False), (2, 3, 5, True), (2, 4, 5, False), (5, 9, 5, True), (2, 20, 1, True),
   (1, 3, 10, True), (1, 4, 10, False)],
)  # fmt: skip
def test_batches_are_exact_while_supports_can_be_enumerated(k, batch, width, exact):
  constraint = last.constraints.simplex(max_nonzero=k)
  assert constraint.is_exact(batch, width) == exact
  assert constraint.name == f"simplex, k={k}"


def labels_of(kind, constraint, batch=2, seed=0):
  learner, problem = problems.KINDS[kind][0](0.3), problems.random_problem(kind, batch, seed)
  return last.synthesize_labels(learner, *problem, constraint, with_certificate=True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["softmax_2", "softmax_5", "logistic"])
def test_as_many_classes_as_there_are_is_the_simplex_and_one_is_one_hot(x64, kind):
  plain, other = (
    labels_of(kind, each) for each in (last.constraints.simplex(), last.constraints.simplex(max_nonzero=5))
  )
  np.testing.assert_array_equal(plain[0], other[0])
  assert other[1].road == plain[1].road
  hard, one = (labels_of(kind, each) for each in (last.constraints.one_hot(), last.constraints.simplex(max_nonzero=1)))
  np.testing.assert_array_equal(hard[0], one[0])
  assert one[1].exact
  assert one[1].gap is None


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logistic", "mlp"])
def test_one_class_has_a_gap_too_where_it_is_not_enumerated(x64, kind):
  for seed in range(5):
    problem = problems.random_problem(kind, 3, seed)
    start, columns = problems.step_map(kind, 0.3, problem)
    corners = problems.KINDS[kind][0](0.3).loss.class_labels(problem.truth.shape[1])
    every = np.array(list(itertools.product(corners, repeat=3))).reshape(-1, problem.truth.size)
    error = start - problems.flatten(problem.target)
    best = np.sum((error + every @ columns.T) ** 2, 1).min()
    labels, certificate = labels_of(kind, last.constraints.simplex(max_nonzero=1, max_combinations=1), 3, seed)
    reached, truth = (
      np.sum((error + columns @ np.ravel(each)) ** 2) for each in (np.asarray(labels), problem.truth)
    )  # fmt: skip
    assert certificate.road == "coordinate descent"
    assert (reached - best) / max(truth - best, 1e-9 * truth) <= certificate.gap + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize("combinations", [1, 10_000])
def test_examples_without_effect_keep_their_labels(combinations):
  learner = last.learners.softmax(4, 5, learning_rate=0.5, bias=False)
  params, target = (learner.init(jax.random.key(seed)) for seed in range(2))
  x = np.random.default_rng(0).normal(size=(2, 4)).astype("f4")
  x[1] = 0
  constraint = last.constraints.simplex(max_nonzero=2, max_combinations=combinations)
  labels = last.synthesize_labels(learner, params, target, x, np.array([1, 4]), constraint)
  np.testing.assert_allclose(labels[1], np.eye(5)[4], atol=1e-6)
  assert np.abs(labels[0] - np.eye(5)[1]).max() > 0.01
  labels = last.synthesize_labels(learner, params, target, 0 * x, np.array([1, 4]), constraint)
  np.testing.assert_array_equal(labels, np.eye(5)[[1, 4]])


@pytest.mark.slow
@pytest.mark.parametrize("combinations", [1, 10_000])
@pytest.mark.parametrize(("rate", "size"), [(1e-12, 1.0), (1e6, 1.0), (0.1, 1e-8), (0.1, 1e8)])
def test_extreme_steps_in_float32(combinations, rate, size):
  learner = last.learners.softmax(4, 5, learning_rate=rate)
  params, target = (learner.init(jax.random.key(seed)) for seed in range(2))
  x = size * np.random.default_rng(0).normal(size=(2, 4)).astype("f4")
  constraint = last.constraints.simplex(max_nonzero=2, max_combinations=combinations)
  labels, certificate = last.synthesize_labels(
    learner, params, target, x, np.array([1, 4]), constraint, with_certificate=True
  )
  check_feasible(labels, 2)
  assert np.isfinite(certificate.residual)
  with jax.enable_x64(True):
    wide = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), problems.Problem(params, target, x, labels))
    reached = problems.distance_after(learner, wide, wide.truth)
    assert reached <= problems.distance_after(learner, wide, np.eye(5)[[1, 4]]) * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("combinations", [1, 10_000])
def test_labels_are_differentiable(x64, combinations):
  problem = problems.random_problem("mlp", 2, 3)
  constraint = last.constraints.simplex(max_nonzero=3, max_combinations=combinations)
  weights = np.random.default_rng(0).normal(size=(2, 5))
  push = jax.tree.map(lambda leaf: np.random.default_rng(1).normal(size=leaf.shape), problem.target)

  @jax.jit
  def along(t):
    target = jax.tree.map(lambda leaf, other: leaf + t * other, problem.target, push)
    learner = problems.KINDS["mlp"][0](0.3)
    return jnp.sum(
      weights * last.synthesize_labels(learner, problem.params, target, problem.x, problem.truth, constraint)
    )

  slope, step = jax.grad(along)(0.0), 1e-5
  assert abs(slope) > 1e-3
  np.testing.assert_allclose(slope, (along(step) - along(-step)) / (2 * step), rtol=1e-4)


@pytest.mark.slow
def test_a_constraint_that_is_made_again_compiles_nothing():
  learner = last.learners.softmax(3, 5, learning_rate=0.5)
  params, target = (learner.init(jax.random.key(seed)) for seed in range(2))
  x = np.random.default_rng(0).normal(size=(2, 3)).astype("f4")

  def labels():
    constraint = last.constraints.simplex(max_nonzero=2)
    return last.synthesize_labels(learner, params, target, x, np.array([0, 3]), constraint)

  labels()
  with counted() as programs:
    labels()
  assert programs.count == 0


# --- In teaching.


def pool(width=5, size=40):
  draw = np.random.default_rng(0)
  return last.Pool(draw.normal(size=(size, 6)).astype("f4"), np.arange(size) % width)


@pytest.mark.slow
@pytest.mark.parametrize("combinations", [1, 1024])
@pytest.mark.parametrize("batch", [1, 2])
def test_teaching_one_and_many_students(combinations, batch):
  learner = last.learners.mlp((6, 8, 5), learning_rate=0.3)
  target = learner.init(jax.random.key(9))
  teacher = last.teachers.greedy(last.constraints.simplex(max_nonzero=2, max_combinations=combinations))
  settings = {"target": target, "steps": 20, "batch_size": batch, "lessons": True}
  one = last.teach(jax.random.key(0), learner, teacher, pool(), **settings)
  many = last.teach_many(jax.random.split(jax.random.key(0), 3), learner, teacher, pool(), **settings)
  for result, shape in ((one, (20,)), (many, (3, 20))):
    assert result.lessons.label.shape == (*shape, batch, 5)
    check_feasible(result.lessons.label, 2)
    assert (result.distance[..., -1] < result.distance[..., 0]).all()
    if combinations == 1:
      assert result.certificate.gap.shape == shape
      assert ((result.certificate.gap >= 0) & (result.certificate.gap <= 1)).all()
    else:
      assert result.certificate.exact


@pytest.mark.slow
@pytest.mark.parametrize(
  "make",
  [
    lambda constraint: last.teachers.planner(2, constraint),
    lambda constraint: last.teachers.mixed(constraint, joint=True),
    last.teachers.mixed,
  ],
)
@pytest.mark.parametrize(
  "learner",
  [
    last.learners.mlp((6, 8, 5), learning_rate=0.3),
    last.learners.softmax(6, 5, learning_rate=0.3),
    last.learners.from_apply(
      lambda key: jax.random.normal(key, (6, 5)),
      lambda params, x: x @ params,
      "softmax_cross_entropy",
      optimizer=optax.adam(0.1),
    ),
    last.learners.least_squares(6, 5, learning_rate=0.1),
  ],
  ids=["mlp", "softmax", "adam", "least_squares"],
)
def test_other_teachers_and_optimizers(make, learner):
  """Gauss-Newton, the planner and selection: labels of the set, which teach."""
  data = pool()
  if not learner.loss.classification:
    data = last.Pool(data.x, np.eye(5, dtype="f4")[data.y])
  teacher = make(last.constraints.simplex(max_nonzero=2))
  target = learner.init(jax.random.key(9))
  result = last.teach(jax.random.key(0), learner, teacher, data, target=target, steps=10, lessons=True)
  check_feasible(result.lessons.label, 2)
  assert result.distance[-1] < result.distance[0]


@pytest.mark.slow
def test_gauss_newton_is_never_worse_than_the_truth(x64):
  learner = last.learners.from_apply(
    lambda key: jax.random.normal(key, (6, 5)), lambda params, x: x @ params, "softmax_cross_entropy",
    optimizer=optax.adam(0.1),
  )  # fmt: skip
  constraint = last.constraints.simplex(max_nonzero=2)
  for seed in range(5):
    draw = np.random.default_rng(seed)
    params, target = draw.normal(size=(2, 6, 5))
    problem = problems.Problem(params, target, draw.normal(size=(2, 6)), np.eye(5)[draw.integers(5, size=2)])
    labels, certificate = last.synthesize_labels(learner, *problem, constraint, with_certificate=True)
    check_feasible(labels, 2)
    assert (certificate.exact, certificate.road, certificate.gap) == (False, "Gauss-Newton", None)
    truth = problems.distance_after(learner, problem, problem.truth)
    assert problems.distance_after(learner, problem, labels) <= truth * (1 + 1e-12)
