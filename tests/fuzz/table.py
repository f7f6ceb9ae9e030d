"""The public functions, each with arguments that are right and with what every argument is."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import last_jax as last
from last_jax import fitting, loop, stacking, synthesis
from last_jax.distilling import distill
from last_jax.training import trainer

SETTINGS = {
  "learning_rate": "positive|function", "weight_decay": "not negative", "bias": "flag", "momentum": "share?",
  "nesterov": "flag", "optimizer": "optimizer?",
}  # fmt: skip
_RUN = {
  "steps": "count", "batch_size": "count", "record_every": "count", "metrics": "names?", "probe": "function?",
  "lessons": "flag",
}  # fmt: skip
_TEACH = _RUN | {
  "learner": "learner", "teacher": "teacher", "pool": "pool", "target": "params?", "init": "params?", "test": "pool?",
  "tolerance": "positive?",
}  # fmt: skip
_TRAIN = {
  "key": "key|typed key", "learner": "learner", "pool": "pool", "target": "params?", "validation": "pool?",
  "init_fn": "function?", "episodes": "count", "mesh": "mesh?", "horizon": "count", "batch_size": "count",
  "students": "count", "reset": "share?", "reward": "reward?", "features": "names?", "hidden": "counts",
  "policy": "module?", "standardize": "flag", "learning_rate": "positive?", "weight_decay": "not negative?",
  "optimizer": "optimizer?", "evaluate_every": "count|count or 0?", "evaluation_steps": "count",
}  # fmt: skip


class Entry(NamedTuple):
  """A function, arguments that it takes, and what they are.

  Kinds: "count", "number", "not negative", "positive", "share", "flag", "text", "array", "function", "names", "counts",
  "key", "keys"; others take no odd value at all. One that ends in "?" may be None.
  """

  function: Callable[..., Any]
  right: dict[str, Any]
  kinds: dict[str, str]
  also: dict[str, tuple[str, ...]] = {}  # Other words for an argument in messages.  # noqa: RUF012


def init_fn(key):
  """Two parameters."""
  return {"weights": jax.random.normal(key, (3, 2))}


def apply_fn(params, x):
  """A linear model."""
  return x @ params["weights"]


def _teacher_step(teacher_state, view, proposal):
  return last.Lesson(proposal, view.truth[proposal]), teacher_state, None


@functools.cache
def entries() -> dict[str, Entry]:
  """Return the table, by the name of the function."""
  draw = np.random.default_rng(0)
  x = draw.normal(size=(6, 3)).astype(np.float32)
  pool = last.Pool(x, np.array([0, 1, 0, 1, 1, 0]))
  learner = last.learners.softmax(3, 2, learning_rate=0.1)
  params, target = learner.init(jax.random.key(0)), learner.init(jax.random.key(1))
  teacher = last.teachers.greedy(last.constraints.simplex())
  simplex = last.constraints.simplex()
  problem = last.Problem(learner, pool, target=target)
  key = jax.random.key(0)
  keys = jax.random.split(key, 2)
  state = last.init(key, problem, teacher)
  many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), params)
  lesson = last.Lesson(np.zeros((4, 2), int), np.full((4, 2, 2), 0.5, np.float32))

  table = {
    "Pool": Entry(
      last.Pool, {"x": x, "y": np.arange(6) % 2, "classes": None}, {"x": "array", "y": "array", "classes": "names?"}
    ),
    "Problem": Entry(
      last.Problem, {"learner": learner, "pool": pool, "target": target, "test": pool, "tolerance": 0.1},
      {"learner": "learner", "pool": "pool", "target": "params?", "test": "pool?", "tolerance": "positive?"},
    ),
    "Teacher": Entry(
      last.Teacher, {"name": "mine", "init": None, "step": _teacher_step, "prepare": None, "needs_target": False},
      {"name": "text", "init": "function?", "step": "function", "prepare": "function?", "needs_target": "flag"},
    ),
    "init": Entry(
      last.init, {"key": key, "problem": problem, "teacher": teacher, "params": params},
      {"key": "key|typed key", "problem": "problem", "teacher": "teacher", "params": "params?"}, {"key": ("params",)},
    ),
    "step": Entry(
      last.step, {"state": state, "problem": problem, "teacher": teacher, "batch_size": 2},
      {"state": "state", "problem": "problem", "teacher": "teacher", "batch_size": "count"},
    ),
    "run": Entry(
      last.run, {"state": state, "problem": problem, "teacher": teacher, "steps": 3},
      {"state": "state", "problem": "problem", "teacher": "teacher", "mesh": "mesh?", **_RUN},
    ),
    "next_lesson": Entry(
      last.next_lesson, {"state": state, "problem": problem, "teacher": teacher, "batch_size": 2},
      {"state": "state", "problem": "problem", "teacher": "teacher", "batch_size": "count"},
    ),
    "observe": Entry(last.observe, {"state": state, "params": params}, {"state": "state", "params": "params"}),
    "teach": Entry(
      last.teach,
      {"key": key, "learner": learner, "teacher": teacher, "pool": pool, "target": target, "init": params, "steps": 3},
      {"key": "key|typed key", **_TEACH},
    ),
    "teach_many": Entry(
      last.teach_many,
      {"keys": keys, "learner": learner, "teacher": teacher, "pool": pool, "target": target, "init": many, "steps": 3},
      {"keys": "keys", "mesh": "mesh?", **_TEACH},
    ),
    "sweep": Entry(
      last.sweep,
      {"keys": keys, "learners": learner, "teachers": teacher, "pool": pool, "target": target, "init": many,
       "steps": 3},
      {"keys": "keys", "learners": "learner", "teachers": "teacher", "at_once": "count", "mesh": "mesh?",
       **{name: kind for name, kind in _TEACH.items() if name not in ("learner", "teacher", "target", "init")},
       "target": "params|function?", "init": "params|function?"},
    ),
    "fit_target": Entry(
      last.fit_target, {"learner": learner, "pool": pool, "init": params},
      {"learner": "learner", "pool": "pool", "key": "key|typed key?", "init": "params?", "tolerance": "positive?",
       "max_steps": "count?", "with_fit": "flag"},
    ),
    "synthesize_labels": Entry(
      last.synthesize_labels,
      {"learner": learner, "params": params, "target": target, "x": x[:2], "y": pool.y[:2], "constraint": simplex},
      {"learner": "learner", "params": "params", "target": "params", "x": "array", "y": "array",
       "constraint": "constraint?", "opt_state": "opt_state?", "layer_weights": "weights?", "solver": "solver?",
       "with_certificate": "flag"},
    ),
    "distill_labels": Entry(
      last.distill_labels,
      {"key": key, "learner": learner, "x": x, "y": pool.y, "validation": pool, "steps": 2, "updates": 0},
      {"key": "key|typed key", "learner": "learner", "x": "array", "y": "array", "target": "params?",
       "validation": "pool?",
       "steps": "count", "road": "text", "constraint": "constraint?", "batch_size": "count?", "students": "count",
       "init_fn": "function?", "updates": "count|count or 0?", "rate": "positive?", "parametrization": "text?",
       "validation_batch": "count?", "segment": "count?", "labels": "array?", "state": "state?"},
    ),
    "Curriculum": Entry(
      last.Curriculum, {"problem": problem, "lessons": lesson, "init": params, "final": params, "target": target},
      {"problem": "problem", "lessons": "lesson", "init": "params?", "final": "params?", "target": "params?",
       "examples": "flag", "inputs": "text", "model": "text", "loss": "text", "optimizer": "text"},
    ),
    "progress": Entry(
      lambda **given: last.progress(**given).__enter__(), {"on_record": None, "show": False},
      {"on_record": "function?", "show": "flag"},
    ),
    # Learners.
    "learners.least_squares": Entry(
      last.learners.least_squares, {"num_features": 3, "num_outputs": 2, "learning_rate": 0.1},
      {"num_features": "count", "num_outputs": "count", **SETTINGS},
    ),
    "learners.logistic": Entry(
      last.learners.logistic, {"num_features": 3, "learning_rate": 0.1},
      {"num_features": "count", "form": "text", **SETTINGS},
    ),
    "learners.softmax": Entry(
      last.learners.softmax, {"num_features": 3, "num_classes": 3, "learning_rate": 0.1},
      {"num_features": "count", "num_classes": "count", **SETTINGS},
    ),
    "learners.svm": Entry(
      last.learners.svm, {"num_features": 3, "num_classes": 3, "learning_rate": 0.1},
      {"num_features": "count", "num_classes": "count", **SETTINGS},
    ),
    "learners.mlp": Entry(
      last.learners.mlp, {"widths": (3, 4, 2), "learning_rate": 0.1},
      {"widths": "counts", "activation": "function|text", "loss": "function|text?", **SETTINGS},
    ),
    "learners.from_apply": Entry(
      last.learners.from_apply,
      {"init_fn": init_fn, "apply_fn": apply_fn, "loss": "softmax_cross_entropy", "learning_rate": 0.1},
      {"init_fn": "function", "apply_fn": "function", "loss": "function|text",
       **{name: kind for name, kind in SETTINGS.items() if name != "bias"}},
    ),
    # Constraints.
    "constraints.one_hot": Entry(last.constraints.one_hot, {}, {"max_combinations": "seed"}),
    "constraints.simplex": Entry(
      last.constraints.simplex, {"radius": 0.5},
      {"radius": "positive?", "p": "norm", "around": "text", "max_nonzero": "count?", "max_combinations": "seed"},
    ),
    "constraints.magnitude": Entry(
      last.constraints.magnitude, {"radius": 0.5}, {"radius": "positive", "p": "norm", "around": "text"}
    ),
    # Teachers.
    "teachers.label_smoothing": Entry(last.teachers.label_smoothing, {"mu": 0.5}, {"mu": "share"}),
    "teachers.distillation": Entry(
      last.teachers.distillation, {"logits_fn": jnp.sin, "temperature": 1.0},
      {"logits_fn": "function", "temperature": "positive"},
    ),
    "teachers.self_training": Entry(last.teachers.self_training, {}, {"hard": "flag"}),
    "teachers.greedy": Entry(
      last.teachers.greedy, {"constraint": simplex},
      {"constraint": "constraint", "toward": "toward?", "layer_weights": "weights?", "solver": "solver?"},
    ),
    "teachers.imt": Entry(
      last.teachers.imt, {},
      {"toward": "toward?", "layer_weights": "weights?", "chunk_size": "count?", "shortlist": "count?"},
    ),
    "teachers.mixed": Entry(
      last.teachers.mixed, {"constraint": simplex},
      {"constraint": "constraint", "joint": "flag", "toward": "toward?", "layer_weights": "weights?",
       "chunk_size": "count?", "shortlist": "count?", "solver": "solver?"},
    ),
    "teachers.planner": Entry(
      last.teachers.planner, {"horizon": 2, "constraint": simplex},
      {"horizon": "count", "constraint": "constraint", "toward": "toward?"},
    ),
    "teachers.theorem_1": Entry(
      last.teachers.theorem_1, {"c1": 0.5}, {"c1": "positive", "unit_gradient": "flag"}
    ),
    "teachers.theorem_2": Entry(
      last.teachers.theorem_2, {}, {"c2": "share", "largest": "positive", "shrink": "share", "trials": "count"}
    ),
    "teachers.theorem_3": Entry(
      last.teachers.theorem_3, {}, {"alpha": "share", "hessian_size": "count?"}
    ),
    # Targets.
    "targets.params": Entry(
      last.targets.params, {"params": target},
      {"params": "tree?", "layer_weights": "weights?", "coasting": "flag", "road": "text?"},
    ),
    "targets.trajectory": Entry(
      last.targets.trajectory, {"params": many},
      {"params": "tree", "layer_weights": "weights?", "coasting": "flag"},
    ),
    "targets.outputs": Entry(
      last.targets.outputs, {"x": x, "z": np.ones((6, 2))},
      {"x": "array", "z": "array", "temperature": "positive", "batch_size": "count?", "coasting": "flag",
       "road": "text?"},
    ),
    "targets.loss": Entry(
      last.targets.loss, {"validation": pool},
      {"validation": "pool", "batch_size": "count?", "damping": "not negative", "form": "text", "coasting": "flag"},
    ),
    "targets.validation_losses": Entry(
      last.targets.validation_losses, {"learner": learner, "held_out": pool}, {"learner": "learner", "held_out": "pool"}
    ),
    "solvers.descent": Entry(last.solvers.descent, {}, {"steps": "count", "rate": "positive"}),
    # Training.
    "training.near": Entry(
      last.training.near, {"center": target, "scale": 0.1}, {"center": "tree", "scale": "not negative"}
    ),
    "rewards.loss": Entry(last.rewards.loss, {}, {"size": "count"}),
    "rewards.steps": Entry(last.rewards.steps, {"threshold": 0.9}, {"threshold": "share"}),
    "outputs.simplex": Entry(last.outputs.simplex, {}, {"prior": "not negative"}),
    "outputs.residue": Entry(last.outputs.residue, {"alpha": 0.5}, {"alpha": "share", "of": "output?"}),
    "outputs.actions": Entry(
      last.outputs.actions, {"values": last.outputs.BINARY}, {"values": "array", "prior": "not negative"},
      {"values": ("actions",)},
    ),
    "outputs.mixtures": Entry(
      last.outputs.mixtures, {}, {"mu": "array", "soft_labels": "array?", "prior": "not negative"}
    ),
    # Data.
    "data.half_moons": Entry(
      last.data.half_moons, {"per_class": 3},
      {"noise": "not negative", "seed": "seed", "per_class": "count", "test_per_class": "count?"},
    ),
    "data.random_features": Entry(
      last.data.random_features, {"images": x, "num_features": 2},
      {"images": "array", "num_features": "count", "scale": "positive", "seed": "seed"},
    ),
  }  # fmt: skip
  return table


@functools.cache
def long_entries() -> dict[str, Entry]:
  """Return the like for functions that trace or compute much, whatever their arguments."""
  draw = np.random.default_rng(0)
  x = draw.normal(size=(6, 3)).astype(np.float32)
  pool = last.Pool(x, np.array([0, 1, 0, 1, 1, 0]))
  learner = last.learners.softmax(3, 2, learning_rate=0.1)
  params, target = learner.init(jax.random.key(0)), learner.init(jax.random.key(1))
  network = last.learners.from_apply(init_fn, apply_fn, "softmax_cross_entropy", learning_rate=0.1)
  problem, key = last.Problem(learner, pool, target=target), jax.random.key(0)
  single = last.learners.logistic(3, learning_rate=0.1)
  goal = single.init(jax.random.key(1))
  constants = last.theory.constants(single, pool, goal, radius=1.0)
  policy, _ = jax.eval_shape(lambda key: last.train_unrolled(key, learner, pool, target=target, episodes=1), key)
  table = {
    "unreachable_distance": Entry(
      last.unreachable_distance, {"learner": learner, "params": params, "target": target, "x": x},
      {"learner": "learner", "params": "params", "target": "params", "x": "array"},
    ),
    # Kernels.
    "tangent_kernel": Entry(
      last.tangent_kernel, {"apply_fn": apply_fn, "params": network.init(key), "x": x},
      {"apply_fn": "function", "params": "tree", "x": "tree", "x2": "tree?", "weights": "tree?",
       "diagonal": "flag"},
    ),
    "tangent_product": Entry(
      last.tangent_product,
      {"apply_fn": apply_fn, "params": network.init(key), "x": x, "v": np.ones((6, 2), np.float32)},
      {"apply_fn": "function", "params": "tree", "x": "tree", "v": "array", "x2": "tree?", "weights": "tree?"},
      {"x": ("v",), "x2": ("v",)},
    ),
    "squared_gradient_norms": Entry(
      last.squared_gradient_norms,
      {"apply_fn": apply_fn, "params": network.init(key), "x": x, "cotangents": np.ones((6, 2), np.float32)},
      {"apply_fn": "function", "params": "tree", "x": "tree", "cotangents": "array", "weights": "tree?",
       "batch_size": "seed?"}, {"x": ("cotangents",)},
    ),
    "tangent_roads": Entry(
      last.tangent_roads, {"apply_fn": apply_fn, "params": network.init(key), "x": x},
      {"apply_fn": "function", "params": "tree", "x": "tree"},
    ),
    # Training.
    "train_unrolled": Entry(
      last.train_unrolled,
      {"key": key, "learner": learner, "pool": pool, "target": target, "horizon": 2, "episodes": 2},
      _TRAIN | {"output": "output?", "decay": "share", "segment": "count?"},
    ),
    "train_reinforce": Entry(
      last.train_reinforce,
      {"key": key, "learner": learner, "pool": pool, "target": target, "horizon": 2, "episodes": 2,
       "actions": last.outputs.BINARY},
      _TRAIN | {"actions": "actions"},
    ),
    "train_evolution": Entry(
      last.train_evolution, {"key": key, "learner": learner, "pool": pool, "horizon": 2, "episodes": 2, "students": 4},
      _TRAIN,
    ),
    "teachers.policy": Entry(
      last.teachers.policy, {"policy": policy}, {"policy": "policy", "sample": "flag", "name": "text"}
    ),
    # Theory.
    "theory.constants": Entry(
      last.theory.constants, {"learner": single, "pool": pool, "target": goal, "radius": 1.0},
      {"learner": "learner", "pool": "pool", "target": "params", "radius": "positive", "inner_radius": "not negative"},
    ),
    "theory.bound_3": Entry(
      last.theory.bound_3, {"constants": constants, "alpha": 0.5, "distance": 0.1, "steps": 3},
      {"constants": "constants", "alpha": "share", "distance": "not negative", "steps": "count"},
    ),
    "theory.teaching_set": Entry(
      last.theory.teaching_set, {"learner": learner, "pool": pool, "target": target},
      {"learner": "learner", "pool": "pool", "target": "params", "max_combinations": "seed"},
    ),
    "theory.induced_margin": Entry(
      last.theory.induced_margin,
      {"learner": learner, "params": params, "x": x, "labels": problem.truth, "truth": problem.truth},
      {"learner": "learner", "params": "params", "x": "array", "labels": "array", "truth": "array"}, {"x": ("labels",)},
    ),
    "theory.label_factor": Entry(
      last.theory.label_factor,
      {"learner": learner, "params": params, "x": x, "y": problem.truth, "truth": problem.truth},
      {"learner": "learner", "params": "params", "x": "array", "y": "array", "truth": "array"}, {"x": ("y",)},
    ),
  }  # fmt: skip
  return table


def only_shapes(monkeypatch):
  """Replace what compiles and computes by its shapes: arguments are checked as ever, and traced where they pass."""

  def traced(function, static=()):
    def call(*given, **settings):
      fixed = {name: settings.pop(name) for name in static if name in settings}
      return jax.eval_shape(functools.partial(function, **fixed), *given, **settings)

    return call

  raw = lambda function: getattr(function, "__wrapped__", function)  # noqa: E731
  monkeypatch.setattr(loop, "init_all", traced(raw(loop.init_all)))
  monkeypatch.setattr(loop, "step_one", traced(raw(loop.step_one), ("batch_size", "live")))
  monkeypatch.setattr(loop, "run_one", traced(loop.run_inline, ("plan",)))
  monkeypatch.setattr(loop, "teach_one", traced(loop._teach, ("plan",)))
  monkeypatch.setattr(loop, "teach_many", traced(loop._teach_many, ("plan", "mesh")))
  monkeypatch.setattr(loop, "run_many", traced(loop._run_many, ("plan", "mesh")))
  monkeypatch.setattr(synthesis, "_greedy_labels", traced(raw(synthesis._greedy_labels), ("with_certificate",)))
  monkeypatch.setattr(stacking, "teach_settings", lambda keys, settings, **_: [(name, None) for name in settings])
  monkeypatch.setattr(distill, "_search", lambda state, given, search, updates: (state, np.zeros(updates)))
  monkeypatch.setattr(trainer, "run", traced(trainer._train, ("episodes",)))
  fit = fitting.Minimum(None, np.zeros(()), np.zeros(()), np.zeros((), int), np.zeros(()))
  monkeypatch.setattr(fitting, "_fit_linear", lambda *_: fit)
