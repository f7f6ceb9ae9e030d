"""The formats of files: how a right one is made, how it is read, and what is known of a damaged one."""

import gzip
import json
import pathlib
import shutil
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import last_jax as last
from last_jax import data, io
from last_jax.data.idx import read_idx
from last_jax.teachers.policy import make_policy
from last_jax.tools import specs, write_json
from last_jax.training.checkpoint import Checkpoints
from last_jax.training.trainer import TrainingState
from launch import metrics, problem, teach
from launch.command import naming
from launch.folder import Folder
from launch.states import Course
from tests.data import samples

KEY = jax.random.key(0)


class Format(NamedTuple):
  """A format.

  Attributes:
    write: `folder -> file`, a right one; there may be others beside it.
    read: `file -> contents`.
    kind: "archive" (npz: whatever changes it is noticed), "packed" (gzip, likewise), "text" (a changed letter can be
      another text), "plain" (numbers as bytes).
  """

  write: Callable[[pathlib.Path], pathlib.Path]
  read: Callable[[pathlib.Path], Any]
  kind: str = "archive"


def contents(value):
  """What can be compared: structure, dtypes, shapes and bits."""
  leaves, structure = jax.tree.flatten(value)
  found = []
  for leaf in leaves:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
      leaf = jax.random.key_data(leaf)
    array = np.asarray(leaf)
    found.append((str(array.dtype), array.shape, array.tolist() if array.dtype.kind in "OU" else array.tobytes()))
  return str(structure), found


def _learner():
  return last.learners.softmax(2, 3, learning_rate=0.1)


def _pool():
  return last.Pool(np.random.default_rng(0).normal(size=(9, 2)).astype(np.float32), np.arange(9) % 3)


def _params():
  return jax.tree.map(lambda leaf: np.full(leaf.shape, 0.5, np.float32), _learner().shapes())


def _data(folder):
  names = np.array(["a", "b", "ü"])
  target = {f"target/{name}": leaf for name, leaf in _params().items()}
  pool = _pool()
  path = folder / "data.npz"
  data.save_npz(path, x=np.asarray(pool.x), y=np.asarray(pool.y), classes=names, init=np.zeros(9), **target)
  return path


def _read_data(path):
  found = data.load_npz(path)
  return found, found.train.classes


def _actions(folder):
  data.save_npz(folder / "actions.npz", actions=np.eye(3))
  return folder / "actions.npz"


def _read_actions(path):
  with naming("actions", path):
    return specs.actions(str(path))


def _state():
  values = {"half": jnp.arange(3, dtype=jnp.bfloat16), "number": 2, "weights": jnp.arange(6.0).reshape(2, 3)}
  return values | {"key": jax.random.key(3)}


def _save_state(folder):
  last.save(folder / "state.npz", _state(), about={"teacher": "greedy"})
  return folder / "state.npz"


def _policy(folder):
  learner, pool = _learner(), _pool()
  teachable = last.Problem(learner, pool, target=_params())
  students = jax.tree.map(lambda leaf: np.stack([leaf, 2 * leaf]), _params())
  shapes = jax.eval_shape(lambda key: make_policy(key, teachable, students, hidden=(4,)), KEY)
  last.save_policy(folder / "policy.npz", jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), shapes))
  return folder / "policy.npz"


def _lessons(folder):
  lessons = last.Lesson(np.arange(4).reshape(4, 1), np.eye(3, dtype=np.float32)[np.zeros((4, 1), int)])
  curriculum = last.Curriculum(
    last.Problem(_learner(), _pool()), lessons, init=_params(), final=_params(), target=_params(), examples=True
  )
  last.save(folder / "lessons.npz", curriculum)
  return folder / "lessons.npz"


def _read_lessons(path):
  found = last.load(path)
  if isinstance(found, last.Curriculum):
    return found.arrays, json.dumps(found.facts), found.lessons, repr(found)
  return found


def _sparse_lessons(folder):
  learner, pool = last.learners.softmax(2, 9, learning_rate=0.1), last.Pool(np.eye(2)[[0, 1] * 9], np.arange(18) % 9)
  lessons = last.Lesson(np.zeros((4, 1), int), np.eye(9, dtype=np.float32)[np.zeros((4, 1), int)])
  last.save(folder / "sparse.npz", last.Curriculum(last.Problem(learner, pool), {"one": lessons, "two": lessons}))
  return folder / "sparse.npz"


def _stream_state(step):
  student = last.Student(jax.tree.map(jnp.asarray, _params()), None)
  return last.State(student, None, jnp.asarray(step), jax.random.key(1), None, jnp.asarray(False))


def _stream(folder, file):
  """As `last.stream` writes it; nothing is taught."""
  notes = {"stream": 1, "certificate": None}
  for first in (0, 4):
    step = first + np.arange(5)[first > 0 :]
    io.save(folder / f"records-{first}.npz", last.Records(step, distance=1.0 / (1 + step)), about=notes)
  about = {"stream": 1, "start": "", "first": 0, "settings": {}, "problem": ""}
  io.save(folder / "state.npz", _stream_state(8), about=about)
  return folder / file


def _read_stream(path):
  return list(last.streamed(path.parent))


def _course(folder, file):
  course = _make_course(folder)
  for first in (0, 4):
    steps = first + 1 + np.arange(4)
    course.append(_students_state(first + 4), {"step": steps, "distance": np.ones((1, 4)), "seconds": np.ones((1, 2))})
    course.save()
  return folder / file


def _students_state(step):
  return jax.tree.map(lambda leaf: leaf[None], _stream_state(step))


def _make_course(folder):
  return Course(folder, _students_state(0), {"step": np.zeros(1, int), "distance": np.ones((1, 1))}, None)


def _read_course(path):
  course = _make_course(path.parent)
  with naming("resume", True):
    assert course.resume()
  return course.state, course.records()


def _csv(folder):
  (folder / "table.csv").write_text("length,width,kind\n" + "".join(f"{i},{i % 5}.5,{'ab'[i % 2]}\n" for i in range(9)))
  return folder / "table.csv"


def _parquet(folder):
  import pandas

  frame = pandas.DataFrame({"length": np.arange(9.0), "kind": list("abcabcabc")})
  frame.to_parquet(folder / "table.parquet")
  return folder / "table.parquet"


def _read_parquet(path):
  values = teach.make_flags()
  values(["teach", f"--dataset={path}"])
  return problem._load(values)


def _idx(folder, name, content):
  raw = samples.idx_bytes(np.arange(60, dtype=np.uint8).reshape(3, 4, 5))
  (folder / name).write_bytes(content(raw))
  return folder / name


def _mnist(folder):
  samples.write_mnist(folder, samples.mnist_arrays(), compress=True)
  return folder / "train-labels-idx1-ubyte.gz"


def _read_mnist(path):
  return data.mnist_images(range(10), folder=path.parent)


_LINES = [{"episode": 20 * i, "loss": 1.0 / i, "skipped": 0, "episodes_per_second": 2.5} for i in (1, 2, 3)]


def _metrics(folder):
  (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in _LINES))
  return folder / "metrics.jsonl"


def _read_metrics(path):
  copy = path.with_name("copy.jsonl")
  shutil.copy(path, copy)
  try:
    return json.dumps(metrics.read(path, 60))
  except ValueError:
    assert path.read_bytes() == copy.read_bytes()  # After an error it is as it was.
    raise


_CONFIG = {
  "command": "python -m launch.some --seed=0", "flags": {"seed": 0, "out": "runs", "dataset": "half_moons"},
  "data": {"dataset": "0" * 64}, "versions": {"jax": "0"},
}  # fmt: skip


def _config(folder):
  write_json(folder / "config.json", {"run": "0" * 32, **_CONFIG})
  write_json(folder / "summary.json", {"run": "0" * 32, "interrupted": False})
  (folder / "state").mkdir()
  (folder / "state" / "state.npz").write_bytes(b"")
  return folder / "config.json"


def _read_config(path):
  """A run of the same settings resumes; where it may, those in the file are the same."""
  place = Folder(path.parent, ("config.json", "summary.json"), "state")
  place.check(_CONFIG, resume=True, overwrite=False)
  found = json.loads(path.read_text())
  assert {**found["flags"], "out": 0} == {**_CONFIG["flags"], "out": 0}
  assert found["data"] == _CONFIG["data"]


def _summary(folder):
  _config(folder)
  return folder / "summary.json"


def _read_summary(path):
  """Started again, a run replaces finished results and nothing else."""
  place = Folder(path.parent, ("config.json", "summary.json"), "state")
  place.check(_CONFIG, resume=False, overwrite=False)
  assert json.loads(path.read_text())["interrupted"] is False


def _json(folder):
  write_json(folder / "a.json", {"name": [1.5, None, {"é": "text"}]})
  return folder / "a.json"


def _training_state():
  params = jax.tree.map(jnp.asarray, _params())
  fields = dict.fromkeys(TrainingState._fields, jnp.zeros(()))
  return TrainingState(**fields | {"policy": params, "key": jax.random.key(2), "episode": jnp.asarray(4)})


def _checkpoint(folder):
  checkpoints = Checkpoints(folder / "checkpoints", "some training")
  checkpoints.save(_training_state())
  checkpoints.close()
  files = [path for path in (folder / "checkpoints" / "4").rglob("*") if path.is_file()]
  return max(files, key=lambda path: (path.stat().st_size, path))


def _read_checkpoint(path):
  folder = next(each for each in path.parents if each.name == "checkpoints")
  checkpoints = Checkpoints(folder, "some training")
  try:
    return checkpoints.restore(_training_state())
  finally:
    checkpoints.close()


FORMATS: dict[str, Format] = {
  "data": Format(_data, _read_data),
  "actions": Format(_actions, _read_actions),
  "tree": Format(_save_state, lambda path: last.load(path, like=_state())),
  "tree without a template": Format(_save_state, last.load),
  "policy": Format(_policy, last.load_policy),
  "lessons": Format(_lessons, _read_lessons),
  "sparse lessons": Format(_sparse_lessons, _read_lessons),
  "state of a stream": Format(lambda folder: _stream(folder, "state.npz"), _read_stream),
  "records of a stream": Format(lambda folder: _stream(folder, "records-4.npz"), _read_stream),
  "state of a run": Format(lambda folder: _course(folder / "sgd", "state.npz"), _read_course),
  "records of a run": Format(lambda folder: _course(folder / "sgd", "records-4.npz"), _read_course),
  "csv": Format(_csv, data.load_csv, "text"),
  "IDX": Format(lambda folder: _idx(folder, "idx", bytes), read_idx, "plain"),
  "packed IDX": Format(lambda folder: _idx(folder, "idx.gz", gzip.compress), read_idx, "packed"),
  "folder of MNIST": Format(_mnist, _read_mnist, "packed"),
  "JSON": Format(_json, lambda path: json.dumps(io.read_json(path)), "text"),
  "metrics.jsonl": Format(_metrics, _read_metrics, "text"),
  "config.json": Format(_config, _read_config, "text"),
  "summary.json": Format(_summary, _read_summary, "text"),
}
# Others need libraries that take long to begin.
LONG: dict[str, Format] = {
  "parquet": Format(_parquet, _read_parquet, "plain"),
  "checkpoint": Format(_checkpoint, _read_checkpoint, "packed"),
}
