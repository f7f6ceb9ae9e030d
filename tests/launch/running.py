"""Running `launch.teach`, in this process or in one of its own."""

import pathlib
import subprocess
import sys

from launch import teach

ROOT = pathlib.Path(__file__).parents[2]
FILES = {"config.json", "curves.npz", "summary.json", "curves.png", "time.png", "state"}


def run(out, *flags):
  """Run the command in this process; return its exit status."""
  return teach.main(["teach", f"--out={out}", *flags])


def start_process(flags, module="launch.teach", **settings):
  # A shell that runs tests in the background makes its children ignore SIGINT; this undoes it.
  code = (
    "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    f"runpy.run_module('{module}', run_name='__main__', alter_sys=True)"
  )
  return subprocess.Popen(
    [sys.executable, "-c", code, *flags],
    cwd=ROOT,
    stdout=subprocess.PIPE,
    stderr=subprocess.PIPE,
    text=True,
    **settings,
  )


def run_process(*flags, module="launch.teach", **settings):
  process = start_process(flags, module, **settings)
  output, errors = process.communicate(timeout=300)
  return process.returncode, output, errors


def read_all(folder):
  """Return the content of all files in a folder."""
  return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
