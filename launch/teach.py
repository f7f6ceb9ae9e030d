"""Teaches students by every method asked for, and shows how fast each brings them to the target.

  python -m launch.teach
      Seconds: logistic regression on half moons, taught by SGD (random examples, true labels), IMT (chosen examples),
      LAST (chosen labels: --teacher=greedy) and mixed teaching (both), with labels from each of three sets.

  python -m launch.teach --list
      The names of learners, teachers, sets of labels and data sets, with a line each.

  python -m launch.teach --dataset=plants.csv --label=species --learner=my_module:make_network --lessons
      Your own table and your own network, with SGD and label smoothing beside LAST, and the curriculum in lessons.npz.
      my_module.py is in this folder; make_network(num_features, num_outputs, learning_rate) returns a learner, as
      last_jax.learners.from_flax makes them. A part of the table is held out for testing, columns are standardized.

  python -m launch.teach --dataset=mine.npz --learner=softmax --teacher=greedy --constraint=simplex
      Your own arrays: mine.npz holds x and y, and may hold x_test, y_test, classes, target and init.

  python -m launch.teach --teacher=sgd,greedy --constraint=magnitude:0.5,magnitude:2,none --dataset=regression
      How far labels may lie from the truth, and what that gains.

  python -m launch.teach --dataset=mnist --digits=1,2,3 --learner=mlp --hidden=32 --batch_size=4 --students=5
      A network on three digits of MNIST (a subset comes with the package).

  python -m launch.teach --teacher=sgd,imt,policy --policy=runs/train_teacher --dataset=mnist --learner=softmax \\
      --nobias --learning_rate=5e-4 --start_near=0.05
      A teacher that launch.train_teacher has trained, beside others, by iteration and by wall time.

  python -m launch.teach --learning_rate=1e-4 --steps=100000 --students=10 --out=runs/paper [--resume]
      The paper's own rate, which takes longer. Stopped or killed, it continues with --resume, to the same results.

  python -m launch.teach --learning_rate=0.01,0.03,0.1,0.3 --weight_decay=0,1e-3 --teacher=sgd,greedy
      A sweep: every method with every combination of the numbers, in one program for each kind of method. Into --out go
      sweep.png, curves.npz (METHOD/distance is [settings, students, records]), summary.json and config.json, and the
      file of each setting in settings/, as soon as it is there. Stopped or killed, --resume teaches what is missing.

Every method teaches the same students from the same random examples. Into --out go curves.png (by iteration),
time.png (by wall time), curves.npz (arrays METHOD/distance, METHOD/objective, METHOD/accuracy, [students, records],
and step), summary.json, config.json (with the command that repeats the run), state/ (for --resume) and, with
--lessons, lessons.npz, from which students elsewhere can learn: docs/lessons.md says how to read it. After Ctrl-C the
files hold the methods that are finished. Exit status: 0; 1 after a failure; 2 for wrong flags or input; 3 if students
diverged (all is written; summary.json says how many and from which step, curves.npz which, as METHOD/diverged_at);
130 after Ctrl-C.
"""

import contextlib
import functools
import os
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

import last_jax as last
from last_jax import devices, loop, models, teaching, tools
from last_jax.io import save_npz
from last_jax.tools import catalogue
from last_jax.tools.chunks import Timed
from last_jax.watching import chunk_length

from . import command, flags, methods, output, problem, stopping, sweep
from .console import Console, Forecast
from .folder import Folder, Run, make_config
from .methods import Method
from .output import Taught
from .states import Course, to_arrays

TABLES = {
  "Learners": catalogue.LEARNERS,
  "Teachers": catalogue.TEACHERS,
  "Constraints": catalogue.CONSTRAINTS,
  "Data sets": catalogue.DATASETS | catalogue.SKLEARN_SETS | catalogue.FILES,
}
FILES = ("config.json", "curves.npz", "summary.json", "curves.png", "time.png", "lessons.npz")
_MAX_PARAMETERS = 500  # For which the unreachable distance is computed: its cost grows with their number cubed.
_RATES = (
  f"Default: {', '.join(f'{rate:g} for {name}' for name, rate in problem.LEARNING_RATES.items())}, "
  f"{problem.FILE_LEARNING_RATE:g} for files and sets of scikit-learn, at which methods separate within the default "
  "number of steps. The paper has 1e-4 for half moons and gaussian, 1e-3 for regression and MNIST, and many more steps."
)


def make_flags() -> flags.Flags:
  """Return the flags of this command."""
  values = flags.Flags()
  problem.define_flags(values, dataset="half_moons", learner=None, bias=True, learning_rate=_RATES, lists=True)
  methods.define_flags(values)
  values.group("Length and records", "--steps=1000 --students=100 --tolerance=0.1")
  values.whole("steps", 400, "Number of iterations.")
  values.whole("students", 20, "Number of learners that each method teaches; means and bands are over them.")
  values.wholes("batch_size", 1, "Number of examples shown in an iteration. A list sweeps over it.")
  values.whole("record_every", None, "Iterations between two records. Default: about 100 records in all.")
  values.real("tolerance", None, "Report the hitting time too: the first iteration with a distance of at most this.")
  values.switch("lessons", False, "Write the curriculum, iteration by iteration, into lessons.npz: docs/lessons.md.")
  values.switch("examples", False, "With --lessons: write the examples and the target into lessons.npz too.")
  values.real(
    "init_scale", 1.0,
    "Students start at the learner's random parameters times this (0: at zero), unless the file has init.",
  )  # fmt: skip
  values.real("start_near", None, "Students start at the target plus N(0, this^2), as the paper's do for policies.")
  flags.define_run(values, os.path.join("runs", "teach"))
  flags.define_devices(values, "one for each core, but not more than there are students")
  return values


def main(arguments: Sequence[str]) -> int:
  """Run the command with arguments as in `sys.argv`; return the exit status."""
  return command.run_command(_teach, make_flags(), __doc__ or "", arguments, TABLES)


def run() -> int:
  """Run the installed command, `last-teach`."""
  return main(sys.argv)


class Setup(NamedTuple):
  """Everything that a run needs, checked."""

  title: str
  problem: last.Problem
  keys: jax.Array  # [students]
  params: Any  # The students' starts, with a leading [students] axis.
  steps: int
  settings: dict[str, Any]  # Of `last.run`.
  methods: dict[str, Method]  # By their names in files.
  certificates: dict[str, Any]  # By method, a `last.Certificate` without numbers, or None.
  target_facts: dict[str, Any]
  folder: Folder
  config: dict[str, Any]
  about_lessons: dict[str, Any]  # Settings of `last.Curriculum`.
  toward: str  # What labels steer toward.
  notes: list[str]

  @property
  def is_network(self) -> bool:
    """Whether students are judged by what they answer, and not by their parameters."""
    return not isinstance(self.problem.learner.model, models.Linear)


def _teach(values: flags.Flags) -> int:
  console = Console(quiet=bool(values.process_id))
  mesh = flags.start_devices(values, console, cpu_devices=min(values.students, devices.num_cores()))
  with jax.enable_x64(True) if values.x64 else contextlib.nullcontext():
    if len(problem.settings_of(values)) > 1:
      return sweep.run(values, mesh, console)
    with console.doing("reading data") as task, command.user_errors():
      setup = _prepare(values, mesh, task.now)
    for note in setup.notes:
      console.say(f"note: {note}")
    status = 0
    with setup.folder.begin(setup.config, resume=values.resume, overwrite=values.overwrite) as run:
      taught, failure = _teach_all(setup, values, console)
      if taught and devices.is_first():
        status = _write(run, setup, taught, console, interrupted=failure is not None)
  if isinstance(failure, Exception):
    raise failure
  if failure is not None:
    console.say(f"stopped: {len(taught)} of {len(setup.methods)} methods are finished; --resume continues")
    return stopping.status_of(failure)
  lost = any((output.diverged_at(each) >= 0).any() for each in taught.values())
  return status or (command.DIVERGED if lost else 0)


# --- From flags to a setup.


def _prepare(values: flags.Flags, mesh: Mesh | None, now: Callable[[str], None]) -> Setup:
  """Check the flags and prepare everything up to the first step; `now` is told what is done. Errors name the flag."""
  problem.check_starts(values)
  problem.check_names(values)
  methods.check_names(values)
  folder = Folder(pathlib.Path(values.out), (*FILES, "sweep.png"), "state")  # Also of a sweep that was there before.
  folder.check_flags("launch.teach", values, methods.CHOSEN, methods.ADDED)
  given = problem.read(values)
  dataset, learner = given.dataset, given.learner
  choice = methods.choose(values, learner, dataset)
  methods.build(values, choice, learner, None)  # Raises before the target is fitted, which can take long.
  idle = [*problem.find_idle(values, given), *choice.find_idle()]
  idle += ["init_scale"] * (dataset.init is not None or values.start_near is not None)
  idle += ["start_near"] * (dataset.init is not None)
  idle += ["examples"] * (not values.lessons)
  record_every = values.record_every or max(1, values.steps // 100)
  settled: dict[str, Any] = {
    "learning_rate": given.learning_rate,
    "learner": given.learner_name,
    "record_every": record_every,
    "examples": values.examples or None,  # As in runs of before this flag.
  } | choice.settled
  data = methods.hash_data(values, choice, given.digest)
  config = make_config("launch.teach", values, settled | dict.fromkeys(idle), data)
  folder.check(config, resume=values.resume, overwrite=values.overwrite)

  # One root key: the students' randomness does not depend on how the target is found.
  target_key, start_key, lesson_key = jax.random.split(jax.random.key(values.seed), 3)
  now("finding w*")
  target, facts, notes = problem.find_target(values, given, target_key)
  with command.user_errors({"tolerance": "tolerance"}):
    teachable = last.Problem(learner, dataset.train, target=target, test=dataset.test, tolerance=values.tolerance)
  params = problem.start(values, given, target, start_key)
  now("checking every method")
  toward = methods.find_toward(choice, learner, dataset.train, target)
  built = methods.build(values, choice, learner, target, toward)
  certificates = {name: methods.check(name, method, teachable, values.batch_size) for name, method in built.items()}
  far = problem.note_far(given, target, params) if choice.toward == "params" else []
  students = f"{values.students} student{'s' * (values.students != 1)}"
  return Setup(
    title=f"{given.title(values)}, {students}",
    problem=teachable,
    keys=jax.random.split(lesson_key, values.students),
    params=params,
    steps=values.steps,
    settings={
      "batch_size": values.batch_size,
      "record_every": record_every,
      "lessons": values.lessons,
      "mesh": mesh,
    },
    methods=built,
    certificates=certificates,
    target_facts=facts | _describe_target(teachable, params),
    folder=folder,
    config=config,
    about_lessons={"examples": values.examples, "target": target if values.examples else None} | given.words(values),
    toward=choice.toward,
    notes=notes + choice.notes(values) + problem.note_idle(values, idle) + far,
  )


def _describe_target(teachable: last.Problem, params: Any) -> dict[str, Any]:
  """Return the target's own metrics, and how near to it the students can come."""
  learner, target = teachable.learner, teachable.target
  measured = _measure(teachable, jax.tree.map(lambda leaf: leaf[None], target))
  facts = {name: float(values[0]) for name, values in measured.items() if name != "distance"}
  facts["rounding_floor"] = tools.rounding_floor(target)
  if learner.is_linear and sum(leaf.size for leaf in jax.tree.leaves(target)) <= _MAX_PARAMETERS:
    facts["unreachable_distance"] = float(_unreachable(learner, params, target, teachable.pool.x).mean())
  return facts


@jax.jit
def _unreachable(learner: last.learners.Learner, params: Any, target: Any, x: jax.Array) -> jax.Array:
  return jax.lax.map(lambda start: last.unreachable_distance(learner, start, target, x), params)


@jax.jit
def _measure(teachable: last.Problem, params: Any) -> dict[str, jax.Array]:
  """Return the metrics of parameters with a leading [students] axis, `[students]` each."""
  plan = teaching.make_plan(teachable, steps=1, metrics=None)
  return jax.vmap(lambda w: loop.measure(teachable, w, plan))(params)


# --- Teaching.


def _teach_all(setup: Setup, values: flags.Flags, console: Console) -> tuple[dict[str, Taught], BaseException | None]:
  """Return what was finished, and what stopped the rest: Ctrl-C or an error."""
  taught: dict[str, Taught] = {}
  try:
    with console.doing("compiling", total=len(setup.methods)) as task, stopping.together():
      advance = Timed(functools.partial(last.run, **setup.settings))  # Methods that differ in numbers share programs.
      forecast = Forecast(len(setup.methods))
      for place, (key, method) in enumerate(setup.methods.items()):
        title = f"[{place + 1}/{len(setup.methods)}] {method.teacher.name}"
        if not console.is_terminal:
          console.say(f"{title}: compiling")
        course = _make_course(setup, key)
        with command.user_errors(), command.naming("resume", True):
          resumed = values.resume and course.resume()
        compiled = advance.compile_seconds
        forecast.begin(course.steps / setup.steps)

        def on_steps(
          steps: int, what: str = "teaching", title: str = title, part: tuple[int, float] = (place, compiled)
        ) -> None:
          share = steps / setup.steps
          # While a program compiles nobody else says how long it still takes.
          left = functools.partial(forecast.left, share, advance.compile_seconds - part[1])
          task.update(part[0] + share, f"{title}: {what}", left if what == "compiling" else left())

        on_steps(course.steps, "compiling")
        taught[key] = _finish(setup, key, course, advance, values.checkpoint_seconds, on_steps)
        forecast.end()
        timing = f"{taught[key].run_seconds:.2f} s, after {taught[key].compile_seconds:.1f} s of compiling"
        console.say(f"{title}: {setup.steps} steps in {timing}{', resumed' * resumed}")
  except (Exception, KeyboardInterrupt) as error:
    return taught, error
  return taught, None


def _make_course(setup: Setup, key: str) -> Course:
  folder = setup.folder.path / setup.folder.saved / key.replace(":", ",")  # Not every file system takes colons.
  state = last.init(setup.keys, setup.problem, setup.methods[key].teacher, setup.params)
  start = {name: values[:, None] for name, values in devices.gather(_measure(setup.problem, setup.params)).items()}
  return Course(folder, state, start | {"step": np.zeros(1, int)}, setup.settings["mesh"])


def _finish(
  setup: Setup, key: str, course: Course, advance: Timed, save_seconds: float, on_steps: Callable[[int], None]
) -> Taught:
  """Take all steps that are left, in chunks: progress is shown and the state is saved between them."""
  method = setup.methods[key]
  shared = devices.copy_to_all((setup.problem, method.teacher), setup.settings["mesh"])
  chunk, last_save = chunk_length(setup.steps, setup.settings["record_every"]), time.perf_counter()
  try:
    while course.steps < setup.steps:
      before = (advance.compile_seconds, advance.run_seconds)
      state, records = advance(course.state, *shared, steps=min(chunk, setup.steps - course.steps))
      seconds = (advance.compile_seconds - before[0], advance.run_seconds - before[1])
      course.append(state, to_arrays(records, seconds))
      on_steps(course.steps)
      save, stopped = stopping.agree(time.perf_counter() - last_save >= save_seconds)
      if save:
        course.save()
        last_save = time.perf_counter()
      if stopped:
        raise stopped
  except KeyboardInterrupt:
    if jax.process_count() == 1:  # Several have saved together, or each may be elsewhere.
      course.save()
    raise
  course.save()
  arrays, (hitting_time, params) = course.records(), devices.gather((course.state.hitting_time, course.state.params))
  compile_seconds, run_seconds = arrays.pop("seconds", np.zeros((0, 2))).sum(0)
  return Taught(
    method.teacher.name,
    method.family,
    method.variant,
    setup.certificates[key],
    arrays,
    hitting_time,
    params,
    float(compile_seconds),
    float(run_seconds),
  )


def _write(run: Run, setup: Setup, taught: dict[str, Taught], console: Console, *, interrupted: bool) -> int:
  """Write the results, show them, and then draw them; return the exit status."""
  lessons = output.to_curriculum(setup.problem, setup.params, taught, **setup.about_lessons)
  summary = output.summarize(setup.title, taught, setup.target_facts, interrupted, setup.problem.pool.classes)
  with run.publish(summary) as folder:
    save_npz(folder / "curves.npz", **output.to_curves(taught))
    if lessons is not None:
      last.save(folder / "lessons.npz", lessons)
  console.print(output.make_table(summary))
  advice = output.make_advice(taught, setup.toward) if setup.is_network else []
  for note in output.make_notes(summary) + advice:
    console.say(f"note: {note}")
  out, precision = setup.folder.path, f"float{8 * setup.problem.pool.x.dtype.itemsize}"
  with console.doing("drawing"):
    status = output.draw_all(output.pictures(out, setup.title, list(taught.values()), setup.target_facts, precision))
  output.say_written(console, [out / name for name in FILES])
  return status


if __name__ == "__main__":
  sys.exit(run())
