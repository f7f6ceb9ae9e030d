"""What both sides train: our trainers of a problem, and one episode of ours, in float64, to check others by."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import last_jax as last
from benchmarks import equality
from benchmarks.baselines import torch_training
from benchmarks.baselines.torch_tools import Tensor
from benchmarks.problems import TrainingProblem
from last_jax.teachers.outputs import is_choice
from last_jax.training.trainer import State, Trainer, teach_episode

# Of every number, as a share of the largest number of the same result: a gradient's small numbers are differences.
_RELATIVE = 1e-9


def given(problem: TrainingProblem) -> tuple[Any, last.Pool, dict[str, Any]]:
  """Learner, pool and the settings that both ways of training share. Arrays are on the device already."""
  sizes = problem.sizes
  learner = last.learners.softmax(
    sizes.features, 2, learning_rate=problem.learning_rate, weight_decay=problem.weight_decay, bias=False
  )
  target = {"weights": jnp.asarray(problem.target)}
  settings = {
    "target": target,
    "starts": last.training.near(target, problem.spread),
    "horizon": sizes.horizon,
    "students": sizes.students,
    "batch_size": 1,
    "hidden": (sizes.width, sizes.width),
    "evaluate_every": None,
  }
  return learner, last.Pool(jnp.asarray(problem.x), jnp.asarray(problem.y)), settings


def make_unrolled(problem: TrainingProblem, segment: int | None = None) -> Trainer:
  """Our trainer by unrolling."""
  learner, pool, settings = given(problem)
  return last.training.make_unrolled(learner, pool, segment=segment, **settings)


def train_unrolled(key: Any, problem: TrainingProblem, episodes: int) -> Callable[[], Any]:
  """`last.train_unrolled`, as a user calls it: its checks are timed with it."""
  learner, pool, settings = given(problem)
  return lambda: last.train_unrolled(key, learner, pool, episodes=episodes, **settings)


# The paper's ten actions and its baseline.
_CHOICE: dict[str, Any] = {"actions": last.outputs.BINARY_AUGMENTED, "baseline": -0.1}


def make_reinforce(problem: TrainingProblem) -> Trainer:
  """Our trainer by policy gradient."""
  learner, pool, settings = given(problem)
  return last.training.make_reinforce(learner, pool, **_CHOICE, **settings)


def train_reinforce(key: Any, problem: TrainingProblem, episodes: int) -> Callable[[], Any]:
  """`last.train_reinforce`, likewise."""
  learner, pool, settings = given(problem)
  return lambda: last.train_reinforce(key, learner, pool, episodes=episodes, **_CHOICE, **settings)


@dataclasses.dataclass(frozen=True)
class Checked:
  """An episode of ours in float64, with what it takes to repeat it elsewhere."""

  state: State  # Before it.
  index: np.ndarray  # [T, N] the examples shown.
  actions: np.ndarray | None  # [T, N] which action each label was.
  results: dict[str, np.ndarray]


# (trainer, key) -> state: as the first of a training.
start = jax.jit(lambda trainer, key: trainer.start(key))


@jax.jit
def _episode(trainer: Trainer, state: State) -> tuple[Any, ...]:
  """What is shown in an episode, its loss, the gradient, and the policy's weights after it."""
  method: Any = trainer.method
  keys = jax.random.split(state.key, trainer.num_students)

  def lessons(student: last.Student, key: Any) -> Any:
    # The lessons' own key is the first of two that the method makes of a student's.
    settings = {"steps": method.horizon, "batch_size": 1, "probe": None, "sample": is_choice(trainer.output)}
    first = jax.random.split(key)[0]
    return teach_episode(trainer.problem, state.policy, student, first, lessons=True, **settings).lessons

  shown = jax.vmap(lessons)(state.students, keys)  # [N, T, 1]
  gradient, _, metrics = method.episode(trainer.problem, state.policy, state.students, keys, None)
  updates, _ = trainer.build_optimizer().update(gradient, state.opt_state, state.policy.weights)
  return shown, metrics["loss"], gradient, optax.apply_updates(state.policy.weights, updates)


def one_episode(trainer: Trainer, state: State) -> Checked:
  """An episode from this state, and what was shown in it."""
  shown, loss, gradient, weights = _episode(trainer, state)
  actions = None
  if is_choice(trainer.output):
    choices = np.asarray(trainer.output.values)  # [A, K]
    gaps = np.abs(np.asarray(shown.label)[:, :, 0, None] - choices).sum(-1)  # [N, T, A]
    actions = gaps.argmin(-1).T.copy()
  results = results_of(np.asarray(loss), network_of(gradient), network_of(weights))
  return Checked(state, np.asarray(shown.index[:, :, 0], np.int64).T.copy(), actions, results)


def in_float64(tree: Any) -> Any:
  """The same with floats of that precision, where JAX has it on."""
  return jax.tree.map(lambda leaf: leaf.astype(float) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree)


def results_of(loss: np.ndarray, gradient: list[np.ndarray], weights: list[np.ndarray]) -> dict[str, np.ndarray]:
  """The loss, its gradient in the policy's weights, and the weights after Adam's step."""
  flat = {"gradient": gradient, "weights": weights}
  return {"loss": loss[None]} | {name: np.concatenate([a.ravel() for a in arrays]) for name, arrays in flat.items()}


def tolerances_of(results: dict[str, np.ndarray]) -> dict[str, equality.Tolerance]:
  """How far others may be away from these."""
  return {
    name: equality.Tolerance(relative=_RELATIVE, absolute=_RELATIVE * float(np.abs(value).max()))
    for name, value in results.items()
  }


def network_of(weights: Any) -> list[np.ndarray]:
  """A policy's weights layer by layer, `[inputs, hidden], [hidden], ...`; own inputs first, then shared ones."""
  first = np.concatenate([weights["own"]["kernel"], weights["shared"]["kernel"]])
  later = [weights[f"layer_{i}"] for i in range(1, len(weights) - 1)]
  arrays = [first, weights["own"]["bias"], *(layer[name] for layer in later for name in ("kernel", "bias"))]
  return [np.asarray(array) for array in arrays]


def params_of(state: State) -> np.ndarray:
  """The students' parameters, `[N, d, K]`."""
  return np.asarray(state.students.params["weights"])


def torch_setup(trainer: Trainer, state: State, problem: TrainingProblem) -> torch_training.Setup:
  """What our trainer was given, as tensors and numbers."""
  import torch

  method: Any = trainer.method
  chooses = is_choice(trainer.output)
  policy = state.policy

  def tensor(*parts: Any) -> Tensor:
    return torch.tensor(np.concatenate([np.asarray(part, problem.x.dtype) for part in parts]))

  return torch_training.Setup(
    x=tensor(problem.x),
    truth=tensor(np.eye(problem.target.shape[1])[problem.y]),
    target=tensor(problem.target),
    learning_rate=problem.learning_rate,
    weight_decay=problem.weight_decay,
    center=tensor(policy.center.own, policy.center.shared),
    scale=tensor(policy.scale.own, policy.scale.shared),
    actions=tensor(trainer.output.values) if chooses else None,
    discount=method.discount if chooses else method.decay,
    baseline=method.baseline if chooses else 0.0,
    policy_rate=float(trainer.learning_rate),
    policy_decay=float(trainer.weight_decay),
    spread=problem.spread,
    num_reset=trainer.num_reset,
  )
