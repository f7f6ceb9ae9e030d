"""The comparison of two runs, also of those that earlier versions wrote."""

import dataclasses
import json

import pytest

from benchmarks import compare
from benchmarks.baselines import BATCHED
from tests.benchmarks.measuring import against, measurement, timing

# As the first version wrote it, shortened.
OLD = {
  "machine": {"cores": 2, "load_per_core": 0.29},
  "settings": {"seed": 0, "repetitions": 2, "tiny": False},
  "interrupted": False,
  "failed": {},
  "measurements": [
    {
      "job": "horizon",
      "problem": {"description": "the gradient", "sizes": {"students": 10, "horizon": 20}, "seed": 0},
      "unit": "student-step",
      "ours": {
        "name": "in segments", "compile_seconds": 2.73, "median": 1.5e-5, "lower_quartile": 1.25e-5,
        "upper_quartile": 1.75e-5, "fastest": 1e-5, "seconds": [2e-5, 1e-5], "units": 200, "temporary_bytes": 320000,
      },
      "against": [
        {
          "kind": "everything kept",
          "timing": {
            "name": "everything kept", "compile_seconds": 2.0, "median": 1.2e-5, "lower_quartile": 1.1e-5,
            "upper_quartile": 1.3e-5, "fastest": 1e-5, "seconds": [1e-5, 1.4e-5], "units": 200, "temporary_bytes": 1,
          },
          "slower": [],
          "ratio": 0.8, "ratio_lower_quartile": 0.7, "ratio_upper_quartile": 0.9, "ratio_of_fastest": 1.0,
          "largest_difference": {"gradient": 1e-16},
          "target": {"factor": 2.0, "slower": True},
          "met": True,
        }
      ],
      "axis": "horizon",
    }
  ],
}  # fmt: skip


def write(path, *measurements, **changes):
  report = OLD | {"measurements": [each.to_json() for each in measurements]} | changes
  path.write_text(json.dumps(report))
  return str(path)


@pytest.fixture
def compared(tmp_path, capsys):
  """A function of two lists of measurements that returns the rows' cells and the summary's lines."""

  def run(before, after, **changes):
    files = write(tmp_path / "before.json", *before), write(tmp_path / "after.json", *after, **changes)
    assert compare.main(files) == 0
    _, _, *rows = capsys.readouterr().out.splitlines()
    end = rows.index("")
    return [[cell.strip() for cell in row.split("|")[1:-1]] for row in rows[:end]], rows[end + 1 :]

  return run


def job(name, *seconds, ratio=4.0, theirs=1e-5, sizes=None):
  return measurement(name, sizes, ours=timing("last_jax", *seconds), compared=[against(BATCHED, theirs, ratio)])


def test_a_run_of_an_earlier_version_is_read(tmp_path, capsys):
  old, new = tmp_path / "old.json", tmp_path / "new.json"
  old.write_text(json.dumps(OLD))
  renamed = compare.read_report(str(old)).measurements.popitem()[1]
  stored = dataclasses.replace(renamed.against[0], kind="everything stored", ratio=0.85)
  write(new, dataclasses.replace(renamed, against=(stored,)))
  assert compare.main([str(old), str(new)]) == 0
  printed = capsys.readouterr().out
  assert (
    "| horizon, in segments, horizon 20, per student-step | 15.0 [12.5, 17.5] µs | 15.0 [12.5, 17.5] µs |" in printed
  )
  assert "everything stored 0.80 → 0.85 |" in printed


def test_a_row_has_times_per_unit_and_ratios_of_both_runs(compared):
  (row,), summary = compared(
    [job("greedy", 2e-6, 3e-6, 4e-6)], [job("greedy", 3e-6, 3e-6, 6e-6, ratio=2.0, theirs=2e-5)]
  )
  assert row == [
    "greedy, per student-step", "3.00 [3.00, 3.00] µs", "3.00 [3.00, 3.00] µs", "1.00", "1.50", "",
    "0.00 ns → 0.00 ns", f"{BATCHED} 4.00 → 2.00",
  ]  # fmt: skip
  assert summary[:2] == [
    "- last_jax, mean of 1 cases: 1.00 × the time before",
    "- other libraries on the same cases: 2.00 × the time before (the machine)",
  ]


@pytest.mark.parametrize(
  ("before", "after", "change"),
  [
    ((1.0, 1.1, 1.2, 1.3), (2.0, 2.1, 2.2, 2.3), "**slower**"),
    ((2.0, 2.1, 2.2, 2.3), (1.0, 1.1, 1.2, 1.3), "**faster**"),
    ((1.0, 1.1, 1.2, 9.0), (2.0, 2.1, 2.2, 2.3), "slower"),  # One repetition was as slow before.
    ((1.0, 1.1, 2.2, 2.3), (1.0, 2.1, 3.2, 3.3), ""),  # The quartiles overlap.
    ((1.00, 1.01, 1.01, 1.02), (1.03, 1.04, 1.04, 1.05), ""),  # Too little.
  ],
)
def test_changes_beyond_the_noise_are_marked(compared, before, after, change):
  (row,), summary = compared([job("greedy", *before)], [job("greedy", *after)])
  assert row[5] == change
  for word in ("slower", "faster"):
    assert f"- {word} beyond the noise: " + ("1 of 1; greedy" if word in change else "0 of 1") in summary


def test_cases_are_matched_by_their_sizes(compared):
  before = [job("pool", 1.0, sizes={"pool": size}) for size in (1, 2, 2)]
  after = [job("pool", seconds, sizes={"pool": size}) for size, seconds in ((2, 3.0), (2, 5.0), (1, 2.0), (4, 1.0))]
  rows, summary = compared(before, after, failed={"mlp": "out of memory"}, settings={"tiny": True})
  assert [row[3] for row in rows] == ["3.00", "5.00", "2.00"]
  assert "- only after: pool (1)" in summary
  assert "- failed after: mlp: out of memory" in summary
  assert any(line.startswith("- settings differ: ") for line in summary)
  assert compared(before, [])[1] == ["- no case is in both", "- only before: pool (3)"]


def test_bad_arguments_are_refused(tmp_path, capsys):
  (tmp_path / "text").write_text("{")
  (tmp_path / "other").write_text('{"measurements": 3}')
  for file in ("text", "other"):
    assert compare.main([str(tmp_path / file)] * 2) == 2
    assert f"{tmp_path / file} was not written by benchmarks.run" in capsys.readouterr().err
  assert compare.main([str(tmp_path / "none")] * 2) == 2
  assert compare.main(["one"]) == 2
  assert "BEFORE.json AFTER.json" in capsys.readouterr().err
