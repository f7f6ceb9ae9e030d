"""Parameterized teachers, section 3.3 of the paper: labels by a network that looks at the student.

A `Policy` is a pytree of weights that knows its own architecture. `training/` makes good ones; `policy(...)` makes a
teacher of one, which runs in the same loop as every other.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from last_jax import checks, models
from last_jax.learners import Learner
from last_jax.teachers import features as features_
from last_jax.teachers.base import OmniscientView, Teacher, Uniform, View
from last_jax.teachers.features import Inputs
from last_jax.teachers.outputs import Output, is_choice, simplex
from last_jax.types import STATIC, Array, Key, Params, Pool, Student


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Policy:
  """A network from state features to labels."""

  weights: Params  # Of the network: what training changes.
  center: Inputs  # Features are shifted by this
  scale: Inputs  # and divided by this before they enter.
  output: Output
  num_outputs: int = dataclasses.field(metadata=STATIC)  # K, the length of a label.
  features: tuple[str, ...] = dataclasses.field(metadata=STATIC)
  hidden: tuple[int, ...] = dataclasses.field(metadata=STATIC)

  @property
  def omniscient(self) -> bool:
    """Whether it looks at w*. If not, it is handed a view in which there is none."""
    return features_.need_target(self.features)

  def check(self, learner: Learner, x: Array, truth: Array) -> None:
    """Raises unless this policy can label the examples `x [n, ...]`, `truth [n, K]` for this learner."""
    self.output.check(learner, truth)
    if truth.shape[1] != self.num_outputs:
      raise ValueError(
        f"policy gives labels of length {self.num_outputs}, but the learner has {truth.shape[1]} outputs"
      )
    params = models.param_shapes(learner.model)

    def observe(params: Params) -> Inputs:
      index = jnp.zeros(1, int)
      view = View(learner, Student(params, None), x, truth, jnp.zeros((), int), jax.random.key(0))
      seen = self._observe(OmniscientView(*view, target=params), index)
      return features_.join(self.features, seen, index.shape, truth.dtype)

    found, made_for = jax.eval_shape(observe, params), self.center
    if (found.own.shape[1], found.shared.shape) != (made_for.own.shape[-1], made_for.shared.shape[-1:]):
      raise ValueError(
        f"policy was made for another learner or pool: its features {self.features} are {made_for.own.shape[-1]} "
        f"numbers per example and {made_for.shared.shape[-1]} per student, but here they are {found.own.shape[1]} and "
        f"{found.shared.shape[0]}"
      )

  def _observe(self, view: Any, index: Array) -> dict[str, Array]:
    return features_.observe(self.features, view, index, self.output.candidates(view.truth[index], index))

  def inputs(self, view: Any, index: Array) -> Inputs:
    """What enters the network for the examples `index [m]`: features, brought to one size."""
    seen = features_.join(self.features, self._observe(view, index), index.shape, view.truth.dtype)
    own = (seen.own - self.center.own[None]) / self.scale.own[None]
    return Inputs(own, (seen.shared - self.center.shared) / self.scale.shared)

  def numbers(self, view: Any, index: Array) -> Array:
    """What the network says of the examples `index [m]`, `[m, width]`."""
    return self._network().apply({"params": self.weights}, self.inputs(view, index))

  def init_weights(self, key: Key) -> Params:
    """Random weights for a network of this architecture."""
    return self._network().init(key, Inputs(self.center.own[None], self.center.shared))["params"]

  def _network(self) -> Any:
    from last_jax.teachers.network import Network  # Here, since importing Flax takes a while.

    return Network(self.hidden, self.output.width(self.num_outputs))

  def labels(self, view: Any, index: Array, key: Key | None) -> Array:
    """Labels `[m, K]`; with a key, random ones where there is a choice."""
    return self.output.labels(view.learner, self.numbers(view, index), view.truth[index], index, key)

  def log_probabilities(self, view: Any, index: Array, shown: Array) -> Array:
    """The logarithms of the probabilities of the labels `shown [m, K]`, `[m]`. Only where there is a choice."""
    output: Any = self.output
    return output.log_probabilities(self.numbers(view, index), view.truth[index], index, shown)


def make_policy(
  key: Key,
  learner: Learner,
  pool: Pool,
  students: Params,
  *,
  target: Params | None = None,
  output: Output | None = None,
  features: Sequence[str] | None = None,
  hidden: Sequence[int] = (128, 128),
  standardize: bool = True,
) -> Policy:
  """A new policy, with random weights.

  Args:
    key: of the weights.
    learner: whom it will teach.
    pool: what from.
    students: parameters of some students, with a leading axis, on whom it is measured how large features are.
    target: w*; None for a black-box policy.
    output: how labels come out of it; `outputs.simplex()` unless given.
    features: what it looks at, of "x", "label", "prediction", "params", "target" and, with actions, "progress". Unless
      given: all but "progress".
    hidden: widths of the hidden layers.
    standardize: whether features are shifted and scaled to the same size (`features.measure`). Images, weights and
      inner products differ by orders of magnitude, which a network does not take well.
  """
  chosen = simplex() if output is None else output
  if features is None:
    features = features_.BLACK_BOX if target is None else features_.UNROLLED
  names = features_.check_features(features, actions=is_choice(chosen), omniscient=target is not None)
  hidden = tuple(hidden)
  for width in hidden:
    checks.check_count("hidden", width)
  truth = learner.encode(pool.x, pool.y)
  chosen.check(learner, truth)

  def observe(params: Params, index: Array) -> dict[str, Array]:
    view = View(learner, Student(params, None), pool.x, truth, jnp.zeros((), int), key)
    known = OmniscientView(*view, target=target) if features_.need_target(names) else view
    seen = features_.observe(names, known, index[None], chosen.candidates(truth[index][None], index[None]))
    return jax.tree.map(jnp.ravel, seen)

  weights_key, index_key = jax.random.split(key)
  count = jax.tree.leaves(students)[0].shape[0]
  index = jax.random.randint(index_key, (count,), 0, len(pool))
  samples = jax.vmap(observe)(students, index)  # By feature, [count, size].
  measured = {name: features_.measure(name, values) for name, values in samples.items()}
  center = features_.join(names, {name: shift for name, (shift, _) in measured.items()}, (), truth.dtype)
  scale = features_.join(names, {name: size for name, (_, size) in measured.items()}, (), truth.dtype)
  if not standardize:
    center, scale = jax.tree.map(jnp.zeros_like, center), jax.tree.map(jnp.ones_like, scale)
  chosen = jax.tree.map(lambda leaf: jnp.asarray(leaf, truth.dtype), chosen)
  policy = Policy(None, center, scale, chosen, truth.shape[1], names, hidden)
  return dataclasses.replace(policy, weights=policy.init_weights(weights_key))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PolicyLabels:
  """Labels that a policy gives."""

  policy: Policy
  sample: bool = dataclasses.field(metadata=STATIC)

  @property
  def omniscient(self) -> bool:
    """As the policy is."""
    return self.policy.omniscient

  def prepare(self, learner: Learner, x: Array, truth: Array, target: Params | None) -> None:
    """Nothing to prepare, but a policy made for another learner is refused."""
    self.policy.check(learner, x, truth)

  def label(self, memory: None, view: Any, index: Array) -> Array:
    """Labels `[m, K]`."""
    return self.policy.labels(view, index, view.key if self.sample else None)


def policy(policy: Policy, *, sample: bool = False, name: str = "policy") -> Teacher:
  """A teacher of random examples whose labels a policy network gives.

  Args:
    policy: as `train_unrolled` and `train_reinforce` return it, or `load_policy` reads it.
    sample: where the policy chooses among actions: draw one by its probability, rather than take the most probable.
    name: for tables and legends.
  """
  if not isinstance(policy, Policy):
    raise TypeError(f"policy must be a Policy, as train_unrolled returns it, but it is a {type(policy).__name__}")
  return Teacher(name, Uniform(), PolicyLabels(policy, bool(sample)))
