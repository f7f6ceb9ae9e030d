"""Greedy teaching of a network: SGD, IMT, LAST and mixed teaching, toward a target around or beyond the start."""

from collections.abc import Callable, Sequence

import jax
import numpy as np

from last_jax import teachers, teaching
from last_jax.base import Key, Params
from last_jax.problem import Problem
from last_jax.reproduction import methods, problems, results, seeds
from last_jax.reproduction.claims import AS_FAST, Claim, Comparison, Reading
from last_jax.reproduction.config import Figure, Method, Outcome, Size, Tell
from last_jax.reproduction.methods import select
from last_jax.reproduction.seeds import Students

BY_FAR = np.log10(2.0)  # The paper's "by far" and "much cheaper": at least twice.


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
  schedule = [(steps, max(1, steps // 100))]
  sgd, imt, choosing = methods.sgd(), methods.imt(), methods.choosing()
  ways = [sgd, imt, *choosing]
  records, seconds = seeds.teach_all(problem, students, ways, schedule, lambda text, share: tell(text, 0.7 * share))
  distances = results.compare(problem, records)
  free = select(choosing, "greedy", "mixed", variant="none")
  charts = results.target_charts(size, problem, ways, records, seconds, x_log=False)

  begins = seeds.draw_students(problem.learner.init, size.numbers)
  fewer, own_distances = [sgd, imt, *free], {}
  # The claims are judged at full size only: one of the two is enough to look at in a shorter run.
  for name in size.pick(_OWN_STARTS, dict(list(_OWN_STARTS.items())[:1]), _OWN_STARTS):
    own = from_own_start(problem, begins, size.pick(200, _OWN_STARTS[name], _OWN_STARTS[name]))
    records, _ = seeds.teach_all(own, begins, fewer, schedule, lambda text, share: tell(text, 0.7 + 0.2 * share))
    own_distances[name] = results.compare(own, records)
    charts += results.charts(fewer, records, {}, suffix=f", {name}")

  def own_starts(compare: Callable[[results.Distances], list[Comparison]]) -> list[Reading]:
    return [
      Reading(name, f"w* trained by {_OWN_STARTS[name]:,} steps of SGD from the student's own start", compare(each))
      for name, each in own_distances.items()
    ]

  needed = "" if size.name == "full" else "full"  # Both claims are about the end of a run.
  claims = (
    results.every_last_beats_sgd(distances, ways),
    Claim(
      "LAST and mixed teaching without a constraint beat IMT by far (at least twice as near).",
      [each for way in free for each in distances.beats(way, imt, BY_FAR)],
      because=_FAR,
      readings=own_starts(lambda own: [each for way in free for each in own.beats(way, imt, BY_FAR)]),
      size=needed,
    ),
    Claim(
      "LAST and mixed teaching without a constraint are ahead of IMT after the last step.",
      [distances.nearer_at_end(each, imt) for each in free],
      readings=own_starts(lambda own: [own.nearer_at_end(each, imt) for each in free]),
      size=needed,
    ),
    *_step_is_cheaper(size, tell, problem, students, free[0], imt),
  )
  settings = problems.describe(problem, size, steps) | {
    "batch size": 1, "learner": "24–32–1, ReLU", "students start": "around the target, N(0, 0.1²)",
    "own_start": "w* is where SGD ends that begins at the student's own random start",
  }  # fmt: skip
  return Outcome(settings, charts, claims)


# By reading, the steps of SGD: after 20,000 its objective is about 0.1, after 100,000 nearly that of a fitted network.
_OWN_STARTS = {"own_start": 20_000, "own_start_long": 100_000}


def from_own_start(problem: Problem, students: Students, steps: int) -> Problem:
  """Return the problem of each seed, with a target that SGD finds from the seed's own start.

  Args:
    problem: shared by all seeds. Its target is not used.
    students: one of each seed, which start where SGD does. SGD sees other random examples than they do.
    steps: of SGD, each of one example, at the learner's own rate.
  """
  untaught, sgd = problem.without_target(), teachers.sgd()

  def train(key: Key, params: Params, problem: Problem) -> Params:
    state = teaching.init(jax.random.fold_in(key, 1), problem, sgd, params=params)
    return teaching.run(state, problem, sgd, steps=steps, record_every=steps, metrics=())[0].student.params

  begins = jax.tree.map(lambda leaf: leaf[:, 0], students)
  targets = jax.jit(jax.vmap(train, (0, 0, None)))(begins.keys, begins.params, untaught)
  each_seed = [jax.tree.map(lambda leaf, seed=seed: leaf[seed], targets) for seed in range(len(begins.keys))]
  return problems.stack([Problem(problem.learner, problem.pool, target=w, test=problem.test) for w in each_seed])


def _step_is_cheaper(
  size: Size, tell: Tell, problem: Problem, students: Students, last: Method, imt: Method
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
