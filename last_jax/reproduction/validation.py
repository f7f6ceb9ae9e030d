"""Teaching a network without w*: labels that lower the loss on examples to be trusted, and what a step of it costs."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import Partial

from last_jax import constraints, data, learners, targets, teachers, teaching
from last_jax.base import Array, Pool, Records, Teacher
from last_jax.constraints import Constraint
from last_jax.problem import Problem
from last_jax.reproduction import methods, results, seeds
from last_jax.reproduction.claims import Claim, Comparison, Reading
from last_jax.reproduction.config import Figure, Method, Outcome, Size, Tell
from last_jax.reproduction.results import POINTS
from last_jax.tools.styles import Variant

_CLASSES, _HIDDEN = 10, 64
_BATCH, _FRESH = 8, 200
_RATE, _SMALL_RATE, _NOISY_RATE = 0.5, 0.1, 0.1
_NOISE = 0.6
_NOISY_DAMPING = 1.0  # Clean examples are few: the more damping, the later they are fitted at the cost of others.


def load(size: Size) -> tuple[Pool, Pool, Pool]:
  """Return a pool to teach from, a fourth as many examples to be trusted, and a test pool: digits of 7 × 7 pixels."""
  images = data.mnist(
    range(_CLASSES), folder=size.mnist_folder, num_features=None, train_per_digit=size.pick(25, 500, 500)
  )
  assert images.test is not None
  train, test = (Pool(shrunk(pool.x), pool.y) for pool in (images.train, images.test))
  order = np.random.default_rng(0).permutation(len(train))
  first, rest = np.split(order, [len(train) * 4 // 5])
  return Pool(train.x[first], train.y[first]), Pool(train.x[rest], train.y[rest]), test


def shrunk(x: Any) -> np.ndarray:
  """Return means over 4 × 4 pixels: `[n, 28, 28, 1] -> [n, 49]`."""
  return np.asarray(x).reshape(-1, 7, 4, 7, 4).mean((2, 4)).reshape(-1, 49)


def with_noise(y: Any) -> np.ndarray:
  """Return class ids of which some, a share of `_NOISE`, are drawn at random."""
  random, y = np.random.default_rng(1), np.asarray(y)
  return np.where(random.uniform(size=y.shape) < _NOISE, random.integers(0, _CLASSES, y.shape), y).astype(np.int32)


def run_validation_loss(size: Size, tell: Tell) -> Outcome:
  """Labels that are right, at two rates; and labels that are mostly wrong, beside a few that are right."""
  pool, clean, test = load(size)
  steps = size.pick(6, 100, 300)
  pretrained = Partial(_learner(_RATE).apply, _train(pool, size))
  sgd, distillation = methods.sgd(), Method("distillation", teachers.distillation(pretrained, 2.0), "distillation")
  free, ball, simplex = chosen = [_greedy(each, pool) for each in (constraints.none(), *_sets())]
  ways = [sgd, distillation, *chosen]
  if size.name != "usual":  # Free labels take the longest.
    ways.append(_greedy(constraints.none(), pool, 0.0, "no damping", 5))

  def teach(rate: float, pool: Pool, ways: Sequence[Method], share: float, **settings: Any) -> dict[str, Records]:
    problem = Problem(_learner(rate), pool, test=test)
    students = seeds.draw_students(problem.learner.init, size.numbers)
    return seeds.teach_all(
      problem, students, ways, [(steps, max(1, steps // 30))], lambda text, part: tell(text, share + 0.3 * part),
      batch_size=_BATCH, metrics=("accuracy",), **settings,
    )[0]  # fmt: skip

  programs: seeds.Programs = {}  # Of both rates.
  records = teach(_RATE, pool, ways, 0.0, programs=programs)
  small = teach(_SMALL_RATE, pool, [sgd, ball, simplex], 0.3, programs=programs)
  tell("timing", 0.6)
  problem = Problem(_learner(_RATE), pool, test=test)
  first = seeds.draw_students(problem.learner.init, size.numbers).first()
  timed = seeds.time_steps(problem, first, ways, size.pick(3, 30, 100), _BATCH)
  seconds = {key: float(np.median(values)) for key, values in timed.items()}

  noisy = Pool(pool.x, with_noise(pool.y))
  # With looks of their own: the same sets, on other examples.
  trusting = [_greedy(each, clean, _NOISY_DAMPING, "clean validation", look) for look, each in enumerate(_sets(), 6)]
  wrong = teach(_NOISY_RATE, noisy, [sgd, *trusting], 0.65, lessons=True)
  only_clean = Method("sgd:clean", dataclasses.replace(teachers.sgd(), name="SGD on the clean examples"), "other", 3)
  wrong |= teach(_NOISY_RATE, clean, [only_clean], 0.95)

  facts = {
    "seeds": size.seeds,
    "steps": steps,
    "learner": f"49–{_HIDDEN}–{_CLASSES}, ReLU, on MNIST of 7 × 7 pixels",
    "learning rate": f"{_RATE:g} and {_SMALL_RATE:g}; noisy labels: {_NOISY_RATE:g}",
    "batch size": _BATCH,
    "pool": f"{len(pool):,} examples",
    "validation": f"{_FRESH} fresh examples of the pool in each step, damping 0.1; noisy labels: of {len(clean):,} "
    f"other examples, whose labels are right, damping {_NOISY_DAMPING:g}",
    "distillation": "from a network of another start, temperature 2",
    "time of a step": ", ".join(
      f"{each.name}: {seconds[each.key] / seconds[sgd.key]:.3g} times that of SGD" for each in ways[1:]
    ),
    "noisy labels": f"a share of {_NOISE:g} drawn at random",
    "labels that are right": f"{100 * np.mean(np.asarray(noisy.y) == np.asarray(pool.y)):.0f} % of the noisy pool's; "
    f"{share_right(wrong[trusting[1].key], pool.y):.0f} % of the soft labels shown, by their largest number",
  }
  charts = (
    *results.charts(ways, records, {"seconds once compiled, one student": seconds}, suffix=f", rate {_RATE:g}"),
    *results.charts([sgd, ball, simplex], small, {}, suffix=f", rate {_SMALL_RATE:g}"),
    *results.charts([sgd, *trusting, only_clean], wrong, {}, suffix=", noisy labels"),
  )
  ahead = results.more_accurate

  def beats_sgd(way: Method, text: str, because: str) -> Claim:
    reading = Reading("small rate", f"rate {_SMALL_RATE:g} in place of {_RATE:g}", ahead(small, way, sgd), because)
    return Claim(
      f"{text} for a lower validation loss beat SGD on true labels.", ahead(records, way, sgd), "", because, [reading]
    )

  claims = [
    beats_sgd(ball, "Labels within 2 of the truth", ""),
    beats_sgd(simplex, "Soft labels", _BINDING),
    Claim(
      "Labels within 2 of the truth for a lower validation loss beat distillation.",
      ahead(records, ball, distillation), because=_LATE,
    ),
    *(
      Claim(
        "Free labels for a lower validation loss need damping: with it they are ahead of those without.",
        ahead(records, free, undamped),
      )
      for undamped in ways[5:]
    ),
    Claim(
      "Labels within 2 of the truth for a lower validation loss are ahead of SGD after equal time too.",
      [at_equal_time(records, seconds, ball, sgd)], "Time of one student, once compiled, nothing recorded.", _COST,
    ),
    *(
      Claim(
        f"Where {100 * _NOISE:g} % of the labels are random, {name} for a lower loss on clean examples beat SGD on "
        f"{what}.",
        ahead(wrong, way, other), because=because,
      )
      for name, way, because in zip(("labels within 2 of them", "soft labels"), trusting, ("", _WITHIN), strict=True)
      for what, other in (("the noisy ones", sgd), ("the clean examples alone", only_clean))
    ),
  ]  # fmt: skip
  return Outcome(facts, charts, tuple(claims))


def _sets() -> tuple[Constraint, Constraint]:
  return constraints.magnitude(2.0), constraints.simplex()


def _learner(rate: float) -> learners.Learner:
  return learners.mlp((49, _HIDDEN, _CLASSES), learning_rate=rate)


def _train(pool: Pool, size: Size) -> Any:
  """Return the parameters of a network that SGD trained from another start."""
  steps = size.pick(20, 3_000, 3_000)
  learner, key = _learner(0.1), jax.random.key(10**6)
  result = teaching.teach(
    key, learner, teachers.sgd(), pool, steps=steps, batch_size=32, record_every=steps, metrics=()
  )
  return result.params


def _greedy(
  constraint: Constraint, pool: Pool, damping: float = 0.1, note: str = "", variant: Variant | None = None
) -> Method:
  toward = targets.loss(pool, batch_size=_FRESH, damping=damping)
  teacher: Teacher = teachers.greedy(constraint, toward)
  name = ", ".join(filter(None, (f"LAST ({constraint.name}) on the loss", note)))
  key = f"greedy:{constraint.name}:{note}"
  look = methods.label_set(constraint) if variant is None else variant
  return Method(key, dataclasses.replace(teacher, name=name), "greedy", look)


def share_right(records: Records, truth: Array) -> float:
  """Return the share of the labels shown whose largest number is that of the true class, in percent."""
  assert records.lessons is not None
  shown = np.argmax(np.asarray(records.lessons.label), -1)
  return float(100 * np.mean(shown == np.asarray(truth)[np.asarray(records.lessons.index)]))


def at_equal_time(
  records: Mapping[str, Records], seconds: Mapping[str, float], winner: Method, loser: Method
) -> Comparison:
  """Compare accuracies on average over the time that both have; `seconds` per step by method."""
  end = min(seconds[each.key] * records[each.key].step[-1] for each in (winner, loser))
  times = np.linspace(0.0, end, 61)[1:]

  def mean(method: Method) -> np.ndarray:
    own = records[method.key]
    axis = seconds[method.key] * own.step
    return np.array([np.interp(times, axis, each).mean() for each in np.asarray(own.accuracy)])

  return Comparison(f"{winner.name} against {loser.name}, at equal time", 100 * (mean(winner) - mean(loser)), POINTS)


_BINDING = (
  "The rate decides: a soft label can move the outputs by no more than the rate allows, and the best one often lies "
  "beyond the simplex. Free labels make up for a small rate."
)
_LATE = "Distillation needs a trained network, and is slower at first; the longer the run, the smaller the difference."
_COST = (
  "It saves lessons, not computing: in each step the kernel between the batch and the validation examples is computed."
)
_WITHIN = (
  "The set decides, as with labels that are right and a small rate: more of the soft labels are right than of the "
  "pool's, but they move the outputs by less than the best labels would."
)


FIGURES = (
  Figure(
    "validation_loss",
    "Teaching a network without w*",
    "Beyond the paper",
    "A network learns digits from labels that lower its loss on other examples, without a trained network or w*: in "
    "how many lessons, and at what cost (choose the x axis); and with a pool most of whose labels are wrong.",
    run_validation_loss,
    4.0,
  ),
)
