"""Charts as PNG files: means in the looks of their methods, levels, scales, and difficult values."""

import os
import sys

import matplotlib.image
import numpy as np
import pytest

from last_jax import tools
from last_jax.tools import Curves, Level
from last_jax.tools.pictures import draw_fixed_labels

METHODS = {"SGD": ("sgd", ""), "IMT": ("imt", ""), "LAST (simplex)": ("greedy", "simplex")}


def some_curves(metrics=("objective", "distance", "accuracy"), students=4, floor=1e-3):
  draw = np.random.default_rng(0)
  step = np.arange(0, 101, 5)
  curves = []
  for place, (name, method) in enumerate(METHODS.items()):
    decay = floor + np.exp(-0.03 * (place + 1) * step) * draw.uniform(0.8, 1.2, (students, 1))
    values = {"objective": 0.3 + decay, "distance": decay, "accuracy": 1 - 0.4 * np.minimum(decay, 1)}
    curves.append(Curves(name, {"iteration": step}, {metric: values[metric] for metric in metrics}, *method))
  return curves


def plot(path, curves, title="", **settings):
  tools.plot_charts(path, tools.metric_charts(curves, **settings), title=title, who="students")


def pixels(path):
  image = matplotlib.image.imread(path)
  assert image.shape[2] in (3, 4)
  return image[..., :3]


@pytest.fixture
def drawn(monkeypatch):
  """The figures that were saved."""
  from matplotlib.figure import Figure

  figures = []
  save = Figure.savefig
  monkeypatch.setattr(Figure, "savefig", lambda self, *args, **kw: (figures.append(self), save(self, *args, **kw))[1])
  return figures


def test_picture(tmp_path, drawn):
  plot(tmp_path / "a.png", some_curves(), "A title", levels={"objective": [Level("target", 0.3)]})
  image = pixels(tmp_path / "a.png")
  assert min(image.shape[:2]) > 400
  assert np.mean(image.min(2) < 0.9) > 0.01  # Not blank.
  assert os.listdir(tmp_path) == ["a.png"]
  (figure,) = drawn
  assert [axis.get_title() for axis in figure.axes] == ["Objective", "Distance to the target", "Test accuracy"]
  assert all(axis.get_xlabel() == "iteration" and axis.get_ylabel() for axis in figure.axes)
  assert [axis.get_yscale() for axis in figure.axes] == ["linear", "log", "linear"]
  assert figure.get_suptitle() == "A title\n(mean over students with 95 % confidence band)"
  (legend,) = figure.legends
  assert [text.get_text() for text in legend.get_texts()] == list(METHODS)
  covered = legend.get_window_extent()
  assert not any(covered.overlaps(axis.get_tightbbox()) for axis in figure.axes)


def test_long_names_stay_on_the_picture(tmp_path, drawn):
  curves = [each._replace(name=f"{each.name}, {'of some length ' * 4}") for each in some_curves()]
  plot(tmp_path / "a.png", curves)
  (figure,) = drawn
  (legend,) = figure.legends
  assert legend.get_window_extent().x0 >= 0
  assert legend.get_window_extent().x1 <= figure.bbox.width


@pytest.mark.parametrize(("low", "labels"), [(2.6, ["2.6", "2.8", "3.0", "3.2"]), (0.3, ["1", "2", "3"])])
def test_logarithmic_axes_of_less_than_a_decade_count_evenly(tmp_path, drawn, low, labels):
  step = np.arange(5)
  values = np.tile(np.geomspace(3.3, low, 5), (2, 1))
  plot(tmp_path / "a.png", [Curves("SGD", {"iteration": step}, {"distance": values}, "sgd")])
  (axis,) = drawn[0].axes
  drawn[0].canvas.draw()
  bottom, top = axis.get_ylim()
  ticks = [label.get_text() for label in axis.get_yticklabels() if bottom <= label.get_position()[1] <= top]
  if low > 1:
    assert ticks == labels
  else:
    assert not {"1", "2", "3"} & set(ticks)  # More than a decade: powers of ten.


def test_lines_are_means_in_the_looks_of_their_methods(tmp_path, drawn):
  curves = some_curves()
  plot(tmp_path / "a.png", curves)
  for line, each in zip(drawn[0].axes[1].lines, curves, strict=True):
    np.testing.assert_allclose(line.get_ydata(), each.metrics["distance"].mean(0))
    style = tools.method_style(each.family, each.variant)
    assert (line.get_color(), line.get_marker()) == (style.color, style.marker)


def test_names_decide_nothing(tmp_path, drawn):
  curves = some_curves(("distance",))
  plot(tmp_path / "a.png", [each._replace(name=other.name) for each, other in zip(curves, curves[::-1], strict=True)])
  expected = [tools.method_style(*method).color for method in METHODS.values()]
  assert [line.get_color() for line in drawn[0].axes[0].lines] == expected


@pytest.mark.parametrize("metrics", [("distance",), ("objective", "distance"), ("accuracy",)])
def test_one_panel_for_each_recorded_metric(tmp_path, drawn, metrics):
  plot(tmp_path / "a.png", some_curves(metrics))
  assert len(drawn[0].axes) == len(metrics)
  assert len(drawn[0].legends[0].get_texts()) == 3


@pytest.mark.parametrize(("height", "near"), [(1e-4, True), (1e-9, False)])
@pytest.mark.parametrize("floor", [True, False])
def test_levels_are_marked_where_curves_come_near(tmp_path, drawn, height, near, floor):
  plot(
    tmp_path / "a.png", some_curves(floor=1e-3), levels={"distance": [Level("float32 rounding", height, floor=floor)]}
  )
  axis = drawn[0].axes[1]
  assert [text.get_text() for text in axis.texts] == (["float32\nrounding"] if near else [])
  assert [line.get_linestyle() for line in axis.lines[3:]] == ([":" if floor else "-"] if near else [])


def test_a_further_axis(tmp_path, drawn):
  step = np.arange(4)
  line = tools.Line("SGD", np.ones((2, 4)), {"iteration": step, "seconds": step / 7}, "sgd")
  tools.plot_charts(tmp_path / "a.png", [tools.Chart("Distance", "y", (line,), x_log=True)], axis="seconds")
  (axis,) = drawn[0].axes
  assert (axis.get_xlabel(), axis.get_xscale()) == ("seconds", "log")
  np.testing.assert_allclose(axis.lines[0].get_xdata(), [np.nan, *step[1:] / 7])  # No place on the axis is at 0.
  tools.plot_charts(tmp_path / "b.png", [tools.Chart("Distance", "y", (line,))], axis="seconds")
  np.testing.assert_allclose(drawn[1].axes[0].lines[0].get_xdata(), step / 7)


def test_wide_bands_do_not_squeeze_the_means(tmp_path, drawn):
  values = np.array([[1.0, 0.5], [-100.0, 100.0], [102.0, -100.0]])  # Means 1 and 0.17, bands of a hundred.
  line = tools.Line("SGD", values, {"iteration": np.arange(2)}, "sgd")
  tools.plot_charts(tmp_path / "a.png", [tools.Chart("Objective", "y", (line,))])
  low, high = drawn[0].axes[0].get_ylim()
  assert -1 < low < 0.17 < 1 < high < 2


def test_impossible_values_are_not_shown(tmp_path, drawn):
  plot(tmp_path / "a.png", [some_curves()[0]._replace(metrics={"accuracy": np.array([[1.0] * 21, [0.6] * 21])})])
  assert drawn[0].axes[0].get_ylim()[1] <= 101


def test_difficult_values(tmp_path):
  step = {"iteration": np.arange(4)}
  curves = [
    Curves("SGD", step, {"distance": np.array([[1.0, 1e30, np.inf, np.nan]] * 2)}, "sgd"),
    Curves("IMT", step, {"distance": np.array([[1.0, 0.1, 0.0, 0.0]])}, "imt"),  # One student; the target itself.
    Curves("LAST", step, {"distance": np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 1e-9, 1e-9, 1e-9]])}, "greedy", "none"),
  ]
  plot(tmp_path / "a.png", curves, levels={"distance": [Level("rounding", 1e-8, floor=True)]})
  assert np.mean(pixels(tmp_path / "a.png").min(2) < 0.9) > 0.01
  plot(tmp_path / "a.png", [Curves("SGD", {"iteration": np.arange(1)}, {"distance": np.zeros((2, 1))}, "sgd")])
  plot(tmp_path / "a.png", [Curves("SGD", step, {"objective": np.full((2, 4), np.nan)}, "sgd")])


@pytest.mark.parametrize("lines", [(), (tools.Line("SGD", np.ones((2, 3)), {"iteration": np.ones(4)}, "sgd"),)])
def test_charts_that_do_not_fit_are_refused(tmp_path, lines):
  with pytest.raises(ValueError, match="'Distance'"):
    tools.plot_charts(tmp_path / "a.png", [tools.Chart("Distance", "y", lines)])
  with pytest.raises(ValueError, match="charts"):
    tools.plot_charts(tmp_path / "a.png", [])


def test_a_failure_leaves_the_earlier_picture(tmp_path, monkeypatch):
  from matplotlib.figure import Figure

  plot(tmp_path / "a.png", some_curves())
  before = (tmp_path / "a.png").read_bytes()

  def half(self, path, **settings):
    path.write_bytes(b"half")
    raise OSError("disk full")

  monkeypatch.setattr(Figure, "savefig", half)
  with pytest.raises(OSError, match="disk full"):
    plot(tmp_path / "a.png", some_curves())
  assert (tmp_path / "a.png").read_bytes() == before
  assert os.listdir(tmp_path) == ["a.png"]


def test_pyplot_is_not_imported(tmp_path):
  loaded = "matplotlib.pyplot" in sys.modules
  plot(tmp_path / "a.png", some_curves())
  assert ("matplotlib.pyplot" in sys.modules) == loaded


def test_training_draws_the_metrics_that_have_numbers(tmp_path, drawn):
  metrics = {"loss": [3.0, 2.0, 1.0], "score": [None, None, None]}
  tools.plot_training(tmp_path / "a.png", [0, 10, 20], metrics, title="A training")
  (axis,) = drawn[0].axes
  assert axis.get_title() == "loss"
  np.testing.assert_array_equal(axis.lines[0].get_ydata(), [3, 2, 1])


ODD = ("$x^{2$", "a_b^c", "$\\frac{", "\\$5 & $6", "_hidden", os.fsdecode(b"caf\xe9"), "%", "{}", "a$b$c", "$", "$$")


def shown(name):
  """The text for a name: bytes that are not UTF-8 as escapes, all else as it is."""
  return name.replace("\udce9", "\\udce9")


def test_names_appear_as_they_are(tmp_path, drawn):
  """Dollars begin no formula, an underscore hides nothing, and numbers along logarithmic axes stay formulas."""
  base = some_curves(("distance",))[0]
  curves = [base._replace(name=name, family="greedy", variant=place) for place, name in enumerate(ODD)]
  for title in ("$_{ ".join(ODD), "$$"):
    plot(tmp_path / "a.png", curves, title, x_log=True)
    assert drawn[-1].get_suptitle().splitlines()[0] == shown(title)
  (legend,) = drawn[-1].legends
  assert [text.get_text() for text in legend.get_texts()] == [shown(name) for name in ODD]
  assert not any(text.get_parse_math() for text in legend.get_texts())
  ticks = [label for label in drawn[-1].axes[0].get_yticklabels() if label.get_text()]
  assert any("mathdefault" in label.get_text() and label.get_parse_math() for label in ticks)


def test_names_of_classes_appear_as_they_are(tmp_path, drawn):
  values = np.eye(len(ODD))
  draw_fixed_labels(tmp_path / "a.png", "$_{ ".join(ODD), values, values, values, ODD)
  labels = drawn[-1].axes[0].get_xticklabels()
  assert [label.get_text() for label in labels] == [shown(name) for name in ODD]
  assert not any(label.get_parse_math() for label in labels)
  tools.plot_training(tmp_path / "b.png", [1, 2], {"distance": [2.0, 1.0]}, title=ODD[2])
  assert drawn[-1].get_suptitle() == ODD[2]
