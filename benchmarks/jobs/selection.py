"""Selection of examples: of networks, against gradients of single examples; by the size of the pool; by a shortlist."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import last_jax as last
from benchmarks import cases, equality, harness, ours
from benchmarks.cases import Case
from benchmarks.harness import Job, Options
from benchmarks.records import Measurement, Target
from last_jax import distances

STEP = "step"
FORMED = "gradients of single examples by vmap, chunked"
STEPS = "a step on every example, chunked"
BEFORE = "a step on every example, as this package took them before"
EXACT = "exact IMT"
_CHUNKS = {FORMED: (16, 64, 256), STEPS: (64, 256), BEFORE: (64,)}
_MAX_REPETITIONS = 3

# --- Networks.


def make_cnn() -> Any:
  """Return a learner of 38,282 parameters: two convolutions and two full layers, for images [8, 8, 1]."""
  shapes = {"conv_0": (3, 3, 1, 16), "conv_1": (3, 3, 16, 32), "full_0": (512, 64), "full_1": (64, 10)}

  def init(key: Any) -> Any:
    keys = dict(zip(shapes, jax.random.split(key, len(shapes)), strict=True))
    return {
      name: {
        "weights": (2 / np.prod(shape[:-1])) ** 0.5 * jax.random.normal(keys[name], shape),
        "bias": jnp.zeros(shape[-1]),
      }
      for name, shape in shapes.items()
    }

  def convolve(layer: Any, x: Any, stride: int) -> Any:
    numbers = ("NHWC", "HWIO", "NHWC")
    z = jax.lax.conv_general_dilated(x, layer["weights"], (stride, stride), "SAME", dimension_numbers=numbers)
    return jax.nn.relu(z + layer["bias"][None, None, None])

  def apply(params: Any, x: Any) -> Any:
    h = convolve(params["conv_1"], convolve(params["conv_0"], x, 1), 2).reshape(x.shape[0], -1)
    h = jax.nn.relu(h @ params["full_0"]["weights"] + params["full_0"]["bias"][None])
    return h @ params["full_1"]["weights"] + params["full_1"]["bias"][None]

  return last.learners.from_apply(init, apply, "softmax_cross_entropy", learning_rate=0.02)


def draw_cnn(seed: int, *, pool: int, steps: int) -> tuple[Any, Case]:
  """Return the convolutional network and a case for it: random images, a start near the target."""
  learner, generator = make_cnn(), np.random.default_rng(seed)
  target = jax.tree.map(np.asarray, learner.init(jax.random.key(seed)))
  init = jax.tree.map(lambda leaf: leaf[None] + 0.1 * generator.standard_normal((1, *leaf.shape), np.float32), target)
  x = generator.standard_normal((pool, 8, 8, 1), np.float32)
  sizes = {"students": 1, "steps": steps, "pool": pool, "classes": 10, "batch_size": 1}
  return learner, Case("cnn", sizes, seed, x, (np.arange(pool) % 10).astype(np.int32), target, init, 0.02, 0.0)


def _choose(score: Callable[..., Any], chunk: int) -> last.Teacher:
  """Return a teacher that scores each example by itself, `chunk` examples at a time."""

  def step(state: Any, view: Any, proposal: Any) -> Any:
    scores = jax.lax.map(lambda example: score(view, *example), (view.x, view.truth), batch_size=chunk)
    index = jnp.argmin(scores)[None]
    return last.Lesson(index, view.truth[index]), state, None

  return last.Teacher("selection", step=step, needs_target=True)


def _by_gradient(view: Any, x: Any, label: Any) -> Any:
  """||w - rate g - w*||^2 without its constant, from the gradient of one example."""
  learner, params = view.learner, view.student.params
  gradient = jax.grad(learner.mean_loss)(params, x[None], label[None])
  drift = learner.update(view.student, optax.tree.zeros_like(params)).params
  error, rate = optax.tree.sub(drift, view.target), learner.optimizer.rate(view.student.opt_state)
  return rate * optax.tree.norm(gradient, squared=True) - 2 * optax.tree.vdot(error, gradient)


def _by_step(view: Any, x: Any, label: Any) -> Any:
  after = view.learner.step(view.student, x[None], label[None]).params
  return optax.tree.norm(optax.tree.sub(after, view.target), squared=True)


def _teach(learner: Any, case: Case, teacher: last.Teacher, **settings: Any) -> harness.Program:
  """Return the teaching of one student as a program."""
  usual: dict[str, Any] = {"steps": case.sizes["steps"], "metrics": ("distance",)}

  def run(x: Any, y: Any, target: Any, init: Any) -> Any:
    pool = last.Pool(x, y)
    return last.teach(jax.random.key(case.seed), learner, teacher, pool, target=target, init=init, **usual | settings)

  init = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), case.init)
  target = jax.tree.map(jnp.asarray, case.target)
  return harness.Program(run, jnp.asarray(case.x), jnp.asarray(case.y), target, init)


def _as_before(view: Any, x: Any, label: Any) -> Any:
  return distances.squared_distance(view.learner.step(view.student, x[None], label[None]).params, view.target)


@dataclasses.dataclass(frozen=True)
class NetworkJob(Job):
  """IMT on a network, against the plain ways.

  Attributes:
    model: "mlp" or "cnn".
    sizes: of the case.
    targets: by the kind of baseline.
  """

  model: str
  sizes: dict[str, int]
  targets: dict[str, Target]

  def draw(self, options: Options) -> tuple[Any, Case]:
    """Return the learner and the case."""
    sizes = self.sizes | ({"pool": 30, "steps": 2} if options.tiny else {})
    if self.model == "cnn":
      return draw_cnn(options.seed, **sizes)
    case = cases.draw_mlp(options.seed, students=1, **sizes)
    return ours.make_learner(case), case

  def measure(self, options: Options) -> list[Measurement]:
    """Time the teaching of one student."""
    learner, case = self.draw(options)
    mine = _teach(learner, case, last.teachers.imt())

    def side(name: str, score: Callable[..., Any], chunk: int) -> harness.Side:
      run = _teach(learner, case, _choose(score, min(chunk, case.sizes["pool"])))

      def check() -> dict[str, float]:
        return equality.check_equal({"distance": mine().distance}, {"distance": run().distance}, equality.FLOAT32)

      return harness.Side(f"{name}, {chunk} at once", run, check, case.work)

    baselines = [
      harness.Baseline(kind, [side(kind, score, chunk) for chunk in _CHUNKS[kind]], self.targets.get(kind))
      for kind, score in ((FORMED, _by_gradient), (STEPS, _by_step), (BEFORE, _as_before))
    ]
    name = last.teachers.imt().name
    return [harness.measure(options, self, case, STEP, harness.Side(name, mine, units=case.work), baselines)]


# --- By the size of the pool.


@dataclasses.dataclass(frozen=True)
class PoolJob(Job):
  """Time of a step, of one student, by the size of the pool.

  Attributes:
    model: "logistic" or "mlp".
    steps: by the size of the pool.
  """

  model: str
  steps: dict[int, int]

  def measure(self, options: Options) -> list[Measurement]:
    """Time IMT, joint mixed teaching, and IMT with a shortlist of a hundredth of the pool."""
    options = dataclasses.replace(options, repetitions=min(_MAX_REPETITIONS, options.repetitions))
    measured = []
    for pool, steps in {300: 2}.items() if options.tiny else self.steps.items():
      draw = cases.draw_mlp if self.model == "mlp" else cases.draw_linear
      case = draw(options.seed, students=1, steps=steps, pool=pool)
      joint = last.teachers.mixed(last.constraints.simplex(), joint=True)
      short = last.teachers.imt(shortlist=max(1, pool // 100))
      for name, teacher, more in (
        ("IMT", last.teachers.imt(), 1),
        (joint.name, joint, 1),
        ("IMT, shortlist of 1 %", short, 1 if options.tiny else 10),
      ):
        # With a shortlist the first step takes as long as without.
        own = case.with_sizes(steps=more * steps)
        side = harness.Side(name, _teach(ours.make_learner(own), own, teacher), units=own.work)
        measured.append(harness.measure(options, self, own, STEP, side, axis="pool"))
    return measured


# --- The shortlist's trade-off.


def _random_subset(size: int) -> last.Teacher:
  """Return exact IMT on `size` random examples, others in every step."""

  def step(state: Any, view: Any, proposal: Any) -> Any:
    rows = jax.random.randint(view.key, (size,), 0, view.x.shape[0])
    pool = last.Problem(view.learner, last.Pool(view.x[rows], view.problem.pool.y[rows]), target=view.target)
    exact = last.teachers.imt()
    assert exact.init is not None
    assert exact.prepare is not None
    within = view._replace(problem=pool, cache=exact.prepare(pool), reported=True)
    lesson, _, _ = exact.step(exact.init(pool), within, proposal)
    return last.Lesson(rows[lesson.index], lesson.label), state, None

  return last.Teacher("random", step=step, needs_target=True)


def progress(learner: Any, case: Case, teacher: last.Teacher) -> np.ndarray:
  """Return the decrease of the distance in each step, relative to that of exact IMT from the same state, `[steps]`."""
  result = _teach(learner, case, teacher, probe=lambda params: params)()
  target, exact = jax.tree.map(jnp.asarray, case.target), last.teachers.imt()
  problem = last.Problem(learner, last.Pool(case.x, case.y), target=target)

  @jax.jit
  def best(problem: Any, before: Any) -> Any:
    def one(params: Any) -> Any:
      after = last.step(last.init(jax.random.key(0), problem, exact, params), problem, exact)[0].params
      return optax.tree.norm(optax.tree.sub(after, target))

    return jax.lax.map(one, before)

  distance = np.asarray(result.distance, np.float64)
  gained = distance[:-1] - np.asarray(best(problem, jax.tree.map(lambda leaf: leaf[:-1], result.probe)))
  return (distance[:-1] - distance[1:]) / gained


@dataclasses.dataclass(frozen=True)
class ShortlistJob(Job):
  """Work and progress of approximate selection, one measurement for each size of the shortlist.

  Attributes:
    data: "logistic" or "softmax", Gaussian with 24 features; "digits", softmax on the 784 pixels of handwritten digits.
    pool: its size, except of the digits.
    divisors: the pool has this many times the examples of the shortlist.
    steps: of one student.
  """

  data: str
  pool: int
  divisors: Sequence[int]
  steps: int = 200

  def draw(self, options: Options) -> tuple[Any, Case]:
    """Return the learner and the case."""
    pool, steps = (400, 5) if options.tiny else (self.pool, self.steps)
    softmax = self.data != "logistic"
    sizes = {"features": 784} if self.data == "digits" else {}
    classes = 10 if softmax else 2
    case = cases.draw_linear(options.seed, softmax, students=1, steps=steps, pool=pool, classes=classes, **sizes)
    if self.data == "digits":
      train = last.data.mnist(range(10), num_features=None).train
      pixels, digits = np.asarray(train.x).reshape(len(train), -1)[:pool], np.asarray(train.y)[:pool]
      small = jax.tree.map(lambda leaf: 0.1 * leaf, (case.target, case.init))
      case = dataclasses.replace(case, x=pixels, y=digits, target=small[0], init=small[1], learning_rate=0.005)
    return ours.make_learner(case), case

  def measure(self, options: Options) -> list[Measurement]:
    """Time shortlists against exact selection, and store the progress of both and of random subsets of equal work."""
    options = dataclasses.replace(options, repetitions=min(_MAX_REPETITIONS, options.repetitions))
    learner, case = self.draw(options)
    exact = harness.Side(EXACT, _teach(learner, case, last.teachers.imt()), units=case.work)
    measured = []
    for divisor in self.divisors[:1] if options.tiny else self.divisors:
      size = max(1, case.x.shape[0] // divisor)
      teacher = last.teachers.imt(shortlist=size)
      side = harness.Side("IMT, shortlist", _teach(learner, case, teacher), units=case.work)
      baseline = harness.Baseline(EXACT, [exact])
      sizes = {"shortlist": size}
      each = harness.measure(options, self, case, STEP, side, [baseline], axis="shortlist", sizes=sizes)
      shares = {
        "shortlist": float(progress(learner, case, teacher).mean()),
        "random subset": float(progress(learner, case, _random_subset(2 * size)).mean()),
      }
      measured.append(
        dataclasses.replace(
          each, problem={**each.problem, "work": 2 * size / case.x.shape[0], "share_of_progress": shares}
        )
      )
    return measured


_DIVISORS = (20, 50, 100, 200, 500, 1000)

JOBS: tuple[Job, ...] = (
  NetworkJob(
    "imt_mlp", "IMT on a network 24-32-2: no gradient of an example is formed", "mlp",
    {"pool": 1000, "steps": 50}, {BEFORE: Target(8.0)},
  ),
  NetworkJob(
    "imt_cnn", "IMT on a convolutional network of 38,282 parameters: no gradient of an example is formed", "cnn",
    {"pool": 10_000, "steps": 2}, {FORMED: Target(5.0)},
  ),
  PoolJob(
    "selection_pool", "a step of a teacher that chooses examples, by the size of the pool (logistic)", "logistic",
    {1000: 1000, 10_000: 300, 100_000: 100, 1_000_000: 20},
  ),
  PoolJob(
    "selection_pool_mlp", "a step of a teacher that chooses examples, by the size of the pool (24-32-2)", "mlp",
    {1000: 50, 10_000: 10, 100_000: 2, 1_000_000: 2},
  ),
  ShortlistJob("shortlist", "approximate IMT: work and share of progress, logistic", "logistic", 100_000, _DIVISORS),
  ShortlistJob(
    "shortlist_softmax", "approximate IMT: work and share of progress, ten classes", "softmax", 100_000, _DIVISORS,
  ),
  ShortlistJob(
    "shortlist_digits", "approximate IMT: work and share of progress, pixels of digits", "digits", 10_000,
    _DIVISORS[:-1],
  ),
)  # fmt: skip
