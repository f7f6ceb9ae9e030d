"""Greedy labels of networks: time over a step of SGD, memory, certificates."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np

import last_jax as last
from benchmarks import equality, harness, networks
from benchmarks.cases import Case
from benchmarks.harness import Job, Options
from benchmarks.jobs.selection import make_cnn
from benchmarks.networks import RATE, Network, fully_connected
from benchmarks.records import Limit, Measurement, Target

STEP = "step"
SGD = "SGD of last_jax"
OVER_SGD = "over_sgd"  # The picture that all sweeps here share, a panel for each.
_MB = 10**6
_SLACK = 1e-5  # Relative, of a distance in float32.
_MAX_REPETITIONS = 3  # Of sweeps, and of steps that take seconds.

# --- Convolutional networks.


class _PooledCnn(nn.Module):
  """Two convolutions, each followed by pooling, and two full layers: 39,548 parameters for images [28, 28, 1]."""

  @nn.compact
  def __call__(self, x: Any) -> Any:
    for channels in (16, 32):
      x = nn.avg_pool(nn.relu(nn.Conv(channels, (3, 3))(x)), (2, 2), (2, 2))
    x = nn.relu(nn.Dense(22)(x.reshape(x.shape[0], -1)))
    return nn.Dense(10)(x)


def _make_pooled_cnn() -> Any:
  x = jnp.zeros((1, 28, 28, 1))
  return last.learners.from_flax(_PooledCnn(), x, loss="softmax_cross_entropy", learning_rate=RATE)


CNN = Network((8, 8, 1), 10, make_cnn)
POOLED_CNN = Network((28, 28, 1), 10, _make_pooled_cnn)


# --- A step of greedy teaching over one of SGD.


@dataclasses.dataclass(frozen=True)
class Point:
  """A network and how it is taught.

  Attributes:
    network: the network.
    batch_size: examples in a step.
    steps: in a timed call.
    target: of the time over that of SGD, where there is one.
    memory: the most bytes that the program may need, and whether those beyond SGD's are meant; None: any.
    search: whether labels are also compared with those that are sought on the Jacobian, which must fit into memory.
  """

  network: Network
  batch_size: int
  steps: int
  target: Target | None = None
  memory: tuple[int, bool] | None = None
  search: bool = False


def _compare(
  job: Job,
  options: Options,
  point: Point,
  side_name: str,
  check: Callable[[Case, Any], Mapping[str, float]],
  **more: Any,
) -> tuple[Measurement, harness.Program, harness.Program]:
  """Time a point against SGD, in the same loop with the same batches, after a check of its case and program.

  Returns:
    The measurement, and the programs of both.
  """
  network, pool = point.network, 20 if options.tiny else 256
  case = networks.draw(options.seed, network, batch_size=point.batch_size, steps=point.steps, pool=pool)
  mine = networks.teach(network, case, networks.greedy())
  plain = networks.teach(network, case, last.teachers.sgd())
  side = harness.Side(side_name, mine, units=case.work)
  other = harness.Side("SGD", plain, lambda: check(case, mine), case.work)
  baseline = harness.Baseline(SGD, [other], point.target)
  return harness.measure(options, job, case, STEP, side, [baseline], **more), mine, plain


@dataclasses.dataclass(frozen=True)
class NetworkJob(Job):
  """Greedy labels on the simplex for a network, against SGD.

  Attributes:
    points: what is measured.
    tiny: in place of them in a tiny run.
    repetitions: at most this many.
  """

  points: Sequence[Point]
  tiny: Sequence[Point]
  repetitions: int = 100

  def measure(self, options: Options) -> list[Measurement]:
    """Time every point."""
    options = dataclasses.replace(options, repetitions=min(self.repetitions, options.repetitions))
    return [self._measure_one(options, point) for point in (self.tiny if options.tiny else self.points)]

  def _measure_one(self, options: Options, point: Point) -> Measurement:
    residuals = []

    def check(case: Case, program: harness.Program) -> Mapping[str, float]:
      del program
      found, residual = networks.check_labels(point.network, case, search=point.search)
      residuals.append(residual)
      return found

    measured, mine, plain = _compare(self, options, point, networks.greedy().name, check)
    limits = [Limit("residual of the certificate", residuals[0], networks.RESIDUAL)]
    if point.memory is not None:
      most, beyond = point.memory
      most += plain.total_bytes() if beyond else 0
      limits.append(Limit("memory with arguments and results", mine.total_bytes(), most, "B"))
    return dataclasses.replace(measured, limits=tuple(limits))


def check_no_step_away(case: Case, program: harness.Program) -> Mapping[str, float]:
  """Check that the student ends no farther from the target than it starts: its own predictions would keep it there."""
  del case
  start, end = np.asarray(program().distance)
  return equality.check_not_above("distance", end, start, _SLACK * start)


@dataclasses.dataclass(frozen=True)
class NetworkSweepJob(Job):
  """Time over SGD along one axis.

  Attributes:
    axis: "parameters", "batch_size" or "classes".
    lines: points by the name of the line.
  """

  axis: str
  lines: Mapping[str, Sequence[Point]]

  def measure(self, options: Options) -> list[Measurement]:
    """Time every point of every line."""
    options = dataclasses.replace(options, repetitions=min(_MAX_REPETITIONS, options.repetitions))
    lines = {name: [_TINY] for name in self.lines} if options.tiny else self.lines
    measured = [
      _compare(self, options, point, name, check_no_step_away, axis=self.axis)[0]
      for name, points in lines.items()
      for point in points
    ]
    return [dataclasses.replace(each, problem={**each.problem, "picture": OVER_SGD}) for each in measured]


_TINY_NETWORK = fully_connected(12, 6, 4)
_TINY = Point(_TINY_NETWORK, 3, 2)


def _at_most(factor: float) -> Target:
  return Target(factor, slower=True)


_WIDE, _NARROW = fully_connected(784, 1000, 1000, 10), fully_connected(784, 128, 10)
_BATCHES = (1, 8, 16, 32, 64)
_CLASSES = (2, 10, 30, 100)

JOBS: tuple[Job, ...] = (
  NetworkJob(
    "network_mlp", "greedy labels on the simplex over SGD, 784-128-10",
    (
      Point(_NARROW, 8, 50, _at_most(4.0), search=True),
      Point(_NARROW, 32, 20, _at_most(6.0), search=True),
    ),
    (Point(_TINY_NETWORK, 3, 2, _at_most(4.0), search=True),),
  ),
  NetworkJob(
    "network_wide", "greedy labels on the simplex over SGD, 784-1000-1000-10",
    (Point(_WIDE, 32, 5, _at_most(7.0), (100 * _MB, True)),),
    (Point(_TINY_NETWORK, 3, 2, _at_most(7.0), (100 * _MB, True)),),
  ),
  NetworkJob(
    "network_cnn", "greedy labels on the simplex over SGD, convolutional networks on 8 x 8 and on 28 x 28 pixels",
    (Point(CNN, 8, 20, _at_most(6.0), search=True), Point(POOLED_CNN, 8, 5, _at_most(6.0))),
    (Point(CNN, 2, 2, _at_most(6.0), search=True),),
  ),
  NetworkJob(
    "network_large", "greedy labels on the simplex over SGD, ten million parameters, 100 classes",
    (Point(fully_connected(784, 3000, 2400, 100), 32, 1, memory=(2000 * _MB, False)),),
    (Point(_TINY_NETWORK, 3, 2, memory=(2000 * _MB, False)),),
    repetitions=_MAX_REPETITIONS,
  ),
  NetworkSweepJob(
    "network_parameters", "greedy labels over SGD by parameters, 784-h-h-10", "parameters",
    {
      f"batch of {batch}": [
        Point(fully_connected(784, hidden, hidden, 10), batch, steps)
        for hidden, steps in ((12, 10), (110, 20), (680, 5), (2800, 1))
      ]
      for batch in (8, 32)
    },
  ),
  NetworkSweepJob(
    "network_batch", "greedy labels over SGD by the batch", "batch_size",
    {
      "784-128-10": [Point(_NARROW, batch, 320 // batch) for batch in _BATCHES],
      "784-1000-1000-10": [Point(_WIDE, batch, 3) for batch in _BATCHES],
    },
  ),
  NetworkSweepJob(
    "network_classes", "greedy labels over SGD by classes, 784-128-K", "classes",
    {
      f"batch of {batch}": [
        Point(fully_connected(784, 128, classes), batch, max(1, 1000 // (batch * classes))) for classes in _CLASSES
      ]
      for batch in (8, 32)
    },
  ),
)  # fmt: skip
