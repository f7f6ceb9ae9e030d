"""Losses of one example, and the properties of them that label synthesis uses.

Teaching by labels works through one vector: u(y), the gradient of the loss in the outputs z. For squared error and for
both cross-entropies u is affine in the label, u = a + B y, which makes the greedy label a convex quadratic problem
(see `synthesis.py`). The margin form of the logistic loss is not affine; it comes with its own exact inverse. Nor is
hinge loss, whose labels are searched for numerically.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from last_jax import affine, identity, margin
from last_jax.base import Array
from last_jax.models import check_returned


def rows(values: Array) -> Array:
  """Return outputs or labels `[..., K]` as rows `[m, K]`, each of which has a loss of its own."""
  return values if jnp.ndim(values) == 2 else jnp.reshape(values, (-1, jnp.shape(values)[-1]))


@dataclasses.dataclass(frozen=True, eq=False)
class Loss(identity.Structural):
  """A loss of one example, as a static description. Losses are equal if all but their names have equal structure.

  Attributes:
    name: for messages.
    value: `(outputs [K], label [K]) -> []`.
    predict: `outputs [K] -> label [K]`, the label that the learner itself would give, or None.
    classification: whether labels stand for classes, so that accuracy is defined.
    low, high: with one output (K = 1), the labels of class 0 and class 1. With more, class k is the k-th unit vector.
    affine: whether u is affine in the label; None: decided from the computation of u.
    isotropic: where u = constant - y, so that for a linear learner the best label is a plain projection:
      "everywhere", "on_simplex" (labels that sum to one), or "nowhere".
    scalar_map: for K = 1 and u not affine in y, the map from values of u back to labels.
    root: `(outputs [K], label [K]) -> [R, K]`, a matrix A such that Aᵀ A is the loss's Hessian in the outputs; None:
      found from the Hessian itself.
    formula: the value in NumPy's words, of arrays z (outputs) and y (label), `[K]` each: for files that are read where
      this package is not (`curriculum.py`).
    gradient: u in the same words, or None.
  """

  name: str = dataclasses.field(compare=False)
  value: Callable[[Array, Array], Array]
  predict: Callable[[Array], Array] | None = None
  classification: bool = True
  low: float = 0.0
  high: float = 1.0
  affine: bool | None = None
  isotropic: str = "nowhere"
  scalar_map: margin.ScalarMap | None = None
  root: Callable[[Array, Array], Array] | None = None
  formula: str | None = dataclasses.field(default=None, compare=False)
  gradient: str | None = dataclasses.field(default=None, compare=False)

  def __call__(self, outputs: Array, label: Array) -> Array:
    """Return the loss, `[K], [K] -> []`."""
    return check_returned(f"the loss {self.name}", self.value(outputs, label), ())

  def class_labels(self, num_outputs: int) -> np.ndarray:
    """Return the labels of the classes, `[C, K]`: the corners of the set of soft labels."""
    return np.array([[self.low], [self.high]]) if num_outputs == 1 else np.eye(num_outputs)

  def class_labels_like(self, labels: Array) -> Array:
    """Return the labels of the classes, `[C, K]`, in the width and dtype of `labels [..., K]`."""
    return jnp.asarray(self.class_labels(labels.shape[-1]), labels.dtype)

  def nearest_class_labels(self, labels: Array) -> Array:
    """Return for each of `labels [..., K]` the nearest class label (the first of several), `[..., K]`."""
    class_labels, flat = self.class_labels_like(labels), rows(labels)
    # Squared distances less ||label||^2: beside far labels, what tells classes apart would be lost.
    gaps = jnp.sum(class_labels**2, 1)[None] - 2 * flat @ class_labels.T if flat.shape[1] == 1 else -flat  # [m, C]
    return class_labels[jnp.argmin(gaps, 1)].reshape(labels.shape)

  @property
  def ignores_common_shift(self) -> bool:
    """Whether the same number added to all outputs changes nothing, as for softmax."""
    return self.isotropic == "on_simplex"

  def predict_all(self, outputs: Array) -> Array:
    """Return the labels that the learner itself would give, `[..., K] -> [..., K]`."""
    predict = self.predict
    if predict is None:
      raise ValueError(f"the loss {self.name} does not say what it predicts: give `predict` to its losses.Loss")
    name = f"predict of the loss {self.name}"
    return jax.vmap(lambda z: check_returned(name, predict(z), z.shape))(rows(outputs)).reshape(outputs.shape)

  def output_gradient(self, outputs: Array, label: Array) -> Array:
    """Return u, the gradient of the loss in the outputs: `[K], [K] -> [K]`."""
    return jax.grad(self)(outputs, label)

  def label_slope(self, outputs: Array, label: Array) -> Array:
    """Return B = du/dy, `[K], [K] -> [K, K]`."""
    return jax.jacfwd(self.output_gradient, argnums=1)(outputs, label)

  def slope_products(self, outputs: Array, labels: Array) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """Return products with all B of outputs and labels `[n, K]`, and with all Bᵀ: each `[n, K] -> [n, K]`.

    Where K is a thousand, the matrices themselves are larger than everything else of a step.
    """
    _, multiply = jax.linearize(lambda labels: jax.vmap(self.output_gradient)(outputs, labels), labels)
    transposed = jax.linear_transpose(multiply, labels)
    return multiply, lambda direction: transposed(direction)[0]

  def gradient_rows(self, num_outputs: int) -> np.ndarray:
    """Return vectors `[R, K]` whose sum, each times the entry of u in its place, is u, for all gradients u.

    The unit vectors, R = K. Gradients of softmax sum to zero: R = K - 1, the differences from the last unit vector.
    """
    rows = np.eye(num_outputs)
    return rows if self is not softmax_cross_entropy or num_outputs == 1 else rows[:-1] - rows[-1:]

  def between_labels(self, products: Array, slopes: Array) -> Array:
    """Return products of labels, Bᵀ P B, from those of `gradient_rows`, P: `[n, R, n, R] -> [n, K, n, K]`.

    Args:
      products: P, symmetric: of every row of the gradient of every example with each other.
      slopes: B, `[n, K, K]`.
    """
    count = products.shape[1]
    if self.isotropic == "everywhere":  # B = -I.
      return products
    if self is not softmax_cross_entropy or slopes.shape[1] == 1:
      return jnp.einsum("irc,irjd->icjd", slopes, jnp.einsum("irjs,jsd->irjd", products, slopes))
    # Columns of B are p - e_c, the last of them p less the last unit vector, and the others that less a row.
    shares = slopes[:, :count, count]
    own = jnp.einsum("irjs,js->irj", products, shares)
    both = jnp.einsum("irj,ir->ij", own, shares)
    edge = (0, 1)
    across = jnp.pad(own, ((0, 0), edge, (0, 0)))
    return (
      jnp.pad(products, ((0, 0), edge, (0, 0), edge))
      - across[:, :, :, None]
      - across.transpose(2, 0, 1)[:, None]
      + both[:, None, :, None]
    )

  def curvature_root(self, outputs: Array, label: Array) -> Array:
    """Return a matrix A with Aᵀ A the Hessian in the outputs, `[K], [K] -> [R, K]`.

    For a loss that is not convex in the outputs, of the convex part of its Hessian.
    """
    if self.root is not None:
      return self.root(outputs, label)
    hessian = jax.hessian(self)(outputs, label)
    values, vectors = (hessian[0], jnp.ones_like(hessian)) if hessian.size == 1 else jnp.linalg.eigh(hessian)
    return jnp.sqrt(jnp.maximum(values, 0.0))[:, None] * vectors.T

  def is_affine(self, num_outputs: int) -> bool:
    """Return whether u is affine in the label: as stated, or else as its jaxpr shows."""
    if self.affine is not None:
      return self.affine
    vector = jax.ShapeDtypeStruct((num_outputs,), jnp.result_type(float))
    return affine.is_affine(self._gradient_of_label, vector, vector)

  def _gradient_of_label(self, label: Array, outputs: Array) -> Array:
    return self.output_gradient(outputs, label)


@jax.custom_jvp
def _softplus(z: Array) -> Array:
  """As `jax.nn.softplus`, with a derivative of one sigmoid in place of two exponentials and a logarithm."""
  return jax.nn.softplus(z)


@_softplus.defjvp
def _softplus_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
  return _softplus(primals[0]), jax.nn.sigmoid(primals[0]) * tangents[0]


def _squared_error(outputs: Array, label: Array) -> Array:
  return 0.5 * jnp.sum((outputs - label) ** 2)


def _sigmoid_cross_entropy(outputs: Array, label: Array) -> Array:
  # Not optax's, which needs two logarithms.
  return jnp.sum(_softplus(outputs) - label * outputs)


def _softmax_cross_entropy(outputs: Array, label: Array) -> Array:
  return -jnp.sum(label * jax.nn.log_softmax(outputs))


def _margin_logistic(outputs: Array, label: Array) -> Array:
  return jnp.sum(_softplus(-label * outputs))


def _hinge(outputs: Array, label: Array) -> Array:
  if outputs.shape[0] == 1:
    return jnp.sum(jnp.maximum(1 - label * outputs, 0.0))
  return jnp.max(outputs + 1 - label) - jnp.sum(label * outputs)


def _hinge_prediction(outputs: Array) -> Array:
  if outputs.shape[0] == 1:
    return jnp.where(outputs < 0, -1.0, 1.0).astype(outputs.dtype)
  return jax.nn.one_hot(jnp.argmax(outputs), outputs.shape[0], dtype=outputs.dtype)


def _squared_error_root(outputs: Array, label: Array) -> Array:
  del label
  return jnp.eye(outputs.shape[0], dtype=outputs.dtype)


def _softmax_root(outputs: Array, label: Array) -> Array:
  """Factor (1ᵀy) (diag(p) - p pᵀ): with square roots of p as weights, nothing cancels where p is near 0 or 1."""
  total = jnp.maximum(jnp.sum(label), 0.0)
  shares = jax.nn.softmax(outputs)
  deviations = jnp.eye(outputs.shape[0], dtype=outputs.dtype) - shares[None]
  return jnp.sqrt(total) * jnp.exp(0.5 * jax.nn.log_softmax(outputs))[:, None] * deviations


squared_error: Loss = Loss(
  "squared_error", _squared_error, predict=lambda z: z, classification=False, affine=True, isotropic="everywhere",
  root=_squared_error_root, formula="sum((z - y) ** 2) / 2", gradient="z - y",
)  # fmt: skip
sigmoid_cross_entropy: Loss = Loss(
  "sigmoid_cross_entropy", _sigmoid_cross_entropy, predict=jax.nn.sigmoid, affine=True, isotropic="everywhere",
  formula="sum(log(1 + exp(z)) - y * z)", gradient="1 / (1 + exp(-z)) - y",
)  # fmt: skip
softmax_cross_entropy: Loss = Loss(
  "softmax_cross_entropy", _softmax_cross_entropy, predict=jax.nn.softmax, affine=True, isotropic="on_simplex",
  root=_softmax_root, formula="-sum(y * log(exp(z) / sum(exp(z))))", gradient="sum(y) * exp(z) / sum(exp(z)) - y",
)  # fmt: skip
margin_logistic: Loss = Loss(
  "margin_logistic",
  _margin_logistic,
  predict=lambda z: jnp.tanh(z / 2),  # The mean of a label that is +1 with probability sigmoid(z), and -1 otherwise.
  low=-1.0,
  affine=False,
  scalar_map=margin.MARGIN_MAP,
  formula="sum(log(1 + exp(-y * z)))",
  gradient="-y / (1 + exp(y * z))",
)

# Of support vector machines. With one output max(0, 1 - y z), for classes -1 and +1 and labels of any size. With more,
# Crammer and Singer's max_k (z_k + 1 - y_k) - <y, z>, for class labels max(0, 1 + the best other output - its own).
# A label sets the margin to be kept as well as the pull, so u jumps as it changes: it is affine in pieces, not as a
# whole. (The mean of the losses of the classes, weighted by y, would be.)
hinge: Loss = Loss(
  "hinge", _hinge, predict=_hinge_prediction, low=-1.0, affine=False,
  formula="sum(maximum(1 - y * z, 0)) if len(z) == 1 else max(z + 1 - y) - sum(y * z)",
  gradient="-y * (y * z < 1) if len(z) == 1 else eye(len(z))[argmax(z + 1 - y)] - y",
)  # fmt: skip

_NAMED = {
  loss.name: loss for loss in (squared_error, sigmoid_cross_entropy, softmax_cross_entropy, margin_logistic, hinge)
}


def is_known(loss: Any) -> bool:
  """Whether it is one of this module's losses."""
  return any(loss is known for known in _NAMED.values())


def as_loss(loss: Loss | str | Callable[..., Any]) -> Loss:
  """Return a Loss from its name, from a function `(outputs [K], label [K]) -> [] or [K]`, or from a Loss itself."""
  if isinstance(loss, Loss):
    return loss
  if isinstance(loss, str):
    if loss not in _NAMED:
      raise ValueError(f"loss {loss!r} is not known: use one of {', '.join(sorted(_NAMED))}, or a function")
    return _NAMED[loss]
  if loss is optax.softmax_cross_entropy:
    return softmax_cross_entropy
  if not callable(loss):
    kind = type(loss).__name__
    raise TypeError(f"loss must be a name, a function of (outputs, label), or a Loss, but it is a {kind}")
  function, name = loss, getattr(loss, "__name__", type(loss).__name__)

  def value(outputs: Array, label: Array) -> Array:
    # Many of optax's losses return one number per output: they are summed.
    return jnp.sum(check_returned(f"the loss {name}", function(outputs, label), (), outputs.shape))

  return Loss(name, value)
