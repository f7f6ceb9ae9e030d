"""`launch.teach`: its files hold what the library computes; stopped or killed, it resumes to the same results."""

import json
import random
import shlex
import signal
import time

import jax
import numpy as np
import pytest

import last_jax as last
from last_jax import data
from last_jax.io import read_arrays
from launch import command, methods, problem, teach
from tests.followers import follow, read
from tests.launch.running import FILES, read_all, run, run_process, start_process

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
  status, output, errors = run_process(*RUN, "--tolerance=5.0", "--lessons", "--examples", f"--out={out}")
  assert status == 0, errors
  return out, output


def directly(teacher, **settings):
  """The library's result for RUN in one call."""
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
    for name in FILES - {"state"}:
      assert str(out / name) in output

  @pytest.mark.slow
  @pytest.mark.parametrize(
    ("key", "teacher"),
    [("sgd", last.teachers.sgd()), ("greedy:none", last.teachers.greedy(last.constraints.none()))],
  )
  def test_curves_are_those_of_the_library(self, whole_run, key, teacher):
    curves, lessons = read_arrays(whole_run[0] / "curves.npz"), read_arrays(whole_run[0] / "lessons.npz")
    result = directly(teacher, tolerance=5.0, lessons=True)
    np.testing.assert_array_equal(curves["step"], [0, 4, 8, 12, 16, 20, 23])
    # The command's numbers are arguments of its program, and the session's compiler rounds two programs in two ways.
    for metric in ("distance", "objective", "accuracy"):
      np.testing.assert_allclose(curves[f"{key}/{metric}"], getattr(result, metric), rtol=1e-6, err_msg=metric)
    np.testing.assert_array_equal(curves[f"{key}/hitting_time"], result.hitting_time)
    np.testing.assert_array_equal(lessons[f"{key}/index"], result.lessons.index)
    np.testing.assert_allclose(lessons[f"{key}/label"], result.lessons.label, rtol=1e-5, atol=1e-6)
    assert (curves[f"{key}/hitting_time"] == 0).any()  # Some students are near enough before they start.

  @pytest.mark.parametrize("key", ["sgd", "greedy:none"])
  @pytest.mark.parametrize("student", [0, 2])
  def test_a_student_with_nothing_but_the_lessons_ends_where_the_simulated_one_did(self, whole_run, key, student):
    path = whole_run[0] / "lessons.npz"
    arrays, facts = read(path)
    for name, value in follow(path, student=student, teacher=key).items():
      np.testing.assert_allclose(value, arrays[f"{key}/final/{name}"][student], atol=1e-4)
    assert {"x", "truth", "target/weights"} <= set(arrays)
    assert facts["inputs"]["words"] == "--dataset=half_moons --seed=1"
    last.load(path).check_pool(data.half_moons(1).train)

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

  @pytest.mark.slow
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


class TestLabels:
  """How labels are found comes from the teacher's certificate on this problem."""

  def test_closed_forms_are_exact_and_ground_truth_is_not_solved_for(self, whole_run):
    methods = json.loads((whole_run[0] / "summary.json").read_text())["methods"]
    assert (methods["greedy:none"]["labels"], methods["greedy:none"]["exact"]) == ("closed form", True)
    assert "labels" not in methods["sgd"]

  @pytest.mark.slow
  def test_a_batch_too_large_to_enumerate_is_a_local_optimum(self, tmp_path, monkeypatch, capsys):
    """Ten classes and a batch of four have 10,000 labellings, also where the model does not say how many outputs."""
    module = (
      "import jax, last_jax as last\n"
      "def make(num_features, num_outputs, learning_rate):\n"
      "  init = lambda key: {'w': jax.random.normal(key, (num_features, num_outputs))}\n"
      "  apply = lambda params, x: x @ params['w']\n"
      "  return last.learners.from_apply(init, apply, 'softmax_cross_entropy', learning_rate=learning_rate)\n"
    )
    (tmp_path / "ten_classes.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    data.save_npz(tmp_path / "ten.npz", x=generator.normal(size=(30, 3)), y=np.arange(30) % 10, target=np.ones(30))
    flags = ("--learner=ten_classes:make", "--teacher=greedy", "--constraint=one_hot", "--batch_size=4", "--steps=2")
    assert run(tmp_path / "out", f"--dataset={tmp_path / 'ten.npz'}", *flags, "--students=2") == 0
    method = json.loads((tmp_path / "out" / "summary.json").read_text())["methods"]["greedy:one_hot"]
    assert not method["exact"]
    assert "coordinate descent" in method["labels"]
    assert "a local optimum" in capsys.readouterr().out


class TestMethods:
  def names(self, *flags):
    values = teach.make_flags()
    values(["teach", *flags])
    learner = last.learners.logistic(2, learning_rate=0.1)
    choice = methods.choose(values, learner, data.half_moons())
    built = methods.build(values, choice, learner, learner.init(jax.random.key(0)))
    return {key: method.teacher.name for key, method in built.items()}

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

  def test_methods_that_differ_have_names_that_differ(self):
    constraints = (
      "magnitude:1,magnitude:1:1,magnitude:1:inf,magnitude:1:2:prediction,simplex:1,simplex:1:inf:prediction"
    )
    names = self.names("--teacher=greedy,mixed,mixed", "--joint", f"--constraint={constraints}")
    assert len(names) == len(set(names.values())) == 12
    assert names["joint_mixed:simplex:1:inf:prediction"] == "joint mixed (simplex, r=1, p=inf, around prediction)"

  def test_sparse_labels(self):
    names = self.names("--teacher=greedy,mixed", "--constraint=simplex:max_nonzero=2,simplex:max_nonzero=3")
    assert len(names) == len(set(names.values())) == 4
    assert names["greedy:simplex:max_nonzero=2"] == "LAST (simplex, k=2)"

  def test_the_planner_has_its_sets_too(self):
    names = self.names("--teacher=planner", "--constraint=one_hot,none", "--horizon=3")
    assert names == {"planner:one_hot": "planner (one_hot)", "planner:none": "planner (none)"}

  @pytest.mark.slow
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
  @pytest.mark.slow
  def test_after_an_interrupt_it_resumes_to_the_same_results(self, tmp_path):
    """Interrupted before anything is finished, then after one of two methods; the last time it may finish."""
    flags = ("--teacher=sgd,imt", "--steps=20000", "--students=20", "--record_every=400")
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    for moment, finished in (("SGD: compiling", 0), ("IMT: compiling", 1)):
      process = start_process([*flags, f"--out={broken}", "--resume"])
      for line in process.stdout:
        if moment in line:
          process.send_signal(signal.SIGINT)
          break
      output, errors = process.communicate(timeout=120)
      assert process.returncode == 130, errors
      assert f"{finished} of 2 methods are finished; --resume continues" in output
      assert "Traceback" not in errors
    summary = json.loads((broken / "summary.json").read_text())
    assert summary["interrupted"]
    assert list(summary["methods"]) == ["sgd"]
    curves = read_arrays(broken / "curves.npz")
    assert set(curves) == {"step", "sgd/distance", "sgd/objective", "sgd/accuracy"}
    assert curves["sgd/distance"].shape == (20, 51)

    assert run(broken, *flags) == 2  # An unfinished run is not replaced by accident.
    for out, more in ((broken, ["--resume"]), (whole, [])):
      status, _, errors = run_process(*flags, f"--out={out}", *more)
      assert status == 0, errors
    assert (broken / "curves.npz").read_bytes() == (whole / "curves.npz").read_bytes()
    assert not json.loads((broken / "summary.json").read_text())["interrupted"]

  @pytest.mark.slow
  @pytest.mark.parametrize("kills", [2, pytest.param(5, marks=pytest.mark.faults)])
  def test_killed_at_random_moments_it_resumes_to_the_same_bits(self, tmp_path, kills):
    flags = (
      "--teacher=sgd,greedy,mixed", "--joint", "--constraint=none,simplex", "--steps=60000", "--students=5",
      "--record_every=100", "--lessons", "--tolerance=0.05", "--checkpoint_seconds=0",
    )  # fmt: skip
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    status, _, errors = run_process(*flags, f"--out={whole}")
    assert status == 0, errors
    draw, files, killed = random.Random(0), [], 0
    while killed < kills:
      process = start_process([*flags, f"--out={broken}", "--resume"])
      known, deadline = len(files), time.monotonic() + 120
      while process.poll() is None and len(list(broken.rglob("records-*.npz"))) <= known:
        assert time.monotonic() < deadline
        time.sleep(0.02)
      time.sleep(draw.uniform(0.0, 1.0))
      if process.poll() is not None:
        break
      process.kill()
      killed += 1
      process.communicate()
      files = list(broken.rglob("records-*.npz"))
    assert killed >= min(kills, 3)  # Or little was resumed.
    status, _, errors = run_process(*flags, f"--out={broken}", "--resume")
    assert status == 0, errors
    for name in ("curves.npz", "lessons.npz"):
      assert (broken / name).read_bytes() == (whole / name).read_bytes()

  @pytest.mark.slow
  def test_a_failure_does_not_lose_finished_methods(self, tmp_path, monkeypatch):
    take_steps = last.run

    def fail_at_imt(state, problem, teacher, **settings):
      if teacher.name == "IMT":
        raise RuntimeError("out of memory")
      return take_steps(state, problem, teacher, **settings)

    monkeypatch.setattr(last, "run", fail_at_imt)
    flags = ("--teacher=sgd,imt", "--students=2", "--steps=4")
    with pytest.raises(RuntimeError, match="out of memory"):
      run(tmp_path, *flags)
    assert set(read_arrays(tmp_path / "curves.npz")) == {"step", "sgd/distance", "sgd/objective", "sgd/accuracy"}
    monkeypatch.undo()
    assert run(tmp_path, *flags, "--resume") == 0
    assert "imt/distance" in read_arrays(tmp_path / "curves.npz")

  @pytest.mark.slow
  def test_students_that_diverge_are_counted(self, tmp_path, capsys):
    with jax.debug_nans(False):
      flags = ("--dataset=regression", "--learning_rate=100", "--teacher=sgd", "--students=2", "--steps=200")
      assert run(tmp_path, *flags) == command.DIVERGED == 3
    assert {path.name for path in tmp_path.iterdir()} == FILES
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["methods"]["sgd"]["diverged"] == 2
    curves = read_arrays(tmp_path / "curves.npz")
    lost = ~np.isfinite(curves["sgd/distance"]) | ~np.isfinite(curves["sgd/objective"])
    for student, step in zip(lost, curves["sgd/diverged_at"], strict=True):
      assert step == curves["step"][student][0] > 0
    assert summary["methods"]["sgd"]["first_diverged_at"] == curves["sgd/diverged_at"].min()
    assert summary["methods"]["sgd"]["distance"]["mean"] is None
    output = capsys.readouterr().out
    assert "2 students diverged" in output
    assert "--learning_rate" in output

  @pytest.mark.slow
  def test_a_closed_pipe_ends_it_quietly(self):
    for flags in (["--help"], ["--teacher=sgd", "--steps=3", "--students=2", "--out=/dev/null/none"]):
      process = start_process(flags)
      process.stdout.close()
      errors = process.stderr.read()
      process.stderr.close()
      process.wait(timeout=120)
      assert "Traceback" not in errors
      assert "BrokenPipe" not in errors


class TestFolder:
  FLAGS = ("--teacher=sgd", "--students=2", "--steps=3")

  @pytest.mark.parametrize("name", ["lessons.npz", "curves.npz"])
  def test_files_of_others_are_named_and_neither_replaced_nor_removed(self, tmp_path, capsys, name):
    (tmp_path / name).write_bytes(b"precious")
    for flags in ((), ("--resume",)):
      assert run(tmp_path, *self.FLAGS, *flags) == 2
      assert f"--out={tmp_path} holds {name}" in capsys.readouterr().err
      assert read_all(tmp_path) == {tmp_path / name: b"precious"}

  @pytest.mark.slow
  def test_results_of_other_settings_stay_until_overwritten(self, tmp_path, capsys):
    assert run(tmp_path, *self.FLAGS, "--lessons") == 0
    before = read_all(tmp_path)
    assert run(tmp_path, *self.FLAGS) == 2
    error = capsys.readouterr().err
    assert "curves.npz" in error
    assert "--lessons=True instead of False" in error
    assert "--overwrite" in error
    assert read_all(tmp_path) == before
    assert run(tmp_path, *self.FLAGS, "--overwrite") == 0
    assert not (tmp_path / "lessons.npz").exists()  # It would not be of these curves.

  @pytest.mark.slow
  def test_the_same_command_again_replaces_its_own_files_and_no_others(self, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for _ in range(2):
      assert run(tmp_path, *self.FLAGS) == 0
    assert {path.name for path in tmp_path.iterdir()} == FILES | {"notes.txt"}

  @pytest.mark.slow
  def test_resuming_with_another_flag_names_it(self, tmp_path, capsys):
    data.save_npz(tmp_path / "data.npz", x=np.eye(3), y=np.array([0, 1, 0]))
    out, dataset = tmp_path / "out", f"--dataset={tmp_path / 'data.npz'}"
    assert run(out, *self.FLAGS, dataset) == 0
    assert run(out, *self.FLAGS, dataset, "--resume", "--weight_decay=0.1") == 2
    assert "--weight_decay=5e-05 instead of 0.1" in capsys.readouterr().err
    data.save_npz(tmp_path / "data.npz", x=np.eye(3), y=np.array([0, 1, 1]))
    assert run(out, *self.FLAGS, dataset, "--resume") == 2
    assert f"another content of {dataset}" in capsys.readouterr().err
    assert run(out, *self.FLAGS, dataset, "--resume", "--overwrite") == 2
    assert "--resume and --overwrite exclude each other" in capsys.readouterr().err

  @pytest.mark.slow
  def test_a_damaged_state_is_named(self, tmp_path, capsys):
    assert run(tmp_path, *self.FLAGS) == 0
    state = tmp_path / "state" / "sgd" / "state.npz"
    state.write_bytes(state.read_bytes()[:-30])
    assert run(tmp_path, *self.FLAGS, "--resume") == 2
    error = capsys.readouterr().err
    assert "--resume" in error
    assert str(state) in error


def test_a_network_is_noted_whose_target_is_of_another_start():
  dataset, keys = data.half_moons(per_class=5), jax.random.split(jax.random.key(0), 3)
  network, linear = last.learners.mlp((2, 8, 2), learning_rate=0.1), last.learners.logistic(2, learning_rate=0.1)
  for learner, expected in ((network, 1), (linear, 0)):
    given = problem.Given(dataset, "the learner", learner, 0.1)
    starts, own = jax.vmap(learner.init)(keys[:2]), learner.init(keys[0])
    notes = problem.note_far(given, learner.init(keys[2]), starts)
    assert len(notes) == expected
    assert all("another start" in note for note in notes)
    assert problem.note_far(given, own, starts) == []
