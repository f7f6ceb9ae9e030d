"""The command `launch.teach`: what it writes is what the library computes, and what is wrong is said in one line."""

import json
import os
import pathlib
import shlex
import signal
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import data
from last_jax.data.files import read_arrays
from launch import chunks, teach
from launch.teach_methods import CLASS_SETS, build_methods

ROOT = pathlib.Path(__file__).parents[2]
FILES = {"config.json", "curves.npz", "summary.json", "curves.png"}


def run(out, *flags):
  """Runs the command in this process; gives its exit status."""
  return teach.main(["teach", f"--out={out}", *flags])


def start_process(flags, **settings):
  # A shell that runs tests in the background has its children ignore SIGINT; this undoes it.
  code = (
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "runpy.run_module('launch.teach', run_name='__main__', alter_sys=True)"
  )
  return subprocess.Popen(
    [sys.executable, "-c", code, *flags],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    **settings,
  )


def run_process(*flags, **settings):
  process = start_process(flags, **settings)
  output, errors = process.communicate(timeout=300)
  return process.returncode, output, errors


# 23 steps in chunks of 4, with 3 left over.
RUN = (
  "--teacher=sgd,greedy",
  "--constraint=none",
  "--students=3",
  "--steps=23",
  "--record_every=4",
  "--seed=1",
)


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
  """A run of the command in a process of its own: its folder, and what it printed."""
  out = tmp_path_factory.mktemp("teach") / "new" / "folder"
  status, output, errors = run_process(*RUN, "--tolerance=5.0", "--lessons", f"--out={out}")
  assert status == 0, errors
  return out, output


def directly(teacher, **settings):
  """What the library gives for RUN in one call."""
  dataset = data.half_moons(1)
  learner = last.learners.logistic(2, learning_rate=0.3, weight_decay=5e-5)
  target_key, start_key, lesson_key = jax.random.split(jax.random.key(1), 3)
  return last.teach_many(
    jax.random.split(lesson_key, 3),
    learner,
    teacher,
    dataset.train,
    target=last.fit_target(learner, dataset.train, key=target_key),
    init=jax.vmap(learner.init)(jax.random.split(start_key, 3)),
    test=dataset.test,
    steps=23,
    record_every=4,
    **settings,
  )


class TestFiles:
  def test_all_are_there_and_named(self, whole_run):
    out, output = whole_run
    assert {path.name for path in out.iterdir()} == FILES | {"lessons.npz"}
    for name in FILES:
      assert str(out / name) in output

  @pytest.mark.parametrize(
    ("key", "teacher"),
    [("sgd", last.teachers.sgd()), ("greedy:none", last.teachers.greedy(last.constraints.none()))],
  )
  def test_curves_are_those_of_the_library(self, whole_run, key, teacher):
    curves, lessons = read_arrays(whole_run[0] / "curves.npz"), read_arrays(whole_run[0] / "lessons.npz")
    result = directly(teacher, tolerance=5.0, lessons=True)
    np.testing.assert_array_equal(curves["step"], [0, 4, 8, 12, 16, 20, 23])
    for metric in ("distance", "objective", "accuracy", "hitting_time"):
      np.testing.assert_array_equal(curves[f"{key}/{metric}"], getattr(result, metric), metric)
    for part in ("index", "label"):
      np.testing.assert_array_equal(lessons[f"{key}/{part}"], getattr(result.lessons, part), part)
    assert (curves[f"{key}/hitting_time"] == 0).any()  # Some students are near enough before they start.

  def test_every_method_starts_alike(self, whole_run):
    curves = read_arrays(whole_run[0] / "curves.npz")
    np.testing.assert_array_equal(curves["greedy:none/distance"][:, 0], curves["sgd/distance"][:, 0])

  def test_summary(self, whole_run):
    summary = json.loads((whole_run[0] / "summary.json").read_text())
    curves = read_arrays(whole_run[0] / "curves.npz")
    assert list(summary["methods"]) == ["sgd", "greedy:none"]
    assert summary["methods"]["greedy:none"]["name"] == "LAST (none)"
    assert not summary["interrupted"]
    for key, method in summary["methods"].items():
      final = curves[f"{key}/distance"][:, -1].astype(float)
      assert method["distance"]["mean"] == pytest.approx(final.mean())
      assert method["distance"]["half_width"] == pytest.approx(4.302653 * final.std(ddof=1) / 3**0.5)  # Student's t, 2.
      assert method["microseconds_per_student_step"] > 0
      assert method["compile_seconds"] > 0
      hits = curves[f"{key}/hitting_time"]
      assert method["hitting_time"]["reached"] == np.sum(hits >= 0)
      assert method["diverged"] == 0

  def test_table(self, whole_run):
    lines = [line for line in whole_run[1].splitlines() if "±" in line]
    assert [line.split("  ")[0].strip() for line in lines[:2]] == ["SGD", "LAST (none)"]
    assert "\x1b" not in whole_run[1]  # Plain, since it is no terminal.

  def test_the_command_in_the_config_repeats_the_run(self, whole_run, tmp_path):
    out, _ = whole_run
    config = json.loads((out / "config.json").read_text())
    assert config["versions"]["jax"] == jax.__version__
    assert config["versions"]["last_jax"] == last.__version__
    assert config["flags"]["learning_rate"] == 0.3
    words = shlex.split(config["command"])
    assert words[:3] == ["python", "-m", "launch.teach"]
    assert f"--out={out}" in words
    assert run(tmp_path, *(word for word in words[3:] if not word.startswith("--out="))) == 0
    for name in ("curves.npz", "lessons.npz"):
      assert (tmp_path / name).read_bytes() == (out / name).read_bytes()


class TestChunks:
  @pytest.mark.parametrize(
    ("steps", "every"), [(400, 4), (23, 4), (1, 1), (7, 7), (1009, 10), (100, 1), (9, 20), (53, 1)]
  )
  def test_lengths(self, steps, every):
    length = chunks.chunk_length(steps, every)
    assert 1 <= length <= steps
    assert length % every == 0 or length == steps
    if steps == 400:
      assert length == 20

  def test_in_parts_or_in_one(self):
    dataset = data.gaussian(0, per_class=20)
    learner = last.learners.logistic(4, learning_rate=0.1, momentum=0.9, nesterov=True)
    keys = jax.random.split(jax.random.key(0), 2)
    init = jax.vmap(learner.init)(keys)
    target = jax.tree.map(jnp.ones_like, learner.init(keys[0]))
    teacher = last.teachers.imt()
    settings = (keys, learner, dataset.train, None, target, init, 18, 2, 3, 0.5, True)
    seen = []
    parts = chunks.teach_in_chunks(chunks.Classroom(*settings, chunk=6), teacher, seen.append)
    whole = chunks.teach_in_chunks(chunks.Classroom(*settings, chunk=18), teacher)
    assert seen == [6, 6, 6]
    assert set(parts.metrics) == {"distance", "objective"}
    same = ("step", "metrics", "hitting_time", "lessons")
    for one, other in zip(*([getattr(result, name) for name in same] for result in (parts, whole)), strict=True):
      jax.tree.map(np.testing.assert_array_equal, one, other)


class TestMethods:
  def names(self, *flags):
    values = teach.make_flags()
    values(["teach", *flags])
    learner = last.learners.logistic(2, learning_rate=0.1)
    methods = build_methods(values, values.constraint or CLASS_SETS, learner)(learner.init(jax.random.key(0)))
    return {key: method.teacher.name for key, method in methods.items()}

  def test_those_of_a_run_without_flags(self):
    assert self.names() == {
      "sgd": "SGD",
      "imt": "IMT",
      "greedy:one_hot": "LAST (one_hot)",
      "greedy:simplex": "LAST (simplex)",
      "greedy:none": "LAST (none)",
      "mixed:one_hot": "mixed (one_hot)",
      "mixed:simplex": "mixed (simplex)",
      "mixed:none": "mixed (none)",
    }

  def test_what_makes_methods_differ_is_in_their_names(self):
    constraints = (
      "magnitude:1,magnitude:1:1,magnitude:1:inf,magnitude:1:2:prediction,simplex:1,simplex:1:inf:prediction"
    )
    names = self.names("--teacher=greedy,mixed,mixed", "--joint", f"--constraint={constraints}")
    assert len(names) == len(set(names.values())) == 12
    assert names["joint_mixed:simplex:1:inf:prediction"] == "joint mixed (simplex, r=1, p=inf, around prediction)"

  def test_those_without_a_set_of_labels(self):
    names = self.names("--teacher=label_smoothing,distillation,self_training,self_training_hard")
    assert list(names) == ["label_smoothing", "distillation", "self_training", "self_training_hard"]
    assert len(set(names.values())) == 4


OWN_LEARNERS = """
import jax
import last_jax as last

def make(num_features, learning_rate, **others):
  assert sorted(others) == ["num_outputs", "weight_decay"], others
  init = lambda key: {"w": jax.random.normal(key, (num_features, others["num_outputs"]))}
  return last.learners.from_apply(
    init, lambda params, x: x @ params["w"], "softmax_cross_entropy", learning_rate=learning_rate
  )

def fails(num_features):
  raise RuntimeError("no such thing")

def other_type(learning_rate):
  return learning_rate
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
  (tmp_path / "own_learners.py").write_text(OWN_LEARNERS)
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(sys, "path", [*sys.path])
  yield "own_learners"
  sys.modules.pop("own_learners", None)


def moons_file(path, **arrays):
  dataset = data.half_moons(3, per_class=20)
  data.save_npz(path, x=dataset.train.x, y=dataset.train.y, **arrays)
  return path


class TestOwnDataAndModels:
  def test_target_and_start_flat_or_by_leaf(self, tmp_path):
    target, init = {"weights": np.array([[1.0], [-2.0]]), "bias": np.array([0.5])}, np.array([3.0, 4.0, 5.0])
    flat = moons_file(tmp_path / "flat.npz", target=np.array([0.5, 1.0, -2.0]), init=init)
    leaves = {f"target/{name}": array for name, array in target.items()}
    by_leaf = moons_file(tmp_path / "leaf.npz", **leaves, **{"init/bias": init[:1], "init/weights": init[1:, None]})
    curves = []
    for path in (flat, by_leaf):
      # An earlier run left lessons; these curves have none, so they must not stay.
      (tmp_path / "lessons.npz").write_bytes(b"old")
      flags = ("--teacher=sgd", "--students=2", "--steps=3", "--init_scale=2", f"--out={tmp_path}")
      assert run(tmp_path, f"--dataset={path}", *flags) == 0
      assert not (tmp_path / "lessons.npz").exists()
      curves.append(read_arrays(tmp_path / "curves.npz"))
    for name, values in curves[0].items():
      np.testing.assert_array_equal(values, curves[1][name])
    np.testing.assert_allclose(curves[0]["sgd/distance"][:, 0], np.sqrt(2.5**2 + 3**2 + 7**2), rtol=1e-6)
    assert set(curves[0]) == {"step", "sgd/distance", "sgd/objective"}  # No test pool, no accuracy.
    config = json.loads((tmp_path / "config.json").read_text())
    assert len(config["data"]["sha256"]) == 64

  def test_own_learner_in_float64(self, tmp_path, own_module, capsys):
    path = moons_file(tmp_path / "moons.npz")
    flags = ("--teacher=sgd", "--students=2", "--steps=2", "--x64", "--mu=0.5", "--momentum=0.9")
    assert run(tmp_path / "out", f"--dataset={path}", f"--learner={own_module}:make", *flags) == 0
    assert read_arrays(tmp_path / "out" / "curves.npz")["sgd/distance"].dtype == np.float64
    assert jnp.zeros(()).dtype == jnp.float32  # What a run asks for does not outlive it.
    output = capsys.readouterr().out
    assert "--mu has no effect" in output
    assert "--momentum has no effect" in output
    assert "no label can teach" not in output  # That is worked out for linear learners only.

  @pytest.mark.parametrize(
    ("learner", "message"),
    [
      ("own_learners:absent", "no attribute 'absent'"),
      ("absent_module:make", "No module named 'absent_module'"),
      ("own_learners:fails", "raised RuntimeError: no such thing"),
      ("own_learners:other_type", "must return a Learner"),
    ],
  )
  def test_bad_own_learner(self, tmp_path, own_module, capsys, learner, message):
    assert run(tmp_path, f"--learner={learner}") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --learner={learner}")
    assert message in error

  def test_regression(self, tmp_path, capsys):
    flags = ("--teacher=greedy", "--constraint=magnitude:0.5:1:prediction", "--students=2", "--steps=2")
    assert run(tmp_path, "--dataset=regression", *flags) == 0
    assert "greedy:magnitude:0.5:1:prediction/distance" in read_arrays(tmp_path / "curves.npz")
    output = capsys.readouterr().out
    assert "LAST (r=0.5, p=1, around prediction)" in output
    assert "acc." not in output


BAD = [
  (["--teacher=sgd,nobody"], ["--teacher='nobody'", "sgd", "mixed"]),
  (["--teacher="], ["--teacher is empty"]),
  (["--dataset=full_moons"], ["--dataset='full_moons'", "half_moons"]),
  (["--dataset=absent.npz"], ["--dataset=absent.npz", "no such file"]),
  (["--learner=forest"], ["--learner='forest'", "logistic", "module:function"]),
  (["--constraint=sphere"], ["--constraint=sphere", "simplex"]),
  (["--constraint=magnitude"], ["--constraint=magnitude", "RADIUS"]),
  (["--constraint=magnitude:-1"], ["--constraint=magnitude:-1", "positive"]),
  (["--constraint=magnitude:one"], ["--constraint=magnitude:one", "numbers"]),
  (["--constraint=magnitude:1:3"], ["--constraint=magnitude:1:3", "1, 2 or inf"]),
  (["--constraint=magnitude:1:2:origin"], ["--constraint=magnitude:1:2:origin", "prediction"]),
  (["--constraint=one_hot:1"], ["--constraint=one_hot:1", "no radius"]),
  (["--dataset=regression", "--constraint=one_hot"], ["--constraint=one_hot", "numbers"]),
  (["--dataset=regression", "--constraint=simplex:0.1"], ["--constraint=simplex:0.1", "numbers"]),
  (["--dataset=regression", "--teacher=label_smoothing"], ["--teacher=label_smoothing", "classifiers"]),
  (["--dataset=regression", "--learner=softmax"], ["--learner=softmax", "least_squares"]),
  (["--dataset=regression", "--learner=logistic"], ["--learner=logistic", "least_squares"]),
  (["--dataset=mnist", "--digits=1,2,3", "--learner=logistic"], ["--learner=logistic", "--dataset=mnist"]),
  (["--dataset=mnist", "--digits=3,x"], ["--digits=3,x"]),
  (["--dataset=mnist", "--num_features=0"], ["--learner=logistic", "[28, 28, 1]"]),
  (["--dataset=mnist", "--mnist_folder=absent"], ["--mnist_folder=absent"]),
  (["--learner=mlp", "--hidden=0"], ["--hidden=0"]),
  (["--activation=step"], ["--activation=step", "relu"]),
  (["--nesterov"], ["--nesterov", "--momentum"]),
  (["--momentum=2"], ["--momentum"]),
  (["--teacher=label_smoothing", "--mu=2"], ["--mu"]),
  (["--teacher=distillation", "--temperature=0"], ["--temperature"]),
  (["--learning_rate=0"], ["--learning_rate"]),
  (["--weight_decay=-1"], ["--weight_decay"]),
  (["--init_scale=-1"], ["--init_scale"]),
  (["--tolerance=0"], ["--tolerance"]),
  (["--steps=0"], ["--steps=0"]),
  (["--steps=many"], ["--steps=many"]),
  (["--students=-2"], ["--students=-2"]),
  (["--seed=99999999999"], ["--seed=99999999999"]),
  (["--teecher=sgd"], ["teecher"]),
  (["sgd"], ["'sgd'", "--name=value"]),
  (["--teacher=imt", "--batch_size=801"], ["--teacher=imt", "batch_size=801"]),
]


class TestErrors:
  @pytest.mark.parametrize(("flags", "parts"), BAD, ids=[" ".join(flags) for flags, _ in BAD])
  def test_one_line_that_names_the_flag(self, tmp_path, monkeypatch, capsys, flags, parts):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "curves.npz").write_bytes(b"earlier")
    assert run(tmp_path, *flags) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    for part in parts:
      assert part in shown.err
    assert os.listdir(tmp_path) == ["curves.npz"]
    assert (tmp_path / "curves.npz").read_bytes() == b"earlier"

  @pytest.mark.parametrize(
    ("arrays", "parts"),
    [
      ({"target": np.zeros(4)}, ["target has shape [4]", "3 numbers", "bias [1], weights [2, 1]"]),
      ({"init": np.zeros(4)}, ["init has shape [4]"]),
      ({"target/bias": np.zeros(1)}, ["target lacks weights"]),
    ],
  )
  def test_parameters_that_do_not_fit(self, tmp_path, capsys, arrays, parts):
    path = moons_file(tmp_path / "moons.npz", **arrays)
    assert run(tmp_path / "out", f"--dataset={path}", "--teacher=sgd", "--students=2", "--steps=2") == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --dataset={path}: ")
    for part in parts:
      assert part in error

  def test_label_vectors_need_a_learner(self, tmp_path, capsys):
    data.save_npz(tmp_path / "vectors.npz", x=np.eye(3), y=np.eye(3))
    assert run(tmp_path, f"--dataset={tmp_path / 'vectors.npz'}") == 2
    assert "--learner is missing" in capsys.readouterr().err

  def test_out_is_a_file(self, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(last, "fit_target", lambda *_, **__: pytest.fail("must not compute"))
    (tmp_path / "file").write_text("")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
      assert run(out) == 2
      assert capsys.readouterr().err.startswith(f"error: --out={out} cannot be written to")

  def test_no_device_is_touched_before_flags_are_parsed(self):
    # Any use of a device fails on a platform that does not exist.
    status, output, errors = run_process("--help", env=os.environ | {"JAX_PLATFORMS": "nowhere"})
    assert (status, errors) == (0, "")
    assert "python -m launch.teach --dataset=mine.npz" in output
    for name in teach.make_flags():
      assert f"--{name}" in output or f"--[no]{name}" in output


class TestStopping:
  def test_interrupt_keeps_what_is_finished(self, tmp_path):
    flags = ("--teacher=sgd,imt", "--steps=40000", "--students=20", "--record_every=400", f"--out={tmp_path}")
    process = start_process(flags)
    for line in process.stdout:
      if "IMT: compiling" in line:
        process.send_signal(signal.SIGINT)
        break
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "1 of 2 methods" in output
    assert "Traceback" not in errors
    assert {path.name for path in tmp_path.iterdir()} == FILES
    curves = read_arrays(tmp_path / "curves.npz")
    assert set(curves) == {"step", "sgd/distance", "sgd/objective", "sgd/accuracy"}
    assert curves["sgd/distance"].shape == (20, 101)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["interrupted"]
    assert list(summary["methods"]) == ["sgd"]

  def test_interrupt_before_anything_is_finished(self, tmp_path, monkeypatch, capsys):
    def stop(*_):
      raise KeyboardInterrupt

    (tmp_path / "curves.npz").write_bytes(b"earlier")
    monkeypatch.setattr(teach, "teach_in_chunks", stop)
    assert run(tmp_path, "--teacher=sgd", "--students=2", "--steps=2") == 130
    assert "nothing was written" in capsys.readouterr().out
    assert os.listdir(tmp_path) == ["curves.npz"]
    assert (tmp_path / "curves.npz").read_bytes() == b"earlier"

  def test_a_failure_keeps_what_is_finished(self, tmp_path, monkeypatch):
    def fail_at_imt(room, teacher, on_chunk):
      if teacher.name == "IMT":
        raise RuntimeError("out of memory")
      students, records = room.keys.shape[0], np.arange(3)
      return chunks.Taught(records, {"distance": np.ones((students, 3))}, None, None, 0.1, 0.1)

    monkeypatch.setattr(teach, "teach_in_chunks", fail_at_imt)
    with pytest.raises(RuntimeError, match="out of memory"):
      run(tmp_path, "--teacher=sgd,imt", "--students=2", "--steps=2")
    assert set(read_arrays(tmp_path / "curves.npz")) == {"step", "sgd/distance"}

  def test_students_who_diverge_are_counted(self, tmp_path, monkeypatch, capsys):
    def diverge(room, teacher, on_chunk):
      distance = np.array([[1.0, np.nan], [1.0, 2.0]])
      return chunks.Taught(np.arange(2), {"distance": distance}, None, None, 0.1, 0.1)

    monkeypatch.setattr(teach, "teach_in_chunks", diverge)
    assert run(tmp_path, "--teacher=sgd", "--students=2", "--steps=2") == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["methods"]["sgd"]["diverged"] == 1
    assert summary["methods"]["sgd"]["distance"]["mean"] is None
    output = capsys.readouterr().out
    assert "1 students diverged" in output
    assert "--learning_rate" in output
