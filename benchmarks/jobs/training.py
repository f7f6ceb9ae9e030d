"""Training of teachers, against eager PyTorch with all students in one tensor, and with one student after the other."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks import equality, harness, problems
from benchmarks.baselines import BATCHED, PER_STUDENT, torch_tools, torch_training
from benchmarks.baselines.base import thread_word
from benchmarks.jobs import training_check
from benchmarks.jobs.base import Job, Settings
from benchmarks.problems import TrainingProblem, TrainingSizes
from benchmarks.records import Measurement, Target
from last_jax.training.trainer import State, Trainer

TINY = TrainingSizes(students=2, horizon=5, pool=50, width=8)


@dataclasses.dataclass(frozen=True)
class Training:
  """A way of training, ours and the baseline's.

  Attributes:
    name: what `--suite` calls it.
    description: one line.
    make: our trainer, of a problem.
    train: `(key, problem, episodes)`: our training, as a user calls it.
    baseline: the same in PyTorch.
    sizes: what it is timed at.
    episodes: how many are in one call of ours. Training has hundreds: what a call costs besides is shared by them.
    baseline_episodes: how many in one call of the baseline, which takes longer; compared are times per episode.
    target: what is aimed at, against all students in one tensor.
  """

  name: str
  description: str
  make: Callable[[TrainingProblem], Trainer]
  train: Callable[[Any, TrainingProblem, int], Callable[[], Any]]
  baseline: torch_training.Method
  sizes: TrainingSizes
  episodes: int
  baseline_episodes: int
  target: Target

  def measure(self, settings: Settings) -> list[Measurement]:
    """Ours against both forms in PyTorch, if there is one."""
    sizes, episodes, theirs = self.sizes, self.episodes, self.baseline_episodes
    if settings.tiny:
      sizes, episodes, theirs = TINY, 4, 2
    problem = problems.draw_training(sizes, settings.seed)
    key = jax.random.key(settings.seed)
    mine = harness.Side("last_jax", self.train(key, problem, episodes), units=episodes)
    about = problems.about(problem, self.description, episodes=episodes)
    if torch_tools.missing():
      return [settings.measure(self.name, about, "episode", mine)]
    about["sizes"]["baseline_episodes"] = theirs
    baselines = self.baselines(problem, key, theirs, settings.threads)
    return [settings.measure(self.name, about, "episode", mine, baselines)]

  def baselines(self, problem: TrainingProblem, key: Any, episodes: int, threads: int | None) -> list[harness.Baseline]:
    """Trained from our first policy and students, on examples of its own; checked on ours, in float64."""
    state = training_check.start(self.make(problem), key)
    setup = training_check.torch_setup(self.make(problem), state, problem)
    exact = problem.astype(np.float64)
    with jax.enable_x64(True):
      checked = training_check.one_episode(self.make(exact), training_check.in_float64(state))
      exact_setup = training_check.torch_setup(self.make(exact), checked.state, exact)

    def side(kind: str, method: torch_training.Method, count: int) -> harness.Side:
      def train() -> Any:
        return _begin(setup, method, state).train(episodes, problem.sizes.horizon)

      def check() -> dict[str, float]:
        theirs = _one_episode(_begin(exact_setup, method, checked.state), checked)
        return equality.check_equal(checked.results, theirs, training_check.tolerances_of(checked.results))

      with_threads = functools.partial(torch_tools.with_threads, count)
      return harness.Side(f"{kind}, {thread_word(count)}", with_threads(train), with_threads(check), episodes)

    batched = [side(BATCHED, self.baseline, count) for count in torch_tools.threads_to_try(threads)]
    one_by_one = side(PER_STUDENT, torch_training.one_at_a_time(self.baseline), 1)
    return [harness.Baseline(BATCHED, batched, self.target), harness.Baseline(PER_STUDENT, [one_by_one])]


def _begin(setup: torch_training.Setup, method: torch_training.Method, state: State) -> torch_training.Training:
  network, students = training_check.network_of(state.policy.weights), training_check.params_of(state)
  return torch_training.Training(setup, method, network, students)


def _one_episode(training: torch_training.Training, checked: training_check.Checked) -> dict[str, np.ndarray]:
  import torch

  actions = None if checked.actions is None else torch.tensor(checked.actions)
  episode = training.episode(torch.tensor(checked.index), actions)
  gradient = [tensor.grad.numpy() for tensor in training.network]
  weights = [tensor.detach().numpy() for tensor in training.network]
  return training_check.results_of(episode.loss.detach().numpy(), gradient, weights)


JOBS: tuple[Job, ...] = (
  Training(
    "unrolled",
    "training a teacher by unrolling",
    training_check.make_unrolled,
    training_check.train_unrolled,
    torch_training.unrolled,
    TrainingSizes(horizon=20),
    episodes=1000,
    baseline_episodes=20,
    target=Target(15.0),
  ),
  Training(
    "reinforce",
    "training a teacher by policy gradient, ten actions",
    training_check.make_reinforce,
    training_check.train_reinforce,
    torch_training.reinforce,
    TrainingSizes(horizon=100),
    episodes=200,
    baseline_episodes=10,
    target=Target(20.0),
  ),
)
