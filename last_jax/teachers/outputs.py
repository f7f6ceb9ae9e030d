"""From the numbers that a policy network gives to labels: on the simplex, free, a residue, or a choice of actions."""

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import checks
from last_jax.learners import Learner
from last_jax.types import Array, Key


class Output(Protocol):
  """How a network's numbers become labels. Its own numbers are leaves of a pytree."""

  kind: str  # Its name in files.

  def width(self, num_outputs: int) -> int:
    """How many numbers the network must give for a label of `num_outputs` numbers."""

  def check(self, learner: Learner, truth: Array) -> None:
    """Raises unless it can label for this learner; `truth [n, K]` are the pool's labels, or their shape."""

  def candidates(self, truth: Array, index: Array) -> Array | None:
    """The labels to choose from, `[m, A, K]`, for examples `index` with `truth [m, K]`; None where there is no set."""

  def labels(self, learner: Learner, numbers: Array, truth: Array, index: Array, key: Key | None) -> Array:
    """Labels `[m, K]` from `numbers [m, width]`. With a key, chosen at random where there is a choice."""


class _Continuous:
  """Labels that depend on the network's numbers smoothly, so that unrolling can differentiate them."""

  def width(self, num_outputs: int) -> int:
    """One number per number of the label."""
    return num_outputs

  def check(self, learner: Learner, truth: Array) -> None:
    """Any learner."""

  def candidates(self, truth: Array, index: Array) -> None:
    """No set: any label."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Simplex(_Continuous):
  """Soft labels: a softmax of the numbers or, with one output, a sigmoid between the labels of the two classes."""

  kind = "simplex"

  def check(self, learner: Learner, truth: Array) -> None:
    """Only classifiers have soft labels."""
    if not learner.loss.classification:
      raise ValueError(
        f"output: soft labels are for classifiers, but the learner's loss is {learner.loss.name}: use outputs.free()"
      )

  def labels(self, learner: Learner, numbers: Array, truth: Array, index: Array, key: Key | None) -> Array:
    """`[m, K]`, each between the labels of the classes."""
    if numbers.shape[1] > 1:
      return jax.nn.softmax(numbers)
    low, high = learner.loss.low, learner.loss.high
    return low + (high - low) * jax.nn.sigmoid(numbers)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Free(_Continuous):
  """The ground truth plus the numbers as they are."""

  kind = "free"

  def labels(self, learner: Learner, numbers: Array, truth: Array, index: Array, key: Key | None) -> Array:
    """Any label, `[m, K]`."""
    return truth + numbers


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Residue(_Continuous):
  """alpha truth + (1 - alpha) label, section 4 of the paper: the less the teacher may change, the easier to learn."""

  alpha: Array | float
  of: Simplex | Free
  kind = "residue"

  def check(self, learner: Learner, truth: Array) -> None:
    """As for the label within."""
    self.of.check(learner, truth)

  def labels(self, learner: Learner, numbers: Array, truth: Array, index: Array, key: Key | None) -> Array:
    """`[m, K]`."""
    return self.alpha * truth + (1 - self.alpha) * self.of.labels(learner, numbers, truth, index, key)


class _Choice:
  """One of A candidate labels per example; the numbers are the logarithms of probabilities, up to a constant."""

  def labels(self, learner: Learner, numbers: Array, truth: Array, index: Array, key: Key | None) -> Array:
    """The most probable candidates or, with a key, random ones: `[m, K]`."""
    chosen = jnp.argmax(numbers, 1) if key is None else jax.random.categorical(key, numbers)  # [m]
    return jnp.take_along_axis(self.candidates(truth, index), chosen[:, None, None], 1)[:, 0]

  def candidates(self, truth: Array, index: Array) -> Array:
    """`[m, A, K]`."""
    raise NotImplementedError

  def log_probabilities(self, numbers: Array, truth: Array, index: Array, shown: Array) -> Array:
    """Of having shown the labels `shown [m, K]`: `[m]`. Candidates that are the same label count together."""
    gaps = jnp.sum(jnp.abs(self.candidates(truth, index) - shown[:, None]), -1)  # [m, A]
    # Equal up to rounding: a label may have been computed by another program.
    same = gaps <= jnp.min(gaps, 1, keepdims=True) + 8 * jnp.finfo(gaps.dtype).eps
    logs = jax.nn.log_softmax(numbers)
    return jax.nn.logsumexp(logs, 1, where=same)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Actions(_Choice):
  """A set of labels, the same for every example."""

  values: Array  # [A, K]
  kind = "actions"

  def width(self, num_outputs: int) -> int:
    """One number per action."""
    return self.values.shape[0]

  def check(self, learner: Learner, truth: Array) -> None:
    """The labels must be of the learner's length."""
    if self.values.shape[1] != truth.shape[1]:
      raise ValueError(
        f"actions hold labels of length {self.values.shape[1]}, but the learner has {truth.shape[1]} outputs"
      )

  def candidates(self, truth: Array, index: Array) -> Array:
    """`[m, A, K]`."""
    return jnp.broadcast_to(self.values.astype(truth.dtype)[None], (truth.shape[0], *self.values.shape))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Mixtures(_Choice):
  """mu truth + (1 - mu) p, where p is uniform over the classes (smoothing) or a soft label (distillation)."""

  mu: Array  # [A]
  soft_labels: Array | None  # [n, K], of the pool.
  kind = "mixtures"

  def width(self, num_outputs: int) -> int:
    """One number per mu."""
    return self.mu.shape[0]

  def check(self, learner: Learner, truth: Array) -> None:
    """Smoothing needs classes, distillation a soft label for every example."""
    if self.soft_labels is None and truth.shape[1] < 2:
      raise ValueError("mixtures with uniform labels are for learners with an output per class: give soft_labels")
    if self.soft_labels is not None and self.soft_labels.shape != truth.shape:
      raise ValueError(
        f"soft_labels must have shape {truth.shape}, one label per example of the pool, but it has shape "
        f"{self.soft_labels.shape}"
      )

  def candidates(self, truth: Array, index: Array) -> Array:
    """`[m, A, K]`."""
    mu = self.mu.astype(truth.dtype)[None, :, None]
    soft = jnp.full_like(truth, 1 / truth.shape[1]) if self.soft_labels is None else self.soft_labels[index]
    return mu * truth[:, None] + (1 - mu) * soft[:, None].astype(truth.dtype)


def simplex() -> Simplex:
  """Soft labels."""
  return Simplex()


def free() -> Free:
  """Any numbers, as the ground truth plus what the network gives: at first about the truth."""
  return Free()


def residue(alpha: Any, of: Simplex | Free | None = None) -> Residue:
  """Labels alpha truth + (1 - alpha) label.

  Args:
    alpha: the share of the truth, between 0 and 1.
    of: the label that is mixed with it; `simplex()` unless given.
  """
  checks.check_between("alpha", alpha, 0.0, 1.0)
  of = Simplex() if of is None else of
  if not isinstance(of, (Simplex, Free)):
    raise TypeError(f"of must be outputs.simplex() or outputs.free(), but it is {of!r}")
  return Residue(alpha, of)


def actions(values: Any) -> Actions:
  """A choice among labels.

  Args:
    values: `[A, K]`, a label in each row; it need not sum to one. `BINARY` and `BINARY_AUGMENTED` are the paper's.
  """
  array = jnp.asarray(values, float)
  if array.ndim != 2 or array.shape[0] < 2 or array.shape[1] < 1:
    raise ValueError(f"actions must hold at least two labels, as [A, K], but the shape is {array.shape}")
  checks.check_finite("actions", array)
  return Actions(array)


def mixtures(mu: Any = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0), soft_labels: Any = None) -> Mixtures:
  """A choice of how much of the truth to show: labels mu truth + (1 - mu) p. For many classes.

  Args:
    mu: `[A]`, the shares to choose from, each between 0 and 1.
    soft_labels: p, `[n, K]` for the pool's examples, as a pretrained model gives them; uniform unless given.
  """
  shares = jnp.asarray(mu, float)
  if shares.ndim != 1 or shares.shape[0] < 2:
    raise ValueError(f"mu must hold at least two shares, as [A], but its shape is {shares.shape}")
  checks.check_between("mu", shares, 0.0, 1.0)
  if soft_labels is None:
    return Mixtures(shares, None)
  soft = jnp.asarray(soft_labels, float)
  if soft.ndim != 2:
    raise ValueError(f"soft_labels must have shape [n, K], but it has shape {soft.shape}")
  checks.check_finite("soft_labels", soft)
  return Mixtures(shares, soft)


# The paper's actions for two classes, and those with their doubles.
BINARY = np.array([[0.0, 1.0], [0.25, 0.75], [0.5, 0.5], [0.75, 0.25], [1.0, 0.0]])
BINARY_AUGMENTED = np.concatenate([BINARY, 2 * BINARY])
