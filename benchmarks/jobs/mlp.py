"""Exact greedy labels of networks, against labels sought by gradient descent in PyTorch."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import last_jax as last
from benchmarks import equality, harness, ours, problems
from benchmarks.baselines import BATCHED, torch_mlp, torch_tools
from benchmarks.baselines.base import thread_word
from benchmarks.jobs.base import Job, Settings
from benchmarks.jobs.teaching import UNIT
from benchmarks.problems import MlpProblem, MlpSizes
from benchmarks.records import Measurement, Target

_TINY = MlpSizes(students=3, steps=2, pool=20, hidden=6)
_SLACK = 1e-9  # By how much more a student may be away from the target with our label than with the baseline's.


@dataclasses.dataclass(frozen=True)
class MlpTeaching:
  """Greedy teaching on the simplex; attributes as of `Teaching`."""

  name: str
  description: str
  sizes: MlpSizes
  target: Target

  def measure(self, settings: Settings) -> list[Measurement]:
    """Ours against batched PyTorch, if there is one."""
    problem = problems.draw_mlp(_TINY if settings.tiny else self.sizes, settings.seed)
    baselines = [] if torch_tools.missing() else [_torch(problem, settings.threads, self.target)]
    mine = harness.Side("last_jax", teach(problem), units=problem.sizes.work)
    about = problems.about(problem, self.description, descent_steps=torch_mlp.DESCENT_STEPS)
    return [settings.measure(self.name, about, UNIT, mine, baselines)]


def teach(problem: MlpProblem, init: Any = None, **settings: Any) -> Callable[[], last.Result]:
  """`last.teach_many` for the students of a problem, from its start unless given."""
  sizes = problem.sizes
  learner = last.learners.mlp(
    (sizes.features, sizes.hidden, sizes.classes),
    learning_rate=problem.learning_rate,
    weight_decay=problem.weight_decay,
  )
  teacher = last.teachers.greedy(last.constraints.simplex())
  given = ours.on_devices(problem, problem.target, problem.init if init is None else init)
  return lambda: given.teach(learner, teacher, **{"steps": sizes.steps} | settings)


def _torch(problem: MlpProblem, threads: int | None, target: Target) -> harness.Baseline:
  network = torch_mlp.Network(problem)

  def side(count: int) -> harness.Side:
    name = f"PyTorch, {torch_mlp.DESCENT_STEPS} gradient steps on the label, {thread_word(count)}"
    run = torch_tools.with_threads(count, network.teach)
    check = torch_tools.with_threads(count, lambda: _check(problem))
    return harness.Side(name, run, check, problem.sizes.work)

  return harness.Baseline(BATCHED, [side(count) for count in torch_tools.threads_to_try(threads)], target)


def _check(problem: MlpProblem) -> dict[str, float]:
  """Differences, in float64, of a step from where students start, and of one from where they are at the end."""
  timed = teach(problem)()
  assert timed.distance is not None, "distances are recorded"
  end = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), timed.params)
  exact = problem.astype(np.float64)
  differences: dict[str, float] = {}
  with jax.enable_x64(True):
    for place, init in (("start", exact.init), ("end", end)):
      found = check_step(exact, init)
      differences |= {f"{name} ({place})": value for name, value in found.items()}
    first = teach(exact, steps=1, lessons=True)().distance
  # What is timed, in float32, does the same but for rounding.
  name = "distance after a step (float32)"
  return differences | equality.check_equal({name: timed.distance[:, :2]}, {name: first}, {name: equality.FLOAT32})


def check_step(problem: MlpProblem, init: Any) -> dict[str, float]:
  """Whether with our label students come at least as near as with the baseline's, and a step is the same for both.

  Raises:
    ResultsDiffer: where not.
  """
  import torch

  result = teach(problem, init, steps=1, lessons=True)()
  assert result.lessons is not None, "lessons were asked for"
  assert result.distance is not None, "distances are recorded"
  index = torch.tensor(np.asarray(result.lessons.index[:, 0, 0], np.int64))
  label = torch.tensor(np.asarray(result.lessons.label[:, 0, 0]))
  network, before = torch_mlp.Network(problem), torch_mlp.layers_of(init)
  sought = network.distance(network.learn(before, index, network.seek_labels(before, index))).numpy()
  differences = equality.check_not_above("distance", np.asarray(result.distance[:, -1]), sought, _SLACK)
  theirs = network.learn(before, index, label)._asdict()
  mine = torch_mlp.layers_of(result.params)._asdict()
  return differences | equality.check_equal(mine, theirs, dict.fromkeys(mine, equality.FLOAT64))


JOBS: tuple[Job, ...] = (
  MlpTeaching(
    "mlp",
    "greedy labels on the simplex, exact, for networks with a hidden layer, against gradient descent on the label",
    MlpSizes(students=100, steps=50),
    Target(10.0),
  ),
)
