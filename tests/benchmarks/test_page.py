"""The tables of the page of benchmarks: those of its file, and what is quoted from them elsewhere."""

import json
import pathlib
import re

import pytest

from benchmarks import page
from benchmarks.records import Target
from tests.benchmarks.measuring import against, measurement, timing

ROOT = pathlib.Path(__file__).parents[2]
GIVEN = {"source": "Elsewhere:", "rows": [["old job", "1 s", "PyTorch", "2 times as fast", "**3**"]]}
MACHINE = {
  "cores": 2, "architecture": "x86_64", "system": "Linux", "python": "3.11", "versions": {"jax": "0.10", "torch": None},
  "load_per_core": 0.1,
}  # fmt: skip


def report(date, *measured, load=0.1):
  measured = [each.to_json() for each in measured]
  return {
    "date": date,
    "machine": MACHINE | {"load_per_core": load},
    "settings": {"repetitions": 3},
    "measurements": measured,
  }


def job(name="job", ratio=2.0, **more):
  compared = [against("PyTorch", 4e-6, ratio, **more), against("C", 1e-6, 0.5)]
  return measurement(name, {"students": 1000, "steps": 20}, ours=timing("last_jax", 2e-6), compared=compared)


def test_rows_of_a_run():
  text = page.make_markdown({"given": GIVEN, "runs": [report("2026-01-02", job(target=Target(3.0)))]})
  assert text.splitlines() == [
    "Elsewhere:",
    "",
    "| job | ours | against | ratio | aimed at |",
    "|---|---|---|---|---|",
    "| old job | 1 s | PyTorch | 2 times as fast | **3** |",
    "",
    "### Run of 2026-01-02",
    "",
    "`python -m benchmarks.run --suite=job --repetitions=3`: 2 cores, x86_64, Linux, Python 3.11, jax 0.10. Medians; "
    "ratios with the quartiles of single repetitions in brackets.",
    "",
    "| job | ours | against | ratio | aimed at |",
    "|---|---|---|---|---|",
    "| `job`: a job; 1,000 × 20 steps | 2.00 µs a student-step | PyTorch, 1 thread | 2.00 times as fast [2.00, 4.00] "
    "| **3** |",
    "| | | C, 1 thread | 2.00 times as long [1.00, 2.00] | |",
  ]


def test_runs_are_in_order_and_a_busy_machine_is_named():
  runs = [report("2026-01-02", job("one")), report("2026-03-01", job("two"), load=4.0)]
  text = page.make_markdown({"given": GIVEN, "runs": runs})
  assert text.index("=two") < text.index("load per core 4.0") < text.index("=one")
  assert text.count("load per core") == 1


def test_a_run_is_added_once(tmp_path, capsys):
  figures, document, run = (tmp_path / name for name in ("figures.json", "page.md", "run.json"))
  figures.write_text(json.dumps({"given": GIVEN, "runs": [report("2026-01-02", job("other"))]}), encoding="utf-8")
  document.write_text(f"# Title\n\n{page.BEGIN}\nold\n{page.END}\n\nThe rest.\n", encoding="utf-8")
  for ratio in (2.0, 7.0):
    run.write_text(json.dumps(report("2026-01-02", job(ratio=ratio))), encoding="utf-8")
    page.main([str(figures), str(document), f"--add={run}"])
  assert f"wrote {document}" in capsys.readouterr().out
  text = document.read_text(encoding="utf-8")
  assert text.startswith(f"# Title\n\n{page.BEGIN}\nElsewhere:")
  assert text.endswith(f"{page.END}\n\nThe rest.\n")
  assert [text.count(ratio) for ratio in ("| 2.00 times as fast", "| 7.00 times as fast")] == [1, 1]  # "other", "job".


def test_the_page_is_that_of_its_file():
  figures = json.loads((ROOT / "docs" / "benchmarks.json").read_text(encoding="utf-8"))
  written = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
  expected = page.replace_table(written, page.make_markdown(figures), page.BEGIN, page.END)
  assert written == expected, "run: python -m benchmarks.page docs/benchmarks.json docs/benchmarks.md"


def ratios(text):
  return re.findall(r"\d[\d,.]*(?= times as )", text)


@pytest.mark.parametrize(("name", "heading"), [("README.md", "## Speed"), ("docs/beside.md", "## Lines and time")])
def test_ratios_that_are_quoted_are_in_the_tables(name, heading):
  document = (ROOT / name).read_text(encoding="utf-8")
  _, _, section = document.partition(f"{heading}\n")
  quoted = ratios(section.partition("\n## ")[0])
  assert len(quoted) >= 3
  assert set(quoted) <= set(ratios((ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")))


def test_the_lines_that_are_counted_beside_others_are_those_of_the_blocks():
  document = (ROOT / "docs" / "beside.md").read_text(encoding="utf-8")
  blocks = re.findall(r"^```python\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)
  lengths = [sum(bool(line.strip()) for line in block.splitlines()) for block in blocks]
  counted = re.findall(r"^\| [^|]+ \| (\d+) \|", document, re.MULTILINE)
  assert counted == [str(length) for length in lengths]
