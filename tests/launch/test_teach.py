"""The command `launch.teach`: what it writes is what the library computes, and stopping it keeps what is finished."""

import json
import os
import shlex
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import data
from last_jax.data.files import read_arrays
from launch import chunks, teach
from launch.teach_methods import CLASS_SETS, build_methods
from tests.launch.running import FILES, run, run_process, start_process

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

  def test_the_planner_has_its_sets_too(self):
    names = self.names("--teacher=planner", "--constraint=one_hot,none", "--horizon=3")
    assert names == {"planner:one_hot": "planner (one_hot)", "planner:none": "planner (none)"}

  def test_the_planner_is_at_the_target_after_as_many_steps_as_there_are_parameters(self, tmp_path):
    flags = ("--teacher=greedy,planner", "--constraint=none", "--horizon=3", "--steps=3", "--students=6", "--x64")
    assert run(tmp_path, *flags) == 0
    curves = read_arrays(tmp_path / "curves.npz")
    planned, greedy = (np.median(curves[f"{name}:none/distance"][:, -1]) for name in ("planner", "greedy"))
    assert planned < 1e-9 < 1e-2 < greedy

  def test_those_without_a_set_of_labels(self):
    names = self.names("--teacher=label_smoothing,distillation,self_training,self_training_hard")
    assert list(names) == ["label_smoothing", "distillation", "self_training", "self_training_hard"]
    assert len(set(names.values())) == 4


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
