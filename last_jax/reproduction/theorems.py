"""Proposition 1 and theorems 1 to 3: measured distances beside their bounds, in float64."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import constraints, data, learners, teachers, teaching, theory
from last_jax.base import Params, Teacher
from last_jax.learners import Learner
from last_jax.problem import Problem
from last_jax.reproduction import methods, problems
from last_jax.reproduction.claims import AS_FAST, BELOW, TIMES, Claim, Comparison, Reading, Unit
from last_jax.reproduction.config import Figure, Outcome, Size, Tell
from last_jax.reproduction.seeds import thin_out
from last_jax.teachers.theorems import hessian_examples
from last_jax.tools.charts import Chart, Line
from last_jax.tools.styles import Family, Variant

_RADIUS, _INNER = 1.0, 0.2  # Students start at the first distance; theorem 1 is about those farther than the second.
_NEAR = 1e-12  # The distance that theorem 3 is to reach in ten steps.
_EXPONENTIAL = -np.log10(2.0)  # Exponential all the way: late, the pace is at least half of what it was early.
_FASTER = np.log10(2.0)  # Faster than exponential: late, at least twice. (Quadratic convergence: four times.)

_PLACES_2, _PLACES_3 = 3, 5  # Of theorem 2 and 3 in the palette: no two curves of the figure look the same.

MakeLearner = Callable[..., Learner]


def make_problem(make_learner: MakeLearner, angles: np.ndarray | None = None) -> Problem:
  """Return a problem on which the assumptions hold: examples on the unit circle, labels that the target predicts.

  Args:
    make_learner: `learners.least_squares`, without noise then, or `learners.logistic`, with soft labels.
    angles: of the examples, `[n]`; random ones unless given.
  """
  if angles is None:
    angles = np.random.default_rng(0).uniform(0, 2 * np.pi, 200)
  learner = make_learner(2, learning_rate=1.0, bias=False)
  target = {"weights": jnp.array([[0.6], [0.8]])}
  x = np.stack([np.cos(angles), np.sin(angles)], 1)
  return Problem(learner, theory.interpolating_pool(learner, target, x), target=target)


def constants(problem: Problem, inner_radius: float = 0.0) -> theory.Constants:
  """Return the problem's constants, for students within the radius at which they start."""
  return theory.constants(problem.learner, problem.pool, problem.target, radius=_RADIUS, inner_radius=inner_radius)


def _group(size: Size) -> int:
  return size.pick(3, 20, 20)  # Students of each seed.


def _keys(size: Size, number: int) -> jax.Array:
  """Return a key for each student of each seed, `[seeds * students]`."""
  return jax.random.split(jax.random.fold_in(jax.random.key(number), size.seed), size.seeds * _group(size))


def _teach(
  problem: Problem, teacher: Teacher, size: Size, keys: jax.Array, init: Params, steps: int, batch_size: int = 1
) -> np.ndarray:
  """Return distances `[seeds, students, steps + 1]`."""
  result = teaching.teach_many(
    keys, problem.learner, teacher, problem.pool, target=problem.target, init=init, steps=steps, batch_size=batch_size,
    metrics="distance",
  )  # fmt: skip
  return np.asarray(result.distance).reshape(size.seeds, _group(size), steps + 1)


def measure(problem: Problem, teacher: Teacher, size: Size, steps: int, batch_size: int = 1) -> np.ndarray:
  """Return distances `[seeds, students, steps + 1]` of students that start all around w*, at the same distance."""
  key = jax.random.fold_in(jax.random.key(1), size.seed)
  angles = jax.random.uniform(key, (size.seeds * _group(size),), maxval=2 * np.pi)
  offsets = _RADIUS * jnp.stack([jnp.cos(angles), jnp.sin(angles)], 1)[..., None]
  assert problem.target is not None
  init = {"weights": problem.target["weights"][None] + offsets}
  return _teach(problem, teacher, size, _keys(size, 2), init, steps, batch_size)


def run_theory(size: Size, tell: Tell) -> Outcome:
  """Everything in float64."""
  parts = {
    "proposition 1": _proposition_1, "theorem 1": _theorem_1, "theorem 2": _theorem_2, "theorem 3": _theorem_3,
  }  # fmt: skip
  charts: list[Chart] = []
  claims: list[Claim] = []
  with jax.enable_x64(True):
    for name, part in parts.items():
      tell(name, len(charts) / len(parts))
      chart, found = part(size)
      charts.append(chart)
      claims += found
  settings = {
    "seeds": size.seeds,
    "students of each seed": _group(size),
    "precision": "float64",
    "theorems": "200 examples on the unit circle, labels that the target predicts, students start at distance 1",
    "proposition 1": "MNIST 3/5, logistic regression, learning rate 1e-3, students start at random",
  }
  return Outcome(settings, tuple(charts), tuple(claims))


def _line(name: str, values: np.ndarray, family: Family, variant: Variant) -> Line:
  """Return a curve `[seeds, steps + 1]`."""
  steps = np.arange(values.shape[1])
  shown = thin_out(steps)
  # A logarithmic axis ends a curve at zero, and below the resolution of float64.
  return Line(
    name, np.where(values[:, shown] > 1e-40, values[:, shown], np.nan), {"iteration": steps[shown]}, family, variant
  )


def _bound(name: str, bound: np.ndarray, place: int, size: Size) -> Line:
  """Return the bound `[steps + 1]` of the curve at this place of the chart."""
  return _line(name, np.tile(bound, (size.seeds, 1)), "bound", place)


def _proposition_1(size: Size) -> tuple[Chart, list[Claim]]:
  learner = learners.logistic(24, learning_rate=1e-3, weight_decay=problems.WEIGHT_DECAY)
  problem = problems.fit(learner, data.mnist((3, 5), train_per_digit=size.pick(20, 500, 500)))
  steps, init = size.pick(20, 2_000, 5_000), jax.vmap(learner.init)(_keys(size, 1))
  sgd, last = ways = methods.sgd(), methods.greedy(constraints.simplex())
  squares = {each.key: (_teach(problem, each.teacher, size, _keys(size, 0), init, steps) ** 2).mean(1) for each in ways}
  logs = np.log10(squares[sgd.key]) - np.log10(squares[last.key])
  worst = 1 + int(np.argmin(logs[:, 1:].mean(0)))
  name = f"{sgd.name} against {last.name}, at the step where LAST is worst ({worst})"
  claim = Claim(
    "Proposition 1: LAST is no farther from the target than SGD, in expectation, at every step.",
    [Comparison(name, logs[:, worst], TIMES)],
    remark="Mean squared distances, LAST with soft labels. (The paper's proof compares the two from the same "
    "parameters; after the first step they have different ones.)",
  )
  lines = tuple(_line(each.name, squares[each.key], each.family, each.variant) for each in ways)
  return Chart("Proposition 1: LAST and SGD", "mean of ‖w − w*‖²", lines, True, True), [claim, _premise(problem, size)]


def _premise(problem: Problem, size: Size) -> Claim:
  """Compare students that are equally near, and nearer ones with farther ones, after one step."""
  angles = 2 * np.pi * np.arange(200) / 200
  isotropic = make_problem(learners.least_squares, angles)

  def worst(problem: Problem) -> list[Comparison]:
    assert problem.target is not None
    found = theory.monotonicity(
      problem.learner, problem.pool, problem.target, key=jax.random.key(0), radii=(0.5, 1.0), directions=10
    )
    name = "the farther student's mean G against the nearer's, in the worst pair"
    values = np.full(size.seeds, -np.log10(float(found.ratio)))  # A property of the problem: no seed changes it.
    # Where G depends on the distance alone, the worst pair is level, up to rounding.
    return [Comparison(name, values, TIMES, -1e-9, every=True)]

  return Claim(
    "Proposition 1, its premise: of two students, the nearer to w* is nearer after a step of SGD, in the mean over "
    "examples.",
    worst(problem),
    remark="Students at distances 0.5 and 1, along the axes of the objective and in random directions. Measured once, "
    "for every seed.",
    because="It makes the mean of G a function of the distance alone, which is a property of isotropic examples. "
    "Features of images are far from that.",
    readings=[Reading("isotropic", "least squares, 200 examples evenly around the unit circle", worst(isotropic))],
  )


def _theorem_1(size: Size) -> tuple[Chart, list[Claim]]:
  problem = make_problem(learners.least_squares)
  known = constants(problem, _INNER)
  c1 = float(known.order_1 / (2 * known.lipschitz**2))  # The least bound, at a learning rate of 1.
  steps = size.pick(30, 3_000, 3_000)
  distance = measure(problem, teachers.theorem_1(c1), size, steps)
  aligned = _alignment(problem)
  relative = measure(problem, teachers.theorem_1(aligned / 2, unit_gradient=True), size, size.pick(30, 300, 300))
  # The bound is about students that have been outside the inner radius at every step before.
  outside = np.minimum.accumulate(distance, 2) > _INNER
  before = np.concatenate([np.ones_like(outside[..., :1]), outside[..., :-1]], 2)
  squares = (distance**2 * before).mean(1)
  bound = np.asarray(theory.bound_1(known, c1=c1, learning_rate=1.0, distance=_RADIUS, steps=steps))
  lines = (
    _line("theorem 1", (distance**2).mean(1), "theorem", 0),
    _line("theorem 1, students still outside", squares, "theorem", 1),
    _bound("bound of theorem 1", bound, 1, size),
    _line("theorem 1, unit gradient", (relative**2).mean(1), "theorem", 2),
  )
  claims = [
    _below_bound(
      f"Theorem 1: distances stay below its bound (students farther than {_INNER:g} from w*, where it applies).",
      squares,
      bound,
    ),
    Claim(
      "Theorem 1: labels with g = c₁‖w − w*‖ teach exponentially, all the way (least squares).",
      [_paces(distance)],
      because=_FLAT,
      readings=[Reading("unit gradient", "g = c₁‖w − w*‖ / ‖∇ℓ‖, gradients of length one", [_paces(relative)])],
    ),
  ]
  return Chart("Theorem 1: g = c₁‖w − w*‖", "mean of ‖w − w*‖²", lines, True), claims


def _alignment(problem: Problem) -> float:
  """Return the least mean cosine, over directions of w - w*, between it and the gradients of single examples.

  With gradients of length one, this is the theorem's constant of strong convexity of order one, and L is 1.
  """
  angles = np.linspace(0, np.pi, 180)
  directions = np.stack([np.cos(angles), np.sin(angles)])
  return float(np.abs(np.asarray(problem.pool.x) @ directions).mean(0).min())


_FLAT = (
  "The theorem needs a loss that is steep at its minimum (strong convexity of order one). Squared error and "
  "cross-entropy are flat there: gradients vanish with the distance, g vanishes as well, and the pace slows down like "
  "1/t. The length of the gradient decides: divided by it (unit gradient), g keeps the pace."
)


def _theorem_2(size: Size) -> tuple[Chart, list[Claim]]:
  steps, largest = size.pick(10, 120, 120), 16.0
  lines: list[Line] = []
  claims = []
  kinds: dict[str, MakeLearner] = {"least squares": learners.least_squares, "logistic": learners.logistic}
  for place, (kind, make_learner) in enumerate(kinds.items(), _PLACES_2):
    problem = make_problem(make_learner)
    distance = measure(problem, teachers.theorem_2(largest=largest), size, steps)
    squares, known = (distance**2).mean(1), constants(problem)
    bound = np.asarray(theory.bound_2_refined(known, largest_rate=largest, distance=_RADIUS, steps=steps))
    lines.append(_line(f"theorem 2, {kind}", squares, "theorem", place))
    lines.append(_bound(f"bound of theorem 2, {kind}", bound, place, size))
    claims += [
      _below_bound(f"Theorem 2: distances stay below its bound ({kind}).", squares, bound, _REFINED),
      _exponential(
        f"Theorem 2: labels by Armijo's rule (c₂ = ½), without w*, teach exponentially, all the way ({kind}).", distance
      ),
    ]
  return Chart("Theorem 2: Armijo's rule", "mean of ‖w − w*‖²", tuple(lines), True), claims


_REFINED = (
  "The bound is the paper's, refined: the paper's own is no bound at all for more than one feature (its μ̄ is then "
  "zero), and takes the search for a step to find the longest, where backtracking may stop at half of it."
)


def _theorem_3(size: Size) -> tuple[Chart, list[Claim]]:
  problem = make_problem(learners.logistic)
  known = constants(problem)
  steps, batch_size = 10, 20  # Labels of twenty examples realise any step in the plane.
  lines: list[Line] = []
  claims = []
  ways = ((0.0, None, "Newton"), (0.5, None, ""), (1.0, None, "one fixed Hessian"))
  for place, (alpha, hessian_size, how) in enumerate(ways, _PLACES_3):
    teacher = teachers.theorem_3(alpha, hessian_size)
    distance = measure(problem, teacher, size, steps, batch_size)
    lines.append(_line(teacher.name, distance.mean(1), "theorem", place))
    if how:  # Claims are about the two extremes.
      bound = np.asarray(theory.bound_3(known, alpha=alpha, distance=_RADIUS, steps=steps))
      shown = bound > 1e-15  # Nearer than that, rounding decides.
      lines.append(_bound(f"bound of theorem 3 (α={alpha:g})", np.where(shown, bound, np.nan), place, size))
      claims += [
        _reaches(f"Theorem 3, α = {alpha:g} ({how}): students are within 1e-12 in ten steps.", distance),
        _below_bound(
          f"Theorem 3, α = {alpha:g} ({how}): convergence is quadratic, below the bound.",
          distance.max(1)[:, shown], bound[shown],
        ),
      ]  # fmt: skip
  sampled_lines, sampled_claims = _sampled_hessian(problem, known, size)
  chart = Chart("Theorem 3: Newton's step by labels", "‖w − w*‖", (*lines, *sampled_lines), True)
  return chart, [*claims, *sampled_claims]


def _sampled_hessian(problem: Problem, known: theory.Constants, size: Size) -> tuple[list[Line], list[Claim]]:
  """Return curves and claims of one Hessian at w*, of a quarter of the examples."""
  steps, batch_size, hessian_size, place = 10, 20, 50, _PLACES_3 + 3
  teacher = teachers.theorem_3(1.0, hessian_size)
  distance = measure(problem, teacher, size, steps, batch_size)
  chosen = hessian_examples(hessian_size, len(problem.pool.x))
  bound = np.asarray(theory.bound_3_sampled(known, chosen=chosen, distance=_RADIUS, steps=steps))
  lines = [
    _line(teacher.name, distance.mean(1), "theorem", place),
    _bound(f"bound for α=1, |S|={hessian_size}", bound, place, size),
  ]
  name = f"Theorem 3, α = 1, Hessian of {hessian_size} examples of {len(problem.pool.x)}"
  claims = [
    Claim(
      f"{name}: as with all of them, students converge faster than exponentially.",
      [_paces(distance, _FASTER)],
      because="The error of the Hessian remains in every step: near w* the distance falls by the factor ‖I − H_S⁻¹H‖, "
      f"here {bound[-1] / bound[-2]:.2g}, which is exponential. That is also what the theory of sub-sampled "
      "Newton methods promises.",
      readings=[Reading("exponential", "exponential all the way, in place of faster", [_paces(distance)])],
    ),
    _below_bound(f"{name}: distances stay below the bound.", distance.max(1), bound),
  ]
  return lines, claims


def _below_bound(text: str, measured: np.ndarray, bound: np.ndarray, remark: str = "") -> Claim:
  """Compare `measured [seeds, records]` with `bound [records]` at the step after the start where it is tightest."""
  gap = np.log10(bound[1:])[None] - np.log10(np.maximum(measured[:, 1:], 1e-300))
  worst = int(np.argmin(gap.mean(0)))
  name = f"bound against measured, at the step where it is tightest ({worst + 1})"
  return Claim(text, [Comparison(name, gap[:, worst], BELOW)], remark=remark)


def _exponential(text: str, distance: np.ndarray) -> Claim:
  return Claim(text, [_paces(distance)])


def _paces(distance: np.ndarray, margin: float = _EXPONENTIAL) -> Comparison:
  """Compare the pace of `distance [seeds, students, records]` in the second half with the first, above rounding."""
  logs = np.log10(np.maximum(distance, 1e-300)).mean(1)  # [seeds, records]
  last = int(np.argmax(logs.mean(0) < -12)) or logs.shape[1] - 1
  early, late = logs[:, 0] - logs[:, last // 2], logs[:, last // 2] - logs[:, last]
  values = np.log10(np.maximum(late, 1e-12) / np.maximum(early, 1e-12))
  return Comparison("pace of the second half against the first", values, AS_FAST, margin)


def _reaches(text: str, distance: np.ndarray) -> Claim:
  """Count the steps that the farthest student of each seed has to spare."""
  near = distance.max(1) <= _NEAR  # [seeds, steps + 1]
  spare = np.where(near.any(1), distance.shape[2] - 1 - near.argmax(1), -1)
  return Claim(
    text, [Comparison("the farthest student", spare.astype(float), Unit("steps to spare"), -0.5, every=True)]
  )


FIGURES: Sequence[Figure] = (
  Figure(
    "theory",
    "Proposition 1 and theorems 1 to 3",
    "Section 3.4",
    "Measured distances of teachers that realise the theorems' g(y), the size of a step as a function of the label, "
    "beside the theorems' bounds (dotted, in the colour and with the marker of what they bound), on problems where "
    "their assumptions hold. Each chart has its own list of curves.",
    run_theory,
    3.0,
  ),
)
