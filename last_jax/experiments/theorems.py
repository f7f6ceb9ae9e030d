"""Proposition 1 and theorems 1 to 3: measured distances beside their bounds, in float64."""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import constraints, data, learners, students, target, teachers, theory
from last_jax.experiments.claims import Claim, Comparison
from last_jax.experiments.classroom import thin_out
from last_jax.experiments.config import Figure, Outcome, Size, Tell
from last_jax.learners import Learner
from last_jax.report.page import Chart, Line
from last_jax.teachers import Teacher
from last_jax.types import Params, Pool

_RADIUS, _INNER = 1.0, 0.2  # Students start at the one distance; theorem 1 is about those farther than the other.
_NEAR = 1e-12  # What theorem 3 is to reach in ten steps.
_EXPONENTIAL = -np.log10(2.0)  # Exponential all the way: late, the pace is at least half of what it was early.


class Setting(NamedTuple):
  """A problem on which assumptions hold: examples on the unit circle, labels that the target itself predicts."""

  learner: Learner
  pool: Pool
  target: Params


def make_setting(kind: str, learning_rate: float = 1.0) -> Setting:
  """Least squares without noise, or logistic regression with soft labels; no weight decay, no bias."""
  angles = np.random.default_rng(0).uniform(0, 2 * np.pi, 200)
  make = learners.least_squares if kind == "least squares" else learners.logistic
  learner = make(2, learning_rate=learning_rate, bias=False)
  goal = {"weights": jnp.array([[0.6], [0.8]])}
  return Setting(learner, theory.interpolating_pool(learner, goal, np.stack([np.cos(angles), np.sin(angles)], 1)), goal)


def measure(setting: Setting, teacher: Teacher, size: Size, steps: int, batch_size: int = 1) -> np.ndarray:
  """Distances `[seeds, students, steps + 1]` of students that start all around w*, at the same distance."""
  group = size.pick(3, 20, 20)
  angles = jax.random.uniform(jax.random.fold_in(jax.random.key(1), size.seed), (size.seeds * group,), maxval=2 * np.pi)
  offsets = _RADIUS * jnp.stack([jnp.cos(angles), jnp.sin(angles)], 1)[..., None]
  result = students.teach_many(
    jax.random.split(jax.random.fold_in(jax.random.key(2), size.seed), size.seeds * group),
    setting.learner,
    teacher,
    setting.pool,
    target=setting.target,
    init={"weights": setting.target["weights"][None] + offsets},
    steps=steps,
    batch_size=batch_size,
    metrics="distance",
  )
  return np.asarray(result.distance).reshape(size.seeds, group, steps + 1)


def run_theory(size: Size, tell: Tell) -> Outcome:
  """Everything in float64."""
  with jax.enable_x64(True):
    parts = []
    for place, part in enumerate((_proposition_1, _theorem_1, _theorem_2, _theorem_3)):
      tell(part.__name__.strip("_").replace("_", " "), place / 4)
      parts.append(part(size))
  charts, claims = zip(*parts, strict=True)
  settings = {
    "seeds": size.seeds,
    "students of each seed": size.pick(3, 20, 20),
    "precision": "float64",
    "theorems": "200 examples on the unit circle, labels that the target predicts, students start at distance 1",
    "proposition 1": "MNIST 3/5, logistic regression, learning rate 1e-3, students start at random",
  }
  return Outcome(settings, tuple(charts), tuple(verdict for group in claims for verdict in group))


def _chart(title: str, label: str, step: np.ndarray, curves: dict[str, np.ndarray], x_log: bool = False) -> Chart:
  """Curves `[seeds, records]`, or a bound `[records]`, which all seeds share."""
  kept = thin_out(step)
  seeds = max(len(values) for values in curves.values() if values.ndim == 2)
  lines = []
  for name, values in curves.items():
    values = np.tile(values, (seeds, 1)) if values.ndim == 1 else values
    # Zero, or below what float64 tells apart, is not seen on a logarithmic axis: the curve ends there.
    lines.append(Line(name, np.where(values[:, kept] > 1e-40, values[:, kept], np.nan), {"iteration": step[kept]}))
  return Chart(title, label, tuple(lines), True, x_log)


def _proposition_1(size: Size) -> tuple[Chart, list[Claim]]:
  images = data.mnist((3, 5), train_per_digit=size.pick(20, 500, 500))
  learner = learners.logistic(24, learning_rate=1e-3, weight_decay=5e-5)
  fitted = target.fit_target(learner, images.train)
  group, steps = size.pick(3, 20, 20), size.pick(20, 2_000, 5_000)
  keys = jax.random.split(jax.random.fold_in(jax.random.key(0), size.seed), size.seeds * group)

  def squares(teacher: Teacher) -> np.ndarray:
    init = jax.vmap(learner.init)(
      jax.random.split(jax.random.fold_in(jax.random.key(1), size.seed), size.seeds * group)
    )
    result = students.teach_many(
      keys, learner, teacher, images.train, target=fitted, init=init, steps=steps, metrics="distance"
    )
    return (np.asarray(result.distance) ** 2).reshape(size.seeds, group, -1).mean(1)

  curves = {"SGD": squares(teachers.sgd()), "LAST (simplex)": squares(teachers.greedy(constraints.simplex()))}
  logs = np.log10(curves["SGD"]) - np.log10(curves["LAST (simplex)"])
  worst = 1 + int(np.argmin(logs[:, 1:].mean(0)))
  claim = Claim(
    "Proposition 1: LAST is no farther from the target than SGD, in expectation, at every step.",
    [Comparison(f"SGD against LAST (simplex), at the step where LAST is worst ({worst})", logs[:, worst], "times")],
    remark="Mean squared distances, LAST with soft labels. (The paper's proof compares the two from the same "
    "parameters; after the first step they have different ones.)",
  )
  step = np.arange(steps + 1)
  return _chart("Proposition 1: LAST and SGD", "mean of ‖w − w*‖²", step, curves, x_log=True), [claim]


def _theorem_1(size: Size) -> tuple[Chart, list[Claim]]:
  setting = make_setting("least squares")
  known = theory.constants(setting.learner, setting.pool, setting.target, radius=_RADIUS, inner_radius=_INNER)
  c1 = float(known.order_1 / (2 * known.lipschitz**2))  # The best that the bound has, at a learning rate of 1.
  steps = size.pick(30, 3_000, 3_000)
  distance = measure(setting, teachers.theorem_1(c1), size, steps)
  # The bound is about students who have been outside of the inner radius at every step before.
  outside = np.minimum.accumulate(distance, 2) > _INNER
  before = np.concatenate([np.ones_like(outside[..., :1]), outside[..., :-1]], 2)
  squares = (distance**2 * before).mean(1)
  bound = np.asarray(theory.bound_1(known, c1=c1, learning_rate=1.0, distance=_RADIUS, steps=steps))
  curves = {
    "theorem 1": (distance**2).mean(1),
    "theorem 1, students still outside": squares,
    "bound of theorem 1": bound,
  }
  step = np.arange(steps + 1)
  claims = [
    _below_bound(
      f"Theorem 1: distances stay below its bound (students farther than {_INNER:g} from w*, where it applies).",
      squares,
      bound,
    ),
    _exponential(
      "Theorem 1: labels with g = c₁‖w − w*‖ teach exponentially, all the way (least squares).",
      distance,
    ),
  ]
  return _chart("Theorem 1: g = c₁‖w − w*‖", "mean of ‖w − w*‖²", step, curves), claims


_FLAT = (
  "The theorem needs a loss that is steep at its minimum (strong convexity of order one). Squared error and "
  "cross-entropy are flat there: gradients vanish with the distance, g vanishes as well, and the pace slows down like "
  "1/t."
)


def _theorem_2(size: Size) -> tuple[Chart, list[Claim]]:
  steps = size.pick(10, 120, 120)
  largest = 16.0
  curves: dict[str, np.ndarray] = {}
  claims = []
  for kind in ("least squares", "logistic"):
    setting = make_setting(kind)
    known = theory.constants(setting.learner, setting.pool, setting.target, radius=_RADIUS)
    distance = measure(setting, teachers.theorem_2(largest=largest), size, steps)
    bound = np.asarray(theory.bound_2_refined(known, largest_rate=largest, distance=_RADIUS, steps=steps))
    squares = (distance**2).mean(1)
    curves |= {f"theorem 2, {kind}": squares, f"bound of theorem 2, {kind}": bound}
    claims += [
      _below_bound(f"Theorem 2: distances stay below its bound ({kind}).", squares, bound, _REFINED),
      _exponential(
        f"Theorem 2: labels by Armijo's rule (c₂ = ½), without w*, teach exponentially, all the way ({kind}).", distance
      ),
    ]
  return _chart("Theorem 2: Armijo's rule", "mean of ‖w − w*‖²", np.arange(steps + 1), curves), claims


_REFINED = (
  "The bound is the paper's, refined: the paper's own is no bound at all for more than one feature (its μ̄ is then "
  "zero), and takes the search for a step to find the longest, where backtracking may stop at half of it."
)


def _theorem_3(size: Size) -> tuple[Chart, list[Claim]]:
  setting = make_setting("logistic")
  known = theory.constants(setting.learner, setting.pool, setting.target, radius=_RADIUS)
  steps, batch_size = 10, 20  # Labels of twenty examples realise any step in the plane.
  methods = [teachers.theorem_3(0.0), teachers.theorem_3(0.5), teachers.theorem_3(1.0), teachers.theorem_3(1.0, 50)]
  curves: dict[str, np.ndarray] = {}
  claims = []
  for teacher, alpha in zip(methods, (0.0, 0.5, 1.0, None), strict=True):
    distance = measure(setting, teacher, size, steps, batch_size)
    curves[teacher.name] = distance.mean(1)
    if alpha in (0.0, 1.0):
      how = "Newton" if alpha == 0.0 else "one fixed Hessian"
      bound = np.asarray(theory.bound_3(known, alpha=alpha, distance=_RADIUS, steps=steps))
      shown = bound > 1e-15  # Nearer than that, rounding decides.
      curves[f"bound of theorem 3 (α={alpha:g})"] = np.where(shown, bound, np.nan)
      claims += [
        _reaches(f"Theorem 3, α = {alpha:g} ({how}): students are within 1e-12 in ten steps.", distance),
        _below_bound(
          f"Theorem 3, α = {alpha:g} ({how}): convergence is quadratic, below the bound.",
          distance.max(1)[:, shown], bound[shown],
        ),
      ]  # fmt: skip
  return _chart("Theorem 3: Newton's step by labels", "‖w − w*‖", np.arange(steps + 1), curves), claims


def _below_bound(text: str, measured: np.ndarray, bound: np.ndarray, remark: str = "") -> Claim:
  """`measured [seeds, records]` against `bound [records]`, after the first record, at the step where it is tightest."""
  gap = np.log10(bound[1:])[None] - np.log10(np.maximum(measured[:, 1:], 1e-300))
  worst = int(np.argmin(gap.mean(0)))
  name = f"bound against measured, at the step where it is tightest ({worst + 1})"
  return Claim(text, [Comparison(name, gap[:, worst], "times below")], remark=remark)


def _exponential(text: str, distance: np.ndarray) -> Claim:
  """Whether the logarithm of `distance [seeds, students, records]` falls late as it did early, rounding left aside."""
  logs = np.log10(np.maximum(distance, 1e-300)).mean(1)  # [seeds, records]
  last = int(np.argmax(logs.mean(0) < -12)) or logs.shape[1] - 1
  early, late = logs[:, 0] - logs[:, last // 2], logs[:, last // 2] - logs[:, last]
  values = np.log10(np.maximum(late, 1e-12) / np.maximum(early, 1e-12))
  comparison = Comparison("pace of the second half against the first", values, "times as fast", _EXPONENTIAL)
  return Claim(text, [comparison])


def _reaches(text: str, distance: np.ndarray) -> Claim:
  """How many steps the farthest student of each seed has to spare."""
  near = distance.max(1) <= _NEAR  # [seeds, steps + 1]
  spare = np.where(near.any(1), distance.shape[2] - 1 - near.argmax(1), -1)
  return Claim(text, [Comparison("the farthest student", spare.astype(float), "steps to spare", -0.5, every=True)])


FIGURES: Sequence[Figure] = (
  Figure(
    "theory",
    "Proposition 1 and theorems 1 to 3",
    "Section 3.4",
    "Measured distances of teachers that realise the theorems' g(y), beside the theorems' bounds, on problems where "
    "their assumptions hold.",
    run_theory,
    3.0,
    {"Theorem 1: labels": _FLAT},
  ),
)
