"""Labels in float32 over the whole range of rates and examples, judged in float64.

    python -m tests.label_ranges --problems=10000 --seed=0

Random problems with rates 1e-12 ... 1e6, examples of norm 1e-8 ... 1e8, equal or very different within a batch, K from
1 to 100 and m from 1 to 16. Labels are found in float32; G is that of the same numbers in float64, written as a change
against the ground truth, so that no digits are lost. For every set and learner the table counts

- outside: labels that lie more than 1e-6 outside of the set (relative to the size of its center, if that is above 1);
- worse: labels with a larger G than the ground truth, moved into the set and rounded;
- excess: labels that miss more than 1e-3 of the possible gain, that of the labels which float64 finds, although
  float32 can represent better ones; of these, silent: those whose certificate does not say so;
- lost: the same where float32 can represent none, and of these again the silent ones;
- unsure: labels that are good, although their certificate does not say so.

Float32 can represent the optimum if the labels of float64, rounded to float32 and shown to a student whose outputs are
rounded to float32, miss at most 1e-4 of the possible gain.
"""

import functools
import itertools
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from absl import app, flags

import last_jax as last
from last_jax.base import Certificate

CONSTRAINTS = {
  "none": lambda radius: last.constraints.none(),
  "one_hot": lambda radius: last.constraints.one_hot(256),
  "simplex": lambda radius: last.constraints.simplex(),
  "simplex_1": lambda radius: last.constraints.simplex(radius, p=1),
  "simplex_2": lambda radius: last.constraints.simplex(radius),
  "simplex_inf": lambda radius: last.constraints.simplex(radius, p=np.inf),
  "ball_1": lambda radius: last.constraints.magnitude(radius, p=1),
  "ball_2": lambda radius: last.constraints.magnitude(radius, around="prediction"),
  "ball_inf": lambda radius: last.constraints.magnitude(radius, p=np.inf),
  "sparse": lambda radius: last.constraints.simplex(max_nonzero=2),
}

LEARNERS = {
  "least_squares": lambda d, k, rate: last.learners.least_squares(d, k, learning_rate=rate),
  "logistic": lambda d, k, rate: last.learners.logistic(d, learning_rate=rate),
  "softmax": lambda d, k, rate: last.learners.softmax(d, k, learning_rate=rate, bias=d > 6),
  "mlp": lambda d, k, rate: last.learners.mlp((d, 8, k), activation="tanh", learning_rate=rate),
  "leaky_mlp": lambda d, k, rate: last.learners.mlp((d, 8, k), activation="leaky_relu", learning_rate=rate),
}

SETS = ("none", "simplex", "simplex_2", "ball_2")
OTHERS = ("none", "one_hot", "simplex_1", "simplex_inf", "ball_1", "ball_inf")
# A learner, its features d, m, K, and the sets that are tried with it.
SHAPES = [
  ("least_squares", 3, 3, 1, ("none", "simplex_2", "ball_1")),
  ("least_squares", 6, 8, 3, SETS),
  ("least_squares", 24, 16, 1, OTHERS),
  ("logistic", 6, 1, 1, SETS),
  ("logistic", 6, 8, 1, OTHERS),
  ("softmax", 6, 1, 10, (*SETS, "sparse")),
  ("softmax", 24, 1, 100, OTHERS),
  ("softmax", 24, 3, 5, SETS),
  ("softmax", 6, 16, 2, ("none", "simplex", "simplex_2", "ball_inf")),
  ("softmax", 24, 8, 10, ("none", "simplex", "simplex_1", "ball_1")),
  ("mlp", 6, 1, 10, SETS),
  ("mlp", 6, 3, 2, OTHERS),
  ("mlp", 6, 8, 10, ("none", "simplex", "simplex_inf", "ball_2")),
  ("leaky_mlp", 6, 4, 3, ("none", "simplex_2", "ball_1", "sparse")),
  ("leaky_mlp", 6, 16, 1, ("none", "simplex", "ball_inf")),
]

TOLERANCE = 1e-3
REPRESENTABLE = 1e-4


class Problem(NamedTuple):
  """One greedy step, or many of them with a leading axis."""

  rate: np.ndarray  # []
  radius: np.ndarray  # []
  params: dict
  target: dict
  x: np.ndarray  # [m, d]
  truth: np.ndarray  # [m, K]


class Outcome(NamedTuple):
  """What became of n problems: each [n]."""

  outside: np.ndarray
  worse: np.ndarray
  excess: np.ndarray
  representable: np.ndarray
  certified: np.ndarray
  reach: np.ndarray  # log10 of rate times the largest ||x||^2: how far one unit of a label moves an output.


def random_problems(draw, learner, features, batch, width, count):
  """Return `count` problems, as float32 arrays with a leading axis."""
  made = LEARNERS[learner](features, width, 0.1)
  shapes = jax.eval_shape(made.init, jax.random.key(0))

  def powers(low, high, *shape):
    return 10.0 ** draw.uniform(low, high, size=(count, *shape))

  def normal(leaf, scale):
    return scale.reshape(-1, *[1] * leaf.ndim) * draw.normal(size=(count, *leaf.shape))

  size, spread = powers(-2, 0.5), powers(-3, 1.5)
  params = jax.tree.map(lambda leaf: normal(leaf, size), shapes)
  target = jax.tree.map(lambda leaf, start: start + normal(leaf, spread), shapes, params)
  # Half of the batches have examples of one size, the others of very different ones.
  exponents = draw.uniform(-8, 8, size=(count, 1)) + (draw.uniform(size=(count, 1)) < 0.5) * draw.uniform(
    -4, 4, size=(count, batch)
  )
  x = draw.normal(size=(count, batch, features)) / np.sqrt(features)
  x = x * 10.0 ** np.clip(exponents, -8, 8)[..., None]
  if made.loss.classification:
    corners = made.loss.class_labels(width)
    truth = corners[draw.integers(len(corners), size=(count, batch))]
    smooth = draw.uniform(size=(count, 1, 1)) < 0.2
    truth = np.where(smooth, 0.9 * truth + 0.1 / len(corners), truth)
  else:
    truth = draw.normal(size=(count, batch, width))
  problem = Problem(powers(-12, 6), powers(-1.5, 0.5), params, target, x, truth)
  return jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), problem)


@functools.cache
def solver(learner, features, width, name):
  """Return the labels, certificates and outputs of many problems, compiled once per shape and dtype."""

  def one(problem):
    made = LEARNERS[learner](features, width, problem.rate)
    labels, certificate = last.synthesize_labels(
      made, problem.params, problem.target, problem.x, problem.truth, CONSTRAINTS[name](problem.radius),
      with_certificate=True,
    )  # fmt: skip
    return labels, certificate, made.apply(problem.params, problem.x)

  return jax.jit(jax.vmap(one))


@functools.cache
def exact_step(learner, features, width, name):
  """Return what the step is made of, in float64: w - w* [P], J [m K, P], outputs and the truth moved into the set."""

  def one(problem, outputs):
    made = LEARNERS[learner](features, width, problem.rate)

    def flat(tree):
      return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(tree)])

    slopes = jax.jacrev(lambda params: jnp.ravel(made.apply(params, problem.x)))(problem.params)
    slopes = jnp.concatenate([leaf.reshape(problem.truth.size, -1) for leaf in jax.tree.leaves(slopes)], 1)
    error = flat(jax.tree.map(jnp.subtract, problem.params, problem.target))
    constraint = CONSTRAINTS[name](problem.radius)
    inside = constraint.projection(made.loss, outputs, problem.truth)(problem.truth)
    if constraint.discrete:
      inside = made.loss.nearest_class_labels(problem.truth)
    return error, slopes, made.apply(problem.params, problem.x), inside, made.loss.predict_all(outputs)

  return jax.jit(jax.vmap(one))


def judge(learner, features, batch, width, name, problem):
  """Solve the problems in float32 and return what became of them."""
  labels, certificate, outputs = solver(learner, features, width, name)(problem)
  labels, outputs = (np.asarray(value, np.float64) for value in (labels, outputs))
  certificate = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), certificate)
  with jax.enable_x64(True):
    wide = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), problem)
    best, *_ = solver(learner, features, width, name)(wide)
    parts = exact_step(learner, features, width, name)(wide, jnp.asarray(outputs))
    error, slopes, exact_outputs, inside, center = (np.asarray(value) for value in parts)
  best = np.asarray(best)
  loss = LEARNERS[learner](features, width, 0.1).loss
  pace = problem.rate.astype(np.float64) / batch
  count = len(labels)

  def moves(outputs, labels):
    """Return the parameters' step, [n, P]."""
    gradients = output_gradients(loss, outputs, labels).reshape(count, -1)
    return -pace[:, None] * np.einsum("na,nap->np", gradients, slopes)

  start = moves(exact_outputs, inside)

  def change(outputs, labels):
    """Return G - G(truth), [n], and its rounding."""
    moved = moves(outputs, labels) - start
    parts = 2 * np.sum(moved * (error + start), 1), np.sum(moved**2, 1)
    size = 2 * np.sum(np.abs(moved * (error + start)), 1) + parts[1]
    # Half a unit in the last digit of labels in float32, or of labels of size 1; a center that moves is rounded too.
    slope = 2 * pace[:, None] * np.abs(np.einsum("np,nap->na", error + start + moved, slopes))
    digit = 2.0 ** (-23 if name == "ball_2" else -24) * np.maximum(1, np.abs(labels).reshape(count, -1))
    return parts[0] + parts[1], 1e-12 * size + np.sum(slope * digit, 1)

  found, noise = change(exact_outputs, labels)
  # The truth of a set around a large prediction moves when it is rounded.
  kept = np.maximum(change(exact_outputs, inside.astype(np.float32).astype(np.float64))[0], 0)
  optimum = np.minimum(change(exact_outputs, best)[0], 0)
  with np.errstate(over="ignore"):
    rounded = change(outputs, best.astype(np.float32).astype(np.float64))[0]
  noise = np.minimum(noise, change(exact_outputs, best)[1])  # At labels that are far off it would be large.
  gain = -np.minimum(optimum, found)
  finite = np.isfinite(labels).all((1, 2))
  with np.errstate(invalid="ignore", divide="ignore"):
    excess = np.where(gain > noise, np.maximum(found + gain - noise, 0) / gain, np.where(found > noise, np.inf, 0))
    representable = (rounded + gain) <= REPRESENTABLE * gain
  excess = np.where(finite, excess, np.inf)
  outside = ~finite | (violation(loss, name, labels, problem, center) > 1e-6)
  worse = ~(found <= noise + kept)
  reach = np.log10(problem.rate * np.max(np.sum(problem.x.astype(np.float64) ** 2, -1), 1))
  return Outcome(outside, worse, excess, representable & finite, is_certified(certificate), reach)


def is_certified(certificate: Certificate):
  """Return whether certificates say that labels are the optimum, [n]."""
  solved = certificate.residual <= TOLERANCE
  return solved & (certificate.exact if certificate.gap is None else certificate.gap <= TOLERANCE)


def output_gradients(loss, outputs, labels):
  """Return u in NumPy, `[n, m, K]`."""
  if loss is last.losses.squared_error:
    return outputs - labels
  if loss is last.losses.sigmoid_cross_entropy:
    return 0.5 * (1 + np.tanh(0.5 * outputs)) - labels
  powers = np.exp(outputs - outputs.max(-1, keepdims=True))
  return labels.sum(-1, keepdims=True) * powers / powers.sum(-1, keepdims=True) - labels


def violation(loss, name, labels, problem, center):
  """Return how far labels lie outside of their set, relative to the size of its center above 1: [n]."""
  width, left = labels.shape[-1], np.zeros(labels.shape[:2])
  truth, radius = problem.truth.astype(np.float64), problem.radius.astype(np.float64)[:, None]
  corners = loss.class_labels(width)
  if name == "one_hot":
    return np.abs(labels[:, :, None] - corners).max(-1).min(-1).max(-1)
  if name.startswith("simplex") or name == "sparse":
    low, high = corners.min(), corners.max()
    left = np.maximum(left, np.maximum(low - labels, labels - high).max(-1))
    if width > 1:
      left = np.maximum(left, np.abs(labels.sum(-1) - 1))
  if name == "sparse" and width > 2:
    left = np.maximum(left, np.sort(np.abs(labels), -1)[..., -3])
  if "_" in name and name != "one_hot":
    kind, order = name.split("_")
    middle = center if name == "ball_2" else truth
    if kind == "simplex":  # The center is moved onto the simplex.
      middle = np.clip(middle, 0, 1) if width == 1 else np.apply_along_axis(onto_simplex, -1, middle)
    distance = np.linalg.norm(labels - middle, ord=float(order), axis=-1)
    left = np.maximum(left, (distance - radius) / np.maximum(1, np.abs(middle).max(-1)))
  return left.max(-1)


def onto_simplex(label):
  """Return the nearest label of the simplex, [K]: by sorting."""
  ordered = np.sort(label)[::-1]
  thresholds = (np.cumsum(ordered) - 1) / np.arange(1, len(label) + 1)
  return np.maximum(label - thresholds[np.nonzero(ordered > thresholds)[0][-1]], 0)


def study(count, seed=0, shapes=None, sets=None, report=None):
  """Judge about `count` problems. Return outcomes by (learner, m, K, set); `report` is called with each of them."""
  cases = [
    (learner, features, batch, width, name) for learner, features, batch, width, names in SHAPES for name in names
  ]
  chosen = [
    (shapes is None or f"{learner}-{batch}-{width}" in shapes) and (sets is None or name in sets)
    for learner, _, batch, width, name in cases
  ]
  # Each case has its own problems, whatever else is chosen.
  each, outcomes = -(-count // len(cases)), {}
  for index, (learner, features, batch, width, name) in enumerate(cases):
    if not chosen[index]:
      continue
    problem = random_problems(np.random.default_rng((seed, index)), learner, features, batch, width, each)
    case = learner, batch, width, name
    outcomes[case] = judge(learner, features, batch, width, name, problem)
    solver.cache_clear()  # The programs of all cases would take more pieces of memory than a process may have.
    exact_step.cache_clear()
    jax.clear_caches()
    if report is not None:
      report(case, outcomes[case])
  return outcomes


def counts(outcome):
  """Return the numbers of a row of the table."""
  too_much = outcome.excess > TOLERANCE
  excess, lost = too_much & outcome.representable, too_much & ~outcome.representable
  flags_ = [outcome.outside, outcome.worse, excess, excess & outcome.certified, lost, lost & outcome.certified]
  unsure = ~too_much & ~outcome.certified
  return [len(too_much), *(int(np.sum(flag)) for flag in [*flags_, unsure])]


COLUMNS = ("cases", "outside", "worse", "excess", "silent", "lost", "silently_lost", "unsure")
HEADER = (*COLUMNS[:-2], "silent", "unsure")


def print_row(name, numbers):
  """Print a name and what belongs to it."""
  print(f"{name:28s}" + "".join(f"{number:>9}" for number in numbers), flush=True)


def print_table(title, rows):
  """Print rows of names and numbers."""
  print()
  print_row(title, HEADER)
  for name, numbers in rows.items():
    print_row(name, numbers)


def grouped(outcomes, key):
  """Return rows of the table, added up."""
  rows = {}
  for case, outcome in outcomes.items():
    name = key(case)
    rows[name] = np.add(rows.get(name, 0), counts(outcome))
  return rows


def by_range(outcomes):
  """Return rows of the table by rate times ||x||^2."""
  rows = {}
  for low, high in itertools.pairwise([-np.inf, -12, -6, -2, 2, 6, 12, np.inf]):
    name = f"1e{low:+.0f} ... 1e{high:+.0f}" if np.isfinite([low, high]).all() else f"below 1e{high:+.0f}"
    name = name if np.isfinite(high) else f"above 1e{low:+.0f}"
    for outcome in outcomes.values():
      inside = (outcome.reach > low) & (outcome.reach <= high)
      rows[name] = np.add(rows.get(name, 0), counts(Outcome(*(part[inside] for part in outcome))))
  return rows


PROBLEMS = flags.DEFINE_integer("problems", 2000, "how many problems")
SEED = flags.DEFINE_integer("seed", 0, "of the problems")
ONLY = flags.DEFINE_list("shapes", None, "only these shapes, as mlp-8-10")
NAMES = flags.DEFINE_list("sets", None, "only these sets")


def main(_):
  """Print the table."""
  begin = time.time()
  print_row("learner, m, K, set", HEADER)
  outcomes = study(
    PROBLEMS.value, SEED.value, ONLY.value, NAMES.value,
    lambda case, outcome: print_row("{}-{}-{} {}".format(*case), counts(outcome)),
  )  # fmt: skip
  print_table("learner", grouped(outcomes, lambda case: case[0]))
  print_table("set", grouped(outcomes, lambda case: case[3]))
  print_table("rate times ||x||^2", by_range(outcomes))
  print_table("all", grouped(outcomes, lambda case: "all"))
  print(f"{time.time() - begin:.0f} s")


if __name__ == "__main__":
  app.run(main)
