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
import dataclasses
import json
import os
import pathlib
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

import last_jax as last
from last_jax import checks, devices, tools, training
from last_jax.io import naming_file, opened, replaced
from last_jax.io.files import parse_json
from last_jax.tools import specs
from last_jax.tools.chunks import Timed
from last_jax.training import Log, Trainer
from last_jax.training.checkpoint import Checkpoints

from . import command, flags, output, problem, stopping
from .folder import Folder, Run, check_writable, fingerprint, make_config, repeat_command
from .methods import POLICY_FILE
from .output import say

METRICS_FILE = "metrics.jsonl"
FILES = (POLICY_FILE, METRICS_FILE, "training.png", "summary.json", "config.json")
METHODS: dict[str, type[training.Settings]] = {
  "unroll": training.Unrolled, "reinforce": training.Reinforce, "evolution": training.Evolution
}  # fmt: skip
VIEWS = ("omniscient", "black_box")
LEARNING_RATES = problem.LEARNING_RATES | {"mnist": 5e-4}

# Settings whose flags have another name, because the learner has flags of their own names.
_RENAMED = {
  "hidden": "teacher_hidden",
  "learning_rate": "teacher_learning_rate",
  "weight_decay": "teacher_weight_decay",
}
_WITHOUT_FLAG = ("optimizer", "policy", "evaluate_every")  # --keep_best and --report_every set the last.
# Settings that are objects, given as text: how it is read, and its forms.
_OBJECTS: dict[str, tuple[Callable[[str], Any], str]] = {
  "output": (specs.output, f"{specs.OUTPUTS}. Default: simplex for classes, free for numbers."),
  "actions": (specs.actions, f"{specs.ACTIONS}. Default: binary_augmented for two outputs, mixtures for more."),
  "reward": (specs.reward, f"{specs.REWARDS}. Default: distance, or loss in a black box."),
}


def make_flags() -> flags.Flags:
  """Return the flags of this command."""
  values = flags.Flags()
  values.choice(
    "method", "unroll", list(METHODS),
    "unroll: by gradients through the students' steps. reinforce: by policy gradient, choosing among --actions. "
    "evolution: by evolution strategies, which need no gradient of the reward; best for small networks.",
  )  # fmt: skip
  values.choice(
    "view", "omniscient", VIEWS,
    "omniscient: the teacher sees the target and is to bring students near it. black_box: it does not, and is to make "
    "them good on validation examples.",
  )  # fmt: skip
  rate = "Default: 5e-4 for MNIST, as launch.teach for others."
  problem.define_flags(values, dataset="mnist", learner="softmax", bias=False, learning_rate=rate)
  values.real(
    "start_near", 0.05,
    "Students start at the target plus N(0, this^2); with 0 or less, at the learner's own random parameters.",
  )  # fmt: skip
  values.whole("episodes", 1000, "Number of episodes of teaching; after each the teacher takes a step.")
  flag_of = {name: flag for method in METHODS.values() for name, flag in _flags_of(method).items()}
  flags.define_settings(values, METHODS, flag_of, {name: forms for name, (_, forms) in _OBJECTS.items()})
  values.choice("validation", "train", ("train", "test"), "black_box: the pool of the validation examples.")
  values.switch(
    "keep_best", None,
    "Whether the teacher is evaluated at every report, on students that are the same every time, and the best one is "
    "returned. Default: except for unroll with a target, whose metrics show how well it teaches.",
  )  # fmt: skip
  values.whole("report_every", training.EVALUATE_EVERY, f"Number of episodes between two lines of {METRICS_FILE}.")
  flags.define_run(values, os.path.join("runs", "train_teacher"))
  flags.define_devices(values, "one of a CPU, otherwise all; they must divide --students evenly")
  return values


def main(arguments: Sequence[str]) -> int:
  """Run the command with arguments as in `sys.argv`; return the exit status."""
  return command.run_command(_train_teacher, make_flags(), __doc__ or "", arguments)


def run() -> int:
  """Run the installed command, `last-train-teacher`."""
  return main(sys.argv)


# --- Settings of training: flags from the fields of `training.Unrolled`, `training.Reinforce`, `training.Evolution`.


def _flags_of(method: type[training.Settings]) -> dict[str, str]:
  """Return the flag of each setting that has one."""
  names = [field.name for field in dataclasses.fields(method)]
  return {name: _RENAMED.get(name, name) for name in names if name not in _WITHOUT_FLAG}


def _read_settings(method: type[training.Settings], given: Mapping[str, Any]) -> dict[str, Any]:
  """Return the settings that have a value among the flags."""
  settings = {}
  for name, flag in _flags_of(method).items():
    value = given[flag]
    if value is None:
      continue
    if name in _OBJECTS:
      with command.naming(flag, value):
        value = _OBJECTS[name][0](value)
    elif name == "hidden":
      with command.naming(flag, ",".join(value)):
        value = specs.widths(value)
    settings[name] = value
  return settings


# --- From flags to a trainer.


class Setup(NamedTuple):
  """Everything that a training needs, checked."""

  title: str
  trainer: Trainer
  key: jax.Array
  folder: Folder
  config: dict[str, Any]
  try_command: list[str]  # The words of a command that tries the finished teacher beside others.
  notes: list[str]


def _prepare(values: flags.Flags, mesh: Mesh | None) -> Setup:
  """Check the flags and prepare everything up to the first episode. Errors name the flag."""
  checks.check_not_negative("--checkpoint_seconds", values.checkpoint_seconds)
  checks.check_number("--start_near", values.start_near)
  given = problem.read(values, LEARNING_RATES)
  dataset, learner = given.dataset, given.learner
  if values.validation == "test" and dataset.test is None:
    raise ValueError(f"--validation=test: --dataset={values.dataset} has no test pool")
  omniscient, reinforce = values.view == "omniscient", values.method == "reinforce"
  unroll = values.method == "unroll"
  settled: dict[str, Any] = {"learning_rate": given.learning_rate, "learner": given.learner_name}
  settled["keep_best"] = (not unroll or not omniscient) if values.keep_best is None else values.keep_best
  if reinforce and values.actions is None:
    settled["actions"] = "binary_augmented" if learner.num_outputs(dataset.train.x) == 2 else "mixtures"
  kind, evaluate_every = METHODS[values.method], values.report_every if settled["keep_best"] else 0
  method = kind(**_read_settings(kind, values.flag_values_dict() | settled), evaluate_every=evaluate_every)
  folder = Folder(pathlib.Path(values.out), FILES, "checkpoints", may_grow=("episodes",), growing=(METRICS_FILE,))
  if not _is_utf8(os.path.abspath(values.out)):
    raise ValueError(f"--out={values.out} must be a path in UTF-8: the library that writes checkpoints takes no other")
  check_writable(values.out)  # Before the target is fitted, which can take long.
  target_key, training_key = jax.random.split(jax.random.key(values.seed))
  target, _, notes = problem.find_target(values, given, target_key)
  used = _flags_of(kind)
  with command.user_errors(used):
    trainer = training.make_trainer(
      method,
      learner,
      dataset.train,
      target=target if omniscient else None,
      validation=dataset.test if values.validation == "test" else None,
      init_fn=training.near(target, values.start_near) if values.start_near > 0 else None,
      mesh=mesh,
    )
  settled |= {flag: getattr(trainer.method, name) for name, flag in used.items() if name not in _OBJECTS}
  others = {flag for other in METHODS.values() for flag in _flags_of(other).values()} - set(used.values())
  idle = [*problem.find_idle(values, given), *sorted(others), *(["validation"] if omniscient else [])]
  settled |= dict.fromkeys(idle)
  config = make_config("launch.train_teacher", values, settled, {"dataset": given.digest})
  folder.check(config, resume=values.resume, overwrite=values.overwrite)
  return Setup(
    title=f"{values.method}, {values.view.replace('_', ' ')}: {given.title(values)}",
    trainer=trainer,
    key=training_key,
    folder=folder,
    config=config,
    try_command=_make_try_command(values, settled, learner),
    notes=notes + problem.note_idle(values, idle),
  )


def _is_utf8(path: str) -> bool:
  try:
    path.encode()
  except UnicodeEncodeError:
    return False
  return True


def _make_try_command(values: flags.Flags, settled: dict[str, Any], learner: last.learners.Learner) -> list[str]:
  """Return the words of a command of `launch.teach` with the same data, learner and students."""
  words = repeat_command("launch.teach", values, settled, only=(*problem.FLAGS, "batch_size", "seed", "x64"))
  words += [f"--start_near={values.start_near!r}"] if values.start_near > 0 else []
  constraint = "simplex" if learner.loss.classification else "none"
  words += ["--teacher=sgd,imt,greedy,policy", f"--constraint={constraint}", "--steps=300"]
  return [*words, f"--policy={values.out}", f"--out={os.path.join(values.out, 'teach')}"]


# --- Training.


def _train_teacher(values: flags.Flags) -> int:
  mesh = flags.start_devices(values, cpu_devices=1)
  console = command.make_console()
  with jax.enable_x64(True) if values.x64 else contextlib.nullcontext():
    with command.user_errors():
      setup = _prepare(values, mesh)
    for note in setup.notes:
      say(console, f"note: {note}")
    with setup.folder.begin(setup.config, resume=values.resume, overwrite=values.overwrite) as held:
      return _train(held, setup, values, console)


def _train(held: Run, setup: Setup, values: flags.Flags, console: Any) -> int:
  """Train to the end, or until Ctrl-C; return the exit status."""
  trainer, key = devices.copy_to_all((setup.trainer, setup.key), setup.trainer.mesh)
  state = jax.jit(Trainer.init)(trainer, key)
  checkpoints = Checkpoints(setup.folder.path / setup.folder.saved, fingerprint(setup.config, setup.folder.may_grow))
  with command.user_errors():
    if values.resume and checkpoints.latest() is not None:
      state = checkpoints.restore(state)
      say(console, f"resuming after episode {int(state.episode)}")
    elif values.resume:
      say(console, "there is no checkpoint yet: training starts at the beginning")
    lines = _read_metrics(setup.folder.path / METRICS_FILE, int(state.episode)) if devices.is_first() else []
  if devices.is_first() and int(state.episode) > (lines[-1]["episode"] if lines else 0):
    say(console, f"note: {METRICS_FILE} has lost its lines before episode {int(state.episode)}: they are not drawn")
  advance, saved, last_save = Timed(Trainer.advance), int(state.episode), time.perf_counter()
  path = setup.folder.path / METRICS_FILE if devices.is_first() else pathlib.Path(os.devnull)
  try:
    with (
      output.make_progress(console) as progress,
      open(path, "a", encoding="utf-8") as file,
      stopping.together(),
    ):
      bar = progress.add_task("compiling", total=values.episodes, completed=int(state.episode))
      if not console.is_terminal:
        say(console, "compiling")
      while (done := int(state.episode)) < values.episodes:
        episodes = min(values.report_every - done % values.report_every, values.episodes - done)
        before = advance.run_seconds
        state, log = advance(trainer, state, episodes=episodes)
        line = _make_line(int(state.episode), log, episodes / (advance.run_seconds - before))
        lines.append(line)
        with naming_file(path):
          file.write(json.dumps(line) + "\n")
          file.flush()
        progress.update(bar, completed=done + episodes, description=_describe(line))
        if not console.is_terminal and (done + episodes) % (10 * values.report_every) < episodes:
          say(console, f"episode {line['episode']} of {values.episodes}: {_describe(line)}")
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
    say(console, f"stopped after episode {int(state.episode)}: --resume continues from the last checkpoint")
    return stopping.status_of(error)
  finally:
    checkpoints.close()
  best = devices.gather(state.best)
  return _finish(held, setup, state, best, lines, advance, console) if devices.is_first() else 0


def _save_in_spite(checkpoints: Checkpoints, state: training.TrainingState, console: Any) -> None:
  """Save after Ctrl-C, which may have come while a checkpoint was written: the one before it then stays."""
  try:
    checkpoints.save(state)
  except Exception as error:
    say(console, f"note: the last checkpoint could not be written: {error}")


def _make_line(episode: int, log: Log, rate: float) -> dict[str, Any]:
  """Return one line of metrics: means over the episodes since the last one."""
  line: dict[str, Any] = {"episode": episode, "loss": _mean(log.loss)}
  if log.distance is not None:
    line["distance"] = _mean(log.distance)
  if log.score is not None:
    line["score"] = _mean(log.score)
  line["skipped"] = int(np.sum(~np.asarray(log.applied)))
  return line | {"episodes_per_second": round(rate, 2)}


def _mean(values: Any) -> float | None:
  mean = float(np.mean(np.asarray(values)))
  return mean if np.isfinite(mean) else None  # JSON has no NaN.


def _describe(line: dict[str, Any]) -> str:
  parts = [f"{name} {line[name]:.4g}" for name in ("loss", "distance", "score") if line.get(name) is not None]
  return ", ".join([*parts, f"{line['episodes_per_second']:.0f} episodes/s"])


def _read_metrics(path: pathlib.Path, episode: int) -> list[dict[str, Any]]:
  """Return the lines up to the checkpoint, and remove later ones from the file: they will be written again.

  A last line without an end is dropped: the process was killed while it wrote it. Any other line that is not one of
  `_make_line` raises a ValueError that names it, and the file stays as it is.
  """
  lines: list[dict[str, Any]] = []
  if episode and path.exists():
    with opened(path) as stream:
      texts = stream.read().split(b"\n")[:-1]
    for number, text in enumerate(texts, 1):
      try:
        line = _check_line(parse_json(text), lines[-1]["episode"] if lines else 0)
      except ValueError as error:
        raise ValueError(f"{path}, line {number}, is not one of this command: it has {error}") from error
      if line["episode"] <= episode:
        lines.append(line)
  with replaced(path) as temporary:
    temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
  return lines


def _check_line(line: Any, before: int) -> dict[str, Any]:
  """Return a line of metrics, or raise; `before` is the episode of the one before it."""
  if not isinstance(line, dict) or type(line.get("episode")) is not int or line["episode"] <= before:
    raise ValueError(f"no episode after {before}")
  if type(line.get("skipped")) is not int or line["skipped"] < 0:
    raise ValueError("no number of skipped episodes")
  for name in ("loss", "distance", "score"):
    if not isinstance(line.get(name), (int, float, type(None))):
      raise ValueError(f"a {name} that is no number")
  return line


def _finish(
  held: Run,
  setup: Setup,
  state: training.TrainingState,
  best: Any,
  lines: list[dict[str, Any]],
  advance: Timed,
  console: Any,
) -> int:
  """Write the teacher and the files about its training, say where, and then draw; return the exit status."""
  out = setup.folder.path
  metrics = {name: [line.get(name) for line in lines] for name in ("loss", "distance", "score")}
  skipped = sum(line["skipped"] for line in lines)
  summary = {
    "title": setup.title,
    "interrupted": False,
    "episodes": int(state.episode),
    "last": {name: values[-1] for name, values in metrics.items() if values and values[-1] is not None},
    "best_score": float(state.best_score),
    "skipped": skipped,
    "seconds_since_resumed": advance.run_seconds,
    "compile_seconds": advance.compile_seconds,
  }
  with held.publish(summary) as folder:
    last.save_policy(folder / POLICY_FILE, best)
  if skipped:
    say(console, f"note: {skipped} episodes had no finite gradient and changed nothing: try a smaller --learning_rate")
  timing = f"{advance.run_seconds:.1f} s, after {advance.compile_seconds:.1f} s of compiling"
  say(console, f"{int(state.episode)} episodes; {timing}")

  def draw(path: pathlib.Path) -> None:
    tools.plot_training(path, [line["episode"] for line in lines], metrics, title=setup.title)

  status = output.draw_all({out / "training.png": draw})
  output.say_written(console, [out / name for name in FILES])
  say(console, f"try it: {shlex.join(setup.try_command)}")
  return status


if __name__ == "__main__":
  sys.exit(run())
