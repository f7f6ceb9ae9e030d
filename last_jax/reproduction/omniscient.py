"""Learned teachers that know the target: a softmax learner, a network, and which labels policy gradient may choose."""

from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from last_jax import constraints, fitting
from last_jax.base import Params, Records
from last_jax.problem import Problem
from last_jax.reproduction import methods, problems, results, trained
from last_jax.reproduction.claims import Claim, Comparison, Reading
from last_jax.reproduction.config import Figure, Method, Outcome, Size, Tell
from last_jax.reproduction.methods import select
from last_jax.reproduction.problems import InitFn
from last_jax.reproduction.results import Distances
from last_jax.reproduction.seeds import Students, time_steps
from last_jax.tools.charts import Chart, Level


def run_omniscient_linear(size: Size, tell: Tell) -> Outcome:
  """All kinds of teachers by iteration and by wall time, at two batch sizes."""
  problem, init_fn = problems.softmax_on_two_digits(size)
  recipes = [
    trained.unrolled(size.pick(2, 300, 1000)),
    trained.unrolled(size.pick(2, 60, 1000), horizon=100, reset=0.8),
    trained.policy_gradient(size.pick(2, 150, 1000)),
  ]
  if size.name != "usual":  # Its claims are judged at full size only.
    many = trained.policy_gradient(size.pick(2, 150, 1000), students=size.pick(4, 50, 50))
    recipes.append(many._replace(name="policy gradient, 50 students", variant="policy gradient, 50 students"))
  learned = trained.train_all(problem, init_fn, recipes, size, tell)
  students = trained.draw_students(init_fn, size)
  levels = {"distance": [Level("no label teaches this", _unreachable(problem, students), floor=True)]}
  charts: list[Chart] = []
  claims: list[Claim] = []
  for place, batch_size in enumerate(trained.batch_sizes(size)):
    ways = [methods.sgd(), methods.imt(), methods.greedy(constraints.simplex()), *learned]
    if batch_size > 1:  # A joint step of 128 soft labels is a problem of 128 unknowns: LAST would take too long.
      ways = select(ways, "sgd", "imt", "learned")
    records, times = _evaluate(problem, students, ways, size, _halved(tell, 0.8 + 0.1 * place), batch_size)
    axes = {f"seconds once compiled, {who}": seconds for who, seconds in times.items()}
    charts += results.charts(ways, records, axes, levels=levels, suffix=f", batch size {batch_size}")
    distances, larger = results.compare_students(problem, records), {}
    if size.mnist_folder is not None:
      whole, _ = problems.softmax_on_two_digits(size, per_digit=None)
      whole = Problem(problem.learner, whole.pool, target=problem.target, test=problem.test)
      usual = [each for each in ways if each not in learned[3:]]
      records, own_times = _evaluate(whole, students, usual, size, _halved(tell, 0.85 + 0.1 * place), batch_size)
      more_distances = Distances(records, problems.rounding_floor(problem))
      larger = {who: _imt_last(more_distances, usual, seconds, whole) for who, seconds in own_times.items()}
    claims += _omniscient_claims(distances, times, ways, f", batch size {batch_size}", size, larger)
  more = {"IMT": "one example in each step, at both batch sizes", "LAST": "at batch size 1 only"}
  return Outcome(trained.describe(problem, students, size, recipes) | more, tuple(charts), tuple(claims))


def _evaluate(
  problem: Problem, students: Students, ways: Sequence[Method], size: Size, tell: Tell, batch_size: int
) -> tuple[dict[str, Records], dict[str, Mapping[str, float]]]:
  """Return the records of each method, and by "one student" and all of them, its seconds per step."""
  records, together = trained.evaluate(
    problem, students, ways, size, tell, 0.0, batch_size=batch_size, metrics=("distance",), probe=_identity,
    runs=3 if batch_size == 1 else 1,
  )  # fmt: skip
  times: dict[str, Mapping[str, float]] = {f"{students.keys.size} students at once": together}
  if batch_size == 1 or size.name == "full":
    times = {"one student": _time_one(problem, students, ways, size, batch_size)} | times
  return records, times


def _halved(tell: Tell, begin: float) -> Tell:
  """Return `tell` for an evaluation that tells of shares from 0 to 0.1, which are a twentieth of the figure's work."""
  return lambda text, share: tell(text, begin + share / 2)


def _identity(params: Params) -> Params:
  return params


def _imt_last(
  distances: Distances, ways: Sequence[Method], seconds: Mapping[str, float], problem: Problem
) -> list[Reading]:
  (imt,) = select(ways, "imt")
  comparisons = [distances.nearer_by_time(seconds, each, imt) for each in ways if each is not imt]
  return [Reading("full_pool", f"all {len(problem.pool):,} images of the digits", comparisons)]


def _unreachable(problem: Problem, students: Students) -> float:
  """Return the part of the distance that no labels change: the mean over the first students of four seeds."""
  starts = [jax.tree.map(lambda leaf, seed=seed: leaf[seed, 0], students.params) for seed in range(len(students.keys))]
  learner, x = problem.learner, problem.pool.x
  return float(np.mean([fitting.unreachable_distance(learner, start, problem.target, x) for start in starts[:4]]))


def _time_one(
  problem: Problem, students: Students, ways: Sequence[Method], size: Size, batch_size: int
) -> dict[str, float]:
  """Return the median seconds per step of one student, by method."""
  first = [
    each._replace(teacher=jax.tree.map(lambda leaf: leaf[:1], each.teacher)) if each.family == "learned" else each
    for each in ways
  ]
  seconds = time_steps(problem, students.first(), first, size.pick(3, 300, 300), batch_size)
  return {key: float(np.median(values)) for key, values in seconds.items()}


def _omniscient_claims(
  distances: Distances,
  times: Mapping[str, Mapping[str, float]],
  ways: Sequence[Method],
  suffix: str,
  size: Size,
  larger: Mapping[str, Sequence[Reading]],
) -> list[Claim]:
  """Return the claims at one batch size; `larger`: readings of the claims by time, by the same keys as `times`."""
  (sgd,), (imt,) = select(ways, "sgd"), select(ways, "imt")
  unroll_20, unroll_100, gradient, *many = select(ways, "learned")
  learned = unroll_20, unroll_100, gradient
  others = [each for each in ways if each is not imt and each not in many]
  remark, needed = trained.remark_on_training(size), trained.size_needed(size)

  def all_beat(pairs: Sequence[tuple[Method, Method]]) -> list[Comparison]:
    return [comparison for pair in pairs for comparison in distances.beats(*pair)]

  return [
    Claim(
      f"Both kinds of learned teachers beat SGD{suffix}.",
      all_beat([(each, sgd) for each in learned]),
      remark,
      size=needed,
    ),
    Claim(f"IMT is first by iteration{suffix}.", all_beat([(imt, each) for each in others])),
    *(
      Claim(
        f"IMT is last by time ({who}){suffix}.",
        [distances.nearer_by_time(seconds, each, imt) for each in others],
        remark="Wall time excludes compiling.",
        because=_BY_TIME,
        readings=larger.get(who, ()),
      )
      for who, seconds in times.items()
    ),
    Claim(f"Unrolling 100 steps is better than 20{suffix}.", all_beat([(unroll_100, unroll_20)]), remark, size=needed),
    Claim(
      f"Policy gradient is ahead of unrolling{suffix}.",
      all_beat([(gradient, unroll_20), (gradient, unroll_100)]),
      remark,
      _VARIANCE,
      [
        Reading(
          "50 students", "50 students in each episode in place of 10", all_beat([(each, unroll_20), (each, unroll_100)])
        )
        for each in many
      ],
      needed,
    ),
  ]


_BY_TIME = (
  "All examples of the pool are scored by one matrix product, so with 1,000 images a step of IMT takes a few times as "
  "long as one of SGD, not hundreds of times; where it is far ahead by iteration, it stays ahead by time. The size of "
  "the pool and the machine decide: the reading full_pool (with --mnist_folder) has all images."
)
_VARIANCE = (
  "The variance of the gradient decides: it is estimated from ten students in each episode, where unrolling has it "
  "exactly. The reading with 50 students shows how much of it that takes away."
)


def run_omniscient_mlp(size: Size, tell: Tell) -> Outcome:
  """A network as the student, five digits."""
  tell("fitting the target", 0.0)
  problem, init_fn = problems.network_on_five_digits(size)
  recipes, text = [trained.unrolled(size.pick(2, 100, 2000))], "Unrolling beats SGD"
  return _beside_sgd(
    size, tell, problem, init_fn, recipes, text, lambda distances, sgd, unrolling: distances.beats(unrolling, sgd)
  )


def run_action_space(size: Size, tell: Tell) -> Outcome:
  """Policy gradient with five actions, and with their doubles as well."""
  problem, init_fn = problems.softmax_on_two_digits(size)
  episodes = size.pick(2, 150, 1000)
  recipes = [trained.policy_gradient(episodes, five=True), trained.policy_gradient(episodes)]
  text = "Augmented actions are better than plain ones"
  return _beside_sgd(
    size, tell, problem, init_fn, recipes, text, lambda distances, _, five, ten: distances.beats(ten, five)
  )


def _beside_sgd(
  size: Size,
  tell: Tell,
  problem: Problem,
  init_fn: InitFn,
  recipes: Sequence[trained.Recipe],
  text: str,
  compare: Callable[..., list[Comparison]],
) -> Outcome:
  """Train teachers and evaluate them beside SGD at both batch sizes, with one claim for each.

  Args:
    text: of the claim.
    compare: `(distances, SGD, *trained methods) -> comparisons`.
  """
  ways = [methods.sgd(), *trained.train_all(problem, init_fn, recipes, size, tell)]
  students = trained.draw_students(init_fn, size)
  charts: list[Chart] = []
  claims: list[Claim] = []
  for place, batch_size in enumerate(trained.batch_sizes(size)):
    settings = {"batch_size": batch_size, "metrics": ("distance", "objective", "accuracy")}
    records, _ = trained.evaluate(problem, students, ways, size, tell, 0.8 + 0.1 * place, **settings)
    suffix = f", batch size {batch_size}"
    charts += results.charts(ways, records, {}, suffix=suffix)
    comparisons = compare(results.compare(problem, records), *ways)
    remark, needed = trained.remark_on_training(size), trained.size_needed(size)
    claims.append(Claim(f"{text}{suffix}.", comparisons, remark, size=needed))
  return Outcome(trained.describe(problem, students, size, recipes), tuple(charts), tuple(claims))


FIGURES = (
  Figure(
    "omniscient_linear",
    "Learned teachers: softmax on MNIST 3/5",
    "Figures 12 and 17",
    "Networks trained to teach, beside greedy LAST, IMT and SGD, by iteration and by wall time (choose the x axis). "
    "Part of the distance, marked in the chart, is the same for both classes and cannot be taught by any label.",
    run_omniscient_linear,
    12.0,
  ),
  Figure(
    "omniscient_mlp",
    "Learned teachers: a network on five digits",
    "Figure 18",
    "A network that is taught by another one, trained by unrolling 20 steps.",
    run_omniscient_mlp,
    7.0,
  ),
  Figure(
    "action_space",
    "Which labels policy gradient may choose from",
    "Figure 19",
    "Five labels on the simplex, and the same with their doubles, which make larger steps.",
    run_action_space,
    8.0,
  ),
)
