"""The comparison of fixed labels: rows of the table, and a small run against training by hand."""

import json
import types

import jax
import matplotlib.figure
import numpy as np
import pytest
import scipy.stats
from flax import linen as nn

import last_jax as last
from benchmarks import distillation
from benchmarks import distillation_report as report
from last_jax.data.mnist import stratified


def draw_of(recipe, images, draw, names, students=6):
  random = np.random.default_rng([images, draw])
  parts = {part: {name: random.uniform(size=students) for name in names} for part in ("accuracy", "transfer")}
  network = {"free": "conv", "probabilities": "cnn"}[recipe]
  return {"images": images, "draw": draw, "recipe": recipe, "network": network, **parts}


def test_rows_are_means_with_intervals():
  names = (report.SEARCHED, report.TRUE)  # Not in their order, as files have them.
  draws = [draw_of("probabilities", 100, 0, names), *(draw_of("free", 10, draw, names) for draw in (1, 0))]
  lines = report.table(draws)
  assert lines[1] == "| labels (free) | 10 images, conv, SGD | 10 images, cnn, Adam |"
  assert lines[6] == "| labels (probabilities) | 100 images, cnn, SGD | 100 images, mlp, Adam |"
  for rows, chosen in ((lines[3:5], (draws[2], draws[1])), (lines[8:], draws[:1])):
    for name, row in zip((report.TRUE, report.SEARCHED), rows, strict=True):
      first, *cells = row.removesuffix(" |").split(" | ")
      assert first == f"| {name}"
      for part, cell in zip(("accuracy", "transfer"), cells, strict=True):
        expected = []
        for draw in chosen:
          values = 100 * draw[part][name]
          low, high = scipy.stats.t.interval(0.95, 5, values.mean(), scipy.stats.sem(values))
          expected.append(f"{values.mean():.1f} ± {(high - low) / 2:.1f}")
        assert cell == ", ".join(expected)


def test_files_of_several_runs_are_read_together(tmp_path):
  paths = []
  for i, draws in enumerate(([{"a": 1}], [{"a": 2}, {"a": 3}])):
    paths.append(tmp_path / f"{i}.json")
    paths[-1].write_text(json.dumps({"settings": {}, "draws": draws}))
  assert report.read(paths) == [{"a": 1}, {"a": 2}, {"a": 3}]


def test_the_picture_shows_each_row_at_each_size(tmp_path, monkeypatch):
  names = [report.TRUE, report.SEARCHED]
  draws = [draw_of("free", size, draw, names) for size in (10, 100) for draw in range(2)]
  draws += [draw_of("probabilities", 500, 0, names)]
  drawn = []
  monkeypatch.setattr(matplotlib.figure.Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
  report.draw_figure(str(tmp_path / "picture.png"), draws)
  first, *others = drawn[0].axes
  assert first.get_title() == "free: students conv, SGD"
  assert [len(axis.containers) for axis in (first, *others)] == [3, 2, 3, 2]  # The published figures are on the left.
  means = [100 * draw["accuracy"][names[0]].mean() for draw in draws[:4]]
  np.testing.assert_allclose(np.asarray(first.containers[0].lines[0].get_ydata(), float), means)
  np.testing.assert_allclose(np.asarray(first.lines[0].get_ydata(), float), np.reshape(means, (2, 2)).mean(1))
  assert [text.get_text() for text in first.get_legend().get_texts()][:2] == names
  last_mean = 100 * draws[4]["transfer"][names[1]].mean()
  np.testing.assert_allclose(np.asarray(others[-1].containers[1].lines[0].get_ydata(), float), [last_mean])


def flags_given(**given):
  return types.SimpleNamespace(**dict.fromkeys(distillation._SETTINGS) | given)


def test_settings_follow_the_number_of_images():
  free, soft = (distillation.settings_for(images, flags_given()) for images in (100, 500))
  assert (free.recipe, free.batch_size, free.constraint) == ("free", None, "one")
  assert (soft.recipe, soft.constraint) == ("probabilities", "simplex")
  assert (free.updates, free.rate) == distillation.RECIPES["free"].searches[100]
  ours = distillation.settings_for(500, flags_given(recipe="free", updates=0, rate=0.2))
  assert (ours.network, ours.updates, ours.rate) == ("conv", 0, 0.2)


@pytest.mark.parametrize("network", ["conv", "cnn", "conv2"])
@pytest.mark.slow
def test_the_networks_are_convolutions(network):
  learner = distillation.make_learner(network, 4, "softmax_cross_entropy", learning_rate=0.1)
  params = learner.init(jax.random.key(0))
  layers = jax.tree.leaves(params, is_leaf=lambda node: isinstance(node, dict) and "kernel" in node)
  x = np.random.default_rng(0).normal(size=(2, 784)).astype(np.float32)
  first, second = (7, 2, ((3, 3), (3, 3)), True), (3, 1, "SAME", False)
  convolutions = {"conv": [first], "conv2": [first, second], "cnn": [(5, 1, "VALID", True)] * 2}[network]
  hidden = x.reshape(2, 28, 28, 1)
  for layer, (size, stride, padding, pooled) in zip(layers, convolutions, strict=False):
    kernel = layer["kernel"].reshape(size, size, hidden.shape[-1], -1)
    order = ("NHWC", "HWIO", "NHWC")
    hidden = jax.lax.conv_general_dilated(hidden, kernel, (stride, stride), padding, dimension_numbers=order)
    hidden = nn.relu(np.asarray(hidden) + np.asarray(layer["bias"]))
    hidden = nn.avg_pool(hidden, (2, 2), (2, 2)) if pooled else hidden
  hidden = np.asarray(hidden).reshape(2, -1)
  for layer in layers[len(convolutions) :]:
    outputs = hidden @ np.asarray(layer["kernel"]) + np.asarray(layer["bias"])
    hidden = np.maximum(outputs, 0)
  np.testing.assert_allclose(learner.apply(params, x), outputs, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("constraint", ["simplex", "none"])
def test_students_are_trained_on_the_labels(monkeypatch, constraint):
  random = np.random.default_rng(0)
  monkeypatch.setattr(distillation, "_TRAINED_ON", 50)
  short = distillation.RECIPES["free"]._replace(lengths=(1,), transfer=(2, 3))
  monkeypatch.setitem(distillation.RECIPES, "free", short)
  train, test = ((random.normal(size=(150, 784)).astype(np.float32), np.arange(150) % 10) for _ in range(2))
  given = flags_given(
    network="mlp", width=8, loss="softmax_cross_entropy", constraint=constraint, head=0.5, steps=4,
    learning_rate=0.1, momentum=0.0, adam_rate=1e-3, solved_students=2, updates=2, rate=0.1, students=2, validation=40,
    validation_batch=8, fresh=2, others=True,
  )  # fmt: skip
  found = distillation.run_draw(0, 10, train, test, given)
  names = {
    report.TRUE, report.SMOOTHED, report.PRETRAINED, report.SOLVED, report.SEARCHED,
  }  # fmt: skip
  assert found["accuracy"].keys() == found["transfer"].keys() == names
  labels = found["labels"][report.SEARCHED]
  assert np.abs(labels - found["labels"][report.SOLVED]).max() > 1e-3
  if constraint == "simplex":
    np.testing.assert_allclose(labels.sum(1), 1, atol=1e-5)
  # By hand.
  learner = last.learners.mlp((784, 8, 10), learning_rate=0.1)
  index = stratified(train[1], range(10), 1, 0)
  own = jax.random.split(jax.random.split(jax.random.key(0), 4)[1], 2)[1]
  params = learner.init(jax.random.split(own)[0])
  params["layer_1"] = jax.tree.map(lambda leaf: 0.5 * leaf, params["layer_1"])
  student = learner.start(params)
  for _ in range(4):
    student = learner.step(student, train[0][index], labels)
  right = np.argmax(learner.apply(student.params, test[0]), 1) == test[1]
  np.testing.assert_allclose(found["accuracy"][report.SEARCHED][1], right.mean(), atol=0.011)
