"""One look per method, the same in every figure: the line is the method's, colour and marker are those of its labels.

Colours are those of Okabe and Ito, which stay apart under the common kinds of colour blindness; line styles and markers
tell methods apart in grey print too.
"""

import colorsys
import math
import re
import zlib
from typing import NamedTuple

Line = str | tuple[float, tuple[float, ...]]  # As matplotlib's linestyle.


class Style(NamedTuple):
  """How a method is drawn."""

  color: str
  line: Line
  marker: str


_SOLID: Line = "-"
_DASHED: Line = (0.0, (5.0, 1.8))
_DOTTED: Line = (0.0, (1.2, 1.6))
_DASH_DOT: Line = (0.0, (6.0, 1.6, 1.2, 1.6))
_LONG: Line = (0.0, (10.0, 2.5))

# Methods that leave labels alone, or have no set of labels to choose from.
_PLAIN = {
  "SGD": Style("#000000", _SOLID, "o"),
  "IMT": Style("#7f7f7f", _LONG, "X"),
  "label smoothing": Style("#7b4f2c", _DOTTED, "v"),
  "distillation": Style("#a6761d", _DASH_DOT, "P"),
  "self-training": Style("#8c8c00", _DASHED, "*"),
  "policy": Style("#cc79a7", _DASH_DOT, "P"),
  "unrolled, 20 steps": Style("#d55e00", _DASHED, "<"),
  "unrolled, 100 steps": Style("#8b2e00", _LONG, ">"),
  "theorem 1": Style("#0072b2", _SOLID, "o"),
  "theorem 1, students still outside": Style("#d55e00", _DASHED, "s"),
  "theorem 2": Style("#0072b2", _SOLID, "o"),
  "theorem 2, least squares": Style("#0072b2", _SOLID, "o"),
  "theorem 2, logistic": Style("#e69f00", _SOLID, "s"),
  "theorem 3 (α=0)": Style("#0072b2", _SOLID, "o"),
  "theorem 3 (α=0.5)": Style("#009e73", _DASH_DOT, "v"),
  "theorem 3 (α=1)": Style("#e69f00", _DASHED, "p"),
  "theorem 3 (α=1, |S|=50)": Style("#7f7f7f", _LONG, "X"),
  "policy gradient": Style("#cc79a7", _DASH_DOT, "*"),
  "policy gradient, five actions": Style("#7a3b69", _DOTTED, "p"),
  "self-training (hard)": Style("#5c5c00", _DOTTED, "p"),
}
# Methods that choose labels from a set: the line is the method's, the colour and the marker are the set's.
_CHOOSING = {"LAST": _SOLID, "mixed": _DASHED, "joint mixed": _DASH_DOT, "planner": _LONG}
_SETS = {"one_hot": ("#e69f00", "s"), "simplex": ("#009e73", "^"), "none": ("#0072b2", "D")}
# Balls of labels, small to large: light to dark, which is what stays of colours in print.
_RAMP = ((0.99, 0.81, 0.57), (0.96, 0.48, 0.37), (0.71, 0.21, 0.48), (0.38, 0.10, 0.50), (0.10, 0.06, 0.26))

_CALL = re.compile(r"(?P<method>[^(]+?) \((?P<labels>.+)\)")
_RADIUS = re.compile(r"r=(?P<radius>[0-9.e+-]+)")


_BOUND = "bound of "  # A bound has the colour of what it bounds, dotted.


def method_style(name: str) -> Style:
  """The look of the method with this name: of a teacher, as `Teacher.name` has it.

  Balls of labels ("r=0.5") run from light to dark with their radius. A name that is not known gets a look of its own,
  the same every time.
  """
  if name in _PLAIN:
    return _PLAIN[name]
  if name.startswith(_BOUND):
    return method_style(name.removeprefix(_BOUND))._replace(line=_DOTTED)
  call = _CALL.fullmatch(name)
  if call and call["method"] in _CHOOSING:
    labels = call["labels"]
    color, marker = _SETS[labels] if labels in _SETS else (_ball_color(labels), "^" if "simplex" in labels else "h")
    return Style(color, _CHOOSING[call["method"]], marker)
  code = zlib.crc32(name.encode())  # Not hash(), which differs from run to run.
  lines, markers = (_SOLID, _DASHED, _DOTTED, _DASH_DOT, _LONG), "<>pH8d"
  color = _hex(code % 360 / 360, 0.45, 0.55)
  return Style(color, lines[code // 360 % len(lines)], markers[code // 1800 % len(markers)])


def _ball_color(labels: str) -> str:
  found = _RADIUS.search(labels)
  # Radii around 1 lie well apart; very small and very large ones crowd together, but never meet.
  depth = 0.5 if found is None else 0.5 + math.atan(1.2 * math.log2(float(found["radius"]))) / math.pi
  place = min(int(depth * (len(_RAMP) - 1)), len(_RAMP) - 2)
  share = depth * (len(_RAMP) - 1) - place
  hue, lightness, saturation = colorsys.rgb_to_hls(
    *((1 - share) * low + share * high for low, high in zip(_RAMP[place], _RAMP[place + 1], strict=True))
  )
  # Every further word ("simplex", "p=1", "around prediction") turns the hue, and keeps the lightness.
  rest = _RADIUS.sub("", labels, count=1).strip(", ")
  turn = 0.2 + 0.5 * (zlib.crc32(rest.encode()) % 97) / 97 if rest else 0.0
  return _hex(hue + turn, lightness, saturation)


def _hex(hue: float, lightness: float, saturation: float) -> str:
  return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue % 1.0, lightness, saturation))
