"""What a results page holds, as data."""

from collections.abc import Mapping
from typing import NamedTuple

from last_jax.tools.charts import Chart, Demonstration, Gallery, LabelFrames, Picture

Block = Chart | LabelFrames | Gallery | Picture


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
  threshold: str = ""


class ClaimRow(NamedTuple):
  """A claim of the paper, and the result."""

  figure: str  # The name of a section.
  paper: str
  claim: str
  effect: str
  interval: str
  seeds: int
  verdict: str  # One of `page_body.VERDICTS`.
  explanation: str = ""
  readings: tuple[ReadingRow, ...] = ()  # The literal one first; none where there is no other.
  threshold: str = ""  # What the interval must exceed.


class Page(NamedTuple):
  """The contents of the file."""

  title: str
  introduction: str
  facts: Mapping[str, str]
  test: str  # How claims are judged.
  claims: tuple[ClaimRow, ...]
  sections: tuple[Section, ...]
  opening: Demonstration | None = None  # Comes before all else.
  names: Mapping[str, str] = {}  # What names and abbreviations stand for, in the order of the page.


def anchor_of(name: str) -> str:
  """Return the id of a section's element."""
  return "figure-" + "".join(letter if letter.isalnum() or letter in "_.-" else "-" for letter in name)
