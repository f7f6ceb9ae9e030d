"""From the numbers that a policy network gives to labels: on the simplex, free, a residue, or a choice of actions."""

import abc
import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from last_jax import checks
from last_jax.base import Array, Key, is_concrete
from last_jax.learners import Learner


class Output(Protocol):
  """Map from a network's numbers to labels. Its own numbers are leaves of a pytree."""

  kind: str  # Its name in files.

  def width(self, num_outputs: int) -> int:
    """Number of network outputs for a label of `num_outputs` numbers."""

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

  prior: Array | float
  kind = "simplex"

  def check(self, learner: Learner, truth: Array) -> None:
    """Only classifiers have soft labels."""
    if not learner.loss.classification:
      raise ValueError(
        f"output: soft labels are for classifiers, but the learner's loss is {learner.loss.name}: use outputs.free()"
      )

  def labels(self, learner: Learner, numbers: Array, truth: Array, index: Array, key: Key | None) -> Array:
    """`[m, K]`, each between the labels of the classes."""
    low, high = (0.0, 1.0) if truth.shape[1] > 1 else (learner.loss.low, learner.loss.high)
    share = (truth - low) / (high - low)
    if truth.shape[1] > 1:
      return jax.nn.softmax(numbers + self.prior * share)
    return low + (high - low) * jax.nn.sigmoid(numbers + self.prior * (2 * share - 1))


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


class _Choice(abc.ABC):
  """One of A candidate labels per example; the numbers are the logarithms of probabilities, up to a constant."""

  prior: Array | float

  def labels(self, learner: Learner, numbers: Array, truth: Array, index: Array, key: Key | None) -> Array:
    """The most probable candidates or, with a key, random ones: `[m, K]`."""
    noise = None if key is None else self.noise(key, numbers.shape, numbers.dtype)
    return self.choose(numbers, truth, index, noise)

  @staticmethod
  def noise(key: Key, shape: tuple[int, ...], dtype: Any) -> Array:
    """Return what is added to the logarithms of probabilities, `[m, A]`: the largest sum is then a random draw."""
    return jax.random.gumbel(key, shape, dtype)

  def choose(self, numbers: Array, truth: Array, index: Array, noise: Array | None) -> Array:
    """`labels`, with the noise `[m, A]` drawn beforehand in place of a key."""
    candidates = self.candidates(truth, index)
    logits = self._logits(numbers, candidates, truth)
    chosen = jnp.argmax(logits if noise is None else noise + logits, 1)  # [m]
    return jnp.take_along_axis(candidates, chosen[:, None, None], 1)[:, 0]

  def _logits(self, numbers: Array, candidates: Array, truth: Array) -> Array:
    return numbers - self.prior * jnp.sum((candidates - truth[:, None]) ** 2, -1)

  @abc.abstractmethod
  def candidates(self, truth: Array, index: Array) -> Array:
    """`[m, A, K]`."""

  def log_probabilities(self, numbers: Array, truth: Array, index: Array, shown: Array) -> Array:
    """Of having shown the labels `shown [m, K]`: `[m]`. Candidates that are the same label count together."""
    candidates = self.candidates(truth, index)
    gaps = jnp.sum(jnp.abs(candidates - shown[:, None]), -1)  # [m, A]
    # Equal up to rounding: a label may have been computed by another program.
    same = gaps <= jnp.min(gaps, 1, keepdims=True) + 8 * jnp.finfo(gaps.dtype).eps
    logs = jax.nn.log_softmax(self._logits(numbers, candidates, truth))
    return jax.nn.logsumexp(logs, 1, where=same)


def is_choice(output: Any) -> bool:
  """Whether it chooses among labels, so that each has a probability."""
  return isinstance(output, _Choice)


def check_output(name: str, output: Any) -> None:
  """Raises unless it comes from this module."""
  if not isinstance(output, (_Choice, _Continuous)):
    raise TypeError(f"{name} must come from last_jax.outputs, as simplex(), but it is {output!r}")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Actions(_Choice):
  """A set of labels, the same for every example."""

  values: Array  # [A, K]
  prior: Array | float
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
  prior: Array | float
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


def _as_floats(name: str, values: Any) -> Array:
  given = checks.check_array(name, values)
  with np.errstate(over="ignore"):  # A number too large for the dtype becomes infinite, which is refused.
    array = jnp.asarray(given, float)
  checks.check_finite(name, array)
  return array


def simplex(prior: Any = 0.0) -> Simplex:
  """Soft labels.

  Args:
    prior: how strongly a policy believes in the ground truth before it has learned anything: what is added to the
      number of the true class. 0: not at all, its first labels are about uniform. 4: it begins as SGD, nearly, but
      learns more slowly.
  """
  prior = checks.check_not_negative("prior", prior)
  return Simplex(prior)


def free() -> Free:
  """Any numbers, as the ground truth plus what the network gives: at first about the truth."""
  return Free()


def residue(alpha: Any, of: Simplex | Free | None = None) -> Residue:
  """Labels alpha truth + (1 - alpha) label.

  Args:
    alpha: the share of the truth, between 0 and 1.
    of: the label that is mixed with it; `simplex()` unless given.
  """
  alpha = checks.check_between("alpha", alpha, 0.0, 1.0)
  of = simplex() if of is None else of
  if not isinstance(of, (Simplex, Free)):
    raise TypeError(f"of must be outputs.simplex() or outputs.free(), but it is {of!r}")
  return Residue(alpha, of)


def actions(values: Any, prior: Any = 0.0) -> Actions:
  """A choice among labels.

  Args:
    values: `[A, K]`, a label in each row; it need not sum to one. `BINARY` and `BINARY_AUGMENTED` are the paper's.
    prior: as for `simplex`; here the logarithm of a label's probability is less by this times its squared distance from
      the truth.
  """
  prior = checks.check_not_negative("prior", prior)
  array = _as_floats("actions", values)
  if array.ndim != 2 or array.shape[0] < 2 or array.shape[1] < 1:
    raise ValueError(f"actions must hold at least two labels, as [A, K], but the shape is {array.shape}")
  return Actions(array, prior)


def mixtures(mu: Any = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0), soft_labels: Any = None, prior: Any = 0.0) -> Mixtures:
  """A choice of how much of the truth to show: labels mu truth + (1 - mu) p. For many classes.

  Args:
    mu: `[A]`, the shares to choose from, each between 0 and 1.
    soft_labels: p, `[n, K]` for the pool's examples, as a pretrained model gives them; uniform unless given.
    prior: as for `actions`.
  """
  prior = checks.check_not_negative("prior", prior)
  shares = _as_floats("mu", mu)
  if shares.ndim != 1 or shares.shape[0] < 2:
    raise ValueError(f"mu must hold at least two shares, as [A], but its shape is {shares.shape}")
  if is_concrete(shares) and not ((np.asarray(shares) >= 0) & (np.asarray(shares) <= 1)).all():
    raise ValueError(f"mu must lie between 0 and 1, but it is {np.asarray(shares).tolist()}")
  if soft_labels is None:
    return Mixtures(shares, None, prior)
  soft = _as_floats("soft_labels", soft_labels)
  if soft.ndim != 2 or not soft.size:
    raise ValueError(f"soft_labels must have shape [n, K], but it has shape {soft.shape}")
  return Mixtures(shares, soft, prior)


# The paper's actions for two classes, and those with their doubles.
BINARY = np.array([[0.0, 1.0], [0.25, 0.75], [0.5, 0.5], [0.75, 0.25], [1.0, 0.0]])
BINARY_AUGMENTED = np.concatenate([BINARY, 2 * BINARY])
