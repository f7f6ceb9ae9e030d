"""The look of every method, the same in all figures: its family sets the line, its variant the colour and the marker.

Family and variant are data, set by the code that makes a curve; names are for people and decide nothing. The named
colours are those of Okabe and Ito, which stay apart under the common kinds of colour blindness; line styles and markers
tell methods apart in grey print too.
"""

import colorsys
import math
import typing
from typing import Literal, NamedTuple

Family = Literal[
  "sgd", "imt", "greedy", "mixed", "joint_mixed", "planner", "label_smoothing", "distillation", "self_training",
  "learned", "theorem", "bound", "other",
]  # fmt: skip
FAMILIES: tuple[str, ...] = typing.get_args(Family)


class Ball(NamedTuple):
  """A variant of the methods that choose labels: labels within a ball.

  Attributes:
    radius: Positive.
    p: The norm: 1, 2 or infinity.
    around: "truth" or "prediction", the center.
    simplex: Whether labels must also be mixtures of the class labels.
  """

  radius: float
  p: float = 2.0
  around: str = "truth"
  simplex: bool = False


# A named variant, a ball of labels, or a position in a list of curves: the n-th look of the palette.
Variant = str | int | Ball

Dash = str | tuple[float, tuple[float, ...]]  # As matplotlib's linestyle.


class Style(NamedTuple):
  """Style of a curve: colour "#rrggbb", line style and marker as matplotlib has them."""

  color: str
  line: Dash
  marker: str


_SOLID: Dash = "-"
_DASHED: Dash = (0.0, (5.0, 1.8))
_DOTTED: Dash = (0.0, (1.2, 1.6))
_DASH_DOT: Dash = (0.0, (6.0, 1.6, 1.2, 1.6))
_LONG: Dash = (0.0, (10.0, 2.5))

# Methods that leave labels alone, or have no set of labels to choose from.
_NAMED: dict[tuple[str, str], Style] = {
  ("sgd", ""): Style("#000000", _SOLID, "o"),
  ("imt", ""): Style("#7f7f7f", _LONG, "X"),
  ("label_smoothing", ""): Style("#7b4f2c", _DOTTED, "v"),
  ("distillation", ""): Style("#a6761d", _DASH_DOT, "P"),
  ("self_training", ""): Style("#8c8c00", _DASHED, "*"),
  ("self_training", "hard"): Style("#5c5c00", _DOTTED, "p"),
  ("learned", ""): Style("#cc79a7", _DASH_DOT, "P"),
  ("learned", "unrolled 20"): Style("#d55e00", _DASHED, "<"),
  ("learned", "unrolled 100"): Style("#8b2e00", _LONG, ">"),
  ("learned", "policy gradient"): Style("#cc79a7", _DASH_DOT, "*"),
  ("learned", "policy gradient, five actions"): Style("#7a3b69", _DOTTED, "p"),
  ("learned", "policy gradient, 50 students"): Style("#e377c2", _LONG, "d"),
  ("learned", "CNN"): Style("#17807e", _DOTTED, "s"),
  ("learned", "hypernetwork"): Style("#56b4e9", _DASH_DOT, "d"),
  ("learned", "whole pool"): Style("#e69f00", _DASH_DOT, "<"),
  ("learned", "policy gradient in groups"): Style("#b565a7", _LONG, "h"),
  ("learned", "distiller"): Style("#009e73", _DASHED, "^"),
  ("learned", "evolution"): Style("#7b4f2c", _DOTTED, "v"),
}
# Methods that choose labels from a set: the line is the family's, colour and marker are the set's.
_CHOOSING: dict[str, Dash] = {"greedy": _SOLID, "mixed": _DASHED, "joint_mixed": _DASH_DOT, "planner": _LONG}
_SETS = {
  "one_hot": ("#e69f00", "s"), "simplex": ("#009e73", "^"), "none": ("#0072b2", "D"),
  "searched": ("#cc79a7", "v"),  # Any labels, that a solver finds near the truth.
}  # fmt: skip
# Balls of labels from small to large: light to dark, so that their order survives in grey print.
_RAMP = ((0.99, 0.81, 0.57), (0.96, 0.48, 0.37), (0.71, 0.21, 0.48), (0.38, 0.10, 0.50), (0.10, 0.06, 0.26))
# Positions in a list. The lengths of palette and markers have no common divisor: 104 looks before one repeats.
_PALETTE = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#7f7f7f", "#7b4f2c", "#56b4e9")
_MARKERS = "osv^Dp<>Xh*dP"
_CYCLE: tuple[Dash, ...] = (_SOLID, _DASHED, _DASH_DOT, _LONG)
_BOUND = _DOTTED  # A bound has the colour and the marker of the curve that it bounds.


_NORMS, _CENTERS = (2.0, 1.0, math.inf), ("truth", "prediction")


def method_style(family: Family, variant: Variant = "") -> Style:
  """Return the look of a method.

  Args:
    family: One of `FAMILIES`.
    variant: A named variant of the family: for the methods that choose labels ("greedy", "mixed", "joint_mixed",
      "planner") "one_hot", "simplex", "none" or "searched". Or a `Ball`: light to dark with its radius. Or a
      position in a list, for curves that have no name here; the "bound" at a position has the colour of the "theorem"
      there.

  Raises:
    ValueError: an unknown family, or a variant that the family does not have.
  """
  if family not in FAMILIES:
    raise ValueError(f"family must be one of {', '.join(FAMILIES)}, but it is {family!r}")
  if isinstance(variant, Ball):
    if family not in _CHOOSING:
      raise ValueError(f"variant must not be a Ball for the family {family!r}, which chooses no labels: {variant}")
    if not variant.radius > 0 or variant.p not in _NORMS or variant.around not in _CENTERS:
      raise ValueError(
        f"variant must be a Ball with a positive radius, p in {_NORMS} and around in {_CENTERS}: {variant}"
      )
    return Style(_ball_color(variant), _CHOOSING[family], "^" if variant.simplex else "h")
  if isinstance(variant, str):
    return _named_style(family, variant)
  line = _CHOOSING.get(family, _CYCLE[variant % len(_CYCLE)])
  return Style(
    _PALETTE[variant % len(_PALETTE)], _BOUND if family == "bound" else line, _MARKERS[variant % len(_MARKERS)]
  )


def _named_style(family: str, variant: str) -> Style:
  if family in _CHOOSING and variant in _SETS:
    color, marker = _SETS[variant]
    return Style(color, _CHOOSING[family], marker)
  if (family, variant) not in _NAMED:
    known = list(_SETS) if family in _CHOOSING else [name for other, name in _NAMED if other == family]
    raise ValueError(
      f"variant must be a position in a list or one of {known} for the family {family!r}, but it is {variant!r}"
    )
  return _NAMED[family, variant]


def _ball_color(ball: Ball) -> str:
  # Radii around 1 lie well apart; very small and very large ones crowd together, but never meet.
  depth = 0.5 + math.atan(1.2 * math.log2(ball.radius)) / math.pi
  place = min(int(depth * (len(_RAMP) - 1)), len(_RAMP) - 2)
  share = depth * (len(_RAMP) - 1) - place
  hue, lightness, saturation = colorsys.rgb_to_hls(
    *((1 - share) * low + share * high for low, high in zip(_RAMP[place], _RAMP[place + 1], strict=True))
  )
  # Each kind of ball turns the hue by its own angle and leaves the lightness.
  kind = _NORMS.index(ball.p) + len(_NORMS) * (_CENTERS.index(ball.around) + len(_CENTERS) * ball.simplex)
  turn = 0.2 + 0.5 * kind / (2 * len(_NORMS) * len(_CENTERS)) if kind else 0.0
  red, green, blue = colorsys.hls_to_rgb((hue + turn) % 1.0, lightness, saturation)
  return "#" + "".join(f"{round(255 * part):02x}" for part in (red, green, blue))
