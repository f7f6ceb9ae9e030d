"""From easy to hard: where labels lie as the learning rate decays, and how hard the lessons are.

The best label of least squares is (1 - s) <w, x> + s <w*, x> with s = 1 / (eta ||x||^2), section 3.2.1 of the paper.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from last_jax import constraints, data, learners, theory
from last_jax.base import Array, Lesson, Params
from last_jax.problem import Problem
from last_jax.reproduction import methods, problems, seeds
from last_jax.reproduction.claims import TIMES, Claim, Comparison, Reading, Unit
from last_jax.reproduction.config import Figure, Method, Outcome, Size, Tell
from last_jax.tools.charts import Chart, Level, Line

_DIMENSIONS = 20  # Of the examples on the sphere: students do not arrive within the run.


class Setting(NamedTuple):
  """A problem of each seed, of least squares, whose learning rate decays."""

  name: str
  text: str
  problem: Problem


class Measured(NamedTuple):
  """What a method showed, iteration by iteration."""

  place: np.ndarray  # [seeds, steps] place of the labels: 0 is the prediction, 1 what the target predicts.
  between: np.ndarray  # [seeds] share of the labels that are between the two.
  difficulty: np.ndarray  # [seeds, steps] length of a lesson's gradient over its mean over the pool with true labels.

  def line(self, name: str, values: np.ndarray, method: Method, number: int) -> Line:
    """Return a curve of `values [seeds, steps]`."""
    return Line(name, values, {"iteration": np.arange(1, values.shape[1] + 1)}, method.family, number)


def run_easy_to_hard(size: Size, tell: Tell) -> Outcome:
  """The paper's rate, and one that is large enough for labels to lie between prediction and target."""
  steps, count = size.pick(6, 60, 60), size.pick(2, 20, 20)
  settings = (_paper(size, steps), _large(size, steps))
  last, imt = ways = methods.greedy(constraints.none()), methods.imt()
  found: dict[tuple[str, str], Measured] = {}
  for place, setting in enumerate(settings):
    students = seeds.draw_students(setting.problem.learner.init, size.numbers, count)
    for number, way in enumerate(ways):
      tell(f"compiling and teaching: {way.name}, {setting.name}", (place + number / 2) / len(settings))
      found[setting.name, way.key] = measure(setting.problem, students, way, steps)

  def claim(
    text: str, way: Method, compare: Callable[[Measured], Comparison], remark: str = "", because: str = ""
  ) -> Claim:
    literal, *others = [[compare(found[setting.name, way.key])] for setting in settings]
    readings = [Reading(setting.name, setting.text, own) for setting, own in zip(settings[1:], others, strict=True)]
    return Claim(text, literal, remark, because, readings)

  claims = (
    claim("Labels move away from the prediction as the learning rate decays: λ grows.", last, _farther, _LATE),
    claim("Labels go from the predicted to the optimal one: all are between the two.", last, _between, "", _BEYOND),
    claim("LAST teaches from easy to hard.", last, _harder, f"{_LATE} {_HARD}", _NOISE),
    claim("IMT teaches from easy to hard.", imt, _harder, f"{_LATE} {_HARD}", _OVERSHOOTING),
  )
  facts = {
    "seeds": size.seeds,
    "students of each seed": count,
    "steps": steps,
    **{setting.name: setting.text for setting in settings},
    "λ": "measured: the place of labels between what the student and what the target predicts",
  }
  return Outcome(facts, _charts(settings, ways, found), claims)


# --- The settings.


def _paper(size: Size, steps: int) -> Setting:
  learner = learners.least_squares(4, learning_rate=_decaying(1e-3, 1e-4, steps))
  problem = problems.fit_each(learner, [data.regression(seed) for seed in size.numbers])
  return Setting("the paper's η", "regression as in the figure lsr, no weight decay, η from 1e-3 to 1e-4", problem)


def _large(size: Size, steps: int) -> Setting:
  """Return the paper's example, examples on a sphere: λ = 1 / (η γ²), with the radius γ = 1."""
  learner = learners.least_squares(_DIMENSIONS, learning_rate=_decaying(4.0, 1.0, steps), bias=False)

  def draw(seed: int) -> Problem:
    generator = np.random.default_rng(seed)
    x, weights = generator.normal(size=(800, _DIMENSIONS)), generator.normal(size=(_DIMENSIONS, 1))
    target = {"weights": jnp.asarray(weights / np.linalg.norm(weights), float)}
    pool = theory.interpolating_pool(learner, target, x / np.linalg.norm(x, axis=1, keepdims=True))
    return Problem(learner, pool, target=target)

  text = f"‖x‖ = 1, {_DIMENSIONS} features, true labels are those that the target predicts, η from 4 to 1"
  return Setting("large η", text, problems.stack([draw(seed) for seed in size.numbers]))


def _decaying(first: float, last: float, steps: int) -> optax.Schedule:
  return optax.exponential_decay(first, steps, last / first)


# --- What is measured.


def measure(problem: Problem, students: seeds.Students, way: Method, steps: int) -> Measured:
  """Teach all students, and look at every lesson.

  Args:
    problem: of each seed.
    students: of all seeds.
    way: shows one example in each step.
    steps: of the run.
  """
  records, _ = seeds.teach(problem, students, way, [(steps, 1)], metrics=(), probe=_identity, lessons=True)
  before = jax.tree.map(lambda leaf: leaf[:, :, :-1], records.probe)  # The last record has no lesson any more.
  along, square, between, difficulty = map(np.asarray, _look_at_seeds(problem, before, records.lessons))
  return Measured(along.sum(1) / square.sum(1), between.mean((1, 2)), difficulty.mean(1))


def _identity(params: Params) -> Params:
  return params


def _look_at_seed(problem: Problem, params: Params, lessons: Lesson) -> tuple[Array, Array, Array, Array]:
  """Look at the lessons of one seed and the parameters before them, both with leading axes [students, steps].

  Returns:
    How far each label is from the prediction toward the target's, times their distance; the square of that distance;
    whether the label is between the two; its difficulty: `[students, steps]` each.
  """
  learner, x, truth = problem.learner, problem.pool.x, problem.truth

  def length(params: Params, x: Array, label: Array) -> Array:
    return jnp.linalg.norm(ravel_pytree(learner.gradient(params, x[None], label[None]))[0])

  def look(params: Params, lesson: Lesson) -> tuple[Array, Array, Array, Array]:
    shown, label = x[lesson.index], lesson.label
    easy, hard = learner.apply(params, shown), learner.apply(problem.target, shown)  # [1, 1]
    room = 1e-5 * (1 + jnp.abs(label))  # Rounding.
    between = (jnp.minimum(easy, hard) - room <= label) & (label <= jnp.maximum(easy, hard) + room)
    along, square = jnp.sum((label - easy) * (hard - easy)), jnp.sum((hard - easy) ** 2)
    of_pool = jax.vmap(length, (None, 0, 0))(params, x, truth)
    return along, square, jnp.all(between), length(params, shown[0], label[0]) / jnp.mean(of_pool)

  return jax.vmap(jax.vmap(look))(params, lessons)


_look_at_seeds = jax.jit(jax.vmap(_look_at_seed))


def _farther(found: Measured) -> Comparison:
  return _late_over_early("λ", found.place)


def _harder(found: Measured) -> Comparison:
  return _late_over_early("difficulty", found.difficulty)


def _late_over_early(name: str, values: np.ndarray) -> Comparison:
  """Compare the mean logarithm of `values [seeds, steps]` over the last third of the run with that over the first."""
  third, logs = values.shape[1] // 3, np.log10(np.maximum(values, np.finfo(np.float32).tiny))
  return Comparison(f"{name}, late against early", logs[:, -third:].mean(1) - logs[:, :third].mean(1), TIMES)


def _between(found: Measured) -> Comparison:
  name, unit = "labels between prediction and optimal label", Unit("% of the labels")
  return Comparison(name, 100 * found.between, unit, 100.0 - 1e-6, every=True)


def _charts(
  settings: Sequence[Setting], ways: Sequence[Method], found: Mapping[tuple[str, str], Measured]
) -> tuple[Chart, ...]:
  def draw(title: str, label: str, level: str, quantity: str, ways: Sequence[Method]) -> Chart:
    each = [(way, setting, found[setting.name, way.key]) for way in ways for setting in settings]
    lines = tuple(
      own.line(f"{way.name}, {setting.name}", getattr(own, quantity), way, place)
      for place, (way, setting, own) in enumerate(each)
    )
    return Chart(title, label, lines, True, levels=(Level(level, 1.0),))

  return (
    draw("Place of the labels", "λ: 0 is the predicted label", "optimal label", "place", ways[:1]),
    draw("Difficulty of the lessons", "times that of random examples", "random example", "difficulty", ways),
  )


_LATE = "The last third of the run against the first, by mean logarithms."
_HARD = "Difficulty is the length of a lesson's gradient over its mean over the pool with true labels, same student."
_BEYOND = (
  "η‖x‖² decides: where it is below 1, λ = 1 / (η‖x‖²) is above 1 and the label lies beyond the optimal one. With the "
  "paper's η it is about 0.005 and falls: labels exaggerate two hundred times and more."
)
_NOISE = (
  "The noise of the true labels decides: lessons become harder beside random examples until the student is about as "
  "near to w* as the noise is large. From then on true labels stay as hard as the noise, and those of LAST do not. In "
  "data without noise lessons became 4.6 times as hard (4.5 to 4.7; 8 seeds)."
)
_OVERSHOOTING = (
  "η‖x‖² decides: where it is small, the hardest examples are the best from the beginning. Where it is above 2, every "
  "true label overshoots, and IMT shows examples that change nearly nothing; below 2, those that change most."
)


FIGURES = (
  Figure(
    "easy_to_hard",
    "From easy to hard",
    "Section 3.2.1",
    "Where labels of LAST lie between what the student predicts and what the target predicts, as the learning rate "
    "decays, and how hard the lessons of LAST and IMT are for the student.",
    run_easy_to_hard,
    2.0,
  ),
)
