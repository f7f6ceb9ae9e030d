"""Greedy teaching: least squares, logistic regression and a network, taught by SGD, IMT, LAST and mixed teaching."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from last_jax import constraints, data, learners
from last_jax.base import Records
from last_jax.problem import Problem
from last_jax.reproduction import methods, problems, results, seeds
from last_jax.reproduction.claims import AS_FAST, Claim, Comparison
from last_jax.reproduction.config import Figure, Method, Outcome, Size, Tell
from last_jax.reproduction.methods import select
from last_jax.reproduction.problems import WEIGHT_DECAY
from last_jax.tools.charts import Chart, Level

BY_FAR = np.log10(2.0)  # The paper's "by far" and "much cheaper": at least twice.
LEVEL = np.log10(1.1)  # "Level with": at most a tenth farther.


def _choosing() -> list[Method]:
  """Return LAST and mixed teaching with one-hot, with soft and with any labels."""
  sets = (constraints.one_hot(), constraints.simplex(), constraints.none())
  return [make(each) for make in (methods.greedy, methods.mixed) for each in sets]


def _charts(
  size: Size,
  problem: Problem,
  ways: Sequence[Method],
  records: Mapping[str, Records],
  seconds: Mapping[str, float],
  *,
  x_log: bool,
) -> tuple[Chart, ...]:
  """Return one chart for each metric, with the target's own value and, for distances, the limit of rounding."""
  each_seed = problems.split(problem)
  objectives = [each.learner.objective(each.target, each.pool.x, each.truth) for each in each_seed]
  floor = Level(f"float{8 * problem.truth.dtype.itemsize} rounding", problems.rounding_floor(problem), floor=True)
  levels = {"distance": [floor], "objective": [Level("target", float(np.mean(objectives)))]}
  if problem.learner.loss.classification:
    accuracies = [
      each.learner.accuracy(each.target, each.test.x, each.test_truth)
      for each in each_seed
      if each.test is not None and each.test_truth is not None
    ]
    levels["accuracy"] = [Level("target", float(np.mean(accuracies)))]
  label = f"seconds once compiled, {size.seeds} students at once"
  return results.charts(ways, records, {label: seconds}, levels=levels, x_log=x_log)


# --- Least squares.


def run_lsr(size: Size, tell: Tell) -> Outcome:
  """Labels within r of the truth, and any labels."""
  learner = learners.least_squares(4, learning_rate=1e-3, weight_decay=WEIGHT_DECAY)
  problem = problems.fit_each(learner, [data.regression(seed) for seed in size.numbers])
  sets = [*(constraints.magnitude(radius) for radius in (0.5, 1.0, 2.0)), constraints.none()]
  sgd, imt, last = methods.sgd(), methods.imt(), [methods.greedy(each) for each in sets]
  mixed = [methods.mixed(each) for each in sets[-2:]]
  ways = [sgd, imt, *last, *mixed]
  steps = size.pick(500, 10_000, 20_000)
  students = seeds.draw_students(learner.init, size.numbers)
  records, seconds = seeds.teach_all(problem, students, ways, [(steps, max(1, steps // 1000))], tell)
  distances = results.Distances(records, problems.rounding_floor(problem))
  claims = (
    Claim(
      "Labels that may stray farther from the truth teach faster: r = 0.5, 1, 2, none.",
      [distances.nearer(more, less) for less, more in itertools.pairwise(last)],
    ),
    Claim("LAST with r = 2 is ahead of IMT.", [distances.nearer(last[2], imt)], because=_LSR_IMT),
    Claim(
      "Mixed teaching beats IMT, and LAST with the same labels.",
      [distances.nearer(each, imt) for each in mixed]
      + [distances.nearer(each, select(last, "greedy", variant=each.variant)[0]) for each in mixed],
    ),
  )
  settings = problems.describe(problem, size, steps) | {"batch size": 1}
  return Outcome(settings, _charts(size, problem, ways, records, seconds, x_log=True), claims)


_LSR_IMT = (
  "IMT picks the example with the largest useful step out of the whole pool, so it moves several times as far in each "
  "of the first iterations; LAST with r = 2 catches up once random examples are enough, and reaches the rounding "
  "floor first. Over the run as a whole, decades of iterations counting alike, the first counts."
)


# --- Logistic regression.


def run_half_moons(size: Size, tell: Tell) -> Outcome:
  """Two features."""
  sets = [data.half_moons(seed) for seed in size.numbers]
  problem = problems.fit_each(_logistic(2, 1e-4), sets)
  return _run_logistic(size, tell, problem, size.pick(1_000, 50_000, 300_000), beats_imt=False)


def run_gaussian(size: Size, tell: Tell) -> Outcome:
  """Four features, much noise."""
  sets = [data.gaussian(seed) for seed in size.numbers]
  problem = problems.fit_each(_logistic(4, 1e-4), sets)
  return _run_logistic(size, tell, problem, size.pick(1_000, 50_000, 100_000), beats_imt=True)


def run_mnist_35(size: Size, tell: Tell) -> Outcome:
  """24 random features of images."""
  problem = problems.fit(_logistic(24, 1e-3), data.mnist((3, 5), folder=size.mnist_folder))
  return _run_logistic(size, tell, problem, size.pick(500, 20_000, 20_000), beats_imt=False)


def _logistic(num_features: int, learning_rate: float) -> learners.Learner:
  return learners.logistic(num_features, learning_rate=learning_rate, weight_decay=WEIGHT_DECAY)


def _run_logistic(size: Size, tell: Tell, problem: Problem, steps: int, *, beats_imt: bool) -> Outcome:
  # Frequent records, to show how LAST without a constraint oscillates; in a long run, at the beginning only.
  schedule = size.pick([(steps, 1)], [(steps, steps // 5_000)], [(1_000, 5), (steps - 1_000, steps // 500)])
  sgd, imt, choosing = methods.sgd(), methods.imt(), _choosing()
  joint = methods.mixed(constraints.none(), joint=True)
  ways = [sgd, imt, *choosing, joint]
  students = seeds.draw_students(problem.learner.init, size.numbers)
  records, seconds = seeds.teach_all(problem, students, ways, schedule, tell)
  distances = results.Distances(records, problems.rounding_floor(problem))
  (free,), (free_mixed,) = (select(choosing, family, variant="none") for family in ("greedy", "mixed"))
  claims = (
    _every_last_beats_sgd(distances, ways),
    Claim(
      "Mixed teaching (without a constraint) is the best of all.",
      [distances.nearer(free_mixed, each) for each in select(ways, "sgd", "imt", "greedy")],
      because=_ALTERNATING,
    ),
    Claim(
      "Example and label chosen together, without a constraint, are the best of all (not in the paper).",
      [distances.nearer(joint, each) for each in ways if each is not joint],
    ),
    Claim("LAST without a constraint is ahead of IMT.", [distances.nearer(free, imt)], because=_KACZMARZ)
    if beats_imt
    else Claim(
      "LAST without a constraint is level with IMT (at most a tenth farther from the target) or ahead.",
      [distances.nearer(free, imt, -LEVEL)],
      because=_KACZMARZ,
    ),
  )
  settings = problems.describe(problem, size, steps) | {"batch size": 1}
  return Outcome(settings, _charts(size, problem, ways, records, seconds, x_log=True), claims)


def _every_last_beats_sgd(distances: results.Distances, ways: Sequence[Method]) -> Claim:
  (sgd,) = select(ways, "sgd")
  return Claim("Every LAST beats SGD.", [distances.nearer(each, sgd) for each in select(ways, "greedy")])


_KACZMARZ = (
  "Without a constraint LAST projects the student's error away from one random example after the other (randomized "
  "Kaczmarz). That is over in a few dozen steps where examples differ, as in two or four dimensions, but slow where "
  "all resemble each other: random features of images are sums of ink and share one large direction. IMT seeks out "
  "the examples that differ."
)


_ALTERNATING = (
  "The example is chosen for the effect of its true label in one small step, which is large for any long example, so "
  "the same few are shown again and again; a free label could do as much with any of them. Random examples, which "
  "point in more directions, suit free labels better. Chosen together with the label (the next claim), examples help "
  "again."
)


# --- A network.


def run_mlp_35(size: Size, tell: Tell) -> Outcome:
  """3 against 5."""
  return _run_mlp(size, tell, (3, 5))


def run_mlp_79(size: Size, tell: Tell) -> Outcome:
  """7 against 9."""
  return _run_mlp(size, tell, (7, 9))


def _run_mlp(size: Size, tell: Tell, digits: Sequence[int]) -> Outcome:
  tell("fitting the target", 0.0)
  problem, init_fn = problems.network_on_two_digits(digits, size.pick(20, 500, 500), size.mnist_folder)
  students = seeds.draw_students(init_fn, size.numbers)
  steps = size.pick(50, 300, 2_000)
  sgd, imt, choosing = methods.sgd(), methods.imt(), _choosing()
  ways = [sgd, imt, *choosing]
  records, seconds = seeds.teach_all(problem, students, ways, [(steps, max(1, steps // 100))], tell)
  distances = results.Distances(records, problems.rounding_floor(problem))
  free = select(choosing, "greedy", "mixed", variant="none")
  claims = (
    _every_last_beats_sgd(distances, ways),
    Claim(
      "LAST and mixed teaching without a constraint beat IMT by far (at least twice as near).",
      [distances.nearer(each, imt, BY_FAR) for each in free],
      because=_FAR,
    ),
    Claim(
      "LAST and mixed teaching without a constraint are ahead of IMT after the last step.",
      [distances.nearer_at_end(each, imt) for each in free],
    ),
    *_step_is_cheaper(size, tell, problem, students, free[0], imt),
  )
  settings = problems.describe(problem, size, steps) | {
    "batch size": 1, "learner": "24–32–1, ReLU", "students start": "around the target, N(0, 0.1²)",
  }  # fmt: skip
  return Outcome(settings, _charts(size, problem, ways, records, seconds, x_log=False), claims)


def _step_is_cheaper(
  size: Size, tell: Tell, problem: Problem, students: seeds.Students, last: Method, imt: Method
) -> list[Claim]:
  """Compare the time of a step of one student and, at full size, of all students."""
  tell("timing", 0.95)
  groups = {"one student": students.first()}
  groups |= {f"{size.seeds} students at once": students} if size.name == "full" else {}
  claims = []
  for who, group in groups.items():
    seconds = seeds.time_steps(problem, group, (last, imt), size.pick(5, 20, 50))
    ratio = np.log10(seconds[imt.key] / seconds[last.key])
    claims.append(
      Claim(
        f"A step of LAST is much cheaper (at least twice) than one of IMT, {who}.",
        [Comparison(f"{last.name} against {imt.name}", ratio, AS_FAST, BY_FAR)],
        remark=f"Over {len(ratio)} runs in turns, once compiled, nothing recorded, in place of seeds.",
      )
    )
  return claims


_FAR = (
  "The distance is over all 833 parameters, and a step changes it along one example's gradient alone: within the run "
  "no method covers more than a fraction of the way, so none can be twice as near as another. IMT is faster at first "
  "and then stops: no true label of any example leads nearer. See the next claim."
)


_CURVES = "objective, distance to w* and test accuracy"
FIGURES = (
  Figure(
    "lsr",
    "Least squares",
    "Figure 7",
    "Linear regression in four dimensions: objective and distance to w*. r is how far a label may be from the truth.",
    run_lsr,
    3.0,
  ),
  Figure(
    "lr_half_moons",
    "Logistic regression on half moons",
    "Figures 8 and 14",
    f"Two classes in the plane: {_CURVES}.",
    run_half_moons,
    4.0,
  ),
  Figure(
    "lr_gaussian",
    "Logistic regression on Gaussian clusters",
    "Figure 13",
    f"Two overlapping clusters in four dimensions: {_CURVES}.",
    run_gaussian,
    4.0,
  ),
  Figure(
    "lr_mnist_35",
    "Logistic regression on MNIST 3/5",
    "Figure 8",
    f"24 random features of images: {_CURVES}.",
    run_mnist_35,
    4.0,
  ),
  Figure(
    "mlp_mnist_35",
    "A network on MNIST 3/5",
    "Figure 10",
    f"A network with 32 hidden units: {_CURVES}.",
    run_mlp_35,
    6.0,
  ),
  Figure(
    "mlp_mnist_79",
    "A network on MNIST 7/9",
    "Figure 15",
    f"The same on digits that are harder to tell apart: {_CURVES}.",
    run_mlp_79,
    6.0,
  ),
)
