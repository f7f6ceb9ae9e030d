"""What `launch.teach` chooses where flags say nothing: teachers, baselines, sets of labels, what is steered toward."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import last_jax as last
from last_jax import data, targets
from last_jax.io import read_arrays
from launch import methods, output, teach
from tests.launch.running import run

LINEAR = last.learners.softmax(2, 2, learning_rate=0.1)
NETWORK = last.learners.mlp((2, 4, 2), learning_rate=0.1)
NUMBERS = last.learners.mlp((2, 4, 1), learning_rate=0.1, loss="squared_error")
MOONS = data.half_moons()


def choose(learner, *flags, dataset=MOONS):
  values = teach.make_flags()
  values(["teach", *flags])
  return methods.choose(values, learner, dataset)


class TestTeachersAndBaselines:
  @pytest.mark.parametrize(
    ("learner", "flags", "teachers"),
    [
      (LINEAR, [], ["sgd", "imt", "greedy", "mixed"]),
      (LINEAR, ["--teacher=greedy"], ["greedy"]),
      (LINEAR, ["--dataset=mine.csv"], ["label_smoothing", "sgd", "imt", "greedy", "mixed"]),
      (LINEAR, ["--dataset=mine.csv", "--teacher=greedy"], ["sgd", "label_smoothing", "greedy"]),
      (LINEAR, ["--dataset=mine.npz", "--teacher=imt,greedy"], ["sgd", "label_smoothing", "imt", "greedy"]),
      (LINEAR, ["--dataset=mine.npz", "--teacher=greedy,sgd"], ["greedy", "sgd"]),  # There is something beside it.
      (LINEAR, ["--dataset=mine.npz", "--teacher=greedy", "--nobaselines"], ["greedy"]),
      (LINEAR, ["--dataset=mine.npz", "--nobaselines"], ["imt", "greedy", "mixed"]),
      (LINEAR, ["--teacher=greedy", "--baselines"], ["sgd", "label_smoothing", "greedy"]),
      (NETWORK, [], ["sgd", "label_smoothing", "greedy"]),
      (NUMBERS, ["--dataset=mine.csv", "--teacher=greedy"], ["sgd", "greedy"]),  # Numbers have no classes to smooth.
      (NUMBERS, [], ["sgd", "greedy"]),
    ],
  )
  def test_teachers(self, learner, flags, teachers):
    choice = choose(learner, *flags)
    assert choice.teacher == teachers
    # The command in config.json says what was chosen, and choosing again changes nothing.
    words = [f"--teacher={','.join(choice.teacher)}", *["--nobaselines"] * (choice.baselines is False)]
    assert choose(learner, *flags[:1], *words).teacher == teachers

  def test_the_person_is_told(self):
    for flags, told in ((["--teacher=greedy"], True), (["--teacher=greedy,sgd"], False), ([], False)):
      values = teach.make_flags()
      values(["teach", "--dataset=mine.csv", *flags])
      notes = methods.choose(values, LINEAR, MOONS).notes(values)
      assert any("--nobaselines" in note for note in notes) == told

  @pytest.mark.slow
  def test_own_data_in_a_run(self, tmp_path, capsys):
    (tmp_path / "plants.csv").write_text("a,b,kind\n" + "".join(f"{i},{i % 7},{'xy'[i > 9]}\n" for i in range(20)))
    flags = (f"--dataset={tmp_path / 'plants.csv'}", "--teacher=greedy", "--constraint=simplex", "--students=2")
    assert run(tmp_path / "out", *flags, "--steps=2") == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert list(summary["methods"]) == ["sgd", "label_smoothing", "greedy:simplex"]
    assert "beside it, for comparison (not with --nobaselines)" in capsys.readouterr().out
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["flags"]["teacher"] == ["sgd", "label_smoothing", "greedy"]


class TestToward:
  def test_networks_are_not_steered_toward_parameters_of_another_start(self):
    assert choose(LINEAR).toward == "params"
    assert choose(NETWORK).toward == "loss"
    assert choose(NETWORK, "--toward=params").toward == "params"
    assert choose(NETWORK, "--start_near=0.1").toward == "params"  # Students start at the target.
    assert choose(NETWORK, dataset=MOONS._replace(init=np.zeros(22))).toward == "params"

  def test_sets_of_labels(self):
    assert choose(LINEAR).constraint == ["one_hot", "simplex", "none"]
    assert choose(NETWORK).constraint == ["magnitude:0.5", "magnitude:1"]
    assert choose(NETWORK, "--toward=params").constraint == ["one_hot", "simplex", "none"]
    assert choose(NUMBERS).constraint == ["magnitude:0.5", "magnitude:1", "magnitude:2", "none"]
    assert choose(NETWORK, "--constraint=simplex").constraint == ["simplex"]

  def test_what_is_steered_toward(self):
    target = NETWORK.init(jax.random.key(0))
    kinds = {}
    for toward in methods.TOWARD:
      choice = choose(NETWORK, f"--toward={toward}")
      kinds[toward] = methods.find_toward(choice, NETWORK, MOONS.train, target)
    assert kinds["params"] is None
    assert isinstance(kinds["loss"], targets.ToLoss)
    outputs = NETWORK.apply(target, MOONS.train.x) / 3
    np.testing.assert_allclose(kinds["outputs"].outputs, outputs, rtol=1e-5)
    target = NUMBERS.init(jax.random.key(0))
    found = methods.find_toward(choose(NUMBERS, "--toward=outputs"), NUMBERS, MOONS.train, target)
    np.testing.assert_allclose(found.outputs, NUMBERS.apply(target, MOONS.train.x), rtol=1e-5)

  @pytest.mark.slow
  @pytest.mark.parametrize("toward", ["loss", "outputs"])
  def test_a_newcomers_network_learns_faster_than_by_sgd_with_the_defaults(self, tmp_path, toward):
    """Half moons as own data: the default set of labels, rate and batch size."""
    last.data.save_npz(tmp_path / "mine.npz", x=MOONS.train.x, y=MOONS.train.y)
    flags = (f"--dataset={tmp_path / 'mine.npz'}", "--learner=mlp", "--students=8", "--steps=100", f"--toward={toward}")
    assert run(tmp_path / "out", *flags) == 0
    curves = read_arrays(tmp_path / "out" / "curves.npz")
    gain = curves["sgd/objective"] - curves["greedy:magnitude:1/objective"]
    assert (gain[:, 0] == 0).all()
    assert (gain[:, -1] > 0).sum() >= 7

  def test_a_learner_with_an_optimizer_of_its_own_is_steered_toward_the_loss(self):
    learner = last.learners.from_apply(
      lambda key: {"w": jnp.zeros((2, 2))}, lambda params, x: x @ params["w"], "softmax_cross_entropy",
      optimizer=optax.adam(0.1),
    )  # fmt: skip
    values = teach.make_flags()
    values(["teach", "--teacher=greedy", "--constraint=magnitude:1"])
    choice = methods.choose(values, learner, MOONS)
    target = {"w": jnp.ones((2, 2))}
    toward = methods.find_toward(choice, learner, MOONS.train, target)
    built = methods.build(values, choice, learner, target, toward)
    problem = last.Problem(learner, MOONS.train, target=target)
    for name, method in built.items():
      methods.check(name, method, problem, 1)


class TestAdvice:
  def taught(self, family, accuracy):
    arrays = {"step": np.array([0, 10, 20]), "accuracy": np.asarray(accuracy, np.float32)}
    return output.Taught(f"the {family}", family, "", None, arrays, None, None, 0.0, 1.0)

  def test_who_ends_behind_sgd_is_named_with_its_lead_and_what_to_try(self):
    sgd = self.taught("sgd", [[0.1, 0.5, 0.9], [0.1, 0.4, 0.8], [0.1, 0.5, 0.9]])
    behind = self.taught("greedy", [[0.1, 0.7, 0.8], [0.1, 0.6, 0.71], [0.1, 0.7, 0.8]])
    unclear = self.taught("imt", [[0.1, 0.7, 0.9], [0.1, 0.6, 0.75], [0.1, 0.7, 0.92]])
    smoothed = self.taught("label_smoothing", behind.arrays["accuracy"])
    all_of_them = {"sgd": sgd, "greedy": behind, "imt": unclear, "label_smoothing": smoothed}
    (note,) = output.make_advice(all_of_them, "loss")
    assert note.startswith("the greedy ends behind SGD in accuracy, by 0.0967 ± 0.014, after a lead of 0.2 at step 10")
    assert note.endswith("try fewer --steps, or a smaller --constraint")
    assert output.make_advice(all_of_them, "params")[0].endswith("try --toward=loss")
    assert output.make_advice({"greedy": behind}, "loss") == []
