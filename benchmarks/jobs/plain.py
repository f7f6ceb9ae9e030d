"""The plain caller: `import last_jax` and `teach_many`, with nothing prepared, in a process of its own."""

import contextlib
import dataclasses
import pathlib
import tempfile

import numpy as np

from benchmarks import cases, equality, harness, ours
from benchmarks.baselines import BATCHED, C_LOOP, KINDS
from benchmarks.cases import STRATEGIES
from benchmarks.harness import Job, Options
from benchmarks.jobs.processes import workers
from benchmarks.jobs.teaching import UNIT, Checker, make_baseline
from benchmarks.records import Measurement, Target

PREPARED = "last_jax, prepared, a device per core"
_MAIN = 24  # Features of the case that is compared with others' code, too.
_FEATURES = (4, 8, 16, _MAIN, 32, 64, 128, 784)
_SIZES, _TINY = {"students": 1000, "steps": 1000}, {"students": 8, "steps": 20, "pool": 50}
_WIDE = 64  # From this many features on, a tenth of the steps.
_TARGETS = {BATCHED: Target(6.0), C_LOOP: Target(0.5)}


@dataclasses.dataclass(frozen=True)
class PlainJob(Job):
  """Greedy labels on the simplex, unprepared, against the same prepared, by the number of features."""

  def measure(self, options: Options) -> list[Measurement]:
    """Time every number of features."""
    features = (3, _MAIN) if options.tiny else _FEATURES
    return [self._measure_one(options, each) for each in features]

  def _measure_one(self, options: Options, features: int) -> Measurement:
    sizes = (_TINY if options.tiny else _SIZES) | {"features": features}
    sizes["steps"] //= 10 if features >= _WIDE and not options.tiny else 1
    case, strategy = cases.draw_linear(options.seed, **sizes), STRATEGIES["greedy"]
    prepared = ours.teach(case, ours.make_teacher(strategy))
    with contextlib.ExitStack() as open_:
      folder = pathlib.Path(open_.enter_context(tempfile.TemporaryDirectory()))
      plain = open_.enter_context(workers(1, folder / "plain.npy", sizes, options.seed, plain=True))

      def check() -> dict[str, float]:
        expected = {"distance": np.asarray(prepared().distance)}
        return equality.check_equal({"distance": plain.result()}, expected, equality.FLOAT32)

      baselines = [harness.Baseline(PREPARED, [harness.Side(PREPARED, prepared, check, case.work)])]
      if features == _MAIN:
        checker = Checker(case, strategy)
        kinds = [KINDS[name] for name in _TARGETS if not KINDS[name].missing()]
        baselines += [make_baseline(kind, checker, options, _TARGETS[kind.name]) for kind in kinds]
      mine = harness.Side("last_jax, nothing prepared", plain.work, units=case.work)
      return harness.measure(options, self, case, UNIT, mine, baselines, axis="features")


JOBS: tuple[Job, ...] = (
  PlainJob("plain", "greedy labels for logistic students, nothing prepared, by the number of features"),
)
