"""The page that the tests read, written once, and a browser that opens it."""

import shutil

import numpy as np
import pytest

from last_jax import tools
from last_jax.tools import page as pages
from tests.tools.browsing import ARGUMENTS, open_page
from tests.tools.some_page import some_page


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
  path = tmp_path_factory.mktemp("picture") / "photo.png"
  line = tools.Line("SGD", np.ones((2, 5)), {"iteration": np.arange(5)}, "sgd")
  tools.plot_charts(path, [tools.Chart("Distance", "y", (line,))])
  return path


@pytest.fixture(scope="module")
def contents(picture):
  return some_page(picture)


@pytest.fixture(scope="module")
def path(contents, tmp_path_factory):
  path = tmp_path_factory.mktemp("page") / "results page.html"
  pages.write_page(path, contents)
  return path


@pytest.fixture(scope="session")
def browser():
  executable = shutil.which("chromium")
  if executable is None:
    pytest.skip("the page is tested in chromium, which is not on PATH")
  api = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser, but is not installed")
  with api.sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def wrong():
  """Requests to the network and errors, in any view."""
  return []


@pytest.fixture
def nothing_goes_wrong(wrong):
  yield
  found, wrong[:] = wrong[:], []
  assert found == []


@pytest.fixture
def opened(browser, path, wrong):
  """A function that opens the page in a new view."""
  views = []

  def open_view(width, **settings):
    views.append(open_page(browser, path, wrong, width, **settings))
    return views[-1]

  yield open_view
  for view in views:
    view.close()
