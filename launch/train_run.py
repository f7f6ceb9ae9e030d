"""The training itself: in pieces, so that progress is seen, metrics are written, and a kill loses little."""

import json
import os
import pathlib
import shlex
import time
from typing import Any

import jax
import numpy as np

import last_jax as last
from last_jax import devices, report
from last_jax.data.files import replaced
from last_jax.training.checkpoint import Checkpoints
from last_jax.training.trainer import Log, State, Trainer
from launch import command
from launch.progress import make_progress
from launch.teach_methods import POLICY_FILE
from launch.train_setup import Setup

METRICS_FILE = "metrics.jsonl"


def train(setup: Setup, config: dict[str, Any], console: Any) -> int:
  """Trains to the end, or until Ctrl-C; gives the exit status."""
  checkpoints = Checkpoints(setup.out / "checkpoints", setup.fingerprint)
  trainer, key = devices.copy_to_all((setup.trainer, setup.key), setup.trainer.mesh)
  state = jax.jit(Trainer.start)(trainer, key)
  with command.user_errors():
    if setup.resume and checkpoints.latest() is not None:
      state = checkpoints.restore(state)
      console.print(f"going on after episode {int(state.episode)}")
    elif setup.resume:
      console.print("there is no checkpoint yet: training begins at the beginning")
    lines = _read_metrics(setup.out / METRICS_FILE, int(state.episode)) if devices.is_first() else []
  if devices.is_first():
    report.write_json(setup.out / "config.json", config)
  run = _Run(setup._replace(trainer=trainer), checkpoints, state, lines, console)
  try:
    run.to_the_end()
  except KeyboardInterrupt:
    return _stop(run, console)
  finally:
    checkpoints.close()
  if devices.is_first():
    _finish(setup, run, console)
  return 0


def _stop(run: "_Run", console: Any) -> int:
  """After Ctrl-C. Of several processes each may be elsewhere, so that they can save nothing together."""
  if jax.process_count() > 1:
    console.print("stopped: --resume goes on from the last checkpoint")
    return command.INTERRUPTED
  try:
    run.save()
  except Exception as error:  # Where the interrupt came while a checkpoint was being written: the one before it stays.
    console.print(f"note: the last checkpoint could not be written: {error}", markup=False, soft_wrap=True)
  console.print(f"stopped after episode {int(run.state.episode)}: --resume goes on from there")
  return command.INTERRUPTED


class _Run:
  """A training under way."""

  def __init__(self, setup: Setup, checkpoints: Checkpoints, state: State, lines: list[dict[str, Any]], console: Any):
    self.state, self.lines = state, lines
    self.seconds = 0.0  # Of training, compiling not included.
    self.compile_seconds = 0.0
    self._setup, self._checkpoints, self._console = setup, checkpoints, console
    self._saved = int(state.episode)
    # The trainer is an argument: what a program closes over is copied into it.
    self._advance = jax.jit(lambda trainer, state, episodes: trainer.advance(state, episodes), static_argnums=2)
    self._programs: dict[int, Any] = {}

  def save(self) -> None:
    """Writes a checkpoint, unless there is one already."""
    if int(self.state.episode) != self._saved:
      self._checkpoints.save(self.state)
      self._saved = int(self.state.episode)

  def to_the_end(self) -> None:
    """All episodes that are left."""
    total, begun, last_save = self._setup.episodes, int(self.state.episode), time.perf_counter()
    path = self._setup.out / METRICS_FILE if devices.is_first() else os.devnull
    with make_progress(self._console) as progress, open(path, "a", encoding="utf-8") as file:
      bar = progress.add_task("compiling", total=total, completed=begun)
      while (done := int(self.state.episode)) < total:
        episodes = min(self._setup.report_every - done % self._setup.report_every, total - done)
        line = self._advance_by(episodes)
        file.write(json.dumps(line) + "\n")
        file.flush()
        progress.update(bar, advance=episodes, description=_describe(line))
        if not self._console.is_terminal and (done + episodes) % (10 * self._setup.report_every) < episodes:
          self._console.print(f"episode {line['episode']} of {total}: {_describe(line)}", markup=False)
        # The first process says when: to save, all must come together.
        if devices.from_first(np.asarray(time.perf_counter() - last_save >= self._setup.checkpoint_seconds)):
          self.save()
          last_save = time.perf_counter()
    self.save()

  def _advance_by(self, episodes: int) -> dict[str, Any]:
    if episodes not in self._programs:
      if not self._console.is_terminal:
        self._console.print("compiling")
      begin = time.perf_counter()
      self._programs[episodes] = self._advance.lower(self._setup.trainer, self.state, episodes).compile()
      self.compile_seconds += time.perf_counter() - begin
    begin = time.perf_counter()
    state, log = jax.block_until_ready(self._programs[episodes](self._setup.trainer, self.state))
    took = time.perf_counter() - begin
    self.seconds += took
    line = _line(int(state.episode), log, episodes / took)
    self.state = state
    self.lines.append(line)
    return line


def _line(episode: int, log: Log, rate: float) -> dict[str, Any]:
  """One line of metrics: means over the episodes since the last."""
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
  """The lines up to the checkpoint. What came after it will come again, so it is taken out of the file."""
  lines: list[dict[str, Any]] = []
  if episode and path.is_file():
    for text in path.read_text(encoding="utf-8").splitlines():
      try:
        line = json.loads(text)
        known = line["episode"] <= episode
      except (ValueError, KeyError, TypeError):
        break  # The line that was being written when the training was killed.
      if known:
        lines.append(line)
  with replaced(path) as temporary:
    temporary.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
  return lines


def _finish(setup: Setup, run: _Run, console: Any) -> None:
  last.save_policy(setup.out / POLICY_FILE, run.state.best)
  metrics = {name: [line.get(name) for line in run.lines] for name in ("loss", "distance", "score")}
  report.plot_training(setup.out / "training.png", [line["episode"] for line in run.lines], metrics, title=setup.title)
  skipped = sum(line["skipped"] for line in run.lines)
  summary = {
    "title": setup.title,
    "episodes": int(run.state.episode),
    "last": {name: values[-1] for name, values in metrics.items() if values[-1] is not None},
    "best_score": float(run.state.best_score),
    "skipped": skipped,
    "seconds_since_resumed": run.seconds,
    "compile_seconds": run.compile_seconds,
  }
  report.write_json(setup.out / "summary.json", summary)
  if skipped:
    console.print(f"note: {skipped} episodes had no finite gradient and changed nothing: try a smaller --learning_rate")
  console.print(
    f"{int(run.state.episode)} episodes; {run.seconds:.1f} s, after {run.compile_seconds:.1f} s of compiling"
  )
  files = (POLICY_FILE, METRICS_FILE, "training.png", "summary.json", "config.json")
  console.print("wrote " + ", ".join(str(setup.out / name) for name in files), markup=False, soft_wrap=True)
  console.print(f"try it: {shlex.join(setup.try_command)}", markup=False, soft_wrap=True)
