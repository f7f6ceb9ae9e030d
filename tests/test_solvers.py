"""Labels found by gradient steps: against the exact ones, against a plain loop, and their certificates."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import last_jax as last
from last_jax import solvers

C = last.constraints


def case(kind, batch=2, seed=0, rate=0.3):
  """A learner, start, target, inputs and one-hot truth."""
  makers = {
    "logistic": lambda: last.learners.logistic(4, learning_rate=rate),
    "margin": lambda: last.learners.logistic(4, learning_rate=rate, form="margin"),
    "softmax": lambda: last.learners.softmax(4, 3, learning_rate=rate, weight_decay=1e-2),
    "network": lambda: last.learners.mlp((4, 6, 2), learning_rate=rate),
    "adam": lambda: last.learners.softmax(4, 3, optimizer=optax.adam(rate)),
  }
  learner, draw = makers[kind](), np.random.default_rng(seed)
  params, target = (
    jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape), float), learner.init(jax.random.key(0)))
    for _ in range(2)
  )
  x, y = jnp.asarray(draw.normal(size=(batch, 4)), float), draw.integers(2, size=batch)
  return learner, params, target, x, y


def distance_after(learner, params, target, x, labels):
  after = learner.step(learner.start(params), x, labels).params
  return optax.tree.norm(optax.tree.sub(after, target)) ** 2


@pytest.mark.slow
@pytest.mark.parametrize(
  ("kind", "constraint"),
  [("logistic", C.magnitude(1.0)), ("softmax", C.simplex(0.5)), ("network", C.simplex())],
)
def test_many_steps_find_the_exact_labels(x64, kind, constraint):
  """Where G is convex: that of the margin form is not, and steps from the truth may end in a local minimum."""
  given = case(kind)
  exact = last.synthesize_labels(*given, constraint)
  found, certificate = last.synthesize_labels(
    *given, constraint, solver=solvers.descent(4000, 0.01), with_certificate=True
  )
  learner, params, target, x, _ = given
  least, reached = (float(distance_after(learner, params, target, x, labels)) for labels in (exact, found))
  assert reached == pytest.approx(least, rel=1e-5)
  assert reached >= least - 1e-9
  assert certificate.residual < 1e-2


@pytest.mark.parametrize("kind", ["logistic", "network", "margin", "adam"])
@pytest.mark.slow
def test_each_step_is_adams_on_the_distance_after_the_learners_own_step(x64, kind):
  """A plain loop with optax and the learner's step, which knows nothing of quadratics."""
  learner, params, target, x, y = case(kind)
  optimizer, labels = optax.adam(0.05), learner.encode(x, y)
  state, slope = optimizer.init(labels), jax.grad(lambda labels: distance_after(learner, params, target, x, labels))
  for _ in range(4):
    updates, state = optimizer.update(slope(labels), state)
    labels = labels + updates
  found, certificate = last.synthesize_labels(
    learner, params, target, x, y, C.none(), solver=solvers.descent(4, 0.05), with_certificate=True
  )
  np.testing.assert_allclose(found, labels, atol=1e-9)
  assert not certificate.exact
  assert certificate.road == "descent"
  assert certificate.iterations == 4


def test_labels_stay_near_the_truth():
  """Adam's steps are at most about its rate: the radius of a search is steps times rate."""
  learner, params, target, x, y = case("logistic", rate=1e-3)
  found = last.synthesize_labels(learner, params, target, x, y, C.none(), solver=solvers.descent(50, 0.02))
  exact = last.synthesize_labels(learner, params, target, x, y, C.none())
  truth = learner.encode(x, y)
  assert jnp.max(jnp.abs(exact - truth)) > 100
  assert jnp.max(jnp.abs(found - truth)) <= 50 * 0.02 * 1.01


@pytest.mark.slow
@pytest.mark.parametrize("make", [last.teachers.greedy, last.teachers.mixed])
def test_teachers_that_search_teach_many_students(make):
  learner, params, target, x, y = case("softmax", batch=20)
  teacher = make(C.simplex(), solver=solvers.descent(20, 0.05))
  keys = jax.random.split(jax.random.key(0), 3)
  stacked = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), params)
  results = last.teach_many(keys, learner, teacher, last.Pool(x, y), target=target, init=stacked, steps=4, lessons=True)
  one = last.teach(keys[1], learner, teacher, last.Pool(x, y), target=target, init=params, steps=4)
  np.testing.assert_allclose(results.distance[1], one.distance, rtol=1e-5)
  assert results.certificate.exact is False
  assert "20 steps" in teacher.name
  assert (results.lessons.label >= -1e-6).all()


def test_derivatives_pass_through_the_search():
  learner, params, target, x, y = case("logistic")

  def label(scale):
    scaled = jax.tree.map(lambda leaf: scale * leaf, target)
    return jnp.sum(last.synthesize_labels(learner, params, scaled, x, y, C.none(), solver=solvers.descent(5, 0.1)))

  assert jnp.isfinite(jax.grad(label)(1.0))


@pytest.mark.parametrize(
  ("make", "error", "match"),
  [
    (lambda: solvers.descent(0), ValueError, "steps"),
    (lambda: solvers.descent(3, -1.0), ValueError, "rate"),
    (lambda: last.teachers.greedy(C.none(), solver="adam"), TypeError, "solver must be"),
    (lambda: last.teachers.greedy(C.one_hot(), solver=solvers.descent()), ValueError, "convex"),
    (lambda: last.teachers.greedy(C.simplex(max_nonzero=2), solver=solvers.descent()), ValueError, "convex"),
    (lambda: last.teachers.mixed(C.none(), joint=True, solver=solvers.descent()), ValueError, "joint"),
  ],
)
def test_bad_settings_are_refused(make, error, match):
  with pytest.raises(error, match=match):
    make()
