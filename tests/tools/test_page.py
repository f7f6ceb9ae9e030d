"""The results page as a file: its numbers, its texts, and its errors."""

import base64
import html.parser
import io
import json
import os
import re

import matplotlib.image
import numpy as np
import pytest

from last_jax import tools
from last_jax.tools import Chart, Line, Picture
from last_jax.tools import page as pages
from tests.tools.some_page import BY_STEP, NASTY, STYLED, as_array, charts_of, some_frames, some_gallery, some_lines


class Reader(html.parser.HTMLParser):
  """A parsed file: elements with their attributes, texts, scripts and styles."""

  def __init__(self, text):
    super().__init__()
    self.elements, self.texts, self.scripts, self.styles, self.open = [], [], [], [], ""
    self.feed(text)

  def handle_starttag(self, tag, attributes):
    self.elements.append((tag, dict(attributes)))
    self.open = tag
    if tag in ("script", "style"):
      (self.scripts if tag == "script" else self.styles).append("")

  def handle_endtag(self, tag):
    self.open = ""

  def handle_data(self, data):
    if self.open == "script":
      self.scripts[-1] += data
    elif self.open == "style":
      self.styles[-1] += data
    else:
      self.texts.append(data)


@pytest.fixture(scope="module")
def read(path):
  return Reader(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def embedded(read):
  return json.loads(read.scripts[0], parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


class TestFile:
  def test_numbers_are_means_and_intervals(self, contents, embedded):
    for anchor, place, chart in charts_of(contents):
      drawn = embedded["sections"][anchor][place]
      assert (drawn["title"], drawn["label"], drawn["log"]) == (chart.title, chart.label, chart.log)
      assert [tuple(level) for level in drawn["levels"]] == list(chart.levels)
      for line, numbers in zip(chart.lines, drawn["lines"], strict=True):
        mean, half_width = tools.mean_interval(line.values)
        with np.errstate(over="ignore"):
          log_low, log_high = tools.interval_ends(mean, half_width, log=True)
        expected = {"mean": mean, "low": mean - half_width, "high": mean + half_width}
        for name, values in (expected | {"log_low": log_low, "log_high": log_high}).items():
          values = np.where(np.isfinite(values), values, np.nan)
          # Half a unit in the sixth digit.
          np.testing.assert_allclose(as_array(numbers[name]), values, rtol=5e-6, atol=1e-12, err_msg=name)
        assert list(numbers["axes"]) == list(line.axes)
        for name, axis in line.axes.items():
          np.testing.assert_allclose(numbers["axes"][name], axis, rtol=5e-6)

  def test_numbers_are_short_and_steps_whole(self, embedded):
    first = embedded["sections"]["figure-lsr"][0]["lines"][0]
    assert all(isinstance(step, int) for step in first["axes"][BY_STEP])
    assert max(len(f"{number:.15g}".lstrip("0.").replace(".", "")) for number in first["mean"]) <= 6

  def test_difficult_numbers(self, embedded):
    odd = embedded["sections"]["figure-moons"][1]["lines"][0]
    assert odd["mean"] == [1, 0.55, None, -0.05, None, 2e300]
    assert odd["log_low"][3] is None  # Not on a log axis.

  def test_looks_are_those_of_the_methods(self, embedded):
    lines = {line["name"]: line for line in embedded["sections"]["figure-lsr"][0]["lines"]}
    assert lines["SGD"] | {"color": "#000000", "dash": "solid", "symbol": "circle"} == lines["SGD"]
    assert lines["IMT"]["dash"] == "20px,5px"
    assert lines["LAST (simplex)"]["symbol"] == "triangle-up"

  def test_every_marker_has_a_symbol(self, contents, tmp_path):
    methods = [*STYLED.values(), *(("other", place) for place in range(100))]
    lines = tuple(Line(str(n), np.ones((2, 1)), {BY_STEP: np.zeros(1)}, *look) for n, look in enumerate(methods))
    section = contents.sections[2]._replace(blocks=(Chart("Looks", "y", lines),))
    pages.write_page(tmp_path / "page.html", contents._replace(sections=(section,)))
    data = json.loads(Reader((tmp_path / "page.html").read_text(encoding="utf-8")).scripts[0])
    assert all(line["symbol"] for line in data["sections"]["figure-looks"][0]["lines"])

  def test_labels(self, contents, embedded):
    frames = contents.sections[1].blocks[0]
    drawn = embedded["sections"]["figure-moons"][0]
    assert [[int(label) for label in labels] for labels in drawn["labels"]] == frames.labels.tolist()
    np.testing.assert_allclose(drawn["boundaries"], frames.boundaries, rtol=5e-6)

  def test_the_opening_is_compact_and_exact_enough(self, contents, embedded):
    given, drawn = contents.opening, embedded["opening"]
    low, high = drawn["range"]
    assert (low, high) == (-1, 2)
    letters = drawn["levels"]
    assert len(set(letters)) == len(letters) == 64
    labels = [[low + (high - low) * letters.index(letter) / 63 for letter in frame] for frame in drawn["labels"]]
    np.testing.assert_allclose(labels, given.labels, atol=3 / 63 / 2 + 1e-9)
    assert len(json.dumps(drawn)) < 1.2 * given.labels.size + 100 * len(given.x) + 100 * len(given.shown) + 500
    np.testing.assert_allclose(drawn["x"], given.x, atol=5e-4)
    assert [int(label) for label in drawn["truth"]] == given.truth.tolist()
    assert drawn["shown"] == given.shown.tolist()
    for side, expected in zip(drawn["sides"], (given.taught, given.other), strict=True):
      assert side["name"] == expected.name
      for name in ("labels", "boundaries", "distance"):
        np.testing.assert_allclose(side[name], getattr(expected, name), rtol=5e-6)

  def test_a_page_may_have_no_opening_and_no_names(self, contents, tmp_path):
    pages.write_page(tmp_path / "page.html", contents._replace(opening=None, names={}))
    found = Reader((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert json.loads(found.scripts[0])["opening"] is None
    assert not {"opening", "names"} & {attributes.get("id") for _, attributes in found.elements}

  def test_names_come_before_claims_and_figures(self, read):
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    order = [ids.index(name) for name in ("content", "opening", "contents", "names", "claims", "figure-lsr")]
    assert order == sorted(order)

  def test_every_claim_has_its_threshold(self, read):
    text = " ".join(" ".join(read.texts).split())
    assert "Threshold" in text
    assert "2.8 to 3.5 > 0.5 10" in text
    assert "4 times nearer (3 to 5; threshold > 1)." in text
    assert "2 times farther (1 to 3)." in text  # One without.

  def test_images_of_a_gallery_are_its_ink(self, contents, read):
    gallery = contents.sections[4].blocks[0]
    sources = [found["src"] for tag, found in read.elements if tag == "img" and found["alt"] == ""]
    for source, image in zip(sources, gallery.images, strict=True):
      decoded = matplotlib.image.imread(io.BytesIO(base64.b64decode(source.partition("base64,")[2])))
      np.testing.assert_allclose(decoded[..., :-1], 0.0)  # Black,
      np.testing.assert_allclose(decoded[..., -1], image / 255, atol=1e-6)  # as opaque as there is ink.

  def test_texts_are_texts(self, read, embedded):
    assert len(read.scripts) == 3
    assert "</" not in read.scripts[0]
    assert embedded["sections"]["figure-lsr"][0]["lines"][3]["name"] == NASTY
    assert not any(tag == "b" for tag, _ in read.elements)
    text = " ".join(" ".join(read.texts).split())
    for part in ("Results", "Introduction", "Regression", "First.", "Nearer.", "Since", "ValueError:", "Accuracy"):
      assert f"{part} {NASTY}" in text
    assert next(attributes["alt"] for tag, attributes in read.elements if tag == "img") == f"Grey {NASTY}"
    for part in ("Shown", "Lead", "Text", "chosen", "Digits", "3 as", "Written", "r"):
      assert f"{part} {NASTY}" in text

  def test_nothing_points_to_the_network(self, read):
    for tag, attributes in read.elements:
      for name in ("src", "href", "srcset", "action", "data", "poster"):
        assert attributes.get(name, "#").startswith(("#", "data:")), (tag, attributes[name])
    assert not any(re.search(r"@import|url\(", style) for style in read.styles)

  def test_readings_are_listed_with_their_own_verdicts(self, read, path):
    assert [attributes for tag, attributes in read.elements if attributes.get("class") == "readings"] == [
      {"class": "readings", "aria-label": "Readings"}
    ]
    text = " ".join(read.texts)
    assert "literal: does not hold" in text
    assert "bounded: holds" in text
    assert "Labels within 2 &lt;of&gt; the truth" in path.read_text(encoding="utf-8")
    assert "A note." in text

  def test_verdicts_are_counted_and_linked(self, read):
    text = " ".join(read.texts)
    counts = ("1 holds", "1 does not hold", "1 not resolved", "1 depends on the reading", "1 not run at this size")
    assert all(count in text for count in counts)
    ids = [attributes["id"] for _, attributes in read.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"] for tag, attributes in read.elements if tag == "a"]
    assert links.count("#figure-lsr") == 2  # From the claim, and from the contents.
    assert "#figure-nowhere" not in links
    assert {link[1:] for link in links} <= set(ids)

  def test_is_written_whole(self, path, contents, tmp_path, monkeypatch):
    target = tmp_path / "page.html"
    target.write_text("before")

    def half(self, text, **settings):
      self.write_bytes(text[:100].encode())
      raise OSError("disk full")

    with monkeypatch.context() as patch:
      patch.setattr(type(target), "write_text", half)
      with pytest.raises(OSError, match="disk full"):
        pages.write_page(target, contents)
    assert target.read_text() == "before"
    pages.write_page(target, contents)
    assert target.read_bytes() == path.read_bytes()  # The same contents give the same file.
    assert os.listdir(tmp_path) == ["page.html"]

  def test_contents_that_do_not_fit_are_refused(self, path, contents, picture, tmp_path):
    def refused(match, **changes):
      with pytest.raises(ValueError, match=match):
        pages.write_page(tmp_path / "page.html", contents._replace(**changes))

    def with_block(block):
      return {"sections": (contents.sections[0]._replace(blocks=(block,)),)}

    line = some_lines()[0]
    refused("verdicts must be", claims=(contents.claims[0]._replace(verdict="perhaps"),))
    reading = pages.ReadingRow("literal", "", "", "", "perhaps")
    refused("verdicts must be", claims=(contents.claims[0]._replace(readings=(reading,)),))
    refused("different names", sections=contents.sections[:1] * 2)
    refused(r"shape must be \[41\]", **with_block(Chart("A", "y", (line._replace(axes={BY_STEP: np.ones(3)}),))))
    refused(r"\[seeds, records\]", **with_block(Chart("A", "y", (line._replace(values=np.ones(3)),))))
    refused(r"\[seeds, records\]", **with_block(Chart("A", "y", (line._replace(axes={}),))))
    refused("must have a line", **with_block(Chart("A", "y", ())))
    refused("0 or 1", **with_block(some_frames()._replace(truth=np.full(60, 2))))
    refused(r"boundaries: the shape must be \[4, 3\]", **with_block(some_frames()._replace(boundaries=np.ones((4, 2)))))
    opening = contents.opening
    refused(r"shown: the shape|labels: the shape", opening=opening._replace(labels=opening.labels[:-1]))
    refused("must be finite", opening=opening._replace(labels=np.full_like(opening.labels, np.nan)))
    refused("places of x", opening=opening._replace(shown=opening.shown + len(opening.x)))
    refused(r"SGD, distance: the shape", opening=opening._replace(other=opening.other._replace(distance=np.ones(2))))
    refused("a frame and an example", opening=opening._replace(shown=opening.shown[:0]))
    refused("of uint8 with n captions", **with_block(some_gallery()._replace(captions=("3",))))
    refused("of uint8 with n captions", **with_block(some_gallery()._replace(images=np.zeros((5, 28, 28)))))
    (tmp_path / "photo.png").write_text("no picture")
    refused("not a PNG file", **with_block(Picture("A", tmp_path / "photo.png", "")))
    assert os.listdir(tmp_path) == ["photo.png"]
