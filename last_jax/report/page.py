"""One HTML file with all results: it opens from disk, fetches nothing, and its charts answer to the reader.

Python writes the texts and embeds the numbers once, as JSON; the script in `assets/page.js` has Plotly draw them.
"""

import base64
import html
import importlib.resources
import json
import math
import pathlib
import re
import string
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from last_jax.data.files import replaced
from last_jax.report.records import FilePath
from last_jax.report.statistics import interval_ends, mean_interval
from last_jax.report.styles import method_style

_WIDTH = 2.0  # Of lines, in pixels: matplotlib counts dashes in widths, Plotly in pixels.
_SYMBOLS = {
  "o": "circle", "s": "square", "D": "diamond", "d": "diamond-tall", "^": "triangle-up", "v": "triangle-down",
  "<": "triangle-left", ">": "triangle-right", "X": "x", "P": "cross", "*": "star", "p": "pentagon", "h": "hexagon",
  "H": "hexagon2", "8": "octagon",
}  # fmt: skip
# By verdict: the class of its colour, a symbol, and the words for how many there are.
_VERDICTS = {
  "holds": ("holds", "✔", "hold"),
  "does not hold": ("fails", "✘", "do not hold"),
  "not resolved": ("open", "?", "not resolved"),
}
_NONE: Mapping[str, float] = types.MappingProxyType({})


class Line(NamedTuple):
  """One method's curve."""

  name: str  # Decides on its look, see `styles.py`.
  values: np.ndarray  # `[seeds, records]`
  axes: Mapping[str, np.ndarray]  # By what is along the x axis, the first one first: `[records]`.


class Chart(NamedTuple):
  """One metric of several methods."""

  title: str
  label: str  # Of the y axis, with its unit.
  lines: tuple[Line, ...]
  log: bool = False  # Whether y, and x, are logarithmic at first.
  x_log: bool = False
  levels: Mapping[str, float] = _NONE  # Horizontal lines by name.


class LabelFrames(NamedTuple):
  """Synthesized labels of points in the plane, and the boundary between them, iteration by iteration."""

  title: str
  x: np.ndarray  # `[n, 2]`
  truth: np.ndarray  # `[n]`, 0 or 1
  steps: np.ndarray  # `[frames]`
  labels: np.ndarray  # `[frames, n]`, 0 or 1
  boundaries: np.ndarray  # `[frames, 3]`: a x + b y + c = 0
  optimal: np.ndarray  # `[3]`


class Picture(NamedTuple):
  """A PNG file, which the page takes in."""

  title: str
  path: pathlib.Path
  description: str  # For those who do not see it.


class Section(NamedTuple):
  """One figure of the paper, or why there is none."""

  name: str
  title: str
  paper: str  # "Figure 4"
  shows: str
  settings: Mapping[str, str]
  command: str  # Makes the figure again.
  blocks: tuple[Chart | LabelFrames | Picture, ...] = ()
  failure: str = ""


class ClaimRow(NamedTuple):
  """What the paper says, and what was found."""

  figure: str  # The name of a section.
  paper: str
  claim: str
  effect: str
  interval: str
  seeds: int
  verdict: str  # "holds", "does not hold" or "not resolved".
  explanation: str = ""


class Page(NamedTuple):
  """All there is to show."""

  title: str
  introduction: str
  facts: Mapping[str, str]
  test: str  # How claims are judged.
  claims: tuple[ClaimRow, ...]
  sections: tuple[Section, ...]


def write_page(path: FilePath, page: Page) -> None:
  """Writes the page, or replaces it, whole.

  Args:
    path: the HTML file. Its folder must exist.
    page: what it shows. Texts are plain text; a blank line begins a new paragraph.

  Raises:
    ValueError: arrays whose shapes do not fit, a picture that is no PNG file, an unknown verdict, or two sections of
      one name.
  """
  from plotly.offline import get_plotlyjs

  anchors = [_anchor(section.name) for section in page.sections]
  if len(set(anchors)) < len(anchors):
    raise ValueError(f"sections must have different names, but they are {[section.name for section in page.sections]}")
  sections = {
    anchor: [_block_data(f"section {section.name!r}, {block.title!r}", block) for block in section.blocks]
    for anchor, section in zip(anchors, page.sections, strict=True)
  }
  assets = importlib.resources.files("last_jax.report") / "assets"
  text = string.Template((assets / "page.html").read_text(encoding="utf-8")).substitute(
    title=html.escape(page.title),
    style=(assets / "page.css").read_text(encoding="utf-8"),
    body=_body(page, set(anchors)),
    # Within a script, "<" could begin its end; within a string of JSON, \u003c is the same.
    data=json.dumps(
      {"width": _WIDTH, "sections": sections}, allow_nan=False, ensure_ascii=False, separators=(",", ":")
    ).replace("<", "\\u003c"),
    plotly=get_plotlyjs().replace("</script", "<\\/script"),
    script=(assets / "page.js").read_text(encoding="utf-8"),
  )
  with replaced(path) as temporary:
    temporary.write_text(text, encoding="utf-8")


def _anchor(name: str) -> str:
  return "figure-" + (re.sub(r"[^\w.-]+", "-", name).strip("-") or "unnamed")


def _numbers(values: Any) -> Any:
  """Nested lists of numbers with 6 significant digits: more is not seen. Whole numbers stay; NaN becomes None."""
  array = np.asarray(values)
  if array.dtype.kind in "biu":
    return array.astype(int).tolist()
  return [_numbers(row) for row in array] if array.ndim > 1 else _rounded(array.astype(np.float64).tolist())


def _rounded(values: Any) -> Any:
  if isinstance(values, list):
    return [_rounded(value) for value in values]
  if not math.isfinite(values):
    return None
  value = float(f"{values:.6g}")
  return int(value) if value.is_integer() and abs(value) < 1e15 else value


def _block_data(place: str, block: Chart | LabelFrames | Picture) -> dict[str, Any]:
  if isinstance(block, Chart):
    if not block.lines:
      raise ValueError(f"{place}: a chart must have a line")
    return {
      "kind": "chart", "title": block.title, "label": block.label, "log": bool(block.log), "x_log": bool(block.x_log),
      "levels": {name: _numbers(height) for name, height in block.levels.items()},
      "lines": [_line_data(f"{place}, {line.name!r}", line) for line in block.lines],
    }  # fmt: skip
  if isinstance(block, LabelFrames):
    return _frames_data(place, block)
  return {"kind": "picture"}


def _line_data(place: str, line: Line) -> dict[str, Any]:
  """A curve's look and numbers: the mean, and the ends of its interval on a linear and on a log axis."""
  values = np.asarray(line.values)
  if values.ndim != 2 or not line.axes:
    raise ValueError(f"{place}: values must be [seeds, records] over one x axis or more, but are {list(values.shape)}")
  for name, axis in line.axes.items():
    _check_shape(f"{place}, axis {name!r}", axis, values.shape[1:])
  mean, half_width = mean_interval(values)
  with np.errstate(over="ignore"):  # Students who diverge may be at 1e300.
    low, high = interval_ends(mean, half_width, log=False)
    log_low, log_high = interval_ends(mean, half_width, log=True)
  style = method_style(line.name)
  dash = "solid" if isinstance(style.line, str) else ",".join(f"{_WIDTH * part:g}px" for part in style.line[1])
  arrays = {"mean": mean, "low": low, "high": high, "log_low": log_low, "log_high": log_high}
  return {
    "name": line.name, "color": style.color, "dash": dash, "symbol": _SYMBOLS[style.marker],
    **{name: _numbers(array) for name, array in arrays.items()},
    "axes": {name: _numbers(axis) for name, axis in line.axes.items()},
  }  # fmt: skip


def _frames_data(place: str, block: LabelFrames) -> dict[str, Any]:
  frames, count = len(block.steps), len(block.x)
  if not frames or not count:
    raise ValueError(f"{place}: there must be a frame and a point, but there are {frames} and {count}")
  _check_shape(f"{place}, x", block.x, (count, 2))
  _check_shape(f"{place}, truth", block.truth, (count,))
  _check_shape(f"{place}, labels", block.labels, (frames, count))
  _check_shape(f"{place}, boundaries", block.boundaries, (frames, 3))
  _check_shape(f"{place}, optimal", block.optimal, (3,))
  for labels in (block.truth, block.labels):
    if not np.isin(labels, (0, 1)).all():
      raise ValueError(f"{place}: labels must be 0 or 1")
  return {
    "kind": "labels", "title": block.title, "x": _numbers(block.x), "steps": _numbers(block.steps),
    "truth": _digits(block.truth), "labels": [_digits(labels) for labels in block.labels],
    "boundaries": _numbers(block.boundaries), "optimal": _numbers(block.optimal),
  }  # fmt: skip


def _digits(labels: Any) -> str:
  """Labels in a row, "0110": half the size of a list."""
  return "".join("1" if label else "0" for label in np.asarray(labels))


def _check_shape(place: str, values: Any, shape: tuple[int, ...]) -> None:
  if np.shape(values) != shape:
    raise ValueError(f"{place}: the shape must be {list(shape)}, but is {list(np.shape(values))}")


def _body(page: Page, anchors: set[str]) -> str:
  links = "".join(
    f'<li><a href="#{_anchor(each.name)}">{html.escape(each.title)}</a> '
    f'<span class="paper">{html.escape(each.paper)}{", failed" if each.failure else ""}</span></li>'
    for each in page.sections
  )
  return f"""<header>
<h1>{html.escape(page.title)}</h1>
{_paragraphs(page.introduction)}
{_definitions(page.facts)}
<noscript><p class="failure">The charts need JavaScript; the texts and tables do not.</p></noscript>
</header>
<main id="content" tabindex="-1">
{_claims(page, anchors)}
<nav class="contents" aria-labelledby="contents-title"><h2 id="contents-title">Figures</h2><ol>{links}</ol></nav>
{"".join(_section(section) for section in page.sections)}
</main>"""


def _paragraphs(text: str) -> str:
  return "".join(f"<p>{html.escape(part.strip())}</p>" for part in re.split(r"\n\s*\n", text) if part.strip())


def _definitions(items: Mapping[str, str]) -> str:
  pairs = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(item))}</dd>" for name, item in items.items())
  return f"<dl>{pairs}</dl>" if pairs else ""


def _claims(page: Page, anchors: set[str]) -> str:
  if not page.claims:
    return ""
  unknown = {claim.verdict for claim in page.claims} - set(_VERDICTS)
  if unknown:
    raise ValueError(f"verdicts must be among {sorted(_VERDICTS)}, but there are also {sorted(unknown)}")
  counts = {name: sum(claim.verdict == name for claim in page.claims) for name in _VERDICTS}
  summary = "".join(
    f"<li>{_verdict(name, f'{count} {name if count == 1 else _VERDICTS[name][2]}')}</li>"
    for name, count in counts.items()
    if count
  )
  # The roles say again what the elements are, since some browsers forget it of tables shown as cards.
  names = ("Verdict", "Claim", "Figure", "Effect", "95 % interval", "Seeds")
  head = "".join(f'<th scope="col" role="columnheader">{name}</th>' for name in names)
  rows = "".join(_claim(claim, anchors) for claim in page.claims)
  return f"""<section class="claims-part" aria-labelledby="claims-title">
<h2 id="claims-title">Claims of the paper</h2>
<ul class="summary" aria-label="How many">{summary}</ul>
{_paragraphs(page.test)}
<table class="claims" role="table"><thead role="rowgroup"><tr role="row">{head}</tr></thead>
<tbody role="rowgroup">{rows}</tbody></table>
</section>"""


def _verdict(name: str, text: str) -> str:
  look, symbol, _ = _VERDICTS[name]
  return f'<span class="verdict {look}"><span class="symbol" aria-hidden="true">{symbol}</span>{text}</span>'


def _claim(claim: ClaimRow, anchors: set[str]) -> str:
  anchor = _anchor(claim.figure)
  figure = html.escape(claim.paper or claim.figure)
  if anchor in anchors:
    figure = f'<a href="#{anchor}">{figure}</a>'
  more = f'<span class="explanation">{html.escape(claim.explanation)}</span>' if claim.explanation else ""
  cells = {"Figure": figure, "Effect": html.escape(claim.effect), "95 % interval": html.escape(claim.interval)}
  cells["Seeds"] = str(int(claim.seeds))
  return (
    f'<tr role="row"><td role="cell">{_verdict(claim.verdict, claim.verdict)}</td>'
    f'<td role="cell">{html.escape(claim.claim)}{more}</td>'
    + "".join(f'<td role="cell" class="number" data-name="{name}">{text}</td>' for name, text in cells.items())
    + "</tr>\n"
  )


def _section(section: Section) -> str:
  anchor = _anchor(section.name)
  settings = _definitions(section.settings)
  blocks = "".join(_block(f"{anchor}-{place}", block) for place, block in enumerate(section.blocks))
  # By words, so that the style can keep options whole.
  words = re.sub(r"\S+", lambda word: f"<span>{html.escape(word[0])}</span>", section.command)
  command = f"<pre><code>{words}</code></pre>" if words else ""
  failure = f"<pre>{html.escape(section.failure)}</pre>" if section.failure else ""
  return f"""<section class="figure" id="{anchor}" aria-labelledby="{anchor}-title">
<h2 id="{anchor}-title">{html.escape(section.title)} <span class="paper">{html.escape(section.paper)}</span></h2>
{_paragraphs(section.shows)}
{f"<details><summary>Settings</summary>{settings}</details>" if settings else ""}
{command and f'<div class="command">{command}<button type="button" class="copy">Copy</button></div>'}
{failure and f'<div class="failure"><strong>There is no figure: making it failed.</strong>{failure}</div>'}
<div class="controls" role="group" aria-label="What the charts show" hidden></div>
<div class="blocks">{blocks}</div>
</section>
"""


def _block(name: str, block: Chart | LabelFrames | Picture) -> str:
  caption = f'<figcaption><h3 id="{name}-title">{html.escape(block.title)}</h3></figcaption>'
  if isinstance(block, Picture):
    return f'<figure class="block picture" id="{name}">{caption}{_image(block)}</figure>\n'
  kind = "labels" if isinstance(block, LabelFrames) else "chart"
  plot = f'<div class="plot" role="img" aria-labelledby="{name}-title"></div><p class="note"></p>'
  return f'<figure class="block {kind}" id="{name}">{caption}{plot}</figure>\n'


def _image(picture: Picture) -> str:
  content = pathlib.Path(picture.path).read_bytes()
  if content[:8] != b"\x89PNG\r\n\x1a\n" or len(content) < 24:
    raise ValueError(f"{picture.path} is not a PNG file")
  # With its size known, the page does not jump once it is decoded.
  width, height = (int.from_bytes(content[place : place + 4], "big") for place in (16, 20))
  source = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
  return f'<img width="{width}" height="{height}" alt="{html.escape(picture.description)}" src="{source}">'
