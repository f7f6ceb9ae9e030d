"""Lines that say what an object is: short, right, and there for tracers too."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import last_jax as last

KEY = jax.random.key(0)


def taught(students=None, **settings):
  dataset = last.data.gaussian(0, per_class=10)
  learner = last.learners.logistic(4, learning_rate=0.1)
  teach, key = (last.teach_many, jax.random.split(KEY, students)) if students else (last.teach, KEY)
  target = jax.tree.map(jnp.ones_like, learner.init(KEY))
  return teach(key, learner, last.teachers.sgd(), dataset.train, target=target, steps=30, **settings)


LEARNERS = {
  "Learner(linear 4 -> 1, 5 parameters, squared_error, learning rate 0.1, weight decay 0.001)": (
    lambda: last.learners.least_squares(4, learning_rate=0.1, weight_decay=1e-3)
  ),
  "Learner(linear 4 -> 3, 15 parameters, softmax_cross_entropy, learning rate 0.5, momentum 0.9 (Nesterov))": (
    lambda: last.learners.softmax(4, 3, learning_rate=0.5, momentum=0.9, nesterov=True)
  ),
  "Learner(mlp 4-8-2, 58 parameters, softmax_cross_entropy, learning rate by schedule)": (
    lambda: last.learners.mlp((4, 8, 2), learning_rate=optax.linear_schedule(0.1, 0.0, 10))
  ),
  "Learner(linear 4 -> 1 without bias, 4 parameters, hinge, optimizer of optax)": (
    lambda: last.learners.svm(4, bias=False, optimizer=optax.adam(1e-3))
  ),
}


@pytest.mark.parametrize("text", LEARNERS)
def test_learners(text):
  assert repr(LEARNERS[text]()) == text


def test_networks_of_others():
  flax = pytest.importorskip("flax.linen")
  learner = last.learners.from_flax(flax.Dense(3), np.ones((1, 4), np.float32), loss="squared_error", learning_rate=0.1)
  assert repr(learner) == "Learner(Linen network, 15 parameters, squared_error, learning rate 0.1)"


def test_rates_in_a_sweep():
  learners = jax.vmap(lambda rate: last.learners.logistic(4, learning_rate=rate))(jnp.arange(1.0, 4.0))
  assert "learning rate float32[3]" in repr(learners)
  seen = []
  jax.jit(lambda rate: seen.append(repr(last.learners.logistic(4, learning_rate=rate))))(0.5)
  assert "learning rate float32[]" in seen[0]


def test_teachers():
  assert repr(last.teachers.sgd()) == "Teacher('SGD')"
  assert repr(last.teachers.imt()) == "Teacher('IMT', needs_target=True)"


@pytest.mark.parametrize("students", [None, 3])
def test_results_and_states(students):
  result = taught(students, tolerance=0.01, lessons=True, probe=lambda w: w["bias"])
  who = ", 3 students" if students else ""
  ends = np.asarray(result.distance)[..., [0, -1]].reshape(-1, 2).mean(0)
  start, end = np.asarray(result.objective)[..., [0, -1]].reshape(-1, 2).mean(0)
  metrics = f"distance {ends[0]:.3g} -> {ends[1]:.3g}, objective {start:.3g} -> {end:.3g}"
  assert repr(result) == f"Result(30 steps{who}, {metrics}, probe, lessons)"
  assert repr(result.records) == f"Records(30 steps{who}, {metrics}, probe, lessons)"
  assert repr(result.state) == f"State(step 30, 5 parameters{who or ', hitting time -1'})"
  assert max(map(len, map(repr, (result, result.records, result.state)))) <= 120


def test_without_numbers():
  shapes = jax.eval_shape(lambda: taught(metrics="distance"))
  assert repr(shapes) == "Result(step int32[31], distance)"
  assert repr(shapes.state) == "State(step int32[], 5 parameters)"
  seen = []
  jax.jit(lambda result: seen.extend([repr(result), repr(result.state)]))(taught(2, metrics=()))
  assert seen == ["Result(step int32[2, 31])", "State(step int32[2], 5 parameters, 2 students)"]
  repr(jax.tree.map(lambda leaf: None, taught()))
