"""Texts of a results page as HTML; charts are left to the scripts."""

import base64
import html
import pathlib
import re
import struct
import zlib
from collections.abc import Mapping

import numpy as np

from last_jax.tools.charts import Demonstration, Gallery, LabelFrames, Picture, Side
from last_jax.tools.page_contents import Block, ClaimRow, Page, ReadingRow, Section, anchor_of

# By verdict: its CSS class, a symbol, and the plural of the verb.
VERDICTS = {
  "holds": ("holds", "✔", "hold"),
  "depends on the reading": ("depends", "◐", "depend on the reading"),
  "does not hold": ("fails", "✘", "do not hold"),
  "not resolved": ("open", "?", "not resolved"),
  "not run at this size": ("skipped", "–", "not run at this size"),
}


def make_body(page: Page) -> str:
  """Return the page's content.

  Raises:
    ValueError: an unknown verdict, or a picture that is no PNG file.
  """
  verdicts = {claim.verdict for claim in page.claims}
  verdicts |= {reading.verdict for claim in page.claims for reading in claim.readings}
  unknown = verdicts - set(VERDICTS)
  if unknown:
    raise ValueError(f"verdicts must be among {sorted(VERDICTS)}, but there are also {sorted(unknown)}")
  return f"""<header>
<h1>{html.escape(page.title)}</h1>
<noscript><p class="failure">The charts need JavaScript; the texts and tables do not.</p></noscript>
</header>
<main id="content" tabindex="-1">
{_opening(page.opening) if page.opening else ""}
{_contents(page)}
{_names(page.names)}
{_claims(page, {anchor_of(section.name) for section in page.sections})}
{"".join(_section(section) for section in page.sections)}
</main>
<footer aria-labelledby="run-title"><h2 id="run-title">This run</h2>
{_definitions(page.facts)}
</footer>"""


def _opening(shown: Demonstration) -> str:
  sides = "".join(_side(f"opening-{place}", side) for place, side in enumerate((shown.taught, shown.other)))
  return f"""<section class="opening" id="opening" aria-labelledby="opening-title">
<h2 id="opening-title">{html.escape(shown.title)}</h2>
<p class="lead">{html.escape(shown.lead)}</p>
<ul class="key" id="opening-key"></ul>
<div class="sides">{sides}</div>
<div class="frames" role="group" aria-labelledby="opening-title" hidden></div>
<div class="below"><figure class="course">
<figcaption><h3 id="opening-course-title">Distance of both students to the target</h3></figcaption>
<div class="plot" role="img" aria-labelledby="opening-course-title" aria-describedby="opening-course-note"></div>
<p class="note" id="opening-course-note"></p></figure>
<div class="text">{_paragraphs(shown.text)}</div></div>
</section>"""


def _side(name: str, side: Side) -> str:
  return f"""<figure class="side" id="{name}"><figcaption>
<h3 id="{name}-title">{html.escape(side.name)}: <span class="paper">{html.escape(side.title)}</span></h3></figcaption>
<div class="plot" role="img" aria-labelledby="{name}-title" aria-describedby="{name}-state"></div>
<p class="state" id="{name}-state"></p></figure>"""


def _contents(page: Page) -> str:
  """Return the list of figures with their verdicts, and what filters figures and claims."""
  counts = {name: sum(claim.verdict == name for claim in page.claims) for name in VERDICTS}
  buttons = "".join(
    f'<button type="button" class="choice" data-verdict="{name}" aria-pressed="false">'
    f"{_verdict(name, f'{count} {name if count == 1 else VERDICTS[name][2]}')}</button>"
    for name, count in counts.items()
    if count
  )
  options = "".join(
    f'<option value="{anchor_of(each.name)}">{html.escape(each.title)}</option>' for each in page.sections
  )
  items = "".join(_entry(section, page.claims) for section in page.sections)
  verdicts = f'<div class="choices" role="group" aria-label="Verdicts">{buttons}</div>' if buttons else ""
  return f"""<section class="contents" id="contents" aria-labelledby="contents-title">
<h2 id="contents-title">Contents</h2>
{_paragraphs(page.introduction)}
<form role="search" aria-label="Figures and claims">
{verdicts}
<div class="fields">
<span><label for="filter-figure">Figure</label>
<select id="filter-figure" name="figure"><option value="">all</option>{options}</select></span>
<span><label for="filter-words">Words</label>
<input id="filter-words" type="search" name="words" autocomplete="off"></span>
<button type="reset">Show all</button>
</div>
<p class="note" role="status"></p>
</form>
<nav aria-labelledby="contents-title"><ol>{items}</ol>
<p>{'<a href="#names">Names and abbreviations</a> · ' if page.names else ""}
{'<a href="#claims">Claims of the paper</a>' if page.claims else ""}</p></nav>
</section>"""


def _entry(section: Section, claims: tuple[ClaimRow, ...]) -> str:
  anchor = anchor_of(section.name)
  own = [claim.verdict for claim in claims if claim.figure == section.name]
  marks = "".join(
    f'<span class="verdict {look}"><span aria-hidden="true">{symbol}&thinsp;{own.count(name)}</span>'
    f'<span class="unseen">{own.count(name)} {name if own.count(name) == 1 else plural}, </span></span> '
    for name, (look, symbol, plural) in VERDICTS.items()
    if name in own
  )
  return (
    f'<li data-figure="{anchor}"><a href="#{anchor}">{html.escape(section.title)}</a> '
    f'<span class="paper">{html.escape(section.paper)}{", failed" if section.failure else ""}</span> {marks}</li>\n'
  )


def _names(names: Mapping[str, str]) -> str:
  if not names:
    return ""
  items = "".join(
    f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd></div>" for name, text in names.items()
  )
  return f"""<section class="names" id="names" aria-labelledby="names-title">
<h2 id="names-title">Names and abbreviations</h2>
<dl>{items}</dl>
</section>"""


def _paragraphs(text: str) -> str:
  return "".join(f"<p>{html.escape(part.strip())}</p>" for part in re.split(r"\n\s*\n", text) if part.strip())


def _definitions(items: Mapping[str, str]) -> str:
  pairs = "".join(f"<dt>{html.escape(name)}</dt><dd>{html.escape(str(item))}</dd>" for name, item in items.items())
  return f"<dl>{pairs}</dl>" if pairs else ""


def _claims(page: Page, anchors: set[str]) -> str:
  if not page.claims:
    return ""
  # Explicit roles: some browsers drop those of table elements that CSS shows as cards.
  names = ("Verdict", "Claim", "Figure", "Effect", "95 % interval", "Threshold", "Seeds")
  head = "".join(f'<th scope="col" role="columnheader">{name}</th>' for name in names)
  rows = "".join(_claim(claim, anchors) for claim in page.claims)
  return f"""<section class="claims-part" id="claims" aria-labelledby="claims-title">
<h2 id="claims-title">Claims of the paper</h2>
<details><summary>How claims are judged, and every threshold</summary>
{_paragraphs(page.test)}</details>
<table class="claims" role="table" aria-labelledby="claims-title">
<thead role="rowgroup"><tr role="row">{head}</tr></thead>
<tbody role="rowgroup">{rows}</tbody></table>
</section>"""


def _verdict(name: str, text: str) -> str:
  look, symbol, _ = VERDICTS[name]
  return f'<span class="verdict {look}"><span class="symbol" aria-hidden="true">{symbol}</span>{text}</span>'


def _claim(claim: ClaimRow, anchors: set[str]) -> str:
  anchor = anchor_of(claim.figure)
  figure = html.escape(claim.paper or claim.figure)
  if anchor in anchors:
    figure = f'<a href="#{anchor}">{figure}</a>'
  more = f'<span class="explanation">{html.escape(claim.explanation)}</span>' if claim.explanation else ""
  more += _readings(claim.readings)
  cells = {"Figure": figure, "Effect": html.escape(claim.effect), "95 % interval": html.escape(claim.interval)}
  cells |= {"Threshold": html.escape(claim.threshold), "Seeds": str(int(claim.seeds))}
  return (
    f'<tr role="row" data-verdict="{html.escape(claim.verdict)}" data-figure="{anchor}">'
    f'<td role="cell">{_verdict(claim.verdict, claim.verdict)}</td>'
    f'<td role="cell">{html.escape(claim.claim)}{more}</td>'
    + "".join(f'<td role="cell" class="number" data-name="{name}">{text}</td>' for name, text in cells.items())
    + "</tr>\n"
  )


def _readings(readings: tuple[ReadingRow, ...]) -> str:
  items = "".join(f"<li>{_reading(each)}</li>" for each in readings)
  return f'<ul class="readings" aria-label="Readings">{items}</ul>' if items else ""


def _reading(reading: ReadingRow) -> str:
  name, setting, effect, interval, verdict, note, threshold = map(html.escape, reading)
  text = f"{_verdict(reading.verdict, f'{name}: {verdict}')}. {setting[:1].upper()}{setting[1:]}. "
  text += f'<span class="number">{effect} ({interval}{threshold and f"; threshold {threshold}"}).</span>'
  return f'{text} <span class="note">{note}</span>' if note else text


def _section(section: Section) -> str:
  anchor = anchor_of(section.name)
  settings = _definitions(section.settings)
  blocks = "".join(_block(f"{anchor}-{place}", block) for place, block in enumerate(section.blocks))
  # Each word in an element of its own, so that lines break between options only.
  words = " ".join(f"<span>{html.escape(word)}</span>" for word in section.command.split(" ") if word)
  command = f"<pre><code>{words}</code></pre>" if words else ""
  failure = f"<pre>{html.escape(section.failure)}</pre>" if section.failure else ""
  return f"""<section class="figure" id="{anchor}" aria-labelledby="{anchor}-title">
<h2 id="{anchor}-title">{html.escape(section.title)} <span class="paper">{html.escape(section.paper)}</span></h2>
<a class="up" href="#contents">Back to the contents</a>
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
  if isinstance(block, Gallery):
    items = zip(np.asarray(block.images), block.captions, strict=True)
    images = "".join(f"<li>{_ink(image)}<span>{html.escape(text)}</span></li>" for image, text in items)
    description = f'<p class="note" id="{name}-note">{html.escape(block.description)}</p>'
    images = f'<ul class="images" aria-labelledby="{name}-title" aria-describedby="{name}-note">{images}</ul>'
    return f'<figure class="block gallery" id="{name}">{caption}{description}{images}</figure>\n'
  kind = "labels" if isinstance(block, LabelFrames) else "chart"
  plot = f'<div class="plot" role="img" aria-labelledby="{name}-title" aria-describedby="{name}-note"></div>'
  return f'<figure class="block {kind}" id="{name}">{caption}{plot}<p class="note" id="{name}-note"></p></figure>\n'


def _image(picture: Picture) -> str:
  content = pathlib.Path(picture.path).read_bytes()
  if content[:8] != b"\x89PNG\r\n\x1a\n" or len(content) < 24:
    raise ValueError(f"{picture.path} is not a PNG file")
  # With a known size, the layout does not shift when the image is decoded.
  width, height = (int.from_bytes(content[place : place + 4], "big") for place in (16, 20))
  source = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
  return f'<img width="{width}" height="{height}" alt="{html.escape(picture.description)}" src="{source}">'


def _ink(image: np.ndarray) -> str:
  """Return an image of black ink on transparent paper, which the style inverts on a dark page; its caption names it."""
  height, width = image.shape
  rows = np.zeros((height, 1 + 2 * width), np.uint8)  # A filter byte, then lightness and opacity in turns.
  rows[:, 2::2] = image
  header = struct.pack(">IIBBBBB", width, height, 8, 4, 0, 0, 0)
  chunks = {b"IHDR": header, b"IDAT": zlib.compress(rows.tobytes(), 9), b"IEND": b""}
  content = b"\x89PNG\r\n\x1a\n" + b"".join(
    struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part))
    for name, part in chunks.items()
  )
  source = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
  return f'<img width="{width}" height="{height}" alt="" src="{source}">'
