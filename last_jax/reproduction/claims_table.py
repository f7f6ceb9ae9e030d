"""Write the table of claims into a Markdown file, between two markers, from the claims.json of a run.

python -m last_jax.reproduction.claims_table docs/claims.json docs/claims.md
"""

import argparse
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from last_jax.io import replaced
from last_jax.reproduction.claims import DEPENDS, FAILS, HOLDS, NOT_RUN, OPEN

BEGIN = "<!-- claims: written by last_jax.reproduction.claims_table, not by hand -->"
END = "<!-- end of claims -->"
# By verdict: its look, and the words of the count.
_EMPHASIS = {HOLDS: "{}", DEPENDS: "*{}*", FAILS: "**{}**", OPEN: "*{}*", NOT_RUN: "*{}*"}
_COUNTED = {
  HOLDS: "hold", DEPENDS: "depend on the reading", FAILS: "do not hold", OPEN: "are not resolved",
  NOT_RUN: "were not run at this size",
}  # fmt: skip


def make_markdown(claims: Sequence[Mapping[str, Any]]) -> str:
  """Return the number of claims by verdict, and the table, as Markdown.

  Args:
    claims: The entries of claims.json. Of each, "figure", "claim", "effect", "interval" and "verdict" are used and, if
      there are several, "readings". Files of earlier versions have none: their claims have the literal reading only.
  """
  verdicts = [claim["verdict"] for claim in claims]
  unknown = set(verdicts) - set(_EMPHASIS)
  if unknown:
    raise ValueError(f"verdicts must be among {list(_EMPHASIS)}, but there are also {sorted(unknown)}")
  # Verdicts that only some runs have are named where there are any.
  counts = {name: verdicts.count(name) for name in _EMPHASIS}
  texts = [f"{counts[name]} {text}" for name, text in _COUNTED.items() if counts[name] or name in (HOLDS, FAILS, OPEN)]
  lines = [f"Of {len(claims)} claims {', '.join(texts)}.", ""]
  lines += ["| figure | claim | effect | 95 % interval | verdict |", "|---|---|---|---|---|"]
  before = None
  for claim in claims:
    figure = "" if claim["figure"] == before else f"`{claim['figure']}`"
    before = claim["figure"]
    readings = claim.get("readings", [])
    text = _escape(claim["claim"].removesuffix("."))
    if len(readings) < 2:
      lines.append(_row(figure, text, claim))
    else:  # The numbers are those of the readings.
      lines.append(_row(figure, text, {"effect": "", "interval": "", "verdict": claim["verdict"]}))
      lines += [_row("", f"– {_escape(each['name'])}: {_escape(each['setting'])}", each) for each in readings]
  return "\n".join(lines)


def _row(figure: str, text: str, result: Mapping[str, Any]) -> str:
  verdict = _EMPHASIS[result["verdict"]].format(result["verdict"])
  return f"| {' | '.join([figure, text, _escape(result['effect']), _escape(result['interval']), verdict])} |"


def replace_table(document: str, markdown: str, opening: str = BEGIN, closing: str = END) -> str:
  """Return the document with `markdown` between the two markers.

  Raises:
    ValueError: the markers are not there, or not once each in their order.
  """
  before, begin, rest = document.partition(opening)
  _, end, after = rest.partition(closing)
  if not begin or not end or opening in rest or closing in before + after:
    raise ValueError(f"document must hold the line {opening!r} and, after it, {closing!r}, once each")
  return f"{before}{opening}\n{markdown}\n{closing}{after}"


def update(claims: str | os.PathLike[str], document: str | os.PathLike[str]) -> None:
  """Rewrite the table of a document from a claims.json. The rest of the document stays."""
  entries = json.loads(pathlib.Path(claims).read_text(encoding="utf-8"))
  text = replace_table(pathlib.Path(document).read_text(encoding="utf-8"), make_markdown(entries))
  with replaced(document) as temporary:
    temporary.write_text(text, encoding="utf-8")


def _escape(text: str) -> str:
  """Return text that Markdown shows literally within a cell of a table."""
  for letter in ("\\", "*", "_", "|", "`", "<"):
    text = text.replace(letter, "\\" + letter)
  return text


def main(arguments: Sequence[str] | None = None) -> None:
  """Run the command."""
  parser = argparse.ArgumentParser(description="Write the table of claims into a Markdown file.")
  parser.add_argument("claims", help="claims.json, as launch.reproduce writes it")
  parser.add_argument("document", help="Markdown file with the two markers")
  options = parser.parse_args(arguments)
  update(options.claims, options.document)
  print(f"wrote {options.document}")


if __name__ == "__main__":
  main()
