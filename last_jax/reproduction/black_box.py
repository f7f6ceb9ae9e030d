"""Learned teachers that do not know the target: trained on their students' loss."""

from typing import Any

import optax

from last_jax.reproduction import methods, problems, results, trained
from last_jax.reproduction.claims import Claim
from last_jax.reproduction.config import Figure, Outcome, Size, Tell
from last_jax.reproduction.results import Distances

# A policy gradient that is less noisy than the paper's: a linear policy that begins near the truth, and students in
# groups that share a start and examples, so that returns differ by the actions alone.
_SEEN = ("x", "label", "prediction")
_GROUPS: dict[str, Any] = {
  "hidden": (), "features": _SEEN, "students": 64, "group": 8, "horizon": 20, "reset": 0.125, "discount": 1.0,
}  # fmt: skip
_PRIOR = 4.0


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
  ]
  unrolling, gradient = trained.train_all(problem.without_target(), init_fn, recipes, size, tell)
  sgd, students = methods.sgd(), trained.draw_students(init_fn, size)
  ways, settings = [sgd, unrolling, gradient], {"batch_size": batch_size, "metrics": ("distance", "objective")}
  records, _ = trained.evaluate(problem, students, ways, size, tell, 0.85, **settings)
  distances, remark = Distances(records, problems.rounding_floor(problem)), trained.remark_on_training(size)
  claims = [
    Claim(text, distances.beats(winner, sgd), remark, because)
    for text, winner, because in (
      ("Black-box unrolling beats SGD.", unrolling, _FEW),
      ("Black-box policy gradient beats SGD.", gradient, _NOISE),
    )
  ]
  charts = results.charts(ways, records, {}, suffix=f", batch size {batch_size}")
  more = {
    "reward": "the loss on the whole pool, after every step; the best policy by its students' loss after 300 is kept",
    "policy gradient": f"linear policy, prior {_PRIOR:g} on the truth, baseline: leave-one-out in groups of "
    f"{_GROUPS['group']} students that share a start and examples",
  }
  return Outcome(trained.describe(problem, students, size, recipes) | more, charts, tuple(claims))


_FEW = "Unrolling needs some hundred episodes before its students overtake those of SGD (--full has 500)."
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
