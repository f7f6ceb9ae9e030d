"""The jobs: each a teaching problem, our way of solving it, and the baseline's."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import last_jax as last
from benchmarks import harness, problems, torch_baseline
from benchmarks.problems import Problem, Sizes

# In float64 both sides must agree to the last digits but a few: they teach the same. In float32, as timed, sums in
# another order differ by rounding; where two examples are equally good but for that, IMT may choose the one or the
# other, and that student then goes another way.
FLOAT64 = harness.Tolerance(relative=1e-9, absolute=1e-9)
FLOAT32 = harness.Tolerance(relative=5e-4, absolute=5e-4)
FLOAT32_BUT_TIES = dataclasses.replace(FLOAT32, share=0.9)


@dataclasses.dataclass(frozen=True)
class Job:
  """Something to be timed.

  Attributes:
    name: what `--suite` calls it.
    description: one line, for `--help` and the JSON file.
    sizes: what it is timed at.
    teacher: makes our teacher.
    baseline: teaches in PyTorch.
    target_ratio: how many times as fast as the baseline we mean to be.
    float32: how far the timed results may be apart.
  """

  name: str
  description: str
  sizes: Sizes
  teacher: Callable[[], last.teachers.Teacher]
  baseline: torch_baseline.Teach
  target_ratio: float | None = None
  float32: harness.Tolerance = FLOAT32


TINY = Sizes(students=8, steps=20, pool=50)

JOBS: dict[str, Job] = {
  job.name: job
  for job in (
    Job(
      "greedy",
      "greedy labels on the simplex, logistic students, the distance recorded at every step",
      Sizes(students=1000, steps=1000),
      lambda: last.teachers.greedy(last.constraints.simplex()),
      torch_baseline.greedy,
      target_ratio=3.0,
    ),
    Job(
      "imt",
      "the best example of the pool at every step (IMT), logistic students, the distance recorded at every step",
      Sizes(students=100, steps=200),
      last.teachers.imt,
      torch_baseline.imt,
      target_ratio=3.0,
      float32=FLOAT32_BUT_TIES,
    ),
    Job(
      "sgd",
      "random examples with their ground truth, logistic students, the distance recorded at every step",
      Sizes(students=1000, steps=1000),
      last.teachers.sgd,
      torch_baseline.sgd,
    ),
  )
}


def run(
  job: Job,
  sizes: Sizes | None = None,
  *,
  seed: int = 0,
  repetitions: int = 7,
  against_torch: bool = True,
  threads: int | None = None,
  timer: harness.Timer = time.perf_counter,
) -> harness.Comparison:
  """Times a job, against batched eager PyTorch if wanted.

  Args:
    job: one of `JOBS`.
    sizes: other sizes than the job's own.
    seed: of the problem and of what is proposed.
    repetitions: how many timed calls of each side.
    against_torch: False: only our side is timed, and nothing is checked.
    threads: how many PyTorch uses. Unless given, both as many as it uses by default and one, and the faster counts:
      small operations, or cores that others use as well, make more threads slower.
    timer: seconds, from any start.

  Raises:
    harness.ResultsDiffer: where both sides do not teach the same.
  """
  problem = problems.draw(job.sizes if sizes is None else sizes, seed)
  about = {
    "description": job.description,
    "sizes": dataclasses.asdict(problem.sizes),
    "seed": seed,
    "learning_rate": problem.learning_rate,
    "weight_decay": problem.weight_decay,
    "dtype": str(problem.x.dtype),
  }
  return harness.compare(
    job.name,
    about,
    our_side(job, problem),
    torch_sides(job, problem, threads) if against_torch else [],
    tolerance_of(job),
    repetitions=repetitions,
    target_ratio=job.target_ratio,
    timer=timer,
  )


def our_side(job: Job, problem: Problem) -> harness.Side:
  """`last.teach_many`, as a user calls it: its checks and its own random proposals are timed with it."""
  teach = _teach(job.teacher(), problem, metrics=("distance",))
  return harness.Side("last_jax", teach, lambda: _in_both_precisions(problem, lambda p: _our_outcome(job, p)))


def _our_outcome(job: Job, problem: Problem) -> dict[str, np.ndarray]:
  result = _teach(job.teacher(), problem, metrics=("distance",))()
  params = np.concatenate([result.params["weights"][..., 0], result.params["bias"]], 1)
  return {"distance": np.asarray(result.distance), "params": params}


def _torch_outcome(job: Job, problem: Problem) -> dict[str, np.ndarray]:
  import torch

  result = job.baseline(torch_baseline.task_of(problem), torch.tensor(our_proposals(problem)))
  return {"distance": result.distance.numpy().T, "params": result.params.numpy()}


def _in_both_precisions(problem: Problem, outcome: Callable[[Problem], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
  as_timed = outcome(problem)
  with jax.enable_x64(True):
    exact = outcome(problem.astype(np.float64))
  return as_timed | {f"{name} (float64)": value for name, value in exact.items()}


def tolerance_of(job: Job) -> dict[str, harness.Tolerance]:
  """How far the results may be apart, by name."""
  names = ("distance", "params")
  return dict.fromkeys(names, job.float32) | {f"{name} (float64)": FLOAT64 for name in names}


def torch_sides(job: Job, problem: Problem, threads: int | None = None) -> list[harness.Side]:
  """The baseline, for every number of threads to try, as in `run`.

  It is timed drawing its own proposals, and checked on ours: only then is every step the same.
  """
  task = torch_baseline.task_of(problem)

  def teach() -> torch_baseline.Outcome:
    return job.baseline(task, torch_baseline.draw_proposals(task, problem.sizes.steps))

  def side(count: int) -> harness.Side:
    outcome = torch_baseline.with_threads(count, lambda: _in_both_precisions(problem, lambda p: _torch_outcome(job, p)))
    name = f"PyTorch, batched eager, {count} thread{'' if count == 1 else 's'}"
    return harness.Side(name, torch_baseline.with_threads(count, teach), outcome)

  return [side(count) for count in (torch_baseline.threads_to_try() if threads is None else (threads,))]


def our_lessons(job: Job, problem: Problem) -> last.Lessons:
  """What our side shows, with a leading [students] axis."""
  lessons = _teach(job.teacher(), problem, metrics=(), lessons=True)().lessons
  assert lessons is not None, "lessons were asked for"
  return lessons


def our_proposals(problem: Problem) -> np.ndarray:
  """The examples that `last.teach_many` proposes, `[steps, S]`: those that the random teacher shows."""
  return np.asarray(our_lessons(JOBS["sgd"], problem).index[:, :, 0], np.int64).T.copy()


def _teach(teacher: last.teachers.Teacher, problem: Problem, **settings: Any) -> Callable[[], last.Result]:
  """A call of `last.teach_many`; its arrays are on the device already."""
  sizes = problem.sizes
  learner = last.learners.logistic(
    sizes.features, learning_rate=problem.learning_rate, weight_decay=problem.weight_decay
  )
  pool = last.Pool(problem.x, problem.y)
  keys = jax.random.split(jax.random.key(problem.seed), sizes.students)
  target = _params(problem.target_weights, problem.target_bias)
  init = _params(problem.init_weights, problem.init_bias)
  keys, init = split_over_devices((keys, init), sizes.students)
  settings |= {"target": target, "init": init, "steps": sizes.steps, "batch_size": 1, "record_every": 1}
  return lambda: last.teach_many(keys, learner, teacher, pool, **settings)


def _params(weights: np.ndarray, bias: np.ndarray) -> last.types.Params:
  return {"weights": jnp.asarray(weights)[..., None], "bias": jnp.asarray(bias)[..., None]}


def split_over_devices(tree: Any, count: int) -> Any:
  """Arrays with a leading axis, a share of it to each local device: programs run where their arguments are."""
  devices = jax.local_devices()
  if len(devices) == 1 or count % len(devices):
    return tree
  mesh = jax.sharding.Mesh(np.array(devices), ("students",))
  return jax.device_put(tree, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("students")))
