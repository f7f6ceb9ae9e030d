"""The results page in a browser, opened from disk."""

import numpy as np
import pytest

from last_jax import tools
from tests.tools.browsing import ALL_DRAWN, brightness, draw_all, open_page, wait_until
from tests.tools.some_page import BY_STEP, BY_TIME, LABEL, METHODS, MINUS, NASTY, STYLED, as_array, charts_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("nothing_goes_wrong")]  # Each waits for a browser.


@pytest.fixture(scope="module", params=[400, 1400])
def drawn_view(request, browser, path, wrong):
  """The page at the width of a telephone and of a desk, with everything drawn: once, as that takes seconds."""
  view = open_page(browser, path, wrong, request.param)
  draw_all(view)
  yield view
  view.close()


@pytest.fixture
def view(drawn_view):
  """The same view, reset after each test."""
  yield drawn_view
  drawn_view.emulate_media(color_scheme="light")
  drawn_view.evaluate("""() => {
    const first = document.getElementById("figure-lsr");
    [...first.querySelectorAll(".methods button")].find(button => button.textContent === "All").click();
    first.querySelector(".scale-y [data-choice=own]").click();
    first.querySelector(".scale-x [data-choice=linear]").click();
    const select = first.querySelector("select");
    select.selectedIndex = 0;
    select.dispatchEvent(new Event("change"));
    const slider = document.querySelector("#figure-moons-0 input[type=range]");
    slider.value = 0;
    slider.dispatchEvent(new Event("input"));
    document.querySelectorAll("details").forEach(each => { each.open = false; });
    document.activeElement.blur();
  }""")


def traces(view, block):
  return view.evaluate("name => document.querySelector(`#${name} .plot`).data", block)


def layout(view, block):
  """Plotly's axes."""
  code = """name => {
    const { xaxis, yaxis } = document.querySelector(`#${name} .plot`)._fullLayout;
    return [xaxis, yaxis].map(({ type, range, title }) => ({ type, range, title: title.text }));
  }"""
  return view.evaluate(code, block)


def part(view, block, name):
  """The traces that are means, bands or markers, by method."""
  return {t["meta"]["method"]: t for t in traces(view, block) if t["meta"]["part"] == name}


class TestBrowser:
  def test_fits_the_screen(self, view):
    width = view.viewport_size["width"]
    view.locator("details").evaluate_all("all => all.forEach(each => { each.open = true; })")
    assert view.evaluate("document.documentElement.scrollWidth") <= width
    assert view.evaluate("[...document.querySelectorAll('.plot svg.main-svg')].every(s => s.clientWidth <= innerWidth)")
    tops = [view.locator(f"#figure-lsr-{place}").bounding_box()["y"] for place in (0, 1)]
    assert (tops[0] == tops[1]) == (width == 1400)  # Side by side, or one below the other.
    # Nothing of a chart is cut: titles lie within the drawing.
    assert view.evaluate("""() => [...document.querySelectorAll('.plot')].every(plot => {
      const frame = plot.getBoundingClientRect();
      return [...plot.querySelectorAll('.xtitle, .ytitle, .annotation-text')].every(text => {
        const box = text.getBoundingClientRect();
        return box.left >= frame.left - 1 && box.right <= frame.right + 1 &&
          box.top >= frame.top - 1 && box.bottom <= frame.bottom + 1;
      });
    })""")

  def test_numbers_drawn_are_those_given(self, view, contents):
    for anchor, place, chart in charts_of(contents):
      means = part(view, f"{anchor}-{place}", "mean")
      assert list(means) == [line.name for line in chart.lines]
      for line in chart.lines:
        mean = tools.mean_interval(line.values).mean
        np.testing.assert_allclose(as_array(means[line.name]["y"]), mean, rtol=5e-6, atol=1e-12)
        np.testing.assert_allclose(means[line.name]["x"], line.axes[BY_STEP], rtol=5e-6)
    line = contents.sections[0].blocks[1].lines[0]
    mean, half_width = tools.mean_interval(line.values)
    around = np.concatenate([mean + half_width, (mean - half_width)[::-1]])
    np.testing.assert_allclose(part(view, "figure-lsr-1", "band")["SGD"]["y"], around, rtol=5e-6)

  def test_hovering_shows_the_numbers(self, view, contents):
    line = contents.sections[0].blocks[1].lines[3]
    mean, half_width = (part[20] for part in tools.mean_interval(line.values))
    view.locator("#figure-lsr-1 .plot").scroll_into_view_if_needed()
    x, y = view.evaluate(
      """([step, mean]) => {
        const plot = document.querySelector("#figure-lsr-1 .plot");
        const { xaxis, yaxis } = plot._fullLayout;
        const { left, top } = plot.getBoundingClientRect();
        return [left + xaxis._offset + xaxis.d2p(step), top + yaxis._offset + yaxis.d2p(mean)];
      }""",
      [100, mean],
    )
    view.mouse.move(x - 1, y)
    view.mouse.move(x, y)
    text = view.locator("#figure-lsr-1 .hovertext").text_content()
    ends = f"{mean - half_width:.4g} to {mean + half_width:.4g}"
    assert text == f"{NASTY}iteration: 100mean: {mean:.4g}95 %: {ends}"
    view.mouse.move(0, 0)

  def test_zoom_and_back(self, view):
    box = view.locator("#figure-lsr-0 .nsewdrag").bounding_box()
    if box["y"] < 0 or box["y"] + box["height"] > 900:
      view.locator("#figure-lsr-0").scroll_into_view_if_needed()
      box = view.locator("#figure-lsr-0 .nsewdrag").bounding_box()
    whole = layout(view, "figure-lsr-0")
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    view.mouse.move(x, y)
    view.mouse.down()
    view.mouse.move(x + 60, y + 60, steps=4)
    view.mouse.up()
    wait_until(view, "document.querySelector('#figure-lsr-0 .plot')._fullLayout.xaxis.range[0] > 50")
    view.wait_for_timeout(500)  # So that the next click is not the second of a double click.
    view.mouse.dblclick(x, y)
    wait_until(view, "document.querySelector('#figure-lsr-0 .plot')._fullLayout.xaxis.range[0] < 0")
    assert layout(view, "figure-lsr-0") == whole

  def test_axes_are_named(self, view):
    x, y = layout(view, "figure-lsr-0")
    assert (x["title"], y["title"]) == (BY_STEP, LABEL)
    assert view.locator("#figure-lsr-0 .ytitle").text_content() == LABEL
    assert view.locator("#figure-lsr-0 .annotation-text").text_content() == "float32 rounding"
    assert f"far (1e{MINUS}30)" in view.locator("#figure-lsr-0 .note").text_content()

  def test_unchecking_a_method_hides_it(self, view):
    for name in ("IMT", NASTY):
      view.locator("#figure-lsr .method", has_text=name).get_by_role("checkbox").uncheck()
    for block in ("figure-lsr-0", "figure-lsr-1"):
      hidden = [trace["meta"]["method"] for trace in traces(view, block) if not trace["visible"]]
      assert sorted(hidden) == sorted(["IMT", NASTY] * 3)  # Line, band and markers.
    assert all(trace["visible"] for trace in traces(view, "figure-looks-0"))
    view.locator("#figure-lsr").get_by_role("button", name="None", exact=True).click()
    assert not any(trace["visible"] for trace in traces(view, "figure-lsr-0"))
    view.locator("#figure-lsr").get_by_role("button", name="All", exact=True).click()
    assert all(trace["visible"] for trace in traces(view, "figure-lsr-0"))
    assert view.locator("#figure-lsr .method input:checked").count() == len(METHODS)

  def test_scales(self, view, contents):
    def pressed(axis):
      return view.locator(f"#figure-lsr .scale-{axis} [aria-pressed=true]").all_text_contents()

    def kinds(place):
      return [axis["type"] for axis in layout(view, f"figure-lsr-{place}")]

    assert (kinds(0), kinds(1), pressed("y"), pressed("x")) == (
      ["linear", "log"], ["linear", "linear"], ["each its own"], ["linear"],
    )  # fmt: skip
    view.locator("#figure-lsr .scale-y [data-choice=log]").click()
    assert (kinds(0), kinds(1), pressed("y")) == (["linear", "log"], ["linear", "log"], ["log"])
    line = contents.sections[0].blocks[1].lines[0]
    low, high = tools.interval_ends(*tools.mean_interval(line.values), log=True)
    band = part(view, "figure-lsr-1", "band")["SGD"]["y"]
    np.testing.assert_allclose(band, np.concatenate([high, low[::-1]]), rtol=5e-6)
    view.locator("#figure-lsr .scale-x [data-choice=log]").click()
    view.locator("#figure-lsr .scale-y [data-choice=linear]").click()
    assert (kinds(0), kinds(1), pressed("x")) == (["log", "linear"], ["log", "linear"], ["log"])

  def test_time_along_x(self, view, contents):
    view.locator("#figure-lsr select").select_option(BY_TIME)
    for place in (0, 1):
      means = part(view, f"figure-lsr-{place}", "mean")
      for line in contents.sections[0].blocks[place].lines:
        np.testing.assert_allclose(means[line.name]["x"], line.axes[BY_TIME], rtol=5e-6)
      x, _ = layout(view, f"figure-lsr-{place}")
      assert x["title"] == BY_TIME
      assert 0.8 < x["range"][1] < 0.9  # The slowest method takes 0.8 seconds.
    assert view.locator("#figure-moons select").count() == 0  # There is one axis only.

  def test_slider(self, view, contents):
    frames = contents.sections[1].blocks[0]

    def check(frame):
      drawn = {trace["meta"]["part"]: trace for trace in traces(view, "figure-moons-0")}
      labels = frames.labels[frame]
      for label in (0, 1):
        points = np.stack([drawn[f"label {label}"]["x"], drawn[f"label {label}"]["y"]], 1)
        np.testing.assert_allclose(points, frames.x[labels == label], rtol=5e-6)
        outlined = np.array(drawn[f"label {label}"]["marker"]["line"]["width"]) > 0
        np.testing.assert_array_equal(outlined, frames.truth[labels == label] != label)
      for name, (a, b, c) in {"boundary": frames.boundaries[frame], "optimal boundary": frames.optimal}.items():
        assert len(drawn[name]["x"]) == 2
        np.testing.assert_allclose(a * np.array(drawn[name]["x"]) + b * np.array(drawn[name]["y"]) + c, 0, atol=1e-5)
      wrong = int((labels != frames.truth).sum())
      text = f"iteration {frames.steps[frame]}: {wrong} of 60 labels differ from the truth"
      assert view.locator("#figure-moons-0 output").text_content() == text
      return layout(view, "figure-moons-0")

    before = check(0)
    slider = view.locator("#figure-moons-0 input[type=range]")
    slider.focus()
    view.keyboard.press("ArrowRight")
    after = check(1)
    assert [axis["range"] for axis in before] == [axis["range"] for axis in after]
    assert len({(axis["type"]) for axis in after}) == 1
    buttons = view.locator("#figure-moons-0 .frames")
    buttons.get_by_role("button", name="Next").click()
    check(2)
    view.keyboard.press("Shift+Tab")
    view.keyboard.press("End")
    check(3)
    buttons.get_by_role("button", name="Next").click(force=True)  # It says that it is disabled, and does nothing.
    check(3)
    buttons.get_by_role("button", name="Previous").click()
    check(2)

  def test_equal_scales(self, view):
    per_pixel = view.evaluate("""() => {
      const { xaxis, yaxis } = document.querySelector('#figure-moons-0 .plot')._fullLayout;
      return [xaxis, yaxis].map(axis => (axis.range[1] - axis.range[0]) / axis._length);
    }""")
    assert per_pixel[0] == pytest.approx(per_pixel[1], rel=1e-3)

  def test_tab_reaches_every_control(self, view):
    wanted = view.locator("a[href], button, input, select, summary").count()
    view.locator(".skip").focus()
    view.evaluate("() => { window.reached = new Set([document.activeElement]); }")
    for _ in range(wanted + 5):
      view.keyboard.press("Tab")
      view.evaluate("() => { window.reached.add(document.activeElement); }")
    missed = view.evaluate(
      "() => [...document.querySelectorAll('a[href], button, input, select, summary')]"
      ".filter(each => !window.reached.has(each)).map(each => each.outerHTML)"
    )
    assert missed == []
    view.locator("#figure-lsr .method input").first.focus()
    view.keyboard.press("Tab")  # Focus by keyboard is the one that is shown.
    assert view.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2
    view.keyboard.press("Space")
    assert not any(trace["visible"] for trace in traces(view, "figure-lsr-0") if trace["meta"]["method"] == "IMT")

  def test_dark_and_light_follow_the_system(self, view):
    def look():
      lines = {name: trace["line"]["color"] for name, trace in part(view, "figure-looks-0", "mean").items()}
      paper = view.evaluate("document.querySelector('#figure-looks-0 .plot').layout.paper_bgcolor")
      page = view.evaluate("getComputedStyle(document.body).backgroundColor")
      swatches = view.locator("#figure-looks .method svg path").evaluate_all(
        "all => all.map(e => e.getAttribute('stroke'))"
      )
      assert swatches == list(lines.values())
      assert brightness(paper) == pytest.approx(brightness(page))
      return lines, brightness(paper)

    light, white = look()
    assert light == {name: tools.method_style(*method).color for name, method in STYLED.items()}
    view.emulate_media(color_scheme="dark")
    wait_until(view, "document.querySelector('#figure-looks-0 .plot').layout.paper_bgcolor !== '#ffffff'")
    dark, black = look()
    assert (white, black < 0.02) == (1.0, True)
    contrasts = {name: (brightness(color) + 0.05) / (black + 0.05) for name, color in dark.items()}
    assert min(contrasts.values()) >= 3, contrasts
    assert max(contrasts, key=contrasts.get) == "SGD"
    assert len(set(dark.values())) == len(set(light.values()))
    view.emulate_media(color_scheme="light")
    wait_until(view, "document.querySelector('#figure-looks-0 .plot').layout.paper_bgcolor === '#ffffff'")
    assert look() == (light, white)

  def test_copying_a_command(self, view, contents):
    view.context.grant_permissions(["clipboard-read", "clipboard-write"])
    button = view.locator("#figure-lsr .copy")
    button.click()
    wait_until(view, "document.querySelector('#figure-lsr .copy').textContent === 'Copied'")
    assert view.locator("#figure-lsr .command code").text_content() == contents.sections[0].command
    assert view.evaluate("navigator.clipboard.readText()") == contents.sections[0].command

  def test_failed_figures_say_so(self, view):
    assert view.locator("#figure-cnn .failure").is_visible()
    assert view.locator("#figure-cnn .block").count() == 0
    assert not view.locator("#figure-cnn .controls").is_visible()


class TestDrawing:
  def test_only_what_is_near_is_drawn_until_asked(self, opened):
    view = opened(400)
    wait_until(view, "document.readyState === 'complete'")
    assert not view.locator("#figure-looks-0").get_attribute("data-drawn")
    view.evaluate("dispatchEvent(new Event('beforeprint'))")
    wait_until(view, ALL_DRAWN)

  def test_still_pages_where_motion_is_unwanted(self, opened):
    behavior = "getComputedStyle(document.documentElement).scrollBehavior"
    assert opened(400, reduced_motion="reduce").evaluate(behavior) == "auto"

  def test_a_link_of_a_claim_leads_to_its_figure(self, opened):
    view = opened(1400, reduced_motion="reduce")
    view.locator(".claims a[href='#figure-moons']").first.click()
    wait_until(view, "Math.abs(document.getElementById('figure-moons').getBoundingClientRect().top) < 300")
    wait_until(view, "document.getElementById('figure-moons-0').dataset.drawn === 'true'")
