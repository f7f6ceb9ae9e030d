"""Teaches students by every method asked for, and shows how fast each brings them to the target.

  python -m launch.teach
      Seconds: logistic regression on half moons, taught by SGD (random examples, true labels), IMT (chosen examples),
      LAST (chosen labels: --teacher=greedy) and mixed teaching (both), with labels from each of three sets.

  python -m launch.teach --teacher=sgd,greedy --constraint=magnitude:0.5,magnitude:2,none --dataset=regression
      How far labels may stray from the truth, and what that buys.

  python -m launch.teach --dataset=mnist --digits=1,2,3 --learner=mlp --hidden=32 --batch_size=4 --students=5
      A network on three digits of MNIST (a subset comes with the package).

  python -m launch.teach --dataset=mine.npz --learner=my_module:make_learner --learning_rate=0.01 --lessons
      Your own data and model, and the curriculum in lessons.npz. mine.npz holds x and y, and may hold x_test, y_test,
      target and init. make_learner is called with those of num_features, num_outputs, learning_rate and weight_decay
      that it takes as keywords, and returns a learner, as last_jax.learners.from_apply makes them.

  python -m launch.teach --teacher=sgd,imt,policy --policy=runs/train_teacher --dataset=mnist --learner=softmax \\
      --nobias --learning_rate=5e-4 --start_near=0.05
      A teacher that launch.train_teacher has trained, beside others, by iteration and by wall time.

  python -m launch.teach --dataset=half_moons --learning_rate=1e-4 --steps=100000 --students=10
      The paper's own rate, for those who can wait.

Every method teaches the same students from the same random examples. Into --out go curves.png (by iteration),
time.png (by wall time), curves.npz (arrays METHOD/distance, METHOD/objective, METHOD/accuracy, [students, records],
and step), summary.json, config.json (with the command that repeats the run) and, with
--lessons, lessons.npz. Ctrl-C keeps the methods that are finished.
"""

import os
import sys
from collections.abc import Sequence
from typing import Any

from absl import flags

from last_jax import devices
from launch import command, problem, where
from launch.chunks import Taught, teach_in_chunks
from launch.progress import make_progress
from launch.teach_methods import TEACHERS
from launch.teach_output import make_table, summarize, write_files
from launch.teach_setup import Setup, prepare

_RATES = (
  f"Unless given: {', '.join(f'{rate:g} for {name}' for name, rate in problem.LEARNING_RATES.items())}, "
  f"{problem.FILE_LEARNING_RATE:g} for a file, at which methods part within the default number of steps. The paper has "
  "1e-4 for half moons and gaussian, 1e-3 for regression and MNIST, and many more steps."
)


def make_flags() -> flags.FlagValues:
  """The flags of this command, with values of their own: nothing is global, nothing is parsed at import."""
  values = flags.FlagValues()

  def define(kind: Any, name: str, default: Any, explanation: str, **settings: Any) -> None:
    kind(name, default, help=explanation, flag_values=values, **settings)

  whole, real, text, several = flags.DEFINE_integer, flags.DEFINE_float, flags.DEFINE_string, flags.DEFINE_list
  switch = flags.DEFINE_boolean
  problem.define_flags(values, dataset="half_moons", learner=None, bias=True, learning_rate=_RATES)
  define(
    several, "teacher", ["sgd", "imt", "greedy", "mixed"],
    f"Who teaches, one or more of {', '.join(TEACHERS)}. sgd: random examples, true labels. imt: the example of the "
    "pool that helps most, true label. greedy: LAST, random examples, the label that helps most. mixed: both chosen. "
    "planner: as greedy, several steps ahead. "
    "distillation: labels of a pretrained model, which here is the target itself. policy: labels of a network that "
    "launch.train_teacher has trained (--policy).",
  )  # fmt: skip
  define(
    several, "constraint", None,
    "Which labels greedy, mixed and planner may give, one curve for each: none (any numbers), one_hot (classes), "
    "simplex (soft labels), simplex:R (soft, within R of the truth), magnitude:R (within R of the truth), "
    "magnitude:R:P (in the norm P: 1, 2 or inf), magnitude:R:P:prediction (of what the student predicts). Unless "
    "given: one_hot,simplex,none for classes; magnitude:0.5,magnitude:1,magnitude:2,none for numbers.",
  )  # fmt: skip
  define(
    text, "policy", None, "policy: the folder that launch.train_teacher wrote, or a file that last_jax.save_policy did."
  )
  define(
    whole, "horizon", 4, "planner: for how many steps labels are chosen at once; their examples are drawn ahead.",
    lower_bound=1,
  )  # fmt: skip
  define(switch, "joint", False, "mixed: choose example and label together, rather than the example first.")
  define(real, "mu", 0.9, "label_smoothing: the share of the true label.")
  define(real, "temperature", 1.0, "distillation: more is softer.")
  define(whole, "steps", 400, "Iterations.", lower_bound=1)
  define(whole, "students", 20, "Learners that each method teaches; means and bands are over them.", lower_bound=1)
  define(whole, "batch_size", 1, "Examples shown in an iteration.", lower_bound=1)
  define(
    whole, "record_every", None, "Iterations between records. Unless given: about 100 records in all.", lower_bound=1
  )
  define(real, "tolerance", None, "Report also the hitting time: the first iteration with a distance of at most this.")
  define(switch, "lessons", False, "Write what was shown, iteration by iteration, into lessons.npz.")
  define(
    real, "init_scale", 1.0,
    "Students start at the learner's random parameters times this (0: at zero), unless the file has init.",
  )  # fmt: skip
  define(
    real, "start_near", None, "Students start at the target plus N(0, this^2), as the paper's students of policies do."
  )
  define(
    whole,
    "seed",
    0,
    "Of synthetic data, starts and examples. Same seed, same numbers.",
    lower_bound=0,
    upper_bound=2**31 - 1,
  )
  define(
    text, "out", os.path.join("runs", "teach"), "Folder for the run's files; those of an earlier run are replaced."
  )
  define(switch, "x64", False, "Compute in float64.")
  where.define_flags(values, "one for each core, as far as there are students")
  return values


def main(arguments: Sequence[str]) -> int:
  """Runs the command with arguments as in `sys.argv`; gives the exit status."""
  return command.run_command(_teach, make_flags(), __doc__ or "", arguments)


def run() -> int:
  """The installed command, `last-teach`."""
  return main(sys.argv)


def _teach(values: flags.FlagValues) -> int:
  mesh = where.start(values, cpu_devices=min(values.students, devices.num_cores()))
  with command.prepared(values, lambda values: prepare(values, mesh)) as (setup, console):
    taught, failure = _teach_all(setup, console)
    if isinstance(failure, Exception) and not taught:
      raise failure
    if not taught:
      console.print("stopped before any method was finished: nothing was written")
      return command.INTERRUPTED
    if devices.is_first():
      config = command.make_config("launch.teach", values, setup.settled, setup.data_facts)
      summary = summarize(setup, taught, interrupted=failure is not None)
      written = write_files(values.out, setup, taught, summary, config)
      _show(summary, len(setup.methods), written, console)
  if isinstance(failure, Exception):
    raise failure
  return 0 if failure is None else command.INTERRUPTED


def _show(summary: dict[str, Any], num_methods: int, written: list[str], console: Any) -> None:
  """What came out, what stopped it, and where it was written."""
  console.print(make_table(summary))
  for line in _remarks(summary):
    console.print(line, markup=False, soft_wrap=True)
  if summary["interrupted"]:
    console.print(f"stopped: {len(summary['methods'])} of {num_methods} methods were finished and are kept")
  console.print("wrote " + ", ".join(written), markup=False, soft_wrap=True)


def _teach_all(setup: Setup, console: Any) -> tuple[dict[str, Taught], BaseException | None]:
  """What was finished, and what stopped the rest: Ctrl-C or an error."""
  taught: dict[str, Taught] = {}
  room = setup.classroom
  try:
    with make_progress(console) as progress:
      bar = progress.add_task("", total=room.steps * len(setup.methods))
      for place, (key, method) in enumerate(setup.methods.items(), 1):
        name = f"[{place}/{len(setup.methods)}] {method.teacher.name}"

        def advance(steps: int, name: str = name) -> None:
          progress.update(bar, advance=steps, description=_escape(f"{name}: teaching"))

        progress.update(bar, description=_escape(f"{name}: compiling"))
        if not console.is_terminal:
          console.print(f"{name}: compiling", markup=False, soft_wrap=True)
        result = teach_in_chunks(room, method.teacher, advance)
        timing = f"{result.run_seconds:.2f} s, after {result.compile_seconds:.1f} s of compiling"
        console.print(f"{name}: {room.steps} steps in {timing}", markup=False, soft_wrap=True)
        taught[key] = result
  except (Exception, KeyboardInterrupt) as error:
    return taught, error
  return taught, None


def _escape(text: str) -> str:
  from rich.markup import escape

  return escape(text)


def _remarks(summary: dict[str, Any]) -> list[str]:
  """What the table does not say, and a reader may miss."""
  lines = []
  unreachable = summary["target"].get("unreachable_distance") or 0.0
  if unreachable > 100 * summary["target"]["rounding_floor"]:
    lines.append(f"note: {unreachable:.3g} of the distance (mean) lies where no label can teach: no method can pass it")
  for method in summary["methods"].values():
    if method["diverged"]:
      lines.append(f"note: {method['name']}: {method['diverged']} students diverged: try a smaller --learning_rate")
  return lines


if __name__ == "__main__":
  sys.exit(run())
