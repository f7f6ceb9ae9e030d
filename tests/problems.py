"""Random teaching problems, and solutions that are independent of the package's own solvers."""

import functools
import warnings
from typing import NamedTuple

import cvxpy
import jax
import jax.numpy as jnp
import numpy as np
import optax

import last_jax as last

# --- Learners of every kind, as (constructor from a learning rate, shape of x, K).


def tanh_network(learning_rate):
  return last.learners.mlp((5, 7, 6, 10), activation="tanh", learning_rate=learning_rate, weight_decay=1e-3)


def _conv_init(key):
  one, two = jax.random.split(key)
  return {"kernel": 0.5 * jax.random.normal(one, (3, 3, 1, 4)), "head": 0.5 * jax.random.normal(two, (16, 3))}


def _conv_apply(params, x):
  z = jax.lax.conv_general_dilated(x, params["kernel"], (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
  return jnp.tanh(z).reshape(x.shape[0], -1) @ params["head"]


def conv_network(learning_rate):
  return last.learners.from_apply(
    _conv_init, _conv_apply, "softmax_cross_entropy", optimizer=optax.sgd(float(learning_rate))
  )


KINDS = {
  "least_squares": (lambda rate: last.learners.least_squares(4, learning_rate=rate, weight_decay=1e-2), (4,), 1),
  "least_squares_3": (lambda rate: last.learners.least_squares(4, 3, learning_rate=rate, bias=False), (4,), 3),
  "logistic": (lambda rate: last.learners.logistic(4, learning_rate=rate, weight_decay=1e-2), (4,), 1),
  "softmax_2": (lambda rate: last.learners.softmax(4, 2, learning_rate=rate), (4,), 2),
  "softmax_5": (lambda rate: last.learners.softmax(4, 5, learning_rate=rate, weight_decay=1e-2), (4,), 5),
  "mlp": (
    lambda rate: last.learners.mlp((6, 8, 5), activation="leaky_relu", learning_rate=rate, bias=False),
    (6,),
    5,
  ),
  "tanh": (tanh_network, (5,), 10),
  "conv": (conv_network, (4, 4, 1), 3),
}

CONSTRAINTS = {
  "none": last.constraints.none(),
  "one_hot": last.constraints.one_hot(),
  "simplex": last.constraints.simplex(),
  "simplex_1": last.constraints.simplex(0.7, p=1),
  "simplex_2": last.constraints.simplex(0.6),
  "simplex_inf": last.constraints.simplex(0.3, p=np.inf),
  "ball_1": last.constraints.magnitude(0.8, p=1),
  "ball_2": last.constraints.magnitude(0.6, around="prediction"),
  "ball_inf": last.constraints.magnitude(0.4, p=np.inf),
}


class Problem(NamedTuple):
  """One greedy step, in float64."""

  params: dict
  target: dict
  x: np.ndarray  # [m, ...]
  truth: np.ndarray  # [m, K]


def random_problem(kind, batch, seed):
  """A problem of this kind. Students start near or far from the target, examples are small or large."""
  make, shape, width = KINDS[kind]
  draw = np.random.default_rng(seed)
  learner = make(0.1)
  params = jax.tree.map(lambda leaf: draw.normal(size=leaf.shape), jax.eval_shape(learner.init, jax.random.key(0)))
  spread = 10 ** draw.uniform(-1.5, 1)
  target = jax.tree.map(lambda leaf: leaf + spread * draw.normal(size=leaf.shape), params)
  x = 10 ** draw.uniform(-0.5, 0.5) * draw.normal(size=(batch, *shape))
  if learner.loss.classification:
    corners = learner.loss.class_labels(width)
    truth = corners[draw.integers(len(corners), size=batch)]
  else:
    truth = np.eye(width)[draw.integers(width, size=batch)] if width > 1 else draw.uniform(size=(batch, 1))
  return Problem(params, target, x, truth)


def flatten(tree):
  return np.concatenate([np.ravel(np.asarray(leaf, np.float64)) for leaf in jax.tree.leaves(tree)])


def step_map_of(learner, problem):
  """The step as an affine map of the labels, read off by taking steps: w+ = start + columns y, [P] and [P, m K]."""
  return _as_map(jax.vmap(lambda label: _step(learner, problem, label))(_probes(problem)))


def step_map(kind, rate, problem):
  """The same for a learner of this kind, compiled once."""
  return _as_map(_compiled_steps(kind, problem.truth.shape)(rate, problem, _probes(problem)))


@functools.cache
def _compiled_steps(kind, shape):
  del shape  # One entry per shape, as jit has.
  make = KINDS[kind][0]
  steps = lambda rate, problem, probes: jax.vmap(lambda label: _step(make(rate), problem, label))(probes)  # noqa: E731
  return jax.jit(steps, static_argnums=0) if kind == "conv" else jax.jit(steps)


def _step(learner, problem, label):
  return learner.step(learner.start(problem.params), jnp.asarray(problem.x), label).params


def _probes(problem):
  size = problem.truth.size
  return jnp.asarray(np.concatenate([np.zeros((1, size)), np.eye(size)]).reshape(-1, *problem.truth.shape))


def _as_map(after):
  rows = np.concatenate([np.asarray(leaf).reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(after)], 1)
  return rows[0], (rows[1:] - rows[0]).T


def distance_after(learner, problem, labels):
  """G(labels), by taking the step."""
  after = learner.step(learner.start(problem.params), jnp.asarray(problem.x), jnp.asarray(labels, problem.x.dtype))
  return float(np.sum((flatten(after.params) - flatten(problem.target)) ** 2))


def prediction(learner, problem):
  outputs = learner.apply(problem.params, jnp.asarray(problem.x))
  return np.asarray(jax.vmap(learner.loss.predict)(outputs))


def feasible_set(name, labels, truth, center, low=0.0, high=1.0):
  """The constraint in cvxpy's terms, for a variable `labels [m, K]`."""
  batch, width = truth.shape
  rules = []
  if name.startswith("simplex"):
    rules += [labels >= low, labels <= high] if width == 1 else [labels >= 0, cvxpy.sum(labels, 1) == 1]
  radius, p = {
    "simplex_1": (0.7, 1),
    "simplex_2": (0.6, 2),
    "simplex_inf": (0.3, "inf"),
    "ball_1": (0.8, 1),
    "ball_2": (0.6, 2),
    "ball_inf": (0.4, "inf"),
  }.get(name, (None, None))
  if radius is not None:
    middle = center if name == "ball_2" else truth
    rules += [cvxpy.norm(labels[i] - middle[i], p) <= radius for i in range(batch)]
  return rules


def solve(name, start, columns, goal, truth, center):
  """The least ||start + columns y - goal||^2 over the set, by a general convex solver."""
  labels = cvxpy.Variable(truth.shape)
  residual = start - goal + columns @ cvxpy.reshape(labels, (truth.size,), order="C")
  # Interior-point tolerances are absolute: bring the problem to unit size first.
  size = np.linalg.norm(start + columns @ truth.ravel() - goal)
  rules = feasible_set(name, labels, truth, center)
  problem = cvxpy.Problem(cvxpy.Minimize(cvxpy.sum_squares(residual / size)), rules)
  solve_closely(problem)
  return float(problem.value) * size**2


def solve_closely(problem):
  """Solves to tight tolerances. What the solver has when it says that it missed the last digit is still close."""
  with warnings.catch_warnings():
    warnings.filterwarnings("ignore", "Solution may be inaccurate")
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-10, tol_gap_rel=1e-10, tol_feas=1e-10)
  assert problem.status in ("optimal", "optimal_inaccurate")


def task(kind, seed=0, size=30):
  """A learner of the kind, a pool and a target."""
  make, shape, width = KINDS[kind]
  learner = make(0.3)
  draw = np.random.default_rng(seed)
  x = draw.normal(size=(size, *shape))
  if learner.loss.classification:
    y = np.arange(size) % (2 if width == 1 else width)
  else:
    y = draw.normal(size=size) if width == 1 else np.eye(width)[np.arange(size) % width]
  return learner, last.Pool(x, y), learner.init(jax.random.key(seed + 1))


def view_of(problem, student, teacher=None, step=0, key=None):
  """The view of a student, as the loop would give it to this teacher (None: to one that needs the target)."""
  seen = problem if teacher is None or teacher.needs_target else problem.without_target()
  cache = None if teacher is None or teacher.prepare is None else teacher.prepare(seen)
  key = jax.random.key(0) if key is None else key
  return last.View(seen, student, jnp.asarray(step), key, key, cache)


def answer_of(teacher, problem, student, proposal, step=0, key=None):
  """A teacher's lesson for this student, and its certificate."""
  view = view_of(problem, student, teacher, step, key)
  teacher_state = None if teacher.init is None else teacher.init(view.problem)
  lesson, _, certificate = teacher.step(teacher_state, view, proposal)
  return lesson, certificate
