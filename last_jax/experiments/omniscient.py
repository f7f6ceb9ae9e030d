"""Learned teachers that know the target: a softmax learner, a network, and which labels policy gradient may choose."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from last_jax import constraints, target, teachers
from last_jax.experiments.claims import Claim, Comparison, mean_log_ratio
from last_jax.experiments.classroom import Room, Taught, time_steps
from last_jax.experiments.config import Figure, Outcome, Size, Tell
from last_jax.experiments.greedy import nearer
from last_jax.experiments.trained import (
  FIVE_ACTIONS,
  TEN_ACTIONS,
  UNROLL_20,
  UNROLL_100,
  Task,
  Way,
  batch_sizes,
  beats,
  chart_of,
  describe,
  linear_task,
  make_classroom,
  network_task,
  policy_gradient,
  remark_on_training,
  train_all,
  try_out,
  unrolled,
)
from last_jax.teachers import Teacher, outputs


def run_omniscient_linear(size: Size, tell: Tell) -> Outcome:
  """All kinds of teachers by iteration and by wall time, at two sizes of batch."""
  task = linear_task(size)
  ways = {
    UNROLL_20: unrolled(size.pick(2, 300, 1000)),
    UNROLL_100: unrolled(size.pick(2, 60, 1000), horizon=100, reset=0.8),
    TEN_ACTIONS: policy_gradient(size.pick(2, 150, 1000), outputs.BINARY_AUGMENTED),
  }
  trained = train_all(task, ways, size, tell)
  room = make_classroom(task, size)
  last = teachers.greedy(constraints.simplex())
  others = [teachers.sgd(), teachers.imt(), last]
  first = {name: jax.tree.map(lambda leaf: leaf[0], teacher) for name, teacher in trained.items()}
  unreachable = float(np.mean([_unreachable(task, room, seed) for seed in range(min(4, room.seeds))]))
  charts, claims = [], []
  for place, batch_size in enumerate(batch_sizes(size)):
    tell(f"batches of {batch_size}", 0.8 + 0.1 * place)
    # A joint step of 128 soft labels is a problem of 128 unknowns: LAST would take longer than all else together.
    known = others if batch_size == 1 else others[:2]
    taught = try_out(room, trained, known, size, batch_size, ("distance",), runs=3 if batch_size == 1 else 1)
    together = {name: each.seconds[-1] / each.step[-1] for name, each in taught.items()}
    timed = {f"seconds once compiled, {room.seeds * room.students} students at once": together}
    if batch_size == 1 or size.name == "full":
      alone = _time_one(room, {teacher.name: teacher for teacher in known} | first, size, batch_size)
      timed = {"seconds once compiled, one student": alone} | timed
    title = f"Distance to the target, batch size {batch_size}"
    charts.append(chart_of(title, taught, timed, levels={"no label teaches this": unreachable}))
    claims += _omniscient_claims(taught, timed, batch_size, remark_on_training(size))
  more = {"IMT": "one example in each step, at both sizes of batch", "LAST": "at batch size 1 only"}
  return Outcome(describe(task, size, ways) | more, tuple(charts), tuple(claims))


def _unreachable(task: Task, room: Room, seed: int) -> float:
  start = jax.tree.map(lambda leaf: leaf[seed, 0], room.init)
  return float(target.unreachable_distance(task.learner, start, task.target, task.data.train.x))


def _time_one(room: Room, known: Mapping[str, Teacher], size: Size, batch_size: int) -> dict[str, float]:
  """Median seconds per step of one student, by method."""
  alone = room.first(1, 1)
  steps = size.pick(3, 300, 300)
  seconds: dict[str, np.ndarray] = {}
  if "IMT" in known:
    seconds |= time_steps([alone], {"IMT": known["IMT"]}, steps)[0]
  rest = {name: teacher for name, teacher in known.items() if name != "IMT"}
  seconds |= time_steps([alone], rest, steps, batch_size)[0]
  return {name: float(np.median(seconds[name])) for name in known}


def _omniscient_claims(
  taught: Mapping[str, Taught], timed: Mapping[str, Any], batch_size: int, remark: str
) -> list[Claim]:
  at = f", batch size {batch_size}"
  learned = (UNROLL_20, UNROLL_100, TEN_ACTIONS)
  others = [name for name in taught if name != "IMT"]
  return [
    Claim(
      f"Both kinds of learned teachers beat SGD{at}.",
      [comparison for name in learned for comparison in beats(taught, name, "SGD")],
      remark,
    ),
    Claim(f"IMT is first by iteration{at}.", [nearer(taught, "IMT", name) for name in others]),
    *(
      Claim(
        f"IMT is last by time ({axis.removeprefix('seconds once compiled, ')}){at}.",
        [nearer_by_time(taught, seconds, name, "IMT") for name in others],
        remark="Wall time is measured once compiled, medians of runs in turns, nothing recorded.",
      )
      for axis, seconds in timed.items()
    ),
    Claim(f"Unrolling 100 steps is better than 20{at}.", [nearer(taught, UNROLL_100, UNROLL_20)], remark),
    Claim(
      f"Policy gradient is ahead of unrolling{at}.",
      [nearer(taught, TEN_ACTIONS, UNROLL_20), nearer(taught, TEN_ACTIONS, UNROLL_100)],
      remark,
    ),
  ]


def nearer_by_time(taught: Mapping[str, Taught], seconds: Mapping[str, float], winner: str, loser: str) -> Comparison:
  """How many times nearer the one is than the other after equal wall time, on average over the time both have."""
  ends = [seconds[name] * taught[name].step[-1] for name in (winner, loser)]
  times = np.geomspace(min(ends) / 100, min(ends), 60)

  def at_times(name: str) -> np.ndarray:
    step, values = taught[name].step * seconds[name], np.log(taught[name].metrics["distance"])
    return np.exp([np.interp(times, step, each) for each in values])

  return Comparison(f"{winner} against {loser}", mean_log_ratio(times, at_times(loser), at_times(winner)))


_BY_TIME = (
  "All examples of the pool are scored by one matrix product, so a step of IMT takes a few times as long as one of "
  "SGD, not hundreds of times; where it is far ahead by iteration, it stays ahead by time. With larger pools that "
  "changes."
)


def run_omniscient_mlp(size: Size, tell: Tell) -> Outcome:
  """A network as the student, five digits."""
  tell("fitting the target", 0.0)
  episodes = size.pick(2, 100, 2000)
  ways = {UNROLL_20: unrolled(episodes)}

  def claim(taught: Mapping[str, Taught], batch_size: int) -> list[Claim]:
    text = f"Unrolling beats SGD, batch size {batch_size}."
    return [Claim(text, beats(taught, UNROLL_20, "SGD"), remark_on_training(size))]

  return _beside_sgd(network_task(size), ways, size, tell, claim)


def run_action_space(size: Size, tell: Tell) -> Outcome:
  """Policy gradient with five actions, and with their doubles as well."""
  episodes = size.pick(2, 150, 1000)
  ways = {
    FIVE_ACTIONS: policy_gradient(episodes, outputs.BINARY),
    TEN_ACTIONS: policy_gradient(episodes, outputs.BINARY_AUGMENTED),
  }

  def claim(taught: Mapping[str, Taught], batch_size: int) -> list[Claim]:
    text = f"Augmented actions are better than plain ones, batch size {batch_size}."
    return [Claim(text, [nearer(taught, TEN_ACTIONS, FIVE_ACTIONS)], remark_on_training(size))]

  return _beside_sgd(linear_task(size), ways, size, tell, claim)


def _beside_sgd(
  task: Task, ways: Mapping[str, Way], size: Size, tell: Tell, claim: Callable[[Mapping[str, Taught], int], list[Claim]]
) -> Outcome:
  """Trains teachers and tries them out beside SGD, at both sizes of batch."""
  trained = train_all(task, ways, size, tell)
  room = make_classroom(task, size)
  charts, claims = [], []
  for batch_size in batch_sizes(size):
    tell(f"batches of {batch_size}", 0.9)
    taught = try_out(room, trained, [teachers.sgd()], size, batch_size, ("distance",))
    charts.append(chart_of(f"Distance to the target, batch size {batch_size}", taught))
    claims += claim(taught, batch_size)
  return Outcome(describe(task, size, ways), tuple(charts), tuple(claims))


FIGURES = (
  Figure(
    "omniscient_linear",
    "Learned teachers: softmax on MNIST 3/5",
    "Figures 12 and 17",
    "Networks trained to teach, beside greedy LAST, IMT and SGD, by iteration and by wall time (choose the x axis). "
    "Part of the distance, marked in the chart, is the same for both classes and cannot be taught by any label.",
    run_omniscient_linear,
    12.0,
    {"IMT is last by time": _BY_TIME},
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
