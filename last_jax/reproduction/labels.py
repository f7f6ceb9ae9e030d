"""The labels that LAST gives: on the plane, iteration by iteration, and the digits whose label it changes."""

from collections.abc import Callable

import jax
import numpy as np

from last_jax import constraints, data, learners, synthesis, targets
from last_jax.base import Array, Lesson, Params, Student
from last_jax.constraints import Constraint
from last_jax.data.mnist import stratified
from last_jax.problem import Problem
from last_jax.reproduction import methods, problems, seeds
from last_jax.reproduction.claims import NEARER, Claim, Comparison, Reading, Unit
from last_jax.reproduction.config import Figure, Outcome, Size, Tell
from last_jax.reproduction.problems import WEIGHT_DECAY, InitFn
from last_jax.tools.charts import Gallery, LabelFrames

_RATE = 1e-4  # Of the learner on half moons.
_SHOWN = 30  # Digits of a gallery.


def run_half_moons(size: Size, tell: Tell) -> Outcome:
  """The labels that one-hot LAST would give to every point of the pool, at many iterations."""
  steps, frames = size.pick(2_000, 600_000, 1_000_000), size.pick(5, 40, 40)
  learner = learners.logistic(2, learning_rate=_RATE, weight_decay=WEIGHT_DECAY)
  problem = problems.fit_each(learner, [data.half_moons(seed) for seed in size.numbers])
  tell("teaching", 0.0)
  students, method = seeds.draw_students(learner.init, size.numbers), methods.greedy(constraints.one_hot())
  schedule = [(steps, steps // frames)]
  records, _ = seeds.teach(problem, students, method, schedule, metrics=("distance",), probe=_identity)
  params = jax.tree.map(lambda leaf: leaf[:, 0], records.probe)  # [seeds, records, ...]
  labels = np.asarray(jax.jit(jax.vmap(label_pool, (0, 0, None)))(problem, params, constraints.one_hot())) > 0.5
  tell("looking for a line between the labels", 0.4)
  first = problems.split(problem)[0]
  found = np.array(
    [[separable(x, frame) for frame in own] for x, own in zip(np.asarray(problem.pool.x), labels, strict=True)]
  )  # [seeds, frames]
  far = np.asarray(records.distance) > _RATE
  picture = LabelFrames(
    "Labels by LAST (one_hot) on half moons, the first seed",
    np.asarray(first.pool.x),
    np.asarray(first.pool.y),
    np.asarray(records.step),
    labels[0].astype(int),
    boundary(jax.tree.map(lambda leaf: leaf[0], params)),
    boundary(first.target),
  )

  def share(looked_at: np.ndarray) -> list[Comparison]:
    values = 100 * np.array([own[chosen].mean() for own, chosen in zip(found, looked_at, strict=True)])
    return [
      Comparison("share of the iterations looked at", values, Unit("% of the iterations"), 100.0 - 1e-6, every=True)
    ]

  claim = Claim(
    "The synthesized labels are always linearly separable.",
    share(np.ones_like(far)),
    remark=f"By a linear program, at {len(records.step)} iterations of each seed.",
    because=_NOT_SEPARABLE,
    readings=[
      Reading(
        "far", f"while the student is farther from w* than η, {100 * far.mean():.0f} % of the iterations", share(far)
      )
    ],
  )
  more = {"labels": "one-hot, for every point of the pool on its own"}
  return Outcome(problems.describe(problem, size, steps) | more, (picture,), (claim,))


_NOT_SEPARABLE = (
  "The best one-hot label of an example is 1 where ⟨w* − w, x⟩ + η (σ(⟨w, x⟩) − ½) ‖x‖² > 0. Far from the target the "
  "first term decides, which is a line; once w is within about η of w*, the second decides with it, which is curved. "
  "The distance decides: far from w* labels are separable."
)


def _identity(params: Params) -> Params:
  return params


def label_pool(problem: Problem, params: Params, constraint: Constraint) -> Array:
  """Return the best label of every example on its own, `[records, n]`, for parameters `[records, ...]`; one output."""
  learner = problem.learner

  def label(student: Student, x: Array, truth: Array) -> Array:
    target = targets.params(problem.target)
    labels, _ = synthesis.greedy_labels(learner, student, target, x[None], truth[None], constraint)
    return labels[0, 0]

  over_pool = jax.vmap(label, (None, 0, 0))
  return jax.lax.map(lambda each: over_pool(learner.start(each), problem.pool.x, problem.truth), params)


def boundary(params: Params) -> np.ndarray:
  """Return weights and bias of a decision boundary, `[..., 3]`."""
  return np.concatenate([np.asarray(params["weights"])[..., 0], np.asarray(params["bias"])], -1)


def separable(x: np.ndarray, labels: np.ndarray) -> bool:
  """Return whether a hyperplane separates the points `x [n, d]` with label 1 from those with label 0."""
  from scipy.optimize import linprog  # A linear program without an objective: is it feasible?

  sign = np.where(labels, 1.0, -1.0)[:, None]
  rows = -sign * np.concatenate([x, np.ones((len(x), 1))], 1)  # sign (⟨w, x⟩ + b) >= 1
  answer = linprog(np.zeros(rows.shape[1]), A_ub=rows, b_ub=-np.ones(len(x)), bounds=(None, None), method="highs")
  return answer.status == 0


# --- Digits.


def run_linear_examples(size: Size, tell: Tell) -> Outcome:
  """Logistic regression on 3/5."""
  per_digit = size.pick(50, 1000, 1000)
  learner = learners.logistic(24, learning_rate=1e-3, weight_decay=WEIGHT_DECAY)
  problem = problems.fit(learner, data.mnist((3, 5), folder=size.mnist_folder, train_per_digit=per_digit))
  return _run_examples(size, tell, problem, learner.init, per_digit, size.pick(200, 10_000, 20_000))


def run_mlp_examples(size: Size, tell: Tell) -> Outcome:
  """A network on 3/5."""
  per_digit = size.pick(20, 500, 500)
  problem, init_fn = problems.network_on_two_digits((3, 5), per_digit, size.mnist_folder)
  return _run_examples(size, tell, problem, init_fn, per_digit, size.pick(50, 2_000, 5_000))


def _run_examples(size: Size, tell: Tell, problem: Problem, init_fn: InitFn, per_digit: int, steps: int) -> Outcome:
  students, method = seeds.draw_students(init_fn, size.numbers), methods.greedy(constraints.one_hot())
  tell("teaching", 0.0)
  records, _ = seeds.teach(problem, students, method, [(steps, steps)], metrics=(), lessons=True)
  assert records.lessons is not None
  lessons = jax.tree.map(lambda leaf: leaf[:, 0], records.lessons)  # [seeds, steps, ...]: one student for each seed.
  index = lessons.index[..., 0]  # [seeds, steps]
  changed = lessons.label[..., 0, 0].round() != np.asarray(problem.truth)[index, 0].round()
  tell("looking at the boundary", 0.7)
  margin = np.abs(np.asarray(problem.learner.apply(problem.target, problem.pool.x))[:, 0])[index]
  own = np.abs(outputs_when_shown(problem, jax.tree.map(lambda leaf: leaf[:, 0], students.params), lessons))
  claims = (
    _nearer_boundary(
      "Changed labels sit nearer the decision boundary of the target than unchanged ones.", margin, changed
    ),
    _nearer_boundary(
      "Changed labels sit nearer the student's own decision boundary, when shown, than unchanged ones.", own, changed
    ),
  )
  digits = data.mnist_images((3, 5), folder=size.mnist_folder)[0]
  chosen = stratified(digits.digits, (3, 5), per_digit, 0, name="train_per_digit")
  galleries = _galleries(digits.images[chosen], digits.digits[chosen], index[0], changed[0])
  more = {"labels changed": f"{100 * changed.mean():.1f} % of those shown"}
  return Outcome(problems.describe(problem, size, steps) | more, galleries, claims)


def outputs_when_shown(problem: Problem, params: Params, lessons: Lesson) -> np.ndarray:
  """Return the student's output for each example when it was shown, `[seeds, steps]`, by repeating the lessons.

  Args:
    problem: shared by all seeds.
    params: the starts, `[seeds, ...]`.
    lessons: of one example each, `[seeds, steps, ...]`.
  """
  learner, x = problem.learner, problem.pool.x

  def iterate(student: Student, lesson: Lesson) -> tuple[Student, Array]:
    output = learner.apply(student.params, x[lesson.index])[0, 0]
    return learner.step(student, x[lesson.index], lesson.label), output

  def repeat(params: Params, lessons: Lesson) -> Array:
    return jax.lax.scan(iterate, learner.start(params), lessons)[1]

  return np.asarray(jax.jit(jax.vmap(repeat))(params, lessons))


def _nearer_boundary(text: str, margin: np.ndarray, changed: np.ndarray) -> Claim:
  """Compare geometric means of `margin [seeds, steps]` between lessons with unchanged and with changed labels."""
  sizes = np.log10(np.maximum(margin, np.finfo(np.float32).tiny))
  values = np.array([_difference_of_means(*pair) for pair in zip(sizes, changed, strict=True)])
  return Claim(text, [Comparison("changed against unchanged", values, NEARER)])


def _difference_of_means(sizes: np.ndarray, changed: np.ndarray) -> float:
  """Return the mean of `sizes [steps]` of unchanged labels minus that of changed ones; NaN without either."""
  if changed.all() or not changed.any():
    return float("nan")
  return float(sizes[~changed].mean() - sizes[changed].mean())


def _galleries(images: np.ndarray, digits: np.ndarray, index: np.ndarray, changed: np.ndarray) -> tuple[Gallery, ...]:
  """Return the digits shown most often with another label, and some that never were; `index`, `changed [steps]`."""
  times = np.bincount(index[changed], minlength=len(images))
  often = np.argsort(-times, kind="stable")[: min(_SHOWN, int((times > 0).sum()))]
  shown = np.unique(index)
  unchanged = shown[times[shown] == 0][:_SHOWN]

  def make(title: str, chosen: np.ndarray, caption: Callable[[int], str], description: str) -> Gallery:
    return Gallery(title, images[chosen], tuple(caption(int(i)) for i in chosen), description)

  other = {3: 5, 5: 3}
  return (
    make(
      "Shown most often with the other label (first seed)", often, lambda i: f"{digits[i]} as {other[int(digits[i])]}",
      "Digits whose label LAST changed most often: many are written unclearly.",
    ),
    make(
      "Never shown with the other label (first seed)", unchanged, lambda i: f"{digits[i]}",
      "Digits whose label LAST never changed.",
    ),
  )  # fmt: skip


FIGURES = (
  Figure(
    "labels_half_moons",
    "Synthesized labels on half moons",
    "Figure 9",
    "Which label one-hot LAST would give to every point: blue circles have the label 0, orange diamonds the label 1, "
    "and an outline those whose label is not the true one. The student's boundary, the solid purple line, comes to the "
    "target's, the dashed green line. Move the slider to go through the iterations.",
    run_half_moons,
    2.0,
  ),
  Figure(
    "examples_linear",
    "Digits whose label was changed: logistic regression",
    "Figure 16",
    "Digits 3 and 5 that one-hot LAST shows with the other label, and digits that it leaves as they are.",
    run_linear_examples,
  ),
  Figure(
    "examples_mlp",
    "Digits whose label was changed: a network",
    "Figure 11",
    "The same for a student with 32 hidden units.",
    run_mlp_examples,
  ),
)
