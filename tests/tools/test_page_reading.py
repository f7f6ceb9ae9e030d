"""Reading the results page in a browser: its opening, its contents, and by keyboard and screen reader."""

import itertools
import re

import numpy as np
import pytest

from tests.tools.browsing import contrast, draw_all, open_page, wait_until
from tests.tools.some_page import NASTY

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_goes_wrong")]  # Each waits for a browser.

SHOW = """frame => {
  const range = document.querySelector('#opening input');
  range.value = frame;
  range.dispatchEvent(new Event('input'));
}"""


@pytest.fixture(scope="module")
def still(browser, path, wrong):
  """The page where no motion is wanted, shared by tests that leave it as it was."""
  view = open_page(browser, path, wrong, 1400, reduced_motion="reduce")
  yield view
  view.close()


def attributes(view, selector, *names):
  """The attributes of all elements, [elements, names]."""
  return view.locator(selector).evaluate_all(
    "(all, names) => all.map(e => names.map(n => e.getAttribute(n)))", list(names)
  )


def frame_of(view):
  return int(view.locator("#opening input").input_value())


class TestOpening:
  @pytest.mark.parametrize("width", [400, 1400])
  def test_it_is_the_first_thing_and_on_the_first_screen(self, opened, width):
    view = opened(width, reduced_motion="reduce")
    assert view.locator("main > *").first.get_attribute("id") == "opening"
    box = view.locator("#opening-0 svg").bounding_box()
    assert box["y"] + box["height"] < 900
    if width == 1400:  # All of it, the other student and the controls too.
      assert view.locator("#opening-1 svg").bounding_box()["y"] == box["y"]
      controls = view.locator("#opening .frames").bounding_box()
      assert controls["y"] + controls["height"] < 900
    assert view.evaluate("document.documentElement.scrollWidth") <= width

  @pytest.mark.parametrize("frame", [0, 7, 11])
  def test_what_is_drawn_are_the_numbers_given(self, still, contents, frame):
    shown = contents.opening
    still.evaluate(SHOW, frame)
    x0, y1 = shown.x[:, 0].min() - 0.15, shown.x[:, 1].max() + 0.15

    def in_the_plane(pairs):
      pairs = np.asarray(pairs, float)
      return np.stack([x0 + pairs[:, 0] / 100, y1 - pairs[:, 1] / 100], 1)

    for place, side in enumerate((shown.taught, shown.other)):
      points = attributes(still, f"#opening-{place} .points path", "transform", "fill", "d")
      where = in_the_plane([re.findall(r"-?[\d.]+", text) for text, _, _ in points])
      np.testing.assert_allclose(where, shown.x, atol=2e-3)
      assert [path.startswith("M0") for _, _, path in points] == [bool(label) for label in shown.truth]  # Diamonds.
      line = attributes(still, f"#opening-{place} path.student:not(.sure)", "d")[0][0]
      ends = in_the_plane(np.reshape(re.findall(r"-?[\d.]+", line), (-1, 2)))
      for boundary, (a, b, c) in {"student": side.boundaries[frame], "target": shown.optimal}.items():
        drawn = attributes(still, f"#opening-{place} path.{boundary}:not(.sure)", "d")[0][0]
        ends = in_the_plane(np.reshape(re.findall(r"-?[\d.]+", drawn), (-1, 2)))
        assert len(ends) == 2
        np.testing.assert_allclose(a * ends[:, 0] + b * ends[:, 1] + c, 0, atol=5e-3)
        sure = attributes(still, f"#opening-{place} path.{boundary}.sure", "d")[0][0]
        outputs = in_the_plane(np.reshape(re.findall(r"-?[\d.]+", sure), (-1, 2))) @ [a, b] + c
        np.testing.assert_allclose(1 / (1 + np.exp(-np.abs(outputs))), 0.75, atol=2e-3)
      ring = in_the_plane(attributes(still, f"#opening-{place} .ring", "cx", "cy"))
      np.testing.assert_allclose(ring[0], shown.x[shown.shown[frame]], atol=2e-3)
      assert still.locator(f"#opening-{place} .number").text_content() == f"{side.labels[frame]:.2f}".replace("-", "−")
      assert (
        f"distance to the target {side.distance[frame]:.2f}" in still.locator(f"#opening-{place} .state").text_content()
      )
    assert still.locator("#opening .now").text_content() == f"iteration {frame} of 11"

  def test_colours_are_those_of_the_labels(self, still, contents):
    """Equal labels have equal colours; the ends of the scale and the classes have those that are named."""
    shown = contents.opening
    still.evaluate(SHOW, 0)
    fills = [np.array([fill for (fill,) in attributes(still, f"#opening-{p} .points path", "fill")]) for p in (0, 1)]
    assert len({*fills[1][shown.truth == 0]}) == len({*fills[1][shown.truth == 1]}) == 1
    levels = np.rint((shown.labels[0] + 1) / 3 * 63).astype(int)
    assert {tuple(np.unique(fills[0][levels == level])) for level in np.unique(levels)} == {
      (fills[0][levels == level][0],) for level in np.unique(levels)
    }
    named = still.evaluate("""() => ["below", "zero", "one", "above"].map(
      name => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim())""")
    assert (fills[0][0], fills[0][1]) == (named[0], named[3])  # -1 and 2.
    assert (fills[1][shown.truth == 0][0], fills[1][shown.truth == 1][0]) == (named[1], named[2])

  def test_dots_move_along_the_curves(self, still, contents):
    still.evaluate(SHOW, 5)
    for place in (0, 1):
      points = attributes(still, f".course polyline.side-{place}", "points")[0][0].split()
      x, y = attributes(still, f".course .dot.side-{place}", "cx", "cy")[0]
      assert points[5] == f"{x},{y}"
      heights = np.array([float(point.split(",")[1]) for point in points])
      distance = (contents.opening.taught, contents.opening.other)[place].distance
      np.testing.assert_allclose(np.corrcoef(heights, distance)[0, 1], -1.0, atol=1e-4)

  def test_by_keyboard(self, opened):
    view = opened(1400, reduced_motion="reduce")
    view.locator("#opening input").focus()
    for key, expected in {"ArrowRight": 1, "End": 11, "ArrowLeft": 10, "Home": 0}.items():
      view.keyboard.press(key)
      assert frame_of(view) == expected
      text = view.locator("#opening input").get_attribute("aria-valuetext")
      assert re.fullmatch(rf"iteration {expected}; distances to the target: LAST \d\.\d\d, SGD \d\.\d\d", text)
    view.keyboard.press("Shift+Tab")
    assert view.evaluate("document.activeElement.textContent") == "Play"
    view.keyboard.press("Space")
    assert view.evaluate("document.activeElement.textContent") == "Pause"
    wait_until(view, "Number(document.querySelector('#opening input').value) >= 2")
    view.keyboard.press("Enter")
    paused = frame_of(view)
    view.wait_for_timeout(400)
    assert frame_of(view) == paused
    assert view.evaluate("document.activeElement.textContent") == "Play"
    view.keyboard.press("Space")
    wait_until(view, "document.activeElement.textContent === 'Play again'")
    assert frame_of(view) == 11

  def test_it_begins_by_itself_unless_no_motion_is_wanted(self, opened):
    moving, still = opened(1400), opened(1400, reduced_motion="reduce")
    wait_until(moving, "Number(document.querySelector('#opening input').value) > 1")
    assert frame_of(still) == 0
    assert still.locator("#opening .play").text_content() == "Play"

  def test_a_hidden_animation_stops(self, opened):
    view = opened(1400)
    wait_until(view, "document.querySelector('#opening .play').textContent === 'Pause'")
    view.locator("footer").scroll_into_view_if_needed()
    wait_until(view, "document.querySelector('#opening .play').textContent !== 'Pause'")


class TestContents:
  @pytest.fixture
  def view(self, opened):
    return opened(1400, reduced_motion="reduce")

  def seen(self, view):
    """The claims and the figures that are not hidden."""
    claims = view.locator(".claims tbody tr").evaluate_all(
      "all => all.filter(e => e.offsetParent).map(e => e.cells[1].firstChild.textContent)"
    )
    figures = view.locator("section.figure").evaluate_all("all => all.filter(e => e.offsetParent).map(e => e.id)")
    listed = view.locator(".contents li").evaluate_all(
      "all => all.filter(e => e.offsetParent).map(e => e.dataset.figure)"
    )
    assert figures == listed
    return claims, [figure.removeprefix("figure-") for figure in figures]

  def test_by_verdict(self, view):
    all_claims, all_figures = self.seen(view)
    assert view.locator(".contents [role=status]").text_content() == "6 of 6 figures, 5 of 5 claims"
    view.get_by_role("button", name="1 not resolved").press("Enter")
    assert self.seen(view) == (["Fewer."], ["moons"])
    view.get_by_role("button", name="1 holds").click()
    assert self.seen(view) == ([f"Nearer. {NASTY}", "Fewer."], ["lsr", "moons"])
    assert view.locator(".contents [role=status]").text_content() == "2 of 6 figures, 2 of 5 claims"
    assert view.locator(".choice[aria-pressed=true]").count() == 2
    view.get_by_role("button", name="Show all").click()
    wait_until(view, "document.querySelectorAll('section.figure[hidden]').length === 0")
    assert self.seen(view) == (all_claims, all_figures)

  def test_by_figure_and_words(self, view):
    view.get_by_label("Figure", exact=True).select_option("figure-moons")
    assert self.seen(view) == (["Fewer.", "Nearer."], ["moons"])
    view.get_by_label("Words").fill("RADIUS decides")  # Of the explanation.
    assert self.seen(view) == (["Nearer."], ["moons"])
    view.get_by_label("Figure", exact=True).select_option("")
    view.get_by_label("Words").fill("digits")  # A figure without claims, by its title.
    assert self.seen(view) == ([], ["digits"])

  def test_a_link_to_what_is_hidden_shows_it(self, view):
    view.get_by_role("button", name="1 not resolved").click()
    view.get_by_label("Words").fill("fewer")
    view.evaluate("document.querySelector('.contents li[data-figure=figure-lsr]').hidden = false")
    view.locator(".contents a[href='#figure-lsr']").click()
    assert view.locator("#figure-lsr").is_visible()
    assert view.locator(".contents [role=status]").text_content() == "6 of 6 figures, 5 of 5 claims"
    wait_until(view, "Math.abs(document.getElementById('figure-lsr').getBoundingClientRect().top) < 300")

  def test_figures_are_listed_with_their_verdicts(self, view):
    text = view.locator(".contents li[data-figure=figure-moons]").inner_text()
    assert "1 not resolved" in text.replace("\n", " ")
    assert "1 depends on the reading" in text.replace("\n", " ")


class TestAccess:
  @pytest.mark.parametrize("scheme", ["light", "dark"])
  def test_contrast(self, opened, scheme):
    view = opened(1400, reduced_motion="reduce", color_scheme=scheme)
    names = (
      "paper",
      "raised",
      "text",
      "muted",
      "link",
      "good",
      "bad",
      "open",
      "focus",
      "current",
      "optimal",
      "zero",
      "one",
    )
    colors = view.evaluate(
      "names => Object.fromEntries(names.map(n => [n, getComputedStyle(document.documentElement)"
      ".getPropertyValue('--' + n).trim()]))",
      list(names),
    )
    for name in ("text", "muted", "link", "good", "bad", "open"):
      for ground in ("paper", "raised"):
        assert contrast(colors[name], colors[ground]) >= 4.5, (name, ground)
    for name in ("focus", "current", "optimal", "zero", "one"):  # Lines and shapes.
      assert contrast(colors[name], colors["paper"]) >= 3, name

  @pytest.mark.parametrize("scheme", ["light", "dark"])
  def test_colours_have_the_names_that_the_texts_use(self, opened, scheme):
    """ "Blue" and "orange" for the classes, "purple" for the student, "green" for the target, "red" above 1."""
    view = opened(1400, reduced_motion="reduce", color_scheme=scheme)
    names = ["zero", "one", "current", "optimal", "below", "above"]
    hues = view.evaluate(
      """names => Object.fromEntries(names.map(name => {
      const color = getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
      const [r, g, b] = [1, 3, 5].map(place => parseInt(color.slice(place, place + 2), 16) / 255);
      const [high, low] = [Math.max(r, g, b), Math.min(r, g, b)];
      const turn = high === r ? g - b : high === g ? b - r : r - g;
      const third = high === r ? 0 : high === g ? 2 : 4;
      return [name, (60 * (third + turn / (high - low)) + 360) % 360];
      }))""",
      names,
    )
    named = {"zero": (195, 215), "one": (20, 40), "current": (275, 300), "optimal": (130, 160), "below": (225, 250)}
    for name, (low, high) in named.items():
      assert low <= hues[name] <= high, (name, hues[name])
    assert min(hues["above"], 360 - hues["above"]) <= 10

  def test_landmarks_and_headings(self, still):
    for selector in ("header", "main", "footer", "h1", "form[role=search]"):
      assert still.locator(f"body {selector}").count() == 1, selector
    assert still.locator("nav").count() == 1
    ranks = still.locator("h1, h2, h3, h4, h5, h6").evaluate_all("all => all.map(e => Number(e.tagName[1]))")
    assert ranks[0] == 1
    assert ranks.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(ranks))
    unnamed = still.locator("section, nav").evaluate_all("""all => all.filter(e => {
      const name = document.getElementById(e.getAttribute("aria-labelledby"));
      return !name?.textContent.trim();
    }).length""")
    assert unnamed == 0

  def test_everything_has_a_name(self, still):
    draw_all(still)
    tree = still.locator("body").aria_snapshot()
    lines = [line.strip().removeprefix("- ").lstrip("'") for line in tree.splitlines()]  # Quoted where names are odd.
    controls = [
      line for line in lines if re.match(r"(button|checkbox|combobox|slider|searchbox|textbox|img|link|table)\b", line)
    ]
    assert len(controls) > 40
    assert [line for line in controls if not re.match(r"\w+ \"|\w+ /", line)] == []
    assert any(line.startswith('slider "Iteration"') for line in controls)
    assert any(line.startswith('img "LAST: ') for line in controls)
    broken = still.evaluate("""() => ["aria-labelledby", "aria-describedby"].flatMap(name =>
      [...document.querySelectorAll(`[${name}]`)].filter(e => !document.getElementById(e.getAttribute(name)))
    ).map(e => e.outerHTML.slice(0, 100))""")
    assert broken == []

  def test_focus_is_seen(self, still):
    kinds = (
      "a[href]",
      "button",
      "input[type=range]",
      "input[type=search]",
      "input[type=checkbox]",
      "select",
      "summary",
    )
    for kind in kinds:
      still.locator(f"main {kind}").first.focus()
      still.keyboard.press("Tab")
      still.keyboard.press("Shift+Tab")  # By keyboard.
      width, kept = still.evaluate(
        """kind => {
          const own = document.activeElement;
          return [parseFloat(getComputedStyle(own).outlineWidth), own.matches(kind)];
        }""",
        kind,
      )
      assert kept, kind
      assert width >= 2, kind

  def test_targets_are_large_enough(self, opened):
    view = opened(400, reduced_motion="reduce", has_touch=True)
    small = view.locator("main button, main select, main input:not([type=checkbox]), main label.method").evaluate_all(
      "all => all.filter(e => e.offsetParent && e.getBoundingClientRect().height < 24).map(e => e.outerHTML)"
    )
    assert small == []


class TestCharts:
  def test_each_chart_lists_its_own_curves_where_it_has_nothing_in_common(self, still):
    assert still.locator("#figure-apart .controls .method").count() == 0
    names = [still.locator(f"#figure-apart-{place} .method").all_text_contents() for place in (0, 1)]
    assert names == [["theorem 1", "bound of theorem 1"], ["theorem 2"]]
    assert still.locator("#figure-lsr figcaption .method").count() == 0
    still.locator("#figure-apart-0 .method", has_text="bound").get_by_role("checkbox").uncheck()
    draw_all(still)
    hidden = still.evaluate("document.querySelector('#figure-apart-0 .plot').data.filter(t => !t.visible).length")
    assert hidden == 3
    still.locator("#figure-apart-0 .methods").get_by_role("button", name="All", exact=True).click()
    swatches = still.locator("#figure-apart .method svg").evaluate_all("all => all.map(e => e.outerHTML)")
    assert len(set(swatches)) == 3

  def test_ticks_are_numbers_that_people_read(self, still):
    draw_all(still)
    ticks = """([name, axis]) => [...document.querySelectorAll(`#figure-lsr-0 .${axis}tick text`)]
      .map(e => e.textContent)"""
    still.locator("#figure-lsr .scale-x [data-choice=log]").click()
    wait_until(still, "document.querySelector('#figure-lsr-0 .plot')._fullLayout.xaxis.type === 'log'")
    assert still.evaluate(ticks, ["", "x"]) == ["5", "10", "20", "50", "100", "200"]
    assert still.evaluate(ticks, ["", "y"]) == ["0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1"]
    # They follow a zoom, where there is hardly a power of ten.
    still.evaluate("() => Plotly.relayout(document.querySelector('#figure-lsr-0 .plot'), {'xaxis.range': [1.4, 1.6]})")
    wait_until(still, "document.querySelectorAll('#figure-lsr-0 .xtick text').length > 2")
    texts = [float(text) for text in still.evaluate(ticks, ["", "x"])]
    assert texts == [26, 28, 30, 32, 34, 36, 38]

  def test_curves_begin_at_their_first_record(self, still):
    """A record at 0 has no place on a log axis, and no level line leads from there to the next one."""
    draw_all(still)
    still.locator("#figure-lsr .scale-x [data-choice=log]").click()
    for axis in ("iteration", "seconds, 20 students at once"):
      still.locator("#figure-lsr select").select_option(axis)
      starts = still.evaluate("""() => {
        const plot = document.querySelector("#figure-lsr-0 .plot");
        const { xaxis } = plot._fullLayout;
        const first = plot.data.filter(t => t.meta.part === "mean").map(t => xaxis.d2p(t.x.find(x => x > 0)));
        const paths = [...plot.querySelectorAll(".trace .lines path.js-line")].map(e => e.getAttribute("d"))
          .filter(d => d && !d.includes("Z"));
        return [first, paths.map(d => Math.min(...d.slice(1).split(/[LHVM]/).map(parseFloat)))];
      }""")
      drawn = sorted(start for start in starts[1] if np.isfinite(start))
      assert len(drawn) >= 4
      assert min(drawn) >= min(starts[0]) - 1

  def test_galleries_follow_dark_mode_and_have_one_title(self, opened, contents):
    gallery = contents.sections[4].blocks[0]
    for scheme, style in {"light": "none", "dark": "invert(1)"}.items():
      view = opened(1400, reduced_motion="reduce", color_scheme=scheme)
      assert view.locator("#figure-digits-0 img").first.evaluate("e => getComputedStyle(e).filter") == style
      assert view.locator("#figure-digits-0 h3").all_text_contents() == [gallery.title]
      assert view.locator("#figure-digits-0 li").all_text_contents() == list(gallery.captions)
