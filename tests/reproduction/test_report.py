"""Rows of the page and entries of claims.json, from verdicts."""

import json

import numpy as np

from last_jax.reproduction import FIGURES, Claim, Comparison, Finding, Reading, Size, claims_table, judge

USUAL = Size("usual", 8, None, 5)


def values(mean):
  return mean + 0.01 * np.arange(8)


def finding(claim, size=USUAL):
  return Finding(FIGURES["lsr"], judge(claim), size)


def test_a_claim_too_large_for_the_run_names_the_command_that_judges_it():
  row = finding(Claim("it holds", [Comparison("a against b", values(-1.0))], size="full")).row()
  assert row.verdict == "not run at this size"
  assert row.explanation.endswith("python -m launch.reproduce --figure=lsr --seeds=20 --full --seed=5")
  with_folder = finding(
    Claim("it holds", [Comparison("a", values(-1.0))], size="full"), USUAL._replace(mnist_folder="x")
  )
  assert with_folder.row().explanation.endswith("--mnist_folder=FOLDER")


def test_rows_and_entries_hold_every_reading():
  claim = Claim(
    "it holds",
    [Comparison("a against b", values(-1.0), part="run")],
    because="The radius decides.",
    readings=[Reading("bounded", "r = 2", [Comparison("a", values(1.0), part="run"),
                                           Comparison("a", values(-2.0), part="end")], "Too near."),
              Reading("margin", "other loss", [Comparison("a", values(1.0))], "Not shown: it holds.")],
  )  # fmt: skip
  row = finding(claim).row()
  assert row.verdict == "depends on the reading"
  assert row.effect.endswith("times farther over the run")
  assert "The radius decides." in row.explanation
  literal, bounded, margin = row.readings
  assert (literal.name, literal.verdict, literal.note) == ("literal", "does not hold", "")
  assert bounded.note == "Over the run it holds, at the end it does not hold: the last step alone decides. Too near."
  assert (margin.verdict, margin.note) == ("holds", "")
  entry = json.loads(json.dumps(finding(claim).entry()))
  assert [each["verdict"] for each in entry["readings"]] == ["does not hold", "does not hold", "holds"]
  assert len(entry["readings"][1]["comparisons"]) == 2
  assert "margin: other loss" in claims_table.make_markdown([entry])


def test_a_claim_with_one_reading_has_no_list_of_them():
  found = finding(Claim("it holds", [Comparison("a against b", values(1.0))]))
  assert found.row().readings == ()
  assert [each["name"] for each in found.entry()["readings"]] == ["literal"]
