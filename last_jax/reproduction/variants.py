"""Variants of greedy teaching that the paper names without a figure of their own.

Sets of labels around the prediction and within the simplex, the importance beta of layers, the soft labels of practice
beside LAST, and planning: generalized iterative teaching GIT(m, v).
"""

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import constraints, data, distances, learners, teachers
from last_jax.base import Array, Key, Params, Records
from last_jax.constraints import Constraint
from last_jax.problem import Problem
from last_jax.reproduction import methods, problems, results, seeds
from last_jax.reproduction.claims import Claim, Comparison, Unit
from last_jax.reproduction.config import Figure, Method, Outcome, Size, Tell
from last_jax.reproduction.problems import WEIGHT_DECAY, InitFn
from last_jax.tools.charts import Chart, Line

# --- Sets of labels.


def run_label_sets(size: Size, tell: Tell) -> Outcome:
  """Regression: balls around the truth and around the prediction. Five classes: the same within the simplex."""
  learner = learners.least_squares(4, learning_rate=1e-3, weight_decay=WEIGHT_DECAY)
  regression = problems.fit_each(learner, [data.regression(seed) for seed in size.numbers])
  classes, init_fn = _five_digits(size)
  parts = (
    ("regression", regression, learner.init, size.pick(300, 10_000, 20_000), constraints.magnitude, (0.5, 2.0)),
    ("five digits", classes, init_fn, size.pick(30, 3_000, 10_000), constraints.simplex, (0.25, 0.75)),
  )
  charts: list[Chart] = []
  claims: list[Claim] = []
  facts: dict[str, Any] = {}
  for place, (name, problem, begin, steps, make, radii) in enumerate(parts):
    truth, prediction = (
      [_ball(make(radius, around=center), first + number) for number, radius in enumerate(radii)]
      for first, center in ((4 * place, "truth"), (4 * place + 2, "prediction"))
    )
    whole = [methods.greedy(constraints.simplex())] if make is constraints.simplex else []
    ways = [methods.sgd(), *truth, *prediction, *whole]
    students = seeds.draw_students(begin, size.numbers)
    records, _ = seeds.teach_all(
      problem, students, ways, [(steps, max(1, steps // 1000))], _part(tell, place / 2, 0.5),
      metrics=("distance", "objective"),
    )  # fmt: skip
    charts += results.charts(ways, records, {}, x_log=True, suffix=f", {name}")[-1:]
    found = results.compare(problem, records)
    claims += [
      Claim(
        f"A larger radius teaches faster, around the {center} ({name}).",
        [each for less, more in itertools.pairwise([*group, *whole]) for each in found.beats(more, less)],
      )
      for center, group in (("truth", truth), ("prediction", prediction))
    ]
    claims.append(
      Claim(
        f"Labels around the truth teach faster than as near to the prediction ({name}; not in the paper).",
        [each for one, other in zip(truth, prediction, strict=True) for each in found.beats(one, other)],
        because=_LATER,
      )
    )
    facts |= {f"{key}, {name}": value for key, value in problems.describe(problem, size, steps).items()}
  return Outcome(facts, tuple(charts), tuple(claims))


_LATER = (
  "It depends on when: the student's first predictions are far from any useful label, its later ones are not. In the "
  "excess objective at the end, the prediction is the better center with both radii."
)


def _ball(constraint: Constraint, place: int) -> Method:
  return methods.greedy(constraint)._replace(variant=place)  # Balls of two centers beside each other: far apart.


def _part(tell: Tell, begin: float, length: float) -> Tell:
  """Return `tell` for a part of the figure's work."""
  return lambda text, share: tell(text, begin + length * share)


def _five_digits(size: Size) -> tuple[Problem, InitFn]:
  """Softmax 24 -> 5 on the digits 1 to 5, and the start of students, all of whose distance labels can change."""
  images = data.mnist((1, 2, 3, 4, 5), folder=size.mnist_folder, train_per_digit=size.pick(10, 200, 200))
  learner = learners.softmax(24, 5, learning_rate=1e-3, weight_decay=WEIGHT_DECAY)

  def start(key: Key) -> Params:
    # No label changes the mean over classes, which is zero in w*.
    return jax.tree.map(lambda leaf: leaf - jnp.mean(leaf, -1, keepdims=True), learner.init(key))

  return problems.fit(learner, images), start


# --- The soft labels of practice.


def run_soft_labels(size: Size, tell: Tell) -> Outcome:
  """Fixed ways to soften labels, beside LAST on the simplex."""
  problem, init_fn = _five_digits(size)
  pretrained = jax.tree_util.Partial(problem.learner.apply, problem.target)
  last, sgd = methods.greedy(constraints.simplex()), methods.sgd()
  fixed = [
    Method("label_smoothing", teachers.label_smoothing(0.9), "label_smoothing"),
    Method("distillation", teachers.distillation(pretrained), "distillation"),
    Method("self_training", teachers.self_training(), "self_training"),
    Method("self_training:hard", teachers.self_training(hard=True), "self_training", "hard"),
  ]
  ways = [sgd, *fixed, last]
  students = seeds.draw_students(init_fn, size.numbers)
  steps = size.pick(30, 5_000, 20_000)
  records, _ = seeds.teach_all(problem, students, ways, [(steps, max(1, steps // 500))], tell)
  found = results.compare(problem, records)
  claims = (
    Claim(
      "LAST with soft labels is ahead of label smoothing, distillation and self-training.",
      [each for way in fixed for each in found.beats(last, way)],
    ),
    Claim(
      "Label smoothing and distillation are ahead of true labels (not in the paper).",
      [each for way in fixed[:2] for each in found.beats(way, sgd)],
    ),
  )
  facts = problems.describe(problem, size, steps) | {
    "learner": "softmax 24–5 on the digits 1 to 5", "label smoothing": "μ = 0.9",
    "distillation": "the pretrained model is w*, temperature 1", "batch size": 1,
  }  # fmt: skip
  objective, *others = results.target_charts(size, problem, ways, records, x_log=True)
  return Outcome(facts, (objective._replace(log=True), *others), claims)  # Self-training ends far from the others.


# --- Layers of a network.


_BETAS = (0.01, 1.0, 100.0)


def run_layer_weights(size: Size, tell: Tell) -> Outcome:
  """The rule for networks, ‖W − W*‖² + β‖V − V*‖², with several β on the first layer."""
  tell("fitting the target", 0.0)
  problem, init_fn = problems.network_on_two_digits((3, 5), size.pick(20, 500, 500), size.mnist_folder)
  students = seeds.draw_students(init_fn, size.numbers)
  steps = size.pick(30, 1_000, 5_000)
  sgd, weighted = methods.sgd(), [_weighted(beta, place) for place, beta in enumerate(_BETAS)]
  ways, target = [sgd, *weighted], problem.target
  assert target is not None

  def of_layers(params: Params) -> dict[str, Array]:
    return {layer: distances.distance(params[layer], target[layer]) for layer in target}

  records, _ = seeds.teach_all(
    problem, students, ways, [(steps, max(1, steps // 100))], tell,
    metrics=("distance", "objective", "accuracy"), probe=of_layers,
  )  # fmt: skip
  whole = results.compare(problem, records)
  charts, layers = results.charts(ways, records, {})[:2], {}
  for layer, name in (("layer_0", "first layer"), ("layer_1", "output layer")):
    own = {key: Records(each.step, distance=each.probe[layer].mean(1)) for key, each in records.items()}
    layers[layer] = results.Distances(own, whole.floor)
    charts += results.charts(ways, own, {}, suffix=f", {name}")
  low, one, high = weighted
  claims = (
    Claim(
      "Every β beats SGD (not in the paper).",
      [each for way in weighted for each in whole.beats(way, sgd)],
      because=_NEGLECTED,
    ),
    Claim(
      "β = 1 minimises the distance of all parameters: it is nearer than with smaller and larger β.",
      [each for way in (low, high) for each in whole.beats(one, way)],
      because=_ONE_STEP,
    ),
    Claim(
      "β balances the layers: the first layer is nearer with a larger β, the output layer with a smaller one.",
      [*layers["layer_0"].beats(high, low), *layers["layer_1"].beats(low, high)],
    ),
  )
  facts = problems.describe(problem, size, steps) | {
    "learner": "24–32–1, ReLU", "students start": "around the target, N(0, 0.1²)", "batch size": 1,
  }  # fmt: skip
  return Outcome(facts, charts, claims)


_NEGLECTED = (
  "β decides: with a small one labels are for the output layer alone, and move the first layer, which has most of the "
  "parameters, farther away."
)

_ONE_STEP = (
  "Labels are the best for one step, not for a run; and the first layer has nearly all of the distance, so that with "
  "β = 100 the aim is nearly the same."
)


def _weighted(beta: float, place: int) -> Method:
  teacher = teachers.greedy(constraints.none(), layer_weights={"layer_0": beta, "layer_1": 1.0})
  return Method(f"greedy:beta={beta:g}", dataclasses.replace(teacher, name=f"LAST, β = {beta:g}"), "greedy", place)


# --- Planning.


_PLANS = ((1, 1), (1, 2), (1, 6), (2, 1), (2, 3))  # (m, v): examples of a step, steps planned at once.
_ARRIVED = 1e-9


def run_planning(size: Size, tell: Tell) -> Outcome:
  """Labels of v steps at once, each of m examples, in float64."""
  with jax.enable_x64(True):
    return _run_planning(size, tell)


def _run_planning(size: Size, tell: Tell) -> Outcome:
  learner = learners.least_squares(4, learning_rate=1e-3, weight_decay=WEIGHT_DECAY)
  problem = problems.fit_each(learner, [data.regression(seed) for seed in size.numbers])
  count, steps = size.pick(2, 10, 10), 12  # A multiple of every v.
  students = seeds.draw_students(learner.init, size.numbers, count)
  ways = {plan: _planner(*plan, place) for place, plan in enumerate(_PLANS)}
  records, seconds = {}, {}
  for place, ((batch_size, _), way) in enumerate(ways.items()):
    tell(f"compiling and teaching: {way.name}", place / len(ways))
    records[way.key], seconds[way.key] = seeds.teach(
      problem, students, way, [(steps, 1)], batch_size=batch_size, metrics=("distance",), probe=_identity,
      runs=9,
    )  # fmt: skip
  found = results.compare(problem, records)
  longer = [((1, 1), (1, 2)), ((1, 2), (1, 6)), ((2, 1), (2, 3))]
  enough = [plan for plan in _PLANS if plan[0] * plan[1] >= _UNKNOWNS]
  claims = (
    Claim(
      "The more steps are planned at once, the nearer the student is after the same number of steps.",
      [found.nearer_at_end(ways[more], ways[less]) for less, more in longer],
      remark=f"After {steps} steps, where blocks of every length end.",
    ),
    Claim(
      f"A block of at least as many labels as there are parameters, m v ≥ {_UNKNOWNS}, ends at w*.",
      [share_at_target(problem, records[ways[plan].key], plan, ways[plan]) for plan in enough],
      remark="Share of the students that are within 1e-9 of w* after the first block.",
      because=_TWICE,
    ),
  )
  who = f"seconds once compiled, {size.seeds * count} students at once"
  facts = problems.describe(problem, size, steps) | {
    "students of each seed": count, "labels": "any", "precision": "float64",
  }  # fmt: skip
  charts = results.charts(list(ways.values()), records, {who: seconds})
  return Outcome(facts, (*charts, _cost_chart(ways, seconds, size.seeds * count)), claims)


_UNKNOWNS = 5  # Four weights and an intercept.


def _planner(batch_size: int, horizon: int, place: int) -> Method:
  teacher = dataclasses.replace(teachers.planner(horizon, constraints.none()), name=f"GIT({batch_size}, {horizon})")
  return Method(f"planner:{batch_size},{horizon}", teacher, "planner", place)


def _identity(params: Params) -> Params:
  return params


def share_at_target(problem: Problem, records: Records, plan: tuple[int, int], way: Method) -> Comparison:
  """Return the share of each seed's students that are at w* after their first block."""
  after = jax.tree.map(lambda leaf: leaf[:, :, plan[1]], records.probe)
  remaining = jax.vmap(jax.vmap(distances.distance, (0, None)))(after, problem.target)  # [seeds, students]
  share = 100 * np.mean(np.asarray(remaining) < _ARRIVED, 1)
  return Comparison(way.name, share, Unit("% of the students"), 100.0 - 1e-6, every=True)


def _cost_chart(ways: Mapping[tuple[int, int], Method], seconds: Mapping[str, float], students: int) -> Chart:
  lines = []
  for batch_size in sorted({m for m, _ in ways}):
    own = {v: 1e6 * seconds[way.key] / students for (m, v), way in ways.items() if m == batch_size}
    axes = {"steps planned at once, v": np.array(list(own))}
    lines.append(Line(f"m = {batch_size}", np.array([list(own.values())]), axes, "other", 5 + batch_size))
  return Chart("Cost of a step", "µs for each student, once compiled", tuple(lines), True)


_TWICE = "Repeated examples decide: one that is drawn twice leaves a direction that no label of the block changes."


FIGURES = (
  Figure(
    "label_sets",
    "Labels around the truth and around the prediction",
    "Section 3.2, constraints",
    "Labels within a radius of the truth or of the student's prediction; of five classes, soft labels within it.",
    run_label_sets,
    3.0,
  ),
  Figure(
    "soft_labels",
    "Label smoothing, distillation and self-training beside LAST",
    "Section 1",
    "The soft labels of practice, which do not depend on where the student is to go, and those of LAST.",
    run_soft_labels,
    2.0,
  ),
  Figure(
    "layer_weights",
    "Which layers of a network count",
    "Section 3.2.2",
    "Labels for the least ‖W − W*‖² + β‖V − V*‖², with V the first layer of a network with 32 hidden units.",
    run_layer_weights,
    2.0,
  ),
  Figure(
    "planning",
    "Planning several steps",
    "Section 5.2",
    "GIT(m, v): labels of v steps of m examples each are chosen at once, for where the student is after them, however "
    "far it goes in between; GIT(1, 1) is greedy LAST. Choose the x axis to see the cost.",
    run_planning,
    3.0,
  ),
)
