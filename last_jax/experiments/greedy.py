"""Greedy teaching: least squares, logistic regression and a network, taught by SGD, IMT, LAST and mixed teaching."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from last_jax import constraints, data, learners, report, target, teachers, training
from last_jax.constraints import Constraint
from last_jax.experiments.claims import Claim, Comparison, mean_log_ratio
from last_jax.experiments.classroom import Room, Taught, fit_room, make_room, teach_all, time_steps
from last_jax.experiments.config import Figure, Outcome, Size, Tell
from last_jax.learners import Learner
from last_jax.report.page import Chart, Line
from last_jax.teachers import Teacher

WEIGHT_DECAY = 5e-5
BY_FAR = np.log10(2.0)  # The paper's "by far" and "much cheaper": at least twice.
LEVEL = np.log10(1.1)  # "Level with": no more than a tenth farther.


def choosing(sets: Sequence[Constraint]) -> list[Teacher]:
  """LAST and mixed teaching with each of the label sets."""
  return [teachers.greedy(each) for each in sets] + [teachers.mixed(each) for each in sets]


def class_sets() -> list[Constraint]:
  """One-hot labels, soft ones, any."""
  return [constraints.one_hot(), constraints.simplex(), constraints.none()]


def teach_by_all(room: Room, methods: Sequence[Teacher], schedule: Any, tell: Tell) -> dict[str, Taught]:
  """Each method's curves, by its name."""
  taught = {}
  for place, teacher in enumerate(methods):
    tell(f"compiling and teaching: {teacher.name}", place / len(methods))
    taught[teacher.name] = teach_all(room, teacher, schedule)
  return taught


def charts_of(room: Room, taught: Mapping[str, Taught], *, x_log: bool) -> tuple[Chart, ...]:
  """One chart per metric that was recorded."""
  charts = []
  everyone = f"seconds once compiled, {room.seeds * room.students} students at once"
  for panel in report.PANELS:
    if all(panel.metric in each.metrics for each in taught.values()):
      lines = tuple(
        Line(name, panel.scale * each.metrics[panel.metric], {"iteration": each.step, everyone: each.seconds})
        for name, each in taught.items()
      )
      levels = {name: panel.scale * value for name, value in _levels(room, panel.metric).items()}
      charts.append(Chart(panel.title, panel.label, lines, report.needs_log(panel.metric, lines), x_log, levels))
  return tuple(charts)


def _levels(room: Room, metric: str) -> dict[str, float]:
  """What the target itself has, and how near to it numbers can tell: means over seeds."""
  if metric == "distance":
    return {f"float{8 * room.pool.x.dtype.itemsize} rounding": room.rounding_floor}
  targets = jax.tree.map(lambda leaf: leaf if room.own_data else leaf[None], room.target)
  pool = room.test if metric == "accuracy" else room.pool
  axis = 0 if room.own_data else None

  def measure(params: Any, pool: Any) -> Any:
    labels = room.learner.encode(pool.x, pool.y)
    function = room.learner.accuracy if metric == "accuracy" else room.learner.objective
    return function(params, pool.x, labels)

  values = jax.jit(jax.vmap(measure, (0, axis)))(targets, pool)
  return {"target": float(np.mean(values))}


def nearer(taught: Mapping[str, Taught], winner: str, loser: str, margin: float = 0.0) -> Comparison:
  """How many times nearer to the target the one is than the other, on average over the run."""
  one, other = taught[winner], taught[loser]
  values = mean_log_ratio(one.step, other.metrics["distance"], one.metrics["distance"], one.floor)
  return Comparison(f"{winner} against {loser}", values, margin=margin)


def nearer_at_end(taught: Mapping[str, Taught], winner: str, loser: str) -> Comparison:
  """How many times nearer to the target the one is than the other after the last step."""
  ends = [np.log10(np.maximum(taught[name].metrics["distance"][:, -1], taught[name].floor)) for name in (loser, winner)]
  return Comparison(f"{winner} against {loser}, after the last step", ends[0] - ends[1])


def _settings(room: Room, schedule: Any, learning_rate: float, **more: Any) -> dict[str, Any]:
  return {
    "seeds": room.seeds,
    "steps": sum(steps for steps, _ in schedule),
    "learning rate": learning_rate,
    "weight decay": WEIGHT_DECAY,
    "pool": f"{room.pool.y.shape[-1]} examples"
    + (", drawn anew for each seed" if room.own_data else ", the same for all seeds"),
    "batch size": 1,
    **more,
  }


# --- Least squares.


def run_lsr(size: Size, tell: Tell) -> Outcome:
  """Labels within r of the truth, and any."""
  rate = 1e-3
  learner = learners.least_squares(4, learning_rate=rate, weight_decay=WEIGHT_DECAY)
  room = fit_room(learner, [data.regression(seed) for seed in size.numbers], size.numbers)
  balls = [constraints.magnitude(radius) for radius in (0.5, 1.0, 2.0)]
  free = constraints.none()
  last = [teachers.greedy(each) for each in (*balls, free)]
  mixed = [teachers.mixed(each) for each in (balls[-1], free)]
  steps = size.pick(500, 10_000, 20_000)
  schedule = [(steps, max(1, steps // 1000))]
  taught = teach_by_all(room, [teachers.sgd(), teachers.imt(), *last, *mixed], schedule, tell)
  names = [teacher.name for teacher in last]
  claims = (
    Claim(
      "Labels that may stray farther from the truth teach faster: r = 0.5, 1, 2, none.",
      [nearer(taught, more, less) for less, more in itertools.pairwise(names)],
    ),
    Claim("LAST with r = 2 is ahead of IMT.", [nearer(taught, names[2], "IMT")]),
    Claim(
      "Mixed teaching beats IMT, and LAST with the same labels.",
      [nearer(taught, each.name, "IMT") for each in mixed]
      + [nearer(taught, each.name, each.name.replace("mixed", "LAST")) for each in mixed],
    ),
  )
  return Outcome(_settings(room, schedule, rate), charts_of(room, taught, x_log=True), claims)


_LSR_IMT = (
  "IMT picks the example with the largest useful step out of the whole pool, so it moves several times as far in each "
  "of the first iterations; LAST with r = 2 catches up once random examples are enough, and reaches the rounding "
  "floor first. Over the run as a whole, decades of iterations counting alike, the first counts."
)


# --- Logistic regression.


def run_half_moons(size: Size, tell: Tell) -> Outcome:
  """Two features."""
  sets = [data.half_moons(seed) for seed in size.numbers]
  return _run_logistic(size, tell, sets, 1e-4, size.pick(1_000, 50_000, 300_000), beats_imt=False)


def run_gaussian(size: Size, tell: Tell) -> Outcome:
  """Four features, much noise."""
  sets = [data.gaussian(seed) for seed in size.numbers]
  return _run_logistic(size, tell, sets, 1e-4, size.pick(1_000, 50_000, 100_000), beats_imt=True)


def run_mnist_35(size: Size, tell: Tell) -> Outcome:
  """24 random features of images."""
  digits = data.mnist((3, 5), folder=size.mnist_folder)
  return _run_logistic(size, tell, digits, 1e-3, size.pick(500, 20_000, 20_000), beats_imt=False)


def _run_logistic(size: Size, tell: Tell, sets: Any, rate: float, steps: int, *, beats_imt: bool) -> Outcome:
  shared = not isinstance(sets, list)
  num_features = (sets if shared else sets[0]).train.x.shape[1]
  learner = learners.logistic(num_features, learning_rate=rate, weight_decay=WEIGHT_DECAY)
  if shared:
    room = make_room(learner, sets, target.fit_target(learner, sets.train), learner.init, size.numbers)
  else:
    room = fit_room(learner, sets, size.numbers)
  # Often, or what LAST does without a constraint would not be seen; in a long run, the first steps apart.
  schedule = size.pick([(steps, 1)], [(steps, steps // 5_000)], [(1_000, 5), (steps - 1_000, steps // 500)])
  joint = teachers.mixed(constraints.none(), joint=True)
  methods = [teachers.sgd(), teachers.imt(), *choosing(class_sets()), joint]
  taught = teach_by_all(room, methods, schedule, tell)
  claims = (
    _every_last_beats_sgd(taught),
    _mixed_is_best(taught),
    Claim(
      "Example and label chosen together, without a constraint, are the best of all (not in the paper).",
      [nearer(taught, joint.name, name) for name in taught if name != joint.name],
    ),
    Claim("LAST without a constraint is ahead of IMT.", [nearer(taught, "LAST (none)", "IMT")])
    if beats_imt
    else Claim(
      "LAST without a constraint is level with IMT (at most a tenth farther from the target) or ahead.",
      [nearer(taught, "LAST (none)", "IMT", margin=-LEVEL)],
    ),
  )
  return Outcome(_settings(room, schedule, rate), charts_of(room, taught, x_log=True), claims)


def _every_last_beats_sgd(taught: Mapping[str, Taught]) -> Claim:
  names = [name for name in taught if name.startswith("LAST")]
  return Claim("Every LAST beats SGD.", [nearer(taught, name, "SGD") for name in names])


def _mixed_is_best(taught: Mapping[str, Taught]) -> Claim:
  others = [name for name in taught if "mixed" not in name]
  return Claim(
    "Mixed teaching (without a constraint) is the best of all.",
    [nearer(taught, "mixed (none)", name) for name in others],
  )


_KACZMARZ = (
  "Without a constraint LAST projects the student's error away from one random example after the other (randomized "
  "Kaczmarz). That is over in a few dozen steps where examples differ, as in two or four dimensions, but slow where "
  "all resemble each other: random features of images are sums of ink and share one large direction. IMT seeks out "
  "the examples that differ."
)


_ALTERNATING = (
  "The example is chosen for what its true label would do in one small step, which any long example does well, so the "
  "same few are shown again and again; a free label could do as much with any of them. Random examples, which point "
  "in more directions, are better company for free labels. Chosen together with the label (the next claim), examples "
  "help again."
)


# --- A network.


def run_mlp_35(size: Size, tell: Tell) -> Outcome:
  """3 against 5."""
  return _run_mlp(size, tell, (3, 5))


def run_mlp_79(size: Size, tell: Tell) -> Outcome:
  """7 against 9."""
  return _run_mlp(size, tell, (7, 9))


def mlp_task(digits: Sequence[int], per_digit: int, folder: str | None) -> tuple[Learner, Any, Any, Any]:
  """The network of these figures, its data, a target, and where students start."""
  learner = learners.mlp((24, 32, 1), activation="relu", learning_rate=1e-3, weight_decay=WEIGHT_DECAY)
  images = data.mnist(digits, folder=folder, train_per_digit=per_digit)
  fitted = target.fit_target(learner, images.train, tolerance=1e-3)
  return learner, images, fitted, training.near(fitted, 0.1)


def _run_mlp(size: Size, tell: Tell, digits: Sequence[int]) -> Outcome:
  tell("fitting the target", 0.0)
  learner, images, fitted, starts = mlp_task(digits, size.pick(20, 500, 500), size.mnist_folder)
  room = make_room(learner, images, fitted, starts, size.numbers)
  steps = size.pick(50, 300, 2_000)
  schedule = [(steps, max(1, steps // 100))]
  taught = teach_by_all(room, [teachers.sgd(), teachers.imt(), *choosing(class_sets())], schedule, tell)
  tell("timing", 0.95)
  timed = {"LAST (none)": teachers.greedy(constraints.none()), "IMT": teachers.imt()}
  rooms = {"one student": room.first(1, 1)}
  rooms |= {f"{room.seeds} students at once": room} if size.name == "full" else {}
  seconds = time_steps(rooms.values(), timed, size.pick(5, 20, 50))
  free = ["LAST (none)", "mixed (none)"]
  claims = (
    _every_last_beats_sgd(taught),
    Claim(
      "LAST and mixed teaching without a constraint beat IMT by far (at least twice as near).",
      [nearer(taught, name, "IMT", margin=BY_FAR) for name in free],
    ),
    Claim(
      "LAST and mixed teaching without a constraint are ahead of IMT after the last step.",
      [nearer_at_end(taught, name, "IMT") for name in free],
    ),
    *(
      Claim(
        f"A step of LAST is much cheaper (at least twice) than one of IMT, {who}.",
        [Comparison("LAST (none) against IMT", np.log10(each["IMT"] / each["LAST (none)"]), "times as fast", BY_FAR)],
        remark=f"Over {len(each['IMT'])} runs in turns, once compiled, nothing recorded, in place of seeds.",
      )
      for who, each in zip(rooms, seconds, strict=True)
    ),
  )
  more = {"learner": "24–32–1, ReLU", "students start": "around the target, N(0, 0.1²)"}
  return Outcome(_settings(room, schedule, 1e-3, **more), charts_of(room, taught, x_log=False), claims)


_FAR = (
  "The distance is over all 833 parameters, and a step changes it along one example's gradient alone: within the run "
  "no method covers more than a fraction of the way, so none can be twice as near as another. IMT is faster at first "
  "and then stops: no true label of any example leads nearer. See the next claim."
)


_CURVES = "objective, distance to w* and test accuracy"
_FREE = {"LAST without a constraint": _KACZMARZ, "Mixed teaching": _ALTERNATING}
FIGURES = (
  Figure(
    "lsr",
    "Least squares",
    "Figure 7",
    "Linear regression in four dimensions: objective and distance to w*. r is how far a label may be from the truth.",
    run_lsr,
    3.0,
    {"LAST with r = 2": _LSR_IMT},
  ),
  Figure(
    "lr_half_moons",
    "Logistic regression on half moons",
    "Figures 8 and 14",
    f"Two classes in the plane: {_CURVES}.",
    run_half_moons,
    4.0,
    _FREE,
  ),
  Figure(
    "lr_gaussian",
    "Logistic regression on Gaussian clusters",
    "Figure 13",
    f"Two overlapping clusters in four dimensions: {_CURVES}.",
    run_gaussian,
    4.0,
    _FREE,
  ),
  Figure(
    "lr_mnist_35",
    "Logistic regression on MNIST 3/5",
    "Figure 8",
    f"24 random features of images: {_CURVES}.",
    run_mnist_35,
    4.0,
    _FREE,
  ),
  Figure(
    "mlp_mnist_35",
    "A network on MNIST 3/5",
    "Figure 10",
    f"A network with 32 hidden units: {_CURVES}.",
    run_mlp_35,
    6.0,
    {"LAST and mixed teaching without a constraint beat IMT by far": _FAR},
  ),
  Figure(
    "mlp_mnist_79",
    "A network on MNIST 7/9",
    "Figure 15",
    f"The same on digits that are harder to tell apart: {_CURVES}.",
    run_mlp_79,
    6.0,
    {"LAST and mixed teaching without a constraint beat IMT by far": _FAR},
  ),
)
