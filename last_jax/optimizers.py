"""How a learner turns a gradient into a step: the SGD family with settings as data, or any optax transformation."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from last_jax.types import STATIC, Array, Params


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sgd:
  """SGD, with heavy-ball or Nesterov momentum. Its step is affine in the gradient: w+ = drift - rate * gradient.

  The numbers are leaves of a pytree, so that a sweep over them compiles once and can be vmapped.
  """

  learning_rate: Array | float | None  # None: `schedule` says.
  momentum: Array | float | None = None
  nesterov: bool = dataclasses.field(default=False, metadata=STATIC)
  schedule: Callable[[Array], Array] | None = dataclasses.field(default=None, metadata=STATIC)

  def _transformation(self) -> optax.GradientTransformation:
    return optax.sgd(self.schedule or self.learning_rate, self.momentum, self.nesterov)

  def init(self, params: Params) -> Any:
    """The optimizer's first state."""
    return self._transformation().init(params)

  def update(self, gradient: Params, state: Any, params: Params) -> tuple[Params, Any]:
    """`(updates, state)`, as optax has it."""
    return self._transformation().update(gradient, state, params)

  def rate(self, state: Any) -> Array | float:
    """How far one unit of gradient moves the parameters in the next step."""
    now: Any = self.learning_rate
    if self.schedule is not None:
      now = jnp.asarray(self.schedule(optax.tree.get(state, "count")), float)  # optax's schedules answer in float32.
    return now * (1 + self.momentum) if self.nesterov and self.momentum is not None else now

  def is_affine(self, params: Params) -> bool:
    """Always: see the class."""
    del params
    return True


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Optax:
  """Any optax transformation, taken as it is."""

  transformation: optax.GradientTransformation = dataclasses.field(metadata=STATIC)

  def init(self, params: Params) -> Any:
    """The optimizer's first state."""
    return self.transformation.init(params)

  def update(self, gradient: Params, state: Any, params: Params) -> tuple[Params, Any]:
    """`(updates, state)`, as optax has it."""
    return self.transformation.update(gradient, state, params)

  def is_affine(self, params: Params) -> bool:
    """Whether the step is affine in the gradient, as found by probing: SGD's kin are, Adam and clipping are not."""
    shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
    leaves, structure = jax.tree.flatten(shapes)
    return _probe_affine(self.transformation, tuple((leaf.shape, leaf.dtype) for leaf in leaves), structure)


@functools.lru_cache(maxsize=256)
def _probe_affine(transformation: optax.GradientTransformation, leaves: tuple, structure: Any) -> bool:
  draw = np.random.default_rng(0)

  def random_tree(scale: float) -> Params:
    return jax.tree.unflatten(structure, [jnp.asarray(scale * draw.normal(size=s), d) for s, d in leaves])

  with jax.ensure_compile_time_eval():
    params = random_tree(1.0)
    _, state = transformation.update(random_tree(1.0), transformation.init(params), params)  # Past a first step.
    for scale in (1e-3, 1.0, 1e3):
      one, other = random_tree(scale), random_tree(scale)
      middle = jax.tree.map(lambda a, b: (a + b) / 2, one, other)
      steps = [transformation.update(gradient, state, params)[0] for gradient in (one, other, middle)]
      for a, b, c in zip(*map(jax.tree.leaves, steps), strict=True):
        size = float(jnp.max(jnp.abs(a)) + jnp.max(jnp.abs(b)))
        if not np.allclose(c, (a + b) / 2, rtol=1e-4, atol=1e-4 * size):
          return False
  return True
