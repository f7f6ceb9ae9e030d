"""Checks of arguments, made before anything is traced. Of tracers, only shape and dtype are known.

Those of numbers return what is to be used: a float for an integer, in a dtype that JAX computes with.
"""

import contextlib
import difflib
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from last_jax.base import is_concrete
from last_jax.models import param_shapes
from last_jax.pool import as_numbers, is_masked

_MOST = 2**31 - 1  # Of counts, which are sizes of arrays and numbers of steps.
_DTYPES = ("float16", "bfloat16", "float32", "float64")


def show(value: Any) -> str:
  """Return a value for a message: short, whatever it is."""
  try:
    text = repr(value)
  except Exception:  # Of an object of the caller's, or an integer of thousands of digits.
    text = f"a {type(value).__name__}"
  return text if len(text) <= 60 else f"{text[:57]}..."


def _number(name: str, value: Any) -> tuple[Any, np.ndarray | None]:
  """Return one real number as it is to be used, and as it is in float64; None where that cannot be read."""
  if isinstance(value, (bool, np.bool_)) or not (
    isinstance(value, (int, float, np.generic, np.ndarray, jax.Array)) and not isinstance(value, np.ma.MaskedArray)
  ):
    kind = "masked" if isinstance(value, np.ma.MaskedArray) else f"a {type(value).__name__}"
    raise TypeError(f"{name} must be a number, but it is {kind}")
  if isinstance(value, (int, float)):
    try:
      value = float(value)
    except OverflowError:
      raise ValueError(f"{name} must be a finite number, but it is {show(value)}") from None
    return value, np.asarray(value)
  if not (jnp.issubdtype(value.dtype, jnp.floating) or jnp.issubdtype(value.dtype, jnp.integer)):
    raise TypeError(f"{name} must be a real number, but its dtype is {value.dtype}")
  if value.shape != ():
    raise ValueError(f"{name} must be one number, but it has shape {value.shape}")
  if value.dtype.name not in _DTYPES:  # Integers, and floats of 8 or 128 bits, which JAX does not mix with others.
    value = value.astype(jax.dtypes.canonicalize_dtype(float))
  return value, np.asarray(value).astype(np.float64) if isinstance(value, np.generic) or is_concrete(value) else None


def check_number(name: str, value: Any) -> Any:
  """Return one finite real number, or raise."""
  value, number = _number(name, value)
  if number is not None and not _is_finite(number):
    raise ValueError(f"{name} must be a finite number, but it is {value}")
  return value


def check_positive(name: str, value: Any) -> Any:
  """Return one number that is finite and positive, or raise."""
  value, number = _number(name, value)
  if number is not None and not (_is_finite(number) and number > 0):
    raise ValueError(f"{name} must be a positive number, but it is {value}")
  return value


def check_not_negative(name: str, value: Any) -> Any:
  """Return one number that is finite and at least 0, or raise."""
  value, number = _number(name, value)
  if number is not None and not (_is_finite(number) and number >= 0):
    raise ValueError(f"{name} must be zero or a positive number, but it is {value}")
  return value


def check_between(name: str, value: Any, low: float, high: float) -> Any:
  """Return one number from `low` to `high`, or raise."""
  value, number = _number(name, value)
  if number is not None and not low <= number <= high:
    raise ValueError(f"{name} must lie between {low:g} and {high:g}, but it is {value}")
  return value


def _is_finite(number: np.ndarray) -> bool:
  """Whether a number is finite where it will be used, in JAX's default precision."""
  return abs(float(number)) <= float(jnp.finfo(jax.dtypes.canonicalize_dtype(float)).max)


def check_count(name: str, value: Any, least: int = 1, most: int | None = _MOST) -> int:
  """Return a whole number from `least` to `most`, or raise; `most=None`: without an upper bound."""
  try:
    number = operator.index(value)
  except TypeError:
    raise TypeError(f"{name} must be a whole number, but it is {show(value)}") from None
  if isinstance(value, bool) or number < least:
    raise ValueError(f"{name} must be a whole number of at least {least}, but it is {show(value)}")
  if most is not None and number > most:
    raise ValueError(f"{name} must be a whole number of at most {most}, but it is {show(value)}")
  return number


def check_flag(name: str, value: Any) -> bool:
  """Return True or False, or raise: other values have a truth that need not be the one meant, as the text "no"."""
  if not isinstance(value, (bool, np.bool_)):
    raise TypeError(f"{name} must be True or False, but it is {show(value)}")
  return bool(value)


def check_sequence(name: str, value: Any, wanted: str) -> tuple[Any, ...]:
  """Return the entries of a list, or raise, saying what is `wanted`."""
  try:
    if isinstance(value, (str, bytes, Mapping, set, frozenset)):
      raise TypeError
    return tuple(value)
  except TypeError:
    raise TypeError(f"{name} must be {wanted}, but it is {show(value)}") from None


@contextlib.contextmanager
def calling(name: str) -> Iterator[None]:
  """Add to errors of a user's function which argument it is."""
  try:
    yield
  except Exception as error:
    error.add_note(f"raised by {name}, a function of the caller's")
    raise


def check_array(name: str, value: Any) -> Any:
  """Return an array of finite real numbers, of NumPy or JAX, or raise."""
  array = as_numbers(name, value)
  check_finite(name, array)
  return array


def check_name(name: str, value: Any, allowed: Iterable[str]) -> str:
  """Return `value`, or raise unless it is one of `allowed`."""
  if not isinstance(value, str) or value not in allowed:
    allowed = sorted(allowed)
    raise ValueError(
      f"{name}={show(value)} is not known: use one of {', '.join(map(repr, allowed))}{suggest(value, allowed)}"
    )
  return value


def suggest(value: Any, allowed: Iterable[str]) -> str:
  """Return a question after the name that was meant, for the end of a message; nothing where none is near."""
  near = difflib.get_close_matches(value, list(allowed), 1) if isinstance(value, str) else []
  return f"; did you mean {near[0]!r}?" if near else ""


def check_finite(name: str, tree: Any) -> None:
  """Raise if a concrete leaf of `tree` holds NaN or infinity."""
  for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
    # NumPy: within a caller's jit, a JAX operation on a concrete array would be traced.
    if is_concrete(leaf) and jnp.issubdtype(leaf.dtype, jnp.floating) and not np.isfinite(np.asarray(leaf)).all():
      raise ValueError(f"{name}{jax.tree_util.keystr(path)} holds NaN or infinite values")


def check_tree(name: str, tree: Any, *, abstract: bool = False) -> Any:
  """Return the structure of a tree of arrays of real numbers, or raise; `abstract`: their shapes will do."""
  try:
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
  except (TypeError, ValueError) as error:
    raise TypeError(f"{name} must be a tree of arrays, but it is none: {str(error).splitlines()[0]}") from None
  for path, leaf in leaves:
    where = f"{name}{jax.tree_util.keystr(path)}"
    if is_masked(leaf):
      raise ValueError(f"{where} must have no masked entries")
    is_array = isinstance(leaf, (jax.Array, np.ndarray, np.generic, *(jax.ShapeDtypeStruct,) * abstract))
    dtype = leaf.dtype if is_array else np.asarray(leaf).dtype if _is_plain(leaf) else None
    if dtype is None:
      raise TypeError(f"{where} must be an array of numbers, but it is a {type(leaf).__name__}")
    if not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
      raise TypeError(f"{where} must hold real numbers, but its dtype is {dtype}")
    if dtype == np.longdouble:
      raise TypeError(f"{where} must be of at most 64 bits, but its dtype is {dtype}")
  return structure


def _is_plain(leaf: Any) -> bool:
  return isinstance(leaf, (int, float)) and not isinstance(leaf, bool) and abs(leaf) <= _MOST


def check_params(
  learner: Any,
  params: Any,
  name: str,
  *,
  students: int | None = None,
  finite: bool = True,
  abstract: bool = False,
) -> None:
  """Raise unless `params` has the structure and shapes of the learner's parameters (with a leading [students]).

  With `finite`, also where it holds NaN or infinity; `abstract`: its shapes will do.
  """
  expected = param_shapes(learner.model)
  structure, wanted = check_tree(name, params, abstract=abstract), jax.tree.structure(expected)
  if structure != wanted:
    raise ValueError(f"{name} does not have the learner's parameters: it is {structure}, but the learner has {wanted}")
  lead = () if students is None else (students,)
  for (path, leaf), want in zip(jax.tree_util.tree_leaves_with_path(params), jax.tree.leaves(expected), strict=True):
    if jnp.shape(leaf) != (*lead, *want.shape):
      where = jax.tree_util.keystr(path)
      raise ValueError(f"{name}{where} must have shape {(*lead, *want.shape)}, but it has shape {jnp.shape(leaf)}")
  if finite:
    check_finite(name, params)


def as_key(key: Any, name: str = "key") -> jax.Array:
  """Return a typed key, or an array of them, also from the old kind (`jax.random.PRNGKey`)."""
  if not isinstance(key, (np.ndarray, jax.Array)):
    raise TypeError(f"{name} must be made by jax.random.key, but it is a {type(key).__name__}")
  if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
    return key
  if key.dtype == np.uint32 and key.ndim in (1, 2):
    try:
      return jax.random.wrap_key_data(jnp.asarray(key))
    except (TypeError, ValueError):
      pass
  raise TypeError(f"{name} must be made by jax.random.key, but it has dtype {key.dtype} and shape {key.shape}")


def as_one_key(key: Any, name: str = "key") -> jax.Array:
  """Return one typed key, or raise."""
  key = as_key(key, name)
  if key.ndim:
    raise ValueError(f"{name} must be one key, but its shape is {key.shape}")
  return key


def check_inputs(learner: Any, x: Any, name: str) -> None:
  """Raise unless the learner can be applied to `x [m, ...]`."""
  if not hasattr(x, "ndim") or not hasattr(x, "dtype"):
    raise TypeError(f"{name} must be an array, but it is a {type(x).__name__}")
  num_features = getattr(learner.model, "num_features", None)
  if num_features is not None and (x.ndim != 2 or x.shape[1] != num_features):
    raise ValueError(f"{name} must have shape [n, {num_features}] for this learner, but it has shape {x.shape}")


def check_labels(learner: Any, x: Any, y: Any, name: str) -> None:
  """Raise unless `y` holds labels of `x` for this learner: ids `[m]`, real targets `[m]` or vectors `[m, K]`.

  For a learner with outputs for each token likewise, `[m, T]` or `[m, T, K]`.
  """
  *tokens, num_outputs = learner.output_shape(x)
  if y.shape[:1] != x.shape[:1]:
    raise ValueError(f"{name} must hold a label for each of {x.shape[0]} examples, but its shape is {y.shape}")
  if y.ndim not in (1 + len(tokens), 2 + len(tokens)) or list(y.shape[1 : 1 + len(tokens)]) != tokens:
    sizes = ", ".join(map(str, ["n", *tokens]))
    raise ValueError(
      f"{name} must have shape [{sizes}] or [{sizes}, {num_outputs}] for this learner, but it has shape {y.shape}"
    )
  if y.ndim == 2 + len(tokens):
    if y.shape[-1] != num_outputs:
      raise ValueError(f"{name} holds label vectors of length {y.shape[-1]}, but the learner has {num_outputs} outputs")
    return
  if jnp.issubdtype(y.dtype, jnp.floating):
    if num_outputs > 1:
      raise ValueError(
        f"{name} holds real numbers, but the learner has {num_outputs} outputs: "
        f"give class ids (integers) or label vectors of shape [{', '.join(map(str, ['n', *tokens, num_outputs]))}]"
      )
    return
  if is_concrete(y):
    ids = np.asarray(y)  # NumPy: see `check_finite`.
    check_ids(learner, x, int(ids.min()), int(ids.max()), name)


def check_ids(learner: Any, x: Any, lowest: int, highest: int, name: str) -> None:
  """Raise unless integers from `lowest` to `highest` are class ids of this learner, or its targets are real numbers."""
  num_outputs = learner.num_outputs(x)
  classes = len(learner.loss.class_labels(num_outputs))
  if (learner.loss.classification or num_outputs > 1) and not 0 <= lowest <= highest < classes:
    raise ValueError(
      f"{name} holds class ids from {lowest} to {highest}, but the learner has {classes} classes: "
      f"ids must lie between 0 and {classes - 1}"
    )


def check_two_classes(learner: Any, x: Any, y: Any, name: str) -> None:
  """Raise if all labels of a classification pool are equal: there is then nothing to tell apart.

  Soft labels may differ although they favour the same class.
  """
  if not learner.loss.classification or not is_concrete(y):
    return
  values = np.asarray(y)
  tokens = len(learner.output_shape(x)) - 1
  values = values.reshape(-1, *values.shape[1 + tokens :])
  if (values == values[:1]).all():
    raise ValueError(f"{name} holds one class only: every label is {values[0]}, but a classifier needs at least two")


def check_weights(name: str, weights: Any) -> Any:
  """Return weights of layers, numbers of at least 0 in any tree, or raise. None stays None."""
  try:
    leaves, structure = jax.tree_util.tree_flatten_with_path(weights)
  except (TypeError, ValueError) as error:
    raise TypeError(f"{name} must be a tree of numbers, but it is none: {str(error).splitlines()[0]}") from None
  checked = [check_not_negative(f"{name}{jax.tree_util.keystr(path)}", weight) for path, weight in leaves]
  return jax.tree.unflatten(structure, checked)


def check_layer_weights(layer_weights: Any, params: Any) -> None:
  """Raise unless `layer_weights` is a prefix of the parameters' tree, with weights of at least 0."""
  if layer_weights is None:
    return
  check_weights("layer_weights", layer_weights)
  try:
    jax.tree.map(lambda weight, layer: None, layer_weights, params)
  except (ValueError, TypeError, KeyError) as error:
    raise ValueError(
      f"layer_weights must be a prefix of the parameters' tree {jax.tree.structure(params)}: {error}"
    ) from None
