"""Parameterized teachers, section 3.3 of the paper: labels by a network that observes the student.

A `Policy` is a pytree of weights that knows its own architecture. `training/` trains it; `policy(...)` makes a teacher
of it, which runs in the same loop as every other.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from last_jax import checks, models
from last_jax.base import STATIC, Array, Key, Params, Student, Teacher, View
from last_jax.identity import register_dataclass
from last_jax.problem import Problem
from last_jax.teachers import features as features_
from last_jax.teachers.compose import compose
from last_jax.teachers.features import Columns, Inputs
from last_jax.teachers.outputs import Output, is_choice, simplex

if TYPE_CHECKING:
  from last_jax.teachers.module_network import ModuleNetwork
  from last_jax.teachers.network import Network

MOST_LAYERS = 100  # Hidden ones, of the built-in network: tracing each takes time, also for a forged file.


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Policy:
  """A network from state features to labels."""

  weights: Params  # Of the network: what training changes.
  center: Inputs  # Features are shifted by this
  scale: Inputs  # and divided by this before they enter.
  output: Output
  num_outputs: int = dataclasses.field(metadata=STATIC)  # K, the length of a label.
  features: tuple[str, ...] = dataclasses.field(metadata=STATIC)
  hidden: tuple[int, ...] = dataclasses.field(metadata=STATIC)  # Of the built-in network.
  module: "ModuleNetwork | None" = dataclasses.field(default=None, metadata=STATIC)  # In place of the built-in network.

  @property
  def needs_target(self) -> bool:
    """Whether one of its features needs w*."""
    return features_.need_target(self.features)

  def check(self, problem: Problem) -> None:
    """Raise unless this policy can label the examples of this problem."""
    _check_one_label(problem)
    self.output.check(problem.learner, problem.truth)
    num_outputs = problem.truth.shape[1]
    if num_outputs != self.num_outputs:
      raise ValueError(f"policy gives labels of length {self.num_outputs}, but the learner has {num_outputs} outputs")
    params = models.param_shapes(problem.learner.model)

    def observe(params: Params) -> Inputs:
      index = jnp.zeros(1, int)
      seen = self._observe(still_view(problem, params), index)
      return features_.join(self.features, seen, index.shape, problem.truth.dtype)

    shape = dict(self.module.shapes).get("x") if self.module is not None else None
    if shape is not None and shape != problem.pool.x.shape[1:]:
      raise ValueError(f"policy was made for examples of shape {shape}, but here they have {problem.pool.x.shape[1:]}")
    found, made_for = jax.eval_shape(observe, params), self.center
    if (found.own.shape[1], found.shared.shape) != (made_for.own.shape[-1], made_for.shared.shape[-1:]):
      raise ValueError(
        f"policy was made for another learner or pool: its features {self.features} are {made_for.own.shape[-1]} "
        f"numbers per example and {made_for.shared.shape[-1]} per student, but here they are {found.own.shape[1]} and "
        f"{found.shared.shape[0]}"
      )

  def _observe(self, view: View, index: Array) -> dict[str, Array]:
    return features_.observe(self.features, view, index, self.output.candidates(view.truth[index], index))

  def inputs(self, view: View, index: Array, names: Sequence[str] | None = None) -> Inputs:
    """Return the standardized features of the examples `index [m]`, joined: all, or those of some names."""
    names = self.features if names is None else names
    return features_.join(names, self._standardized(view, index), index.shape, view.truth.dtype)

  def _standardized(self, view: View, index: Array) -> dict[str, Array]:
    seen = self._observe(view, index)
    standardized = {}
    for name, place in features_.columns(self.features, seen).items():
      center, scale = features_.part(name, self.center)[place], features_.part(name, self.scale)[place]
      lead = (None,) * (seen[name].ndim - 1)
      standardized[name] = (seen[name] - center[lead]) / scale[lead]
    return standardized

  def columns(self, problem: Problem, names: Sequence[str]) -> Columns:
    """Return the columns of the features of some names, among all that enter the network."""
    params = models.param_shapes(problem.learner.model)
    seen = jax.eval_shape(lambda w: self._observe(still_view(problem, w), jnp.zeros(1, int)), params)
    places = features_.columns(self.features, seen)
    own, shared = (tuple(places[name] for name in names if features_.is_shared(name) == kind) for kind in (False, True))
    return Columns(own, shared)

  def numbers(self, view: View, index: Array) -> Array:
    """Apply the network to the examples `index [m]`: `[m, width]`."""
    if self.module is not None:
      return self.module.apply(self.weights, self._standardized(view, index))
    return self.network().apply(self.weights, self.inputs(view, index))

  def init_weights(self, key: Key) -> Params:
    """Return random weights for this architecture."""
    own, shared = self.center
    if self.module is not None:
      return self.module.init(key, own.dtype)
    return self.network().init(key, own.shape[-1], shared.shape[-1], own.dtype)

  def network(self) -> "Network":
    """Return the architecture of the built-in network."""
    from last_jax.teachers.network import Network  # Here, since importing Flax takes a while.

    return Network(self.hidden, self.output.width(self.num_outputs))

  def labels(self, view: View, index: Array, key: Key | None) -> Array:
    """Return labels `[m, K]`; with a key, random ones where there is a choice."""
    return self.output.labels(view.learner, self.numbers(view, index), view.truth[index], index, key)

  def log_probabilities(self, view: View, index: Array, shown: Array) -> Array:
    """Return the log-probabilities of the labels `shown [m, K]`, `[m]`. Only where there is a choice."""
    output: Any = self.output
    return output.log_probabilities(self.numbers(view, index), view.truth[index], index, shown)


def still_view(problem: Problem, params: Params) -> View:
  """Return the view of a student with these parameters; no feature depends on the step or a key."""
  key = jax.random.key(0)
  return View(problem, Student(params, None), jnp.zeros((), int), key, key)


def make_policy(
  key: Key,
  problem: Problem,
  students: Params,
  *,
  output: Output | None = None,
  features: Sequence[str] | None = None,
  hidden: Sequence[int] = (128, 128),
  module: Any = None,
  standardize: bool = True,
) -> Policy:
  """Return a new policy with random weights.

  Args:
    key: of the weights.
    problem: what it will teach; without a target, the policy is a black box.
    students: parameters of some students, with a leading axis, on which the size of features is measured.
    output: from the network's numbers to labels; `outputs.simplex()` unless given.
    features: the network's inputs, of "x", "label", "prediction", "params", "target" and, with actions, "progress".
      Unless given: all except "progress".
    hidden: widths of the hidden layers.
    module: a Flax module in place of the network, from features by name to numbers: `teachers/module_network.py`.
    standardize: whether features are shifted and scaled to the same size (`features.measure`). Images, weights and
      inner products differ by orders of magnitude, which slows training down.
  """
  chosen = simplex() if output is None else output
  if features is None:
    features = features_.BLACK_BOX if problem.target is None else features_.UNROLLED
  names = features_.check_features(features, actions=is_choice(chosen), omniscient=problem.target is not None)
  hidden = checks.check_sequence("hidden", hidden, "a list of whole numbers, such as (128, 128)")
  hidden = tuple(checks.check_count("hidden", width) for width in hidden)
  if len(hidden) > MOST_LAYERS:
    raise ValueError(f"hidden must hold at most {MOST_LAYERS} widths, but it holds {len(hidden)}")
  _check_one_label(problem)
  truth = problem.truth
  chosen.check(problem.learner, truth)

  def observe(params: Params, index: Array) -> dict[str, Array]:
    candidates = chosen.candidates(truth[index][None], index[None])
    seen = features_.observe(names, still_view(problem, params), index[None], candidates)
    return jax.tree.map(jnp.ravel, seen)

  weights_key, index_key = jax.random.split(key)
  count = jax.tree.leaves(students)[0].shape[0]
  index = jax.random.randint(index_key, (count,), 0, len(problem.pool))
  samples = jax.vmap(observe)(students, index)  # By feature, [count, size].
  measured = {name: features_.measure(name, values) for name, values in samples.items()}
  center = features_.join(names, {name: shift for name, (shift, _) in measured.items()}, (), truth.dtype)
  scale = features_.join(names, {name: size for name, (_, size) in measured.items()}, (), truth.dtype)
  if not standardize:
    center, scale = jax.tree.map(jnp.zeros_like, center), jax.tree.map(jnp.ones_like, scale)
  chosen = jax.tree.map(lambda leaf: jnp.asarray(leaf, truth.dtype), chosen)
  network = None
  if module is not None:
    from last_jax.teachers.module_network import make_module_network

    sizes = {name: (values.shape[1],) for name, values in samples.items()} | {"x": problem.pool.x.shape[1:]}
    shapes = tuple((name, tuple(sizes[name])) for name in names)
    network = make_module_network(module, shapes, chosen.width(truth.shape[1]), truth.dtype)
  policy = Policy(None, center, scale, chosen, truth.shape[1], names, hidden, network)
  return dataclasses.replace(policy, weights=policy.init_weights(weights_key))


def _check_one_label(problem: Problem) -> None:
  if problem.truth.ndim != 2:
    tokens = problem.truth.shape[1]
    raise ValueError(f"learner: policies give one label to each example, but this one has outputs for {tokens} tokens")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PolicyLabels:
  """Labels that a policy gives."""

  policy: Policy
  sample: bool = dataclasses.field(metadata=STATIC)

  def __call__(self, view: View, index: Array) -> tuple[Array, None]:
    """Label the examples `index [m]`, `[m, K]`."""
    return self.policy.labels(view, index, view.key if self.sample else None), None


def policy(policy: Policy, *, sample: bool = False, name: str = "policy") -> Teacher:
  """Random examples with the labels of a policy network.

  Args:
    policy: as `train_unrolled` and `train_reinforce` return it, or `load_policy` reads it.
    sample: where the policy chooses among actions: draw one by its probability, rather than take the most probable.
    name: for tables and legends.
  """
  if not isinstance(policy, Policy):
    raise TypeError(f"policy must be a Policy, as train_unrolled returns it, but it is a {type(policy).__name__}")
  prepare, sample = jax.tree_util.Partial(Policy.check, policy), checks.check_flag("sample", sample)
  return compose(name, PolicyLabels(policy, sample), prepare=prepare, needs_target=policy.needs_target)
