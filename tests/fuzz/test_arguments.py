"""Odd arguments of the public functions: each is taken or refused by name, never silently and never by JAX or NumPy.

A case is a function, one of its arguments, and an odd value in its place; nothing is compiled. `pytest -m fuzz` runs
all of them, and random pairs of odd arguments; the ordinary run has the values that each kind of argument mistakes most
easily for right ones.
"""

import collections
import functools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies

import last_jax as last
from tests.fuzz import odd, outcome, table

# Values of the ordinary run: of Python, NumPy and JAX, one of each class of mistake.
_FEW = (
  "None", "True", "-1", "10**400", "nan", "0.5j", "text", "ragged list", "array [3]", "array [] complex",
  "array of objects", "masked []", "masked [2, 2]", "jax bool", "jax [3]", "jax keys",
)  # fmt: skip
_TRACED = {"bool": jnp.asarray(True), "complex": jnp.asarray(0.5j), "shape [2]": jnp.ones(2), "shape [1]": jnp.ones(1)}


@pytest.fixture(autouse=True)
def _only_shapes(monkeypatch):
  table.entries()  # Its states and targets are real ones.
  table.only_shapes(monkeypatch)
  with jax.debug_nans(False):
    yield


def _arguments(entries):
  return [(name, argument) for name in entries for argument in entries[name].kinds]


@functools.cache
def _odd():
  return odd.odd_values()


def _fault(name, given):
  """What is wrong with what a function does with odd arguments, by name of the value; None where nothing is."""
  entry = table.entries().get(name) or table.long_entries()[name]
  values = {argument: _odd()[value].value for argument, value in given.items()}
  words = [word for argument in given for word in (argument, *entry.also.get(argument, ()))]
  found = outcome.outcome_of(lambda: entry.function(**{**entry.right, **values}), words)
  if found.kind == "named":
    return None
  if found.kind == "fine":
    wrong = [argument for argument, value in given.items() if not _may_be(entry.kinds[argument], value)]
    return ("accepted", f"{name}: {given}, accepted") if wrong else None
  return found.kind, f"{name}: {given}, {found.text}"


def _may_be(kind, value):
  if kind.endswith("?") and value == "None":
    return True
  return bool(_odd()[value].passes & set(kind.rstrip("?").split("|")))


def _check(faults, cases):
  """No wrong value accepted, no error of JAX or NumPy itself, below 1 % of errors without the argument's name."""
  counts = collections.Counter(kind for kind, _ in faults)
  print(f"{cases} cases: {dict(counts)}")
  shown = "\n".join(text for kind, text in faults if kind != "unnamed" or counts["unnamed"] >= 0.01 * cases)
  assert not counts["accepted"], shown
  assert not counts["raw"], shown
  assert counts["unnamed"] < 0.01 * cases, shown


def _run(arguments, values, share=1):
  """Run every `share`-th value of each argument, others of the next one."""
  cases = [
    (name, {argument: value})
    for place, (name, argument) in enumerate(arguments)
    for value in list(values)[place % share :: share]
  ]
  return [fault for fault in (_fault(*case) for case in cases) if fault], len(cases)


def test_right_arguments_are_taken():
  for name, entry in table.entries().items():
    found = outcome.outcome_of(lambda entry=entry: entry.function(**entry.right), [])
    assert found.kind == "fine", (name, found)


def test_the_most_deceptive_values():
  _check(*_run(_arguments(table.entries()), _FEW, share=4))


@pytest.mark.parametrize("value", _TRACED)
@pytest.mark.parametrize(
  ("make", "argument"),
  [
    (lambda v: last.learners.logistic(2, learning_rate=v), "learning_rate"),
    (lambda v: last.learners.logistic(2, learning_rate=0.1, weight_decay=v), "weight_decay"),
    (lambda v: last.learners.logistic(2, learning_rate=0.1, momentum=v), "momentum"),
    (last.constraints.magnitude, "radius"),
    (last.constraints.simplex, "radius"),
    (last.teachers.label_smoothing, "mu"),
    (lambda v: last.teachers.distillation(jnp.sin, v), "temperature"),
    (last.teachers.theorem_1, "c1"),
    (lambda v: last.teachers.greedy(last.constraints.none(), layer_weights={"weights": v}), "layer_weights"),
    (lambda v: last.targets.outputs(np.ones((2, 2)), np.ones((2, 2)), temperature=v), "temperature"),
    (lambda v: last.solvers.descent(rate=v), "rate"),
    (last.rewards.steps, "threshold"),
    (lambda v: last.outputs.residue(v), "alpha"),
  ],
)
def test_traced_numbers_are_checked_too(make, argument, value):
  for traced in (False, True):
    with pytest.raises((TypeError, ValueError), match=argument):
      (jax.eval_shape(lambda v: make(v) and v, _TRACED[value]) if traced else make(_TRACED[value]))
  jax.eval_shape(lambda v: make(v) and v, jnp.asarray(0.5))  # A number is taken.


@pytest.mark.fuzz
def test_all_values():
  _check(*_run(_arguments(table.entries()), _odd()))


@pytest.mark.fuzz
def test_all_values_where_much_is_traced():
  table.long_entries()
  _check(*_run(_arguments(table.long_entries()), _odd()))


@pytest.mark.fuzz
def test_pairs_of_odd_arguments():
  faults, count = [], 0
  names = sorted(name for name, entry in table.entries().items() if len(entry.kinds) > 1)

  @hypothesis.settings(max_examples=3000)
  @hypothesis.given(strategies.data())
  def collect(data):
    nonlocal count
    name = data.draw(strategies.sampled_from(names))
    kinds = sorted(table.entries()[name].kinds)
    chosen = data.draw(strategies.lists(strategies.sampled_from(kinds), min_size=2, max_size=3, unique=True))
    given = {argument: data.draw(strategies.sampled_from(list(_odd()))) for argument in chosen}
    count += 1
    if fault := _fault(name, given):
      faults.append(fault)

  collect()
  _check(faults, count)
