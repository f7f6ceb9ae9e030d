"""What labels LAST gives: on the plane, iteration by iteration, and to which digits it gives another than the truth."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import constraints, data, learners, students, synthesis, target, teachers
from last_jax.data.mnist import stratified
from last_jax.experiments.claims import Claim, Comparison
from last_jax.experiments.classroom import Room, fit_room, make_room, teach_all
from last_jax.experiments.config import Figure, Outcome, Size, Tell
from last_jax.experiments.greedy import WEIGHT_DECAY, mlp_task
from last_jax.report.page import LabelFrames
from last_jax.report.pictures import Gallery
from last_jax.types import Array, Params

_SHOWN = 30  # Digits of a gallery.


def run_half_moons(size: Size, tell: Tell) -> Outcome:
  """The labels that one-hot LAST would give to every point of the pool, at many iterations."""
  rate, steps, frames = 1e-4, size.pick(2_000, 600_000, 1_000_000), size.pick(5, 40, 40)
  learner = learners.logistic(2, learning_rate=rate, weight_decay=WEIGHT_DECAY)
  sets = [data.half_moons(seed) for seed in size.numbers]
  room = fit_room(learner, sets, size.numbers)
  tell("teaching", 0.0)
  labels, params = _labels_of_pools(room, steps, steps // frames)
  tell("looking for a line between the labels", 0.4)
  step = np.arange(labels.shape[1]) * (steps // frames)
  share = np.array(
    [np.mean([separable(x, frame) for frame in own]) for x, own in zip(np.asarray(room.pool.x), labels, strict=True)]
  )
  picture = LabelFrames(
    "Labels by LAST (one_hot) on half moons, the first seed",
    np.asarray(room.pool.x[0]),
    np.asarray(room.pool.y[0]),
    step,
    labels[0].astype(int),
    np.concatenate([params["weights"][0, :, :, 0], params["bias"][0]], -1),
    np.concatenate([np.asarray(room.target["weights"])[0, :, 0], np.asarray(room.target["bias"])[0]]),
  )
  claim = Claim(
    "The synthesized labels are always linearly separable.",
    [Comparison("share of the iterations looked at", 100 * share, "% of the iterations", 100.0 - 1e-6, every=True)],
    remark=f"By a linear program, at {len(step)} iterations of each seed.",
  )
  settings = {
    "seeds": size.seeds, "steps": steps, "learning rate": rate, "weight decay": WEIGHT_DECAY,
    "pool": "800 examples, drawn anew for each seed", "labels": "one-hot, for every point of the pool on its own",
  }  # fmt: skip
  return Outcome(settings, (picture,), (claim,))


_NOT_SEPARABLE = (
  "The best one-hot label of an example is 1 where ⟨w* − w, x⟩ + η (σ(⟨w, x⟩) − ½) ‖x‖² > 0. Far from the target the "
  "first term decides, which is a line; once w is within about η of w*, the second decides with it, which is curved."
)


def _labels_of_pools(room: Room, steps: int, every: int) -> tuple[np.ndarray, Any]:
  """For each seed and record: class of every example's label `[seeds, records, n]`, and parameters."""
  learner, rule = room.learner, constraints.one_hot()

  def label_pool(params: Params, pool: Any, goal: Params) -> Array:
    truth, student = learner.encode(pool.x, pool.y), learner.start(params)

    def one(x: Array, label: Array) -> Array:
      return synthesis.greedy_labels(learner, student, goal, x[None], label[None], rule)[0, 0]

    return jax.vmap(one)(pool.x, truth)

  def one_seed(keys: Any, pool: Any, goal: Params, init: Params) -> tuple[Array, Params]:
    result = students.teach_many(
      keys, learner, teachers.greedy(rule), pool, target=goal, init=init, steps=steps, record_every=every,
      metrics=(), probe=_itself,
    )  # fmt: skip
    params = jax.tree.map(lambda leaf: leaf[0], result.probe)
    return jax.lax.map(lambda each: label_pool(each, pool, goal), params), params

  labels, params = jax.jit(jax.vmap(one_seed))(room.keys, room.pool, room.target, room.init)
  return np.asarray(labels) > 0.5, jax.tree.map(np.asarray, params)


def _itself(params: Params) -> Params:
  return params


def separable(x: np.ndarray, labels: np.ndarray) -> bool:
  """Whether a hyperplane parts the points `x [n, d]` with label 1 from those with label 0, by a linear program."""
  from scipy.optimize import linprog

  sign = np.where(labels, 1.0, -1.0)[:, None]
  rows = -sign * np.concatenate([x, np.ones((len(x), 1))], 1)  # sign (⟨w, x⟩ + b) >= 1
  answer = linprog(np.zeros(rows.shape[1]), A_ub=rows, b_ub=-np.ones(len(x)), bounds=(None, None), method="highs")
  return answer.status == 0


# --- Digits.


def run_linear_examples(size: Size, tell: Tell) -> Outcome:
  """Logistic regression on 3/5."""
  per_digit = size.pick(50, 1000, 1000)
  learner = learners.logistic(24, learning_rate=1e-3, weight_decay=WEIGHT_DECAY)
  images = data.mnist((3, 5), folder=size.mnist_folder, train_per_digit=per_digit)
  fitted = target.fit_target(learner, images.train)
  return _run_examples(size, tell, learner, images, fitted, learner.init, per_digit, size.pick(200, 10_000, 20_000))


def run_mlp_examples(size: Size, tell: Tell) -> Outcome:
  """The network on 3/5."""
  per_digit = size.pick(20, 500, 500)
  task = mlp_task((3, 5), per_digit, size.mnist_folder)
  return _run_examples(size, tell, *task, per_digit, size.pick(50, 2_000, 5_000))


def _run_examples(
  size: Size, tell: Tell, learner: Any, images: Any, fitted: Any, starts: Any, per_digit: int, steps: int
) -> Outcome:
  room = make_room(learner, images, fitted, starts, size.numbers)
  tell("teaching", 0.0)
  teacher = teachers.greedy(constraints.one_hot())
  taught = teach_all(room, teacher, [(steps, steps)], metrics=(), lessons=True)
  index, label = (np.asarray(leaf)[:, 0, :, 0] for leaf in taught.lessons)  # [seeds, steps], [seeds, steps, 1]
  truth = np.asarray(learner.encode(images.train.x, images.train.y))[:, 0]
  changed = label[..., 0].round() != truth[index].round()  # [seeds, steps]
  tell("looking at the boundary", 0.7)
  margin = np.abs(np.asarray(learner.apply(fitted, images.train.x))[:, 0])[index]
  own = np.abs(_outputs_when_shown(room, taught.lessons))
  claims = (
    _nearer_boundary("Changed labels sit nearer the decision boundary of the target than kept ones.", margin, changed),
    _nearer_boundary(
      "Changed labels sit nearer the student's own decision boundary, when shown, than kept ones.", own, changed
    ),
  )
  digits = data.mnist_images((3, 5), folder=size.mnist_folder)[0]
  chosen = stratified(digits.digits, (3, 5), per_digit, 0, name="train_per_digit")
  galleries = _galleries(digits.images[chosen], digits.digits[chosen], index[0], changed[0])
  settings = {
    "seeds": size.seeds, "steps": steps, "learning rate": 1e-3, "weight decay": WEIGHT_DECAY,
    "pool": f"{len(images.train)} images, the same for all seeds",
    "labels changed": f"{100 * changed.mean():.1f} % of those shown",
  }  # fmt: skip
  return Outcome(settings, galleries, claims)


def _outputs_when_shown(room: Room, lessons: Any) -> np.ndarray:
  """The student's output for each example when it was shown, `[seeds, steps]`: the lessons are gone through again."""
  learner, x = room.learner, room.pool.x

  def iterate(student: Any, lesson: Any) -> tuple[Any, Array]:
    output = learner.apply(student.params, x[lesson.index])[0, 0]
    return learner.step(student, x[lesson.index], lesson.label), output

  def one(init: Params, lessons: Any) -> Array:
    return jax.lax.scan(iterate, learner.start(init), lessons)[1]

  return np.asarray(jax.jit(jax.vmap(jax.vmap(one)))(room.init, jax.tree.map(jnp.asarray, lessons)))[:, 0]


def _nearer_boundary(text: str, margin: np.ndarray, changed: np.ndarray) -> Claim:
  """Geometric means over what was shown, `[seeds, steps]`, of each seed."""
  sizes = np.log10(np.maximum(margin, np.finfo(np.float32).tiny))
  values = np.array([kept_less_changed(*pair) for pair in zip(sizes, changed, strict=True)])
  return Claim(text, [Comparison("changed against kept", values, "times nearer")])


def kept_less_changed(sizes: np.ndarray, changed: np.ndarray) -> float:
  """The mean of `sizes [steps]` where labels were kept less that where they were changed; NaN if either never was."""
  if changed.all() or not changed.any():
    return float("nan")
  return float(sizes[~changed].mean() - sizes[changed].mean())


def _galleries(images: np.ndarray, digits: np.ndarray, index: np.ndarray, changed: np.ndarray) -> tuple[Gallery, ...]:
  """The digits that the first seed was shown most often with another label, and some of those it never was."""
  times = np.bincount(index[changed], minlength=len(images))
  often = np.argsort(-times, kind="stable")[: min(_SHOWN, int((times > 0).sum()))]
  shown = np.unique(index)
  kept = shown[times[shown] == 0][:_SHOWN]

  def make(title: str, chosen: np.ndarray, caption: Any, description: str) -> Gallery:
    return Gallery(title, images[chosen], tuple(caption(int(i)) for i in chosen), description)

  other = {3: 5, 5: 3}
  return (
    make(
      "Shown most often with the other label (first seed)", often, lambda i: f"{digits[i]} as {other[int(digits[i])]}",
      "Digits whose label LAST changed most often: many are written unclearly.",
    ),
    make(
      "Never shown with the other label (first seed)", kept, lambda i: f"{digits[i]}",
      "Digits whose label LAST always kept.",
    ),
  )  # fmt: skip


FIGURES = (
  Figure(
    "labels_half_moons",
    "Synthesized labels on half moons",
    "Figure 9",
    "Which label one-hot LAST would give to every point, as the student (purple) comes to the optimum (green). Move "
    "the slider to go through the iterations.",
    run_half_moons,
    2.0,
    {"The synthesized labels": _NOT_SEPARABLE},
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
