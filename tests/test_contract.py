"""One contract for every teacher, with every learner and constraint."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import last_jax as last
from tests import problems
from tests.compilations import counted
from tests.problems import task

pytestmark = pytest.mark.sampled

LEARNERS = {
  "least_squares": task("least_squares"),
  "logistic": task("logistic"),
  "margin": (last.learners.logistic(4, learning_rate=0.3, form="margin"), *task("logistic")[1:]),
  "momentum": (last.learners.logistic(4, learning_rate=0.3, momentum=0.5), *task("logistic")[1:]),
  "adam": (last.learners.logistic(4, optimizer=optax.adam(0.1)), *task("logistic")[1:]),
  "softmax": task("softmax_5"),
  "mlp": task("mlp"),
  "conv": task("conv"),
}


def pretrained(kind):
  """A model of the learner's own kind to distil; its weights are leaves."""
  learner, _, target = LEARNERS[kind]
  return jax.tree_util.Partial(learner.apply, target)


def toward_loss(kind, **settings):
  """A teacher without w*, that lowers the loss on the pool."""
  return last.teachers.greedy(problems.CONSTRAINTS["simplex_2"], last.targets.loss(LEARNERS[kind][1], **settings))


PLAIN = {
  "sgd": lambda kind: last.teachers.sgd(),
  "label_smoothing": lambda kind: last.teachers.label_smoothing(0.8),
  "self_training": lambda kind: last.teachers.self_training(),
  "distillation": lambda kind: last.teachers.distillation(pretrained(kind), 2.0),
  "imt": lambda kind: last.teachers.imt(),
  "shortlist": lambda kind: last.teachers.imt(shortlist=5),
  "theorem_1": lambda kind: last.teachers.theorem_1(0.1),
  "theorem_2": lambda kind: last.teachers.theorem_2(),
  "theorem_3": lambda kind: last.teachers.theorem_3(0.5, hessian_size=20),
  "loss": lambda kind: toward_loss(kind, batch_size=10),
  "newton_point": lambda kind: toward_loss(kind, form="newton_point"),
}
CHOOSING = {
  "greedy": last.teachers.greedy,
  "mixed": last.teachers.mixed,
  "joint": lambda constraint: last.teachers.mixed(constraint, joint=True),
  "planner": lambda constraint: last.teachers.planner(2, constraint),
}
# Every learner with every teacher; every set with two linear learners and a network. Sets make no other difference to
# the other learners: one that needs a solver is enough.
SETS = {"planner": ["none", "one_hot", "simplex"]}
ALL_SETS, HARD_SET = ["none", "one_hot", "simplex", "simplex_2", "ball_2"], "simplex_2"
COMBINATIONS = [
  *((learner, teacher, None) for learner, teacher in itertools.product(LEARNERS, PLAIN)),
  *(
    (learner, teacher, name)
    for learner, teacher in itertools.product(LEARNERS, CHOOSING)
    for name in (SETS.get(teacher, ALL_SETS) if learner in ("logistic", "softmax", "mlp") else [HARD_SET])
  ),
]
# Combinations that a teacher refuses, with its words.
REFUSED = {
  ("least_squares", "label_smoothing"): "label_smoothing is for classifiers",
  **{(kind, "theorem_2"): "theorem_2 searches along plain SGD steps" for kind in ("momentum", "adam")},
}


@pytest.mark.parametrize(("kind", "method", "name"), COMBINATIONS)
def test_contract(kind, method, name):
  """Jitted and vmapped over students; shapes as promised; nothing compiled on the second call."""
  learner, pool, target = LEARNERS[kind]
  batch, steps = (2 if method == "greedy" else 1), 2

  def teach(seed):
    # Made again each time: equal settings must be recognised as equal.
    teacher = PLAIN[method](kind) if name is None else CHOOSING[method](problems.CONSTRAINTS[name])
    return last.teach_many(
      jax.random.split(jax.random.key(seed), 3),
      learner,
      teacher,
      pool,
      target=target,
      steps=steps,
      batch_size=batch,
      lessons=True,
      metrics=("distance",),
    )

  if (kind, method) in REFUSED:
    with pytest.raises(ValueError, match=REFUSED[kind, method]):
      teach(0)
    return
  result = teach(0)
  width = learner.num_outputs(pool.x)
  assert result.distance.shape == (3, steps + 1)
  assert result.lessons.index.shape == (3, steps, batch)
  assert result.lessons.label.shape == (3, steps, batch, width)
  assert jax.tree.all(jax.tree.map(lambda a, b: a.shape == (3, *b.shape), result.params, target))
  for leaf in jax.tree.leaves((result.distance, result.lessons.label, result.params)):
    assert leaf.dtype == jnp.float32
    assert np.isfinite(leaf).all()
  with counted() as programs:
    again = teach(1)
  assert not programs.names
  assert np.any(np.asarray(again.lessons.index) != np.asarray(result.lessons.index)) or method in (
    "imt",
    "shortlist",
    "mixed",
    "joint",
  )
