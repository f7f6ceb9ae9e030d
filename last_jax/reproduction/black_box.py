"""Learned teachers that do not know the target: trained on their students' loss."""

from collections.abc import Mapping
from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import optax

from last_jax.base import Array
from last_jax.reproduction import methods, problems, results, trained
from last_jax.reproduction.claims import Claim
from last_jax.reproduction.config import Figure, Outcome, Size, Tell
from last_jax.reproduction.results import Distances
from last_jax.teachers import outputs

# A policy gradient that is less noisy than the paper's: a linear policy that begins near the truth, and students in
# groups that share a start and examples, so that returns differ by the actions alone.
_SEEN = ("x", "label", "prediction")
_GROUPS: dict[str, Any] = {
  "hidden": (), "features": _SEEN, "students": 64, "group": 8, "horizon": 20, "reset": 0.125, "discount": 1.0,
}  # fmt: skip
_PRIOR = 4.0


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


def run_black_box(size: Size, tell: Tell) -> Outcome:
  """The students' own loss in place of the distance."""
  problem, init_fn = problems.softmax_on_two_digits(size, 1e-3)
  batch_size, episodes = size.pick(4, 20, 20), size.pick(2, 40, 200)
  recipes = [
    trained.unrolled(size.pick(2, 60, 500), batch_size=batch_size),
    trained.policy_gradient(
      episodes,
      five=True,
      prior=_PRIOR,
      batch_size=batch_size,
      optimizer=optax.adam(optax.cosine_decay_schedule(0.02, episodes)),
      **_GROUPS,
    ),
    trained.unrolled(
      size.pick(2, 100, 300),
      policy=Hypernetwork(),
      output=outputs.free(),
      learning_rate=1e-2,
      batch_size=batch_size,
    )._replace(name="unrolled hypernetwork", variant="hypernetwork"),
  ]
  unrolling, gradient, hypernetwork = trained.train_all(problem.without_target(), init_fn, recipes, size, tell)
  sgd, students = methods.sgd(), trained.draw_students(init_fn, size)
  ways, settings = (
    [sgd, unrolling, gradient, hypernetwork],
    {"batch_size": batch_size, "metrics": ("distance", "objective")},
  )
  records, _ = trained.evaluate(problem, students, ways, size, tell, 0.85, **settings)
  distances, remark = Distances(records, problems.rounding_floor(problem)), trained.remark_on_training(size)
  claims = [
    Claim(text, distances.beats(winner, sgd), remark, because, size=trained.size_needed(size))
    for text, winner, because in (
      ("Black-box unrolling beats SGD.", unrolling, _FEW),
      ("Black-box policy gradient beats SGD.", gradient, _NOISE),
      ("A black-box hypernetwork with free labels, unrolled, beats SGD (not in the paper).", hypernetwork, ""),
    )
  ]
  charts = results.charts(ways, records, {}, suffix=f", batch size {batch_size}")
  more = {
    "reward": "the loss on the whole pool, after every step; the best policy by its students' loss after 300 is kept",
    "policy gradient": f"linear policy, prior {_PRIOR:g} on the truth, baseline: leave-one-out in groups of "
    f"{_GROUPS['group']} students that share a start and examples",
  }
  return Outcome(trained.describe(problem, students, size, recipes) | more, charts, tuple(claims))


_FEW = (
  "No label changes about 0.24 of the starting distance of 0.34, which hides what the policy learns. In a trial with "
  "300 episodes (4 seeds), students were 0.4 points more accurate than those of SGD, and level in distance: "
  "0.988 ± 0.009."
)
_NOISE = (
  "In batches of 20 a trajectory is hundreds of decisions, of which each moves the student by a twentieth of a step: "
  "the gradient of one episode is mostly noise, even in groups that share start and examples."
)


FIGURES = (
  Figure(
    "black_box_linear",
    "Learned teachers that do not know the target",
    "Figure 20",
    "The teacher is trained on its students' loss, and sees neither w* nor the distance.",
    run_black_box,
    7.0,
  ),
)
