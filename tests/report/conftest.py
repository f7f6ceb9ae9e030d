"""The page that the tests look at: written once."""

import numpy as np
import pytest

from last_jax import report
from last_jax.report import page as pages
from tests.report.some_page import some_page


@pytest.fixture(scope="module")
def picture(tmp_path_factory):
  path = tmp_path_factory.mktemp("picture") / "photo.png"
  curves = {"SGD": {"step": np.arange(5), "distance": np.ones((2, 5))}}
  report.plot_curves(path, curves)
  return path


@pytest.fixture(scope="module")
def contents(picture):
  return some_page(picture)


@pytest.fixture(scope="module")
def path(contents, tmp_path_factory):
  pytest.importorskip("plotly", reason="the page holds Plotly's script, but plotly is not installed")
  path = tmp_path_factory.mktemp("page") / "results page.html"
  pages.write_page(path, contents)
  return path
