"""Finds fixed labels, one for each of a few examples, and shows what students that train on them by themselves reach.

  python -m launch.distill
      Seconds: ten of the points of half moons, with labels by one solve, so that logistic regression trained on them
      for 100 steps has the lowest loss on the other points.

  python -m launch.distill --dataset=mnist --digits=0,1,2,3,4,5,6,7,8,9 --num_features=200 --feature_scale=0.1 \\
      --learner=mlp --hidden=100 --learning_rate=0.02 --examples=10 --road=loop --constraint=simplex --updates=500
      Soft labels of ten images, one of each digit, through the training of a network. Stopped or killed, it continues
      with --resume, to the same labels.

  python -m launch.distill --dataset=regression --toward=target --road=loop --batch_size=2 --examples=20
      Labels that end near the parameters fitted to the whole pool, w*.

Into --out go labels.npz (index [n] in the pool, x, truth and label [n, K], objective, classes where they have names),
labels.png, summary.json, config.json (with the command that repeats the run) and state/ (for --resume, of --road=loop).

Exit status: 0; 1 after a failure; 2 for wrong flags or input; 3 if students diverged on the distilled labels, all being
written; 130 after Ctrl-C.
"""

import contextlib
import pathlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import last_jax as last
from last_jax import checks, devices, distances
from last_jax.data.mnist import stratified
from last_jax.distilling import train_students
from last_jax.io import save_npz
from last_jax.tools import catalogue, specs
from last_jax.tools.pictures import draw_fixed_labels

from . import command, flags, output, problem, stopping
from .console import Console, Forecast
from .folder import Folder, Run, make_config

TABLES = {
  "Learners": catalogue.LEARNERS,
  "Constraints": catalogue.CONSTRAINTS,
  "Data sets": catalogue.DATASETS | catalogue.SKLEARN_SETS | catalogue.FILES,
}
FILES = ("config.json", "labels.npz", "summary.json", "labels.png")
_STATE = "state.npz"
_LOOP = {"updates": 200, "rate": 0.02, "parametrization": "projection"}  # Defaults of the settings of --road=loop.
_PIECES = 50  # Of the search, between which progress is shown and the state is saved.


def make_flags() -> flags.Flags:
  """Return the flags of this command."""
  values = flags.Flags()
  rates = f"Default: {', '.join(f'{rate:g} for {name}' for name, rate in problem.LEARNING_RATES.items())}."
  problem.define_flags(values, dataset="half_moons", learner=None, bias=True, learning_rate=rates)
  values.group("Examples and their labels", "--examples=20 --constraint=simplex --toward=target")
  values.whole("examples", 10, "Number of examples that get labels, chosen at random, of each class as many.")
  values.choice(
    "toward", "validation", ["validation", "target"],
    "What students should reach: a low loss on the other examples of the pool, or the parameters fitted to the pool "
    "(the file's target, if it has one).",
  )  # fmt: skip
  values.whole("validation", 1000, "toward=validation: the largest number of other examples that are used.")
  values.choice(
    "road", "solved", ["solved", "loop"],
    "solved: one solve for students that are linear around their starts. loop: Adam through the students' training.",
  )  # fmt: skip
  values.text("constraint", "none", f"The set of labels: {', '.join(catalogue.CONSTRAINTS)}.")
  values.group("Students", "--steps=300 --students=20 --fresh=50")
  values.whole("steps", 100, "Number of steps that a student trains.")
  values.whole("students", 8, "Number of random starts: of an update, or of which the solved problem is the mean.")
  values.whole("fresh", 20, "Number of other students that show what the labels are worth.", least=2)
  values.real("start_near", None, "toward=target: students start at the target plus N(0, this^2).")
  values.group("The search of --road=loop", "--road=loop --updates=500 --rate=0.01")
  values.whole("batch_size", None, "loop: number of random examples in a student's step. Default: all of them.")
  values.whole("updates", None, f"loop: number of updates of the labels. Default: {_LOOP['updates']}.")
  values.real("rate", None, f"loop: Adam's rate. Default: {_LOOP['rate']}.")
  values.choice(
    "parametrization", None, ["projection", "softmax"],
    "loop: labels are projected onto their set after each update, or are the softmax of free numbers. Default: "
    f"{_LOOP['parametrization']}.",
  )  # fmt: skip
  values.whole("validation_batch", None, "loop: number of validation examples of an update. Default: all.")
  values.whole("segment", None, "loop: steps in memory at once. Default: about the root of --steps.")
  flags.define_run(values, "runs/distill")
  values.choice("platform", None, devices.PLATFORMS, "Platform to run on. Default: the best that JAX finds.")
  return values


def main(arguments: Sequence[str]) -> int:
  """Run the command with arguments as in `sys.argv`; return the exit status."""
  return command.run_command(_distill, make_flags(), __doc__ or "", arguments, TABLES)


def run() -> int:
  """Run the installed command, `last-distill`."""
  return main(sys.argv)


class Setup(NamedTuple):
  """Everything that a run needs, checked."""

  title: str
  learner: last.learners.Learner
  chosen: np.ndarray  # [n] the places in the pool of the examples.
  pool: last.Pool  # They.
  test: last.Pool | None
  target: Any
  settings: dict[str, Any]  # Of `last.distill_labels`.
  search: dict[str, Any]  # Those of road="loop".
  key: jax.Array
  test_key: jax.Array
  folder: Folder
  config: dict[str, Any]
  notes: list[str]


def _distill(values: flags.Flags) -> int:
  console = Console()
  with console.doing("starting JAX"), command.user_errors():
    devices.prepare(platform=values.platform)
    devices.enable_compilation_cache()
  with jax.enable_x64(True) if values.x64 else contextlib.nullcontext():
    with console.doing("reading data") as task, command.user_errors():
      setup = _prepare(values, task.now)
    for note in setup.notes:
      console.say(f"note: {note}")
    with setup.folder.begin(setup.config, resume=values.resume, overwrite=values.overwrite) as held:
      begin = time.perf_counter()
      labels, objective, stopped = _find(setup, values, console)
      seconds = time.perf_counter() - begin
      with console.doing("training students on the labels"):
        status = _write(held, setup, labels, objective, seconds, not stopped, values, console)
  return stopped or status


# --- From flags to a setup.


def _prepare(values: flags.Flags, now: Callable[[str], None]) -> Setup:
  """Check the flags and prepare everything up to the labels; `now` is told what is done. Errors name the flag."""
  checks.check_not_negative("--checkpoint_seconds", values.checkpoint_seconds)
  folder = Folder(pathlib.Path(values.out), FILES, "state")
  problem.check_names(values)
  folder.check_flags("launch.distill", values, ("learner", "learning_rate", *_LOOP))
  given = problem.read(values)
  learner, pool = given.learner, given.dataset.train
  with command.naming("constraint", values.constraint):
    constraint = specs.constraint(values.constraint)
  loop, toward_target = values.road == "loop", values.toward == "target"
  own = (*_LOOP, "validation_batch", "segment", "batch_size")
  search = {name: _LOOP.get(name) if values[name].value is None else values[name].value for name in own if loop}
  idle = [*problem.find_idle(values, given), *(() if loop else own), *(["validation"] if toward_target else [])]
  idle += ["validation_batch"] * (loop and toward_target) + ["start_near"] * (not toward_target)
  settled = {"learning_rate": given.learning_rate, "learner": given.learner_name} | search | dict.fromkeys(idle)
  config = make_config("launch.distill", values, settled, {"dataset": given.digest})
  folder.check(config, resume=values.resume, overwrite=values.overwrite)

  target_key, key, test_key = jax.random.split(jax.random.key(values.seed), 3)
  index = _choose(values, pool)
  others = np.setdiff1d(np.arange(len(pool)), index)
  target, init_fn = None, None
  notes: list[str] = []
  settings: dict[str, Any] = {"steps": values.steps, "students": values.students, "constraint": constraint}
  if toward_target:
    now("finding w*")
    target, _, notes = problem.find_target(values, given, target_key)
    settings["target"] = target
    if values.start_near is not None:
      checks.check_not_negative("--start_near", values.start_near)
      init_fn = last.training.near(target, values.start_near)
  else:
    if not len(others):
      raise ValueError(f"--examples={values.examples} leaves no others of the {len(pool)} for validation")
    chosen = np.random.default_rng([values.seed, 1]).permutation(others)[: values.validation]
    settings["validation"] = last.Pool(pool.x[chosen], pool.y[chosen])
    if loop and values.validation_batch is not None and values.validation_batch > len(chosen):
      raise ValueError(f"--validation_batch={values.validation_batch}: there are {len(chosen)} validation examples")
  return Setup(
    title=f"{given.title(values)}, {len(index)} examples, {values.steps} steps, labels {values.road}",
    learner=learner,
    chosen=index,
    pool=last.Pool(pool.x[index], pool.y[index], classes=pool.classes),
    test=given.dataset.test,
    target=target,
    settings=settings | {"init_fn": init_fn, "road": values.road},
    search=search | ({"validation_batch": None} if loop and toward_target else {}),
    key=key,
    test_key=test_key,
    folder=folder,
    config=config,
    notes=notes + problem.note_idle(values, idle),
  )


def _choose(values: flags.Flags, pool: last.Pool) -> np.ndarray:
  """Return the examples that get labels, `[n]`: of each class as many, where labels are classes."""
  y = np.asarray(pool.y)
  if values.examples > len(pool):
    raise ValueError(f"--examples={values.examples}: the pool has {len(pool)}")
  if y.ndim > 1 or np.issubdtype(y.dtype, np.floating):
    return np.sort(np.random.default_rng([values.seed, 0]).permutation(len(pool))[: values.examples])
  classes = np.unique(y)
  if values.examples % len(classes):
    raise ValueError(f"--examples={values.examples} must be a multiple of the {len(classes)} classes")
  return stratified(y, [int(each) for each in classes], values.examples // len(classes), values.seed, name="--examples")


# --- Labels.


def _find(setup: Setup, values: flags.Flags, console: Console) -> tuple[jax.Array, np.ndarray, int]:
  """Return the labels, the objective along the search, and the exit status: 0 if it was finished."""
  arguments = (setup.key, setup.learner, setup.pool.x, setup.pool.y)
  flag_of = {name: name for name in ("rate", "constraint", "segment", "students", "parametrization")}
  if values.road == "solved":
    with console.doing("solving"), command.user_errors(flag_of | {"learner": "learning_rate", "x": "examples"}):
      labels, log = last.distill_labels(*arguments, **setup.settings)
    return labels, np.asarray(log.objective), 0
  with command.user_errors(flag_of):
    search = setup.search | {"updates": 0}
    labels, log = last.distill_labels(*arguments, **(setup.settings | search))
  state, objective = log.state, np.zeros(0)
  path = setup.folder.path / setup.folder.saved / _STATE
  if values.resume and path.is_file():
    with command.user_errors(), command.naming("resume", True):
      saved = last.load(path, like={"state": state, "objective": np.zeros(values.updates or _LOOP["updates"])})
    state = saved["state"]
    objective = saved["objective"][: int(state.update)]
  total, last_save = setup.search["updates"], time.perf_counter()
  piece, status = max(1, total // _PIECES), 0
  try:
    with console.doing("compiling", total=total) as task:
      if not console.is_terminal:
        console.say("compiling")
      forecast = Forecast(1)
      forecast.begin(len(objective) / total)
      while len(objective) < total:
        search = setup.search | {"updates": min(piece, total - len(objective)), "state": state}
        labels, log = last.distill_labels(*arguments, **(setup.settings | search))
        state, objective = log.state, np.concatenate([objective, np.asarray(log.objective)])
        left = forecast.left(len(objective) / total, compiling=0.0)
        task.update(len(objective), f"objective {objective[-1]:.4g}", left)
        if time.perf_counter() - last_save >= values.checkpoint_seconds:
          _save(path, state, objective, total)
          last_save = time.perf_counter()
  except KeyboardInterrupt as error:
    status = stopping.status_of(error)
    console.say(f"stopped after {len(objective)} of {total} updates: --resume continues")
  _save(path, state, objective, total)
  labels, _ = last.distill_labels(*arguments, **(setup.settings | setup.search | {"updates": 0, "state": state}))
  return labels, objective, status


def _save(path: pathlib.Path, state: Any, objective: np.ndarray, total: int) -> None:
  path.parent.mkdir(exist_ok=True)  # Not its parents: a folder that was removed is not made again.
  whole = np.concatenate([objective, np.zeros(total - len(objective))])
  last.save(path, {"state": state, "objective": whole})


def _write(
  held: Run,
  setup: Setup,
  labels: Any,
  objective: np.ndarray,
  seconds: float,
  finished: bool,
  values: flags.Flags,
  console: Console,
) -> int:
  """Train fresh students on the labels and on the true ones, write the results, show them, and then draw them.

  Returns:
    The exit status: `command.DIVERGED` where students diverged on the distilled labels, or these are not finite.
  """
  out, learner = setup.folder.path, setup.learner
  truth = learner.encode(setup.pool.x, setup.pool.y)
  training = {
    "steps": values.steps,
    "batch_size": setup.search.get("batch_size"),
    "students": values.fresh,
    "init_fn": setup.settings["init_fn"],
  }
  rows = {}
  for name, shown in (("distilled labels", labels), ("true labels", truth)):
    found = train_students(setup.test_key, learner, setup.pool.x, shown, **training)
    rows[name] = {metric: output.interval(np.asarray(each)) for metric, each in _measure(setup, found).items()}
  classes = setup.pool.classes
  summary = {
    "title": setup.title,
    "classes": classes,
    "interrupted": not finished,
    "objective": {"first": float(objective[0]), "last": float(objective[-1])} if len(objective) else None,
    "students": values.fresh,
    "intervals": "mean and half-width of the 95 % confidence interval over students (Student's t)",
    "results": rows,
    "seconds": seconds,
  }
  x = np.asarray(setup.pool.x)
  named = {} if classes is None else {"classes": np.array(classes)}
  with held.publish(summary) as folder:
    save_npz(
      folder / "labels.npz", index=setup.chosen, x=x, truth=np.asarray(truth), label=np.asarray(labels),
      objective=objective, **named,
    )  # fmt: skip
  for name, metrics in rows.items():
    shown = ", ".join(f"{metric} {each['mean']:.4g} ± {each['half_width']:.2g}" for metric, each in metrics.items())
    console.say(f"{name}: {shown}")
  means = [each["mean"] for each in rows["distilled labels"].values()]
  lost = not (np.isfinite(means).all() and np.isfinite(np.asarray(labels)).all())
  if lost:
    console.say("note: students diverged on the distilled labels: try a smaller --learning_rate or --rate")

  def draw(path: pathlib.Path) -> None:
    draw_fixed_labels(path, setup.title, x, np.asarray(truth), np.asarray(labels), classes)

  status = output.draw_all({out / "labels.png": draw})
  output.say_written(console, [out / name for name in FILES], before=f"{seconds:.1f} s; ")
  return status or (command.DIVERGED if lost else 0)


def _measure(setup: Setup, params: Any) -> dict[str, jax.Array]:
  """Return metrics of students with a leading axis, `[students]` each."""
  learner, found = setup.learner, {}
  if setup.target is not None:
    found["distance"] = jax.vmap(lambda w: distances.distance(w, setup.target))(params)
  if (pool := setup.test) is not None:
    vectors = learner.encode(pool.x, pool.y)
    found["test loss"] = jax.lax.map(lambda w: learner.mean_loss(w, pool.x, vectors), params)
    if learner.loss.classification:
      found["test accuracy"] = jax.lax.map(lambda w: learner.accuracy(w, pool.x, vectors), params)
  return found


if __name__ == "__main__":
  sys.exit(run())
