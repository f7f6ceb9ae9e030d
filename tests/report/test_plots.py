"""Figures: drawn, legible in grey, and each method with one look everywhere."""

import os

import jax.numpy as jnp
import matplotlib.image
import numpy as np
import pytest

import last_jax as last
from last_jax import report
from last_jax.report import statistics

C, T = last.constraints, last.teachers
SETS = [
  C.one_hot(), C.simplex(), C.none(), C.magnitude(0.25), C.magnitude(0.5), C.magnitude(1.0), C.magnitude(2.0),
  C.magnitude(4.0), C.simplex(0.5), C.simplex(1.0),
]  # fmt: skip
NAMES = [
  *(teacher.name for teacher in (T.sgd(), T.imt(), T.label_smoothing(0.9), T.self_training())),
  *(T.distillation(lambda x: x).name, "self-training (hard)"),
  *(T.greedy(labels).name for labels in SETS),
  *(T.mixed(labels).name for labels in SETS),
  *(T.mixed(labels, joint=True).name for labels in SETS),
  *("unrolled, 20 steps", "unrolled, 100 steps", "policy gradient", "policy gradient, five actions"),
  *("theorem 3 (α=0)", "theorem 3 (α=0.5)", "theorem 3 (α=1)", "bound of theorem 3 (α=0)", "bound of theorem 3 (α=1)"),
  *("LAST (r=1, p=1)", "LAST (r=1, around prediction)", "LAST (r=1, p=inf, around prediction)"),
]


def brightness(color):
  red, green, blue = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
  return 0.299 * red + 0.587 * green + 0.114 * blue


class TestStyles:
  def test_no_two_methods_look_alike(self):
    looks = {report.method_style(name): name for name in NAMES}
    assert len(looks) == len(NAMES)

  def test_constraints_stay_apart_in_grey(self):
    for labels in ([C.one_hot(), C.simplex(), C.none()], [C.magnitude(radius) for radius in (0.5, 1.0, 2.0)]):
      shades = sorted(brightness(report.method_style(T.greedy(each).name).color) for each in labels)
      assert min(np.diff(shades)) > 0.07

  def test_constraints_have_markers_of_their_own(self):
    markers = {report.method_style(T.mixed(each).name).marker for each in SETS[:4]}
    assert len(markers) == 4

  def test_methods_of_one_constraint_differ_in_line_only(self):
    for labels in SETS:
      teachers = (T.greedy(labels), T.mixed(labels), T.mixed(labels, joint=True))
      styles = [report.method_style(teacher.name) for teacher in teachers]
      assert len({(style.color, style.marker) for style in styles}) == 1
      assert len({style.line for style in styles}) == 3

  def test_unknown_methods_have_a_look_that_stays(self):
    first = report.method_style("someone's own")
    assert first == report.method_style("someone's own")
    assert first != report.method_style("someone else's")


def some_curves(metrics=("objective", "distance", "accuracy"), students=4, floor=1e-3):
  draw = np.random.default_rng(0)
  step = np.arange(0, 101, 5)
  curves = {}
  for place, name in enumerate(("SGD", "IMT", "LAST (simplex)")):
    decay = floor + np.exp(-0.03 * (place + 1) * step) * draw.uniform(0.8, 1.2, (students, 1))
    values = {"objective": 0.3 + decay, "distance": decay, "accuracy": 1 - 0.4 * np.minimum(decay, 1)}
    curves[name] = {"step": step} | {metric: values[metric] for metric in metrics}
  return curves


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


class TestPlotCurves:
  def test_picture(self, tmp_path, drawn):
    references = {"objective": 0.3, "accuracy": None}
    report.plot_curves(tmp_path / "a.png", some_curves(), title="A title", references=references)
    image = pixels(tmp_path / "a.png")
    assert 0.01 < np.mean(image.min(2) < 0.9) < 0.5  # Neither blank nor black.
    assert os.listdir(tmp_path) == ["a.png"]
    (figure,) = drawn
    assert [axis.get_title() for axis in figure.axes] == ["Objective", "Distance to the target", "Test accuracy"]
    assert all(axis.get_xlabel() == "iteration" and axis.get_ylabel() for axis in figure.axes)
    assert [axis.get_yscale() for axis in figure.axes] == ["linear", "log", "linear"]
    assert "95 %" in figure.get_suptitle()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["SGD", "IMT", "LAST (simplex)"]
    covered = legend.get_window_extent()
    assert not any(covered.overlaps(axis.get_tightbbox()) for axis in figure.axes)

  def test_lines_are_means_in_the_methods_colours(self, tmp_path, drawn):
    curves = some_curves()
    report.plot_curves(tmp_path / "a.png", curves)
    for line, (name, curve) in zip(drawn[0].axes[1].lines, curves.items(), strict=True):
      np.testing.assert_allclose(line.get_ydata(), curve["distance"].mean(0))
      assert line.get_color() == report.method_style(name).color

  @pytest.mark.parametrize("metrics", [("distance",), ("objective", "distance"), ("accuracy",)])
  def test_panels_without_records_are_left_out(self, tmp_path, drawn, metrics):
    curves = some_curves(metrics)
    curves["SGD"] |= {"objective": None}
    if "objective" in metrics:
      del curves["SGD"]["objective"]
    report.plot_curves(tmp_path / "a.png", curves)
    assert len(drawn[0].axes) == len(metrics)
    assert len(drawn[0].legends[0].get_texts()) == 3

  def test_nothing_recorded(self, tmp_path):
    with pytest.raises(ValueError, match="nothing to draw"):
      report.plot_curves(tmp_path / "a.png", {"SGD": {"step": np.arange(3)}})

  @pytest.mark.parametrize(("floor", "near"), [(1e-4, True), (1e-9, False)])
  def test_floor_is_marked_where_curves_come_near(self, tmp_path, drawn, floor, near):
    report.plot_curves(tmp_path / "a.png", some_curves(floor=1e-3), floors={"rounding": floor})
    texts = [text.get_text() for text in drawn[0].axes[1].texts]
    assert texts == (["rounding"] if near else [])

  def test_difficult_values(self, tmp_path):
    step = np.arange(4)
    curves = {
      "SGD": {"step": step, "distance": np.array([[1.0, 1e30, np.inf, np.nan]] * 2)},
      "IMT": {"step": step, "distance": np.array([[1.0, 0.1, 0.0, 0.0]])},  # One student; the target itself.
      "LAST (none)": {"step": step, "distance": np.array([[1.0, 1.0, 1.0, 1.0], [1.0, 1e-9, 1e-9, 1e-9]])},
    }
    report.plot_curves(tmp_path / "a.png", curves, floors={"rounding": 1e-8})
    assert np.mean(pixels(tmp_path / "a.png").min(2) < 0.9) > 0.01
    report.plot_curves(tmp_path / "a.png", {"SGD": {"step": step[:1], "distance": np.zeros((2, 1))}})

  def test_objectives_over_decades_get_a_log_axis(self, tmp_path, drawn):
    curves = some_curves(("objective",))
    for curve in curves.values():
      curve["objective"] = curve["objective"] - 0.3
    report.plot_curves(tmp_path / "a.png", curves)
    assert drawn[0].axes[0].get_yscale() == "log"

  def test_a_failure_leaves_the_earlier_picture(self, tmp_path, monkeypatch):
    from matplotlib.figure import Figure

    report.plot_curves(tmp_path / "a.png", some_curves())
    before = (tmp_path / "a.png").read_bytes()

    def half(self, path, **settings):
      path.write_bytes(b"half")
      raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", half)
    with pytest.raises(OSError, match="disk full"):
      report.plot_curves(tmp_path / "a.png", some_curves())
    assert (tmp_path / "a.png").read_bytes() == before
    assert os.listdir(tmp_path) == ["a.png"]

  def test_pyplot_is_left_alone(self, tmp_path):
    import sys

    loaded = "matplotlib.pyplot" in sys.modules
    report.plot_curves(tmp_path / "a.png", some_curves())
    assert ("matplotlib.pyplot" in sys.modules) == loaded


class TestBand:
  def test_narrow_bands_agree_with_the_interval(self):
    mean, half_width = np.array([2.0]), np.array([0.002])
    low, high = statistics.interval_ends(mean, half_width, log=True)
    np.testing.assert_allclose([low, high], [mean - half_width, mean + half_width], rtol=1e-6)

  def test_wide_bands_stay_positive(self):
    low, high = statistics.interval_ends(np.array([1.0]), np.array([3.0]), log=True)
    assert 0 < low < 1 < high


def test_rounding_floor():
  # Half a unit in the last place of 1 is 2**-24 in float32, of 4 it is four times as much.
  floor = report.rounding_floor({"a": jnp.array([1.0, 4.0], jnp.float32), "b": jnp.array([[-1.0]], jnp.float32)})
  assert floor == pytest.approx(2.0**-24 * np.sqrt(1 + 16 + 1))
