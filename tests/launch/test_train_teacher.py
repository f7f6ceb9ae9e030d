"""`launch.train_teacher`: its files, flags from the settings, resuming to the same bits after kills, refusals."""

import dataclasses
import json
import random
import shlex
import shutil
import signal
import time

import jax
import numpy as np
import pytest

import last_jax as last
from last_jax.io import read_arrays
from launch import metrics, teach, train_teacher
from tests.launch.running import read_all, start_process

SMALL = (
  "--dataset=half_moons", "--learning_rate=0.3", "--teacher_hidden=16", "--horizon=5", "--students=4",
  "--start_near=0.3", "--report_every=10",
)  # fmt: skip
FILES = {"policy.npz", "metrics.jsonl", "training.png", "summary.json", "config.json", "checkpoints"}


def run(out, *flags):
  return train_teacher.main(["train_teacher", f"--out={out}", *SMALL, *flags])


def start(out, *flags):
  return start_process([f"--out={out}", *SMALL, *flags], "launch.train_teacher")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
  out = tmp_path_factory.mktemp("trained")
  assert run(out, "--episodes=60") == 0
  return out


class TestFiles:
  def test_all_are_there(self, trained):
    assert {path.name for path in trained.iterdir()} == FILES

  def test_metrics_come_line_by_line(self, trained):
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert [line["episode"] for line in lines] == [10, 20, 30, 40, 50, 60]
    for line in lines:
      assert {"loss", "distance", "skipped", "episodes_per_second"} <= set(line)
      assert np.isfinite(line["loss"])
      assert line["skipped"] == 0

  @pytest.mark.slow
  def test_the_teacher_is_that_of_the_library(self, trained):
    policy = last.load_policy(trained / "policy.npz")
    data = last.data.half_moons(0)
    learner = last.learners.softmax(2, 2, learning_rate=0.3, weight_decay=5e-5, bias=False)
    target_key, training_key = jax.random.split(jax.random.key(0))
    target = last.fit_target(learner, data.train, key=target_key)
    expected, log = last.train_unrolled(
      training_key,
      learner,
      data.train,
      target=target,
      init_fn=last.training.near(target, 0.3),
      horizon=5,
      students=4,
      hidden=(16,),
      episodes=60,
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), policy.weights, expected.weights)
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    np.testing.assert_allclose([line["loss"] for line in lines], np.asarray(log.loss).reshape(6, 10).mean(1), rtol=1e-3)

  def test_the_command_in_the_config_does_the_same_again(self, trained, tmp_path):
    config = json.loads((trained / "config.json").read_text())
    words = shlex.split(config["command"])
    assert words[:3] == ["python", "-m", "launch.train_teacher"]
    flags = [word for word in words[3:] if not word.startswith("--out=")]
    assert train_teacher.main(["train_teacher", *flags, f"--out={tmp_path}"]) == 0
    assert (tmp_path / "policy.npz").read_bytes() == (trained / "policy.npz").read_bytes()

  @pytest.mark.slow
  def test_the_finished_teacher_teaches_beside_others(self, trained, tmp_path, capsys):
    # The command that training prints at its end.
    assert run(tmp_path / "again", "--episodes=10") == 0
    printed = capsys.readouterr().out
    words = shlex.split(next(line for line in printed.splitlines() if line.startswith("try it: "))[len("try it: ") :])
    assert words[:3] == ["python", "-m", "launch.teach"]
    assert f"--out={tmp_path / 'again' / 'teach'}" in words  # Not where other results may be.
    assert teach.main(["teach", *words[3:], "--students=3", f"--out={tmp_path / 'taught'}"]) == 0
    summary = json.loads((tmp_path / "taught" / "summary.json").read_text())
    assert set(summary["methods"]) == {"sgd", "imt", "greedy:simplex", "policy"}
    curves = read_arrays(tmp_path / "taught" / "curves.npz")
    assert curves["policy/distance"].shape == curves["sgd/distance"].shape
    assert all(method["run_seconds"] > 0 for method in summary["methods"].values())
    assert (tmp_path / "taught" / "time.png").is_file()
    # The same students.
    np.testing.assert_array_equal(curves["policy/distance"][:, 0], curves["sgd/distance"][:, 0])


@pytest.mark.slow
def test_the_command_that_tries_the_teacher_of_a_regression_works(tmp_path, capsys):
  """A network that predicts numbers, whose labels are on no simplex."""
  flags = ("--dataset=regression", "--learner=mlp", "--hidden=4", "--episodes=2", "--report_every=2")
  assert run(tmp_path, *flags) == 0
  printed = capsys.readouterr().out
  words = shlex.split(next(line for line in printed.splitlines() if line.startswith("try it: "))[len("try it: ") :])
  assert teach.main(["teach", *words[3:], "--students=2", "--steps=2"]) == 0
  summary = json.loads((tmp_path / "teach" / "summary.json").read_text())
  assert set(summary["methods"]) == {"sgd", "imt", "greedy:none", "policy"}


def test_flags_have_the_defaults_and_the_help_of_the_settings():
  """Each setting has a flag; all methods' defaults are the library's, without a second spelling."""
  values = train_teacher.make_flags()
  others = {
    "hidden": "teacher_hidden",
    "learning_rate": "teacher_learning_rate",
    "weight_decay": "teacher_weight_decay",
  }
  without = {"optimizer", "policy", "evaluate_every"}
  shared = {}
  for method in (last.training.Unrolled, last.training.Reinforce, last.training.Evolution):
    for field in dataclasses.fields(method):
      shared.setdefault(field.name, []).append(field)
  for name, fields in shared.items():
    if name in without:
      continue
    flag = values[others.get(name, name)]
    assert all(field.metadata["help"] in flag.help for field in fields)
    if len({field.default for field in fields}) > 1:
      assert flag.default is None
      assert all(str(field.default) in flag.help for field in fields)
    elif name == "hidden":
      assert tuple(map(int, flag.default)) == fields[0].default
    else:
      assert flag.default == fields[0].default


@pytest.mark.slow
@pytest.mark.parametrize(
  "flags",
  [
    ("--method=reinforce",),
    ("--method=reinforce", "--view=black_box", "--reward=steps:0.8", "--actions=mixtures:0.5,1"),
    ("--view=black_box", "--output=residue:0.5:free", "--validation=test"),
    ("--method=evolution", "--persistent", "--teacher_hidden=", "--output=simplex:2", "--reset=0.5"),
    pytest.param(
      ("--learner=mlp", "--hidden=4", "--output=free", "--segment=2", "--x64", "--start_near=0"),
      marks=pytest.mark.slow,
    ),
  ],
)
def test_methods_and_views(tmp_path, flags):
  assert run(tmp_path, "--episodes=4", "--report_every=2", *flags) == 0
  assert {path.name for path in tmp_path.iterdir()} == FILES
  lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert ("distance" in lines[0]) == ("--view=black_box" not in flags)
  kept = {"--method=reinforce", "--method=evolution", "--view=black_box"}
  assert ("score" in lines[0]) == (not kept.isdisjoint(flags))
  policy = last.load_policy(tmp_path / "policy.npz")
  assert policy.needs_target == ("--view=black_box" not in flags)


class TestResuming:
  FLAGS = ("--episodes=800", "--checkpoint_seconds=0", "--method=reinforce", "--horizon=10")

  @staticmethod
  def checkpoints(out):
    folder = out / "checkpoints"
    return {path.name for path in folder.iterdir() if path.name.isdecimal()} if folder.is_dir() else set()

  @pytest.mark.slow
  @pytest.mark.parametrize(("kills", "least"), [(3, 1), pytest.param(10, 4, marks=pytest.mark.faults)])
  def test_killed_at_random_moments_it_ends_in_the_same_bits(self, tmp_path, kills, least):
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    process = start(whole, *self.FLAGS)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    for _ in range(2):  # Killed after its first checkpoint: when it was begun, and when it was resumed.
      begin, known = time.monotonic(), self.checkpoints(broken)
      process = start(broken, *self.FLAGS, "--resume")
      while not self.checkpoints(broken) - known:
        assert process.poll() is None
        time.sleep(0.05)
      starting = time.monotonic() - begin
      process.send_signal(signal.SIGKILL)
      process.communicate()
    draw = random.Random(0)
    killed, reached = 2, set()
    while killed < kills:
      process = start(broken, *self.FLAGS, "--resume")
      time.sleep(draw.uniform(0.5 * starting, starting + 2.0))
      if process.poll() is None:
        process.send_signal(signal.SIGKILL)
        killed += 1
      else:
        # It was done. Begin again: kills after the end would show nothing.
        assert (broken / "policy.npz").read_bytes() == (whole / "policy.npz").read_bytes()
        shutil.rmtree(broken)
      process.communicate()
      reached |= self.checkpoints(broken)
    assert len(reached) >= least, reached  # Or nothing was resumed.
    process = start(broken, *self.FLAGS, "--resume")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert (broken / "policy.npz").read_bytes() == (whole / "policy.npz").read_bytes()
    one, other = (
      [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()] for out in (whole, broken)
    )
    for line in one + other:
      line.pop("episodes_per_second")
    assert one == other

  @pytest.mark.slow
  def test_an_interrupt_saves_a_checkpoint(self, tmp_path):
    process = start(tmp_path, "--episodes=1000000")
    deadline = time.monotonic() + 120
    metrics = tmp_path / "metrics.jsonl"
    while time.monotonic() < deadline and not (metrics.is_file() and metrics.stat().st_size):
      time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "--resume continues" in output
    reached = max(int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit())
    assert reached >= 10
    assert not (tmp_path / "policy.npz").exists()

  def test_another_training_is_not_replaced_and_the_flag_that_differs_is_named(self, trained, capsys):
    before = read_all(trained)
    for flags, parts in (
      (("--seed=1",), ["metrics.jsonl", "policy.npz", "--seed=0 instead of 1", "--overwrite"]),
      (("--seed=1", "--resume"), ["--resume", "--seed=0 instead of 1"]),
      (("--episodes=80",), ["--episodes=60 instead of 80", "--resume continues it"]),
      (("--reset=0.5", "--resume"), ["--reset=0.2 instead of 0.5"]),
    ):
      assert run(trained, "--episodes=60", *flags) == 2
      error = capsys.readouterr().err
      for part in parts:
        assert part in error
    assert read_all(trained) == before

  def test_a_finished_training_is_replaced_only_if_asked_for(self, trained, capsys):
    before = read_all(trained)
    assert run(trained, "--episodes=60") == 2
    assert "holds a finished run of the same command" in capsys.readouterr().err
    assert read_all(trained) == before

  def test_metrics_that_were_lost_are_noted(self, trained, tmp_path, capsys):
    out = shutil.copytree(trained, tmp_path / "run")
    lines = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text("".join(lines[:4]))
    assert run(out, "--episodes=60", "--resume") == 0
    assert "note: metrics.jsonl has lost its lines before episode 60" in capsys.readouterr().out

  def test_metrics_of_others_are_not_emptied(self, tmp_path, capsys):
    (tmp_path / "metrics.jsonl").write_text("precious\n")
    assert run(tmp_path, "--episodes=10") == 2
    assert f"--out={tmp_path} holds metrics.jsonl" in capsys.readouterr().err
    assert (tmp_path / "metrics.jsonl").read_text() == "precious\n"
    assert run(tmp_path, "--episodes=10", "--overwrite") == 0
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1

  @pytest.mark.parametrize(
    "line",
    [
      "precious",
      "[1]",
      "{}",
      '{"episode": "10", "skipped": 0}',
      '{"episode": 10}',
      '{"episode": 10, "skipped": 0, "loss": "low"}',
      '{"episode": 60, "skipped": 0}',
      "[" * 100_000,
      "\udcff",
    ],
  )
  def test_a_foreign_line_of_metrics_is_an_error_before_training(self, trained, tmp_path, capsys, monkeypatch, line):
    out = shutil.copytree(trained, tmp_path / "run")
    lines = (out / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    lines[2] = line.encode(errors="surrogateescape") + b"\n"
    (out / "metrics.jsonl").write_bytes(b"".join(lines))
    before = read_all(out)
    monkeypatch.setattr(train_teacher.Trainer, "advance", None)  # Not called.
    assert run(out, "--episodes=80", "--resume") == 2
    number = 4 if "60" in line else 3  # Out of order is seen at the line after it.
    assert f"error: {out / 'metrics.jsonl'}, line {number}, is not one of this command" in capsys.readouterr().err
    assert read_all(out) == before

  def test_a_line_that_a_killed_process_began_is_dropped(self, trained, tmp_path):
    path = tmp_path / "metrics.jsonl"
    whole = (trained / "metrics.jsonl").read_bytes()
    for length in range(whole.rindex(b"{") + 1, len(whole)):
      path.write_bytes(whole[:length])
      assert [line["episode"] for line in metrics.read(path, 60)] == [10, 20, 30, 40, 50]
    path.write_bytes(whole)
    assert [line["episode"] for line in metrics.read(path, 40)] == [10, 20, 30, 40]
    assert path.read_bytes() == b"".join(whole.splitlines(keepends=True)[:4])

  @pytest.mark.slow
  def test_a_training_can_be_made_longer(self, trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "longer")
    assert run(tmp_path / "longer", "--episodes=80", "--resume") == 0
    assert "resuming after episode 60" in capsys.readouterr().out
    assert run(tmp_path / "whole", "--episodes=80") == 0
    assert (tmp_path / "longer" / "policy.npz").read_bytes() == (tmp_path / "whole" / "policy.npz").read_bytes()

  @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
  def test_a_truncated_checkpoint_is_named_and_not_changed(self, trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "run")
    files = [p for p in (tmp_path / "run" / "checkpoints" / "60" / "state").rglob("*") if p.is_file()]
    largest = max(files, key=lambda p: p.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-40])
    checkpoints = tmp_path / "run" / "checkpoints"
    before = read_all(checkpoints)
    assert run(tmp_path / "run", "--episodes=80", "--resume") == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "run" / "checkpoints" / "60") in error
    assert "was not changed" in error
    assert read_all(checkpoints) == before


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (("--method=walk",), "method"),
    (("--output=cube",), "--output=cube: it must have one of the forms simplex, simplex:PRIOR, free"),
    (("--output=residue:x",), "'x' is not a number"),
    (("--method=reinforce", "--actions=many"), "--actions=many: it must have one of the forms binary"),
    (("--method=reinforce", "--actions=none.npz"), "none.npz"),
    (("--method=reinforce", "--reward=fame"), "--reward=fame: it must have one of the forms distance"),
    (("--view=black_box", "--features=x,target"), "--features ('x', 'target') need a target"),
    (("--method=reinforce", "--view=black_box", "--reward=distance"), "--reward: the distance needs a target"),
    (("--reward=accuracy",), "--reward must be rewards.distance() or loss()"),
    (("--teacher_hidden=8,x",), "--teacher_hidden=8,x: it must be the widths"),
    (("--teacher_weight_decay=-1",), "--teacher_weight_decay must be zero or"),
    (("--reset=2",), "--reset must lie between 0 and 1"),
    (("--checkpoint_seconds=-1",), "--checkpoint_seconds must be zero or"),
    (("--dataset=regression",), "--learner=softmax"),
    (("--students=0",), "students"),
  ],
)
def test_bad_flags_are_named_and_nothing_is_written(tmp_path, capsys, flags, message):
  assert run(tmp_path / "out", *flags) == 2
  assert message in capsys.readouterr().err
  assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_teach_refuses_what_is_no_policy(tmp_path, capsys):
  for flags, message in (
    ((), "--teacher=policy needs --policy"),
    ((f"--policy={tmp_path}",), "launch.train_teacher writes it when training is finished"),
  ):
    assert teach.main(["teach", f"--out={tmp_path / 'out'}", "--teacher=policy", *flags]) == 2
    assert message in capsys.readouterr().err


def test_help_teaches(capsys):
  assert train_teacher.main(["train_teacher", "--help"]) == 0
  printed = capsys.readouterr().out
  for word in ("--method=unroll", "--view=omniscient", "--resume", "policy.npz", "python -m launch.train_teacher"):
    assert word in printed
