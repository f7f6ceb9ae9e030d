"""Exact greedy labels of networks, against labels sought by gradient descent in PyTorch."""

import dataclasses
from typing import Any

import jax
import numpy as np

import last_jax as last
from benchmarks import cases, equality, harness, ours
from benchmarks.baselines import BATCHED, torch_mlp, torch_tools
from benchmarks.baselines.base import name_threads
from benchmarks.cases import Case
from benchmarks.harness import Job, Options
from benchmarks.jobs.teaching import UNIT
from benchmarks.records import Measurement, Target

TINY = {"students": 3, "steps": 2, "pool": 20, "hidden": 6}
_SIZES = {"students": 100, "steps": 50}
_TARGET = Target(10.0)
_SLACK = 1e-9  # The most by which a student may be farther from the target with our label than with the baseline's.


@dataclasses.dataclass(frozen=True)
class MlpJob(Job):
  """Greedy teaching of networks on the simplex."""

  def measure(self, options: Options) -> list[Measurement]:
    """Time last_jax against batched PyTorch, if it is available."""
    case = cases.draw_mlp(options.seed, **(TINY if options.tiny else _SIZES))
    baselines = [] if torch_tools.missing() else [_torch(case, options.threads)]
    mine = harness.Side("last_jax", ours.teach(case, _teacher()), units=case.work)
    sizes = {"descent_steps": torch_mlp.DESCENT_STEPS}
    return [harness.measure(options, self, case, UNIT, mine, baselines, sizes=sizes)]


def _teacher() -> last.Teacher:
  return last.teachers.greedy(last.constraints.simplex())


def _torch(case: Case, threads: int | None) -> harness.Baseline:
  network = torch_mlp.Network(case)

  def side(count: int) -> harness.Side:
    name = f"PyTorch, {torch_mlp.DESCENT_STEPS} gradient steps on the label, {name_threads(count)}"
    run = torch_tools.with_threads(count, network.teach)
    check = torch_tools.with_threads(count, lambda: _check(case))
    return harness.Side(name, run, check, case.work)

  return harness.Baseline(BATCHED, [side(count) for count in torch_tools.threads_to_try(threads)], _TARGET)


def _check(case: Case) -> dict[str, float]:
  """Return the differences, in float64, of a step from the students' starts and of one from their ends."""
  timed = ours.teach(case, _teacher())()
  assert timed.distance is not None, "distances are recorded"
  end = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), timed.params)
  exact = case.astype(np.float64).with_sizes(steps=1)
  differences: dict[str, float] = {}
  with jax.enable_x64(True):
    for place, start in (("start", exact), ("end", dataclasses.replace(exact, init=end))):
      differences |= {f"{name} ({place})": value for name, value in check_step(start).items()}
    first = ours.teach(exact, _teacher())().distance
  # The timed program, in float32, computes the same up to rounding.
  name = "distance after a step (float32)"
  return differences | equality.check_equal({name: timed.distance[:, :2]}, {name: first}, equality.FLOAT32)


def check_step(case: Case) -> dict[str, float]:
  """Check that one step is the same for both sides, and that our labels bring students at least as near.

  Raises:
    ResultsDiffer: where not.
  """
  import torch

  result: Any = ours.teach(case.with_sizes(steps=1), _teacher(), lessons=True)()
  index = torch.tensor(np.asarray(result.lessons.index[:, 0, 0], np.int64))
  label = torch.tensor(np.asarray(result.lessons.label[:, 0, 0]))
  network, before = torch_mlp.Network(case), torch_mlp.make_layers(case.init)
  sought = network.distance(network.learn(before, index, network.seek_labels(before, index))).numpy()
  differences = equality.check_not_above("distance", np.asarray(result.distance[:, -1]), sought, _SLACK)
  theirs = network.learn(before, index, label)._asdict()
  mine = torch_mlp.make_layers(result.params)._asdict()
  return differences | equality.check_equal(mine, theirs, equality.FLOAT64)


JOBS: tuple[Job, ...] = (
  MlpJob(
    "mlp",
    "greedy labels on the simplex, exact, for networks with a hidden layer, against gradient descent on the label",
  ),
)
