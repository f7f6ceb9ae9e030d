"""Learned teachers that do not know the target: trained on their students' loss."""

from last_jax import teachers
from last_jax.experiments.claims import Claim
from last_jax.experiments.config import Figure, Outcome, Size, Tell
from last_jax.experiments.trained import (
  FIVE_ACTIONS,
  UNROLL_20,
  beats,
  chart_of,
  describe,
  linear_task,
  make_classroom,
  policy_gradient,
  remark_on_training,
  train_all,
  try_out,
  unrolled,
)
from last_jax.teachers import outputs


def run_black_box(size: Size, tell: Tell) -> Outcome:
  """Students' own loss in place of the distance."""
  task = linear_task(size, 1e-3)
  batch_size = size.pick(4, 20, 20)
  ways = {
    UNROLL_20: unrolled(size.pick(2, 60, 1000), batch_size=batch_size),
    # The paper does not say how many; 200 take as long as the other one's 1,000.
    FIVE_ACTIONS: policy_gradient(size.pick(2, 20, 200), outputs.BINARY, batch_size=batch_size),
  }
  trained = train_all(task, ways, size, tell, black_box=True)
  tell("trying them out", 0.9)
  taught = try_out(make_classroom(task, size), trained, [teachers.sgd()], size, batch_size, ("distance", "objective"))
  charts = (
    chart_of(f"Distance to the target, batch size {batch_size}", taught),
    chart_of(f"Objective, batch size {batch_size}", taught, metric="objective"),
  )
  texts = {UNROLL_20: "Black-box unrolling beats SGD.", FIVE_ACTIONS: "Black-box policy gradient beats SGD."}
  claims = [Claim(texts[name], beats(taught, name, "SGD"), remark_on_training(size)) for name in ways]
  return Outcome(describe(task, size, ways), charts, tuple(claims))


_DRIFT = (
  "Trained on 20 steps at a time, policies make students faster at first; what comes after the twentieth step is not "
  "rewarded, and some policies drift. launch.train_teacher therefore keeps the best policy, by its students' own loss."
)
_NOISE = (
  "In batches of 20 a trajectory is 2,000 decisions, of which each moves the student by a twentieth of a step: the "
  "gradient of one episode is mostly noise, and the reward of a validation batch is noisy too."
)


FIGURES = (
  Figure(
    "black_box_linear",
    "Learned teachers that do not know the target",
    "Figure 20",
    "The teacher is trained on its students' loss, and sees neither w* nor the distance.",
    run_black_box,
    7.0,
    {"Black-box unrolling beats": _DRIFT, "Black-box policy gradient": _NOISE},
  ),
)
