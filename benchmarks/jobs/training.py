"""Training of teachers, against eager PyTorch with all students in one tensor, and with one student after the other."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

import last_jax as last
from benchmarks import cases, equality, harness, trainers
from benchmarks.baselines import BATCHED, PER_STUDENT, torch_tools, torch_training
from benchmarks.baselines.base import name_threads
from benchmarks.baselines.torch_training import EpisodeFn, TorchTrainer, TrainingInputs
from benchmarks.cases import Case
from benchmarks.harness import Job, Options
from benchmarks.records import Measurement, Target
from benchmarks.trainers import Algorithm, CheckedEpisode
from last_jax.training import Trainer, TrainingState

TINY = {"students": 5, "horizon": 5, "pool": 50, "width": 8}


@dataclasses.dataclass(frozen=True)
class TrainingJob(Job):
  """A way of training, ours and the baseline's.

  Attributes:
    algorithm: ours.
    episode_fn: the same in PyTorch.
    sizes: of the case.
    episodes: number in one call of ours. Training has hundreds: they share the cost of a call.
    baseline_episodes: number in one call of the baseline, which takes longer. Times are compared per episode.
    target: the aim, against all students in one tensor.
  """

  algorithm: Algorithm
  episode_fn: EpisodeFn
  sizes: Mapping[str, int]
  episodes: int
  baseline_episodes: int
  target: Target

  def measure(self, options: Options) -> list[Measurement]:
    """Time last_jax against both forms in PyTorch, if it is available."""
    sizes, episodes, theirs = self.sizes, self.episodes, self.baseline_episodes
    if options.tiny:
      sizes, episodes, theirs = TINY, 4, 2
    case, key = cases.draw_training(options.seed, **sizes), jax.random.key(options.seed)
    run = functools.partial(trainers.train(self.algorithm, case, episodes), key)
    mine = harness.Side("last_jax", run, units=episodes)
    if torch_tools.missing():
      return [harness.measure(options, self, case, "episode", mine, sizes={"episodes": episodes})]
    baselines = self.baselines(case, key, theirs, options.threads)
    counts = {"episodes": episodes, "baseline_episodes": theirs}
    return [harness.measure(options, self, case, "episode", mine, baselines, sizes=counts)]

  def baselines(self, case: Case, key: Any, episodes: int, threads: int | None) -> list[harness.Baseline]:
    """Return both forms, trained from a first policy and students of ours on their own examples; checked on ours."""
    with jax.enable_x64(True):
      trainer = trainers.make_trainer(self.algorithm, case.astype(np.float64))
      state = trainers.init(trainer, key)
      checked = trainers.checked_episode(trainer, state)
    network = trainers.network_weights(state.policy.weights)
    students = np.asarray(state.students.params["weights"])  # [N, d, K]
    timed, exact = (_torch_inputs(trainer, state, case.astype(dtype)) for dtype in (np.float32, np.float64))

    def side(kind: str, episode_fn: EpisodeFn, count: int) -> harness.Side:
      def check() -> dict[str, float]:
        theirs = _one_episode(TorchTrainer(exact, episode_fn, network, students), checked)
        return equality.check_equal(checked.results, theirs, equality.FLOAT64)

      def train() -> Any:
        return TorchTrainer(timed, episode_fn, network, students).train(episodes, case.sizes["horizon"])

      with_threads = functools.partial(torch_tools.with_threads, count)
      return harness.Side(f"{kind}, {name_threads(count)}", with_threads(train), with_threads(check), episodes)

    batched = [side(BATCHED, self.episode_fn, count) for count in torch_tools.threads_to_try(threads)]
    one_by_one = side(PER_STUDENT, torch_training.one_at_a_time(self.episode_fn), 1)
    return [harness.Baseline(BATCHED, batched, self.target), harness.Baseline(PER_STUDENT, [one_by_one])]


def _one_episode(trainer: TorchTrainer, checked: CheckedEpisode) -> dict[str, np.ndarray]:
  import torch

  actions = None if checked.actions is None else torch.tensor(checked.actions)
  episode = trainer.episode(torch.tensor(checked.shown), actions)
  slopes = [tensor.grad.numpy() for tensor in trainer.network]
  weights = [tensor.detach().numpy() for tensor in trainer.network]
  return trainers.episode_results(episode.loss.detach().numpy(), slopes, weights)


def _torch_inputs(trainer: Trainer, state: TrainingState, case: Case) -> TrainingInputs:
  """Return everything that our trainer was given, as tensors and numbers."""
  import torch

  method: Any = trainer.method
  chooses = last.outputs.is_choice(method.label_output)
  center, scale = state.policy.center, state.policy.scale

  def tensor(*parts: Any) -> torch_tools.Tensor:
    return torch.tensor(np.concatenate([np.asarray(part, case.x.dtype) for part in parts]))

  return TrainingInputs(
    x=tensor(case.x),
    truth=tensor(np.eye(2)[case.y]),
    target=tensor(case.target["weights"]),
    learning_rate=case.learning_rate,
    weight_decay=case.weight_decay,
    center=tensor(center.own, center.shared),
    scale=tensor(scale.own, scale.shared),
    actions=tensor(method.label_output.values) if chooses else None,
    discount=method.discount if chooses else method.decay,
    baseline=method.baseline if chooses else 0.0,
    policy_rate=method.learning_rate,
    policy_decay=method.weight_decay,
    spread=trainers.SPREAD,
    num_reset=method.num_reset,
  )


JOBS: tuple[Job, ...] = (
  TrainingJob(
    "unrolled",
    "training a teacher by unrolling",
    trainers.UNROLLED,
    torch_training.unrolled,
    {"horizon": 20},
    episodes=1000,
    baseline_episodes=20,
    target=Target(8.0),
  ),
  TrainingJob(
    "reinforce",
    "training a teacher by policy gradient, ten actions",
    trainers.REINFORCE,
    torch_training.reinforce,
    {"horizon": 100},
    episodes=200,
    baseline_episodes=10,
    target=Target(8.0),
  ),
)
