"""The flags of the commands: what each of them may be given, and commands that stop where computing would begin."""

import contextlib
import functools
import io
import itertools
import os
import re
import shutil
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

import last_jax as last
from benchmarks import run as benchmarks_run
from last_jax import distilling, reproduction
from launch import distill, folder, methods, problem, reproduce, sweep, teach, train_teacher, training_setup
from launch.command import run_command
from tests.fuzz.outcome import Outcome

MOST = 2**31 - 1
LARGEST = float(np.finfo(np.float32).max)
TABLE = "length,width,kind\n" + "".join(f"{i},{i % 5},{'ab'[i % 2]}\n" for i in range(12))


# --- What a flag may be given, written without the code that reads it.


def _number(text):
  """The number that a text is, or None."""
  for kind in (float, lambda text: float(int(text, 0))):
    with contextlib.suppress(ValueError, OverflowError):
      return kind(text)
  return None


def number(low, high=LARGEST, whole=False):
  """A number from `low` to `high`."""

  def may_be(text):
    value = _number(text)
    return value is not None and low <= value <= high and (not whole or value == int(value))

  return may_be


def positive(text):
  return number(0.0)(text) and _number(text) > 0


def switch(text):
  return text.lower() in ("true", "t", "1", "yes", "y", "false", "f", "0", "no", "n")


def words(*known):
  return lambda text: text in known


def several(kind):
  return lambda text: all(kind(word) for word in text.split(","))


def either(*kinds):
  return lambda text: any(kind(text) for kind in kinds)


def no_text(text):
  """Nothing that is tried can be right, as names of files that are not there."""
  return False


def any_text(text):
  return True


def _digits(text):
  found = [word.strip() for word in text.split(",")]
  return len(set(found)) == len(found) >= 2 and all(word.isdecimal() and int(word) < 10 for word in found)


def _form(pattern, *numbers):
  """A text of this form, the groups of which are numbers."""

  def may_be(text):
    found = re.fullmatch(pattern, text, re.DOTALL)
    return found is not None and all(
      kind(group) for kind, group in zip(numbers, found.groups(), strict=True) if group is not None
    )

  return may_be


_any_number = number(-LARGEST)
count, seed = number(1, MOST, whole=True), number(0, MOST, whole=True)
not_negative, share = number(0.0), number(0.0, 1.0)
widths = either(lambda text: not text.strip(), several(count))
_norm = either(words("1", "2", "inf"), lambda text: _number(text) in (1.0, 2.0, float("inf")))
label_set = either(
  words("none", "one_hot", "simplex"),
  _form(r"simplex:max_nonzero=(.*)", count),
  _form(r"(?:simplex|magnitude):([^:]*)(?::([^:]*))?(?::(?:truth|prediction))?", positive, _norm),
)
learner = words("logistic", "margin", "softmax", "least_squares", "mlp")


class Flag(NamedTuple):
  """What a flag may be given, where other flags are so that it has an effect."""

  may_be: Callable[[str], bool]
  others: tuple[str, ...] = ()


class Command(NamedTuple):
  """A command: `run(arguments)`, its flags, and those of every case."""

  run: Callable[[list[str]], int]
  flags: dict[str, Flag]
  base: tuple[str, ...]


_CSV, _MNIST, _MLP = ("--dataset=table.csv",), ("--dataset=mnist",), ("--learner=mlp",)


def _data_flags(numbers, momentum):
  """Those of `launch.problem`; `numbers` makes the kind of those that may take lists."""
  return {
    "dataset": Flag(words("half_moons", "gaussian", "regression", "mnist", "iris", "wine", "digits", "breast_cancer",
                          "diabetes", "table.csv")),
    "label": Flag(words("length", "width", "kind"), (*_CSV, "--columns=width")),
    "columns": Flag(several(words("length", "width")), _CSV),
    "test_share": Flag(number(0.0, 0.9), _CSV),
    "scale_inputs": Flag(switch, _CSV),
    "mnist_folder": Flag(no_text, _MNIST),
    "digits": Flag(_digits, _MNIST),
    "num_features": Flag(number(0, 5000, whole=True), _MNIST),
    "per_digit": Flag(number(1, 1000, whole=True), _MNIST),
    "feature_scale": Flag(positive, _MNIST),
    "learner": Flag(learner),
    "hidden": Flag(widths, _MLP),
    "activation": Flag(words("relu", "leaky_relu", "tanh", "gelu", "sigmoid"), _MLP),
    "bias": Flag(switch),
    "momentum": Flag(numbers(share)),
    "nesterov": Flag(switch, ("--momentum=0.5",)),
    "learning_rate": Flag(numbers(positive)),
    "weight_decay": Flag(numbers(not_negative)),
  }  # fmt: skip


def _run_flags():
  return {
    "seed": Flag(seed),
    "out": Flag(any_text),
    "resume": Flag(switch),
    "overwrite": Flag(switch),
    "checkpoint_seconds": Flag(not_negative),
    "x64": Flag(switch),
    "platform": Flag(words("cpu")),
  }


def _device_flags():
  processes = ("--coordinator=localhost:1", "--num_processes=2", "--process_id=0")
  return {  # One device and one process have started before.
    "devices": Flag(number(1, 1, whole=True)),
    "coordinator": Flag(no_text, processes[1:]),
    "num_processes": Flag(number(1, 1, whole=True), processes[::2]),
    "process_id": Flag(no_text, processes[:2]),
  }


def _main(module):
  return lambda arguments: module.main([module.__name__, *arguments])


def _benchmark(arguments):
  documentation = benchmarks_run.__doc__
  return run_command(benchmarks_run.main, benchmarks_run.define_flags(), documentation, ["run", *arguments])


def commands() -> dict[str, Command]:
  """Return the commands by name."""
  lists = several
  plain = lambda kind: kind  # noqa: E731
  reinforce, evolution = ("--method=reinforce",), ("--method=evolution", "--students=4")
  loop = ("--road=loop",)
  return {
    "teach": Command(
      _main(teach),
      _data_flags(lists, share) | _run_flags() | _device_flags() | {
        "teacher": Flag(several(words(*methods.TEACHERS))),
        "constraint": Flag(several(label_set), ("--teacher=greedy",)),
        "policy": Flag(no_text, ("--teacher=policy",)),
        "baselines": Flag(switch),
        "toward": Flag(words("params", "outputs"), ("--teacher=greedy",)),
        "horizon": Flag(count, ("--teacher=planner", "--constraint=none")),
        "joint": Flag(switch, ("--teacher=mixed", "--constraint=none")),
        "mu": Flag(lists(share), ("--teacher=label_smoothing",)),
        "temperature": Flag(lists(positive), ("--teacher=distillation",)),
        "steps": Flag(count),
        "students": Flag(count),
        "batch_size": Flag(lists(count)),
        "record_every": Flag(count),
        "tolerance": Flag(number(1e-19, 1e20)),  # Its square is a number too.
        "lessons": Flag(switch),
        "examples": Flag(switch),
        "init_scale": Flag(not_negative),
        "start_near": Flag(not_negative),
      },
      ("--teacher=sgd", "--students=2"),
    ),
    "train_teacher": Command(
      _main(train_teacher),
      _data_flags(plain, share) | _run_flags() | _device_flags() | {
        "method": Flag(words("unroll", "reinforce", "evolution")),
        "view": Flag(words("omniscient", "black_box")),
        "start_near": Flag(_any_number),
        "episodes": Flag(count),
        "horizon": Flag(count),
        "batch_size": Flag(count),
        "students": Flag(count),
        "reset": Flag(share),
        "reward": Flag(words("distance", "loss")),
        "features": Flag(several(words("x", "label", "prediction", "params", "target"))),
        "teacher_hidden": Flag(widths),
        "standardize": Flag(switch),
        "teacher_learning_rate": Flag(positive),
        "teacher_weight_decay": Flag(not_negative),
        "evaluation_steps": Flag(count),
        "decay": Flag(share),
        "output": Flag(either(words("simplex", "free"), _form(r"simplex:(.*)", not_negative),
                              _form(r"residue:([^:]*)(?::(?:free|simplex))?", share))),
        "segment": Flag(count),
        "actions": Flag(either(words("binary", "binary_augmented", "mixtures", "mixtures:"),
                               _form(r"(?:binary|binary_augmented):(.*)", either(words(""), not_negative)),
                               _form(r"mixtures:(.*)", several(share))), reinforce),
        "discount": Flag(share, reinforce),
        "baseline": Flag(_any_number, reinforce),
        "group": Flag(count, reinforce),
        "deviation": Flag(positive, evolution),
        "persistent": Flag(switch, evolution),
        "validation": Flag(words("train", "test"), ("--view=black_box",)),
        "keep_best": Flag(switch),
        "report_every": Flag(count),
      },
      ("--dataset=half_moons", "--students=2"),
    ),
    "distill": Command(
      _main(distill),
      _data_flags(plain, share) | _run_flags() | {
        "examples": Flag(number(1, 800, whole=True)),
        "toward": Flag(words("validation", "target")),
        "validation": Flag(count),
        "road": Flag(words("solved", "loop")),
        "constraint": Flag(label_set),
        "steps": Flag(count),
        "batch_size": Flag(count, loop),
        "students": Flag(count),
        "fresh": Flag(number(2, MOST, whole=True)),
        "start_near": Flag(not_negative, ("--toward=target",)),
        "updates": Flag(count, loop),
        "rate": Flag(positive, loop),
        "parametrization": Flag(words("projection", "softmax"), (*loop, "--constraint=simplex", "--learner=softmax")),
        "validation_batch": Flag(count, loop),
        "segment": Flag(count, loop),
      },
      ("--examples=4", "--students=2"),
    ),
    "reproduce": Command(
      _main(reproduce),
      {
        "figure": Flag(several(either(words("all"), words(*reproduction.FIGURES)))),
        "seeds": Flag(count),
        "quick": Flag(switch),
        "full": Flag(switch),
        "mnist_folder": Flag(os.path.isdir),  # What is in it is the figures' matter.
        "jobs": Flag(count),
        "redo": Flag(switch),
        "seed": Flag(seed),
        "out": Flag(any_text),
      },
      (),
    ),
    "benchmarks": Command(
      _benchmark,
      {
        "suite": Flag(several(lambda text: text.strip() in (*benchmarks_run.JOBS, "all"))),
        "out": Flag(any_text),
        "json": Flag(any_text),
        "repetitions": Flag(count),
        "seed": Flag(seed),
        "torch_threads": Flag(count),
        "devices": Flag(number(1, 1, whole=True)),
        "neural_tangents": Flag(any_text),
        "tiny": Flag(switch),
      },
      (),
    ),
  }  # fmt: skip


# --- Commands that stop where computing would begin.


class Accepted(BaseException):
  """The flags were accepted: computing would begin. No error of a kind that commands report."""


def _accept(*_, **__):
  raise Accepted


def stop_before_computing(monkeypatch):
  """Have commands raise `Accepted` where they would begin to compute, and fit nothing before."""

  def find_target(values, given, key):
    target = problem.read_params(values, given, "target")
    if sum(leaf.size for leaf in jax.tree.leaves(given.learner.shapes())) > 10**7:
      raise MemoryError
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), given.learner.shapes())
    return zeros if target is None else target, {}, []

  def no_start(values, given, target, key):
    problem.read_params(values, given, "init")

  def split(key, num=2):  # Of 2^31 - 1 students, shapes must do.
    return jax.eval_shape(lambda key: real_split(key, num), key) if np.max(num) > 1000 else real_split(key, num)

  real_split = jax.random.split
  monkeypatch.setattr(jax.random, "split", split)
  monkeypatch.setattr(problem, "find_target", find_target)
  monkeypatch.setattr(problem, "start", no_start)
  monkeypatch.setattr(teach, "_describe_target", lambda *_: {})
  for command in (teach, training_setup, sweep):
    monkeypatch.setattr(command, "Folder", _Folder)
  monkeypatch.setattr(distill, "Folder", _Open)
  monkeypatch.setattr(distill, "_write", _accept)
  monkeypatch.setattr(distilling.distill, "_solve", _accept)
  monkeypatch.setattr(distilling.distill, "_search", _accept)
  monkeypatch.setattr(reproduce, "_make_all", _accept)
  monkeypatch.setattr(benchmarks_run.baselines, "missing", _accept)
  for name in ("half_moons", "gaussian", "regression"):
    monkeypatch.setattr(last.data, name, functools.lru_cache(getattr(last.data, name)))


class _Folder(folder.Folder):
  begin = _accept


class _Open(folder.Folder):
  def begin(self, config, *, resume, overwrite):
    return contextlib.nullcontext()


# --- Cases.


def flag_of(word):
  """The name of the flag in a word of the command line."""
  return word.lstrip("-").partition("=")[0]


_numbers = itertools.count()


def outcome_of(command: Command, given: dict[str, str]) -> Outcome:
  """Return what a command comes to in the current folder: "fine"; "named", one line that names one of the flags;
  "unnamed", one line that does not; "raw", anything else. Where every value may be right by itself, and does not go
  with others, these may be named in place of them.

  Args:
    command: one of `commands`, after `stop_before_computing`.
    given: odd values by flag.
  """
  others = {flag_of(word): word for name in given for word in command.flags[name].others}
  base = {flag_of(word): word for word in command.base}
  out = {"out": f"--out=out{next(_numbers)}"}
  set_ = {name: word for name, word in (base | out | others).items() if name not in given}
  errors, output = io.StringIO(), io.StringIO()
  try:
    with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(output):
      status = command.run([*set_.values(), *(f"--{name}={value}" for name, value in given.items())])
  except Accepted:
    return Outcome("fine")
  except BaseException as error:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return Outcome("raw", f"{type(error).__name__}: {str(error)[:300]} [{where.filename}:{where.lineno}]")
  finally:
    if "out" in set_:
      shutil.rmtree(set_["out"].partition("=")[2], ignore_errors=True)
  text = errors.getvalue()
  if status == 1 and text.startswith("error: out of memory"):
    return Outcome("named")
  if status != 2 or not re.fullmatch(r"error: [^\n]{1,1100}\n", text):
    return Outcome("raw", f"status {status}: {text[:300]!r}, {len(text)} characters")
  by_themselves = all(command.flags[name].may_be(value) for name, value in given.items())
  names = command.flags if by_themselves else given
  named = any(re.search(rf"(--{name}(?!\w)|\b{name}=)", text) for name in names)
  return Outcome("named" if named else "unnamed", text[:300])


def fault_of(command: Command, given: dict[str, str]) -> tuple[str, str] | None:
  """Return what is wrong with what a command does, None where nothing is."""
  found = outcome_of(command, given)
  shown = {name: value if len(value) <= 60 else f"{value[:50]}... ({len(value)})" for name, value in given.items()}
  if found.kind == "named":
    return None
  if found.kind == "fine":
    wrong = [name for name, value in given.items() if not command.flags[name].may_be(value)]
    return ("accepted", f"{shown}: accepted") if wrong else None
  return found.kind, f"{shown}: {found.text}"


ODD: tuple[Any, ...] = (
  # Numbers, and what looks like one.
  "0", "1", "-1", "2", "3", "0.5", "-0.5", "1.5", "1e-300", "1e300", "1e400", "-1e400", "nan", "NaN", "-nan", "inf",
  "-inf", "infinity", "0x10", "0b1", "1_000", "1e3", " 1", "1 ", "+1", "--1", "1.", ".", "-", "1e", "2147483647",
  "2147483648", "99999999999999999999", "9" * 400, "9" * 5000, "-" + "9" * 5000, "0." + "9" * 5000, "\u0663", "\uff11",
  "\u00b2", "\u2167", "1j", "1/2", "0,5", "1,2", "1,1", "1,nan", "nan,1", "0.1,x", "1,", ",1", ",", ",,", "3,5", "3,3",
  # Words of other flags, and of Python.
  "true", "False", "maybe", "none", "None", "null", "all", "sgd", "mlp", "greedy", "simplex", "softmax", "mnist",
  # Forms of settings.
  "simplex:", "simplex:nan", "simplex:1:2:3:4", "simplex:max_nonzero=", "simplex:max_nonzero=-1",
  "simplex:max_nonzero=\u00b2", "simplex:max_nonzero=" + "9" * 5000, "magnitude:0", "magnitude:inf", "magnitude:1:nan",
  "magnitude:1:2:", "residue:nan", "residue:2", "residue:0.5:residue", "steps:nan", "steps:2", "steps:", "mixtures:",
  "mixtures:nan", "mixtures:0.1,", "binary:-1", "binary:x", "either:1",
  # Modules, files and folders.
  ":", "os:", ":path", "os:system", "os.path:join", "json:absent", "absent_module:make", "..:x", "sys:exit", "a b:c",
  ".npz", ".csv", "absent.npz", "absent.parquet", "table.csv", "folder.npz", "folder.csv", "fifo.npz", "fifo.csv",
  "damaged.npz", "damaged.csv", "damaged.parquet", "folder", "folder/absent/deeper", "table.csv/below", "./", "a" * 300,
  # Text.
  "", " ", "\t", "\n", "a\nb", "a\r\nb", "\0", "a\0b", "\x1b[31m", "\x7f", "\ud800", "\udcff", "é", "😀", "\u202e",
  "$x^{2$", "%s", "{}", "{0}", "[/b]", ":smile:", "\\", "'", '"', "`", "#", "=", "==", "a=b", "--steps", "-h", "*",
  "x" * 100_000, "a," * 5000,
)  # fmt: skip


def prepare_folder(path):
  """Write the files that the odd values name."""
  (path / "table.csv").write_text(TABLE)
  for name in ("damaged.npz", "damaged.csv", "damaged.parquet"):
    (path / name).write_bytes(b"PK\3\4\0\xff\0\n" * 9)
  for suffix in ("npz", "csv"):
    (path / f"folder.{suffix}").mkdir()
    os.mkfifo(path / f"fifo.{suffix}")
  (path / "folder").mkdir()
