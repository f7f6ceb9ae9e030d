"""Looks of methods: all different, legible in grey, and set by family and variant only."""

import itertools

import numpy as np
import pytest

from last_jax.tools import FAMILIES, Ball, method_style

CHOOSING = ("greedy", "mixed", "joint_mixed", "planner")
SETS = (
  "one_hot", "simplex", "none", *(Ball(radius) for radius in (0.25, 0.5, 1.0, 2.0, 4.0)), Ball(0.5, simplex=True),
  Ball(1.0, simplex=True), Ball(1.0, 1.0), Ball(1.0, around="prediction"), Ball(1.0, float("inf"), "prediction"),
)  # fmt: skip
METHODS = [
  ("sgd", ""), ("imt", ""), ("label_smoothing", ""), ("distillation", ""), ("self_training", ""),
  ("self_training", "hard"), ("learned", ""), ("learned", "unrolled 20"), ("learned", "unrolled 100"),
  ("learned", "policy gradient"), ("learned", "policy gradient, five actions"), *itertools.product(CHOOSING, SETS),
]  # fmt: skip


def brightness(color):
  red, green, blue = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
  return 0.299 * red + 0.587 * green + 0.114 * blue


def test_no_two_methods_look_alike():
  assert len({method_style(*method) for method in METHODS}) == len(METHODS)


def test_positions_in_a_list_look_different():
  assert len({method_style("other", place) for place in range(100)}) == 100


@pytest.mark.parametrize("sets", [SETS[:3], [Ball(radius) for radius in (0.5, 1.0, 2.0)]])
def test_sets_stay_apart_in_grey(sets):
  shades = sorted(brightness(method_style("greedy", each).color) for each in sets)
  assert min(np.diff(shades)) > 0.07


def test_larger_balls_are_darker():
  shades = [brightness(method_style("greedy", Ball(radius)).color) for radius in (1e-3, 0.25, 0.5, 1.0, 2.0, 1e3)]
  assert shades == sorted(shades, reverse=True)


def test_sets_have_markers_of_their_own():
  assert len({method_style("mixed", each).marker for each in (*SETS[:3], Ball(1.0))}) == 4


@pytest.mark.parametrize("labels", SETS)
def test_methods_with_one_set_differ_in_line_only(labels):
  styles = [method_style(family, labels) for family in CHOOSING]
  assert len({(style.color, style.marker) for style in styles}) == 1
  assert len({style.line for style in styles}) == len(CHOOSING)


def test_a_bound_has_the_colour_of_its_curve():
  for place in range(4):
    curve, bound = method_style("theorem", place), method_style("bound", place)
    assert (curve.color, curve.marker) == (bound.color, bound.marker)
    assert curve.line != bound.line


@pytest.mark.parametrize(
  ("family", "variant", "message"),
  [
    ("LAST", "none", "family must be one of sgd, imt"),
    ("greedy", "soft", "one_hot"),
    ("learned", "unrolled", "unrolled 20"),
    ("sgd", Ball(1.0), "sgd"),
    ("greedy", Ball(0.0), "positive radius"),
    ("greedy", Ball(1.0, 3.0), "p in"),
    ("greedy", Ball(1.0, 2.0, "zero"), "around in"),
  ],
)
def test_unknown_methods_are_refused(family, variant, message):
  with pytest.raises(ValueError, match=message):
    method_style(family, variant)


def test_every_family_has_a_look():
  for family in FAMILIES:
    assert method_style(family, 0).color.startswith("#")
