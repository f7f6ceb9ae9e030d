"""The learner: a model, a loss and an optimizer. One iteration of a student is `step`:

w+ = w - eta (grad_w loss(f(w, x), y) + lambda w)          lambda is not applied to biases
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from last_jax import checks, identity, kernels, losses, models, remade, summaries
from last_jax.base import STATIC, Array, Key, Params, Pool, Student, is_concrete
from last_jax.optimizers import Optax, Sgd, from_optax


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
  constants: tuple[Any, ...] = ()  # Arrays that the model needs besides its parameters, as batch statistics.

  def __repr__(self) -> str:
    size = sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(self.shapes()))
    parts = [models.describe(self.model), summaries.count(size, "parameter"), self.loss.name, repr(self.optimizer)]
    if self.weight_decay is not None:
      parts.append(f"weight decay {summaries.number(self.weight_decay)}")
    return f"Learner({', '.join(parts)})"

  def init(self, key: Key) -> Params:
    """Return random parameters."""
    return self.model.init(key, *self.constants)

  def apply(self, params: Params, x: Array) -> Array:
    """Return outputs z = f(w, x), `[m, ...] -> [m, K]` or `[m, T, K]`, in float32 or wider."""
    checks.check_inputs(self, x, "x")
    return models.apply(self.model, params, x, self.constants)

  def start(self, params: Params) -> Student:
    """Return a student with these parameters, before its first step."""
    return Student(params, self.optimizer.init(models.wide(params)))

  def step(self, student: Student, x: Array, labels: Array) -> Student:
    """Take one iteration on the batch `x [m, ...]`, `labels [m, K]` (or `[m, T, K]`, as the outputs)."""
    return self.update(student, self.gradient(student.params, x, labels))

  def gradient(self, params: Params, x: Array, labels: Array) -> Params:
    """Return the gradient of `mean_loss` in the parameters, in float32 or wider."""
    if models.is_narrow(params) and models.takes_wide(self.model, params, x, self.constants):
      params = models.wide(params)  # Gradients are sums, over examples and over tokens.
    plain = isinstance(self.model, (models.Linear, models.Mlp))  # They have no convolutions: trace them once.
    mean_loss = self.mean_loss if plain else kernels.fast_in_loops(self.mean_loss)
    if not models.is_narrow(params):
      return jax.grad(mean_loss)(params, x, labels)
    # float16 has no numbers below 6e-8, and gradients of single outputs are divided by the size of the batch: they are
    # multiplied by about its square root on their way back.
    scale = 2.0 ** round(0.5 * math.log2(math.prod(jnp.shape(labels)[:-1])))
    gradient = jax.grad(lambda params: scale * mean_loss(params, x, labels))(params)
    return jax.tree.map(lambda leaf: leaf / scale, models.wide(gradient))

  def update(self, student: Student, gradient: Params) -> Student:
    """Take one optimizer step for this gradient of the batch's mean loss.

    Parameters of 16 bits are rounded once, at the end: the optimizer works, and keeps its state, in float32.
    """
    params, gradient = models.wide(student.params), models.wide(gradient)
    if self.weight_decay is not None:
      gradient = jax.tree.map(lambda g, w: g + self.weight_decay * w if _decayed(w) else g, gradient, params)
    updates, opt_state = self.optimizer.update(gradient, student.opt_state, params)
    after = optax.apply_updates(params, updates)
    return Student(jax.tree.map(lambda new, old: new.astype(old.dtype), after, student.params), opt_state)

  def position(self, student: Student, coasting: bool = True) -> Params:
    """Return where momentum carries the student if no further gradient arrives; its parameters without coasting."""
    if coasting and isinstance(self.optimizer, Sgd):
      return self.optimizer.coast(student.params, student.opt_state)
    return student.params

  def drift(self, student: Student, coasting: bool = True) -> tuple[Params, Array | float]:
    """Return the `position` after a step without any gradient of the loss, and how far a unit of gradient moves it."""
    assert isinstance(self.optimizer, Sgd), "only its steps have one rate"
    rate = self.optimizer.coasting_rate(student.opt_state) if coasting else self.optimizer.rate(student.opt_state)
    params = models.wide(student.params)
    if self.optimizer.momentum is None and self.weight_decay is None:
      return params, rate
    after = self.update(Student(params, student.opt_state), jax.tree.map(jnp.zeros_like, params))
    return self.position(after, coasting), rate

  def mean_loss(self, params: Params, x: Array, labels: Array) -> Array:
    """Return the batch's mean loss without weight decay, `[]`, for `x [m, ...]` and `labels [m, K]` or `[m, T, K]`."""
    outputs = self.apply(params, x)
    if jnp.shape(labels) != outputs.shape:
      raise ValueError(f"labels must have shape {list(outputs.shape)}, but they have shape {list(jnp.shape(labels))}")
    return jnp.mean(jax.vmap(self.loss)(losses.rows(outputs), losses.rows(labels)))

  def objective(self, params: Params, x: Array, labels: Array) -> Array:
    """Return the mean loss plus (weight decay / 2) ||w||^2, `[]`: the function that `fit_target` minimises."""
    value = self.mean_loss(params, x, labels)
    if self.weight_decay is None:
      return value
    decayed = [jnp.sum(leaf**2) for leaf in jax.tree.leaves(models.wide(params)) if _decayed(leaf)]
    return value + 0.5 * self.weight_decay * sum(decayed)

  def accuracy(self, params: Params, x: Array, labels: Array) -> Array:
    """Return the share of examples, or of tokens, that are classified correctly, `[]`."""
    outputs = self.apply(params, x)
    if outputs.shape[-1] == 1:
      return jnp.mean((outputs > 0) == (labels > 0.5 * (self.loss.low + self.loss.high)))
    return jnp.mean(jnp.argmax(outputs, -1) == jnp.argmax(labels, -1))

  def shapes(self) -> Params:
    """Return the parameters' tree, with a `jax.ShapeDtypeStruct` in place of each array."""
    return models.param_shapes(self.model)

  def output_shape(self, x: Array) -> tuple[int, ...]:
    """Return the shape of one example's outputs and label, (K,) or (T, K), for inputs shaped like `x [n, ...]`."""
    return models.output_shape(self.model, x.shape[1:], x.dtype)

  def num_outputs(self, x: Array) -> int:
    """Return K, for inputs shaped like `x [n, ...]`."""
    return self.output_shape(x)[-1]

  def encode(self, x: Array, y: Array) -> Array:
    """Return labels as vectors `[n, K]`, from class ids `[n]`, real targets `[n]` or label vectors `[n, K]`.

    For outputs of each token likewise: `[n, T, K]` from `[n, T]` or `[n, T, K]`. In float32, or in x's dtype if wider.
    """
    shape, dtype = self.output_shape(x), models.label_dtype(x)
    if y.ndim == 1 + len(shape):
      return y.astype(dtype)
    if jnp.issubdtype(y.dtype, jnp.floating) or (shape[-1] == 1 and not self.loss.classification):
      return y.astype(dtype)[..., None]
    return jnp.asarray(self.loss.class_labels(shape[-1]), dtype)[y.astype(int)]

  @property
  def is_linear(self) -> bool:
    """Whether closed forms apply: outputs are linear in w, and the step has one scalar rate."""
    return isinstance(self.model, models.Linear) and isinstance(self.optimizer, Sgd)


def build(
  model: models.Model,
  loss: losses.Loss,
  learning_rate: Any,
  momentum: Any,
  nesterov: bool,
  weight_decay: Any,
  optimizer: optax.GradientTransformation | None,
  constants: tuple[Any, ...] = (),
) -> Learner:
  """Return a learner, from settings as users give them: see `learners.least_squares` and `learners.from_apply`."""
  schedule = learning_rate if callable(learning_rate) else None
  given = {"loss": None if losses.is_known(loss) else loss, "optimizer": optimizer, "learning_rate": schedule}
  for name, functions in given.items():
    if functions is not None:
      remade.warn_if_remade(name, functions, stacklevel=3)
  weight_decay = checks.check_not_negative("weight_decay", weight_decay)
  decay = None if isinstance(weight_decay, float) and weight_decay == 0 else weight_decay
  nesterov = checks.check_flag("nesterov", nesterov)
  if optimizer is not None:
    if learning_rate is not None or momentum is not None or nesterov:
      raise ValueError("give either an optimizer or learning_rate, momentum and nesterov, not both")
    check_optimizer(optimizer)
    return Learner(model, loss, from_optax(optimizer), decay, constants)
  if learning_rate is None:
    raise ValueError("learning_rate is missing: give a positive number, a schedule, or an optimizer")
  if nesterov and momentum is None:
    raise ValueError("nesterov=True needs momentum, a number between 0 and 1")
  if momentum is not None:
    momentum = checks.check_between("momentum", momentum, 0.0, 1.0)
  if callable(learning_rate):
    return Learner(model, loss, Sgd(None, momentum, nesterov, learning_rate), decay, constants)
  rate = checks.check_positive("learning_rate", learning_rate)
  return Learner(model, loss, Sgd(rate, momentum, nesterov), decay, constants)


def check_optimizer(optimizer: Any) -> None:
  """Raise unless it has the two functions of an optax transformation."""
  if not (callable(getattr(optimizer, "init", None)) and callable(getattr(optimizer, "update", None))):
    raise TypeError(f"optimizer must be an optax transformation, but it is a {type(optimizer).__name__}")


def check_learner(learner: Any, name: str = "learner") -> None:
  """Raise unless it is a Learner."""
  if not isinstance(learner, Learner):
    raise TypeError(f"{name} must come from last_jax.learners, but it is a {type(learner).__name__}")


def check_learns_from(learner: Any, pool: Any, name: str = "pool") -> None:
  """Raise an error that names the argument, unless `learner` can be taught from `pool`."""
  check_learner(learner)
  if not isinstance(pool, Pool):
    raise TypeError(f"{name} must be a last_jax.Pool, but it is a {type(pool).__name__}")
  checks.check_inputs(learner, pool.x, f"{name}.x")
  if getattr(learner.model, "inputs", None) is not None and is_concrete(pool.x):
    x = np.asarray(pool.x)
    if (x != np.round(x)).any():
      raise ValueError(f"{name}.x must hold integers, as the x that the learner was made for, but some are fractions")
  checks.check_labels(learner, pool.x, pool.y, f"{name}.y")
