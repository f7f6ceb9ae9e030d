"""Scaling of training: many seeds at once against one, and long horizons with less memory."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import last_jax as last
from benchmarks import cases, equality, harness, trainers
from benchmarks.cases import Case
from benchmarks.harness import Job, Options
from benchmarks.jobs.teaching import UNIT
from benchmarks.jobs.training import TINY
from benchmarks.records import Measurement, Target
from benchmarks.trainers import UNROLLED

# For the largest number of seeds, and for memory that is saved by computing steps twice.
SEEDS_TARGET, _SEGMENTS_TARGET = Target(40.0, slower=True), Target(2.0, slower=True)
# The same program under vmap, as timed: in float32, and so only before rounding errors have grown over the episodes.
_COMPARED, _FIRST_LOSSES = 5, equality.Tolerance(1e-3)
# On each device: more teachers no longer fit into a core's cache.
_AT_ONCE = 16


@dataclasses.dataclass(frozen=True)
class SeedsJob(Job):
  """The time of training many teachers at once, relative to one."""

  counts: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)

  def measure(self, options: Options) -> list[Measurement]:
    """Time each number of seeds against one."""
    episodes, counts = (2, (2,)) if options.tiny else (20, self.counts)
    case = cases.draw_training(options.seed, **(TINY if options.tiny else {}))
    keys = jax.random.split(jax.random.key(options.seed), counts[-1])
    train = trainers.train(UNROLLED, case, episodes)
    one = harness.Program(train, keys[0])

    def measure_one(count: int) -> Measurement:
      many = _train_many(train, keys[:count])

      def check() -> dict[str, float]:
        mine, theirs = many()[1].loss[0, :_COMPARED], one()[1].loss[:_COMPARED]
        return equality.check_equal({"first losses": mine}, {"first losses": theirs}, _FIRST_LOSSES)

      alone = harness.Side("last_jax, one seed", one, check)
      single = harness.Baseline(alone.name, [alone], SEEDS_TARGET if count == self.counts[-1] else None)
      mine, sizes = harness.Side("unrolled", many), {"episodes": episodes, "seeds": count}
      return harness.measure(options, self, case, "training", mine, [single], axis="seeds", sizes=sizes)

    return [measure_one(count) for count in counts]


def _train_many(train: Callable[[Any], Any], keys: Any) -> harness.Program:
  """Return the program that trains from all keys; each device takes a share of them where they can be divided."""

  def run(keys: Any) -> Any:
    return jax.lax.map(train, keys, batch_size=min(_AT_ONCE, keys.shape[0]))

  mesh = last.devices.mesh()
  sharded = last.devices.over_students(run, mesh, (True,), True) if keys.shape[0] % mesh.size == 0 else run
  return harness.Program(sharded, last.devices.split(keys, mesh))


@dataclasses.dataclass(frozen=True)
class HorizonJob(Job):
  """The gradient of one episode in segments, against one that stores everything."""

  horizons: tuple[int, ...] = (20, 100, 500, 2000)

  def measure(self, options: Options) -> list[Measurement]:
    """Measure time and memory for each horizon."""
    case = cases.draw_training(options.seed, **(TINY if options.tiny else {}))
    horizons = (9,) if options.tiny else self.horizons
    return [self._measure_one(case.with_sizes(horizon=horizon), options) for horizon in horizons]

  def _measure_one(self, case: Case, options: Options) -> Measurement:
    segment, work = round(case.sizes["horizon"] ** 0.5), case.sizes["students"] * case.sizes["horizon"]

    def check() -> dict[str, float]:
      with jax.enable_x64(True):
        exact = (_gradient(case.astype(np.float64), each)() for each in (segment, None))
        mine, theirs = ({"gradient": trainers.flatten(trainers.network_weights(each))} for each in exact)
      return equality.check_equal(mine, theirs, equality.FLOAT64)

    mine = harness.Side("in segments", _gradient(case, segment), units=work)
    stored = harness.Side("everything stored", _gradient(case, None), check, work)
    baseline = harness.Baseline(stored.name, [stored], _SEGMENTS_TARGET)
    return harness.measure(options, self, case, UNIT, mine, [baseline], axis="horizon", sizes={"segment": segment})


def _gradient(case: Case, segment: int | None) -> harness.Program:
  """Return the gradient of the first episode, in segments or with everything stored."""
  trainer = trainers.make_trainer(UNROLLED, case, segment=segment)
  return trainers.gradient(trainer, trainers.init(trainer, jax.random.key(case.seed)))


JOBS: tuple[Job, ...] = (
  SeedsJob("seeds", "training many teachers at once by unrolling: the time of all of them, by their number"),
  HorizonJob(
    "horizon", "the gradient of one episode (unrolling) in segments, against everything stored, by the horizon"
  ),
)
