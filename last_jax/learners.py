"""Learners: a model, a loss and an optimizer. One iteration of a student is `step`:

w+ = w - eta (grad_w loss(f(w, x), y) + lambda w)          lambda is not applied to biases
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from last_jax import checks, identity, losses, models
from last_jax.base import STATIC, Array, Key, Params, Pool, Student
from last_jax.optimizers import Optax, Sgd, as_float, from_optax


def _decayed(leaf: Array) -> bool:
  return leaf.ndim > 1  # Biases and scales, of one dimension, are left alone.


@identity.register_dataclass
@dataclasses.dataclass(frozen=True)
class Learner:
  """A model, a loss and an optimizer, as a pytree.

  Numbers are leaves and functions are static, compared by structure: learners that differ in their numbers only, and
  learners that are made again, share compiled programs.
  """

  model: models.Model = dataclasses.field(metadata=STATIC)
  loss: losses.Loss = dataclasses.field(metadata=STATIC)
  optimizer: Sgd | Optax
  weight_decay: Array | float | None  # None: no decay, and nothing is computed for it.

  def init(self, key: Key) -> Params:
    """Return random parameters."""
    return self.model.init(key)

  def apply(self, params: Params, x: Array) -> Array:
    """Return outputs z = f(w, x), `[m, ...] -> [m, K]`."""
    checks.check_inputs(self, x, "x")
    return self.model.apply(params, x)

  def start(self, params: Params) -> Student:
    """Return a student with these parameters, before its first step."""
    return Student(params, self.optimizer.init(params))

  def step(self, student: Student, x: Array, labels: Array) -> Student:
    """Take one iteration on the batch `x [m, ...]`, `labels [m, K]`."""
    gradient = jax.grad(self.mean_loss)(student.params, x, labels)
    return self.update(student, gradient)

  def update(self, student: Student, gradient: Params) -> Student:
    """Take one optimizer step for this gradient of the batch's mean loss."""
    if self.weight_decay is not None:
      gradient = jax.tree.map(lambda g, w: g + self.weight_decay * w if _decayed(w) else g, gradient, student.params)
    updates, opt_state = self.optimizer.update(gradient, student.opt_state, student.params)
    return Student(optax.apply_updates(student.params, updates), opt_state)

  def mean_loss(self, params: Params, x: Array, labels: Array) -> Array:
    """Return the batch's mean loss without weight decay, `[]`, for `x [m, ...]` and `labels [m, K]`."""
    outputs = self.apply(params, x)
    if jnp.shape(labels) != outputs.shape:
      raise ValueError(f"labels must have shape {list(outputs.shape)}, but they have shape {list(jnp.shape(labels))}")
    return jnp.mean(jax.vmap(self.loss)(outputs, labels))

  def objective(self, params: Params, x: Array, labels: Array) -> Array:
    """Return the mean loss plus (weight decay / 2) ||w||^2, `[]`: the function that `fit_target` minimises."""
    value = self.mean_loss(params, x, labels)
    if self.weight_decay is None:
      return value
    decayed = [jnp.sum(leaf**2) for leaf in jax.tree.leaves(params) if _decayed(leaf)]
    return value + 0.5 * self.weight_decay * sum(decayed)

  def accuracy(self, params: Params, x: Array, labels: Array) -> Array:
    """Return the share of examples that are classified correctly, `[]`."""
    outputs = self.apply(params, x)
    if outputs.shape[1] == 1:
      return jnp.mean((outputs > 0) == (labels > 0.5 * (self.loss.low + self.loss.high)))
    return jnp.mean(jnp.argmax(outputs, 1) == jnp.argmax(labels, 1))

  def num_outputs(self, x: Array) -> int:
    """Return K, for inputs shaped like `x [n, ...]`."""
    return models.count_outputs(self.model, x.shape[1:], x.dtype)

  def encode(self, x: Array, y: Array) -> Array:
    """Return labels as vectors `[n, K]`, from class ids `[n]`, real targets `[n]` or label vectors `[n, K]`."""
    num_outputs, dtype = self.num_outputs(x), x.dtype
    if y.ndim == 2:
      return y.astype(dtype)
    if jnp.issubdtype(y.dtype, jnp.floating) or (num_outputs == 1 and not self.loss.classification):
      return y.astype(dtype)[:, None]
    return jnp.asarray(self.loss.class_labels(num_outputs), dtype)[y.astype(int)]

  @property
  def is_linear(self) -> bool:
    """Whether closed forms apply: outputs are linear in w, and the step has one scalar rate."""
    return isinstance(self.model, models.Linear) and isinstance(self.optimizer, Sgd)


def _build(
  model: models.Model,
  loss: losses.Loss,
  learning_rate: Any,
  momentum: Any,
  nesterov: bool,
  weight_decay: Any,
  optimizer: optax.GradientTransformation | None,
) -> Learner:
  checks.check_not_negative("weight_decay", weight_decay)
  decay = None if isinstance(weight_decay, (int, float)) and weight_decay == 0 else as_float(weight_decay)
  if optimizer is not None:
    if learning_rate is not None or momentum is not None or nesterov:
      raise ValueError("give either an optimizer or learning_rate, momentum and nesterov, not both")
    if not hasattr(optimizer, "init") or not hasattr(optimizer, "update"):
      raise TypeError(f"optimizer must be an optax transformation, but it is a {type(optimizer).__name__}")
    return Learner(model, loss, from_optax(optimizer), decay)
  if learning_rate is None:
    raise ValueError("learning_rate is missing: give a positive number, a schedule, or an optimizer")
  if nesterov and momentum is None:
    raise ValueError("nesterov=True needs momentum, a number between 0 and 1")
  if momentum is not None:
    checks.check_between("momentum", momentum, 0.0, 1.0)
  if callable(learning_rate):
    return Learner(model, loss, Sgd(None, as_float(momentum), nesterov, learning_rate), decay)
  checks.check_positive("learning_rate", learning_rate)
  return Learner(model, loss, Sgd(as_float(learning_rate), as_float(momentum), nesterov), decay)


def least_squares(
  num_features: int,
  num_outputs: int = 1,
  *,
  learning_rate: Any = None,
  weight_decay: Any = 0.0,
  bias: bool = True,
  momentum: Any = None,
  nesterov: bool = False,
  optimizer: optax.GradientTransformation | None = None,
) -> Learner:
  """Linear regression, loss ||z - y||^2 / 2.

  Args:
    num_features: d, the length of x.
    num_outputs: K, the length of a label.
    learning_rate: eta, a number or an optax schedule.
    weight_decay: lambda.
    bias: whether there is an intercept.
    momentum: of heavy-ball or, with `nesterov`, Nesterov's SGD.
    nesterov: see `momentum`.
    optimizer: any optax transformation, in place of learning_rate, momentum and nesterov. `optax.sgd(...)` gives the
      same learner as they do.
  """
  checks.check_count("num_features", num_features)
  checks.check_count("num_outputs", num_outputs)
  model = models.Linear(int(num_features), int(num_outputs), bool(bias))
  return _build(model, losses.squared_error, learning_rate, momentum, nesterov, weight_decay, optimizer)


def logistic(
  num_features: int,
  *,
  learning_rate: Any = None,
  weight_decay: Any = 0.0,
  bias: bool = True,
  form: str = "cross_entropy",
  momentum: Any = None,
  nesterov: bool = False,
  optimizer: optax.GradientTransformation | None = None,
) -> Learner:
  """Logistic regression with one output; settings as in `least_squares`.

  Args:
    form: "cross_entropy": the label y is the probability of class 1, the gradient sigmoid(z) - y. "margin": the loss is
      log(1 + exp(-y z)), classes are labelled -1 and +1, and labels may be any real number.
  """
  checks.check_count("num_features", num_features)
  forms = {"cross_entropy": losses.sigmoid_cross_entropy, "margin": losses.margin_logistic}
  loss = forms[checks.check_name("form", form, forms)]
  model = models.Linear(int(num_features), 1, bool(bias))
  return _build(model, loss, learning_rate, momentum, nesterov, weight_decay, optimizer)


def softmax(
  num_features: int,
  num_classes: int,
  *,
  learning_rate: Any = None,
  weight_decay: Any = 0.0,
  bias: bool = True,
  momentum: Any = None,
  nesterov: bool = False,
  optimizer: optax.GradientTransformation | None = None,
) -> Learner:
  """Multinomial logistic regression, `num_classes` outputs; settings as in `least_squares`.

  Cross-entropy's gradient is (sum of y) p - y: labels need not sum to one. Gradients of the classes always sum to zero,
  so the part of w - w* that is equal for all classes can never be taught: see `last_jax.unreachable_distance`.
  """
  checks.check_count("num_features", num_features)
  checks.check_count("num_classes", num_classes, least=2)
  model = models.Linear(int(num_features), int(num_classes), bool(bias))
  return _build(model, losses.softmax_cross_entropy, learning_rate, momentum, nesterov, weight_decay, optimizer)


def mlp(
  widths: Sequence[int],
  *,
  learning_rate: Any = None,
  activation: str | Callable[[Array], Array] = "relu",
  loss: Any = None,
  weight_decay: Any = 0.0,
  bias: bool = True,
  momentum: Any = None,
  nesterov: bool = False,
  optimizer: optax.GradientTransformation | None = None,
) -> Learner:
  """A fully connected network; other settings as in `least_squares`.

  Args:
    widths: (features, hidden..., outputs), such as (24, 32, 5).
    activation: "relu", "leaky_relu" (slope 0.01), "tanh", or a function.
    loss: softmax cross-entropy unless given (sigmoid cross-entropy with one output); a name, a function or a Loss.
  """
  widths = tuple(widths)
  if len(widths) < 2:
    raise ValueError(f"widths must name at least the features and the outputs, such as (24, 32, 5), but it is {widths}")
  for width in widths:
    checks.check_count("widths", width)
  if isinstance(activation, str):
    checks.check_name("activation", activation, models.ACTIVATIONS)
  elif not callable(activation):
    raise TypeError(f"activation must be a name or a function, but it is a {type(activation).__name__}")
  default = losses.sigmoid_cross_entropy if widths[-1] == 1 else losses.softmax_cross_entropy
  chosen = default if loss is None else losses.as_loss(loss)
  model = models.Mlp(tuple(map(int, widths)), activation, bool(bias))
  return _build(model, chosen, learning_rate, momentum, nesterov, weight_decay, optimizer)


def from_apply(
  init_fn: Callable[[Key], Params],
  apply_fn: Callable[[Params, Array], Array],
  loss: Any,
  *,
  optimizer: optax.GradientTransformation | None = None,
  learning_rate: Any = None,
  weight_decay: Any = 0.0,
  momentum: Any = None,
  nesterov: bool = False,
) -> Learner:
  """A learner from any model: a Flax module, an Equinox one, plain functions.

  Functions with equal code and equal contents of their closures share compiled programs: see `last_jax.identity`.

  Args:
    init_fn: `key -> params`, any pytree of floating point arrays.
    apply_fn: `(params, x [m, ...]) -> outputs [m, K]`. Examples must not influence each other (no batch statistics).
    loss: a name ("softmax_cross_entropy", ...), a function `(outputs [K], label [K]) -> []`, or a `losses.Loss`. If its
      gradient is affine in the label, greedy labels are exact; otherwise they are searched for numerically.
    optimizer: any optax transformation. If its step is affine in the gradient (SGD, momentum, weight decay), greedy
      labels are exact; otherwise (Adam, clipping) they are searched for numerically, through the optimizer.
    learning_rate: in place of `optimizer`: SGD's step size, with `momentum` and `nesterov`.
    weight_decay: lambda, added to the gradient of leaves with two dimensions or more.
    momentum: see `learning_rate`.
    nesterov: see `learning_rate`.
  """
  for name, function in (("init_fn", init_fn), ("apply_fn", apply_fn)):
    if not callable(function):
      raise TypeError(f"{name} must be a function, but it is a {type(function).__name__}")
  model = models.Custom(init_fn, apply_fn)
  return _build(model, losses.as_loss(loss), learning_rate, momentum, nesterov, weight_decay, optimizer)


def check_learns_from(learner: Any, pool: Any, name: str = "pool") -> None:
  """Raise an error that names the argument, unless `learner` can be taught from `pool`."""
  if not isinstance(learner, Learner):
    raise TypeError(f"learner must come from last_jax.learners, but it is a {type(learner).__name__}")
  if not isinstance(pool, Pool):
    raise TypeError(f"{name} must be a last_jax.Pool, but it is a {type(pool).__name__}")
  checks.check_inputs(learner, pool.x, f"{name}.x")
  checks.check_labels(learner, pool.x, pool.y, f"{name}.y")
