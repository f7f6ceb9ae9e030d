"""Losses of one example, and what label synthesis needs to know of them.

Teaching by labels works through one vector: u(y), the gradient of the loss in the outputs z. For squared error and for
both cross-entropies u is affine in the label, u = a + B y, which makes the greedy label a convex quadratic problem
(see `synthesis.py`). The margin form of the logistic loss is not affine; it comes with its own exact inverse.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from last_jax import margin
from last_jax.types import Array


@dataclasses.dataclass(frozen=True)
class Loss:
  """A loss of one example, as a static description.

  Attributes:
    name: how messages call it.
    value: `(outputs [K], label [K]) -> []`.
    predict: `outputs [K] -> label [K]`, the label that the learner itself would give, or None.
    classification: whether labels stand for classes, so that accuracy makes sense.
    low, high: with one output (K = 1), the labels of class 0 and class 1. With more, class k is the k-th unit vector.
    affine: whether u is affine in the label; None: find out by probing.
    isotropic: where u = constant - y, so that for a linear learner the best label is a plain projection:
      "everywhere", "on_simplex" (labels that sum to one), or "nowhere".
    scalar_map: for K = 1 and u not affine in y, how values of u turn back into labels.
  """

  name: str
  value: Callable[[Array, Array], Array]
  predict: Callable[[Array], Array] | None = None
  classification: bool = True
  low: float = 0.0
  high: float = 1.0
  affine: bool | None = None
  isotropic: str = "nowhere"
  scalar_map: margin.ScalarMap | None = None

  def class_labels(self, num_outputs: int) -> np.ndarray:
    """The labels of the classes, `[C, K]`: the corners of the set of soft labels."""
    return np.array([[self.low], [self.high]]) if num_outputs == 1 else np.eye(num_outputs)

  def class_labels_like(self, labels: Array) -> Array:
    """The same, with the length and dtype of `labels [..., K]`."""
    return jnp.asarray(self.class_labels(labels.shape[-1]), labels.dtype)

  def nearest_class_labels(self, labels: Array) -> Array:
    """For each of `labels [m, K]` the class label that is nearest to it, the first of several: `[m, K]`."""
    class_labels = self.class_labels_like(labels)
    gaps = jnp.sum((labels[:, None] - class_labels[None]) ** 2, -1)  # [m, C]
    return class_labels[jnp.argmin(gaps, 1)]

  def predict_all(self, outputs: Array) -> Array:
    """What the learner itself would label its examples, `[m, K] -> [m, K]`."""
    if self.predict is None:
      raise ValueError(f"the loss {self.name} does not say what it predicts: give `predict` to its losses.Loss")
    return jax.vmap(self.predict)(outputs)

  def output_gradient(self, outputs: Array, label: Array) -> Array:
    """u, the gradient of the loss in the outputs: `[K], [K] -> [K]`."""
    return jax.grad(self.value)(outputs, label)

  def label_slope(self, outputs: Array, label: Array) -> Array:
    """B = du/dy, `[K], [K] -> [K, K]`."""
    return jax.jacfwd(self.output_gradient, argnums=1)(outputs, label)

  def is_affine(self, num_outputs: int) -> bool:
    """Whether u is affine in the label: as stated, or else as found at random outputs and labels."""
    return _probe_affine(self, num_outputs) if self.affine is None else self.affine


@functools.lru_cache(maxsize=256)
def _probe_affine(loss: Loss, num_outputs: int) -> bool:
  draw = np.random.default_rng(0)
  with jax.ensure_compile_time_eval():
    for scale in (1.0, 10.0):
      outputs = jnp.asarray(draw.normal(size=num_outputs), float)
      one, other = (jnp.asarray(scale * draw.normal(size=num_outputs), float) for _ in range(2))
      middle = loss.output_gradient(outputs, (one + other) / 2)
      ends = loss.output_gradient(outputs, one), loss.output_gradient(outputs, other)
      if not np.allclose(middle, (ends[0] + ends[1]) / 2, rtol=1e-4, atol=1e-5 * scale):
        return False
  return True


@jax.custom_jvp
def _softplus(z: Array) -> Array:
  """As `jax.nn.softplus`, whose derivative takes two exponentials and a logarithm: this one's is a sigmoid."""
  return jax.nn.softplus(z)


@_softplus.defjvp
def _softplus_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
  return _softplus(primals[0]), jax.nn.sigmoid(primals[0]) * tangents[0]


def _squared_error(outputs: Array, label: Array) -> Array:
  return 0.5 * jnp.sum((outputs - label) ** 2)


def _sigmoid_cross_entropy(outputs: Array, label: Array) -> Array:
  # Not optax's: that one is only meant for labels in [0, 1]; this form is affine in any real label.
  return jnp.sum(_softplus(outputs) - label * outputs)


def _softmax_cross_entropy(outputs: Array, label: Array) -> Array:
  return -jnp.sum(label * jax.nn.log_softmax(outputs))


def _margin_logistic(outputs: Array, label: Array) -> Array:
  return jnp.sum(_softplus(-label * outputs))


squared_error = Loss(
  "squared_error", _squared_error, predict=lambda z: z, classification=False, affine=True, isotropic="everywhere"
)
sigmoid_cross_entropy = Loss(
  "sigmoid_cross_entropy", _sigmoid_cross_entropy, predict=jax.nn.sigmoid, affine=True, isotropic="everywhere"
)
softmax_cross_entropy = Loss(
  "softmax_cross_entropy", _softmax_cross_entropy, predict=jax.nn.softmax, affine=True, isotropic="on_simplex"
)
margin_logistic = Loss(
  "margin_logistic",
  _margin_logistic,
  predict=lambda z: jnp.tanh(z / 2),  # The mean of a label that is +1 with probability sigmoid(z), and -1 otherwise.
  low=-1.0,
  affine=False,
  scalar_map=margin.MARGIN_MAP,
)

_NAMED = {loss.name: loss for loss in (squared_error, sigmoid_cross_entropy, softmax_cross_entropy, margin_logistic)}


@functools.lru_cache(maxsize=256)  # The same function gives the same Loss, so nothing is compiled twice for it.
def _from_function(function: Callable[..., Any]) -> Loss:
  name = getattr(function, "__name__", type(function).__name__)
  # The sum lets losses that answer one number per output (as many of optax's do) serve as they are.
  return Loss(name, lambda outputs, label: jnp.sum(function(outputs, label)))


def as_loss(loss: Loss | str | Callable[..., Any]) -> Loss:
  """A Loss from one of its names, from a function `(outputs [K], label [K]) -> [] or [K]`, or as it is."""
  if isinstance(loss, Loss):
    return loss
  if isinstance(loss, str):
    if loss not in _NAMED:
      raise ValueError(f"loss {loss!r} is not known: use one of {', '.join(sorted(_NAMED))}, or a function")
    return _NAMED[loss]
  if loss is optax.softmax_cross_entropy:
    return softmax_cross_entropy
  if callable(loss):
    return _from_function(loss)
  raise TypeError(f"loss must be a name, a function of (outputs, label), or a Loss, but it is a {type(loss).__name__}")
