"""Damage to files: of bytes, as disks and transfers do it, and forged, with all lengths and checksums right."""

import json
import zipfile

import numpy as np
from hypothesis import strategies

from last_jax.io import read_arrays

_HEADER = "__header__"
_ODD_JSON = (
  None, True, False, 0, 1, -1, 2**31, 10**30, 0.5, -0.5, 1e300, "", "x", "1", "\ud83d", [], [[]], [None], {},
  {"": None}, [1] * 200,
)  # fmt: skip
_ODD_ARRAYS = (
  np.zeros(0), np.zeros((0, 3)), np.zeros(()), np.full(3, np.nan), np.full((2, 2), np.inf), np.array(["a", "b"]),
  np.array([True, False]), np.array([1j]), np.array(2**62), np.array([-1]), np.zeros((1,) * 20), np.zeros(3, "<f2"),
  np.zeros(2, "S3"), np.array(["2020-01-01"], "datetime64[D]"), np.full(3, 1e300),
)  # fmt: skip
_HEADERS = (
  "{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776,), }",
  "{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }",
  "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
  "{'descr': '<U999999999', 'fortran_order': False, 'shape': (1,), }",
  "{'descr': '<f8', 'fortran_order': 3, 'shape': 1, }", "{'descr': 7}", "(" * 3000, "", "{}",
)  # fmt: skip


@strategies.composite
def bytes_of(draw, content):
  """The content with one damage; never the content itself."""
  size = len(content)
  place = draw(strategies.integers(0, max(size - 1, 0)))
  length = draw(strategies.integers(1, 64))
  kind = draw(strategies.sampled_from(("bit", "byte", "zeros", "cut", "end", "gone", "twice", "more", "noise")))
  piece = content[place : place + length]
  damaged = {
    "bit": lambda: _with(content, place, bytes([content[place] ^ (1 << length % 8)]) if size else b"?"),
    "byte": lambda: _with(content, place, bytes([4 * length % 256])),
    "zeros": lambda: _with(content, place, bytes(len(piece))),
    "cut": lambda: content[:place],
    "end": lambda: content[: max(size - length, 0)],
    "gone": lambda: content[:place] + content[place + length :],
    "twice": lambda: content[:place] + piece + content[place:],
    "more": lambda: content + piece,
    "noise": lambda: _with(content, place, draw(strategies.binary(min_size=length, max_size=length))),
  }[kind]()
  return damaged if damaged != content else content + b"\0"


def _with(content, place, piece):
  return content[:place] + piece + content[place + len(piece) :]


@strategies.composite
def json_of(draw, value):
  """A JSON value with one part replaced, gone or more."""
  value = json.loads(json.dumps(value))
  inner, key, holder = value, None, None
  while isinstance(inner, (dict, list)) and inner and (holder is None or draw(strategies.booleans())):
    holder = inner
    key = draw(strategies.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner))))
    inner = holder[key]
  if holder is None:
    return draw(strategies.sampled_from(_ODD_JSON))
  if draw(strategies.integers(0, 3)) == 0:
    del holder[key]
  elif isinstance(holder, dict) and draw(strategies.integers(0, 5)) == 0:
    holder["another"] = draw(strategies.sampled_from(_ODD_JSON))
  else:
    holder[key] = draw(strategies.sampled_from(_ODD_JSON))
  return value


def _npy(array):
  import io

  stream = io.BytesIO()
  np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False)
  return stream.getvalue()


@strategies.composite
def archive_of(draw, path):
  """The members, [(name, bytes)], of an npz file with one array or its header forged."""
  arrays = read_arrays(path)
  members = [(name, _npy(array)) for name, array in arrays.items()]
  place = draw(strategies.integers(0, len(members) - 1))
  name, content = members[place]
  array = arrays[name]
  kinds = ["gone", "twice", "renamed", "odd", "numpy header", "dtype", "shape", "more"] + ["json"] * 6 * (
    _HEADER in arrays
  )
  kind = draw(strategies.sampled_from(kinds))
  if kind == "gone":
    del members[place]
  elif kind == "twice":
    members.append((name, content))
  elif kind == "renamed":
    members[place] = (
      draw(strategies.sampled_from(("", "x", "../x", name + "/x", name.upper(), "é", _HEADER))),
      content,
    )
  elif kind == "odd":
    members[place] = (name, _npy(draw(strategies.sampled_from(_ODD_ARRAYS))))
  elif kind == "numpy header":
    text = draw(strategies.sampled_from(_HEADERS)).encode()
    members[place] = (name, b"\x93NUMPY\1\0" + len(text).to_bytes(2, "little") + text + bytes(64))
  elif kind == "dtype":
    dtype = draw(strategies.sampled_from(("f2", "f4", "f8", "i1", "i8", "u1", ">f4", "?", "c8", "U3", "S2", "g")))
    with np.errstate(all="ignore"):
      members[place] = (name, _npy(_cast(array, dtype)))
  elif kind == "shape":
    shapes = (array[None], array.reshape(-1), array[:1] if array.ndim else array[None], array.T, np.repeat(array, 2))
    members[place] = (name, _npy(draw(strategies.sampled_from(shapes))))
  elif kind == "more":
    members.append(("another", _npy(draw(strategies.sampled_from(_ODD_ARRAYS)))))
  else:
    header = draw(json_of(json.loads(arrays[_HEADER].tobytes())))
    forged = _npy(np.frombuffer(json.dumps(header).encode(), np.uint8))
    members = [(each, forged if each == _HEADER else content) for each, content in members]
  return members


def _cast(array, dtype):
  try:
    return array.astype(dtype)
  except (ValueError, TypeError):
    return np.zeros(array.shape, dtype)


def write_archive(path, members):
  """Write an npz file that may hold a name twice."""
  import warnings

  with warnings.catch_warnings(), zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as stream:
    warnings.simplefilter("ignore")
    for name, content in members:
      stream.writestr(f"{name}.npy", content)
