"""Inputs of `launch.teach`: users' own data and models, and errors in one line that names the flag."""

import io
import json
import os
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import last_jax as last
from last_jax import data
from last_jax.io import read_arrays
from launch import teach
from tests.launch.running import read_all, run, run_process

OWN_LEARNERS = """
import jax
import optax
import last_jax as last

def make(num_features, learning_rate, **others):
  assert sorted(others) == ["num_outputs", "weight_decay"], others
  init = lambda key: {"w": jax.random.normal(key, (num_features, others["num_outputs"]))}
  return last.learners.from_apply(
    init, lambda params, x: x @ params["w"], "softmax_cross_entropy", learning_rate=learning_rate
  )

def odd(num_features, num_outputs):
  init = lambda key: {"w": jax.random.normal(key, (num_features, num_outputs))}
  loss = lambda z, y: ((z - y) ** 4).sum()
  return last.learners.from_apply(init, lambda params, x: x @ params["w"], loss, optimizer=optax.adam(0.1))

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
  @pytest.mark.slow
  def test_target_and_start_flat_or_by_leaf(self, tmp_path):
    target, init = {"weights": np.array([[1.0], [-2.0]]), "bias": np.array([0.5])}, np.array([3.0, 4.0, 5.0])
    flat = moons_file(tmp_path / "flat.npz", target=np.array([0.5, 1.0, -2.0]), init=init)
    leaves = {f"target/{name}": array for name, array in target.items()}
    by_leaf = moons_file(tmp_path / "leaf.npz", **leaves, **{"init/bias": init[:1], "init/weights": init[1:, None]})
    curves = []
    for path in (flat, by_leaf):
      out = tmp_path / path.stem
      assert run(out, f"--dataset={path}", "--teacher=sgd", "--students=2", "--steps=3", "--init_scale=2") == 0
      curves.append(read_arrays(out / "curves.npz"))
    for name, values in curves[0].items():
      np.testing.assert_array_equal(values, curves[1][name])
    np.testing.assert_allclose(curves[0]["sgd/distance"][:, 0], np.sqrt(2.5**2 + 3**2 + 7**2), rtol=1e-6)
    assert set(curves[0]) == {"step", "sgd/distance", "sgd/objective"}  # No test pool, no accuracy.
    config = json.loads((tmp_path / "flat" / "config.json").read_text())
    assert len(config["data"]["dataset"]) == 64  # SHA-256, in hexadecimal.

  @pytest.mark.slow
  def test_own_learner_in_float64(self, tmp_path, own_module, capsys):
    path = moons_file(tmp_path / "moons.npz")
    flags = ("--teacher=sgd", "--students=2", "--steps=2", "--x64", "--mu=0.5", "--momentum=0.9")
    assert run(tmp_path / "out", f"--dataset={path}", f"--learner={own_module}:make", *flags) == 0
    assert read_arrays(tmp_path / "out" / "curves.npz")["sgd/distance"].dtype == np.float64
    assert jnp.zeros(()).dtype == jnp.float32  # The setting ends with the run.
    output = capsys.readouterr().out
    assert "--mu has no effect" in output
    assert "--momentum has no effect" in output
    assert "no label can teach" not in output  # That is computed for linear learners only.

  @pytest.mark.slow
  def test_lessons_of_an_own_learner_say_where_it_comes_from(self, tmp_path, own_module):
    flags = ("--teacher=sgd", "--students=2", "--steps=2", "--lessons", f"--learner={own_module}:odd")
    assert run(tmp_path / "out", f"--dataset={moons_file(tmp_path / 'moons.npz')}", *flags) == 0
    curriculum = last.load(tmp_path / "out" / "lessons.npz")
    facts = curriculum.facts
    assert not {"x", "target/w"} & set(curriculum.arrays)
    assert facts["loss"]["words"] == facts["optimizer"]["words"] == f"as {own_module}:odd makes it"
    assert facts["inputs"]["words"] == "--dataset=moons.npz"

  @pytest.mark.slow
  def test_examples_without_lessons_have_no_effect(self, tmp_path, capsys):
    assert run(tmp_path, "--teacher=sgd", "--students=2", "--steps=2", "--examples") == 0
    assert "--examples has no effect" in capsys.readouterr().out

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

  @pytest.mark.slow
  def test_regression(self, tmp_path, capsys):
    flags = ("--teacher=greedy", "--constraint=magnitude:0.5:1:prediction", "--students=2", "--steps=2")
    assert run(tmp_path, "--dataset=regression", *flags) == 0
    assert "greedy:magnitude:0.5:1:prediction/distance" in read_arrays(tmp_path / "curves.npz")
    output = capsys.readouterr().out
    assert "LAST (r=0.5, p=1, around prediction)" in output
    assert "acc." not in output


TABLE = "length,width,petals,species\n" + "".join(
  f"{5 + 0.1 * i},{3000 + 100 * (i % 5)},{i},{('setosa', 'virginica', 'new')[i % 3]}\n" for i in range(30)
)


class TestTables:
  @pytest.mark.slow
  def test_csv(self, tmp_path):
    (tmp_path / "plants.csv").write_text(TABLE)
    flags = (f"--dataset={tmp_path / 'plants.csv'}", "--teacher=sgd", "--students=2", "--steps=3", "--lessons")
    assert run(tmp_path / "out", *flags, "--columns=length,width") == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["classes"] == ["new", "setosa", "virginica"]
    assert summary["title"].startswith("plants.csv, classes new, setosa, virginica, softmax, ")
    assert summary["methods"]["sgd"]["diverged"] == 0
    curves = read_arrays(tmp_path / "out" / "curves.npz")
    assert set(np.unique(curves["sgd/accuracy"] * 6).round(4)) <= set(range(7))  # A fifth of 30 examples is held out.
    curriculum = last.load(tmp_path / "out" / "lessons.npz")
    assert curriculum.facts["pool"]["classes"] == ["new", "setosa", "virginica"]
    assert curriculum.lessons["sgd"].label.shape == (2, 3, 1, 3)

  @pytest.mark.slow
  def test_as_it_is(self, tmp_path):
    (tmp_path / "plants.csv").write_text(TABLE)
    flags = ("--noscale_inputs", "--test_share=0", "--label=petals", "--columns=length", "--learner=least_squares")
    some = (f"--dataset={tmp_path / 'plants.csv'}", "--teacher=sgd", "--students=2", "--steps=3", "--init_scale=0")
    assert run(tmp_path / "out", *some, *flags) == 0
    curves = read_arrays(tmp_path / "out" / "curves.npz")
    assert "sgd/accuracy" not in curves
    np.testing.assert_allclose(curves["sgd/objective"][:, 0], np.mean(np.arange(30.0) ** 2) / 2, rtol=1e-5)

  @pytest.mark.slow
  def test_parquet(self, tmp_path, monkeypatch, capsys):
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    path = tmp_path / "plants.parquet"
    pandas.read_csv(io.StringIO(TABLE)).to_parquet(path)
    flags = (f"--dataset={path}", "--teacher=sgd", "--students=2", "--steps=3")
    assert run(tmp_path / "out", *flags) == 0
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["classes"] == ["new", "setosa", "virginica"]
    assert run(tmp_path / "out", *flags, "--label=petals") == 2
    assert f"--dataset={path}: column 'species' must hold numbers" in capsys.readouterr().err

    def fail(path):
      raise ImportError("no engine")

    monkeypatch.setattr(pandas, "read_parquet", fail)
    assert run(tmp_path / "out", *flags) == 2
    assert "pip install pandas pyarrow" in capsys.readouterr().err

  @pytest.mark.parametrize(
    ("name", "learner", "classes"),
    [
      ("iris", "softmax", 3),
      ("wine", "softmax", 3),
      ("digits", "softmax", 10),
      ("breast_cancer", "logistic", 2),
      ("diabetes", "least_squares", None),
    ],
  )
  @pytest.mark.slow
  def test_sets_of_scikit_learn(self, tmp_path, name, learner, classes):
    pytest.importorskip("sklearn")
    assert run(tmp_path, f"--dataset={name}", "--teacher=sgd", "--students=2", "--steps=200") == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert f", {learner}, " in summary["title"]
    assert (summary["classes"] and len(summary["classes"])) == classes
    assert summary["methods"]["sgd"]["diverged"] == 0
    curves = read_arrays(tmp_path / "curves.npz")
    assert (curves["sgd/objective"][:, -1] < curves["sgd/objective"][:, 0]).all()
    assert ("sgd/accuracy" in curves) == (classes is not None)

  def test_without_scikit_learn(self, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert run(tmp_path, "--dataset=iris") == 2
    assert capsys.readouterr().err == (
      "error: --dataset=iris: this set comes with scikit-learn: pip install scikit-learn\n"
    )

  def test_errors_name_the_file_and_the_column(self, tmp_path, capsys):
    (tmp_path / "plants.csv").write_text(TABLE)
    dataset = f"--dataset={tmp_path / 'plants.csv'}"
    for flag, message in (
      ("--label=kind", "--label: there is no column 'kind', only length, width, petals, species"),
      ("--label=petals", "column 'species' must hold numbers, but it holds 'setosa'"),
      ("--label=petals", "(--label names the column of labels, --columns those of inputs)"),
      ("--columns=species", "--columns must not hold the label column 'species'"),
      ("--columns=size", "--columns: there is no column 'size'"),
    ):
      assert run(tmp_path / "out", dataset, flag) == 2
      error = capsys.readouterr().err
      assert error.startswith("error: ")
      assert "plants.csv: " in error
      assert message in error


BAD = [
  (["--teacher=sgd,nobody"], ["--teacher='nobody'", "sgd", "mixed"]),
  (["--teacher="], ["--teacher is empty"]),
  (["--dataset=full_moons"], ["--dataset=full_moons", "half_moons"]),
  (["--dataset=absent.npz"], ["--dataset=absent.npz", "no such file"]),
  (["--dataset=absent.csv"], ["--dataset=absent.csv", "no such file"]),
  (["--dataset=iris", "--test_share=1"], ["--test_share", "between 0 and 0.9"]),
  (["--learner=forest"], ["--learner=forest", "logistic", "module:function"]),
  (["--constraint=sphere"], ["--constraint=sphere", "simplex"]),
  (["--constraint=magnitude"], ["--constraint=magnitude", "RADIUS"]),
  (["--constraint=magnitude:-1"], ["--constraint=magnitude:-1", "positive"]),
  (["--constraint=magnitude:one"], ["--constraint=magnitude:one", "not a number"]),
  (["--constraint=simplex:max_nonzero=two"], ["--constraint=simplex:max_nonzero=two", "whole number"]),
  (["--constraint=magnitude:1:3"], ["--constraint=magnitude:1:3", "1, 2 or infinity"]),
  (["--constraint=magnitude:1:2:origin"], ["--constraint=magnitude:1:2:origin", "prediction"]),
  (["--constraint=one_hot:1"], ["--constraint=one_hot:1", "one of the forms"]),
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
  (["--checkpoint_seconds=-1"], ["--checkpoint_seconds"]),
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
    (tmp_path / "notes.txt").write_bytes(b"mine")
    assert run(tmp_path, *flags) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: ")
    assert shown.err.count("\n") == 1
    for part in parts:
      assert part in shown.err
    assert read_all(tmp_path) == {tmp_path / "notes.txt": b"mine"}

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
