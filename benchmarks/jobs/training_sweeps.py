"""How training of teachers grows: many seeds at once against one, and long horizons with less memory."""

import dataclasses
from typing import Any

import jax
import numpy as np

import last_jax as last
from benchmarks import equality, harness, problems
from benchmarks.jobs import training_check
from benchmarks.jobs.base import Job, Settings
from benchmarks.jobs.teaching import UNIT
from benchmarks.jobs.training import TINY
from benchmarks.problems import TrainingProblem, TrainingSizes
from benchmarks.records import Measurement, Target
from last_jax.training.trainer import State

# The same program under vmap, as timed: in float32, and so only before rounding has grown over the episodes.
_COMPARED = 5
_FIRST_LOSSES = {"first losses": equality.Tolerance(relative=1e-3, absolute=0.0)}
# On each device: more teachers than this no longer fit into a core's cache.
_AT_ONCE = 16
# For the most seeds; and for memory saved by computing things twice.
_SEEDS_TARGET, _SEGMENTS_TARGET = Target(40.0, slower=True), Target(2.0, slower=True)


@dataclasses.dataclass(frozen=True)
class Seeds:
  """How many times as long as one teacher many take that are trained at once."""

  name: str = "seeds"
  description: str = "training many teachers at once by unrolling: the time of all of them, by how many they are"
  counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
  target: Target = _SEEDS_TARGET

  def measure(self, settings: Settings) -> list[Measurement]:
    """So many seeds against one; the target is for the most."""
    sizes, episodes, counts = TrainingSizes(), 20, self.counts
    if settings.tiny:
      sizes, episodes, counts = TINY, 2, (2,)
    problem = problems.draw_training(sizes, settings.seed)
    learner, pool, given = training_check.given(problem)

    def train(key: Any) -> Any:
      return last.train_unrolled(key, learner, pool, episodes=episodes, **given)

    def train_many(keys: Any) -> Any:
      return jax.lax.map(train, keys, batch_size=min(_AT_ONCE, keys.shape[0]))

    keys, mesh = jax.random.split(jax.random.key(settings.seed), counts[-1]), last.devices.mesh()
    one = harness.Program(train, keys[0])

    def measure_one(count: int) -> Measurement:
      # As students are: a share of the seeds to each device.
      divisible = count % mesh.size == 0
      function = last.devices.over_students(train_many, mesh, (True,), True) if divisible else train_many
      many = harness.Program(function, last.devices.split(keys[:count], mesh))

      def check() -> dict[str, float]:
        mine, theirs = many()[1].loss[0, :_COMPARED], one()[1].loss[:_COMPARED]
        return equality.check_equal({"first losses": mine}, {"first losses": theirs}, _FIRST_LOSSES)

      single = harness.Baseline(
        "last_jax, one seed",
        [harness.Side("last_jax, one seed", one, check)],
        self.target if count == self.counts[-1] else None,
      )
      about = problems.about(problem, self.description, episodes=episodes, seeds=count)
      mine = harness.Side("unrolled", many, memory=many.temporary_bytes)
      return settings.measure(self.name, about, "training", mine, [single], axis="seeds")

    return [measure_one(count) for count in counts]


@dataclasses.dataclass(frozen=True)
class Horizons:
  """The gradient of one episode in segments, against everything kept."""

  name: str = "horizon"
  description: str = "the gradient of one episode (unrolling) in segments, against everything kept, by the horizon"
  horizons: tuple[int, ...] = (20, 100, 500, 2000)
  target: Target = _SEGMENTS_TARGET

  def measure(self, settings: Settings) -> list[Measurement]:
    """Time and memory for each horizon."""
    horizons, sizes = ((9,), TINY) if settings.tiny else (self.horizons, TrainingSizes())
    problem = problems.draw_training(sizes, settings.seed)
    # The same policy and students for all: the horizon has no part in them.
    state = training_check.start(training_check.make_unrolled(problem), jax.random.key(settings.seed))
    longer = [dataclasses.replace(problem, sizes=dataclasses.replace(sizes, horizon=horizon)) for horizon in horizons]
    return [self._measure_one(problem, state, settings) for problem in longer]

  def _measure_one(self, problem: TrainingProblem, state: State, settings: Settings) -> Measurement:
    sizes = problem.sizes
    segment, work = round(sizes.horizon**0.5), sizes.students * sizes.horizon
    in_segments, kept = _gradient(problem, state, segment), _gradient(problem, state, None)

    def check() -> dict[str, float]:
      mine, theirs = (_exact_gradient(problem, state, each) for each in (segment, None))
      return equality.check_equal(mine, theirs, training_check.tolerances_of(mine))

    side = harness.Side("everything kept", kept, check, work, kept.temporary_bytes)
    return settings.measure(
      self.name,
      problems.about(problem, self.description, segment=segment),
      UNIT,
      harness.Side("in segments", in_segments, units=work, memory=in_segments.temporary_bytes),
      [harness.Baseline("everything kept", [side], self.target)],
      axis="horizon",
    )


def _gradient(problem: TrainingProblem, state: State, segment: int | None) -> harness.Program:
  """The gradient of one episode."""
  trainer = training_check.make_unrolled(problem, segment)
  keys = jax.random.split(state.key, problem.sizes.students)

  method: Any = trainer.method

  def gradient(*arguments: Any) -> Any:
    return method.episode(*arguments, None)[0]

  return harness.Program(gradient, trainer.problem, state.policy, state.students, keys)


def _exact_gradient(problem: TrainingProblem, state: State, segment: int | None) -> dict[str, np.ndarray]:
  """The same in float64, flat."""
  with jax.enable_x64(True):
    gradient = _gradient(problem.astype(np.float64), training_check.in_float64(state), segment)()
    return {"gradient": np.concatenate([array.ravel() for array in training_check.network_of(gradient)])}


JOBS: tuple[Job, ...] = (Seeds(), Horizons())
