"""Finished figures as files: everything comes back, and figures of other code, data or settings do not count."""

import json
import pathlib

import numpy as np
import pytest

import last_jax
from last_jax import reproduction, tools
from last_jax.reproduction import FIGURES, Size, storage
from last_jax.reproduction.claims import TIMES, Claim, Comparison, Reading, Unit
from last_jax.reproduction.config import Outcome
from last_jax.tools import Ball, Chart, Gallery, LabelFrames, Level, Line

QUICK = Size("quick", 2)
LOOKS = {
  "SGD": ("sgd", ""),
  "LAST (none)": ("greedy", "none"),
  "LAST (r=1)": ("greedy", Ball(1.0)),
  "mixed (r=0.5, p=inf)": ("mixed", Ball(0.5, float("inf"), "prediction", True)),
  "bound": ("bound", 3),
}


def outcome_of_everything():
  draw = np.random.default_rng(0)
  axes = {"iteration": np.arange(5), "seconds, one student": np.arange(5) / 7, "seconds, many": np.arange(5) / 9}
  lines = tuple(Line(name, draw.uniform(0.1, 1, size=(3, 5)), axes, *look) for name, look in LOOKS.items())
  levels = (Level("target", 0.2), Level("float32 rounding", 1e-7, floor=True))
  frames = LabelFrames(
    "labels", draw.normal(size=(9, 2)), np.arange(9) % 2, np.arange(4), draw.integers(2, size=(4, 9)),
    draw.normal(size=(4, 3)), np.ones(3),
  )  # fmt: skip
  gallery = Gallery(
    "digits", draw.integers(256, size=(3, 28, 28)).astype(np.uint8), ("3", "5", "3 as 5"), "three digits"
  )
  claims = (
    Claim("it holds", [Comparison("a against b", draw.normal(size=8), TIMES, 0.1)], "remark"),
    Claim("always", [Comparison("share", np.ones(8), Unit("%"), every=True)] * 2, because="reason"),
    Claim(
      "it depends",
      [Comparison("c", draw.normal(size=8), part="run", beside=[Comparison("accuracy", draw.normal(size=8))])],
      readings=[Reading("bounded", "r = 2", [Comparison("c", draw.normal(size=8), part="end")], "reason")],
      size="full",
    ),
  )
  charts = (
    Chart("Distance", "‖w‖", lines, True, True, levels),
    Chart("Accuracy", "%", lines[:2], limits=(0.0, 100.0)),
  )
  return Outcome({"steps": 5}, (*charts, frames, gallery), claims)


def without_arrays(chart):
  return chart._replace(lines=tuple(line._replace(values=None, axes=list(line.axes)) for line in chart.lines))


def assert_same(comparisons, originals):
  for comparison, original in zip(comparisons, originals, strict=True):
    np.testing.assert_array_equal(comparison.values, original.values)
    assert comparison._replace(values=None, beside=()) == original._replace(values=None, beside=())
    assert_same(comparison.beside, original.beside)


@pytest.mark.slow
def test_a_stored_figure_comes_back(tmp_path):
  outcome, figure = outcome_of_everything(), FIGURES["lsr"]
  reproduction.save(tmp_path, figure, QUICK, outcome, 1.5)
  stored = reproduction.load(tmp_path, figure, QUICK)
  assert stored is not None
  assert stored.settings == {"steps": "5"}
  assert stored.seconds == 1.5
  *charts, frames, gallery = stored.blocks
  for chart, expected in zip(charts, outcome.blocks[:2], strict=True):
    assert without_arrays(chart) == without_arrays(expected)
    for line, original in zip(chart.lines, expected.lines, strict=True):
      np.testing.assert_array_equal(line.values, original.values)
      for axis, values in original.axes.items():
        np.testing.assert_array_equal(line.axes[axis], values)
  for name in LabelFrames._fields[1:]:
    np.testing.assert_array_equal(getattr(frames, name), getattr(outcome.blocks[2], name))
  assert isinstance(gallery, Gallery)
  np.testing.assert_array_equal(gallery.images, outcome.blocks[3].images)
  assert gallery._replace(images=None) == outcome.blocks[3]._replace(images=None)
  assert (tmp_path / "gallery_4.png").read_bytes().startswith(b"\x89PNG")
  for claim, expected in zip(stored.claims, outcome.claims, strict=True):
    assert claim._replace(comparisons=(), readings=()) == expected._replace(comparisons=(), readings=())
    for reading, given in zip(claim.all_readings, expected.all_readings, strict=True):
      assert reading._replace(comparisons=()) == given._replace(comparisons=())
      assert_same(reading.comparisons, given.comparisons)


@pytest.mark.slow
def test_there_is_a_picture_by_every_axis(tmp_path):
  reproduction.save(tmp_path, FIGURES["lsr"], QUICK, outcome_of_everything(), 1.0)
  pictures = {path.name for path in tmp_path.glob("*.png")}
  assert pictures == {"curves.png", "time_1.png", "time_2.png", "labels.png", "gallery_4.png"}


@pytest.fixture
def saved(tmp_path):
  reproduction.save(tmp_path, FIGURES["lsr"], QUICK, outcome_of_everything(), 1.0)
  return tmp_path


def is_finished(folder, figure="lsr", size=QUICK):
  return reproduction.load(folder, FIGURES[figure], size) is not None


@pytest.mark.slow
def test_other_settings_do_not_count(saved, tmp_path):
  assert is_finished(saved)
  assert not is_finished(saved, figure="theory")
  assert not any(
    is_finished(saved, size=size) for size in (Size("quick", 3), Size("usual", 2), Size("quick", 2, None, 1))
  )
  assert not is_finished(tmp_path / "nowhere")


def test_other_code_does_not_count(saved, monkeypatch):
  with monkeypatch.context() as patch:
    patch.setattr(storage, "code_hash", lambda: "of other code")
    assert not is_finished(saved)
  assert is_finished(saved)


@pytest.mark.slow
@pytest.mark.parametrize("package", ["jax", "jaxlib", "numpy", "optax"])
def test_other_versions_do_not_count(saved, monkeypatch, package):
  versions = tools.package_versions() | {package: "0.0.1"}
  monkeypatch.setattr(tools, "package_versions", lambda: versions)
  assert not is_finished(saved)


def test_every_python_file_and_the_packaged_data_count(tmp_path):
  def write(name, text):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(text)
    return storage.hash_files(tmp_path)

  before = write("a.py", "1")
  assert write("notes.md", "not code") == before
  hashes = [before, write("a.py", "2"), write("inner/b.py", "2"), write("inner/data.npz", "2"), write("c.py", "")]
  assert len(set(hashes)) == len(hashes)
  (tmp_path / "c.py").unlink()
  assert storage.hash_files(tmp_path) == hashes[-2]


def test_the_code_is_that_of_the_package():
  assert storage.code_hash() == storage.hash_files(pathlib.Path(last_jax.__file__).parent)


@pytest.mark.slow
def test_incomplete_or_damaged_files_do_not_count(saved):
  arrays = (saved / storage.ARRAYS).read_bytes()
  (saved / storage.ARRAYS).write_bytes(arrays[: len(arrays) // 2])
  assert not is_finished(saved)
  (saved / storage.ARRAYS).write_bytes(arrays)
  assert is_finished(saved)
  (saved / storage.FACTS).write_text("{")
  assert not is_finished(saved)


def test_only_pictures_that_it_drew_are_removed(tmp_path):
  """By the facts of the earlier save: a picture of other charts goes, and one of somebody else stays."""
  figure, outcome = FIGURES["lsr"], outcome_of_everything()
  for name in ("mine.png", "time_9.png"):
    (tmp_path / name).write_bytes(b"mine")
  reproduction.save(tmp_path, figure, QUICK, Outcome({}, outcome.blocks[:1], ()), 1.0)
  assert {path.name for path in tmp_path.glob("*.png")} == {
    "mine.png",
    "time_9.png",
    "curves.png",
    "time_1.png",
    "time_2.png",
  }
  one_axis = outcome.blocks[1]._replace(
    lines=tuple(line._replace(axes={"iteration": np.arange(5)}) for line in outcome.blocks[1].lines)
  )
  reproduction.save(tmp_path, figure, QUICK, Outcome({}, (one_axis,), ()), 1.0)
  assert {path.name for path in tmp_path.glob("*.png")} == {"mine.png", "time_9.png", "curves.png"}
  assert (tmp_path / "mine.png").read_bytes() == b"mine"


def test_a_picture_that_fails_costs_itself(tmp_path, monkeypatch):
  figure, outcome = FIGURES["lsr"], outcome_of_everything()

  def fail(path, **_):
    assert (tmp_path / storage.FACTS).exists()  # Numbers come first.
    raise RuntimeError("no\nfont")

  def touch(path, **_):
    path.touch()

  monkeypatch.setattr(storage, "draw_gallery", fail)
  monkeypatch.setattr(storage, "draw_labels", touch)
  monkeypatch.setattr(tools, "plot_charts", touch)
  assert reproduction.save(tmp_path, figure, QUICK, outcome, 1.0) == ["gallery_4.png could not be drawn: no font"]
  stored = reproduction.load(tmp_path, figure, QUICK)
  assert [block.title for block in stored.blocks] == ["Distance", "Accuracy", "labels", "digits"]
  assert len(stored.claims) == len(outcome.claims)
  (tmp_path / "labels.png").unlink()  # As if the process had been killed before it was drawn.
  assert reproduction.load(tmp_path, figure, QUICK) is None


@pytest.mark.parametrize(
  "changes",
  [
    {"blocks": 5},
    {"blocks": [[]]},
    {"blocks": [{"kind": "Gallery", "title": "x", "captions": [], "description": ""}],
     "pictures": ["../../secret.png"]},
    {"pictures": ["missing.png"]},
    {"pictures": None},
    {"claims": [{}]},
    {"claims": "text"},
  ],
)  # fmt: skip
def test_forged_facts_do_not_count(tmp_path, monkeypatch, changes):
  """And lead to no file elsewhere, neither for the page nor to be removed."""
  secret, folder = tmp_path / "secret.png", tmp_path / "a" / "b"
  secret.write_bytes(b"secret")
  monkeypatch.setattr(tools, "plot_charts", lambda path, **_: path.touch())
  outcome = Outcome({}, outcome_of_everything().blocks[:1], ())
  reproduction.save(folder, FIGURES["lsr"], QUICK, outcome, 1.0)
  assert is_finished(folder)
  facts = json.loads((folder / storage.FACTS).read_text())
  (folder / storage.FACTS).write_text(json.dumps(facts | changes))
  stored = reproduction.load(folder, FIGURES["lsr"], QUICK)
  assert stored is None or not stored.blocks
  reproduction.save(folder, FIGURES["lsr"], QUICK, outcome, 1.0)
  assert secret.read_bytes() == b"secret"
  assert is_finished(folder)
