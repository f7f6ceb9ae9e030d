"""--help in groups with an example first, --list with a line for each name, the nearest name after a mistyped one."""

import re
import shlex

import jax
import numpy as np
import pytest

import last_jax as last
from benchmarks import run as benchmarks_run
from last_jax.tools import catalogue, specs
from launch import distill, methods, reproduce, teach, train_teacher
from tests.launch.running import run

COMMANDS = {"teach": teach, "distill": distill, "reproduce": reproduce, "train_teacher": train_teacher}
HELP = ["--help", "--list"]


def shown(capsys, name, *flags):
  assert COMMANDS[name].main([name, *flags]) == 0
  return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
class TestHelp:
  def test_an_example_comes_first_and_every_example_has_flags_that_exist(self, capsys, name):
    text = shown(capsys, name, "--help")
    lines = [line.strip() for line in text.replace("\\\n", " ").splitlines()]
    examples = [line for line in lines if line.startswith(f"python -m launch.{name}")]
    assert lines.index(examples[0]) < 5
    for example in examples:
      words = [word.strip("[]") for word in shlex.split(example)[3:]]
      assert COMMANDS[name].make_flags()([name, *(word for word in words if word not in HELP)])[1:] == []

  def test_every_flag_is_in_one_group_and_its_default_beside_it(self, capsys, name):
    text = shown(capsys, name, "--help")
    values = COMMANDS[name].make_flags()
    titles = [group.title for group in values.groups]
    assert len(set(titles)) == len(titles) >= 2
    for group in values.groups:
      assert group.names
      head = f"\n{group.title}, as {group.example}\n"
      assert text.count(head) == 1
      part = text[text.index(head) + len(head) :].split("\n\n")[0]
      assert COMMANDS[name].make_flags()([name, *shlex.split(group.example)])[1:] == []
      assert {word.split("=")[0].lstrip("-") for word in group.example.split()} & set(group.names)
      for flag in group.names:
        found = re.findall(rf"^  --(?:\[no\])?{flag}\b(.*)$", part, re.MULTILINE)
        assert len(found) == 1
        default = values[flag].default
        if default is not None and not values[flag].boolean:
          assert found[0].startswith(f"={values[flag].default_as_str.strip(chr(39))}")
        elif default:
          assert f"on unless --no{flag}" in found[0]

  def test_the_list_has_a_line_for_each_name_that_the_flags_take(self, capsys, name):
    text = shown(capsys, name, "--list")
    lines = [line.split(maxsplit=1) for line in text.splitlines() if line.startswith("  ")]
    assert all(len(line) == 2 and len(line[1]) > 15 for line in lines)
    names = {line[0] for line in lines}
    known = {"reproduce": reproduce.FIGURES}.get(name, [*catalogue.LEARNERS, *catalogue.DATASETS, *catalogue.FILES])
    assert set(known) <= names


class TestTables:
  """What --list prints is what the flags take: one table."""

  def test_learners(self):
    dataset = last.data.half_moons()
    for name in catalogue.LEARNERS:
      assert specs.learner(name, dataset, learning_rate=0.1).num_outputs(dataset.train.x) in (1, 2)

  def test_teachers(self):
    learner, dataset = last.learners.softmax(2, 2, learning_rate=0.1), last.data.half_moons()
    values = teach.make_flags()
    values(["teach", f"--teacher={','.join(set(catalogue.TEACHERS) - {'policy'})}", "--constraint=simplex"])
    choice = methods.choose(values, learner, dataset)
    built = methods.build(values, choice, learner, learner.init(jax.random.key(0)))
    assert len(built) == len(catalogue.TEACHERS) - 1

  def test_constraints(self):
    examples = {"RADIUS": "0.5", "P:AROUND": "1:prediction", ":P": ":2", "=K": "=2"}
    for form in catalogue.CONSTRAINTS:
      for word, value in examples.items():
        form = form.replace(word, value)
      assert specs.constraint(form)

  def test_lines_are_the_docstrings(self):
    assert catalogue.TEACHERS["sgd"] == "The random teacher: random examples with their ground truth."
    assert catalogue.first_sentence(last.teachers.greedy) in catalogue.TEACHERS.values()

  @pytest.mark.parametrize("name", catalogue.SKLEARN_SETS)
  def test_sets_of_scikit_learn_have_the_sizes_that_are_named(self, name):
    datasets = pytest.importorskip("sklearn.datasets")
    found, text = getattr(datasets, f"load_{name}")(), catalogue.SKLEARN_SETS[name].replace(",", "")
    numbers = [int(word) for word in re.findall(r"\d+", text)]
    assert numbers[0] == len(found.data)
    assert np.prod(numbers[1:] if name == "digits" else numbers[-1:]) == found.data.shape[1]


@pytest.mark.parametrize(
  ("flag", "meant"),
  [
    ("--teacher=gredy", "'greedy'"),
    ("--dataset=half_moon", "'half_moons'"),
    ("--learner=sofmax", "'softmax'"),
    ("--constraint=simplx", "'simplex'"),
    ("--constraint=magnitud:0.5", "'magnitude:RADIUS'"),
    ("--dataset=plant.csv", "'plants.csv'"),
    ("--learnin_rate=1", "learning_rate"),
  ],
)
def test_the_nearest_name_is_suggested(tmp_path, monkeypatch, capsys, flag, meant):
  monkeypatch.chdir(tmp_path)
  (tmp_path / "plants.csv").write_text("a,b\n1,2\n")
  assert run("out", flag) == 2
  assert re.search(rf"[Dd]id you mean:? {meant}", capsys.readouterr().err)


def test_names_of_figures_and_jobs_too(tmp_path, capsys):
  assert reproduce.main(["reproduce", f"--out={tmp_path}", "--figure=lsd"]) == 2
  assert "did you mean 'lsr'?" in capsys.readouterr().err
  with pytest.raises(Exception, match="did you mean 'greedy'"):
    benchmarks_run.choose_jobs(["greedi"])
