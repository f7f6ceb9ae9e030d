"""What a student elsewhere must know of a learner and its examples, in JSON's own types and NumPy's words."""

import hashlib
from typing import Any

import jax
import numpy as np

from last_jax import models
from last_jax.base import Pool
from last_jax.learner import Learner
from last_jax.optimizers import Sgd

_SGD = {
  (False, False): "w = w - rate * g",
  (True, False): "v = momentum * v + g; w = w - rate * v",
  (True, True): "v = momentum * v + g; w = w - rate * (g + momentum * v)",
}


def leaf_shapes(tree: Any) -> dict[str, tuple[int, ...]]:
  """Return the shape of each leaf, by its path in files: "layer_0/weights"."""
  leaves = jax.tree_util.tree_leaves_with_path(tree)
  return {jax.tree_util.keystr(path, simple=True, separator="/"): np.shape(leaf) for path, leaf in leaves}


def sha256(array: Any) -> str:
  """Return the SHA-256 of an array's numbers, little-endian, the last axis fastest."""
  array = np.asarray(array)
  return hashlib.sha256(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes()).hexdigest()


def plain(array: Any) -> np.ndarray:
  """Return an array of the pool as files hold it: on the host, numbers of 16 bits in float32, which NumPy has."""
  return np.asarray(models.wide(array))


def describe_loss(learner: Learner, num_outputs: int, words: str) -> dict[str, Any]:
  """Return the loss's formula, and how losses of outputs and of examples are put together.

  Where there is no formula, `words` of the caller must say what the loss is.
  """
  loss = learner.loss
  if loss.formula is None and not words:
    raise ValueError(
      f"loss is missing: the learner's loss {loss.name} has no formula, so say what it is, loss='sum of |z - y|'"
    )
  return {
    "name": loss.name,
    "words": words,
    "formula": loss.formula,
    "gradient": loss.gradient,
    "of": "one example (or one token): z are its outputs, y its label, [K] each",
    "over_outputs": "sum, as in the formula",
    "over_batch": "mean",
    "classes": loss.class_labels(num_outputs).tolist() if loss.classification else None,
  }


def describe_optimizer(learner: Learner, words: str) -> dict[str, Any]:
  """Return the optimizer's settings. Where it is not SGD, `words` of the caller must say what it is."""
  decay = 0.0 if learner.weight_decay is None else _number("weight_decay", learner.weight_decay)
  shapes = leaf_shapes(learner.shapes())
  decayed = [name for name, shape in shapes.items() if decay and len(shape) > 1]
  common = {"weight_decay": decay, "decayed": decayed, "decay": "g = g + weight_decay * w, before everything else"}
  if not isinstance(learner.optimizer, Sgd):
    if not words:
      raise ValueError(
        "optimizer is missing: the learner's is not SGD, so say what it is, optimizer='Adam, rate 1e-3, ...'"
      )
    return {"name": "other", "words": words, "formula": None, "momentum": None, "nesterov": None} | common
  if learner.optimizer.schedule is None:
    _number("learning_rate", learner.optimizer.learning_rate)
  momentum = learner.optimizer.momentum
  return {
    "name": "sgd",
    "words": words,
    "formula": _SGD[momentum is not None, learner.optimizer.nesterov],
    "momentum": 0.0 if momentum is None else _number("momentum", momentum),
    "nesterov": learner.optimizer.nesterov,
    "start": "v = 0",
  } | common


def describe_model(learner: Learner, words: str) -> dict[str, Any]:
  """Return the model's form; `words` of the caller say more, as the architecture of a network."""
  model = learner.model
  facts: dict[str, Any] = {"parameters": {name: list(shape) for name, shape in leaf_shapes(learner.shapes()).items()}}
  if isinstance(model, models.Linear):
    name, formula = "linear", "z = x @ weights + bias" if model.bias else "z = x @ weights"
    facts["layers"] = [_layer("", model.bias)]
  elif isinstance(model, models.Mlp):
    of = "layer_i/weights + layer_i/bias" if model.bias else "layer_i/weights"
    name, formula = "mlp", f"x = x @ {of} for each layer i; activation(x) after all but the last, which is z"
    given = model.activation
    facts["layers"] = [_layer(f"layer_{i}/", model.bias) for i in range(len(model.widths) - 1)]
    facts["activation"] = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
  else:
    name, formula = type(model).__name__, None
  return {"name": name, "formula": formula, "words": words} | facts


def _layer(before: str, bias: bool) -> dict[str, str | None]:
  return {"weights": f"{before}weights", "bias": f"{before}bias" if bias else None}


def describe_inputs(learner: Learner, pool: Pool, words: str) -> dict[str, Any]:
  """Return how inputs enter the model, and their range; `words` of the caller say how they were made."""
  x = plain(pool.x)
  bias = getattr(learner.model, "bias", None)
  return {
    "shape": list(x.shape[1:]),
    "dtype": x.dtype.name,
    "scaling": "none: x enters the model as it is in the pool, neither centred nor scaled",
    "bias_column": "none: the bias is a parameter of its own" if bias else "none",
    "least": float(x.min()),
    "greatest": float(x.max()),
    "mean": float(x.mean(dtype=float)),
    "deviation": float(x.std(dtype=float)),
    "words": words,
  }


def describe_pool(pool: Pool) -> dict[str, Any]:
  """Return the number of examples, the names of classes, and the hashes by which the pool is known again."""
  parts = {"x": plain(pool.x), "y": plain(pool.y)}
  classes = None if pool.classes is None else list(pool.classes)
  return {"examples": len(pool), "classes": classes} | {
    name: {"shape": list(array.shape), "dtype": array.dtype.name, "sha256": sha256(array)}
    for name, array in parts.items()
  }


def _number(name: str, value: Any) -> float:
  number = np.asarray(value)
  if number.ndim:
    raise ValueError(f"the learner's {name} must be one number, but it has shape {number.shape}: save one learner each")
  return float(number)
