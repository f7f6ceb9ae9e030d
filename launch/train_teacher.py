"""Trains a network that teaches: it looks at the student and the example, and gives the label.

  python -m launch.train_teacher
      Seconds: an omniscient teacher of softmax regression on 24 random features of MNIST 3/5, by gradients through 20
      steps of its students at a time (the paper's setting).

  python -m launch.train_teacher --method=reinforce --actions=binary_augmented --out=runs/reinforce
      The same by policy gradient: the teacher chooses among ten labels.

  python -m launch.train_teacher --view=black_box --learning_rate=1e-3 --batch_size=20 --out=runs/black_box
      A teacher that never sees the target: it makes the students' loss on validation examples small.

  python -m launch.train_teacher --digits=1,2,3,4,5 --learner=mlp --activation=leaky_relu --start_near=0.1 \\
      --output=free --episodes=2000 --out=runs/mlp
      A teacher of networks.

  python -m launch.train_teacher --out=runs/reinforce --method=reinforce --actions=binary_augmented --resume
      Goes on where a training was stopped or killed, to the same bits as if it had not been.

Into --out go policy.npz (the teacher), metrics.jsonl (a line every --report_every episodes, as they come),
training.png, summary.json, config.json, and checkpoints/. At the end it prints the command that tries the teacher
beside others.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from launch import command, problem, where
from launch.train_run import train
from launch.train_setup import ACTIONS, METHODS, REWARDS, VIEWS, prepare


def make_flags() -> flags.FlagValues:
  """The flags of this command."""
  values = flags.FlagValues()

  def define(kind: Any, name: str, default: Any, explanation: str, **settings: Any) -> None:
    kind(name, default, help=explanation, flag_values=values, **settings)

  whole, real, text, several = flags.DEFINE_integer, flags.DEFINE_float, flags.DEFINE_string, flags.DEFINE_list
  switch, choice = flags.DEFINE_boolean, flags.DEFINE_enum
  define(
    choice, "method", "unroll",
    "unroll: by gradients through the students' steps. reinforce: by policy gradient, choosing among --actions.",
    enum_values=list(METHODS),
  )  # fmt: skip
  define(
    choice, "view", "omniscient",
    "omniscient: the teacher sees the target, and is to bring students near it. black_box: it does not, and is to make "
    "them good on validation examples (of the test pool if --validation=test).",
    enum_values=list(VIEWS),
  )  # fmt: skip
  problem.define_flags(
    values,
    dataset="mnist",
    learner="softmax",
    bias=False,
    learning_rate="Unless given: 5e-4 for MNIST, as launch.teach for others.",
  )
  define(
    real, "start_near", 0.05,
    "Students start at the target plus N(0, this^2); with 0 or less, at the learner's own random parameters.",
  )  # fmt: skip
  define(whole, "episodes", 1000, "Stretches of teaching, after each of which the teacher takes a step.", lower_bound=1)
  define(whole, "horizon", None, "Steps of an episode. Unless given: 20 for unroll, 100 for reinforce.", lower_bound=1)
  define(whole, "batch_size", 1, "Examples shown in a step.", lower_bound=1)
  define(whole, "students", 10, "Students taught at once.", lower_bound=1)
  define(
    real, "reset", None,
    "Share of the students who start anew after an episode. Unless given: 0.2 for unroll, 1 for reinforce.",
  )  # fmt: skip
  define(several, "teacher_hidden", ["128", "128"], "Widths of the teacher's hidden layers.")
  define(
    several, "features", None,
    "What the teacher looks at: x, label, prediction, params, target, progress (per action, how far it leads the right "
    "way). Unless given: the paper's for the method and the view.",
  )  # fmt: skip
  define(switch, "standardize", True, "Whether what it looks at is first brought to the same size.")
  define(
    text, "output", None,
    "unroll: which labels it gives: simplex (soft labels), free (any numbers), residue:ALPHA (ALPHA times the truth "
    "plus 1 - ALPHA times a soft label), residue:ALPHA:free. Unless given: simplex for classes, free for numbers.",
  )  # fmt: skip
  define(
    text, "actions", None,
    f"reinforce: which labels it chooses among: {', '.join(ACTIONS)} (mixtures:0.5,0.75,1 of the truth with uniform "
    "labels), or FILE.npz with the array actions [A, K]. Unless given: binary_augmented for two outputs, mixtures for "
    "more.",
  )  # fmt: skip
  define(
    text, "reward", None,
    f"reinforce: what for: {', '.join(REWARDS)} (steps:0.9, minus the steps to that accuracy). Unless given: distance, "
    "or loss in a black box.",
  )  # fmt: skip
  define(real, "discount", 0.999, "reinforce: gamma.")
  define(
    real, "baseline", None,
    "reinforce: taken off every reward; the paper's is -0.1. Unless given: the reward of the student's own start, and "
    "the mean of the other students' returns.",
  )  # fmt: skip
  define(real, "decay", 0.95, "unroll: an error counts this much less for every step that comes after it.")
  define(
    whole, "segment", None,
    "unroll, for long horizons: keep students only every so many steps for the way back; about the root of the horizon "
    "takes the least memory.", lower_bound=1,
  )  # fmt: skip
  define(
    choice, "validation", "train", "black_box: which pool the validation examples are of.",
    enum_values=["train", "test"],
  )  # fmt: skip
  define(real, "teacher_learning_rate", 1e-3, "Of the teacher's Adam.")
  define(
    real, "teacher_weight_decay", None,
    "Of the teacher's Adam. Unless given: 1e-4 for unroll, none for reinforce.",
  )  # fmt: skip
  define(
    switch, "keep_best", None,
    "Whether, at every report, the teacher is tried on students that are the same every time, and the best is kept. "
    "Unless given: for reinforce and in the black box, where only long teaching shows what an episode led to.",
  )  # fmt: skip
  define(whole, "report_every", 20, "Episodes between lines of metrics.jsonl.", lower_bound=1)
  define(real, "checkpoint_seconds", 20.0, "Seconds between checkpoints; 0: one with every report.")
  define(switch, "resume", False, "Go on from the last checkpoint in --out, if there is one.")
  define(whole, "seed", 0, "Of everything random. Same seed, same teacher.", lower_bound=0, upper_bound=2**31 - 1)
  define(text, "out", os.path.join("runs", "train_teacher"), "Folder for the run's files.")
  define(switch, "x64", False, "Compute in float64.")
  where.define_flags(values, "one of a CPU, otherwise all; they must divide --students evenly")
  return values


def main(arguments: Sequence[str]) -> int:
  """Runs the command with arguments as in `sys.argv`; gives the exit status."""
  return command.run_command(_main, make_flags(), __doc__ or "", arguments)


def run() -> int:
  """The installed command, `last-train-teacher`."""
  return main(sys.argv)


def _main(values: flags.FlagValues) -> int:
  mesh = where.start(values, cpu_devices=1)
  with command.prepared(values, lambda values: prepare(values, mesh)) as (setup, console):
    config = command.make_config("launch.train_teacher", values, setup.settled, setup.data_facts)
    return train(setup, config, console)


if __name__ == "__main__":
  sys.exit(run())
