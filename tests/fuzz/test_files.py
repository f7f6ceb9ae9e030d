"""Damaged and forged files of every format: an error that names the file, or the contents as they were.

`pytest -m fuzz` tries a thousand of each format, the ordinary run a few of each; `-m faults` has every truncation.
"""

import collections

import hypothesis
import jax
import pytest
from hypothesis import strategies

from tests.fuzz import damage
from tests.fuzz.formats import FORMATS, LONG, contents

ALL = FORMATS | LONG
ARCHIVES = [name for name, format in ALL.items() if format.kind == "archive"]


def fault_of(format, folder, path, right=None):
  """What is wrong with what reading a damaged file comes to; None where it is refused by name, or `right`."""
  try:
    with jax.debug_nans(False):
      found = contents(format.read(path))
  except (ValueError, TypeError, OSError) as error:
    text = f"{type(error).__name__}: {str(error)[:300]}"
    return None if str(folder) in str(error) else ("unnamed", text)
  except Exception as error:
    return "raw", f"{type(error).__name__}: {str(error)[:300]}"
  return ("silent", "other contents") if right is not None and found != right else None


def check(name, folder, examples, forged):
  """Try damages of one format, and raise unless all of them are noticed."""
  format = ALL[name]
  path = format.write(folder)
  content, right = path.read_bytes(), contents(format.read(path))
  # A changed letter can be another text, a changed byte another number: these formats have no checksums.
  exact = right if format.kind in ("archive", "packed") and not forged else None
  faults, cases = [], 0

  @hypothesis.settings(max_examples=examples, suppress_health_check=list(hypothesis.HealthCheck))
  @hypothesis.given(strategies.data())
  def collect(data):
    nonlocal cases
    path.write_bytes(content)
    if forged:
      given = data.draw(damage.archive_of(path))
      damage.write_archive(path, given)
    else:
      given = data.draw(damage.bytes_of(content))
      path.write_bytes(given)
    cases += 1
    if fault := fault_of(format, folder, path, exact):
      faults.append((*fault, str(given)[:1500]))

  collect()
  print(
    f"{name}: {cases} {'forged' if forged else 'damaged'}: {dict(collections.Counter(fault[0] for fault in faults))}"
  )
  assert not faults, "\n\n".join(": ".join(fault) for fault in faults[:20])


@pytest.mark.parametrize("name", FORMATS)
def test_some_damaged_files(tmp_path, name):
  check(name, tmp_path, 12, forged=False)


@pytest.mark.parametrize("name", ARCHIVES)
def test_some_forged_files(tmp_path, name):
  check(name, tmp_path, 12, forged=True)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", FORMATS)
def test_damaged_files(tmp_path, name):
  check(name, tmp_path, 1000, forged=False)


@pytest.mark.fuzz
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Of threads of Orbax.
@pytest.mark.parametrize("name", LONG)
def test_damaged_files_that_take_long(tmp_path, name):
  check(name, tmp_path, 200, forged=False)


@pytest.mark.fuzz
@pytest.mark.parametrize("name", ARCHIVES)
def test_forged_files(tmp_path, name):
  check(name, tmp_path, 1000, forged=True)


@pytest.mark.faults
@pytest.mark.parametrize("name", FORMATS)
def test_every_truncation(tmp_path, name):
  """Every beginning of a file is refused, in words that name it. Of lines, those that are whole may be read."""
  format = FORMATS[name]
  path = format.write(tmp_path)
  content, right = path.read_bytes(), contents(format.read(path))
  exact = None if name in ("csv", "metrics.jsonl") else right
  faults = []
  for length in range(len(content)):
    path.write_bytes(content[:length])
    if fault := fault_of(format, tmp_path, path, exact):
      faults.append((length, *fault))
  print(f"{name}: {len(content)} truncations: {len(faults)} faults")
  assert not faults, faults[:20]
