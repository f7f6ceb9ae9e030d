"""Small results of every teacher with several learners, for comparing one version of the package with another.

Results of a known version are in `curves.npz`; `tests/test_reference.py` recomputes them. Everything goes through the
public API, starts and targets are drawn by NumPy, and only the cases named "data" use `last_jax.data`.

  python -m tests.reference.curves write FILE

writes all results of the importable `last_jax`, with the compiler settings that the tests have (`tests/conftest.py`).
The arrays of a case are named `CASE/ARRAY`: distance and objective `[records]`, params `[P]` at the end, index
`[steps, m]` and label `[steps, m, K]` of the lessons, and what else the case is about.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import last_jax as last

Arrays = dict[str, np.ndarray]

NUM_EXAMPLES, NUM_FEATURES = 200, 4
# Seed of every `jax.random.key` below. With this one no batch holds an example twice: only the sum of its two labels
# would matter, and no more could be compared.
KEY = 11

# --- Names of the training calls' settings that differ between versions: change them here, and nowhere else.

INIT_FN = "init_fn"


def students_near(params: Any, scale: float) -> dict[str, Any]:
  """The keyword argument for students that start at `params + N(0, scale^2)`."""
  return {INIT_FN: last.training.near(params, scale)}


# --- Learners: all of four features.


def _network_init(key):
  one, two = jax.random.split(key)
  return {"in": {"w": jax.random.normal(one, (4, 5)), "b": jnp.zeros(5)}, "out": jax.random.normal(two, (5, 3))}


def _network_apply(params, x):
  return jnp.tanh(x @ params["in"]["w"] + params["in"]["b"][None]) @ params["out"]


def _linear_init(key):
  return {"w": jax.random.normal(key, (4, 3))}


def _linear_apply(params, x):
  return x @ params["w"]


class Learning(NamedTuple):
  """How to make a learner, and which pool it learns from."""

  make: Callable[[], Any]
  num_outputs: int
  num_classes: int  # 0: labels are real.


LEARNERS = {
  "least_squares": Learning(lambda: last.learners.least_squares(4, learning_rate=0.03), 1, 0),
  "least_squares_2": Learning(
    lambda: last.learners.least_squares(4, 2, learning_rate=0.05, weight_decay=1e-2, bias=False), 2, 0
  ),
  "logistic": Learning(lambda: last.learners.logistic(4, learning_rate=0.2), 1, 2),
  "logistic_decay": Learning(lambda: last.learners.logistic(4, learning_rate=0.1, weight_decay=1e-2), 1, 2),
  "margin": Learning(lambda: last.learners.logistic(4, learning_rate=0.2, form="margin"), 1, 2),
  "softmax": Learning(lambda: last.learners.softmax(4, 3, learning_rate=0.2, weight_decay=1e-2), 3, 3),
  "softmax_2": Learning(lambda: last.learners.softmax(4, 2, learning_rate=0.1, bias=False), 2, 2),
  "momentum": Learning(lambda: last.learners.softmax(4, 3, learning_rate=0.05, momentum=0.8), 3, 3),
  "nesterov": Learning(
    lambda: last.learners.least_squares(4, learning_rate=0.02, momentum=0.7, nesterov=True, weight_decay=1e-3), 1, 0
  ),
  "mlp": Learning(
    lambda: last.learners.mlp((4, 6, 3), activation="leaky_relu", learning_rate=0.1, weight_decay=1e-3), 3, 3
  ),
  "network": Learning(
    lambda: last.learners.from_apply(
      _network_init, _network_apply, "softmax_cross_entropy", optimizer=optax.sgd(0.1, momentum=0.5)
    ),
    3,
    3,
  ),
  "adam": Learning(
    lambda: last.learners.from_apply(_linear_init, _linear_apply, "softmax_cross_entropy", optimizer=optax.adam(0.05)),
    3,
    3,
  ),
}


class Setting(NamedTuple):
  """A problem in one precision."""

  learner: Any
  pool: Any
  target: Any
  init: Any


def make_setting(name: str, dtype: Any) -> Setting:
  """A pool, a target and a start for a learner, drawn by NumPy."""
  make, num_outputs, num_classes = LEARNERS[name]
  learner = make()
  draw = np.random.default_rng([17, list(LEARNERS).index(name)])
  x = draw.normal(size=(NUM_EXAMPLES, NUM_FEATURES)).astype(dtype)
  if num_classes:
    y: np.ndarray = draw.permutation(np.arange(NUM_EXAMPLES) % num_classes).astype(np.int32)
  else:
    y = draw.normal(size=(NUM_EXAMPLES, num_outputs)).astype(dtype)
  shapes = jax.eval_shape(learner.init, jax.random.key(0))
  target = jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape).astype(dtype)), shapes)
  init = jax.tree.map(lambda leaf: jnp.asarray(draw.normal(size=leaf.shape).astype(dtype)), shapes)
  return Setting(learner, last.Pool(x, y), target, init)


def flatten(params: Any) -> np.ndarray:
  """All parameters in one array `[P]`, in the order of the leaves."""
  return np.concatenate([np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(params)])


# --- Teachers, from the setting.


def _logits_of(setting: Setting) -> Callable[[Any], Any]:
  """A linear model of as many outputs as the learner."""
  width = setting.learner.apply(setting.init, setting.pool.x[:1]).shape[1]
  matrix = np.random.default_rng(5).normal(size=(NUM_FEATURES, width)).astype(setting.pool.x.dtype)
  return lambda x: x @ jnp.asarray(matrix)


teachers, constraints = last.teachers, last.constraints
NEXT = last.targets.params(coasting=False)  # The earlier version steered the next parameters, also with momentum.
TEACHERS: dict[str, Callable[[Setting], Any]] = {
  "sgd": lambda _: teachers.sgd(),
  "label_smoothing": lambda _: teachers.label_smoothing(0.8),
  "distillation": lambda setting: teachers.distillation(_logits_of(setting), 2.0),
  "self_training": lambda _: teachers.self_training(),
  "self_training_hard": lambda _: teachers.self_training(hard=True),
  "greedy_none": lambda _: teachers.greedy(constraints.none(), NEXT),
  "greedy_one_hot": lambda _: teachers.greedy(constraints.one_hot(), NEXT),
  "greedy_simplex": lambda _: teachers.greedy(constraints.simplex(), NEXT),
  "greedy_simplex_radius": lambda _: teachers.greedy(constraints.simplex(0.6), NEXT),
  "greedy_ball_1": lambda _: teachers.greedy(constraints.magnitude(0.8, p=1), NEXT),
  "greedy_ball_2": lambda _: teachers.greedy(constraints.magnitude(0.8), NEXT),
  "greedy_ball_inf": lambda _: teachers.greedy(constraints.magnitude(0.5, p=np.inf), NEXT),
  "greedy_around_prediction": lambda _: teachers.greedy(constraints.magnitude(0.5, around="prediction"), NEXT),
  "imt": lambda _: teachers.imt(NEXT),
  "mixed_none": lambda _: teachers.mixed(constraints.none(), toward=NEXT),
  "mixed_simplex": lambda _: teachers.mixed(constraints.simplex(), toward=NEXT),
  "mixed_one_hot": lambda _: teachers.mixed(constraints.one_hot(), toward=NEXT),
  "joint_none": lambda _: teachers.mixed(constraints.none(), joint=True, toward=NEXT),
  "joint_simplex": lambda _: teachers.mixed(constraints.simplex(), joint=True, toward=NEXT),
  "joint_one_hot": lambda _: teachers.mixed(constraints.one_hot(), joint=True, toward=NEXT),
  "planner_1_simplex": lambda _: teachers.planner(1, constraints.simplex(), NEXT),
  "planner_3_none": lambda _: teachers.planner(3, constraints.none(), NEXT),
  "planner_3_simplex": lambda _: teachers.planner(3, constraints.simplex(), NEXT),
  "planner_3_one_hot": lambda _: teachers.planner(3, constraints.one_hot(), NEXT),
  "theorem_1": lambda _: teachers.theorem_1(0.2),
  "theorem_2": lambda _: teachers.theorem_2(largest=16.0),
  "theorem_3_newton": lambda _: teachers.theorem_3(0.0),
  "theorem_3_between": lambda _: teachers.theorem_3(0.5, hessian_size=25),
  "theorem_3_fixed": lambda _: teachers.theorem_3(1.0),
}

# Every teacher: (learner, batch size, steps) in float32, then in float64.
TAUGHT: dict[str, tuple[list[tuple[str, int, int]], list[tuple[str, int, int]]]] = {
  "sgd": ([("least_squares", 1, 60), ("softmax", 3, 60), ("adam", 1, 40)], [("network", 3, 30)]),
  "label_smoothing": ([("logistic", 1, 60), ("margin", 3, 40)], [("mlp", 1, 30)]),
  "distillation": ([("softmax", 1, 60), ("logistic_decay", 3, 40)], [("momentum", 1, 30)]),
  "self_training": ([("softmax", 3, 40), ("logistic", 1, 40)], [("network", 1, 30)]),
  "self_training_hard": ([("softmax", 1, 40), ("margin", 3, 40)], []),
  "greedy_none": (
    [("least_squares", 1, 40), ("logistic_decay", 1, 40), ("margin", 1, 40), ("nesterov", 1, 30)],
    [("least_squares_2", 3, 30), ("softmax", 1, 40), ("mlp", 3, 30), ("network", 1, 30)],
  ),
  "greedy_one_hot": ([("logistic", 1, 60), ("softmax", 3, 40), ("mlp", 1, 40)], [("momentum", 3, 30)]),
  "greedy_simplex": (
    [("logistic", 1, 60), ("softmax", 3, 40), ("margin", 1, 40)],
    [("logistic", 1, 60), ("mlp", 3, 30), ("momentum", 1, 30), ("adam", 1, 20)],
  ),
  "greedy_simplex_radius": ([("softmax", 3, 40), ("logistic", 3, 40)], [("mlp", 1, 30)]),
  "greedy_ball_1": ([("softmax", 1, 40), ("least_squares_2", 3, 40)], []),
  "greedy_ball_2": ([("least_squares", 1, 60), ("momentum", 3, 40)], [("mlp", 3, 30)]),
  "greedy_ball_inf": ([("least_squares_2", 1, 40), ("softmax", 3, 40)], []),
  "greedy_around_prediction": ([("logistic", 1, 40), ("softmax", 3, 40)], [("mlp", 1, 30)]),
  "imt": ([("least_squares", 1, 40), ("softmax", 3, 40), ("adam", 1, 20)], [("mlp", 1, 30), ("nesterov", 1, 30)]),
  "mixed_none": ([("logistic", 3, 8)], [("least_squares", 1, 30)]),
  "mixed_simplex": ([("softmax", 1, 40), ("momentum", 1, 30)], [("mlp", 3, 20)]),
  "mixed_one_hot": ([("logistic", 1, 40), ("softmax", 3, 30)], []),
  "joint_none": ([("logistic", 1, 10)], [("least_squares_2", 3, 20)]),
  "joint_simplex": ([("softmax", 3, 30), ("logistic_decay", 1, 40)], [("mlp", 1, 20)]),
  "joint_one_hot": ([("logistic", 1, 40), ("softmax", 3, 30)], []),
  "planner_1_simplex": ([("logistic", 3, 30)], [("mlp", 1, 20)]),
  "planner_3_none": ([], [("least_squares", 1, 30), ("nesterov", 1, 20)]),
  "planner_3_simplex": ([("logistic", 1, 20)], [("softmax", 1, 20)]),
  "planner_3_one_hot": ([("logistic", 1, 30), ("softmax", 1, 20)], []),
  "theorem_1": ([("least_squares", 1, 40), ("logistic", 3, 40)], []),
  "theorem_2": ([("logistic", 1, 40), ("least_squares", 3, 30)], []),
  "theorem_3_newton": ([], [("logistic", 6, 12), ("least_squares", 3, 20)]),
  "theorem_3_between": ([], [("softmax", 6, 12), ("logistic", 6, 12), ("least_squares_2", 6, 12)]),
  "theorem_3_fixed": ([], [("logistic_decay", 3, 20)]),
}


def _records(result: Any) -> Arrays:
  return {
    "distance": np.asarray(result.distance),
    "objective": np.asarray(result.objective),
    "params": flatten(result.params),
    "index": np.asarray(result.lessons.index, np.uint8),
    "label": np.asarray(result.lessons.label),
  }


def _teach(learner: str, teacher: str, batch_size: int, steps: int, dtype: Any) -> Arrays:
  setting = make_setting(learner, dtype)
  result = last.teach(
    jax.random.key(KEY),
    setting.learner,
    TEACHERS[teacher](setting),
    setting.pool,
    target=setting.target,
    init=setting.init,
    steps=steps,
    batch_size=batch_size,
    lessons=True,
  )
  return _records(result)


# --- Teachers that are trained first.


def _trained(train: Callable[[Any, Setting], tuple[Any, Any]], learner: str, batch_size: int, dtype: Any) -> Arrays:
  setting = make_setting(learner, dtype)
  policy, log = train(jax.random.key(KEY), setting)
  result = last.teach(
    jax.random.key(KEY + 1),
    setting.learner,
    last.teachers.policy(policy),
    setting.pool,
    target=setting.target,
    init=setting.init,
    steps=20,
    batch_size=batch_size,
    lessons=True,
  )
  return _records(result) | {"loss": np.asarray(log.loss)}


def _unrolled(key: Any, setting: Setting, target: bool = True, **settings: Any) -> tuple[Any, Any]:
  return last.train_unrolled(
    key,
    setting.learner,
    setting.pool,
    target=setting.target if target else None,
    horizon=6,
    episodes=5,
    students=4,
    reset=0.5,
    hidden=(8,),
    **students_near(setting.target, 0.5),
    **settings,
  )


def _reinforced(key: Any, setting: Setting, target: bool = True, **settings: Any) -> tuple[Any, Any]:
  return last.train_reinforce(
    key,
    setting.learner,
    setting.pool,
    target=setting.target if target else None,
    actions=last.outputs.BINARY_AUGMENTED,
    horizon=8,
    episodes=5,
    students=4,
    hidden=(8,),
    evaluate_every=2,
    evaluation_steps=10,
    **students_near(setting.target, 0.5),
    **settings,
  )


TRAINED: dict[str, Callable[[Any], Arrays]] = {
  "unrolled-softmax": lambda dtype: _trained(_unrolled, "softmax", 3, dtype),
  "unrolled-least_squares": lambda dtype: _trained(_unrolled, "least_squares", 1, dtype),
  "unrolled-mlp": lambda dtype: _trained(lambda k, s: _unrolled(k, s, segment=2), "mlp", 1, dtype),
  "unrolled-logistic-black_box": lambda dtype: _trained(
    lambda k, s: _unrolled(k, s, target=False, reward=last.rewards.loss(20), evaluate_every=0), "logistic", 1, dtype
  ),
  "reinforce-softmax_2": lambda dtype: _trained(_reinforced, "softmax_2", 3, dtype),
  "reinforce-softmax_2-baseline": lambda dtype: _trained(
    lambda k, s: _reinforced(k, s, baseline=-0.1, batch_size=2), "softmax_2", 1, dtype
  ),
  "reinforce-softmax_2-black_box": lambda dtype: _trained(
    lambda k, s: _reinforced(k, s, target=False, reward=last.rewards.loss(20)), "softmax_2", 1, dtype
  ),
}


# --- Everything else: many students, the heart alone, targets, data.


def _many(dtype: Any) -> Arrays:
  """Students with random starts of their own, recorded every few steps, with a tolerance."""
  setting = make_setting("softmax", dtype)
  result = last.teach_many(
    jax.random.split(jax.random.key(KEY), 3),
    setting.learner,
    last.teachers.greedy(last.constraints.simplex()),
    setting.pool,
    target=setting.target,
    steps=25,
    record_every=4,
    batch_size=2,
    test=setting.pool,
    tolerance=3.0,
    lessons=True,
  )
  return _records(result) | {
    "step": np.asarray(result.step),
    "accuracy": np.asarray(result.accuracy),
    "hitting_time": np.asarray(result.hitting_time),
  }


def _many_started(dtype: Any) -> Arrays:
  """Students with starts that are given; IMT, which has outputs of its own to track."""
  setting = make_setting("logistic", dtype)
  draw = np.random.default_rng(3)
  init = jax.tree.map(
    lambda leaf: jnp.asarray(np.asarray(leaf) + draw.normal(size=(3, *leaf.shape)).astype(dtype)), setting.init
  )
  result = last.teach_many(
    jax.random.split(jax.random.key(KEY), 3),
    setting.learner,
    last.teachers.imt(),
    setting.pool,
    target=setting.target,
    init=init,
    steps=25,
    record_every=5,
    lessons=True,
  )
  return _records(result)


SETS = {
  "none": constraints.none,
  "one_hot": constraints.one_hot,
  "simplex": constraints.simplex,
  "simplex_radius": lambda: constraints.simplex(0.6),
  "simplex_radius_1": lambda: constraints.simplex(0.7, p=1),
  "simplex_radius_inf": lambda: constraints.simplex(0.3, p=np.inf, around="prediction"),
  "ball_1": lambda: constraints.magnitude(0.8, p=1),
  "ball_2": lambda: constraints.magnitude(0.8),
  "ball_inf": lambda: constraints.magnitude(0.5, p=np.inf),
  "around_prediction": lambda: constraints.magnitude(0.5, around="prediction"),
}


def _labels(learner: str, names: list[str], dtype: Any) -> Arrays:
  """Labels of one batch of three in each set."""
  setting = make_setting(learner, dtype)
  x, y = setting.pool.x[:3], setting.pool.y[:3]
  target = last.targets.params(setting.target, coasting=False)
  return {
    name: np.asarray(last.synthesize_labels(setting.learner, setting.init, target, x, y, constraint=SETS[name]()))
    for name in names
  }


LABELLED = {
  "least_squares_2": ["none", "ball_1", "ball_2", "ball_inf"],
  "logistic": list(SETS),
  "margin": ["none", "simplex", "ball_2"],
  "softmax": list(SETS),
  "mlp": list(SETS),
  "network": ["none", "simplex", "ball_2"],
}


def _target(learner: str, dtype: Any) -> Arrays:
  setting = make_setting(learner, dtype)
  return {"params": flatten(last.fit_target(setting.learner, setting.pool))}


def _from_data(data: Any, learner: Any, teacher: Any) -> Arrays:
  """A target that was fitted, a random start, a test pool, records every few steps."""
  result = last.teach(
    jax.random.key(KEY),
    learner,
    teacher,
    data.train,
    target=last.fit_target(learner, data.train),
    steps=40,
    record_every=7,
    test=data.test,
    tolerance=0.5,
    lessons=True,
  )
  arrays = _records(result) | {"step": np.asarray(result.step), "hitting_time": np.asarray(result.hitting_time)}
  arrays["x"], arrays["y"] = np.asarray(data.train.x), np.asarray(data.train.y)
  return arrays if result.accuracy is None else arrays | {"accuracy": np.asarray(result.accuracy)}


def _half_moons(dtype: Any) -> Arrays:
  del dtype
  data = last.data.half_moons(3, per_class=30)
  learner = last.learners.logistic(2, learning_rate=0.5, weight_decay=1e-2)
  return _from_data(data, learner, last.teachers.mixed(last.constraints.simplex()))


def _gaussian(dtype: Any) -> Arrays:
  del dtype
  data = last.data.gaussian(3, per_class=30)
  learner = last.learners.softmax(4, 2, learning_rate=0.5, weight_decay=1e-2)
  return _from_data(data, learner, last.teachers.greedy(last.constraints.one_hot()))


def _regression(dtype: Any) -> Arrays:
  del dtype
  data = last.data.regression(3, num_examples=50)
  learner = last.learners.least_squares(4, learning_rate=0.05)
  return _from_data(data, learner, last.teachers.greedy(last.constraints.magnitude(1.0)))


# --- All cases.


class Case(NamedTuple):
  """One entry of the reference: `compute(dtype)` in one precision."""

  compute: Callable[[Any], Arrays]
  dtype: Any


def _make_cases() -> dict[str, Case]:
  cases = {}
  for teacher, (single, double) in TAUGHT.items():
    for dtype, combinations in ((np.float32, single), (np.float64, double)):
      for learner, batch_size, steps in combinations:
        cases[f"{teacher}-{learner}-m{batch_size}-{np.dtype(dtype).name}"] = Case(
          # Defaults: the loop's variables are those of its last round by the time that this is called.
          lambda dtype, learner=learner, teacher=teacher, batch_size=batch_size, steps=steps: _teach(
            learner, teacher, batch_size, steps, dtype
          ),
          dtype,
        )
  others: dict[str, Callable[[Any], Arrays]] = {
    "teach_many-random_starts": _many,
    "teach_many-given_starts": _many_started,
  }
  labelled: dict[str, Callable[[Any], Arrays]] = {
    f"synthesize_labels-{learner}": lambda dtype, learner=learner, names=names: _labels(learner, names, dtype)
    for learner, names in LABELLED.items()
  }
  others |= {
    f"fit_target-{learner}": lambda dtype, learner=learner: _target(learner, dtype)
    for learner in ("least_squares_2", "logistic_decay", "softmax")
  }
  others |= TRAINED | {"data-half_moons": _half_moons, "data-gaussian": _gaussian, "data-regression": _regression}
  for name, compute in others.items():
    cases[f"{name}-float32"] = Case(compute, np.float32)
  for name in ("unrolled-softmax", "reinforce-softmax_2"):
    cases[f"{name}-float64"] = Case(others[name], np.float64)
  for name, compute in labelled.items():
    cases[f"{name}-float64"] = Case(compute, np.float64)
  return cases


CASES = _make_cases()


def compute(name: str) -> Arrays:
  """The arrays of one case."""
  case = CASES[name]
  with jax.enable_x64(case.dtype == np.float64):
    return case.compute(case.dtype)


def compute_all() -> Arrays:
  """All of them, under the names `CASE/ARRAY`."""
  return {f"{case}/{array}": value for case in CASES for array, value in compute(case).items()}


def main(arguments: list[str]) -> int:
  """Writes the file that is named."""
  if len(arguments) != 2 or arguments[0] != "write":
    print("usage: python -m tests.reference.curves write FILE", file=sys.stderr)
    return 2
  from benchmarks import machine

  machine.compile_quickly()  # As tests/conftest.py does, before JAX starts.
  np.savez_compressed(arguments[1], allow_pickle=False, **compute_all())
  print(f"{arguments[1]}: results of {last.__file__}")
  return 0


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
