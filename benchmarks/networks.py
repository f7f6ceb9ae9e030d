"""Networks to teach, cases for them, and checks of their labels by computations independent of the package's."""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import last_jax as last
from benchmarks import equality, harness
from benchmarks.cases import Case
from benchmarks.equality import Tolerance

RATE = 0.05
RESIDUAL = 1e-4  # The largest of a certificate.
_NORM = 9.0  # Of an input: that of an average image of MNIST, with pixels in [0, 1].
_GAP = 1e-3  # The largest duality gap, as a share of what the labels gain over the ground truth.
_OUTSIDE = 1e-5  # The most by which a label may leave the simplex: rounding.
_DESCENT_STEPS = 3000  # Of the independent search for labels.

# --- Networks and their cases.


@dataclasses.dataclass(frozen=True)
class Network:
  """A network to teach.

  Attributes:
    shape: of an input.
    classes: K.
    make: returns the learner, with floats of the precision that JAX then has.
  """

  shape: tuple[int, ...]
  classes: int
  make: Callable[[], Any]


def fully_connected(*widths: int) -> Network:
  """Return a network of full layers, (features, hidden..., classes)."""
  return Network(widths[:1], widths[-1], functools.partial(last.learners.mlp, widths, learning_rate=RATE))


def draw(seed: int, network: Network, *, batch_size: int, steps: int, pool: int = 256) -> Case:
  """Draw inputs and a target at random; the student starts around the target, a third of its size away."""
  learner, generator = network.make(), np.random.default_rng(seed)
  keys = jax.random.split(jax.random.key(seed), 2)
  target, other = (jax.tree.map(np.asarray, jax.jit(learner.init)(key)) for key in keys)
  init = jax.tree.map(lambda leaf, noise: (leaf + noise / 3)[None], target, other)
  scale = np.float32(_NORM / math.prod(network.shape) ** 0.5)
  x = scale * generator.standard_normal((pool, *network.shape), np.float32)
  parameters = sum(leaf.size for leaf in jax.tree.leaves(target))
  sizes = {"students": 1, "steps": steps, "pool": pool, "parameters": parameters, "classes": network.classes}
  y = (np.arange(pool) % network.classes).astype(np.int32)
  rate = float(learner.optimizer.rate(learner.start(target).opt_state))
  return Case("network", sizes | {"batch_size": batch_size}, seed, x, y, target, init, rate, weight_decay=0.0)


def teach(network: Network, case: Case, teacher: last.Teacher, **settings: Any) -> harness.Program:
  """Return the teaching of one student as a program that records its distance at the start and at the end."""
  learner, steps = network.make(), settings.pop("steps", case.sizes["steps"])
  usual = {"steps": steps, "batch_size": case.sizes["batch_size"], "record_every": steps, "metrics": ("distance",)}

  def run(x: Any, y: Any, target: Any, init: Any) -> Any:
    pool, key = last.Pool(x, y), jax.random.key(case.seed)
    return last.teach(key, learner, teacher, pool, target=target, init=init, **usual | settings)

  assert case.init is not None, "the start is part of the case"
  init = jax.tree.map(lambda leaf: leaf[0], case.init)
  return harness.Program(run, *jax.tree.map(jnp.asarray, (case.x, case.y, case.target, init)))


def greedy() -> last.Teacher:
  """Return the teacher that is measured."""
  return last.teachers.greedy(last.constraints.simplex())


# --- Labels against independent computations, in float64.


def check_labels(network: Network, case: Case, *, search: bool) -> tuple[dict[str, float], float]:
  """Check the labels of one step, as float32 gives them, from the student's start.

  Whatever the size, G is the squared distance after a true step. It must not exceed that of the ground truth, and its
  derivative in the labels bounds how much less it could be (the duality gap, ⟨∇G, y⟩ minus its least value on the set).

  Args:
    network: the network.
    case: its case.
    search: whether labels are sought as well, by a long run of projected gradients on the quadratic of the network's
      Jacobian, which is formed.

  Returns:
    What was found, by name, and the residual that the certificate states.

  Raises:
    ResultsDiffer: where labels are worse than they may be.
  """
  result = teach(network, case, greedy(), steps=1, lessons=True)()
  index, labels = (np.asarray(part[0]) for part in result.lessons)
  residual, labels = float(result.certificate.residual[0]), labels.astype(np.float64)
  truth = np.eye(network.classes)[case.y[index]]
  assert case.init is not None, "the start is part of the case"
  start = jax.tree.map(lambda leaf: leaf[0], case.astype(np.float64).init)
  with jax.enable_x64(True):
    learner, batch = network.make(), jnp.asarray(case.x[index], np.float64)
    target = jax.tree.map(lambda leaf: leaf.astype(np.float64), case.target)

    def squared_distance(labels: Any, start: Any, target: Any) -> Any:
      after = learner.step(learner.start(start), batch, labels).params
      return optax.tree.norm(optax.tree.sub(after, target), squared=True)

    both = jax.jit(jax.value_and_grad(squared_distance))
    (mine, slope), (plain, _) = (jax.tree.map(np.asarray, both(each, start, target)) for each in (labels, truth))
    gain = float(plain - mine)
    gap = float(np.sum(labels * slope) - np.sum(slope.min(1)))
    found = equality.check_equal({"labels": labels}, {"labels": project_to_simplex(labels)}, Tolerance(_OUTSIDE))
    found |= equality.check_not_above("G, against the ground truth", mine, plain, 0.0)
    found |= equality.check_not_above("residual", np.array(residual), np.zeros(()), RESIDUAL)
    equality.check_not_above("duality gap", np.array(gap), np.zeros(()), _GAP * gain)
    found["duality gap over gain"] = gap / gain if gain > 0 else 0.0  # No gain, no gap: the truth is the best.
    if search:
      quadratic = jacobian_quadratic(learner, start, target, batch)
      found |= equality.check_equal({"G": quadratic.value(labels)}, {"G": mine}, equality.FLOAT64)
      sought = quadratic.value(quadratic.descend(truth))
      found |= equality.check_not_above("G, against labels that were sought", mine, sought, _GAP * gain)
  return found, residual


@dataclasses.dataclass(frozen=True)
class JacobianQuadratic:
  """G(y) = constant + 2 ⟨linear, y⟩ + ⟨y, matrix y⟩, labels [m, K] being one vector."""

  matrix: np.ndarray
  linear: np.ndarray
  constant: float

  def value(self, labels: np.ndarray) -> np.ndarray:
    """Return G, `[m, K] -> []`."""
    flat = labels.ravel()
    return np.asarray(self.constant + flat @ (self.matrix @ flat + 2 * self.linear))

  def descend(self, labels: np.ndarray) -> np.ndarray:
    """Return labels after many plain steps of projected gradients, each as long as is safe: `[m, K] -> [m, K]`."""
    curvature = np.linalg.norm(self.matrix, 2)
    for _ in range(_DESCENT_STEPS):
      gradient = (self.matrix @ labels.ravel() + self.linear).reshape(labels.shape)
      labels = project_to_simplex(labels - gradient / curvature)
    return labels


def jacobian_quadratic(learner: Any, start: Any, target: Any, x: Any) -> JacobianQuadratic:
  """Return G from the Jacobian of the outputs and the formula of a step.

  w+ - w* = w - w* - (rate / m) J^T (p - y), with p the predicted probabilities: softmax cross-entropy, plain SGD.
  """
  away = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(optax.tree.sub(start, target))])
  rate = float(learner.optimizer.rate(learner.start(start).opt_state))
  push = rate / len(x) * np.asarray(jax.jit(functools.partial(flat_jacobian, learner.apply))(start, x))
  error = away - np.ravel(jax.nn.softmax(learner.apply(start, x))) @ push  # With all labels zero.
  return JacobianQuadratic(push @ push.T, push @ error, float(error @ error))


def project_to_simplex(values: np.ndarray) -> np.ndarray:
  """Return the nearest points of the simplex, `[m, K] -> [m, K]`."""
  falling = -np.sort(-values, axis=1)
  shifts = (np.cumsum(falling, 1) - 1) / np.arange(1, values.shape[1] + 1)
  kept = np.sum(falling > shifts, axis=1, keepdims=True)
  return np.maximum(values - np.take_along_axis(shifts, kept - 1, 1), 0.0)


def flat_jacobian(apply_fn: Callable[..., Any], params: Any, x: Any) -> Any:
  """Return the Jacobian of all outputs as a matrix, `[m K, parameters]`."""
  leaves = jax.tree.leaves(jax.jacrev(apply_fn)(params, x))
  return jnp.concatenate([leaf.reshape(leaf.shape[0] * leaf.shape[1], -1) for leaf in leaves], 1)
