"""The page that the tests read, written once."""

import numpy as np
import pytest

from last_jax import tools
from last_jax.tools import page as pages
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
