"""Sweeps of `launch.teach`: every method with every combination of the numbers that flags list."""

import functools
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

import last_jax as last
from last_jax import devices, stacking, teaching, tools
from last_jax.io import read_arrays, save_npz
from last_jax.stacking import Setting
from last_jax.teaching import METRICS

from . import command, methods, output, problem, stopping
from .console import Console, Forecast
from .flags import Flags, several
from .folder import Folder, Run, make_config

FILES = ("config.json", "curves.npz", "summary.json", "sweep.png", "lessons.npz")
# At most in a call, after which its settings are saved: enough for students to be taught as fast as more of them are.
_STUDENTS_AT_ONCE = 1024

Name = tuple[int, str]  # The number of a combination, and a method.


class Sweep(NamedTuple):
  """Everything that a sweep needs, checked."""

  title: str
  combinations: list[dict[str, Any]]  # The numbers that differ, by flag.
  methods: dict[str, methods.Method]  # Those of the first combination, for names and looks.
  settings: dict[Name, Setting]
  keys: jax.Array  # [students]
  facts: list[dict[str, Any]]  # About the target of each combination.
  folder: Folder
  config: dict[str, Any]
  notes: list[str]

  def path(self, name: Any) -> pathlib.Path:
    """Return the file of a setting."""
    numbers = ",".join(f"{flag}={value!r}" for flag, value in self.combinations[name[0]].items())
    return self.folder.path / self.folder.saved / numbers / f"{name[1].replace(':', ',')}.npz"


def run(values: Flags, mesh: Mesh | None, console: Console) -> int:
  """Teach every setting that has no file yet, and show all; return the exit status."""
  with console.doing("reading data") as task, command.user_errors():
    swept = _prepare(values, task.now)
  for note in swept.notes:
    console.say(f"note: {note}")
  with swept.folder.begin(swept.config, resume=values.resume, overwrite=values.overwrite) as held:
    with command.user_errors():
      missing = _find_missing(swept)
    begin, done = time.perf_counter(), len(swept.settings) - len(missing)
    try:
      with console.doing("compiling", total=len(swept.settings)) as task, stopping.together():
        forecast = Forecast(1)
        forecast.begin(done / len(swept.settings))
        taught = stacking.teach_settings(
          swept.keys, {name: swept.settings[name] for name in missing}, at_once=_STUDENTS_AT_ONCE, mesh=mesh
        )
        for name, result in taught:
          _save(swept.path(name), result)
          done += 1
          left = forecast.left(done / len(swept.settings), compiling=0.0)
          task.update(done, f"setting {done} of {len(swept.settings)}", left)
          _, stopped = stopping.agree(save=False)
          if stopped:
            raise stopped
    except KeyboardInterrupt as error:
      console.say(f"stopped: {done} of {len(swept.settings)} settings are finished; --resume continues")
      return stopping.status_of(error)
    before = len(swept.settings) - len(missing)
    resumed = f", {before} were there" if before else ""
    console.say(f"{len(missing)} settings in {time.perf_counter() - begin:.1f} s, compiling included{resumed}")
    status = _write(held, swept, console) if devices.is_first() else 0
    return int(devices.from_first(np.asarray(status)))


# --- From flags to settings.


def _prepare(values: Flags, now: Callable[[str], None]) -> Sweep:
  """Check the flags and prepare everything up to the first step; `now` is told what is done. Errors name the flag."""
  problem.check_starts(values)
  problem.check_names(values)
  methods.check_names(values)
  folder = Folder(pathlib.Path(values.out), (*FILES, "curves.png", "time.png"), "settings")  # Those of other runs too.
  folder.check_flags("launch.teach", values, methods.CHOSEN, methods.ADDED)
  numbers = problem.settings_of(values)
  differing = [name for name in problem.SWEPT if len(several(values[name].value)) > 1]
  if values.lessons and "batch_size" in differing:
    raise ValueError("--lessons needs one --batch_size: lessons of all settings are in one array")
  first = problem.read(values, numbers=numbers[0])
  choice = methods.choose(values, first.learner, first.dataset)
  methods.build(values, choice, first.learner, None)  # Raises before targets are fitted, which can take long.
  givens = [first, *(problem.read(values, numbers=each, dataset=first.dataset) for each in numbers[1:])]
  idle = [*problem.find_idle(values, first), *choice.find_idle()]
  idle += ["init_scale"] * (first.dataset.init is not None or values.start_near is not None)
  idle += ["start_near"] * (first.dataset.init is not None)
  record_every = values.record_every or max(1, values.steps // 100)
  rates = list(dict.fromkeys(given.learning_rate for given in givens))
  settled: dict[str, Any] = {
    "learning_rate": rates if len(rates) > 1 else rates[0],
    "learner": first.learner_name,
    "record_every": record_every,
  } | choice.settled
  data = methods.hash_data(values, choice, first.digest)
  config = make_config("launch.teach", values, settled | dict.fromkeys(idle), data)
  folder.check(config, resume=values.resume, overwrite=values.overwrite)

  now("finding every w*, and checking every method")
  # The keys of a run with one of these numbers: its students are the same.
  target_key, start_key, lesson_key = jax.random.split(jax.random.key(values.seed), 3)
  targets: dict[float | None, Any] = {}  # By weight decay, on which alone of these numbers w* depends.
  settings: dict[Name, Setting] = {}
  checked: set[Any] = set()
  built: dict[str, methods.Method] = {}
  for place, (given, each) in enumerate(zip(givens, numbers, strict=True)):
    decay = each["weight_decay"]
    if decay not in targets:
      target, facts, notes = problem.find_target(values, given, target_key)
      targets[decay] = target, facts, notes, problem.start(values, given, target, start_key)
    target, _, _, params = targets[decay]
    with command.user_errors({"tolerance": "tolerance"}):
      teachable = last.Problem(
        given.learner, given.dataset.train, target=target, test=given.dataset.test, tolerance=values.tolerance
      )
    size = each["batch_size"]
    plan = teaching.make_plan(teachable, values.steps, size, record_every, None, None, values.lessons)
    toward = methods.find_toward(choice, given.learner, given.dataset.train, target)
    built = methods.build(values, choice, given.learner, target, toward)
    for key, method in built.items():
      structure = key, size, jax.tree.structure(given.learner)
      if structure not in checked:
        methods.check(key, method, teachable, size)
        checked.add(structure)
      settings[place, key] = Setting(teachable, method.teacher, plan, params)
  students = f"{values.students} student{'s' * (values.students != 1)}"
  return Sweep(
    title=f"{pathlib.Path(values.dataset).name}, {first.learner_name}, {students}",
    combinations=[{name: each[name] for name in differing} for each in numbers],
    methods=built,
    settings=settings,
    keys=jax.random.split(lesson_key, values.students),
    facts=[targets[each["weight_decay"]][1] for each in numbers],
    folder=folder,
    config=config,
    notes=list(dict.fromkeys(note for found in targets.values() for note in found[2]))
    + choice.notes(values)
    + problem.note_idle(values, idle),
  )


# --- Files of settings.


def _find_missing(swept: Sweep) -> list[Name]:
  """Return the settings without a file; the first process decides. Raise where a file is not one of a setting."""
  exists = np.zeros(len(swept.settings), bool)
  if devices.is_first():
    exists[:] = [swept.path(name).is_file() for name in swept.settings]
    for name, there in zip(swept.settings, exists, strict=True):
      if there:  # Now, and not after all others are taught.
        _read(swept, name)
  exists = devices.from_first(exists)
  return [name for name, there in zip(swept.settings, exists, strict=True) if not there]


def _read(swept: Sweep, name: Name) -> dict[str, np.ndarray]:
  """Return the records of a setting; raise a ValueError that names the file if they are not such."""
  path, plan = swept.path(name), swept.settings[name].plan
  arrays = read_arrays(path)
  step = arrays.get("step")
  if step is None or step.ndim != 1 or not step.size or int(step[-1]) != plan.steps:
    raise ValueError(f"{path} does not hold the records of {plan.steps} steps: remove it, and it is made again")
  for metric in plan.metrics:
    shape = (swept.keys.shape[0], len(step))
    if metric not in arrays or arrays[metric].shape != shape:
      raise ValueError(f"{path} must hold {metric} {list(shape)}: remove it, and it is made again")
  return arrays


def _save(path: pathlib.Path, result: last.Result) -> None:
  """Write the records of a setting, whole or not at all."""
  if not devices.is_first():
    return
  arrays = {name: getattr(result, name) for name in (*METRICS, "hitting_time")} | {"step": result.step[0]}
  arrays |= {} if result.lessons is None else result.lessons._asdict()
  path.parent.parent.mkdir(exist_ok=True)  # Not its parents: a folder that was removed is not made again.
  path.parent.mkdir(exist_ok=True)
  save_npz(path, **{name: np.asarray(value) for name, value in arrays.items() if value is not None})


# --- Results.


def _write(held: Run, swept: Sweep, console: Console) -> int:
  """Write the results, show them, and then draw them; return the exit status."""
  with command.user_errors():
    taught = {name: _read(swept, name) for name in swept.settings}
  summary = _summarize(swept, taught)
  out = swept.folder.path
  with held.publish(summary) as folder:
    for file, names in (("curves.npz", (*METRICS, "hitting_time")), ("lessons.npz", ("index", "label"))):
      arrays = {
        f"{key}/{name}": np.stack([taught[place, key][name] for place in range(len(swept.combinations))])
        for key in swept.methods
        for name in names
        if name in taught[0, key]
      }
      if arrays:
        axes = {flag: np.array([each[flag] for each in swept.combinations]) for flag in swept.combinations[0]}
        save_npz(folder / file, step=next(iter(taught.values()))["step"], **axes, **arrays)
  console.print(_make_table(swept, summary))
  for each in summary["settings"]:
    if each["diverged"]:
      numbers = " ".join(f"--{flag}={value:g}" for flag, value in each["numbers"].items())
      text = f"note: {each['name']} at {numbers}: {each['diverged']} students diverged, the first by step "
      console.say(text + str(each["first_diverged_at"]))
  with console.doing("drawing"):
    status = output.draw_all({out / "sweep.png": functools.partial(_draw, swept, taught)})
  output.say_written(console, [*(out / name for name in FILES), out / swept.folder.saved])
  lost = any(each["diverged"] for each in summary["settings"])
  return status or (command.DIVERGED if lost else 0)


def _summarize(swept: Sweep, taught: Mapping[Name, Mapping[str, np.ndarray]]) -> dict[str, Any]:
  """Return the content of summary.json."""
  settings = []
  for (place, key), arrays in taught.items():
    ends = {metric: arrays[metric][:, -1] for metric in METRICS if metric in arrays}
    metrics = {metric: arrays[metric] for metric in METRICS if metric in arrays}
    lost = output.summarize_diverged(output.find_diverged(arrays["step"], metrics))
    entry: dict[str, Any] = {
      "method": key,
      "name": swept.methods[key].teacher.name,
      "numbers": swept.combinations[place],
    }
    entry |= {metric: output.interval(values) for metric, values in ends.items()}
    if "hitting_time" in arrays:
      entry["reached"] = int(np.count_nonzero(arrays["hitting_time"] >= 0))
    settings.append(entry | lost | {"target": swept.facts[place]})
  return {
    "title": swept.title,
    "interrupted": False,
    "students": swept.keys.shape[0],
    "steps": int(next(iter(taught.values()))["step"][-1]),
    "intervals": "mean and half-width of the 95 % confidence interval over students (Student's t)",
    "settings": settings,
  }


def _make_table(swept: Sweep, summary: Mapping[str, Any]) -> Any:
  """Return a table of the final distances: a row for each combination, a column for each method."""
  from rich import box
  from rich.table import Table

  table = Table(box=box.SIMPLE_HEAD, title=swept.title, title_justify="left", title_style="bold", pad_edge=False)
  table.caption = f"distance after {summary['steps']} steps: mean over students ± half the 95 % confidence interval"
  table.caption_justify = "left"
  for flag in swept.combinations[0]:
    table.add_column(flag)
  for method in swept.methods.values():
    table.add_column(method.teacher.name, justify="right")
  cells = iter(summary["settings"])
  for numbers in swept.combinations:
    row = [output.cell(next(cells), "distance") for _ in swept.methods]
    table.add_row(*(f"{value:g}" for value in numbers.values()), *row)
  return table


def _draw(swept: Sweep, taught: Mapping[Name, Mapping[str, np.ndarray]], path: pathlib.Path) -> None:
  """Draw the metrics at the end by the number that has most values; a line for each method and each of the others."""
  flags: Sequence[str] = list(swept.combinations[0])
  along = max(flags, key=lambda flag: len({each[flag] for each in swept.combinations}))
  others = [flag for flag in flags if flag != along]
  lines: dict[tuple[Any, ...], list[int]] = {}
  for place, each in enumerate(swept.combinations):
    lines.setdefault(tuple(each[flag] for flag in others), []).append(place)
  curves: list[tools.Curves] = []
  for key, method in swept.methods.items():
    for numbers, places in lines.items():
      places = sorted(places, key=lambda place: swept.combinations[place][along])
      x = np.array([swept.combinations[place][along] for place in places])
      metrics = {
        metric: np.stack([taught[place, key][metric][:, -1] for place in places], axis=1)
        for metric in METRICS
        if metric in taught[0, key]
      }
      name = ", ".join([method.teacher.name, *(f"{flag} {n:g}" for flag, n in zip(others, numbers, strict=True))])
      look: Any = (method.family, method.variant) if len(lines) == 1 else ("greedy", len(curves))
      curves.append(tools.Curves(name, {along.replace("_", " "): x}, metrics, *look))
  positive = [x for each in curves for x in next(iter(each.axes.values())) if x > 0]
  x_log = tools.spans_decades(positive) or len(set(positive)) > 2
  charts = tools.metric_charts(curves, x_log=x_log)
  tools.plot_charts(path, charts, title=f"{swept.title}: at the end", who="students")
