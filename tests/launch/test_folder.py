"""A folder holds one run, whatever ends it: kills, full disks, folders that vanish, pictures that fail."""

import errno
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import types

import numpy as np
import pytest

import last_jax as last
from last_jax import data, io, tools
from last_jax.training.checkpoint import Checkpoints
from launch import distill, folder, lock, output, reproduce, sweep, teach, train_teacher
from tests.launch.running import ROOT, read_all, run

FLAGS = ("--teacher=sgd", "--students=2", "--steps=3")
COMMANDS = {
  "teach": (teach, FLAGS),
  "sweep": (teach, (*FLAGS, "--learning_rate=0.1,0.2")),
  "distill": (distill, ("--examples=4", "--steps=3", "--students=2", "--fresh=2")),
  "train_teacher": (train_teacher, ("--dataset=half_moons", "--episodes=2", "--horizon=2", "--students=2")),
  "reproduce": (reproduce, ("--quick", "--figure=theory")),
}


def start(name, out, *more):
  command, flags = COMMANDS[name]
  return command.main([name, f"--out={out}", *flags, *more])


@pytest.fixture(scope="module")
def _finished(tmp_path_factory):
  out = tmp_path_factory.mktemp("finished")
  assert run(out, *FLAGS, "--lessons") == 0
  return out


@pytest.fixture
def finished(_finished, tmp_path):
  """The folder of a finished run of `launch.teach`, with lessons."""
  return pathlib.Path(shutil.copytree(_finished, tmp_path / "run"))


def results(out):
  """Contents of the result files."""
  return {path.name: content for path, content in read_all(out).items() if "state" not in path.parts}


def assert_one_line(text, *parts):
  assert text.startswith("error: ")
  assert text.count("\n") == 1, text
  for part in parts:
    assert part in text


class TestKills:
  def kill(self, tmp_path, every):
    command = [sys.executable, "-m", "tests.launch.kill_points", str(tmp_path), str(every)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[0])

  @pytest.mark.slow
  def test_killed_before_some_calls_that_change_files(self, tmp_path):
    assert self.kill(tmp_path, 11) >= 9

  @pytest.mark.faults
  def test_killed_before_every_call_that_changes_a_file(self, tmp_path):
    assert self.kill(tmp_path, 1) >= 90

  @pytest.mark.faults
  def test_launch_teach_killed_at_every_third_change_of_its_files(self, finished):
    """After each kill, where there is a summary, curves, lessons and configuration agree with it."""
    killed = agreed = number = 0
    status, out = -signal.SIGKILL, finished
    while status == -signal.SIGKILL:
      code = (
        f"from tests.launch import kill_points; kill_points.kill_at({number}, {str(out)!r})\n"
        "import runpy; runpy.run_module('launch.teach', run_name='__main__', alter_sys=True)"
      )
      flags = (*FLAGS, f"--seed={number + 1}", "--overwrite", "--lessons" if number % 2 else "--nolessons")
      command = [sys.executable, "-c", code, *flags, f"--out={out}"]
      status = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=200, check=False).returncode
      killed, number = killed + (status == -signal.SIGKILL), number + 3
      if not (out / "summary.json").exists():
        continue
      agreed += 1
      summary, config = (io.read_json(out / f"{name}.json") for name in ("summary", "config"))
      assert summary["run"] == config["run"]
      curves = io.read_arrays(out / "curves.npz")
      assert summary["methods"]["sgd"]["distance"]["mean"] == pytest.approx(curves["sgd/distance"][:, -1].mean())
      assert (out / "lessons.npz").exists() == config["flags"]["lessons"]
      if config["flags"]["lessons"]:
        assert f"--seed={config['flags']['seed']}" in last.load(out / "lessons.npz").facts["inputs"]["words"]
    assert status == 0
    assert killed >= 12
    assert agreed >= 2
    assert not [path.name for path in out.iterdir() if path.name.startswith(".")]

  def test_what_killed_processes_left_is_removed(self, tmp_path):
    left = (".curves.npz.0123456789abcdef0123456789abcdef.tmp", ".together.0123456789abcdef0123456789abcdef.tmp")
    (tmp_path / left[0]).write_text("half")
    (tmp_path / left[1]).mkdir()
    (tmp_path / left[1] / "curves.npz").write_text("half")
    (tmp_path / lock.LOCK).write_text("process 1 on a machine that is gone")
    own = (".notes.tmp", "0123456789abcdef0123456789abcdef.tmp")
    for name in own:
      (tmp_path / name).write_text("mine")
    config = {"command": "python -m launch.some", "flags": {}, "data": {}}
    place = folder.Folder(tmp_path, ("config.json",), "state")
    place.check(config, resume=False, overwrite=False)
    with place.begin(config, resume=False, overwrite=False):
      pass
    assert {path.name for path in tmp_path.iterdir()} == {*own, "config.json"}


class TestTwoRuns:
  @pytest.mark.parametrize("name", COMMANDS)
  def test_the_second_is_refused_and_changes_nothing(self, tmp_path, capsys, name):
    with lock.hold(tmp_path):
      before = read_all(tmp_path)
      assert start(name, tmp_path) == 2
      assert read_all(tmp_path) == before
    assert_one_line(capsys.readouterr().err, f"--out={tmp_path} is in use by another run (process {os.getpid()} on")
    assert not list(tmp_path.iterdir())

  def test_one_that_began_meanwhile_is_noticed(self, tmp_path, capsys, monkeypatch):
    """Checked before the target is fitted, and again when the run begins."""
    prepare = teach._prepare

    def slowly(*arguments):
      setup = prepare(*arguments)
      data.save_npz(tmp_path / "curves.npz", x=np.eye(2), y=np.arange(2))
      return setup

    monkeypatch.setattr(teach, "_prepare", slowly)
    assert run(tmp_path, *FLAGS) == 2
    assert_one_line(capsys.readouterr().err, f"--out={tmp_path} holds curves.npz")

  def test_a_dead_process_holds_nothing(self, tmp_path):
    code = (
      "import sys, time; from launch import lock\n"
      "with lock.hold(sys.argv[1]): print('held', flush=True); time.sleep(100)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
      assert process.stdout.readline() == "held\n"
      with pytest.raises(ValueError, match=f"in use by another run .process {process.pid} on"), lock.hold(tmp_path):
        pass
      process.send_signal(signal.SIGKILL)
      process.wait()
    assert (tmp_path / lock.LOCK).exists()
    with lock.hold(tmp_path):
      pass
    assert not list(tmp_path.iterdir())

  def test_a_lock_that_was_removed_when_it_was_taken_does_not_count(self, tmp_path, monkeypatch):
    """Its holder removes the file between the two calls that open and lock it: another may have made a new one."""
    take, calls = lock._lock, []

    def slowly(path, descriptor):
      calls.append(path)
      if len(calls) == 1:
        path.unlink()
      take(path, descriptor)

    monkeypatch.setattr(lock, "_lock", slowly)
    with lock.hold(tmp_path) as held:
      held.check()
      assert (tmp_path / lock.LOCK).exists()
    assert len(calls) == 2

  def test_file_systems_without_locks_are_used_all_the_same(self, tmp_path, monkeypatch):
    def fail(*_):
      raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(lock.fcntl, "flock", fail)
    with lock.hold(tmp_path) as held:
      held.check()
    monkeypatch.setattr(lock, "fcntl", None)
    with pytest.warns(RuntimeWarning, match="two runs in one folder are not noticed"), lock.hold(tmp_path) as held:
      held.check()

  def test_windows(self, tmp_path, monkeypatch):
    """There a byte is locked, beyond those that say who holds the folder."""
    taken = set()

    def locking(descriptor, mode, size):
      place = (os.fstat(descriptor).st_ino, os.lseek(descriptor, 0, os.SEEK_CUR))
      if place in taken:
        raise PermissionError(errno.EACCES, "Permission denied")
      taken.add(place)

    monkeypatch.setattr(lock, "fcntl", None)
    monkeypatch.setattr(lock, "msvcrt", types.SimpleNamespace(locking=locking, LK_NBLCK=2))
    with lock.hold(tmp_path) as held:
      held.check()
      with pytest.raises(ValueError, match=f"in use by another run .process {os.getpid()} on"), lock.hold(tmp_path):
        pass
      assert (tmp_path / lock.LOCK).read_text().startswith(f"process {os.getpid()} on")
      taken.clear()
    assert not list(tmp_path.iterdir())


class TestFullDisks:
  @pytest.mark.parametrize("name", ["curves.npz", "lessons.npz", "summary.json", "config.json", "state.npz"])
  def test_earlier_results_stay_whole(self, finished, capsys, monkeypatch, name):
    before, fsync, written = results(finished), os.fsync, []

    def fail(descriptor):
      path = os.readlink(f"/proc/self/fd/{descriptor}")
      written.append(path)
      if f".{name}." in path:
        raise OSError(errno.ENOSPC, "No space left on device")
      fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    assert run(finished, *FLAGS, "--lessons") == 1
    assert_one_line(capsys.readouterr().err, name, "No space left on device", "files that were complete stay")
    assert any(f".{name}." in path for path in written)
    assert results(finished) == before
    monkeypatch.undo()
    assert run(finished, *FLAGS, "--lessons", "--resume") == 0
    assert {path.name for path in finished.iterdir()} == {*before, "state"}

  def limited(self, out, size):
    """Run `launch.teach` in a process whose files may have no more bytes than this."""
    code = (
      f"import resource, runpy; resource.setrlimit(resource.RLIMIT_FSIZE, ({size}, {size}))\n"
      "runpy.run_module('launch.teach', run_name='__main__', alter_sys=True)"
    )
    command = [sys.executable, "-c", code, *FLAGS, "--lessons", f"--out={out}"]
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "0"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout, done.stderr

  @pytest.mark.slow
  def test_numbers_fit_and_pictures_do_not(self, tmp_path):
    shown, errors = self.limited(tmp_path, 8_000)
    assert errors.count("could not be made, all else is written") == 2
    assert "±" in shown
    assert set(results(tmp_path)) == {"config.json", "curves.npz", "lessons.npz", "summary.json"}

  @pytest.mark.faults
  def test_nothing_fits(self, finished):
    before = results(finished)
    _, errors = self.limited(finished, 400)
    assert_one_line(errors.splitlines(keepends=True)[-1], str(finished), "File too large")
    assert results(finished) == before

  @pytest.mark.slow
  @pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
  @pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
  def test_a_checkpoint(self, tmp_path, capsys, monkeypatch):
    """Orbax and the libraries below it have errors of their own."""
    save = Checkpoints.save

    def limited(self, state):
      limits = resource.getrlimit(resource.RLIMIT_FSIZE)
      resource.setrlimit(resource.RLIMIT_FSIZE, (500, limits[1]))
      try:
        save(self, state)
      finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    monkeypatch.setattr(Checkpoints, "save", limited)
    assert start("train_teacher", tmp_path) == 1
    place = tmp_path / "checkpoints" / "2"
    assert_one_line(capsys.readouterr().err, f"error: {place}: this checkpoint could not be written", "File too large")
    monkeypatch.undo()
    assert start("train_teacher", tmp_path, "--resume") == 0
    assert {path.name for path in (tmp_path / "checkpoints").iterdir()} == {"2"}  # Nothing half written.


class TestVanishedFolders:
  @pytest.mark.slow
  @pytest.mark.parametrize("name", ["teach", "sweep", "distill"])
  @pytest.mark.parametrize("replaced", [False, True])
  def test_it_is_said_and_no_other_is_filled(self, tmp_path, capsys, monkeypatch, name, replaced):
    out, publish = tmp_path / "out", folder.Run.publish

    def vanish(self, summary):
      shutil.rmtree(out)
      if replaced:
        out.mkdir()
      return publish(self, summary)

    monkeypatch.setattr(folder.Run, "publish", vanish)
    assert start(name, out) == 1
    assert_one_line(capsys.readouterr().err, str(out), "the folder of this run was removed while it ran")
    assert out.exists() == replaced
    assert not replaced or not list(out.iterdir())

  def test_states_do_not_make_it_again(self, tmp_path, capsys, monkeypatch):
    out, make = tmp_path / "out", teach._make_course

    def vanish(setup, key):
      shutil.rmtree(out, ignore_errors=True)
      return make(setup, key)

    monkeypatch.setattr(teach, "_make_course", vanish)
    assert run(out, *FLAGS) == 1
    assert_one_line(capsys.readouterr().err, str(out), "No such file or directory")
    assert not out.exists()


class TestPictures:
  def test_one_that_fails_costs_itself(self, finished, capsys, monkeypatch):
    plot = tools.plot_charts

    def fail(path, *arguments, **settings):
      assert (finished / "summary.json").exists()  # Numbers come first, and the table.
      if path.name == "curves.png":
        assert "±" in capsys.readouterr().out
        raise RuntimeError("no\nfont")
      plot(path, *arguments, **settings)

    monkeypatch.setattr(tools, "plot_charts", fail)
    before = results(finished)
    assert run(finished, *FLAGS, "--lessons") == 1
    captured = capsys.readouterr()
    assert captured.err == f"error: {finished / 'curves.png'} could not be made, all else is written: no font\n"
    after = results(finished)
    assert set(after) == set(before) - {"curves.png"}  # An earlier picture is not of these numbers.
    assert after["curves.npz"] == before["curves.npz"]
    assert "curves.png" not in captured.out.splitlines()[-1]

  @pytest.mark.parametrize("error", [MemoryError(), OSError(errno.ENOSPC, "No space left on device")])
  def test_whatever_its_error_is(self, tmp_path, capsys, error):
    def fail(_):
      raise error

    assert output.draw_all({tmp_path / "a.png": fail, tmp_path / "b.png": pathlib.Path.touch}) == 1
    assert_one_line(capsys.readouterr().err, "a.png could not be made")
    assert (tmp_path / "b.png").exists()


ODD = ("$x^{2$", "a_b^c\\frac{", "[/b]:smile:", os.fsdecode(b"caf\xe9 \xff"), "é 😀")


class TestNames:
  @pytest.mark.slow
  @pytest.mark.parametrize("name", ["teach", "sweep", "distill"])
  def test_of_data_sets_classes_and_folders(self, tmp_path, capsys, name):
    moons = data.half_moons(3, per_class=20).train
    place = tmp_path / "".join(ODD).replace("/", "").replace("😀", "")  # Pictures have no letter for the last.
    place.mkdir()
    data.save_npz(place / f"{place.name[:60]}.npz", x=moons.x, y=np.asarray(moons.y), classes=np.array(ODD[1:3]))
    command, flags = COMMANDS[name]
    flags = (f"--dataset={place / place.name[:60]}.npz", f"--out={place / 'out'}", *flags)
    for more in ((), ("--resume",)):  # The folder is recognised again.
      assert command.main([name, *flags, *more]) == 0, capsys.readouterr().err
    summary, config = (io.read_json(place / "out" / f"{part}.json") for part in ("summary", "config"))
    assert summary["run"] == config["run"]
    assert place.name[:60] in summary["title"]
    assert config["flags"]["out"] == str(place / "out")
    for picture in (place / "out").glob("*.png"):
      assert picture.read_bytes().startswith(b"\x89PNG")
    assert "Traceback" not in capsys.readouterr().err

  def test_a_folder_that_checkpoints_cannot_have_is_refused_at_the_start(self, tmp_path, capsys):
    assert start("train_teacher", tmp_path / os.fsdecode(b"\xff")) == 2
    assert_one_line(capsys.readouterr().err, "must be a path in UTF-8")
    assert not list(tmp_path.iterdir())


class TestForeignFiles:
  @pytest.mark.parametrize("content", ["[" * 100_000, "{}", '{"command": ""}', '{"command": 3}', "null", "\x00"])
  def test_config_json(self, tmp_path, capsys, content):
    (tmp_path / "config.json").write_text(content)
    assert run(tmp_path, *FLAGS) == 2
    assert_one_line(capsys.readouterr().err, f"--out={tmp_path} holds config.json", "cannot be read")
    assert (tmp_path / "config.json").read_text() == content

  @pytest.mark.parametrize("arrays", [None, {"step": np.arange(2)}, {"step": np.array([0, 3]), "distance": np.eye(2)}])
  def test_settings_of_a_sweep_before_anything_is_taught(self, tmp_path, capsys, monkeypatch, arrays):
    assert start("sweep", tmp_path) == 0
    path = next(iter(sorted((tmp_path / "settings").rglob("*.npz"))))
    shutil.rmtree(path.parents[1] / "learning_rate=0.2")
    if arrays is None:
      path.write_bytes(path.read_bytes()[:-30])
    else:
      io.save_npz(path, **arrays)
    capsys.readouterr()
    monkeypatch.setattr(sweep.stacking, "teach_settings", lambda *_, **__: pytest.fail("taught"))
    assert start("sweep", tmp_path, "--resume") == 2
    assert_one_line(capsys.readouterr().err, str(path))
