"""Inputs of a policy network: the state features of the paper's parameterized teachers.

*Own* features differ between the examples of a batch; *shared* ones belong to the student and are the same for all of
them. A policy with a feature of w* declares that it needs the target; for others it is not in the view.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from last_jax import checks
from last_jax.base import Array, View


class Inputs(NamedTuple):
  """Inputs of a network, or their shift or scale."""

  own: Array  # [m, own], or [own].
  shared: Array  # [shared]


class Columns(NamedTuple):
  """Some columns of inputs."""

  own: tuple[slice, ...]
  shared: tuple[slice, ...]


def _x(view: View, index: Array) -> Array:
  return view.x[index].reshape(index.shape[0], -1)


def _label(view: View, index: Array) -> Array:
  return view.truth[index]


def _prediction(view: View, index: Array) -> Array:
  return view.learner.loss.predict_all(view.learner.apply(view.student.params, view.x[index]))


def _params(view: View) -> Array:
  return ravel_pytree(view.student.params)[0]


def _target(view: View) -> Array:
  return ravel_pytree(view.target)[0]


def _progress(view: View, index: Array, candidates: Array) -> Array:
  """<w* - w, gradient under the label>, for each of the candidate labels `[m, A, K]`: `[m, A]`.

  The gradient is J'u, so this is <J (w* - w), u>: one product with the Jacobian serves all labels.
  """
  way = optax.tree.sub(view.target, view.student.params)
  outputs, moved = jax.jvp(lambda w: view.learner.apply(w, view.x[index]), (view.student.params,), (way,))  # [m, K]
  gradient = jax.vmap(jax.vmap(view.learner.loss.output_gradient, (None, 0)))(outputs, candidates)  # [m, A, K]
  return jnp.sum(gradient * moved[:, None], -1)


_OWN: dict[str, Callable[..., Array]] = {"x": _x, "label": _label, "prediction": _prediction, "progress": _progress}
_SHARED: dict[str, Callable[..., Array]] = {"params": _params, "target": _target}
STILL = frozenset({"x", "label", "target"})  # Those that do not depend on the student.
_OMNISCIENT = frozenset({"target", "progress"})
NAMES = (*_OWN, *_SHARED)

_NORM = 3.0  # Of a feature, once it is scaled.

UNROLLED = ("x", "label", "params", "target", "prediction")
REINFORCE = ("params", "progress")
BLACK_BOX = ("x", "label", "params", "prediction")


def need_target(names: Sequence[str]) -> bool:
  """Whether one of these features needs w*."""
  return not _OMNISCIENT.isdisjoint(names)


def check_features(names: Any, *, actions: bool, omniscient: bool) -> tuple[str, ...]:
  """Raise, saying what would be right, unless these features are available; return their names.

  Args:
    names: as the user gave them.
    actions: whether there is a set of actions.
    omniscient: whether there is a target.
  """
  listed = f"a list of names, of {', '.join(NAMES)}"
  names = (names,) if isinstance(names, str) else checks.check_sequence("features", names, listed)
  for name in names:
    checks.check_name("features", name, NAMES)
  if not names or len(set(names)) < len(names):
    raise ValueError(f"features must name some of {', '.join(NAMES)}, each once, but it is {names}")
  if "progress" in names and not actions:
    raise ValueError("features: 'progress' is one number per action, so it needs a set of actions")
  if need_target(names) and not omniscient:
    black_box = [name for name in names if name not in _OMNISCIENT]
    raise ValueError(f"features {names} need a target, and there is none: a black-box teacher may have {black_box}")
  return names


def observe(names: Sequence[str], view: Any, index: Array, candidates: Array | None) -> dict[str, Array]:
  """Return the features of the examples `index [m]`, by name: own ones `[m, size]`, shared ones `[size]`.

  Args:
    names: as checked by `check_features`.
    view: with the target if a feature needs it.
    index: `[m]`.
    candidates: the labels to choose from, `[m, A, K]`, where there is a choice.
  """
  seen = {}
  for name in names:
    if name in _SHARED:
      seen[name] = _SHARED[name](view)
    else:
      seen[name] = _OWN[name](view, index, candidates) if name == "progress" else _OWN[name](view, index)
  return seen


def join(names: Sequence[str], seen: Mapping[str, Array], lead: tuple[int, ...], dtype: Any) -> Inputs:
  """Concatenate features in the order of `names` (JAX sorts dictionaries); `lead`: (m,) for m examples."""
  own = [seen[name] for name in names if name in _OWN]
  shared = [seen[name] for name in names if name in _SHARED]
  nothing = jnp.zeros(0, dtype)
  return Inputs(jnp.concatenate([jnp.zeros((*lead, 0), dtype), *own], -1), jnp.concatenate([nothing, *shared]))


def is_shared(name: str) -> bool:
  """Whether a feature is the same for all examples of a batch."""
  return name in _SHARED


def part(name: str, joined: Inputs) -> Any:
  """Return the part of joined features, own or shared, that a feature is in."""
  return joined.shared if is_shared(name) else joined.own


def columns(names: Sequence[str], seen: Mapping[str, Any]) -> dict[str, slice]:
  """Return the place of each feature in its part of `join(names, ...)`; `seen` need only have shapes."""
  places, end = {}, {False: 0, True: 0}
  for name in names:
    start, size = end[is_shared(name)], seen[name].shape[-1]
    places[name] = slice(start, start + size)
    end[is_shared(name)] = start + size
  return places


def measure(name: str, samples: Array) -> tuple[Array, Array]:
  """Return the shift and the scale of a feature, `[size]` each, from `samples [count, size]`.

  Scaled, every number of it has the same deviation, and the whole feature the same norm on average, whatever its size:
  a student's thousand weights do not drown two numbers of a prediction. Progress is not shifted, and its numbers share
  one scale: their order and their signs count.
  """
  if name == "progress":
    center = jnp.zeros_like(samples[0])
    deviation = jnp.full_like(center, jnp.sqrt(jnp.mean(samples**2)))
  else:
    center, deviation = jnp.mean(samples, 0), jnp.std(samples, 0)
  varies = deviation > 1e-6 * jnp.max(jnp.abs(samples), 0) + jnp.finfo(samples.dtype).tiny
  size = samples.shape[1] ** 0.5 / _NORM
  return center, jnp.where(varies, deviation * size, 1.0)
