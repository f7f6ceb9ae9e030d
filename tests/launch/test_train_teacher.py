"""The `launch.train_teacher` command: its files, resuming to the same bits after kills, and what it refuses."""

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
from last_jax.data.files import read_arrays
from launch import teach, train_teacher
from tests.launch.running import start_process

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
      starts=last.training.near(target, 0.3),
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

  def test_the_finished_teacher_teaches_beside_others(self, trained, tmp_path, capsys):
    # The command that training prints at its end.
    assert run(tmp_path / "again", "--episodes=10") == 0
    printed = capsys.readouterr().out
    words = shlex.split(next(line for line in printed.splitlines() if line.startswith("try it: "))[len("try it: ") :])
    assert words[:3] == ["python", "-m", "launch.teach"]
    assert teach.main(["teach", *words[3:], "--students=3", f"--out={tmp_path / 'taught'}"]) == 0
    summary = json.loads((tmp_path / "taught" / "summary.json").read_text())
    assert set(summary["methods"]) == {"sgd", "imt", "greedy:simplex", "policy"}
    curves = read_arrays(tmp_path / "taught" / "curves.npz")
    assert curves["policy/distance"].shape == curves["sgd/distance"].shape
    assert all(method["run_seconds"] > 0 for method in summary["methods"].values())
    assert (tmp_path / "taught" / "time.png").is_file()
    # The same students, the same examples: what begins alike begins alike.
    np.testing.assert_array_equal(curves["policy/distance"][:, 0], curves["sgd/distance"][:, 0])


@pytest.mark.parametrize(
  "flags",
  [
    ("--method=reinforce",),
    ("--method=reinforce", "--view=black_box", "--reward=steps:0.8", "--actions=mixtures:0.5,1"),
    ("--view=black_box", "--output=residue:0.5:free", "--validation=test"),
    ("--learner=mlp", "--hidden=4", "--output=free", "--segment=2", "--x64", "--start_near=0"),
  ],
)
def test_methods_and_views(tmp_path, flags):
  assert run(tmp_path, "--episodes=4", "--report_every=2", *flags) == 0
  assert {path.name for path in tmp_path.iterdir()} == FILES
  lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  assert ("distance" in lines[0]) == ("--view=black_box" not in flags)
  assert ("score" in lines[0]) == ("--method=reinforce" in flags or "--view=black_box" in flags)
  policy = last.load_policy(tmp_path / "policy.npz")
  assert policy.omniscient == ("--view=black_box" not in flags)


class TestResuming:
  FLAGS = ("--episodes=800", "--checkpoint_seconds=0", "--method=reinforce", "--horizon=10")

  @staticmethod
  def checkpoints(out):
    folder = out / "checkpoints"
    return {path.name for path in folder.iterdir() if path.name.isdecimal()} if folder.is_dir() else set()

  def test_killed_at_ten_random_moments_it_ends_in_the_same_bits(self, tmp_path):
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
    while killed < 10:
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
    assert len(reached) > 3, reached  # Or nothing was resumed.
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

  def test_an_interrupt_keeps_what_was_reached(self, tmp_path):
    process = start(tmp_path, "--episodes=1000000")
    deadline = time.monotonic() + 120
    metrics = tmp_path / "metrics.jsonl"
    while time.monotonic() < deadline and not (metrics.is_file() and metrics.stat().st_size):
      time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "--resume goes on from there" in output
    reached = max(int(path.name) for path in (tmp_path / "checkpoints").iterdir() if path.name.isdigit())
    assert reached >= 10
    assert not (tmp_path / "policy.npz").exists()

  def test_a_training_is_not_begun_over_another(self, trained, capsys):
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    assert run(trained, "--episodes=60") == 2
    assert "holds checkpoints of a training already: --resume goes on with it" in capsys.readouterr().err
    assert run(trained, "--episodes=60", "--resume", "--seed=1") == 2
    error = capsys.readouterr().err
    assert "belongs to another training" in error
    assert "60" in error
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before

  def test_a_training_can_be_made_longer(self, trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "longer")
    assert run(tmp_path / "longer", "--episodes=80", "--resume") == 0
    assert "going on after episode 60" in capsys.readouterr().out
    assert run(tmp_path / "whole", "--episodes=80") == 0
    assert (tmp_path / "longer" / "policy.npz").read_bytes() == (tmp_path / "whole" / "policy.npz").read_bytes()

  @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
  def test_a_truncated_checkpoint_is_named_and_left_as_it_is(self, trained, tmp_path, capsys):
    shutil.copytree(trained, tmp_path / "run")
    files = [p for p in (tmp_path / "run" / "checkpoints" / "60" / "state").rglob("*") if p.is_file()]
    largest = max(files, key=lambda p: p.stat().st_size)
    largest.write_bytes(largest.read_bytes()[:-40])
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert run(tmp_path / "run", "--episodes=80", "--resume") == 2
    error = capsys.readouterr().err
    assert str(tmp_path / "run" / "checkpoints" / "60") in error
    assert "was left as it is" in error
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
  ("flags", "message"),
  [
    (("--method=walk",), "method"),
    (("--output=cube",), "--output=cube must be simplex, free"),
    (("--output=residue:x",), "'x' is not a number"),
    (("--method=reinforce", "--actions=many"), "--actions=many is not known"),
    (("--method=reinforce", "--actions=none.npz"), "none.npz"),
    (("--method=reinforce", "--reward=fame"), "--reward=fame must be distance"),
    (("--view=black_box", "--features=x,target"), "need a target"),
    (("--method=reinforce", "--view=black_box", "--reward=distance"), "the distance needs a target"),
    (("--teacher_hidden=8,x",), "--teacher_hidden=8,x must be the widths"),
    (("--reset=2",), "reset must lie between 0 and 1"),
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
    ((f"--policy={tmp_path}",), "a training writes it when it is finished"),
  ):
    assert teach.main(["teach", f"--out={tmp_path / 'out'}", "--teacher=policy", *flags]) == 2
    assert message in capsys.readouterr().err


def test_help_teaches(capsys):
  assert train_teacher.main(["train_teacher", "--help"]) == 0
  printed = capsys.readouterr().out
  for word in ("--method=unroll", "--view=omniscient", "--resume", "policy.npz", "python -m launch.train_teacher"):
    assert word in printed
