import pytest

from launch import console


@pytest.fixture(autouse=True)
def no_lines_of_progress(monkeypatch):
  """Of commands in this process, what they write is compared, on machines of any speed."""
  monkeypatch.setattr(console, "QUIET_SECONDS", 3600.0)
