"""Methods: family and variant from structure, and finding them in a list."""

import numpy as np
import pytest

import last_jax as last
from last_jax.reproduction import Method, methods
from last_jax.tools import Ball, method_style

C = last.constraints


@pytest.mark.parametrize(
  ("constraint", "variant"),
  [
    (C.none(), "none"),
    (C.one_hot(), "one_hot"),
    (C.simplex(), "simplex"),
    (C.magnitude(0.5), Ball(0.5)),
    (C.magnitude(2.0, around="prediction"), Ball(2.0, around="prediction")),
    (C.simplex(0.5), Ball(0.5, simplex=True)),
  ],
)
def test_the_variant_is_the_set_of_labels(constraint, variant):
  ways = (methods.greedy(constraint), methods.mixed(constraint), methods.mixed(constraint, joint=True))
  assert [each.family for each in ways] == ["greedy", "mixed", "joint_mixed"]
  assert {each.variant for each in ways} == {variant}
  assert len({each.key for each in ways}) == 3


def test_a_name_decides_nothing():
  renamed = C.Constraint("simplex")  # All labels, under the name of another set.
  assert methods.label_set(renamed) == "none"


def test_a_set_of_ones_own_has_no_variant():
  with pytest.raises(ValueError, match="mine"):
    methods.label_set(C.Constraint("mine", project=lambda label, center, radius, classes: label))
  own = Method("mine", last.teachers.sgd(), "greedy", 3)
  assert method_style(own.family, own.variant)


def test_select_by_family_and_variant():
  ways = [methods.sgd(), methods.imt(), *(make(each) for make in (methods.greedy, methods.mixed)
                                          for each in (C.none(), C.simplex()))]  # fmt: skip
  assert [each.key for each in methods.select(ways, "greedy")] == ["greedy:none", "greedy:simplex"]
  assert [each.key for each in methods.select(ways, "sgd", "imt")] == ["sgd", "imt"]
  (rival,) = methods.select(ways, "greedy", variant=ways[-1].variant)
  assert rival.key == "greedy:simplex"


def test_curves_have_the_look_of_their_method():
  method = methods.greedy(C.magnitude(1.0))
  line = method.line(np.ones((2, 3)), {"iteration": np.arange(3)})
  assert (line.name, line.family, line.variant) == (method.name, "greedy", Ball(1.0))
  curves = method.curves({"distance": np.ones((2, 3))}, {"iteration": np.arange(3)})
  assert (curves.name, curves.family, curves.variant) == (method.name, "greedy", Ball(1.0))
