"""Odd values of arguments, each with what it may pass for: anything else that it is given for must be refused."""

import datetime
import decimal
import fractions
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

# What a value may pass for.
NUMBER = frozenset({"number", "array"})
POSITIVE = NUMBER | {"not negative", "positive"}
SHARE = POSITIVE | {"share"}
COUNT = POSITIVE | {"count", "seed"}


class Odd(NamedTuple):
  """A value, and what it may pass for."""

  value: Any
  passes: frozenset[str] = frozenset()


def _masked(values, mask):
  return np.ma.masked_array(values, mask)


def odd_values() -> dict[str, Odd]:
  """Return odd values by name."""
  array = frozenset({"array"})
  function = frozenset({"function"})
  values = {
    "None": Odd(None, frozenset({"none", "tree"})),
    # Numbers of Python.
    "True": Odd(True, frozenset({"flag"})),
    "False": Odd(False, frozenset({"flag"})),
    "0": Odd(0, NUMBER | {"not negative", "share", "seed", "count or 0"}),
    "1": Odd(1, SHARE | COUNT | {"norm"}),
    "-1": Odd(-1, NUMBER),
    "2**40": Odd(2**40, POSITIVE | {"seed"}),
    "2**70": Odd(2**70, POSITIVE | {"seed"}),
    "10**400": Odd(10**400, frozenset({"seed"})),
    "0.5": Odd(0.5, SHARE),
    "-0.5": Odd(-0.5, NUMBER),
    "1.5": Odd(1.5, POSITIVE),
    "1e300": Odd(1e300),
    "1e-300": Odd(1e-300, SHARE),
    "nan": Odd(float("nan")),
    "inf": Odd(float("inf"), frozenset({"norm"})),
    "-inf": Odd(float("-inf")),
    "0.5j": Odd(0.5j),
    # Other objects.
    "text": Odd("text", frozenset({"text"})),
    "empty text": Odd("", frozenset({"text"})),
    "surrogate": Odd("\ud800", frozenset({"text"})),
    "number as text": Odd("0.5", frozenset({"text"})),
    "bytes": Odd(b"0.5"),
    "list": Odd([], frozenset({"names"})),
    "list of one": Odd([0.5]),
    "list of counts": Odd([3, 2], frozenset({"counts"})),
    "ragged list": Odd([[1.0], [1.0, 2.0]]),
    "list of None": Odd([None]),
    "nested list": Odd([[0.5, 0.5], [1.0, 0.0]], array),
    "tuple": Odd((), frozenset({"names"})),
    "tuple of names": Odd(("distance",), frozenset({"names"})),
    "dict": Odd({}),
    "dict of numbers": Odd({"weights": 1.0, "bias": 0.5}),
    "dict with number keys": Odd({0: 1.0}),
    "set": Odd({0.5}),
    "object": Odd(object()),
    "class": Odd(float, function),
    "function of one": Odd(lambda x: x, function),
    "function of none": Odd(lambda: 0, function),
    "generator": Odd((i for i in ()), frozenset({"names"})),
    "range": Odd(range(3), frozenset({"counts"})),
    "slice": Odd(slice(0, 2)),
    "ellipsis": Odd(...),
    "decimal": Odd(decimal.Decimal("0.5")),
    "fraction": Odd(fractions.Fraction(1, 2)),
    "date": Odd(datetime.date(2020, 1, 1)),
    "path": Odd(pathlib.Path("nowhere"), frozenset({"path"})),
    "exception": Odd(ValueError("odd")),
    "module": Odd(np),
    # NumPy.
    "np 0.5": Odd(np.float32(0.5), SHARE),
    "np float16": Odd(np.float16(0.5), SHARE),
    "np longdouble": Odd(np.longdouble(0.5), SHARE),
    "np int": Odd(np.int64(3), COUNT),
    "np uint8": Odd(np.uint8(3), COUNT),
    "np bool": Odd(np.bool_(True), frozenset({"flag"})),
    "np complex": Odd(np.complex64(0.5)),
    "np datetime": Odd(np.datetime64("2020-01-01")),
    "np text": Odd(np.str_("text"), frozenset({"text"})),
    "array []": Odd(np.array(0.5), SHARE),
    "array [] int": Odd(np.array(3), COUNT),
    "array [1]": Odd(np.array([0.5]), array),
    "array [3]": Odd(np.array([0.5, 0.5, 1.0]), array),
    "array [2, 3]": Odd(np.full((2, 3), 0.5), array),
    "array [1, 1, 1]": Odd(np.full((1, 1, 1), 0.5), array),
    "array [0]": Odd(np.zeros(0), frozenset({"names", "tree"})),
    "array [0, 2]": Odd(np.zeros((0, 2)), frozenset({"names", "tree"})),
    "array [] nan": Odd(np.array(np.nan)),
    "array [2, 2] nan": Odd(np.full((2, 2), np.nan)),
    "array [2, 2] inf": Odd(np.full((2, 2), -np.inf)),
    "array [] bool": Odd(np.array(True), frozenset({"flag"})),
    "array [2] bool": Odd(np.array([True, False]), array),
    "array [] complex": Odd(np.array(0.5j)),
    "array [2, 2] complex": Odd(np.full((2, 2), 0.5j)),
    "array of text": Odd(np.array(["a", "b"]), array | {"names"}),
    "array of objects": Odd(np.array([None, 1.0], object)),
    "array of dates": Odd(np.array(["2020-01-01"], "datetime64[D]")),
    "array of records": Odd(np.zeros(2, [("a", float), ("b", int)])),
    "masked []": Odd(np.ma.masked),
    "masked [3]": Odd(_masked([0.5, 0.5, 1.0], [False, True, False])),
    "masked [2, 2]": Odd(_masked(np.full((2, 2), 0.5), [[False, True], [False, False]])),
    # JAX.
    "jax 0.5": Odd(jnp.asarray(0.5), SHARE),
    "jax bfloat16": Odd(jnp.asarray(0.5, jnp.bfloat16), SHARE),
    "jax float8": Odd(jnp.asarray(0.5, jnp.float8_e4m3fn), SHARE),
    "jax int": Odd(jnp.asarray(3), COUNT),
    "jax bool": Odd(jnp.asarray(True), frozenset({"flag"})),
    "jax complex": Odd(jnp.asarray(0.5j)),
    "jax [3]": Odd(jnp.asarray([0.5, 0.5, 1.0]), array),
    "jax [2, 2]": Odd(jnp.full((2, 2), 0.5), array),
    "jax [0]": Odd(jnp.zeros(0), frozenset({"names", "tree"})),
    "jax key": Odd(jax.random.key(0), frozenset({"typed key"})),
    "jax keys": Odd(jax.random.split(jax.random.key(0), 2), frozenset({"keys"})),
    "old key": Odd(jax.random.PRNGKey(0), frozenset({"key", "array"})),
    "shape": Odd(jax.ShapeDtypeStruct((), jnp.float32)),
  }
  return {name: Odd(odd.value, odd.passes | _as_tree(odd)) for name, odd in values.items()}


def _as_tree(odd):
  """A tree of numbers may be of any structure: which is right depends on the learner."""
  if isinstance(odd.value, (list, tuple, dict)) and all(
    leaf is None or isinstance(leaf, (int, float)) for leaf in jax.tree.leaves(odd.value)
  ):
    return {"tree", "weights"}
  return ({"tree"} if odd.passes & {"array", "number", "key"} else set()) | (
    {"weights"} if "not negative" in odd.passes else set()
  )
