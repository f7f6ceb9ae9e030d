"""Jobs of training teachers: against eager PyTorch, many seeds against one, and long horizons with less memory."""

import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import last_jax as last
from benchmarks import harness, jobs, problems, torch_baseline, torch_training, training_check
from benchmarks.problems import TrainingProblem, TrainingSizes
from last_jax.training.trainer import State, Trainer


@dataclasses.dataclass(frozen=True)
class Settings:
  """How to measure; as in `jobs.run`."""

  seed: int = 0
  repetitions: int = 7
  against_torch: bool = True
  threads: int | None = None
  tiny: bool = False
  timer: harness.Timer = time.perf_counter


@dataclasses.dataclass(frozen=True)
class Job:
  """Something to be timed.

  Attributes:
    name: what `--suite` calls it.
    description: one line, for `--help` and the JSON file.
    measure: times it, one comparison for every size it is timed at.
  """

  name: str
  description: str
  measure: Callable[["Job", Settings], list[harness.Comparison]]

  def run(self, settings: Settings) -> list[harness.Comparison]:
    """Times it.

    Raises:
      harness.ResultsDiffer: where both sides do not compute the same.
    """
    return self.measure(self, settings)


@dataclasses.dataclass(frozen=True)
class Against:
  """A way of training, ours and the baseline's: measures how much faster ours is.

  Attributes:
    make: our trainer, of a problem.
    train: `(key, problem, episodes)`: our training, as a user calls it.
    baseline: the same in PyTorch.
    sizes: what it is timed at.
    episodes: how many are in one call of ours. Training has hundreds: what a call costs besides is shared by them.
    baseline_episodes: how many in one call of the baseline, which takes longer; compared are times per episode.
    target_ratio: how many times as fast as the baseline we mean to be.
  """

  make: Callable[[TrainingProblem], Trainer]
  train: Callable[[Any, TrainingProblem, int], Callable[[], Any]]
  baseline: torch_training.Method
  sizes: TrainingSizes
  episodes: int
  baseline_episodes: int
  target_ratio: float

  def __call__(self, job: Job, settings: Settings) -> list[harness.Comparison]:
    """Ours against PyTorch with all students in one tensor, and with one student after the other."""
    sizes, episodes, theirs = self.sizes, self.episodes, self.baseline_episodes
    if settings.tiny:
      sizes, episodes, theirs = TINY, 4, 2
    problem = problems.draw_training(sizes, settings.seed)
    about = _about(job, problem, {"episodes": episodes})
    key = jax.random.key(settings.seed)
    ours, sides, tolerances = self.train(key, problem, episodes), [], {}
    results: dict[str, np.ndarray] = {}
    if settings.against_torch:
      state = training_check.start(self.make(problem), key)
      with jax.enable_x64(True):
        check = training_check.one_episode(self.make(problem.astype(np.float64)), training_check.in_float64(state))
      results, tolerances = check.results, training_check.tolerances_of(check.results)
      sides = self._torch_sides(problem, state, theirs, check, settings.threads)
      about["sizes"]["baseline_episodes"] = theirs
    result = harness.compare(
      job.name,
      about,
      harness.Side("last_jax", ours, lambda: results, episodes),
      sides,
      tolerances,
      repetitions=settings.repetitions,
      target_ratio=self.target_ratio,
      timer=settings.timer,
    )
    return [result]

  def _torch_sides(
    self, problem: TrainingProblem, state: State, episodes: int, check: training_check.Checked, threads: int | None
  ) -> list[harness.Side]:
    """Trained from our first policy and students, on examples of its own; checked on ours, in float64."""
    import torch

    setup = training_check.torch_setup(self.make(problem), state, problem)
    with jax.enable_x64(True):
      exact = training_check.torch_setup(self.make(problem.astype(np.float64)), check.state, problem.astype(np.float64))

    def begin(setup: torch_training.Setup, method: torch_training.Method, state: State) -> torch_training.Training:
      network, students = training_check.network_of(state.policy.weights), training_check.params_of(state)
      return torch_training.Training(setup, method, network, students)

    def side(name: str, method: torch_training.Method, count: int, episodes: int = episodes) -> harness.Side:
      def train() -> Any:
        return begin(setup, method, state).train(episodes, problem.sizes.horizon)

      def outcome() -> dict[str, np.ndarray]:
        training = begin(exact, method, check.state)
        actions = None if check.actions is None else torch.tensor(check.actions)
        episode = training.episode(torch.tensor(check.index), actions)
        gradient = [tensor.grad.numpy() for tensor in training.network]
        weights = [tensor.detach().numpy() for tensor in training.network]
        return training_check.results_of(episode.loss.detach().numpy(), gradient, weights)

      name = f"PyTorch, {name}, {count} thread{'' if count == 1 else 's'}"
      with_threads = functools.partial(torch_baseline.with_threads, count)
      return harness.Side(name, with_threads(train), with_threads(outcome), episodes)

    tried = torch_baseline.threads_to_try() if threads is None else [threads]
    # More threads can be a hundred times slower for such small operations, where others use the cores as well: a short
    # trial decides, since to time both in full would take most of the job's time.
    if len(tried) > 1:
      tried = [min(tried, key=lambda count: _trial(side("", self.baseline, count, episodes=1).run))]
    forms = {"batched eager": self.baseline, "one student at a time": torch_training.one_at_a_time(self.baseline)}
    return [side(name, method, tried[0]) for name, method in forms.items()]


def _trial(run: Callable[[], Any]) -> float:
  """The time of the fastest of three calls, in seconds."""
  seconds = []
  for _ in range(3):
    start = time.perf_counter()
    run()
    seconds.append(time.perf_counter() - start)
  return min(seconds)


def _about(job: Job, problem: TrainingProblem, more_sizes: dict[str, int]) -> dict[str, Any]:
  return {
    "description": job.description,
    "sizes": dataclasses.asdict(problem.sizes) | more_sizes,
    "seed": problem.seed,
    "learning_rate": problem.learning_rate,
    "weight_decay": problem.weight_decay,
    "dtype": str(problem.x.dtype),
  }


def measure_seeds(job: Job, settings: Settings) -> list[harness.Comparison]:
  """How many times as long ten teachers at once take as one: a ratio that is to be small."""
  sizes, episodes, seeds = TrainingSizes(), 100, 10
  if settings.tiny:
    sizes, episodes, seeds = TINY, 2, 3
  problem = problems.draw_training(sizes, settings.seed)
  learner, pool, given = training_check.given(problem)
  keys = jax.random.split(jax.random.key(settings.seed), seeds)
  shared = jobs.split_over_devices(keys, seeds)  # As students are: a share of the seeds to each device.
  one = jax.jit(lambda key: last.train_unrolled(key, learner, pool, episodes=episodes, **given))
  many = jax.jit(jax.vmap(lambda key: last.train_unrolled(key, learner, pool, episodes=episodes, **given)))
  result = harness.compare(
    job.name,
    _about(job, problem, {"episodes": episodes, "seeds": seeds}),
    harness.Side("last_jax, one seed", lambda: one(keys[0]), lambda: {"first losses": one(keys[0])[1].loss[:5]}),
    [
      harness.Side(
        f"last_jax, {seeds} seeds", lambda: many(shared), lambda: {"first losses": many(shared)[1].loss[0, :5]}
      )
    ],
    # The same program under vmap, as timed: in float32, and so only before rounding has grown over the episodes.
    {"first losses": harness.Tolerance(relative=1e-3, absolute=0.0)},
    repetitions=settings.repetitions,
    target_ratio=8.0,
    at_most=True,
    timer=settings.timer,
  )
  return [result]


def measure_remat(job: Job, settings: Settings) -> list[harness.Comparison]:
  """Time and memory of one episode's gradient, with segments and without, horizon by horizon."""
  horizons, sizes = ((4, 9), TINY) if settings.tiny else ((20, 100, 500, 2000), TrainingSizes())
  problem = problems.draw_training(sizes, settings.seed)
  # The same policy and students for all: the horizon has no part in them.
  state = training_check.start(training_check.make_unrolled(problem), jax.random.key(settings.seed))
  longer = [dataclasses.replace(problem, sizes=dataclasses.replace(sizes, horizon=horizon)) for horizon in horizons]
  return [_remat(job, settings, problem, state) for problem in longer]


def _remat(job: Job, settings: Settings, problem: TrainingProblem, state: State) -> harness.Comparison:
  segment = round(problem.sizes.horizon**0.5)
  with_segments, without = _Gradient(problem, state, segment), _Gradient(problem, state, None)
  exact = with_segments.exact()
  result = harness.compare(
    job.name,
    _about(job, problem, {"segment": segment}),
    harness.Side("last_jax, in segments", with_segments, lambda: exact),
    [harness.Side("last_jax, everything kept", without, without.exact)],
    training_check.tolerances_of(exact),
    repetitions=settings.repetitions,
    target_ratio=0.5,  # Memory is saved at no more than twice the time.
    timer=settings.timer,
  )
  result.problem["temporary_bytes"] = {"segments": with_segments.memory(), "kept": without.memory()}
  return result


class _Gradient:
  """The gradient of one episode, compiled with its first call."""

  def __init__(self, problem: TrainingProblem, state: State, segment: int | None):
    self._problem, self._state, self._segment = problem, state, segment
    self._keys = jax.random.split(state.key, problem.sizes.students)

  @functools.cached_property
  def _program(self) -> tuple[Any, Any]:
    return self._compile(self._problem, self._state)

  def _compile(self, problem: TrainingProblem, state: State) -> tuple[Any, Any]:
    trainer = training_check.make_unrolled(problem, self._segment)
    arguments = (trainer.problem, state.policy, state.students, self._keys)
    return jax.jit(lambda *arguments: trainer.method.episode(*arguments)[0]).lower(*arguments).compile(), arguments

  def __call__(self) -> Any:
    program, arguments = self._program
    return program(*arguments)

  def memory(self) -> int:
    """What the compiled program says it needs besides its arguments and results, in bytes."""
    return int(self._program[0].memory_analysis().temp_size_in_bytes)

  def exact(self) -> dict[str, np.ndarray]:
    """The gradient in float64."""
    with jax.enable_x64(True):
      program, arguments = self._compile(self._problem.astype(np.float64), training_check.in_float64(self._state))
      return {"gradient": np.concatenate([array.ravel() for array in training_check.network_of(program(*arguments))])}


TINY = TrainingSizes(students=3, horizon=5, pool=50, width=8)

JOBS: dict[str, Job] = {
  job.name: job
  for job in (
    Job(
      "unrolled",
      "training a teacher by unrolling; times are of one episode, against two forms of eager PyTorch",
      Against(
        training_check.make_unrolled,
        training_check.train_unrolled,
        torch_training.unrolled,
        TrainingSizes(horizon=20),
        episodes=1000,
        baseline_episodes=20,
        target_ratio=15.0,
      ),
    ),
    Job(
      "reinforce",
      "training a teacher by policy gradient, ten actions; times are of one episode, likewise",
      Against(
        training_check.make_reinforce,
        training_check.train_reinforce,
        torch_training.reinforce,
        TrainingSizes(horizon=100),
        episodes=200,
        baseline_episodes=10,
        target_ratio=20.0,
      ),
    ),
    Job("seeds", "how many times as long as one teacher ten take that are trained at once (unrolling)", measure_seeds),
    Job(
      "remat",
      "the gradient of one episode (unrolling) in segments, against everything kept: time and memory by horizon",
      measure_remat,
    ),
  )
}
