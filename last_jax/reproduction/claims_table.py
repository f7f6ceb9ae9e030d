"""Write the table of claims into a Markdown file, between two markers, from the claims.json of a run.

python -m last_jax.reproduction.claims_table docs/claims.json README.md
"""

import argparse
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from last_jax.io import replaced
from last_jax.reproduction.claims import FAILS, HOLDS, OPEN

BEGIN = "<!-- claims: written by last_jax.reproduction.claims_table, not by hand -->"
END = "<!-- end of claims -->"
_EMPHASIS = {HOLDS: "{}", FAILS: "**{}**", OPEN: "*{}*"}


def make_markdown(claims: Sequence[Mapping[str, Any]]) -> str:
  """Return the number of claims by verdict, and the table, as Markdown.

  Args:
    claims: The entries of claims.json. Of each, "figure", "claim", "effect", "interval" and "verdict" are used.
  """
  verdicts = [claim["verdict"] for claim in claims]
  unknown = set(verdicts) - set(_EMPHASIS)
  if unknown:
    raise ValueError(f"verdicts must be among {list(_EMPHASIS)}, but there are also {sorted(unknown)}")
  counts = f"{verdicts.count(HOLDS)} hold, {verdicts.count(FAILS)} do not hold, {verdicts.count(OPEN)} are not resolved"
  lines = [f"Of {len(claims)} claims {counts}.", ""]
  lines += ["| figure | claim | effect | 95 % interval | verdict |", "|---|---|---|---|---|"]
  before = None
  for claim in claims:
    figure = "" if claim["figure"] == before else f"`{claim['figure']}`"
    before = claim["figure"]
    texts = [_escape(claim["claim"].removesuffix(".")), _escape(claim["effect"]), _escape(claim["interval"])]
    lines.append(f"| {' | '.join([figure, *texts, _EMPHASIS[claim['verdict']].format(claim['verdict'])])} |")
  return "\n".join(lines)


def replace_table(document: str, markdown: str) -> str:
  """Return the document with `markdown` between the two markers.

  Raises:
    ValueError: the markers are not there, or not once each in their order.
  """
  before, begin, rest = document.partition(BEGIN)
  _, end, after = rest.partition(END)
  if not begin or not end or BEGIN in rest or END in before + after:
    raise ValueError(f"document must hold the line {BEGIN!r} and, after it, {END!r}, once each")
  return f"{before}{BEGIN}\n{markdown}\n{END}{after}"


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
