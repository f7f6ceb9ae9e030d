"""GPUs and TPUs, of which tests have none: programs are lowered for them, in single precision, without callbacks."""

import inspect
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import fitting, teaching
from tests.problems import CONSTRAINTS, KINDS

KEY = jax.random.key(0)
KEYS = jax.random.split(KEY, 4)
PLATFORMS = ("cuda", "tpu")


def case(kind):
  """A learner, its pool, a target, and parameters of four students."""
  make, shape, width = KINDS[kind]
  learner = make(0.1)
  x = np.random.default_rng(0).normal(size=(12, *shape)).astype(np.float32)
  y = np.arange(12) % max(width, 2) if learner.loss.classification else x.reshape(12, -1)[:, :width]
  return learner, last.Pool(x, y), learner.init(KEY), jax.vmap(learner.init)(KEYS)


def check(function, *arguments):
  """Lower a function of arrays for all platforms, and read the program."""
  traced = jax.jit(function).trace(*arguments)
  for platform in PLATFORMS:
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert not re.search(r"\bf64\b|xf64>", text), f"double precision on {platform}"
    assert "callback" not in text, f"{platform} would have to ask the host"


@pytest.mark.parametrize(
  ("kind", "name"), [*((kind, "simplex") for kind in KINDS), *(("softmax_5", name) for name in CONSTRAINTS)]
)
def test_label_synthesis(kind, name):
  learner, pool, goal, init = case(kind)
  params = jax.tree.map(lambda leaf: leaf[0], init)

  def labels(learner, params, goal, x, y):
    return last.synthesize_labels(learner, params, goal, x, y, CONSTRAINTS[name])

  check(labels, learner, params, goal, pool.x[:2], pool.y[:2])


TEACHERS = {
  "sgd": last.teachers.sgd(),
  "label_smoothing": last.teachers.label_smoothing(0.9),
  "self_training": last.teachers.self_training(),
  "imt": last.teachers.imt(),
  "mixed": last.teachers.mixed(last.constraints.simplex()),
  "joint": last.teachers.mixed(last.constraints.simplex(), joint=True),
  "planner": last.teachers.planner(3, last.constraints.simplex()),
}


@pytest.mark.parametrize("kind", ["logistic", "softmax_5", "mlp"])
@pytest.mark.parametrize("teacher", TEACHERS.values(), ids=TEACHERS.keys())
def test_teaching(kind, teacher):
  def teach_many(keys, learner, teacher, pool, goal, init):
    settings = {"steps": 5, "batch_size": 2, "record_every": 2, "lessons": True, "tolerance": 0.1, "test": pool}
    return last.teach_many(keys, learner, teacher, pool, target=goal, init=init, **settings)

  learner, pool, goal, init = case(kind)
  check(teach_many, KEYS, learner, teacher, pool, goal, init)


def state_machine():
  """The other programs of `teaching`, by name, as functions of arrays with their arguments."""
  learner, pool, goal, _ = case("softmax_5")
  teacher = TEACHERS["imt"]
  problem = last.Problem(learner, pool, target=goal, test=pool)
  one, many = (last.init(key, problem, teacher) for key in (KEY, KEYS))

  def teach(key, learner, teacher, pool, goal):
    settings = {"steps": 5, "batch_size": 2, "record_every": 2, "lessons": True, "test": pool}
    return last.teach(key, learner, teacher, pool, target=goal, **settings)

  def run(state, problem, teacher):
    return last.run(state, problem, teacher, steps=5, batch_size=2, record_every=2, lessons=True)

  yield "teach", teach, (KEY, learner, teacher, pool, goal)
  yield "init", last.init, (KEY, problem, teacher)
  yield "init", last.init, (KEYS, problem, teacher)
  yield "step", last.step, (one, problem, teacher)
  yield "run", run, (one, problem, teacher)
  yield "run", run, (many, problem, teacher)
  yield "next_lesson", last.next_lesson, (one, problem, teacher)
  yield "observe", last.observe, (one, goal)


@pytest.mark.parametrize("index", range(8))
def test_the_state_machine(index):
  _, function, arguments = list(state_machine())[index]
  check(function, *arguments)


def test_no_function_of_teaching_is_left_out():
  public = {name for name in last.__all__ if inspect.getmodule(getattr(last, name)) is teaching}
  assert public == {name for name, *_ in state_machine()} | {"teach_many"}


def trainers():
  learner, pool, goal, _ = case("softmax_2")
  settings = {"hidden": (8,), "horizon": 3, "evaluate_every": 2, "evaluation_steps": 3}
  unrolled = last.training.Unrolled(segment=2, **settings)
  reinforce = last.training.Reinforce(actions=last.outputs.BINARY, **settings)
  yield "unrolled", last.training.make_trainer(unrolled, learner, pool, target=goal)
  yield "reinforce", last.training.make_trainer(reinforce, learner, pool, target=goal)
  evolution = last.training.Evolution(persistent=True, **settings)
  yield "evolution", last.training.make_trainer(evolution, learner, pool, target=goal)
  yield "black box", last.training.make_trainer(last.training.Unrolled(**settings), learner, pool)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unrolled", "reinforce", "evolution", "black box"])
def test_training_in_pieces(name):
  trainer = dict(trainers())[name]
  check(last.training.Trainer.init, trainer, KEY)
  state = jax.eval_shape(last.training.Trainer.init, trainer, KEY)
  check(lambda trainer, state: trainer.advance(state, 2), trainer, state)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["unrolled", "reinforce"])
def test_training(name):
  learner, pool, goal, _ = case("softmax_2")
  settings = {"hidden": (8,), "horizon": 3, "evaluate_every": 2, "evaluation_steps": 3, "episodes": 3}

  def train(key, learner, pool, goal):
    if name == "unrolled":
      return last.train_unrolled(key, learner, pool, target=goal, segment=2, **settings)
    return last.train_reinforce(key, learner, pool, target=goal, actions=last.outputs.BINARY, **settings)

  check(train, KEY, learner, pool, goal)


@pytest.mark.parametrize("kind", ["least_squares", "logistic", "softmax_5", "mlp"])
def test_finding_a_target(kind):
  """Linear learners' targets are found in double precision, on the host whatever the platform; networks' are not."""
  learner, pool, goal, _ = case(kind)
  truth = learner.encode(pool.x, pool.y)
  check(fitting.minimise, learner, goal, pool.x, truth, 1e-5, 10)


def test_double_precision_and_callbacks_would_be_found():
  def prints(x):
    jax.debug.print("{}", x)
    return x

  with pytest.raises((AssertionError, ValueError), match=r"would have to ask the host|different from the lowering"):
    check(prints, jnp.ones(3))
  with jax.enable_x64(True), pytest.raises(AssertionError, match="double precision"):
    check(lambda x: x * 2, jnp.ones(3))
