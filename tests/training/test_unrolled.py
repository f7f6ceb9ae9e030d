"""Unrolling: gradients against finite differences, with and without rematerialisation, and that it teaches."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.flatten_util import ravel_pytree

import last_jax as last
from last_jax import training
from tests.training import digits

KEY = jax.random.key(0)


def problem_of(kind):
  """A learner, a pool, a target, and the students' `init_fn`; everything small."""
  draw = np.random.default_rng(3)
  x = draw.normal(size=(8, 3))
  settings = {"learning_rate": 0.3, "weight_decay": 1e-2}
  learner = {
    "softmax": lambda: last.learners.softmax(3, 4, bias=False, **settings),
    "logistic": lambda: last.learners.logistic(3, **settings),
    "least_squares": lambda: last.learners.least_squares(3, 2, **settings),
    "momentum": lambda: last.learners.softmax(3, 2, momentum=0.8, **settings),
    "adam": lambda: last.learners.softmax(3, 2, optimizer=optax.adam(0.3)),  # It counts its steps.
    "mlp": lambda: last.learners.mlp((3, 5, 3), activation="tanh", **settings),
  }[kind]()
  width = learner.num_outputs(jnp.asarray(x))
  y = draw.normal(size=(8, 2)) if kind == "least_squares" else np.arange(8) % max(2, width)
  target = learner.init(jax.random.key(1))
  return learner, last.Pool(x, y), target, training.near(target, 0.5)


OUTPUTS = {
  "simplex": last.outputs.simplex(),
  "prior": last.outputs.simplex(prior=2.0),
  "free": last.outputs.free(),
  "residue": last.outputs.residue(0.3),
}
CASES = [
  ("softmax", "simplex", True, 1, None),
  ("softmax", "simplex", True, 1, 3),
  ("softmax", "free", True, 2, 3),
  ("softmax", "residue", False, 2, None),
  ("logistic", "prior", False, 1, 3),
  ("least_squares", "free", True, 1, None),
  ("momentum", "simplex", True, 2, 3),
  ("momentum", "simplex", False, 2, None),
  ("adam", "simplex", True, 2, None),
  ("mlp", "residue", True, 1, None),
  ("mlp", "free", False, 2, 3),
]


@pytest.mark.parametrize(("kind", "output", "omniscient", "batch", "segment"), CASES)
@pytest.mark.slow
def test_gradient_is_that_of_finite_differences(x64, kind, output, omniscient, batch, segment):
  learner, pool, target, init_fn = problem_of(kind)
  method = training.Unrolled(
    horizon=7,  # Two segments of three, and one step more.
    batch_size=batch,
    students=2,
    hidden=(6, 5),
    output=OUTPUTS[output],
    segment=segment,
  )
  trainer = training.make_trainer(method, learner, pool, target=target if omniscient else None, init_fn=init_fn)
  state = jax.jit(training.Trainer.init)(trainer, KEY)
  keys = jax.random.split(jax.random.key(1), 2)
  # Past the small weights that the last layer starts with, through which little would flow.
  weights = jax.tree.map(lambda w: w + 0.3 * jax.random.normal(jax.random.key(2), w.shape), state.policy.weights)
  policy = dataclasses.replace(state.policy, weights=weights)
  gradient, _, metrics = jax.jit(trainer.method.episode)(trainer.problem, policy, state.students, keys)
  flat, unravel = ravel_pytree(weights)

  @jax.jit
  def objective(flat):
    moved = dataclasses.replace(policy, weights=unravel(flat))
    each = jax.vmap(lambda s, k: trainer.method.objective(trainer.problem, moved, s, k)[0])(state.students, keys)
    return jnp.mean(each)

  np.testing.assert_allclose(metrics["loss"], objective(flat), rtol=1e-12)
  flat_gradient = ravel_pytree(gradient)[0]
  for seed in range(5):
    direction = np.random.default_rng(seed).normal(size=flat.size)
    direction /= np.linalg.norm(direction)
    # Richardson's extrapolation of central differences: their error falls with the fourth power of the step.
    ends = [(objective(flat + h * direction) - objective(flat - h * direction)) / (2 * h) for h in (2e-4, 1e-4)]
    slope = (4 * ends[1] - ends[0]) / 3
    np.testing.assert_allclose(flat_gradient @ direction, slope, rtol=1e-6, atol=1e-6 * np.linalg.norm(flat_gradient))


FEATURES = [
  ("params", "prediction", "target", "label", "x"),
  ("x", "params", "label"),
  ("prediction",),
  ("target", "x"),  # Nothing depends on the student.
  ("params",),  # Everything does.
]


@pytest.mark.slow
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("features", FEATURES, ids="-".join)
def test_gradients_of_all_steps_at_once_are_those_added_up_step_by_step(features, wide, request):
  """Segments are differentiated by JAX, whole episodes from their trace; in float32 and float64."""
  if wide:
    request.getfixturevalue("x64")
  learner, pool, target, init_fn = problem_of("momentum")

  def run(segment, hidden):
    method = training.Unrolled(
      horizon=4, batch_size=2, students=3, hidden=hidden, features=features, output=OUTPUTS["free"], segment=segment
    )
    trainer = training.make_trainer(method, learner, pool, target=target, init_fn=init_fn)
    state = jax.jit(training.Trainer.init)(trainer, KEY)
    weights = jax.tree.map(lambda w: w + 0.3 * jax.random.normal(jax.random.key(2), w.shape), state.policy.weights)
    policy = dataclasses.replace(state.policy, weights=weights)
    gradient, *rest = jax.jit(trainer.method.episode)(trainer.problem, policy, state.students, jax.random.split(KEY, 3))
    return jax.tree.map(lambda leaf: leaf / jnp.linalg.norm(ravel_pytree(gradient)[0]), gradient), rest

  error = 1e-10 if wide else 1e-4
  for hidden in ((), (7, 4)):  # Without hidden layers the first is the last.
    found, expected = (ravel_pytree(run(segment, hidden))[0] for segment in (None, 2))
    scale = float(jnp.max(jnp.abs(expected)))
    np.testing.assert_allclose(found, expected, rtol=error, atol=error * scale)


@pytest.mark.slow
def test_what_is_kept_for_the_way_back_does_not_grow_with_constants_of_the_learner():
  """A frozen part of a model is the same in all steps: it is not stored with each of them."""
  frozen = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32) / 8

  def apply_fn(params, x):
    return jnp.tanh(x @ params["first"]) @ frozen @ params["last"]

  def init_fn(key):
    first, last_ = jax.random.split(key)
    return {"first": jax.random.normal(first, (3, 64)), "last": jax.random.normal(last_, (64, 2)) / 8}

  learner = last.learners.from_apply(init_fn, apply_fn, "softmax_cross_entropy", learning_rate=0.1)
  pool = last.Pool(np.random.default_rng(1).normal(size=(8, 3)), np.arange(8) % 2)
  method = training.Unrolled(horizon=32, students=4, hidden=(4,))
  trainer = training.make_trainer(method, learner, pool, target=learner.init(KEY))
  state = jax.jit(training.Trainer.init)(trainer, KEY)
  arguments = (trainer.problem, state.policy, state.students, jax.random.split(KEY, 4))
  program = jax.jit(lambda *given: trainer.method.episode(*given)[0]).lower(*arguments).compile()
  assert program.memory_analysis().temp_size_in_bytes < 32 * 4 * frozen.nbytes / 2


@pytest.mark.slow
def test_the_objective_is_the_weighted_sum_of_distances_of_the_loop(x64):
  learner, pool, target, init_fn = problem_of("softmax")
  method = training.Unrolled(horizon=6, students=2, decay=0.9)
  trainer = training.make_trainer(method, learner, pool, target=target, init_fn=init_fn)
  state = jax.jit(training.Trainer.init)(trainer, KEY)
  student = jax.tree.map(lambda leaf: leaf[0], state.students)
  key = jax.random.key(5)
  loss, after = trainer.method.objective(trainer.problem, state.policy, student, key)
  lesson_key = jax.random.split(key)[0]
  teacher = last.teachers.policy(state.policy)
  result = last.teach(lesson_key, learner, teacher, pool, target=target, init=student.params, steps=6)
  powers = 0.9 ** np.arange(5, -1, -1)
  np.testing.assert_allclose(loss, np.sum(powers * np.asarray(result.distance[1:]) ** 2), rtol=1e-12)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), after.params, result.params)


@pytest.mark.slow
def test_black_box_minimises_the_loss_on_validation_examples(x64):
  learner, pool, _, _ = problem_of("softmax")
  validation = last.Pool(np.full((4, 3), 0.5), np.arange(4) % 2)  # All alike except for the label, half of each.
  method = training.Unrolled(horizon=3, decay=1.0, reward=last.rewards.loss())
  trainer = training.make_trainer(method, learner, pool, validation=validation)
  state = jax.jit(training.Trainer.init)(trainer, KEY)
  student = jax.tree.map(lambda leaf: leaf[0], state.students)
  loss, after = trainer.method.objective(trainer.problem, state.policy, student, jax.random.key(5))
  lesson_key = jax.random.split(jax.random.key(5))[0]
  truth = learner.encode(validation.x, validation.y)
  teacher = last.teachers.policy(state.policy)
  result = last.teach(
    lesson_key,
    learner,
    teacher,
    pool,
    init=student.params,
    steps=3,
    probe=lambda params: learner.mean_loss(params, validation.x, truth),
  )
  np.testing.assert_allclose(loss, np.sum(result.probe[1:]), rtol=1e-12)  # All validation examples.
  assert after is not None


@pytest.mark.slow
@pytest.mark.parametrize("horizon", [64, 256])
def test_rematerialisation_needs_less_memory_and_changes_nothing(horizon):
  learner, pool, target, init_fn = problem_of("softmax")

  def compiled(segment):
    method = training.Unrolled(horizon=horizon, students=4, hidden=(32, 32), segment=segment)
    trainer = training.make_trainer(method, learner, pool, target=target, init_fn=init_fn)
    state = jax.jit(training.Trainer.init)(trainer, KEY)
    keys = jax.random.split(KEY, 4)
    arguments = (trainer.problem, state.policy, state.students, keys)
    program = jax.jit(lambda *given: trainer.method.episode(*given)[0]).lower(*arguments).compile()
    return program.memory_analysis().temp_size_in_bytes, program(*arguments)

  plain, gradient = compiled(None)
  little, same = compiled(int(horizon**0.5))
  assert little < 0.6 * plain * (64 / horizon) ** 0.4  # The longer, the more is saved.
  scale = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(gradient))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * scale), gradient, same)


@pytest.mark.slow
def test_a_trained_teacher_beats_sgd_on_digits():
  learner, pool, target, init_fn = digits.task()
  policy, log = last.train_unrolled(
    KEY, learner, pool, target=target, init_fn=init_fn, episodes=300, output=last.outputs.free()
  )
  assert log.loss.shape == log.distance.shape == log.applied.shape == (300,)
  assert log.score is None
  assert np.all(log.applied)
  gain = digits.gains(policy, learner, pool, target, init_fn, steps=300, batch_size=1)
  assert np.mean(gain) > 4 * np.std(gain, ddof=1) / np.sqrt(len(gain))


@pytest.mark.parametrize(
  ("settings", "error", "message"),
  [
    ({"horizon": 0}, ValueError, "horizon must be a whole number of at least 1"),
    ({"students": 0}, ValueError, "students must be"),
    ({"batch_size": 1.5}, TypeError, "batch_size must be a whole number"),
    ({"reset": 1.2}, ValueError, "reset must lie between 0 and 1"),
    ({"decay": -0.1}, ValueError, "decay must lie between"),
    ({"segment": 0}, ValueError, "segment must be"),
    ({"hidden": (8, 0)}, ValueError, "hidden must be"),
    ({"learning_rate": 0.0}, ValueError, "learning_rate must be a positive"),
    ({"weight_decay": -1.0}, ValueError, "weight_decay must be zero or"),
    ({"optimizer": "adam"}, TypeError, "optimizer must be an optax transformation"),
    ({"output": "simplex"}, TypeError, r"output must come from last_jax.outputs"),
    ({"output": last.outputs.actions(np.eye(4))}, ValueError, "use train_reinforce"),
    ({"reward": last.rewards.accuracy()}, TypeError, "reward must be rewards.distance"),
    ({"features": ("x", "y")}, ValueError, "features='y' is not known"),
    ({"features": ("x", "progress")}, ValueError, "needs a set of actions"),
    ({"features": ()}, ValueError, "features must name some of"),
    ({"init_fn": 0.05}, TypeError, r"init_fn must be a function of \(key\)"),
    ({"init_fn": lambda key: jnp.zeros(3)}, ValueError, r"init_fn\(key\) does not have the learner's parameters"),
    ({"target": jnp.zeros(3)}, ValueError, "target does not have the learner's parameters"),
    ({"validation": 3}, TypeError, "validation must be a last_jax.Pool"),
    ({"evaluate_every": -1}, ValueError, "evaluate_every must be"),
    ({"episodes": 0}, ValueError, "episodes must be"),
    ({"horizons": 3}, TypeError, r"train_unrolled\(\) got an unexpected keyword argument 'horizons': .* horizon"),
  ],
)
def test_bad_settings_are_named(settings, error, message):
  learner, pool, target, init_fn = problem_of("softmax")
  with pytest.raises(error, match=message):
    last.train_unrolled(KEY, learner, pool, **({"target": target, "init_fn": init_fn} | settings))


def test_a_black_box_refuses_features_and_rewards_of_the_target():
  learner, pool, _, _ = problem_of("softmax")
  with pytest.raises(ValueError, match="need a target"):
    last.train_unrolled(KEY, learner, pool, features=("x", "target"))
  with pytest.raises(ValueError, match="the distance needs a target"):
    last.train_unrolled(KEY, learner, pool, reward=last.rewards.distance())
