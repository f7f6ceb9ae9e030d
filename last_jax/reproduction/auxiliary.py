"""Beyond the paper: labels that carry a model through outputs that have nothing to do with its task.

A network has ten outputs for the digits and three that mean nothing. A teacher, another network of the same shape, was
trained on digits through the ten alone. Its student is trained through the three alone, on images of noise, and then
its ten outputs are tested on digits. ("Subliminal learning" takes the teacher's own outputs as labels.)
"""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from last_jax import advice, constraints, data, distances, learners, models, teachers, teaching, tools
from last_jax.base import Array, Key, Params, Pool, Records
from last_jax.learners import Learner
from last_jax.problem import Problem
from last_jax.reproduction import methods, results
from last_jax.reproduction.claims import Claim, Comparison, Reading
from last_jax.reproduction.config import Figure, Method, Outcome, Size, Tell
from last_jax.reproduction.results import POINTS, Distances
from last_jax.tools.charts import Chart, Level

_CLASSES, _AUXILIARY = 10, 3
# The published recipe. Chosen for this figure, by the accuracy of seeds that it does not use: the rates of `_ADAM` and
# `_SGD`, both for squared errors.
_PUBLISHED, _PUBLISHED_BATCHES = 3e-4, 4
_ADAM, _SGD = 1e-3, 0.2
_RADIUS = 1.0
_CHANCE, _LEVEL = 10.0, 5.0  # Points of accuracy; "level with chance" is at most 5 points above.
_RECORDS = 20
_STARTS = ("the same start", "another start")


class Way(NamedTuple):
  """A method with the learner that it teaches, and the number of images in a batch."""

  method: Method
  learner: Learner
  batch_size: int


class Setting(NamedTuple):
  """One seed: a teacher, and what its students get to see."""

  key: Key
  target: Params  # The teacher's parameters.
  starts: tuple[Params, Params]  # The teacher's own start, and another.


class Course(NamedTuple):
  """What is measured of students, `[seeds, records]`."""

  accuracy: Any
  distance: Any
  reachable: Any  # Of the distance: all but the class weights.


def network(hidden: int) -> models.Mlp:
  """784–hidden–hidden–(10 + 3), ReLU."""
  return models.Mlp((784, hidden, hidden, _CLASSES + _AUXILIARY), "relu", True)


def init(net: models.Mlp, key: Key) -> Params:
  """Return weights of variance 1 / fan-in, as published, and biases of zero."""
  return jax.tree.map(lambda leaf: leaf * 0.5**0.5, net.init(key))


def class_outputs(net: models.Mlp, params: Params, x: Array) -> Array:
  """Return the outputs for the digits, `[m, 784] -> [m, 10]`."""
  return net.apply(params, x)[:, :_CLASSES]


def auxiliary_outputs(net: models.Mlp, params: Params, x: Array) -> Array:
  """Return the outputs that mean nothing, `[m, 784] -> [m, 3]`."""
  return net.apply(params, x)[:, _CLASSES:]


def make_learner(net: models.Mlp, outputs: Any, loss: str, **settings: Any) -> Learner:
  """Return a learner whose loss sees some of the outputs: `class_outputs` or `auxiliary_outputs`."""
  return learners.from_apply(functools.partial(init, net), functools.partial(outputs, net), loss, **settings)


def with_class_weights(params: Params, other: Params) -> Params:
  """Return the parameters with the weights and biases of the class outputs, which no label can change, of `other`."""
  last = max(params)
  head = jax.tree.map(
    lambda own, theirs: jnp.concatenate([theirs[..., :_CLASSES], own[..., _CLASSES:]], -1), params[last], other[last]
  )
  return params | {last: head}


def make_ways(net: models.Mlp, batch_size: int) -> list[Way]:
  """Return the published recipe, the same with squared errors, and exact labels within a radius and free."""
  regression = functools.partial(make_learner, net, auxiliary_outputs, "squared_error")
  own, sgd, ball = teachers.sgd(), regression(learning_rate=_SGD), constraints.magnitude(_RADIUS)

  def named(key: str, name: str, method: Method, **look: Any) -> Method:
    return method._replace(key=key, teacher=dataclasses.replace(method.teacher, name=name), **look)

  published = make_learner(net, auxiliary_outputs, "softmax_cross_entropy", optimizer=optax.adam(_PUBLISHED))
  return [
    Way(
      named("published", "teacher's outputs, as published", Method("", own, "distillation")), published,
      _PUBLISHED_BATCHES * batch_size,
    ),
    Way(
      named("adam", "teacher's outputs, squared error, Adam", Method("", own, "learned", "unrolled 20")),
      regression(optimizer=optax.adam(_ADAM)), batch_size,
    ),
    Way(named("sgd", "teacher's outputs, squared error, SGD", methods.sgd()), sgd, batch_size),
    Way(named("bounded", f"exact labels within r = {_RADIUS:g}", methods.greedy(ball)), sgd, batch_size),
    Way(named("free", "exact labels, free", methods.greedy(constraints.none())), sgd, batch_size),
  ]  # fmt: skip


def run_channel(size: Size, tell: Tell) -> Outcome:
  """Teachers of digits, students of noise."""
  hidden, steps = size.pick(16, 64, 256), size.pick(10, 100, 300)
  batch_size, images = size.pick(16, 64, 256), size.pick(512, 16_384, 60_000)
  digits = data.mnist(
    range(_CLASSES), folder=size.mnist_folder, num_features=None, centred=True,
    train_per_digit=size.pick(20, None, None),
  )  # fmt: skip
  assert digits.test is not None
  train, test = (Pool(_flat(pool.x), pool.y) for pool in (digits.train, digits.test))
  net = network(hidden)
  ways = make_ways(net, batch_size)
  noise = jax.random.uniform(jax.random.key(4), (images, net.num_features), minval=-1.0, maxval=1.0)
  record_every = max(1, steps // _RECORDS)
  step: Any = np.arange(0, steps + 1, record_every)

  measured: dict[tuple[str, str], list[Course]] = {}
  bounds: list[Any] = []
  for place, seed in enumerate(size.numbers):
    tell(f"seed {seed}: training its teacher", place / size.seeds)
    setting = draw_setting(net, train, seed, steps=size.pick(30, 200, 300), batch_size=4 * batch_size)
    bounds.append(_bounds(net, ways[-1], setting, noise, test))
    for number, (where, start) in enumerate(zip(_STARTS, setting.starts, strict=True)):
      for turn, way in enumerate(ways):
        share = (number + (turn + 1) / len(ways)) / len(_STARTS)
        tell(f"seed {seed}, {where}: {way.method.name}", (place + share) / size.seeds)
        course = _teach(net, setting, way, start, noise, test, steps, record_every)
        measured.setdefault((where, way.method.key), []).append(course)
  courses = {place: Course(*map(np.stack, zip(*each, strict=True))) for place, each in measured.items()}
  bound = jax.tree.map(lambda *each: np.array(each), *bounds)

  floor = tools.rounding_floor(setting.target)
  charts, compared = [], {}
  for where in _STARTS:
    own = {way.method.key: courses[where, way.method.key] for way in ways}
    compared[where] = Distances(
      {key: Records(step, distance=each.distance, accuracy=each.accuracy) for key, each in own.items()}, floor,
      reachable={key: each.reachable for key, each in own.items()},
    )  # fmt: skip
    charts += _charts([way.method for way in ways], compared[where], where, bound)
  settings = {
    "seeds": size.seeds,
    "steps": steps,
    "network": f"784–{hidden}–{hidden}–(10 + 3), ReLU, weights of variance 1 / fan-in",
    "teacher": f"Adam, rate {_PUBLISHED:g}, {4 * batch_size} images a step, pixels in [−1, 1]",
    "noise": f"{images:,} images, the same for all seeds, pixels uniform in [−1, 1]",
    "batch size": f"{batch_size}, as published: {_PUBLISHED_BATCHES * batch_size}",
    "as published": f"cross-entropy of the three outputs' softmax, Adam, rate {_PUBLISHED:g}",
    "squared error": f"Adam, rate {_ADAM:g}; SGD, rate {_SGD:g}, also for exact labels",
    "no label changes": f"the weights of the class outputs, {100 * bound['class weights'].mean():.1f} % of ‖w₀ − w*‖ "
    "from the same start",
    "teacher's accuracy": f"{100 * bound['teacher'].mean():.1f} %, with the class weights of its start "
    f"{100 * bound['kept'].mean():.1f} %",
    "the labels of one batch take away": f"{100 * bound['same'].mean():.2f} % of the distance at the same start, "
    f"{100 * bound['other'].mean():.2f} % at another",
  }
  return Outcome(settings, (charts[1], charts[3], charts[0], charts[2]), _claims(size, ways, compared))


def _flat(x: Array) -> Array:
  return x.reshape(x.shape[0], -1)


def draw_setting(net: models.Mlp, train: Pool, seed: int, *, steps: int, batch_size: int) -> Setting:
  """Train the teacher of a seed on digits, and draw its students' starts."""
  start_key, other_key, teacher_key, own_key = jax.random.split(jax.random.fold_in(jax.random.key(3), seed), 4)
  learner = make_learner(net, class_outputs, "softmax_cross_entropy", optimizer=optax.adam(_PUBLISHED))
  problem, sgd = Problem(learner, train), teachers.sgd()
  state = teaching.init(teacher_key, problem, sgd, params=learner.init(start_key))
  starts = state.params, learner.init(other_key)
  state, _ = teaching.run(state, problem, sgd, steps=steps, batch_size=batch_size, record_every=steps, metrics=())
  return Setting(own_key, state.params, starts)


def make_problem(learner: Learner, target: Params, noise: Array) -> Problem:
  """Return the student's problem: noise `[n, 784]`, with the labels that the teacher itself gives as this learner."""
  return Problem(learner, Pool(noise, learner.loss.predict_all(learner.apply(target, noise))), target=target)


def _teach(
  net: models.Mlp, setting: Setting, way: Way, start: Params, noise: Array, test: Pool, steps: int, record_every: int
) -> Course:
  problem = make_problem(way.learner, setting.target, noise)
  state = teaching.init(setting.key, problem, way.method.teacher, params=start)
  _, records = teaching.run(
    state, problem, way.method.teacher, steps=steps, batch_size=way.batch_size, record_every=record_every, metrics=(),
    probe=_identity,
  )  # fmt: skip
  params = jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), start, records.probe)
  return Course(*map(np.asarray, _measure(net, params, setting.target, test)))


def _identity(params: Params) -> Params:
  return params


@functools.partial(jax.jit, static_argnames="net")
def _measure(net: models.Mlp, params: Params, target: Params, test: Pool) -> tuple[Array, Array, Array]:
  """Return test accuracy, distance and its reachable part, `[records]`, of parameters `[records, ...]`."""

  def measure(params: Params) -> tuple[Array, Array, Array]:
    return (
      accuracy(net, params, test),
      distances.distance(params, target),
      distances.distance(with_class_weights(params, target), target),
    )

  return jax.lax.map(measure, params)


def accuracy(net: models.Mlp, params: Params, test: Pool) -> Array:
  """Return the share of digits that the class outputs tell right, `[]`."""
  return jnp.mean(jnp.argmax(class_outputs(net, params, test.x), -1) == test.y)


def _bounds(net: models.Mlp, free: Way, setting: Setting, noise: Array, test: Pool) -> dict[str, float]:
  """Return the accuracy of the teacher, also with the class weights of its start, and what labels can reach."""
  same, other = setting.starts
  problem = make_problem(free.learner, setting.target, noise)
  x, y = problem.pool.x[: free.batch_size], problem.truth[: free.batch_size]
  kept = with_class_weights(setting.target, same)
  return {
    "teacher": float(accuracy(net, setting.target, test)),
    "kept": float(accuracy(net, kept, test)),
    "distance": float(distances.distance(kept, setting.target)),
    "class weights": float(distances.distance(kept, setting.target) / distances.distance(same, setting.target)),
    "same": advice.reach(free.learner, same, setting.target, x, y).share,
    "other": advice.reach(free.learner, other, setting.target, x, y).share,
  }


def _charts(ways: Sequence[Method], compared: Distances, where: str, bound: Mapping[str, np.ndarray]) -> list[Chart]:
  """Return the charts of distance and of accuracy from one start."""
  levels = {
    "accuracy": [Level("teacher", float(bound["teacher"].mean())), Level("chance", _CHANCE / 100)],
    "distance": [],
  }
  if where == _STARTS[0]:
    levels["distance"].append(Level("beyond all labels", float(bound["distance"].mean()), floor=True))
  charts = results.charts(ways, compared.records, {}, levels=levels, suffix=f", {where}")
  return [chart._replace(log=False) for chart in charts]


def _claims(size: Size, ways: Sequence[Way], compared: Mapping[str, Distances]) -> tuple[Claim, ...]:
  published, adam, sgd, bounded, free = every = [way.method for way in ways]
  same, other = (compared[where] for where in _STARTS)
  needed = "" if size.name == "full" else "full"

  def points(where: Distances, method: Method) -> np.ndarray:
    return 100 * np.asarray(where.records[method.key].accuracy)

  def ahead(winner: Method, loser: Method) -> list[Comparison]:
    return results.more_accurate(same.records, winner, loser)

  def carried(exact: Method, text: str) -> Claim:
    return Claim(
      f"From the same start, {text} carry more of the digits than the published recipe does, at equal steps.",
      ahead(exact, published),
      remark=f"By test accuracy. The published recipe sees {_PUBLISHED_BATCHES} times as many images.",
      readings=[
        Reading(
          "adam", f"the recipe with squared errors, Adam at its best rate, {_ADAM:g}", ahead(exact, adam), _ADAMS
        ),
        Reading("sgd", "the recipe with squared errors, by the same SGD as exact labels", ahead(exact, sgd)),
      ],
      size=needed,
    )

  return (
    carried(free, "exact labels, free,"),
    carried(bounded, f"exact labels within {_RADIUS:g} of the teacher's outputs"),
    Claim(
      "The teacher's outputs carry digits: students of the same start become more accurate than those of another.",
      [
        Comparison(f"{each.name}, same start against another", points(same, each)[:, -1] - points(other, each)[:, -1],
                   POINTS, part="end")
        for each in (published, adam, sgd)
      ],
      size=needed,
    ),
    Claim(
      f"From another start no labels carry digits: accuracy is at most {_LEVEL:g} points above chance.",
      [
        Comparison(f"{each.name}: chance less accuracy", _CHANCE - points(other, each)[:, -1], POINTS, -_LEVEL,
                   part="end")
        for each in every
      ],
      size=needed,
    ),
    Claim(
      "From the same start, exact labels lead nearer to the teacher's parameters than its outputs do.",
      [each for recipe in (published, adam, sgd) for each in same.beats(free, recipe)],
      size=needed,
    ),
  )  # fmt: skip


_ADAMS = (
  "Each step of exact labels goes as near to w* as one step can, and no farther. Adam gives each weight a pace of its "
  "own: its students end farther from w* than they began, but in directions that matter for the outputs."
)


FIGURES = (
  Figure(
    "auxiliary_channel",
    "Labels that carry a model through an unrelated channel",
    "Beyond the paper",
    "A network for digits has three more outputs, which mean nothing. A student that is trained through these three "
    "alone, on images of noise, learns digits that it never saw: by the outputs of a teacher that had the same start "
    '("subliminal learning"), and by exact labels, which lead to the teacher\'s parameters.',
    run_channel,
    8.0,
  ),
)
