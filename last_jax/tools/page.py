"""One HTML file with all results, interactive, that opens from disk and fetches nothing.

Python writes the texts (`page_body.py`) and embeds the numbers once, as JSON (`page_data.py`); the scripts in `assets/`
draw them, curves with Plotly.
"""

import html
import importlib.resources
import json
import string

from last_jax.io import replaced
from last_jax.tools import page_body, page_data
from last_jax.tools.files import FilePath
from last_jax.tools.page_contents import Block, ClaimRow, Page, ReadingRow, Section, anchor_of

__all__ = ["Block", "ClaimRow", "Page", "ReadingRow", "Section", "write_page"]

# In the page they are one function: each may use what those before it define.
_SCRIPTS = (
  "looks.js", "axes.js", "charts.js", "controls.js", "labels.js", "demonstration.js", "contents.js", "page.js",
)  # fmt: skip
_STYLES = ("page.css", "contents.css", "demonstration.css", "narrow.css")


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

  anchors = [anchor_of(section.name) for section in page.sections]
  if len(set(anchors)) < len(anchors):
    raise ValueError(f"sections must have different names, but they are {[section.name for section in page.sections]}")
  sections = {
    anchor: [page_data.block_data(f"section {section.name!r}, {block.title!r}", block) for block in section.blocks]
    for anchor, section in zip(anchors, page.sections, strict=True)
  }
  opening = page.opening and page_data.demonstration_data(repr(page.opening.title), page.opening)
  data = {"width": page_data.WIDTH, "sections": sections, "opening": opening}
  text = string.Template(_asset("page.html")).substitute(
    title=html.escape(page.title),
    style="\n".join(map(_asset, _STYLES)),
    body=page_body.make_body(page),
    # "<" could begin the end of the script element; in a JSON string \u003c is the same character.
    data=json.dumps(data, allow_nan=False, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c"),
    plotly=get_plotlyjs().replace("</script", "<\\/script"),
    script="\n".join(['"use strict";', "(() => {", *map(_asset, _SCRIPTS), "})();"]),
  )
  with replaced(path) as temporary:
    temporary.write_text(text, encoding="utf-8", errors="backslashreplace")  # Messages may name any folder.


def _asset(name: str) -> str:
  return (importlib.resources.files("last_jax.tools") / "assets" / name).read_text(encoding="utf-8")
