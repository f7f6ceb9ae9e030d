"""Optimizers of learners: the SGD family with its settings as data, or any optax transformation."""

import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from last_jax import affine, identity, summaries
from last_jax.base import STATIC, Array, Params
from last_jax.models import check_returned


@identity.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sgd:
  """SGD, with heavy-ball or Nesterov momentum. Its step is affine in the gradient: w+ = drift - rate * gradient.

  The numbers are leaves of a pytree, so that a sweep over them compiles once and can be vmapped.
  """

  learning_rate: Array | float | None  # None: given by `schedule`.
  momentum: Array | float | None = None
  nesterov: bool = dataclasses.field(default=False, metadata=STATIC)
  schedule: Callable[[Array], Array] | None = dataclasses.field(default=None, metadata=STATIC)

  def __repr__(self) -> str:
    rate = "by schedule" if self.schedule is not None else summaries.number(self.learning_rate)
    momentum = "" if self.momentum is None else f", momentum {summaries.number(self.momentum)}"
    return f"learning rate {rate}{momentum}{' (Nesterov)' * self.nesterov}"

  def _transformation(self) -> optax.GradientTransformation:
    return optax.sgd(self.schedule or self.learning_rate, self.momentum, self.nesterov)

  def init(self, params: Params) -> Any:
    """Return the initial optimizer state."""
    return self._transformation().init(params)

  def update(self, gradient: Params, state: Any, params: Params) -> tuple[Params, Any]:
    """Return `(updates, state)`, as optax does."""
    return self._transformation().update(gradient, state, params)

  def rate(self, state: Any) -> Array | float:
    """Return how far one unit of gradient moves the parameters in the next step, `[]`."""
    rate = self._learning_rate(state)
    return rate * (1 + self.momentum) if self.nesterov and self.momentum is not None else rate

  def _learning_rate(self, state: Any, ahead: int = 0) -> Any:
    """Return the learning rate of the next step, or of one further ahead: `[]`."""
    return self.learning_rate if self.schedule is None else self._scheduled(optax.tree.get(state, "count") + ahead)

  def _scheduled(self, count: Array) -> Array:
    assert self.schedule is not None, "there is no schedule"
    value = check_returned("the schedule of learning_rate", self.schedule(count), ())
    return jnp.asarray(value, float)  # Some of optax's schedules return float32 where float64 is enabled.

  def learning_rates(self, steps: int) -> Array:
    """Return the learning rates of the first steps of a new student, `[steps]`."""
    if self.schedule is None:
      return jnp.full(steps, jnp.asarray(self.learning_rate), float)
    return jax.vmap(self._scheduled)(jnp.arange(steps))

  def coast(self, params: Params, state: Any) -> Params:
    """Return where the parameters come to rest if no further gradient arrives.

    The velocity v shrinks by mu in each step: heavy ball moves by -eta (mu + mu^2 + ...) v, Nesterov's SGD by mu times
    that.
    """
    if self.momentum is None:
      return params
    distance = self._coasting(self._learning_rate(state))
    return jax.tree.map(lambda w, v: w - (distance * v).astype(w.dtype), params, optax.tree.get(state, "trace"))

  def coasting_rate(self, state: Any) -> Array | float:
    """Return how far one unit of gradient in the next step moves the point where the parameters come to rest, `[]`."""
    if self.momentum is None:
      return self.rate(state)
    return self.rate(state) + self._coasting(self._learning_rate(state, ahead=1))

  def _coasting(self, rate: Any) -> Any:
    """Return how far one unit of velocity carries the parameters after this step, `[]`."""
    assert self.momentum is not None, "there is no velocity"
    distance = rate * self.momentum / (1 - self.momentum)
    return distance * self.momentum if self.nesterov else distance

  def is_affine(self, params: Params) -> bool:
    """Return True: see the class."""
    del params
    return True

  is_diagonal = is_affine

  def factors(self, params: Params) -> tuple[bool, ...]:
    """Return True for each leaf: all entries have one rate."""
    return (True,) * len(jax.tree.leaves(params))


@identity.register_dataclass
@dataclasses.dataclass(frozen=True)
class Optax:
  """Any optax transformation. Transformations of equal structure share compiled programs: see `identity`."""

  transformation: optax.GradientTransformation = dataclasses.field(metadata=STATIC)

  def __repr__(self) -> str:
    return "optimizer of optax"

  def init(self, params: Params) -> Any:
    """Return the initial optimizer state."""
    return self.transformation.init(params)

  def update(self, gradient: Params, state: Any, params: Params) -> tuple[Params, Any]:
    """Return `(updates, state)`, as optax does."""
    return self.transformation.update(gradient, state, params)

  def is_affine(self, params: Params) -> bool:
    """Return whether the updates are affine in the gradient: those of momentum are, those of Adam or clipping not."""
    return affine.is_affine(self._updates, params, jax.eval_shape(self.init, params), params)

  def is_diagonal(self, params: Params) -> bool:
    """Return whether the updates are affine in the gradient, and each entry depends on the one in its place alone."""
    return self.factors(params) is not None

  def factors(self, params: Params) -> tuple[bool, ...] | None:
    """Return for each leaf whether all its entries have one rate; None where the optimizer is not diagonal."""
    shapes = jax.eval_shape(self.init, params)
    return affine.diagonal(self._updates, params, shapes, params) if self.is_affine(params) else None

  def _updates(self, gradient: Params, state: Any, params: Params) -> Params:
    return self.update(gradient, state, params)[0]


def from_optax(transformation: optax.GradientTransformation) -> Sgd | Optax:
  """Return the optimizer of an optax transformation: an `Sgd` for what `optax.sgd` makes, an `Optax` for all others."""
  for nesterov, pattern in _sgd_patterns():
    found: dict[str, Any] = {}
    if _match(pattern, transformation, found):
      rate, momentum = as_float(found.get("learning_rate")), as_float(found.get("momentum"))
      return Sgd(rate, momentum, nesterov, found.get("schedule"))
  return Optax(transformation)


def as_float(value: Any) -> Any:
  """Return a Python integer as a float, and anything else unchanged: settings of one type share a compiled program."""
  return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


# --- Recognition of optax.sgd, by comparison with what it makes for placeholders.


@dataclasses.dataclass
class _Number:
  """A placeholder for a number, times a sign: optax stores the learning rate times -1."""

  name: str
  sign: int = 1

  def __rmul__(self, sign: int) -> "_Number":
    return _Number(self.name, sign * self.sign)


def _schedule(count: Array) -> Array:
  """A placeholder for a schedule."""
  raise NotImplementedError


@functools.cache
def _sgd_patterns() -> list[tuple[bool, optax.GradientTransformation]]:
  """The transformations that `optax.sgd` makes for placeholders, each with whether it is Nesterov's."""
  rates: tuple[Any, ...] = (_Number("learning_rate"), _schedule)
  settings: tuple[Any, ...] = ((None, False), (_Number("momentum"), False), (_Number("momentum"), True))
  return [(nesterov, optax.sgd(rate, momentum, nesterov)) for rate in rates for momentum, nesterov in settings]


def _match(pattern: Any, value: Any, found: dict[str, Any]) -> bool:
  """Return whether the value has the structure of the pattern; `found` receives the values of the placeholders."""
  if isinstance(pattern, _Number):
    found[pattern.name] = pattern.sign * value if _is_real_scalar(value) else None
    return found[pattern.name] is not None
  if pattern is _schedule:
    found["schedule"] = value
    return callable(value)
  if type(pattern) is not type(value):
    return False
  if isinstance(pattern, tuple):
    return len(pattern) == len(value) and all(_match(*both, found) for both in zip(pattern, value, strict=True))
  if isinstance(pattern, types.FunctionType) and pattern.__code__ == value.__code__:
    cells, others = (tuple(cell.cell_contents for cell in f.__closure__ or ()) for f in (pattern, value))
    return pattern.__globals__ is value.__globals__ and _match(cells, others, found)
  return identity.key_of(pattern) == identity.key_of(value)


def _is_real_scalar(value: Any) -> bool:
  if isinstance(value, (np.generic, np.ndarray, jax.Array)):
    return value.shape == () and jnp.issubdtype(value.dtype, jnp.floating)
  return isinstance(value, (int, float)) and not isinstance(value, bool)
