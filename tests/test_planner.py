"""The planner: the end of several steps planned at once, against brute force, a general solver, and greedy labels."""

import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import last_jax as last
from tests import problems

pytestmark = pytest.mark.sampled

KEY = jax.random.key(0)
STUDENTS = jax.random.split(KEY, 6)
NONE = last.constraints.none()
NEXT = last.targets.params(coasting=False)  # The next parameters themselves, also with momentum.

LEARNERS = {
  "least_squares": lambda **settings: last.learners.least_squares(3, learning_rate=0.1, **settings),
  "logistic": lambda **settings: last.learners.logistic(3, learning_rate=0.1, **settings),
  "softmax": lambda **settings: last.learners.softmax(3, 3, learning_rate=0.1, **settings),
}


def make_task(kind, size=500, **settings):
  learner = LEARNERS[kind](**settings)
  draw = np.random.default_rng(0)
  x = draw.normal(size=(size, 3))
  classes = np.arange(size) % (3 if kind == "softmax" else 2)
  y = draw.uniform(size=size) if kind == "least_squares" else classes
  pool = last.Pool(jnp.asarray(x), jnp.asarray(y))
  return learner, pool, learner.init(jax.random.key(7))


def teach(learner, teacher, pool, target, **settings):
  return last.teach_many(STUDENTS, learner, teacher, pool, target=target, metrics=("distance",), **settings)


def unreachable(learner, pool, target):
  """The part of the distance that the students of `teach` cannot be rid of, `[students]`."""
  start = teach(learner, last.teachers.sgd(), pool, target, steps=1, probe=lambda params: params).probe
  first = jax.tree.map(lambda leaf: leaf[:, 0], start)
  return jax.vmap(lambda params: last.unreachable_distance(learner, params, target, pool.x))(first)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LEARNERS)
def test_a_batch_as_large_as_the_rank_reaches_the_target_in_one_step(x64, kind):
  learner, pool, target = make_task(kind)
  result = teach(learner, last.teachers.greedy(NONE), pool, target, steps=1, batch_size=4)
  np.testing.assert_allclose(result.distance[:, 1], unreachable(learner, pool, target), atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
  ("kind", "settings"),
  [
    ("least_squares", {}),
    ("logistic", {}),
    ("softmax", {}),
    ("least_squares", {"weight_decay": 0.1, "momentum": 0.5}),
    ("logistic", {"weight_decay": 0.1, "momentum": 0.5}),
  ],
)
def test_as_many_steps_as_the_rank_reach_the_target(x64, kind, settings):
  """Three features and a bias: four examples span all there is. Greedy labels do not get there in four steps."""
  learner, pool, target = make_task(kind, **settings)
  planned = teach(learner, last.teachers.planner(4, NONE, NEXT), pool, target, steps=4).distance
  greedy = teach(learner, last.teachers.greedy(NONE, NEXT), pool, target, steps=4).distance
  out_of_reach = np.asarray(unreachable(learner, pool, target))  # Zero except for softmax.
  np.testing.assert_allclose(planned[:, 4], out_of_reach, atol=1e-10 * float(np.max(planned[:, 0])))
  assert np.all(greedy[:, 4] > out_of_reach + 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LEARNERS)
@pytest.mark.parametrize("name", ["none", "one_hot", "simplex", "ball_inf"])
def test_a_plan_of_one_step_is_greedy(x64, kind, name):
  learner, pool, target = make_task(kind)
  constraint = problems.CONSTRAINTS[name]
  planned = teach(learner, last.teachers.planner(1, constraint), pool, target, steps=3, batch_size=2, lessons=True)
  greedy = teach(learner, last.teachers.greedy(constraint), pool, target, steps=3, batch_size=2, lessons=True)
  np.testing.assert_array_equal(planned.lessons.index, greedy.lessons.index)
  np.testing.assert_allclose(planned.lessons.label, greedy.lessons.label, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LEARNERS)
@pytest.mark.parametrize("name", ["none", "one_hot", "simplex", "ball_inf"])
def test_the_last_step_of_a_block_is_greedy(x64, kind, name):
  """Only that step is left to plan, but it goes the general way, with all steps after the block masked out."""
  learner, pool, target = make_task(kind)
  problem = last.Problem(learner, pool, target=target)
  constraint = problems.CONSTRAINTS[name]
  for seed, step in enumerate((2, 5, 11)):
    labels = []
    for teacher in (last.teachers.planner(3, constraint), last.teachers.greedy(constraint)):
      state = last.init(KEY, problem, teacher, learner.init(jax.random.key(seed)))
      _, info = last.step(state._replace(step=jnp.asarray(step)), problem, teacher)
      labels.append(info.lesson.label)
    np.testing.assert_allclose(*labels, atol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one_hot", "simplex", "simplex_inf", "ball_inf", "ball_1"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_plan_for_least_squares_is_never_worse_than_greedy(x64, name, batch):
  learner, pool, target = make_task("least_squares", weight_decay=0.05)
  constraint = problems.CONSTRAINTS[name]
  planned = teach(learner, last.teachers.planner(3, constraint), pool, target, steps=3, batch_size=batch)
  greedy = teach(learner, last.teachers.greedy(constraint), pool, target, steps=3, batch_size=batch)
  assert np.all(planned.distance[:, 3] <= greedy.distance[:, 3] * (1 + 1e-9))
  if name != "one_hot":  # There greedy may well happen to find the best of the few sequences.
    assert np.any(planned.distance[:, 3] < greedy.distance[:, 3] * (1 - 1e-6))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["none", "simplex", "ball_inf", "ball_1"])
def test_a_plan_for_least_squares_is_the_best_there_is(x64, name):
  """Against a general solver, for the map of all labels to the end of the block, read off by taking the steps."""
  learner, pool, target = make_task("least_squares", weight_decay=0.05)
  planner = last.teachers.planner(3, problems.CONSTRAINTS[name])
  result = teach(learner, planner, pool, target, steps=3, lessons=True, probe=lambda params: params)
  truth = np.asarray(learner.encode(pool.x, pool.y))

  @jax.jit
  def roll_out(params, index, labels):
    student = learner.start(params)
    for t in range(3):
      student = learner.step(student, pool.x[index[t]], labels[t][None])
    return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(student.params)])

  for student in range(3):
    start = jax.tree.map(lambda leaf, s=student: leaf[s, 0], result.probe)
    index = result.lessons.index[student]
    origin = np.asarray(roll_out(start, index, jnp.zeros((3, 1))))
    columns = np.stack([np.asarray(roll_out(start, index, label)) - origin for label in np.eye(3)[:, :, None]], 1)
    shown = truth[np.asarray(index)[:, 0]]
    best = problems.solve(name, origin, columns, problems.flatten(target), shown, shown)
    assert float(result.distance[student, 3]) ** 2 == pytest.approx(best, rel=1e-5, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["logistic", "softmax", "least_squares"])
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.6}])
def test_one_hot_plans_are_the_best_of_all_sequences(x64, kind, settings):
  learner, pool, target = make_task(kind, **settings)
  planner = last.teachers.planner(3, last.constraints.one_hot(), NEXT)
  result = teach(learner, planner, pool, target, steps=3, lessons=True, probe=lambda params: params)
  class_labels = learner.loss.class_labels(learner.num_outputs(pool.x))
  sequences = class_labels[list(itertools.product(range(len(class_labels)), repeat=3))]  # [C^3, 3, K]

  @jax.jit
  def ends(params, index):
    def end(labels):
      student = learner.start(params)
      for t in range(3):
        student = learner.step(student, pool.x[index[t]], labels[t][None])
      return optax.tree.norm(optax.tree.sub(student.params, target))

    return jax.vmap(end)(jnp.asarray(sequences))

  for student in range(6):
    start = jax.tree.map(lambda leaf, s=student: leaf[s, 0], result.probe)
    best = np.min(ends(start, result.lessons.index[student]))
    assert float(result.distance[student, 3]) == pytest.approx(float(best), rel=1e-9)


@pytest.mark.slow
def test_sequences_too_many_to_try_are_planned_too(x64):
  """Without a guarantee: better than SGD on average, and labels of classes."""
  learner, pool, target = make_task("logistic")
  planner = last.teachers.planner(4, last.constraints.one_hot(max_combinations=8))
  planned = teach(learner, planner, pool, target, steps=8, lessons=True)
  plain = teach(learner, last.teachers.sgd(), pool, target, steps=8)
  assert np.isin(planned.lessons.label, [0.0, 1.0]).all()
  assert np.mean(planned.distance[:, 8]) < np.mean(plain.distance[:, 8])


@pytest.mark.slow
def test_blocks_follow_each_other_and_teaching_can_stop_in_the_middle_of_one(x64):
  learner, pool, target = make_task("logistic")
  planner = last.teachers.planner(3, last.constraints.simplex())
  whole = teach(learner, planner, pool, target, steps=7, lessons=True)
  first = teach(learner, planner, pool, target, steps=4, lessons=True)
  problem = last.Problem(learner, pool, target=target)
  _, rest = last.run(first.state, problem, planner, steps=3, lessons=True)
  np.testing.assert_allclose(
    np.concatenate([first.lessons.label, rest.lessons.label], 1), whole.lessons.label, atol=1e-12
  )
  greedy = teach(learner, last.teachers.greedy(last.constraints.simplex()), pool, target, steps=6).distance
  assert np.mean(whole.distance[:, 6]) < np.mean(greedy[:, 6])


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [optax.adam(0.05), optax.sgd(0.1)])
def test_networks_and_other_optimizers_are_planned_for(optimizer):
  learner = last.learners.mlp((3, 4, 3), activation="tanh", optimizer=optimizer)
  _, pool, _ = make_task("softmax", size=30)
  target = learner.init(jax.random.key(7))
  planned = teach(learner, last.teachers.planner(2, last.constraints.simplex()), pool, target, steps=4)
  plain = teach(learner, last.teachers.sgd(), pool, target, steps=4)
  assert np.all(np.isfinite(planned.distance))
  assert np.mean(planned.distance[:, 2]) < np.mean(plain.distance[:, 2])


def test_bad_plans_are_refused():
  with pytest.raises(ValueError, match="horizon must be a whole number of at least 1"):
    last.teachers.planner(0, NONE)
  with pytest.raises(TypeError, match="constraint must come from"):
    last.teachers.planner(2, "simplex")
  with pytest.raises(ValueError, match="is around the prediction, which later in a plan depends on earlier labels"):
    last.teachers.planner(2, last.constraints.magnitude(0.5, around="prediction"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["simplex", "none", "ball_2"])
def test_plans_without_the_derivative_of_the_blocks_end_are_the_same(x64, name, monkeypatch):
  """For networks too large for it: products, by a pass through the steps of the block and back."""
  learner = last.learners.mlp((3, 4, 3), activation="tanh", learning_rate=0.5, momentum=0.5)
  pool = last.Pool(np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 3)
  constraint = last.constraints.magnitude(0.6) if name == "ball_2" else problems.CONSTRAINTS[name]
  toward = last.targets.params(learner.init(jax.random.key(7)))

  def taught():
    planner = last.teachers.planner(2, constraint, toward)
    return last.teach(KEY, learner, planner, pool, steps=2, batch_size=2, lessons=True, target=toward.params)

  formed = taught()
  monkeypatch.setattr(sys.modules["last_jax.teachers.planner"], "_FORMED", 0)
  jax.clear_caches()
  by_products = taught()
  if name == "none":  # Far from unique: what they reach is what counts.
    assert float(by_products.distance[-1]) == pytest.approx(float(formed.distance[-1]), rel=0.01)
  else:
    np.testing.assert_allclose(by_products.lessons.label, formed.lessons.label, atol=1e-6)
  assert np.max(np.abs(formed.lessons.label - np.eye(3)[pool.y[formed.lessons.index]])) > 0.1
