"""Functions compared by structure: which are equal, which are not, and that equal ones compile nothing again."""

import dataclasses
import functools
import math
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import last_jax as last
from last_jax import identity
from last_jax.base import STATIC
from tests.compilations import counted

scale = 1.0  # Global variables that functions below read, and that a test changes.


def same(one, other):
  """Whether both are one to a compiled program."""
  equal = identity.Static(one) == identity.Static(other)
  assert not equal or hash(identity.Static(one)) == hash(identity.Static(other))
  return equal


def scaled(factor):
  return lambda x: factor * x


def with_default(factor):
  return lambda x, factor=factor: factor * x


def with_keyword(factor):
  def function(x, *, factor=factor):
    return factor * x

  return function


def recursive(end):
  def even(n):
    return end if n == 0 else odd(n - 1)

  def odd(n):
    return not end if n == 0 else even(n - 1)

  return even


def helper(x):
  return scale * x


class Net(nn.Module):
  width: int
  activation: object = nn.relu

  @nn.compact
  def __call__(self, x):
    return nn.Dense(1)(self.activation(nn.Dense(self.width)(x)))


@dataclasses.dataclass(frozen=True)
class Frozen:
  factor: float
  inner: object = None

  def apply(self, x):
    return self.factor * x


class Mutable:
  def __init__(self, factor):
    self.factor = factor

  def apply(self, x):
    return self.factor * x


def closing_over(value):
  return lambda: value


# Made twice they are equal; made of another number they are not.
MAKERS = {
  "closure": scaled,
  "nested": lambda number: scaled(scaled(number)),
  "default": with_default,
  "keyword": with_keyword,
  "recursive": recursive,
  "partial": lambda number: functools.partial(scaled, number, other=scaled(number)),
  "tree_partial": lambda number: jax.tree_util.Partial(scaled(number), number),
  "method": lambda number: Frozen(number).apply,
  "tuple": lambda number: closing_over((number, "a", None)),
  "list": lambda number: closing_over([1, [number]]),
  "dict": lambda number: closing_over({"a": number}),
  "set": lambda number: closing_over({number, 7}),
  "array": lambda number: closing_over(np.array([1.0, number])),
  "jax_array": lambda number: closing_over(jnp.array([1.0, number])),
  "narrow_array": lambda number: closing_over(jnp.array([1.0, number], jnp.bfloat16)),
  "numpy_number": lambda number: closing_over(np.float32(number)),
  "dataclass": lambda number: closing_over(Frozen(1.0, scaled(number))),
  "flax": lambda number: Net(int(number)).apply,
  "flax_activation": lambda number: Net(3, scaled(number)).apply,
  "learner": lambda number: last.learners.mlp((2, 1), learning_rate=number, activation=scaled(number)).apply,
  "vmap": lambda number: jax.vmap(scaled(number)),
  "grad": lambda number: jax.grad(scaled(number)),
  "sgd": optax.sgd,
  "adam": optax.adam,
  "chain": lambda number: optax.chain(optax.clip(number), optax.masked(optax.adamw(0.1), {"a": True, "b": False})),
  "schedule": lambda number: optax.sgd(optax.warmup_cosine_decay_schedule(0.0, number, 5, 50)),
  "injected": lambda number: optax.inject_hyperparams(optax.adam)(number),
  "multi": lambda number: optax.multi_transform({"a": optax.sgd(0.1), "b": optax.lion(number)}, {"x": "a"}),
}


@pytest.mark.parametrize("name", MAKERS)
def test_equal_structure_is_equal_and_another_number_is_not(name):
  make = MAKERS[name]
  assert same(make(2.0), make(2.0))
  assert not same(make(2.0), make(3.0))


@pytest.mark.parametrize(
  ("one", "other"),
  [(0.0, -0.0), (1, 1.0), (1, True), ("1", b"1"), ((1,), [1]), (np.float32(1), 1.0), (np.zeros(2), np.zeros((2, 1)))],
)
def test_values_that_behave_differently_are_not_equal(one, other):
  assert not same(closing_over(one), closing_over(other))


def test_nan_is_equal_to_itself():
  assert same(closing_over(math.nan), closing_over(math.nan))
  assert same(closing_over(np.full(2, math.nan)), closing_over(np.full(2, math.nan)))


def test_weak_types_tell_arrays_apart():
  with jax.enable_x64(True):
    assert not same(closing_over(jnp.asarray(1.0)), closing_over(jnp.asarray(1.0, jnp.float64) + 0.0))


def test_code_at_another_line_is_another_function():
  assert not same(lambda x: x, lambda x: x + 1)


def test_global_variables_are_part_of_a_function(monkeypatch):
  def direct():
    return lambda x: scale * x

  def through_a_function():
    return lambda x: helper(x)

  def inside():
    return lambda xs: [scale * x for x in xs]

  for make in (direct, through_a_function, inside):
    before = identity.Static(make())
    assert before == identity.Static(make())
    with monkeypatch.context() as patch:
      patch.setitem(globals(), "scale", 2.0)
      assert before != identity.Static(make())


class Namespace:
  factor = 1.0


def test_attributes_that_are_read_from_classes_and_modules_are_part_of_a_function(monkeypatch):
  settings = types.ModuleType("settings")
  settings.factor, settings.inner = 1.0, Namespace

  def of_class():
    return lambda x: Namespace.factor * x

  def of_module():
    return lambda x: jnp.tanh(settings.factor * x)

  def of_both():
    return lambda xs: [settings.inner.factor * x for x in xs]

  for make, owner in ((of_class, Namespace), (of_module, settings), (of_both, Namespace)):
    before = identity.Static(make())
    assert before == identity.Static(make())
    with monkeypatch.context() as patch:
      patch.setattr(owner, "factor", 2.0)
      assert before != identity.Static(make())


def test_a_changed_container_is_another():
  settings = {"factor": 1.0}
  before = identity.Static(closing_over(settings))
  assert before == identity.Static(closing_over(settings))
  settings["factor"] = 2.0
  assert before != identity.Static(closing_over(settings))


def test_a_function_that_reaches_an_object_that_may_change_is_equal_to_itself_only():
  thing = Mutable(2.0)
  function = closing_over(thing)
  assert same(function, function)
  assert not same(closing_over(thing), closing_over(thing))
  # As Python has it for methods: the same function of the same object.
  assert same(thing.apply, thing.apply)
  assert not same(thing.apply, Mutable(2.0).apply)


def test_large_arrays_are_compared_by_identity():
  large = np.zeros(identity.MAX_ARRAY_BYTES)
  assert same(closing_over(large), closing_over(large))
  assert not same(closing_over(large), closing_over(large.copy()))


def test_an_id_is_not_used_again():
  keys = {identity.key_of(closing_over(np.zeros(identity.MAX_ARRAY_BYTES))) for _ in range(20)}
  assert len(keys) == 20


def test_what_two_functions_share_is_in_the_key_of_both():
  """A function that is compared by identity does not hide what a second one contains."""
  thing = Mutable(1.0)

  def pair(inner):
    return first, lambda x: inner(x)

  first = closing_over((scaled(1.0), thing))
  assert same(pair(scaled(2.0)), pair(scaled(2.0)))
  assert not same(pair(scaled(2.0)), pair(scaled(3.0)))


def test_a_static_argument_of_jit():
  traces = []

  @functools.partial(jax.jit, static_argnums=0)
  def call(function, x):
    traces.append(function)
    return function(x)

  assert call(identity.Static(scaled(2.0)), 1.0) == 2.0
  assert call(identity.Static(scaled(2.0)), 3.0) == 6.0
  assert len(traces) == 1
  assert call(identity.Static(scaled(4.0)), 3.0) == 12.0
  assert len(traces) == 2


def test_a_function_inside_a_tree():
  """`jax.tree_util.Partial` compares its function: a Static one by structure, with its arguments as leaves."""
  make = lambda factor, number: jax.tree_util.Partial(identity.Static(scaled(factor)), number)  # noqa: E731
  assert jax.tree.structure(make(2.0, 1.0)) == jax.tree.structure(make(2.0, 5.0))
  assert jax.tree.structure(make(2.0, 1.0)) != jax.tree.structure(make(3.0, 1.0))
  assert make(2.0, 5.0)() == 10.0


# --- Registered dataclasses.


@identity.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tree:
  name: str = dataclasses.field(compare=False, metadata=STATIC)
  function: object = dataclasses.field(metadata=STATIC)
  number: object
  other: object = None


def test_names_are_no_part_of_a_tree_and_survive():
  one, other = Tree("one", scaled(2.0), 1.0), Tree("other", scaled(2.0), 3.0)
  assert jax.tree.structure(one) == jax.tree.structure(other)
  assert hash(jax.tree.structure(one)) == hash(jax.tree.structure(other))
  assert jax.tree.structure(one) != jax.tree.structure(Tree("one", scaled(3.0), 1.0))
  doubled = jax.tree.map(lambda leaf: 2 * leaf, other)
  assert (doubled.name, doubled.number, doubled.other, doubled.function(1.0)) == ("other", 6.0, None, 2.0)
  assert jax.tree.map(jnp.add, one, other).number == 4.0
  paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(one)]
  assert paths == [".number"]


def test_a_replaced_field_is_seen():
  tree = Tree("tree", scaled(2.0), 1.0)
  before = jax.tree.structure(tree)
  changed = dataclasses.replace(tree, function=scaled(3.0))
  assert jax.tree.structure(changed) != before
  assert dataclasses.replace(tree, name="new").name == "new"
  assert jax.tree.map(lambda leaf: leaf, dataclasses.replace(tree, name="new")).name == "new"


def test_trees_pass_through_transformations():
  @jax.jit
  def apply(tree, x):
    return jax.vmap(lambda t, v: t.function(v) + t.number, in_axes=(Tree("any", scaled(2.0), 0), 0))(tree, x)

  with counted() as programs:
    for name in ("a", "b", "c"):
      found = apply(Tree(name, scaled(2.0), np.arange(3.0)), np.ones(3))
      np.testing.assert_array_equal(found, [2.0, 3.0, 4.0])
  assert programs.count == 1


# --- Learners and constraints that are made again.

X = np.array([[1.0, -0.5], [0.3, 2.0]], np.float32)


def train(learner):
  """Some work in a compiled program that has the learner as its argument."""
  return _train(learner, X, np.array([[1.0], [0.0]], np.float32))


@jax.jit
def _train(learner, x, labels):
  student = learner.start(learner.init(jax.random.key(0)))
  return jax.tree.leaves(learner.step(learner.step(student, x, labels), x, labels).params)


def linear_init(key):
  return {"weights": jax.random.normal(key, (2, 1))}


def model(factor):
  return last.learners.from_apply(
    lambda key: jax.tree.map(lambda leaf: factor * leaf, linear_init(key)),
    lambda params, x: factor * x @ params["weights"],
    "squared_error",
    learning_rate=0.1,
  )


def flax_model(width):
  module = Net(int(width))
  init = lambda key: module.init(key, X)  # noqa: E731
  return last.learners.from_apply(init, module.apply, "squared_error", optimizer=optax.adam(0.1))


LEARNERS = {
  "optimizer": lambda number: last.learners.logistic(2, optimizer=optax.adam(number)),
  "from_apply": model,
  "flax": flax_model,
  "loss": lambda number: last.learners.mlp((2, 1), learning_rate=0.1, loss=lambda z, y: number * (z - y) ** 2),
  "activation": lambda number: last.learners.mlp(
    (2, 3, 1), learning_rate=0.1, activation=lambda z: jnp.tanh(number * z)
  ),
  "schedule": lambda number: last.learners.logistic(2, learning_rate=optax.linear_schedule(number, 0.1, 5)),
  "own_schedule": lambda number: last.learners.logistic(2, learning_rate=lambda count: number / (count + 1.0)),
}


@pytest.mark.parametrize("name", LEARNERS)
def test_a_learner_that_is_made_again_compiles_nothing(name):
  make = LEARNERS[name]
  first = train(make(2.0))
  with counted() as programs:
    again = train(make(2.0))
  assert programs.count == 0
  jax.tree.map(np.testing.assert_array_equal, first, again)
  with counted() as programs:
    other = train(make(3.0))
  assert programs.count == 1
  assert any(a.shape != b.shape or np.any(np.asarray(a) != np.asarray(b)) for a, b in zip(first, other, strict=True))


def test_sizes_of_any_integer_type_are_one():
  one = last.learners.mlp((2, 3, 1), learning_rate=0.1)
  other = last.learners.mlp(np.array([2, 3, 1]), learning_rate=1)
  assert jax.tree.structure(one) == jax.tree.structure(other)
  structures = {
    jax.tree.structure(last.learners.softmax(kind(3), kind(2), learning_rate=0.1)) for kind in (int, np.int64)
  }
  assert len(structures) == 1


def test_losses_of_equal_structure_are_equal():
  make = lambda power: last.losses.as_loss(lambda z, y: (z - y) ** power)  # noqa: E731
  assert make(2) == make(2)
  assert hash(make(2)) == hash(make(2))
  assert make(2) != make(4)
  assert make(2).is_affine(2)
  assert not make(4).is_affine(2)
  renamed = dataclasses.replace(last.losses.squared_error, name="another name")
  assert renamed == last.losses.squared_error
  assert last.losses.squared_error != last.losses.sigmoid_cross_entropy


@pytest.mark.slow
def test_a_projection_that_is_made_again_compiles_nothing():
  learner = last.learners.softmax(2, 3, learning_rate=0.5)
  params, target = (learner.init(jax.random.key(seed)) for seed in range(2))

  def synthesize(bound):
    box = last.constraints.Constraint(f"box {bound}", lambda y, center, radius, classes: jnp.clip(y, -bound, bound))
    return last.synthesize_labels(learner, params, target, X, np.array([0, 2]), box)

  first = synthesize(2.0)
  with counted() as programs:
    np.testing.assert_array_equal(synthesize(2.0), first)
  assert programs.count == 0
  assert np.max(np.abs(synthesize(0.5))) <= 0.5 < np.max(np.abs(first))
