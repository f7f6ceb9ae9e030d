"""A process that is killed at every change of files in turn: `python -m tests.launch.kill_points OUT EVERY`.

A run in OUT begins and writes its results, as the commands do, in a child that kills itself before its n-th call of the
system that changes a file, n = 0, EVERY, ..., until a child ends by itself. After each, no reader may take files of two
runs for those of one, and the next run must end in the same files as after no kill at all.
"""

import json
import os
import pathlib
import shutil
import signal
import sys

from last_jax import devices
from last_jax.io import save_npz
from launch.folder import Folder

CALLS = ("replace", "unlink", "mkdir", "rmdir", "fsync", "ftruncate", "open")
FILES = ("config.json", "curves.npz", "summary.json", "curves.png", "lessons.npz")


def run(out, tag, flags, *, lessons, resume=False, overwrite=False):
  """One run: states while it lasts, numbers, then a picture. All files hold its tag."""
  config = {"command": "python -m launch.some", "flags": flags, "data": {}, "versions": tag}
  folder = Folder(out, FILES, "state")
  folder.check(config, resume=resume, overwrite=overwrite)
  with folder.begin(config, resume=resume, overwrite=overwrite) as held:
    (out / "state").mkdir(exist_ok=True)
    save_npz(out / "state" / "state.npz", tag=tag)
    with held.publish({"interrupted": False, "tag": tag}) as aside:
      save_npz(aside / "curves.npz", tag=tag)
      if lessons:
        save_npz(aside / "lessons.npz", tag=tag)
    (out / "curves.png").write_text(tag)


def read(out):
  """Return the tags of the files that are there, as a reader would who trusts summary.json; None without it."""
  import numpy as np

  if not (out / "summary.json").exists():
    return None
  summary, config = (json.loads((out / name).read_text()) for name in ("summary.json", "config.json"))
  assert summary["run"] == config["run"], "summary.json and config.json are of different runs"
  tags = {"summary.json": summary["tag"], "config.json": config["versions"]}
  tags |= {name: str(np.load(out / name)["tag"]) for name in ("curves.npz", "lessons.npz") if (out / name).exists()}
  if (out / "curves.png").exists():
    tags["curves.png"] = (out / "curves.png").read_text() or summary["tag"]  # Killed between opening and writing.
  return tags


def kill_at(number, below=""):
  """Have this process kill itself before its n-th call that changes a file whose path begins with `below`."""
  left = number

  def wrap(call):
    def called(*arguments, **settings):
      nonlocal left
      place = arguments[0]
      path = os.readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else os.fspath(place)
      left -= path.startswith(below) if os.path.isabs(path) else not below
      if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
      return call(*arguments, **settings)

    return called

  for name in CALLS:
    setattr(os, name, wrap(getattr(os, name)))


def in_child(number, action):
  """Run an action in a child that is killed before its n-th call; return whether it ended by itself."""
  child = os.fork()
  if child == 0:
    kill_at(number)
    action()
    os._exit(0)
  status = os.waitpid(child, 0)[1]
  assert status == 0 or os.WTERMSIG(status) == signal.SIGKILL, status
  return status == 0


def main(out, every):
  devices.is_first = lambda: True  # JAX itself is not needed, and does not like to be forked.
  cases = {
    "new": None,
    "again": {"flags": {"seed": 0}},
    "overwritten": {"flags": {"seed": 1}, "overwrite": True},
  }
  kills = seen_before = seen_none = 0
  for name, settings in cases.items():
    number, ended = 0, False
    while not ended:
      shutil.rmtree(out, ignore_errors=True)
      if settings is not None:
        run(out, "first", {"seed": 0}, lessons=True)
      again = {"flags": {"seed": 0}} if settings is None else settings
      ended = in_child(number, lambda again=again: run(out, "second", **again, lessons=False))
      tags = read(out)
      if tags is not None:
        assert len(set(tags.values())) == 1, (name, number, tags)
        assert ("lessons.npz" in tags) == ("first" in tags.values()), (name, number, tags)
        assert {"summary.json", "config.json", "curves.npz"} <= set(tags), (name, number, tags)
      seen_none, seen_before = seen_none + (tags is None), seen_before + bool(tags and "first" in tags.values())
      resume = {} if again.get("overwrite") else {"resume": True}
      run(out, "third", **again | resume, lessons=False)
      assert set(read(out).values()) == {"third"}, (name, number, read(out))
      assert sorted(path.name for path in out.iterdir()) == sorted({*FILES, "state"} - {"lessons.npz"}), (name, number)
      number, kills = number + every, kills + (not ended)
  print(f"{kills} kills; afterwards {seen_before} times the earlier results whole, {seen_none} times none")


if __name__ == "__main__":
  main(pathlib.Path(sys.argv[1]) / "run", int(sys.argv[2]))
