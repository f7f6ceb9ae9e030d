"""Names and abbreviations of the page are spelled out on it, before the claims and figures that use them."""

import json
import pathlib
import re

from last_jax import constraints, reproduction
from last_jax.reproduction import methods, opening
from last_jax.reproduction.names import NAMES
from last_jax.reproduction.rule import RULE

ROOT = pathlib.Path(__file__).parents[2]
# Words in capitals that are no abbreviations of this page's: of code, units and names of people's things.
KNOWN = {"NeurIPS", "JSON", "NumPy", "CPU"}
ABBREVIATION = re.compile(r"\b(?:[A-Z]{2,}|[A-Z][a-z]*[A-Z][A-Za-z]*)\b")


def texts():
  """All that the page says about claims and figures, of the paper's sizes."""
  for figure in reproduction.FIGURES.values():
    yield from (figure.title, figure.shows)
  for claim in json.loads((ROOT / "docs" / "claims.json").read_text(encoding="utf-8")):
    yield from (claim["claim"], claim["explanation"], claim["effect"])
    for reading in claim["readings"]:
      yield from (reading["name"], reading["setting"], reading["note"])
  yield RULE
  sets = (constraints.one_hot(), constraints.simplex(), constraints.none(), constraints.magnitude(2.0))
  for method in (methods.sgd(), methods.imt(), *map(methods.greedy, sets), *map(methods.mixed, sets)):
    yield method.name


def test_every_abbreviation_is_spelled_out():
  explained = " ".join(NAMES)
  found = {word for text in texts() for word in ABBREVIATION.findall(text)} - KNOWN
  assert {"SGD", "IMT", "LAST", "MNIST", "CNN", "BCa"} <= found
  assert {word for word in found if not re.search(rf"\b{word}\b", explained)} == set()


def test_the_opening_spells_out_its_own():
  text = opening.LEAD + opening.TEXT
  assert "stochastic gradient descent (SGD)" in text
  assert "label synthesis teaching (LAST)" in text.replace("\n", " ")
  assert set(ABBREVIATION.findall(text)) == {"SGD", "LAST"}


def test_sets_of_labels_and_methods_are_explained():
  explained = " ".join(NAMES)
  for method in (methods.mixed(constraints.none()), methods.greedy(constraints.simplex()), methods.sgd()):
    for word in re.findall(r"\w+", method.name):
      assert word in explained, word
