"""The dynamic margin that synthesized labels induce: appendix E, measured."""

import itertools

import jax
import numpy as np

from last_jax import constraints, data, learners, teachers, theory
from last_jax.base import Array, Params
from last_jax.problem import Problem
from last_jax.reproduction import methods, problems, seeds
from last_jax.reproduction.claims import Claim, Comparison, Reading, Unit
from last_jax.reproduction.config import Figure, Method, Outcome, Size, Tell
from last_jax.tools.charts import Chart

_SHARE = Unit("% of the lessons")
_ALWAYS = 100.0 - 1e-6
_BINS = 20
_ROUNDING = 1e-5  # Of psi less the cosine in float32.


def run_large_margin(size: Size, tell: Tell) -> Outcome:
  """Psi less the cosine of every lesson of LAST, of label smoothing and of true labels."""
  steps, students = size.pick(20, 1_000, 2_000), size.pick(2, 10, 10)
  images = data.mnist((1, 2, 3, 4, 5), folder=size.mnist_folder, train_per_digit=size.pick(10, 200, 200))
  learner = learners.softmax(24, 5, learning_rate=1e-3, weight_decay=problems.WEIGHT_DECAY, bias=False)
  problem = problems.fit(learner, images)
  drawn = seeds.draw_students(learner.init, size.numbers, students)
  smoothing = Method("label_smoothing", teachers.label_smoothing(0.9), "label_smoothing")
  last = {name: methods.greedy(make()) for name, make in (("simplex", constraints.simplex), ("none", constraints.none))}
  compared = [methods.sgd(), smoothing, *last.values()]
  found, right = {}, {}
  for place, method in enumerate(compared):
    tell(f"teaching: {method.name}", place / len(compared))
    found[method.key], right[method.key] = _margins(problem, drawn, method, steps)
  ends = np.linspace(0, steps, _BINS + 1).astype(int)
  axis = {"iteration": (ends[1:] + ends[:-1]) / 2}

  def binned(values: np.ndarray) -> np.ndarray:
    return np.stack([values[..., low:high].mean((1, 2)) for low, high in itertools.pairwise(ends)], 1)

  above = {key: values > _ROUNDING for key, values in found.items()}
  below = {key: values <= _ROUNDING for key, values in found.items()}
  charts = (
    Chart(
      "Margin of the labels: ψ − cos θ", "mean over lessons",
      tuple(each.line(binned(found[each.key]), axis) for each in compared),
    ),
    Chart(
      "Labels with ψ > cos θ: less is asked for", "share of the lessons (%)",
      tuple(each.line(100.0 * binned(above[each.key]), axis) for each in compared), limits=(0.0, 100.0),
    ),
  )  # fmt: skip

  def judged(so: dict[str, np.ndarray], among: dict[str, np.ndarray] | None = None) -> list[Comparison]:
    """Return the shares of lessons of which something is so, among all or some."""
    comparisons = []
    for each in last.values():
      kept = np.ones_like(so[each.key]) if among is None else among[each.key]
      values = [100.0 * own[chosen].mean() for own, chosen in zip(so[each.key], kept, strict=True)]
      comparisons.append(Comparison(each.name, np.array(values), _SHARE, _ALWAYS, every=True))
    return comparisons

  claim = Claim(
    "Appendix E: labels of LAST make a dynamic ψ that is always larger than cos θ, as a large margin asks for.",
    judged(above),
    remark="ψ is an average of the outputs with the label as weights, over ‖w‖ ‖x‖; every lesson is looked at.",
    because="A large margin needs ψ below the cosine (docs/errata.md). Soft labels can be above it only where the "
    "example is misclassified.",
    readings=[
      Reading("smaller", "ψ at most cos θ, as large-margin softmax has it", judged(below)),
      Reading(
        "smaller, right", "the same, of the examples that the student classifies correctly", judged(below, right)
      ),
    ],
  )
  more = {"students of each seed": students, "labels": "one example in each step"}
  return Outcome(problems.describe(problem, size, steps) | more, charts, (claim,))


def _margins(problem: Problem, drawn: seeds.Students, method: Method, steps: int) -> tuple[np.ndarray, np.ndarray]:
  """Return psi less the cosine of every lesson, and whether its example was classified correctly."""
  records, _ = seeds.teach(problem, drawn, method, [(steps, 1)], metrics=(), probe=_identity, lessons=True)
  assert records.lessons is not None
  params = jax.tree.map(lambda leaf: leaf[:, :, :-1], records.probe)  # Before each step: [seeds, students, steps, ...].

  def measure(params: Params, index: Array, labels: Array) -> tuple[Array, Array]:
    x, truth = problem.pool.x[index], problem.truth[index]
    psi, cosine = theory.induced_margin(problem.learner, params, x, labels, truth)
    return (psi - cosine)[0], problem.learner.accuracy(params, x, truth) > 0

  over_all = jax.jit(jax.vmap(jax.vmap(jax.vmap(measure))))
  margins, right = over_all(params, records.lessons.index, records.lessons.label)
  return np.asarray(margins), np.asarray(right)


def _identity(params: Params) -> Params:
  return params


FIGURES = (
  Figure(
    "large_margin",
    "The margin of synthesized labels",
    "Appendix E",
    "What labels of LAST make of the angle between an example and the weights of its class: ψ in place of cos θ. Below "
    "cos θ a label asks for more than the truth does, as large-margin softmax does; above it, for less.",
    run_large_margin,
  ),
)
