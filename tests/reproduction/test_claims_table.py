"""The table of claims in Markdown, and that of docs/claims.md."""

import json
import pathlib

import pytest

from last_jax.reproduction import claims_table
from last_jax.reproduction.claims import DEPENDS, FAILS, HOLDS, NOT_RUN, OPEN

ROOT = pathlib.Path(__file__).parents[2]
CLAIMS = [
  {"figure": "lsr", "claim": "LAST wins.", "effect": "3 times nearer", "interval": "2 to 4", "verdict": HOLDS},
  {"figure": "lsr", "claim": "It reaches w* | soon", "effect": "-", "interval": "", "verdict": FAILS, "seeds": 20},
  {"figure": "theory", "claim": "x_1 < x_2.", "effect": "1 %", "interval": "0 to 2", "verdict": OPEN},
]


def test_table():
  lines = claims_table.make_markdown(CLAIMS).splitlines()
  assert lines[0] == "Of 3 claims 1 hold, 1 do not hold, 1 are not resolved."
  assert lines[1:4] == ["", "| figure | claim | effect | 95 % interval | verdict |", "|---|---|---|---|---|"]
  assert lines[4:] == [
    "| `lsr` | LAST wins | 3 times nearer | 2 to 4 | holds |",
    r"|  | It reaches w\* \| soon | - |  | **does not hold** |",
    r"| `theory` | x\_1 \< x\_2 | 1 % | 0 to 2 | *not resolved* |",
  ]


def test_readings_are_rows_below_their_claim():
  literal = {"name": "literal", "setting": "as written", "effect": "2 times farther", "interval": "1 to 3"}
  other = {"name": "own_start", "setting": "w* of SGD", "effect": "4 times nearer", "interval": "3 to 5"}
  readings = [literal | {"verdict": FAILS}, other | {"verdict": HOLDS}]
  shared = {"figure": "lsr", "claim": "LAST wins.", "effect": "2 times farther", "interval": "1 to 3"}
  alone = shared | {"verdict": NOT_RUN, "readings": readings[:1]}  # One reading: nothing to tell apart.
  lines = claims_table.make_markdown([shared | {"verdict": DEPENDS, "readings": readings}, alone]).splitlines()
  assert lines[0] == (
    "Of 2 claims 0 hold, 1 depend on the reading, 0 do not hold, 0 are not resolved, 1 were not run at this size."
  )
  assert lines[4:] == [
    "| `lsr` | LAST wins |  |  | *depends on the reading* |",
    "|  | – literal: as written | 2 times farther | 1 to 3 | **does not hold** |",
    r"|  | – own\_start: w\* of SGD | 4 times nearer | 3 to 5 | holds |",
    "|  | LAST wins | 2 times farther | 1 to 3 | *not run at this size* |",
  ]


def test_unknown_verdicts_are_refused():
  with pytest.raises(ValueError, match="perhaps"):
    claims_table.make_markdown([CLAIMS[0] | {"verdict": "perhaps"}])


def test_only_the_text_between_the_markers_changes(tmp_path, capsys):
  (tmp_path / "claims.json").write_text(json.dumps(CLAIMS), encoding="utf-8")
  document = tmp_path / "claims.md"
  document.write_text(f"# Title\n\n{claims_table.BEGIN}\nold\n{claims_table.END}\n\nThe rest.\n", encoding="utf-8")
  for _ in range(2):  # Writing it again changes nothing.
    claims_table.main([str(tmp_path / "claims.json"), str(document)])
    markdown = claims_table.make_markdown(CLAIMS)
    expected = f"# Title\n\n{claims_table.BEGIN}\n{markdown}\n{claims_table.END}\n\nThe rest.\n"
    assert document.read_text(encoding="utf-8") == expected
  assert str(document) in capsys.readouterr().out


@pytest.mark.parametrize(
  "text",
  ["", claims_table.BEGIN, f"{claims_table.END}{claims_table.BEGIN}", 2 * (claims_table.BEGIN + claims_table.END)],
)
def test_documents_without_the_two_markers_are_refused(text):
  with pytest.raises(ValueError, match="once each"):
    claims_table.replace_table(text, "table")


def test_the_page_has_the_committed_claims():
  claims = json.loads((ROOT / "docs" / "claims.json").read_text(encoding="utf-8"))
  page = (ROOT / "docs" / "claims.md").read_text(encoding="utf-8")
  written = claims_table.replace_table(page, claims_table.make_markdown(claims))
  assert written == page, "run: python -m last_jax.reproduction.claims_table docs/claims.json docs/claims.md"
