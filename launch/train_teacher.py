"""Trains a network that teaches: it observes the student and the example, and returns the label.

  python -m launch.train_teacher
      Seconds: an omniscient teacher of softmax regression on 24 random features of MNIST 3/5, by gradients through 20
      steps of its students at a time (the paper's setting).

  python -m launch.train_teacher --method=reinforce --actions=binary_augmented --out=runs/reinforce
      The same by policy gradient: the teacher chooses among ten labels.

  python -m launch.train_teacher --view=black_box --learning_rate=1e-3 --batch_size=20 --out=runs/black_box
      A teacher that never sees the target: it makes the students' loss on validation examples small.

  python -m launch.train_teacher --method=evolution --view=black_box --reward=accuracy --learning_rate=1e-3 \\
      --batch_size=20 --teacher_hidden= --features=x,label,prediction --output=simplex:2 --horizon=300 \\
      --teacher_learning_rate=0.05 --episodes=100 --out=runs/evolution
      The same by evolution strategies, on the accuracy itself: a teacher that is linear in what it sees.

  python -m launch.train_teacher --digits=1,2,3,4,5 --learner=mlp --activation=leaky_relu --start_near=0.1 \\
      --output=free --episodes=2000 --out=runs/mlp
      A teacher of networks.

  python -m launch.train_teacher --out=runs/reinforce --method=reinforce --actions=binary_augmented --resume
      Continues a training that was stopped or killed, to the same bits as without the interruption.

Into --out go policy.npz (the teacher), metrics.jsonl (a line every --report_every episodes, written at once),
training.png, summary.json, config.json, and checkpoints/. At the end it prints the command that tries the teacher
beside others.
"""

import contextlib
import json
import os
import pathlib
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax

import last_jax as last
from last_jax import devices, tools, training
from last_jax.io import naming_file
from last_jax.tools.chunks import Timed
from last_jax.training import Trainer
from last_jax.training.checkpoint import Checkpoints

from . import command, flags, metrics, output, stopping
from .console import Console, Forecast
from .folder import Run, fingerprint
from .methods import POLICY_FILE
from .training_setup import FILES, TABLES, Setup, make_flags, prepare


def main(arguments: Sequence[str]) -> int:
  """Run the command with arguments as in `sys.argv`; return the exit status."""
  return command.run_command(_train_teacher, make_flags(), __doc__ or "", arguments, TABLES)


def run() -> int:
  """Run the installed command, `last-train-teacher`."""
  return main(sys.argv)


def _train_teacher(values: flags.Flags) -> int:
  console = Console(quiet=bool(values.process_id))
  mesh = flags.start_devices(values, console, cpu_devices=1)
  with jax.enable_x64(True) if values.x64 else contextlib.nullcontext():
    with console.doing("reading data") as task, command.user_errors():
      setup = prepare(values, mesh, task.now)
    for note in setup.notes:
      console.say(f"note: {note}")
    with setup.folder.begin(setup.config, resume=values.resume, overwrite=values.overwrite) as held:
      return _train(held, setup, values, console)


def _train(held: Run, setup: Setup, values: flags.Flags, console: Console) -> int:
  """Train to the end, or until Ctrl-C; return the exit status."""
  trainer, key = devices.copy_to_all((setup.trainer, setup.key), setup.trainer.mesh)
  state = jax.jit(Trainer.init)(trainer, key)
  checkpoints = Checkpoints(setup.folder.path / setup.folder.saved, fingerprint(setup.config, setup.folder.may_grow))
  with command.user_errors():
    if values.resume and checkpoints.latest() is not None:
      state = checkpoints.restore(state)
      console.say(f"resuming after episode {int(state.episode)}")
    elif values.resume:
      console.say("there is no checkpoint yet: training starts at the beginning")
    lines = metrics.read(setup.folder.path / metrics.METRICS_FILE, int(state.episode)) if devices.is_first() else []
  if devices.is_first() and int(state.episode) > (lines[-1]["episode"] if lines else 0):
    console.say(
      f"note: {metrics.METRICS_FILE} has lost its lines before episode {int(state.episode)}: they are not drawn"
    )
  advance, saved, last_save = Timed(Trainer.advance), int(state.episode), time.perf_counter()
  path = setup.folder.path / metrics.METRICS_FILE if devices.is_first() else pathlib.Path(os.devnull)
  try:
    with (
      console.doing("compiling", total=values.episodes) as task,
      open(path, "a", encoding="utf-8") as file,
      stopping.together(),
    ):
      if not console.is_terminal:
        console.say("compiling")
      forecast = Forecast(1)
      forecast.begin(saved / values.episodes)
      while (done := int(state.episode)) < values.episodes:
        episodes = min(values.report_every - done % values.report_every, values.episodes - done)
        before = advance.run_seconds
        state, log = advance(trainer, state, episodes=episodes)
        line = metrics.make_line(int(state.episode), log, episodes / (advance.run_seconds - before))
        lines.append(line)
        with naming_file(path):
          file.write(json.dumps(line) + "\n")
          file.flush()
        left = forecast.left((done + episodes) / values.episodes, advance.compile_seconds)
        task.update(done + episodes, metrics.describe(line), left)
        if not console.is_terminal and (done + episodes) % (10 * values.report_every) < episodes:
          console.say(f"episode {line['episode']} of {values.episodes}: {metrics.describe(line)}")
        save, stopped = stopping.agree(time.perf_counter() - last_save >= values.checkpoint_seconds)
        if save:
          held.check()
          checkpoints.save(state)
          saved, last_save = int(state.episode), time.perf_counter()
        if stopped:
          raise stopped
    if int(state.episode) != saved:
      held.check()
      checkpoints.save(state)
  except KeyboardInterrupt as error:
    # Several have saved together, or each may be elsewhere.
    if jax.process_count() == 1 and int(state.episode) != saved:
      _save_in_spite(checkpoints, state, console)
    console.say(f"stopped after episode {int(state.episode)}: --resume continues from the last checkpoint")
    return stopping.status_of(error)
  finally:
    checkpoints.close()
  best = devices.gather(state.best)
  return _finish(held, setup, state, best, lines, advance, console) if devices.is_first() else 0


def _save_in_spite(checkpoints: Checkpoints, state: training.TrainingState, console: Console) -> None:
  """Save after Ctrl-C, which may have come while a checkpoint was written: the one before it then stays."""
  try:
    checkpoints.save(state)
  except Exception as error:
    console.say(f"note: the last checkpoint could not be written: {error}")


def _finish(
  held: Run,
  setup: Setup,
  state: training.TrainingState,
  best: Any,
  lines: list[dict[str, Any]],
  advance: Timed,
  console: Console,
) -> int:
  """Write the teacher and the files about its training, say where, and then draw; return the exit status."""
  out = setup.folder.path
  curves = {name: [line.get(name) for line in lines] for name in ("loss", "distance", "score")}
  skipped = sum(line["skipped"] for line in lines)
  summary = {
    "title": setup.title,
    "interrupted": False,
    "episodes": int(state.episode),
    "last": {name: values[-1] for name, values in curves.items() if values and values[-1] is not None},
    "best_score": float(state.best_score),
    "skipped": skipped,
    "seconds_since_resumed": advance.run_seconds,
    "compile_seconds": advance.compile_seconds,
  }
  with held.publish(summary) as folder:
    last.save_policy(folder / POLICY_FILE, best)
  if skipped:
    console.say(f"note: {skipped} episodes had no finite gradient and changed nothing: try a smaller --learning_rate")
  timing = f"{advance.run_seconds:.1f} s, after {advance.compile_seconds:.1f} s of compiling"
  console.say(f"{int(state.episode)} episodes; {timing}")

  def draw(path: pathlib.Path) -> None:
    tools.plot_training(path, [line["episode"] for line in lines], curves, title=setup.title)

  with console.doing("drawing"):
    status = output.draw_all({out / "training.png": draw})
  output.say_written(console, [out / name for name in FILES])
  console.say(f"try it: {shlex.join(setup.try_command)}")
  return status


if __name__ == "__main__":
  sys.exit(run())
