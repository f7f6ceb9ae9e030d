"""The teachers of theorems 1, 2 and 3: labels that realise the wanted steps, and the effect of those steps."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import last_jax as last
from last_jax import distances
from tests import problems

KEY = jax.random.key(0)
TEACHERS = {"theorem_1": last.teachers.theorem_1(0.2), "theorem_2": last.teachers.theorem_2()}


def make_task(kind, rate=0.3, size=40, weight_decay=0.01):
  """A learner of the kind, a pool, and the target that minimises its objective."""
  settings = {"learning_rate": rate, "weight_decay": weight_decay}
  draw = np.random.default_rng(0)
  x = draw.normal(size=(size, 3))
  scores = x @ draw.normal(size=3) + draw.normal(size=size)
  if kind == "least_squares":
    learner, y = last.learners.least_squares(3, **settings), scores
  elif kind == "logistic":
    learner, y = last.learners.logistic(3, **settings), (scores > 0).astype(int)
  elif kind == "margin":
    learner, y = last.learners.logistic(3, form="margin", **settings), (scores > 0).astype(int)
  else:
    learner, y = last.learners.softmax(3, 4, **settings), np.arange(size) % 4
  pool = last.Pool(jnp.asarray(x), jnp.asarray(y))
  return learner, pool, last.fit_target(learner, pool, tolerance=1e-14)


def teach(learner, teacher, pool, target, students=6, **settings):
  keys = jax.random.split(KEY, students)
  return last.teach_many(keys, learner, teacher, pool, target=target, lessons=True, **settings)


def params_at(result, student, step):
  return jax.tree.map(lambda leaf: leaf[student, step], result.probe)


def gradient_of(learner, params, pool, index):
  truth = learner.encode(pool.x, pool.y)[index]
  return problems.flatten(jax.grad(learner.mean_loss)(params, pool.x[index], truth))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["least_squares", "logistic", "softmax"])
@pytest.mark.parametrize("name", TEACHERS)
@pytest.mark.parametrize("batch", [1, 3])
def test_labels_realise_the_wanted_step(x64, kind, name, batch):
  learner, pool, target = make_task(kind)
  result = teach(learner, TEACHERS[name], pool, target, steps=15, batch_size=batch)
  assert result.certificate.miss.shape == (6, 15)
  assert np.all(result.certificate.miss < 1e-12 * (1 + np.max(result.distance)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["least_squares", "logistic", "softmax"])
@pytest.mark.parametrize("name", TEACHERS)
def test_labels_realise_the_wanted_step_in_single_precision(kind, name):
  learner, pool, target = make_task(kind)
  result = teach(learner, TEACHERS[name], pool, target, steps=15)
  assert result.certificate.miss.dtype == jnp.float32
  assert np.all(result.certificate.miss < 1e-5 * (1 + np.max(result.distance)))


@pytest.mark.parametrize("unit", [False, True])
@pytest.mark.parametrize("kind", ["least_squares", "logistic"])
@pytest.mark.slow
def test_theorem_1_scales_the_gradient_by_the_distance(x64, kind, unit):
  """The step that was taken, computed without the package's labels: w - eta (c1 ||w - w*|| gradient + decay)."""
  learner, pool, target = make_task(kind, weight_decay=0.0)
  teacher = last.teachers.theorem_1(0.2, unit_gradient=unit)
  result = teach(learner, teacher, pool, target, students=2, steps=5, probe=lambda params: params)
  for student in range(2):
    for t in range(5):
      before, after = (problems.flatten(params_at(result, student, s)) for s in (t, t + 1))
      gradient = gradient_of(learner, params_at(result, student, t), pool, result.lessons.index[student, t])
      factor = 0.2 * np.linalg.norm(before - problems.flatten(target))
      factor /= np.linalg.norm(gradient) if unit else 1.0
      np.testing.assert_allclose(after, before - 0.3 * factor * gradient, atol=1e-12)


@pytest.mark.slow
def test_the_miss_is_reported_where_asked_for_and_only_of_theorem_teachers():
  learner, pool, target = make_task("logistic")
  plain = last.teach(KEY, learner, TEACHERS["theorem_1"], pool, target=target, steps=3)
  greedy = last.teach(
    KEY, learner, last.teachers.greedy(last.constraints.none()), pool, target=target, steps=3, lessons=True
  )
  assert plain.certificate is None
  assert greedy.certificate.miss is None
  first = last.teach(KEY, learner, TEACHERS["theorem_1"], pool, target=target, steps=2, lessons=True)
  problem = last.Problem(learner, pool, target=target)
  _, rest = last.run(first.state, problem, TEACHERS["theorem_1"], steps=2, lessons=True)
  whole = last.teach(KEY, learner, TEACHERS["theorem_1"], pool, target=target, steps=4, lessons=True)
  np.testing.assert_array_equal(np.concatenate([first.certificate.miss, rest.certificate.miss]), whole.certificate.miss)


@pytest.mark.slow
def test_no_label_misses_less_where_the_margin_loss_cannot_reach_the_wanted_step(x64):
  """g = c1 ||w - w*|| is too much for an example that is well classified: u(y) is bounded on that side."""
  learner, pool, _ = make_task("margin")
  target = learner.init(jax.random.key(1))
  problem = last.Problem(learner, pool, target=target)
  student = learner.start(jax.tree.map(lambda leaf: leaf + 1.0, target))
  every = jnp.concatenate([jnp.linspace(-30, 30, 6001), -jnp.geomspace(30, 3000, 200), jnp.geomspace(30, 3000, 200)])
  scale = 5.0 * distances.distance(student.params, target)

  @jax.jit
  def judge(i):
    _, certificate = problems.answer_of(last.teachers.theorem_1(5.0), problem, student, i[None])
    x, truth = pool.x[i][None], problem.truth[i][None]
    gradient = jax.grad(learner.mean_loss)(student.params, x, truth)
    wanted = learner.update(student, jax.tree.map(lambda leaf: scale * leaf, gradient)).params

    def miss(label):
      return distances.squared_distance(learner.step(student, x, label[None, None]).params, wanted)

    return certificate.miss, jnp.sqrt(jnp.min(jax.vmap(miss)(every)))

  misses, searched = jax.lax.map(judge, jnp.arange(30))
  assert np.all(misses <= searched + 1e-10)
  assert 3 < np.sum(misses > 1e-6) < 27  # Some steps are out of reach, some are not.
  assert np.all(misses[misses <= 1e-6] < 1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["least_squares", "logistic"])
@pytest.mark.parametrize("batch", [1, 3])
def test_theorem_2_meets_its_condition_and_stops_at_the_first_that_does(x64, kind, batch):
  """In NumPy, from the parameters before and after; without any target."""
  learner, pool, _ = make_task(kind, rate=0.05, weight_decay=0.0)
  teacher = last.teachers.theorem_2(largest=512.0, shrink=0.6, c2=0.7)
  result = teach(learner, teacher, pool, None, students=2, steps=6, batch_size=batch, probe=lambda params: params)
  x, y = np.asarray(pool.x), np.asarray(pool.y, float)

  def loss_and_slope(flat, index):
    bias, weights = flat[0], flat[1:]
    z = x[index] @ weights + bias
    if kind == "least_squares":
      loss, u = 0.5 * (z - y[index]) ** 2, z - y[index]
    else:
      loss, u = np.logaddexp(0, z) - y[index] * z, 1 / (1 + np.exp(-z)) - y[index]
    return loss.mean(), np.concatenate([[u.mean()], (u[:, None] * x[index]).mean(0)])

  for student in range(2):
    for t in range(6):
      index = np.asarray(result.lessons.index[student, t])
      before, after = (problems.flatten(params_at(result, student, s)) for s in (t, t + 1))  # Bias first: sorted names.
      loss, slope = loss_and_slope(before, index)
      size = slope @ slope
      factor = (before - after) @ slope / (0.05 * size)
      np.testing.assert_allclose(after, before - 0.05 * factor * slope, atol=1e-10)

      def enough(g, before=before, slope=slope, loss=loss, size=size, index=index):
        step = 0.05 * g
        return loss_and_slope(before - step * slope, index)[0] <= loss - 0.7 * step * size

      tried = np.log(512.0 / factor) / np.log(1 / 0.6)
      assert tried == pytest.approx(round(tried), abs=1e-6)
      assert enough(factor * (1 - 1e-9))
      assert round(tried) == 0 or not enough(factor / 0.6)


@pytest.mark.slow
def test_theorem_2_takes_the_last_trial_where_none_is_good(x64):
  learner, pool, _ = make_task("least_squares", weight_decay=0.0)
  problem = last.Problem(learner, pool)
  teacher = last.teachers.theorem_2(largest=1e6, trials=3)
  state = last.init(KEY, problem, teacher)
  after, info = last.step(state, problem, teacher, batch_size=2)
  gradient = gradient_of(learner, state.params, pool, info.lesson.index)
  expected = problems.flatten(state.params) - 0.3 * 1e6 / 4 * gradient
  np.testing.assert_allclose(problems.flatten(after.params), expected, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize("kind", ["least_squares", "logistic"])
def test_theorem_2_continues_where_rounding_hides_the_loss(x64, kind, dtype):
  """Soft labels leave a loss at w*, beside which the last improvements vanish: the distance falls all the same."""
  learner, pool, target = make_task(kind, weight_decay=0.0)
  target = jax.tree.map(lambda leaf: leaf.astype(dtype), target)
  pool = last.theory.interpolating_pool(learner, target, pool.x.astype(dtype))
  start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf + 0.3, (6, *leaf.shape)).astype(dtype), target)
  result = teach(learner, last.teachers.theorem_2(), pool, target, init=start, steps=600, record_every=100)
  assert np.max(result.distance[:, -1]) < 100 * np.finfo(dtype).eps


# --- Theorem 3.


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_theorem_3_converges_within_ten_steps(x64, alpha):
  learner, pool, target = make_task("logistic")
  start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf + 0.2, (6, *leaf.shape)), target)
  teacher = last.teachers.theorem_3(alpha)
  result = teach(learner, teacher, pool, target, init=start, steps=10, batch_size=20)
  assert np.max(result.certificate.miss) < 1e-11
  assert np.max(result.distance[:, -1]) < 1e-12
  # Squared in every step, up to a factor, until rounding ends it.
  before, after = np.asarray(result.distance[:, :3]), np.asarray(result.distance[:, 1:4])
  assert np.all(after <= 5 * before**2 + 1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["least_squares", "softmax"])
def test_theorem_3_reaches_the_minimum_of_other_losses(x64, kind):
  """Softmax without weight decay has a singular Hessian: the part that cannot be taught does not change."""
  learner, pool, target = make_task(kind, weight_decay=0.0)
  start = jax.tree.map(lambda leaf: leaf[None] + 0.2 * jax.random.normal(KEY, (6, *leaf.shape)), target)
  result = teach(learner, last.teachers.theorem_3(), pool, target, init=start, steps=10, batch_size=20)
  away = jax.vmap(lambda params: last.unreachable_distance(learner, params, target, pool.x))(start)
  np.testing.assert_allclose(result.distance[:, -1], away, atol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_hessian_of_some_examples_serves(x64, alpha):
  learner, pool, target = make_task("logistic", size=200)
  teacher = last.teachers.theorem_3(alpha, hessian_size=80)
  start = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf + 0.2, (6, *leaf.shape)), target)
  result = teach(learner, teacher, pool, target, init=start, steps=60, batch_size=20, record_every=20)
  assert np.max(result.distance[:, -1]) < 1e-9  # Linear, not quadratic: the Hessian is only about right.
  assert np.max(result.certificate.miss) < 1e-11


@pytest.mark.slow
def test_one_example_cannot_realise_newtons_step_and_the_miss_says_so(x64):
  learner, pool, target = make_task("logistic")
  result = teach(learner, last.teachers.theorem_3(), pool, target, steps=5)
  assert np.all(result.certificate.miss > 1e-3)


def test_newton_teaches_without_a_target_and_the_others_do_not():
  learner, pool, target = make_task("logistic")
  result = last.teach(KEY, learner, last.teachers.theorem_3(), pool, steps=8, batch_size=20)
  assert np.max(np.abs(problems.flatten(result.params) - problems.flatten(target))) < 1e-3
  with pytest.raises(ValueError, match="target is missing"):
    last.teach(KEY, learner, last.teachers.theorem_3(1.0), pool, steps=2)


def test_names_tell_theorems_apart():
  make = last.teachers.theorem_3
  alpha = "\N{GREEK SMALL LETTER ALPHA}"
  names = [t.name for t in (*TEACHERS.values(), make(), make(1), make(0.5, 50))]
  parts = [f"theorem 3 ({alpha}=0)", f"theorem 3 ({alpha}=1)", f"theorem 3 ({alpha}=0.5, |S|=50)"]
  assert names == ["theorem 1", "theorem 2", *parts]


@pytest.mark.parametrize(
  ("make", "error", "message"),
  [
    (lambda: last.teachers.theorem_1(0.0), ValueError, "c1 must be a positive number"),
    (lambda: last.teachers.theorem_1("1"), TypeError, "c1 must be a number"),
    (lambda: last.teachers.theorem_2(c2=1.5), ValueError, "c2 must lie between 0 and 1"),
    (lambda: last.teachers.theorem_2(shrink=0.0), ValueError, "shrink must be a positive number"),
    (lambda: last.teachers.theorem_2(largest=-1.0), ValueError, "largest must be a positive number"),
    (lambda: last.teachers.theorem_2(trials=0), ValueError, "trials must be a whole number"),
    (lambda: last.teachers.theorem_3(1.1), ValueError, "alpha must lie between 0 and 1"),
    (lambda: last.teachers.theorem_3(0.0, 0), ValueError, "hessian_size must be a whole number"),
  ],
)
def test_bad_arguments_are_refused(make, error, message):
  with pytest.raises(error, match=message):
    make()


def test_learners_that_do_not_fit_are_refused():
  _, pool, _ = make_task("logistic")
  for settings in ({"learning_rate": 0.1, "momentum": 0.5}, {"optimizer": optax.adam(0.1)}):
    learner = last.learners.logistic(3, **settings)
    with pytest.raises(ValueError, match="theorem_2 searches along plain SGD steps"):
      last.teach(KEY, learner, last.teachers.theorem_2(), pool, steps=2)
  learner = last.learners.logistic(3, learning_rate=0.1)
  with pytest.raises(ValueError, match="hessian_size=41 examples cannot be drawn from a pool of 40"):
    last.teach(KEY, learner, last.teachers.theorem_3(0.0, 41), pool, steps=2)
