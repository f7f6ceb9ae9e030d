"""One HTML file with all results, interactive, that opens from disk and fetches nothing.

Python writes the texts and embeds the numbers once, as JSON; the script in `assets/page.js` draws them with Plotly.
"""

import base64
import html
import importlib.resources
import json
import math
import pathlib
import re
import string
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from last_jax.io import replaced
from last_jax.tools.charts import Chart, LabelFrames, Line, Picture, check_chart, check_frames
from last_jax.tools.files import FilePath
from last_jax.tools.statistics import interval_ends, mean_interval
from last_jax.tools.styles import method_style

_WIDTH = 2.0  # Line width in pixels: matplotlib measures dashes in widths, Plotly in pixels.
_SYMBOLS = {
  "o": "circle", "s": "square", "D": "diamond", "d": "diamond-tall", "^": "triangle-up", "v": "triangle-down",
  "<": "triangle-left", ">": "triangle-right", "X": "x", "P": "cross", "*": "star", "p": "pentagon", "h": "hexagon",
}  # fmt: skip
# By verdict: its CSS class, a symbol, and the plural of the verb.
_VERDICTS = {
  "holds": ("holds", "✔", "hold"),
  "depends on the reading": ("depends", "◐", "depend on the reading"),
  "does not hold": ("fails", "✘", "do not hold"),
  "not resolved": ("open", "?", "not resolved"),
  "not run at this size": ("skipped", "–", "not run at this size"),
}
Block = Chart | LabelFrames | Picture


class Section(NamedTuple):
  """One figure of the paper, or the reason why it is missing."""

  name: str
  title: str
  paper: str  # Its place in the paper: "Figure 4".
  shows: str
  settings: Mapping[str, str]
  command: str  # Makes the figure again.
  blocks: tuple[Block, ...] = ()
  failure: str = ""


class ReadingRow(NamedTuple):
  """A reading of a claim, and the result in it."""

  name: str
  setting: str
  effect: str
  interval: str
  verdict: str  # "holds", "does not hold" or "not resolved".
  note: str = ""


class ClaimRow(NamedTuple):
  """A claim of the paper, and the result."""

  figure: str  # The name of a section.
  paper: str
  claim: str
  effect: str
  interval: str
  seeds: int
  verdict: str  # One of `_VERDICTS`.
  explanation: str = ""
  readings: tuple[ReadingRow, ...] = ()  # The literal one first; none where there is no other.


class Page(NamedTuple):
  """The contents of the file."""

  title: str
  introduction: str
  facts: Mapping[str, str]
  test: str  # How claims are judged.
  claims: tuple[ClaimRow, ...]
  sections: tuple[Section, ...]


def write_page(path: FilePath, page: Page) -> None:
  """Write the page, or replace it, whole.

  Args:
    path: The HTML file. Its folder must exist.
    page: The contents. Texts are plain text; a blank line begins a new paragraph.

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
  assets = importlib.resources.files("last_jax.tools") / "assets"
  text = string.Template((assets / "page.html").read_text(encoding="utf-8")).substitute(
    title=html.escape(page.title),
    style=(assets / "page.css").read_text(encoding="utf-8"),
    body=_body(page, set(anchors)),
    # "<" could begin the end of the script element; in a JSON string \u003c is the same character.
    data=json.dumps(
      {"width": _WIDTH, "sections": sections}, allow_nan=False, ensure_ascii=False, separators=(",", ":")
    ).replace("<", "\\u003c"),
    plotly=get_plotlyjs().replace("</script", "<\\/script"),
    script=(assets / "page.js").read_text(encoding="utf-8"),
  )
  with replaced(path) as temporary:
    temporary.write_text(text, encoding="utf-8", errors="backslashreplace")  # Messages may name any folder.


def _anchor(name: str) -> str:
  return "figure-" + "".join(letter if letter.isalnum() or letter in "_.-" else "-" for letter in name)


def _numbers(values: Any) -> Any:
  """Return nested lists of numbers with 6 significant digits, which suffice on screen; NaN becomes None."""
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


def _block_data(place: str, block: Block) -> dict[str, Any]:
  if isinstance(block, Chart):
    check_chart(place, block)
    return {
      "kind": "chart", "title": block.title, "label": block.label, "log": bool(block.log), "x_log": bool(block.x_log),
      "levels": [[level.name, _numbers(level.height), bool(level.floor)] for level in block.levels],
      "lines": [_line_data(line) for line in block.lines],
    }  # fmt: skip
  if isinstance(block, LabelFrames):
    check_frames(place, block)
    return {
      "kind": "labels", "title": block.title, "x": _numbers(block.x), "steps": _numbers(block.steps),
      "truth": _digits(block.truth), "labels": [_digits(labels) for labels in block.labels],
      "boundaries": _numbers(block.boundaries), "optimal": _numbers(block.optimal),
    }  # fmt: skip
  return {"kind": "picture"}


def _line_data(line: Line) -> dict[str, Any]:
  """Return a curve's look and numbers: the mean, and the ends of its interval on a linear and on a log axis."""
  mean, half_width = mean_interval(line.values)
  with np.errstate(over="ignore"):  # Diverged students can be at 1e300.
    low, high = interval_ends(mean, half_width, log=False)
    log_low, log_high = interval_ends(mean, half_width, log=True)
  style = method_style(line.family, line.variant)
  dash = "solid" if isinstance(style.line, str) else ",".join(f"{_WIDTH * part:g}px" for part in style.line[1])
  arrays = {"mean": mean, "low": low, "high": high, "log_low": log_low, "log_high": log_high}
  return {
    "name": line.name, "color": style.color, "dash": dash, "symbol": _SYMBOLS[style.marker],
    **{name: _numbers(array) for name, array in arrays.items()},
    "axes": {name: _numbers(axis) for name, axis in line.axes.items()},
  }  # fmt: skip


def _digits(labels: Any) -> str:
  """Return labels as a string, "0110": half the size of a list."""
  return "".join("1" if label else "0" for label in np.asarray(labels))


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
  verdicts = {claim.verdict for claim in page.claims}
  verdicts |= {reading.verdict for claim in page.claims for reading in claim.readings}
  unknown = verdicts - set(_VERDICTS)
  if unknown:
    raise ValueError(f"verdicts must be among {sorted(_VERDICTS)}, but there are also {sorted(unknown)}")
  counts = {name: sum(claim.verdict == name for claim in page.claims) for name in _VERDICTS}
  summary = "".join(
    f"<li>{_verdict(name, f'{count} {name if count == 1 else _VERDICTS[name][2]}')}</li>"
    for name, count in counts.items()
    if count
  )
  # Explicit roles: some browsers drop those of table elements that CSS shows as cards.
  names = ("Verdict", "Claim", "Figure", "Effect", "95 % interval", "Seeds")
  head = "".join(f'<th scope="col" role="columnheader">{name}</th>' for name in names)
  rows = "".join(_claim(claim, anchors) for claim in page.claims)
  return f"""<section class="claims-part" aria-labelledby="claims-title">
<h2 id="claims-title">Claims of the paper</h2>
<ul class="summary" aria-label="Number of claims by verdict">{summary}</ul>
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
  more += _readings(claim.readings)
  cells = {"Figure": figure, "Effect": html.escape(claim.effect), "95 % interval": html.escape(claim.interval)}
  cells["Seeds"] = str(int(claim.seeds))
  return (
    f'<tr role="row"><td role="cell">{_verdict(claim.verdict, claim.verdict)}</td>'
    f'<td role="cell">{html.escape(claim.claim)}{more}</td>'
    + "".join(f'<td role="cell" class="number" data-name="{name}">{text}</td>' for name, text in cells.items())
    + "</tr>\n"
  )


def _readings(readings: tuple[ReadingRow, ...]) -> str:
  items = "".join(f"<li>{_reading(each)}</li>" for each in readings)
  return f'<ul class="readings" aria-label="Readings">{items}</ul>' if items else ""


def _reading(reading: ReadingRow) -> str:
  name, setting, effect, interval, verdict, note = map(html.escape, reading)
  text = f"{_verdict(reading.verdict, f'{name}: {verdict}')}. {setting[:1].upper()}{setting[1:]}. "
  text += f'<span class="number">{effect} ({interval}).</span>'
  return f'{text} <span class="note">{note}</span>' if note else text


def _section(section: Section) -> str:
  anchor = _anchor(section.name)
  settings = _definitions(section.settings)
  blocks = "".join(_block(f"{anchor}-{place}", block) for place, block in enumerate(section.blocks))
  # Each word in an element of its own, so that lines break between options only.
  words = " ".join(f"<span>{html.escape(word)}</span>" for word in section.command.split(" ") if word)
  command = f"<pre><code>{words}</code></pre>" if words else ""
  failure = f"<pre>{html.escape(section.failure)}</pre>" if section.failure else ""
  return f"""<section class="figure" id="{anchor}" aria-labelledby="{anchor}-title">
<h2 id="{anchor}-title">{html.escape(section.title)} <span class="paper">{html.escape(section.paper)}</span></h2>
{_paragraphs(section.shows)}
{f"<details><summary>Settings</summary>{settings}</details>" if settings else ""}
{command and f'<div class="command">{command}<button type="button" class="copy">Copy</button></div>'}
{failure and f'<div class="failure"><strong>This figure could not be made.</strong>{failure}</div>'}
<div class="controls" role="group" aria-label="Settings of the charts" hidden></div>
<div class="blocks">{blocks}</div>
</section>
"""


def _block(name: str, block: Block) -> str:
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
  # With a known size, the layout does not shift when the image is decoded.
  width, height = (int.from_bytes(content[place : place + 4], "big") for place in (16, 20))
  source = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
  return f'<img width="{width}" height="{height}" alt="{html.escape(picture.description)}" src="{source}">'
