"""Learned teachers that do not know the target: trained on their students' loss."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
import optax

from last_jax import constraints, targets, teachers, training
from last_jax.base import Array, Params, Pool
from last_jax.problem import Problem
from last_jax.reproduction import methods, pixels, problems, results, trained
from last_jax.reproduction.claims import Claim, Reading
from last_jax.reproduction.config import Figure, Method, Outcome, Size, Tell
from last_jax.teachers import outputs
from last_jax.tools.charts import Level
from last_jax.training import rewards

# A policy gradient that is less noisy than the paper's: a linear policy that begins near the truth, and students in
# groups that share a start and examples, so that returns differ by the actions alone.
_SEEN = ("x", "label", "prediction")
_GROUPS: dict[str, Any] = {
  "hidden": (), "features": _SEEN, "students": 64, "group": 8, "horizon": 20, "reset": 0.125, "discount": 1.0,
}  # fmt: skip
_PRIOR = 4.0
_RATE = 1e-3  # Of students.


class Hypernetwork(nn.Module):
  """The student's parameters give the weights of a map that is linear in the example: what changes its label.

  A student's way to w* depends on its parameters and the example together; an example moves it along itself.
  """

  @nn.compact
  def __call__(self, features: Mapping[str, Array]) -> Array:
    """`[m, 24]`, ... -> `[m, 2]`, whose sum is 0."""
    zeros = nn.initializers.zeros  # It begins at the truth.
    weights = nn.Dense(features["x"].shape[1], kernel_init=zeros)(features["params"])  # [24]
    own = jnp.concatenate([features["label"][:, :1], features["prediction"][:, :1]], -1)
    shift = features["x"] @ weights[:, None] + nn.Dense(1, kernel_init=zeros)(own)
    return jnp.concatenate([shift, -shift], -1)


class Distiller(nn.Module):
  """Labels p + gain (q - p): from the student's prediction p beyond that of a linear teacher, q. For two classes.

  The teacher adds the truth to what is linear in the example, as evidence for a class; at first there is the truth
  alone. It needs features as they are (`standardize=False`), and does not see the student's parameters.
  """

  prior: float = 4.0  # The evidence of the truth, at first; 0: the teacher never looks at it.
  log_gain: float = 0.0  # At first.
  center: Any = 0.0  # A number or `[24]`, subtracted from examples,
  basis: Any = 0.1  # which are then multiplied by this number or matrix `[24, 24]`.

  @nn.compact
  def __call__(self, features: Mapping[str, Array]) -> Array:
    """`[m, 24]`, ... -> `[m, 2]`, what is added to the truth; its sum is 0."""
    truth, prediction = features["label"][:, :1], features["prediction"][:, :1]
    x = features["x"] - jnp.reshape(self.center, (1, -1))
    x = x @ self.basis if jnp.ndim(self.basis) else x * self.basis
    evidence = nn.Dense(1, kernel_init=nn.initializers.zeros)(x)
    if self.prior:
      trust = self.param("trust", nn.initializers.zeros, ())
      evidence += (self.prior + trust) * (2 * truth - 1)
    gain = jnp.exp(self.log_gain + self.param("gain", nn.initializers.zeros, ()))
    shift = prediction - truth + gain * (nn.sigmoid(evidence) - prediction)
    return jnp.concatenate([shift, -shift], -1)


def distiller(**settings: Any) -> dict[str, Any]:
  """Return settings of training for a `Distiller`, with `settings` of it."""
  return {"policy": Distiller(**settings), "features": _SEEN, "standardize": False, "output": outputs.free()}


def whitened_inputs(pool: Pool) -> dict[str, np.ndarray]:
  """Return settings of a `Distiller` after which the pool's examples are uncorrelated, of mean 0 and variance 1.

  Where gradients are estimated, the noise of the largest derivatives drowns the others: inputs should be of one size.
  """
  x = np.asarray(pool.x, np.float64)
  values, vectors = np.linalg.eigh(np.cov(x.T))
  values = np.maximum(values, 1e-6 * values[-1])  # Of fewer examples than numbers, some are 0.
  return {"center": x.mean(0).astype(np.float32), "basis": (vectors / np.sqrt(values)).astype(np.float32)}


def decaying(rate: float, episodes: int) -> optax.GradientTransformation:
  """Return Adam with a rate that falls to zero: the last steps average noisy estimates."""
  return optax.adam(optax.cosine_decay_schedule(rate, episodes))


def _recipes(problem: Problem, size: Size, batch_size: int) -> list[trained.Recipe]:
  """Return the paper's two teachers, the same with less noise, and further ones."""
  unroll, sample = size.pick(2, 60, 300), size.pick(2, 40, 200)
  shared: dict[str, Any] = {"batch_size": batch_size}
  evolve = size.pick(2, 30, 150)
  whitened: dict[str, Any] = {"prior": 0.0, "log_gain": 1.6, **whitened_inputs(problem.pool)}
  few: dict[str, Any] = shared | {"reward": rewards.loss(20)}
  return [
    trained.unrolled(unroll, **few, evaluate_every=0),
    trained.policy_gradient(sample, five=True, baseline=-0.1, **few),
    trained.unrolled(unroll, **shared)._replace(name="unrolled, loss on the pool", variant="whole pool"),
    trained.policy_gradient(
      sample, five=True, prior=_PRIOR, optimizer=decaying(0.02, sample), **shared, **_GROUPS
    )._replace(name="policy gradient in groups", variant="policy gradient in groups"),
    trained.unrolled(
      unroll, policy=Hypernetwork(), output=outputs.free(), learning_rate=1e-2, **shared
    )._replace(name="unrolled hypernetwork", variant="hypernetwork"),
    trained.unrolled(
      unroll, optimizer=decaying(0.1, unroll), **shared, **distiller()
    )._replace(name="unrolled distiller", variant="distiller"),
    trained.Recipe("evolution strategies, distiller", "evolution", training.Evolution(
      students=200, horizon=20, reset=0.1, deviation=0.1, optimizer=decaying(0.07, evolve), **shared,
      **distiller(**whitened)), evolve),
  ]  # fmt: skip


def _train_cnn(
  problem: Problem, init_fn: problems.InitFn, size: Size, batch_size: int, tell: Tell
) -> tuple[trained.Recipe, Problem, Method]:
  """Train a teacher that sees pixels. Return its settings, the problem with pixels, and the teacher."""
  with_pixels = pixels.with_pixels(problem, size, _RATE)
  episodes = size.pick(2, 30, 100)
  recipe = trained.unrolled(
    episodes, policy=pixels.Cnn(), features=_SEEN, standardize=False, output=outputs.free(), batch_size=batch_size,
    optimizer=decaying(0.02, episodes),
  )._replace(name="unrolled CNN on pixels", variant="CNN")  # fmt: skip
  (method,) = trained.train_all(with_pixels.without_target(), init_fn, [recipe], size, tell)
  return recipe, with_pixels, method


def _greedy(problem: Problem) -> Method:
  teacher = teachers.greedy(constraints.none(), targets.loss(problem.pool))
  return Method("greedy:loss", dataclasses.replace(teacher, name="LAST (none) on the loss"), "greedy", "none")


def run_black_box(size: Size, tell: Tell) -> Outcome:
  """The students' own loss in place of the distance."""
  problem, init_fn = problems.softmax_on_two_digits(size, _RATE)
  batch_size = size.pick(4, 20, 20)
  recipes, sgd, greedy = _recipes(problem, size, batch_size), methods.sgd(), _greedy(problem)
  learned = trained.train_all(problem.without_target(), init_fn, recipes, size, tell)
  few, gradient, whole, groups, hypernetwork, distilled, evolved = learned
  cnn_recipe, with_pixels, cnn = _train_cnn(problem, init_fn, size, batch_size, lambda text, _: tell(text, 0.8))
  ways, students = [sgd, *learned, greedy, cnn], trained.draw_students(init_fn, size)
  settings: dict[str, Any] = {"batch_size": batch_size, "metrics": ("distance",), "probe": _identity}
  records, _ = trained.evaluate(problem, students, ways[:-1], size, tell, 0.85, **settings)
  records |= trained.evaluate(with_pixels, students, [cnn], size, tell, 0.9, **settings)[0]
  distances = results.compare_students(problem, records)
  remark, needed = trained.remark_on_training(size), trained.size_needed(size)
  claims = [
    Claim(
      "Black-box unrolling beats SGD.",
      distances.beats(few, sgd),
      remark,
      _FEW,
      [Reading("whole_pool", "the loss on all 1,000 images, the best policy kept", distances.beats(whole, sgd))],
      needed,
    ),
    Claim(
      "Black-box policy gradient beats SGD.",
      distances.beats(gradient, sgd),
      remark,
      _NOISE,
      [Reading("groups", _IN_GROUPS, distances.beats(groups, sgd))],
      needed,
    ),
    *(
      Claim(f"{text} beats SGD (not in the paper).", distances.beats(each, sgd), remark, size=needed)
      for text, each in (
        ("Black-box unrolling of a distiller", distilled),
        ("A distiller, trained by evolution strategies,", evolved),
        ("Black-box unrolling of a hypernetwork", hypernetwork),
        ("Black-box unrolling of a CNN on the images' pixels", cnn),
      )
    ),
    Claim("Greedy LAST on the validation loss beats SGD (not in the paper).", distances.beats(greedy, sgd)),
  ]
  assert distances.reachable is not None
  assert distances.lowest is not None
  more: dict[str, Any] = {"reachable": distances.reachable, "excess": {}, "accuracy": {}}
  for key, own in distances.records.items():
    more["excess"][key], more["accuracy"][key] = np.asarray(own.objective) - distances.lowest, own.accuracy
  levels = {"distance": [Level("no label teaches this", _unreachable(distances, sgd), floor=True)]}
  charts = results.charts(ways, records, {}, more=more, levels=levels, suffix=f", batch size {batch_size}")
  described = {
    "reward": "unrolled, policy gradient: the loss on 20 random images after every step, as in the paper; the others: "
    "on the whole pool, and the best policy by its students' loss after 300 steps is kept",
    "policy gradient": "baseline -0.1, as in the paper",
    "in groups": _IN_GROUPS,
    "distiller": "labels p + gain (q - p), from the student's prediction p beyond that of a learned linear teacher, q",
    "hypernetwork": _CENTERED,
    "CNN": "as the distiller, q being that of a CNN on images of 14 × 14 pixels; students see their 24 features",
    "LAST on the loss": "exact labels, in each step, for a damped Gauss-Newton model of the loss on the pool",
  }
  return Outcome(trained.describe(problem, students, size, [*recipes, cnn_recipe]) | described, charts, tuple(claims))


def _identity(params: Params) -> Params:
  return params


def _unreachable(distances: results.Distances, method: Method) -> float:
  """Return the part of the students' starting distance that no labels change."""
  assert distances.reachable is not None
  whole, part = distances.of(method)[:, 0], distances.reachable[method.key][:, 0]
  return float(np.sqrt(np.mean(whole) ** 2 - np.mean(part) ** 2))


_FEW = (
  "The policy overfits the loss on 20 images, which are the same through an episode. No label changes about 0.24 of "
  "the starting distance of 0.34, which hides what is learned."
)
_NOISE = (
  "In batches of 20 a trajectory is hundreds of decisions, of which each moves the student by a twentieth of a step: "
  "the gradient of one episode is mostly noise, even in groups that share start and examples. It suffices for a policy "
  "of few weights: a distiller that is trained so beats SGD (python -m benchmarks.black_box_policies)."
)
_IN_GROUPS = (
  f"linear policy, prior {_PRIOR:g} on the truth, loss on all 1,000 images, baseline: leave-one-out in groups of "
  f"{_GROUPS['group']} students that share a start and examples"
)
_CENTERED = (
  "the student's parameters give the weights of a map that is linear in the example. It sees parameters less their "
  "mean over starts, which is about w* here: it needs to learn less than the others"
)


FIGURES = (
  Figure(
    "black_box_linear",
    "Learned teachers that do not know the target",
    "Figure 20",
    "The teacher is trained on its students' loss, and sees neither w* nor the distance. Most of the distance is the "
    "same for both classes, and no label teaches it: reachable distance, excess objective and accuracy show what is "
    "learned.",
    run_black_box,
    14.0,
  ),
)
