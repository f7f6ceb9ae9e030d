"""Our side of training a teacher: the calls that are timed, and one episode that others are checked by."""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import optax

import last_jax as last
from benchmarks import harness, ours
from benchmarks.cases import Case
from last_jax.training import Trainer, TrainingState

SPREAD = 0.05  # Standard deviation of the students' starts around the target.


class Algorithm(NamedTuple):
  """A way of training: the function that users call, its class of settings, and those that no case has."""

  train: Callable[..., Any]
  settings: Callable[..., last.training.Settings]
  fixed: dict[str, Any]


UNROLLED = Algorithm(last.train_unrolled, last.training.Unrolled, {"learning_rate": 1e-3, "weight_decay": 1e-4})
# The paper's ten actions and its baseline.
REINFORCE = Algorithm(
  last.train_reinforce,
  last.training.Reinforce,
  {"learning_rate": 1e-3, "weight_decay": 0.0, "actions": last.outputs.BINARY_AUGMENTED, "baseline": -0.1},
)


def train(algorithm: Algorithm, case: Case, episodes: int) -> Callable[[Any], Any]:
  """Return a function of a key that trains as users do: its checks are timed with it."""
  learner, pool, students = _inputs(case)
  settings = _settings(algorithm, case)
  return lambda key: algorithm.train(key, learner, pool, episodes=episodes, **students, **settings)


def make_trainer(algorithm: Algorithm, case: Case, **settings: Any) -> Trainer:
  """Return the trainer of the same, with further settings."""
  learner, pool, students = _inputs(case)
  method = algorithm.settings(**_settings(algorithm, case), **settings)
  return last.training.make_trainer(method, learner, pool, **students)


def _inputs(case: Case) -> tuple[Any, last.Pool, dict[str, Any]]:
  """Return learner, pool, and the target with starts around it; arrays are already on the device."""
  target = jax.tree.map(jnp.asarray, case.target)
  pool = last.Pool(jnp.asarray(case.x), jnp.asarray(case.y))
  return ours.make_learner(case), pool, {"target": target, "init_fn": last.training.near(target, SPREAD)}


def _settings(algorithm: Algorithm, case: Case) -> dict[str, Any]:
  sizes = case.sizes
  return algorithm.fixed | {
    "horizon": sizes["horizon"],
    "students": sizes["students"],
    "hidden": (sizes["width"], sizes["width"]),
    "evaluate_every": 0,
  }


def init(trainer: Trainer, key: Any) -> TrainingState:
  """Return the state before the first episode."""
  return harness.Program(Trainer.init, trainer, key)()


def gradient(trainer: Trainer, state: TrainingState) -> harness.Program:
  """Return the program of the gradient of one episode in the policy's weights."""
  return _episode(trainer, state, lambda result: result[0])


def _episode(trainer: Trainer, state: TrainingState, part: Callable[[Any], Any]) -> harness.Program:
  def run(*arguments: Any) -> Any:
    return part(trainer.method.episode(*arguments))

  return harness.Program(run, trainer.problem, state.policy, state.students, _keys(trainer, state))


def _keys(trainer: Trainer, state: TrainingState) -> Any:
  return jax.random.split(state.key, trainer.method.students)


class CheckedEpisode(NamedTuple):
  """An episode of ours, with all that is needed to repeat it elsewhere from the same state."""

  shown: np.ndarray  # [T, N] the examples.
  actions: np.ndarray | None  # [T, N] the actions taken, where there is a choice.
  results: dict[str, np.ndarray]


def checked_episode(trainer: Trainer, state: TrainingState) -> CheckedEpisode:
  """Run one episode from this state."""
  lessons = _lessons(trainer, state)
  slopes, loss = _episode(trainer, state, lambda result: (result[0], result[2]["loss"]))()
  updates, _ = trainer.method.build_optimizer().update(slopes, state.opt_state, state.policy.weights)
  weights = optax.apply_updates(state.policy.weights, updates)
  actions, output = None, cast(Any, trainer.method.label_output)
  if last.outputs.is_choice(output):
    gaps = np.abs(np.asarray(lessons.label)[:, :, 0, None] - np.asarray(output.values)).sum(-1)  # [N, T, A]
    actions = gaps.argmin(-1).T.copy()
  results = episode_results(np.asarray(loss), network_weights(slopes), network_weights(weights))
  return CheckedEpisode(np.asarray(lessons.index[:, :, 0], np.int64).T.copy(), actions, results)


def _lessons(trainer: Trainer, state: TrainingState) -> last.Lessons:
  """Return the lessons of an episode, `[N, T, 1, ...]`: the teacher is the policy, as `teach_many` runs it."""
  problem, method = trainer.problem, trainer.method
  teacher = last.teachers.policy(state.policy, sample=last.outputs.is_choice(method.label_output))
  # A method splits a student's key into one for the lessons and one for the reward.
  keys = jax.vmap(jax.random.split)(_keys(trainer, state))[:, 0]
  result = last.teach_many(
    keys, problem.learner, teacher, problem.pool, target=problem.target, init=state.students.params,
    steps=method.horizon, metrics=(), lessons=True,
  )  # fmt: skip
  assert result.lessons is not None, "lessons were asked for"
  return result.lessons


def episode_results(loss: np.ndarray, slopes: list[np.ndarray], weights: list[np.ndarray]) -> dict[str, np.ndarray]:
  """Return the loss, its gradient in the policy's weights, and the weights after Adam's step, flat."""
  return {"loss": loss[None], "gradient": flatten(slopes), "weights": flatten(weights)}


def flatten(arrays: list[np.ndarray]) -> np.ndarray:
  """Return all numbers of some arrays in one."""
  return np.concatenate([array.ravel() for array in arrays])


def network_weights(weights: Any) -> list[np.ndarray]:
  """Return a policy's weights layer by layer, `[inputs, hidden], [hidden], ...`; own inputs first, then shared ones."""
  first = np.concatenate([weights["own"]["kernel"], weights["shared"]["kernel"]])
  later = [weights[f"layer_{i}"] for i in range(1, len(weights) - 1)]
  arrays = [first, weights["own"]["bias"], *(layer[name] for layer in later for name in ("kernel", "bias"))]
  return [np.asarray(array) for array in arrays]
