"""GPUs and TPUs, of which tests have none: every program is lowered for them, in single precision, with no callback."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import constraints, loop, students, synthesis, target
from last_jax.training import trainer as trainer_
from tests.problems import CONSTRAINTS, KINDS

KEY = jax.random.key(0)
PLATFORMS = ("cuda", "tpu")


def case(kind):
  """A learner, its pool, a target, and parameters of four students."""
  make, shape, width = KINDS[kind]
  learner = make(0.1)
  x = np.random.default_rng(0).normal(size=(12, *shape)).astype(np.float32)
  y = np.arange(12) % max(width, 2) if learner.loss.classification else x.reshape(12, -1)[:, :width]
  return learner, last.Pool(x, y), learner.init(KEY), jax.vmap(learner.init)(jax.random.split(KEY, 4))


def check(jitted, *arguments, **settings):
  for platform in PLATFORMS:
    text = jitted.trace(*arguments, **settings).lower(lowering_platforms=(platform,)).as_text()
    assert not re.search(r"\bf64\b|xf64>", text), f"double precision on {platform}"
    assert "callback" not in text, f"{platform} would have to ask the host"


def teaching(learner, pool, goal, init, teacher, **settings):
  """The program of `teach_many`."""
  plan = loop.make_plan(learner, goal, pool, 5, 2, 2, True, 0.1, loop.METRICS, None)
  task = loop.Task(pool, goal, pool, 0.1)
  keys = jax.random.split(KEY, 4)
  return students.run_many, ((keys, init, None), (learner, teacher, task)), {"plan": plan, "mesh": None}


@pytest.mark.parametrize(
  ("kind", "name"), [*((kind, "simplex") for kind in KINDS), *(("softmax_5", name) for name in CONSTRAINTS)]
)
def test_label_synthesis(kind, name):
  learner, pool, goal, init = case(kind)
  one = jax.tree.map(lambda leaf: leaf[0], init)
  truth = learner.encode(pool.x[:2], pool.y[:2])
  check(synthesis._greedy_labels, learner, learner.start(one), goal, pool.x[:2], truth, CONSTRAINTS[name])


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
  jitted, arguments, settings = teaching(*case(kind), teacher)
  check(jitted, *arguments, **settings)


def test_teaching_one_student():
  learner, pool, goal, _ = case("softmax_5")
  plan = loop.make_plan(learner, goal, pool, 5, 2, 2, True, None, loop.METRICS, None)
  task = loop.Task(pool, goal, pool, None)
  check(loop.run, KEY, learner, TEACHERS["imt"], task, None, None, plan=plan)


def trainers():
  learner, pool, goal, _ = case("softmax_2")
  settings = {"target": goal, "hidden": (8,), "horizon": 3, "evaluate_every": 2, "evaluation_steps": 3}
  yield "unrolled", last.training.make_unrolled(learner, pool, segment=2, **settings)
  yield "reinforce", last.training.make_reinforce(learner, pool, actions=last.outputs.BINARY, **settings)
  yield "black box", last.training.make_unrolled(learner, pool, **settings | {"target": None})


@pytest.mark.parametrize("name", ["unrolled", "reinforce", "black box"])
def test_training(name):
  trainer = dict(trainers())[name]
  check(trainer_.run, trainer, KEY, episodes=3)
  start = jax.jit(last.training.Trainer.start)
  check(start, trainer, KEY)
  state = jax.eval_shape(start, trainer, KEY)
  check(jax.jit(lambda trainer, state: trainer.advance(state, 2)), trainer, state)


@pytest.mark.parametrize("kind", ["least_squares", "logistic", "softmax_5", "mlp"])
def test_finding_a_target(kind):
  """As for networks. Linear learners' targets are found in double precision, on the host whatever the platform."""
  learner, pool, goal, _ = case(kind)
  truth = learner.encode(pool.x, pool.y)
  check(target._minimise, learner, goal, pool.x, truth, 1e-5, 10, linear=False)


def test_a_doubled_precision_and_a_callback_would_be_found():
  def prints(x):
    jax.debug.print("{}", x)
    return x

  with pytest.raises((AssertionError, ValueError), match=r"would have to ask the host|different from the lowering"):
    check(jax.jit(prints), jnp.ones(3))
  with jax.enable_x64(True), pytest.raises(AssertionError, match="double precision"):
    check(jax.jit(lambda x: x * 2), jnp.ones(3))


def test_no_program_is_forgotten():
  """Every jitted function of the package is lowered above, alone or within another."""
  kind = type(loop.run)
  found = {
    f"{module.__name__}.{name}"
    for module in (loop, students, synthesis, target, trainer_, constraints)
    for name, value in vars(module).items()
    if isinstance(value, kind)
  }
  assert found == {
    "last_jax.loop.run", "last_jax.students.run_many", "last_jax.synthesis._greedy_labels",
    "last_jax.target._minimise", "last_jax.training.trainer.run", "last_jax.constraints._project_each",
  }  # fmt: skip
